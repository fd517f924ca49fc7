//! Assigns DPDK devices to workers: a device belongs to one pair, and a pair to one owner.

use std::sync::{Arc, Mutex};

use myelin_dataplane::Direction;
use myelin_spec::{DpdkDevice, ServiceChain};

use crate::api::ApiError;
use crate::pool::lock;

/// The device pairs that workers have.
#[derive(Default, Clone)]
pub(crate) struct Devices(Arc<Mutex<Vec<DevicePair>>>);

#[derive(Clone, PartialEq, Eq)]
struct DevicePair {
    devices: [DpdkDevice; 2],
    owner: String,
}

/// A worker's claim on a pair of devices.
pub(crate) struct Claim {
    all: Devices,
    pair: DevicePair,
}

impl Devices {
    /// Claims the devices of a chain for a worker that is about to start.
    ///
    /// # Errors
    /// Another owner has the pair, or one of the devices is in another pair.
    pub(crate) fn claim(&self, chain: &ServiceChain) -> Result<Claim, ApiError> {
        let pair = DevicePair {
            devices: device_pair(chain)?,
            owner: chain.owner().to_owned(),
        };
        let mut all = lock(&self.0);
        for other in all.iter() {
            if other.direction(&pair.devices).is_some() {
                return Err(ApiError::failed(format!(
                    "the devices belong to the chains of owner `{}`, and owners do not share packet memory: use other devices",
                    other.owner
                )));
            }
            let taken = pair.devices.iter().find(|device| {
                let mut others = other.devices.iter();
                others.any(|other| is_same(device, other))
            });
            if let Some(device) = taken {
                return Err(ApiError::failed(format!(
                    "the device `{device}` is paired with another device already: use another device, or the same pair"
                )));
            }
        }
        all.push(pair.clone());
        drop(all);
        Ok(Claim {
            all: self.clone(),
            pair,
        })
    }
}

impl DevicePair {
    /// The direction from the first to the second device, if they are this pair.
    fn direction(&self, ends: &[DpdkDevice; 2]) -> Option<Direction> {
        let [one, other] = ends;
        if self.devices == *ends {
            Some(Direction::Forward)
        } else if self.devices[0] == *other && self.devices[1] == *one {
            Some(Direction::Back)
        } else {
            None
        }
    }
}

impl Claim {
    /// The devices, in the order of the chain that claimed them.
    pub(crate) fn devices(&self) -> &[DpdkDevice; 2] {
        &self.pair.devices
    }

    /// The direction of a chain between these devices.
    ///
    /// # Errors
    /// The chain names other devices.
    pub(crate) fn direction(&self, chain: &ServiceChain) -> Result<Direction, ApiError> {
        let direction = self.pair.direction(&device_pair(chain)?);
        direction.ok_or_else(|| ApiError::failed("the worker has other devices"))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.all.0).retain(|other| *other != self.pair);
    }
}

/// The devices of a chain, from ingress to egress.
fn device_pair(chain: &ServiceChain) -> Result<[DpdkDevice; 2], ApiError> {
    let ports = chain.ports.as_ref();
    let ports = ports.ok_or_else(|| ApiError::failed("the chain names no ports"))?;
    let device = |text: &str| {
        DpdkDevice::new(text)
            .map_err(|problem| ApiError::failed(format!("device `{text}` {problem}")))
    };
    Ok([device(&ports.ingress)?, device(&ports.egress)?])
}

/// Whether two names mean the same device. Virtual devices without an interface belong to one
/// process and never match.
fn is_same(one: &DpdkDevice, other: &DpdkDevice) -> bool {
    let interface = one.argument("iface");
    (one.is_pci() && one.name() == other.name())
        || (interface.is_some() && interface == other.argument("iface"))
}
