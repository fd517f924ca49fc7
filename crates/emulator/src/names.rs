//! Names of a chain's end hosts. The run and the chain determine the names. So a caller can find
//! the objects without a record, and two runs on one machine use different links.

use std::fmt;

use myelin_linux::journal::Resource;
use myelin_linux::link::Mac;

/// One of the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends the chain's traffic.
    Client,
    /// Receives the chain's traffic.
    Server,
}

impl Role {
    /// Both hosts, the client first.
    pub const BOTH: [Self; 2] = [Self::Client, Self::Server];

    /// Returns the role of the other host.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    fn letter(self) -> char {
        match self {
            Self::Client => 'c',
            Self::Server => 's',
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// Returns a hash of an object of a run. FNV-1a gives the same hash in all builds, unlike the
/// standard library's hasher.
pub(crate) fn hash_of(run: &str, object: &str) -> u32 {
    // The zero ends the run's name.
    let bytes = run.bytes().chain([0]).chain(object.bytes());
    bytes.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The names of one chain's end hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndHostNames {
    run: String,
    chain: String,
    hash: u32,
}

impl EndHostNames {
    /// Makes the names. `run` distinguishes the runs (agents) on a machine, `chain` the chains of a
    /// run.
    pub fn new(run: &str, chain: &str) -> Self {
        Self {
            run: run.to_owned(),
            chain: chain.to_owned(),
            hash: hash_of(run, chain),
        }
    }

    /// Returns the network namespace, for example `myelin-<chain>-client`.
    pub fn netns(&self, role: Role) -> String {
        format!("myelin-{}-{role}", self.chain)
    }

    /// Returns the owner that the namespaces record.
    pub fn owner(&self) -> String {
        format!("myelin run {}", self.run)
    }

    /// Returns the host's port, a link in the caller's namespace: `my<8 hex digits>c`, 11 bytes.
    pub fn port(&self, role: Role) -> String {
        format!("my{:08x}{}", self.hash, role.letter())
    }

    /// Returns the MAC address of the host's `eth0`.
    pub fn host_mac(&self, role: Role) -> Mac {
        self.mac(role, 0)
    }

    /// Returns the MAC address of the host's port.
    pub fn port_mac(&self, role: Role) -> Mac {
        self.mac(role, 0x10)
    }

    /// Returns all objects of the hosts, in the order of their creation. Remove a link before its
    /// namespace, because a process inside may keep the namespace.
    pub fn resources(&self) -> [Resource; 4] {
        let netns = |role| Resource::Netns {
            name: self.netns(role),
            owner: self.owner(),
        };
        let link = |role| Resource::Link {
            name: self.port(role),
        };
        [
            netns(Role::Client),
            netns(Role::Server),
            link(Role::Client),
            link(Role::Server),
        ]
    }

    /// Returns a locally administered (02) unicast address.
    fn mac(&self, role: Role, side: u8) -> Mac {
        let role = match role {
            Role::Client => 1,
            Role::Server => 2,
        };
        let [a, b, c, d] = self.hash.to_be_bytes();
        Mac([0x02, side | role, a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_have_the_documented_pattern_and_length() {
        let names = EndHostNames::new("5f3a", "tactile");
        assert_eq!(names.netns(Role::Client), "myelin-tactile-client");
        assert_eq!(names.netns(Role::Server), "myelin-tactile-server");
        assert_eq!(names.owner(), "myelin run 5f3a");
        let port = names.port(Role::Client);
        assert!(
            port.starts_with("my") && port.ends_with('c') && port.len() == 11,
            "{port}"
        );
        assert!(
            names
                .host_mac(Role::Client)
                .to_string()
                .starts_with("02:01:")
        );
    }

    #[test]
    fn names_of_runs_and_chains_differ() {
        let mut ports = HashSet::new();
        for run in 0..30 {
            for chain in 0..30 {
                for role in Role::BOTH {
                    assert!(ports.insert(
                        EndHostNames::new(&run.to_string(), &chain.to_string()).port(role)
                    ));
                }
            }
        }
        assert_ne!(
            EndHostNames::new("ab", "c").port(Role::Client),
            EndHostNames::new("a", "bc").port(Role::Client)
        );
        let names = EndHostNames::new("r", "c");
        let macs: HashSet<Mac> = Role::BOTH
            .into_iter()
            .flat_map(|role| [names.host_mac(role), names.port_mac(role)])
            .collect();
        assert_eq!(macs.len(), 4);
    }
}
