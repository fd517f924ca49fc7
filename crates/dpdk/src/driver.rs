//! The driver of a worker over DPDK: one environment and two devices, each with a front door.

use std::os::fd::OwnedFd;
use std::time::Duration;

use myelin_dataplane::umem::FrameMemory;
use myelin_dataplane::{ChainRedirect, DevicePair, DoorCounters, DrivenPort, Driver, PortSetup};

use crate::environment::{Environment, EnvironmentConfig};
use crate::error::Error;
use crate::port::DpdkPort;

/// Two devices in an environment of this process.
#[derive(Debug)]
pub struct Dpdk {
    // Fields drop in this order: the ports before the environment that they use.
    ports: Vec<DpdkPort>,
    environment: Environment,
}

impl Dpdk {
    fn open(pair: &DevicePair, core: Option<u32>) -> Result<Self, Error> {
        let environment = Environment::start(&EnvironmentConfig {
            core,
            hugepages: pair.hugepages,
            hardware: pair
                .devices
                .iter()
                .filter(|device| device.is_pci())
                .cloned()
                .collect(),
            ..EnvironmentConfig::new(&pair.prefix)
        })?;
        let [first, second] = &pair.devices;
        let opened = DpdkPort::open(&environment, first)
            .and_then(|first| Ok([first, DpdkPort::open(&environment, second)?]));
        match opened {
            Ok([mut first, mut second]) => {
                first.set_opposite(&second);
                second.set_opposite(&first);
                Ok(Self {
                    ports: vec![first, second],
                    environment,
                })
            }
            Err(error) => {
                environment.stop();
                Err(error)
            }
        }
    }
}

impl Driver for Dpdk {
    type Port = DpdkPort;

    fn start(setup: &PortSetup, core: Option<u32>, _fds: Vec<OwnedFd>) -> Result<Self, String> {
        match setup {
            PortSetup::Devices(pair) => Self::open(pair, core).map_err(|error| error.to_string()),
            PortSetup::Sockets { .. } | PortSetup::PacketSockets | PortSetup::DelayLine { .. } => {
                Err("this worker drives only devices".into())
            }
        }
    }

    fn memory(&self) -> &'static FrameMemory {
        self.environment.memory()
    }

    fn first_ports(&mut self) -> Vec<DpdkPort> {
        std::mem::take(&mut self.ports)
    }

    fn stop(self) {
        self.environment.stop();
    }
}

impl DrivenPort for DpdkPort {
    /// A device cannot wake the worker.
    const MAX_SLEEP: Option<Duration> = Some(Duration::from_micros(20));

    fn close(self) {}

    fn redirect(&mut self, chain: &ChainRedirect, counters: DoorCounters) -> Result<(), String> {
        self.door()
            .redirect(chain, counters)
            .map_err(|error| format!("device {}: {error}", self.name()))
    }

    fn stop_redirect(&mut self, spi: u32) {
        self.door().stop_redirect(spi);
    }
}
