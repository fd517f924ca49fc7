//! Names of DPDK devices: PCI addresses, and virtual devices with arguments.

use serde::{Deserialize, Serialize};

/// A DPDK device: `0000:01:00.0`, or a virtual device, `net_tap0,iface=tap0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DpdkDevice(String);

impl DpdkDevice {
    /// Parses the name of a device.
    ///
    /// # Errors
    /// The text is neither a PCI address nor a virtual device with a number.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("contains a space or a control character");
        }
        let name = text.split(',').next().unwrap_or_default();
        if is_pci(name) {
            return Ok(Self(text.to_owned()));
        }
        let driver = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let known = driver.starts_with("net_") || driver == "virtio_user";
        if !known || driver.len() == name.len() {
            return Err("is not a DPDK device");
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the name as in the chain file.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns DPDK's name of the device: the text before the arguments.
    pub fn name(&self) -> &str {
        self.0.split(',').next().unwrap_or_default()
    }

    /// Whether this is a PCI device, not a virtual device.
    pub fn is_pci(&self) -> bool {
        is_pci(&self.0)
    }

    /// Returns the value of an argument: for `iface` of `net_tap0,iface=tap0`, `tap0`.
    pub fn argument(&self, key: &str) -> Option<&str> {
        self.0
            .split(',')
            .skip(1)
            .filter_map(|argument| argument.split_once('='))
            .find_map(|(name, value)| (name == key).then_some(value))
    }
}

impl TryFrom<String> for DpdkDevice {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::new(&text)
    }
}

impl From<DpdkDevice> for String {
    fn from(name: DpdkDevice) -> Self {
        name.0
    }
}

impl std::fmt::Display for DpdkDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a device's name is a PCI address, such as `01:00.0` or `0000:01:00.0`.
fn is_pci(device: &str) -> bool {
    let address = device.split(',').next().unwrap_or_default();
    let hex = |part: &str, len: std::ops::RangeInclusive<usize>| {
        len.contains(&part.len()) && part.chars().all(|c| c.is_ascii_hexdigit())
    };
    let Some((rest, function)) = address.rsplit_once('.') else {
        return false;
    };
    let parts: Vec<&str> = rest.split(':').collect();
    let bus_and_slot = match parts[..] {
        [domain, bus, slot] => hex(domain, 4..=8) && hex(bus, 2..=2) && hex(slot, 2..=2),
        [bus, slot] => hex(bus, 2..=2) && hex(slot, 2..=2),
        _ => false,
    };
    bus_and_slot && matches!(function.as_bytes(), [b'0'..=b'7'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_and_virtual_devices_are_accepted() {
        for pci in [
            "0000:01:00.0",
            "01:00.7",
            "0000:af:1f.3,iova=1",
            "10000:01:00.0",
        ] {
            assert!(DpdkDevice::new(pci).unwrap().is_pci(), "{pci}");
        }
        for virt in [
            "net_tap0,iface=t0",
            "net_null12",
            "virtio_user0,path=/dev/vhost-net",
        ] {
            assert!(!DpdkDevice::new(virt).unwrap().is_pci(), "{virt}");
        }
    }

    #[test]
    fn name_and_arguments_of_a_device_are_parsed() {
        let device = DpdkDevice::new("net_af_xdp0,iface=eth1,busy_budget=0").unwrap();
        assert_eq!(device.name(), "net_af_xdp0");
        assert_eq!(device.argument("iface"), Some("eth1"));
        assert_eq!(device.argument("queue"), None);
    }

    #[test]
    fn text_without_a_device_is_refused() {
        for bad in [
            "",
            "eth0",
            "net_tap",
            "01:00.8",
            "1:00.0",
            "0:1:2:3.0",
            ",",
            "crypto_null0",
        ] {
            assert!(DpdkDevice::new(bad).is_err(), "{bad}");
        }
        assert!(DpdkDevice::new("net_tap0, iface=x").is_err());
    }
}
