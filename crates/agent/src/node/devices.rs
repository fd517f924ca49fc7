//! Assigns DPDK devices to workers: a device belongs to one pair, and a pair to one owner.

use std::sync::{Arc, Mutex};

use myelin_dataplane::Direction;
use myelin_spec::{DpdkDevice, ServiceChain};

use crate::api::ApiError;
use crate::pool::lock;

/// The device pairs that workers have claimed.
#[derive(Default, Clone)]
pub(crate) struct Devices(Arc<Mutex<Vec<DevicePair>>>);

#[derive(Clone, PartialEq, Eq)]
struct DevicePair {
    devices: [DpdkDevice; 2],
    owner: String,
}

/// A worker's claim on a pair of devices.
pub(crate) struct Claim {
    devices: Devices,
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
        let mut pairs = lock(&self.0);
        for other in pairs.iter() {
            if other.direction(&pair.devices).is_some() {
                return Err(ApiError::failed(format!(
                    "the devices belong to the chains of owner `{}`, and owners share no packet buffers: use other devices",
                    other.owner
                )));
            }
            let taken = pair.devices.iter().find(|device| {
                let mut claimed = other.devices.iter();
                claimed.any(|claimed| is_same(device, claimed))
            });
            if let Some(device) = taken {
                return Err(ApiError::failed(format!(
                    "the device `{device}` is paired with another device already: use another device, or the same pair"
                )));
            }
        }
        pairs.push(pair.clone());
        drop(pairs);
        Ok(Claim {
            devices: self.clone(),
            pair,
        })
    }
}

impl DevicePair {
    /// The direction from `ends[0]` to `ends[1]`, if the two devices are this pair.
    fn direction(&self, ends: &[DpdkDevice; 2]) -> Option<Direction> {
        let [ingress, egress] = ends;
        if self.devices == *ends {
            Some(Direction::Forward)
        } else if self.devices[0] == *egress && self.devices[1] == *ingress {
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
        direction.ok_or_else(|| ApiError::failed("the chain's worker drives other devices"))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.devices.0).retain(|pair| *pair != self.pair);
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
fn is_same(first: &DpdkDevice, second: &DpdkDevice) -> bool {
    let interface = first.argument("iface");
    (first.is_pci() && first.name() == second.name())
        || (interface.is_some() && interface == second.argument("iface"))
}
