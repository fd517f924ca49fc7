//! What the calling thread may do (capabilities(7)).

use std::fmt;
use std::fs;

use nix::unistd::geteuid;

use crate::error::{Error, ErrorKind, Result};

/// A capability Myelin needs somewhere; the value is the kernel's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Links, addresses, XDP and tcx attachment.
    NetAdmin = 12,
    /// Network namespaces, mounts.
    SysAdmin = 21,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysAdmin => "CAP_SYS_ADMIN",
        })
    }
}

/// True when the effective user is root.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// True when the calling thread has the capability in effect.
pub fn has(capability: Capability) -> bool {
    fs::read_to_string("/proc/thread-self/status")
        .ok()
        .and_then(|status| effective(&status))
        .is_some_and(|set| set >> (capability as u8) & 1 == 1)
}

/// An error that names what is missing, when something is.
pub fn require(action: &str, needed: &[Capability]) -> Result<()> {
    let missing: Vec<String> = needed
        .iter()
        .filter(|needed| !has(**needed))
        .map(ToString::to_string)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        action,
        ErrorKind::Denied,
        format!("{} is missing", missing.join(", ")),
    )
    .remedy("run as root"))
}

fn effective(status: &str) -> Option<u64> {
    let digits = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(digits.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_effective_set() {
        let status = "Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t0000008000201000\nCapBnd:\t0\n";
        let set = effective(status).unwrap();
        assert_eq!(
            set,
            1 << 39 | 1 << Capability::SysAdmin as u8 | 1 << Capability::NetAdmin as u8
        );
        assert_eq!(effective("no such line"), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        if is_root() {
            require("do it", &[Capability::NetAdmin, Capability::SysAdmin]).unwrap();
        } else {
            let error = require("do it", &[Capability::NetAdmin]).unwrap_err();
            assert_eq!(
                error.to_string(),
                "cannot do it: CAP_NET_ADMIN is missing; run as root"
            );
        }
    }
}
