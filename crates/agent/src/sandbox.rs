//! A function's sandbox: a network namespace of its own with one link, whose near end stands in the agent's namespace.
//! Nothing in it speaks of its own accord: no address, no IPv6, no offloads.

use myelin_linux::ErrorKind;
use myelin_linux::ethtool::{Ethtool, Offload};
use myelin_linux::journal::{self, Journal, Resource};
use myelin_linux::link::{self, LinkId, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::{self, Netns};
use myelin_linux::sysctl;

use crate::api::ApiError;
use crate::paths::short_hash;

/// The link's name inside.
const INNER: &str = "eth0";
/// All that leaves a packet unfinished or joins several into one.
const OFFLOADS: [(Offload, bool); 5] = [
    (Offload::TransmitChecksum, false),
    (Offload::ScatterGather, false),
    (Offload::Segmentation, false),
    (Offload::GenericSegmentation, false),
    (Offload::GenericReceive, false),
];

/// Whose sandbox it is; no two of a run are alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occupant<'a> {
    /// Identity of the run (agent).
    pub(crate) run: &'a str,
    pub(crate) chain: &'a str,
    pub(crate) function: &'a str,
    pub(crate) spi: u32,
    pub(crate) generation: u16,
    pub(crate) position: u8,
}

/// A namespace and its link, both ends up.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) netns: Netns,
    /// The link's end in the agent's namespace.
    pub(crate) near: LinkId,
    /// Its end inside.
    pub(crate) inner: LinkId,
    resources: [Resource; 2],
}

impl Occupant<'_> {
    /// A name has no dot in it, so this is no other namespace's name.
    fn netns(&self) -> String {
        format!(
            "myelin-{}.{}.{}",
            self.chain, self.function, self.generation
        )
    }

    fn owner(&self) -> String {
        format!("myelin run {}", self.run)
    }

    /// `my`, 8 hex digits, `n`, the position: at most 13 bytes.
    fn near(&self) -> String {
        let Self {
            run,
            chain,
            spi,
            generation,
            ..
        } = self;
        let identity = format!("{run}/{chain}/{spi}/{generation}");
        format!("my{}n{}", short_hash(identity.as_bytes()), self.position)
    }
}

impl Sandbox {
    /// Makes the sandbox, or nothing. `mtu` is the largest packet on the link without its header, bytes.
    pub(crate) fn create(
        occupant: &Occupant<'_>,
        mtu: u32,
        journal: &mut Journal,
    ) -> Result<Self, ApiError> {
        let resources = [
            Resource::Netns {
                name: occupant.netns(),
                owner: occupant.owner(),
            },
            Resource::Link {
                name: occupant.near(),
            },
        ];
        let mut made = 0;
        make(occupant, mtu, &resources, journal, &mut made)
            .map(|(netns, near, inner)| Self {
                netns,
                near,
                inner,
                resources: resources.clone(),
            })
            .map_err(|error| {
                // What was there before is not its own: it stays, in the journal of whoever made it.
                remove(&resources[..made], journal);
                for resource in &resources[made..] {
                    let _ = journal.removed(resource);
                }
                ApiError::failed(error)
            })
    }

    /// Removes the link and the namespace.
    pub(crate) fn destroy(self, journal: &mut Journal) {
        remove(&self.resources, journal);
    }
}

/// The newest first: a namespace may live on in a process that is still inside, and the link with it.
fn remove(resources: &[Resource], journal: &mut Journal) {
    for resource in resources.iter().rev() {
        if let Err(error) = journal::remove(resource).and_then(|()| journal.removed(resource)) {
            // It stays in the journal, so `down --all` will try again.
            tracing::warn!(%error, "a part of a sandbox stays");
        }
    }
}

/// Counts in `made` how many of the resources are there.
fn make(
    occupant: &Occupant<'_>,
    mtu: u32,
    resources: &[Resource; 2],
    journal: &mut Journal,
    made: &mut usize,
) -> myelin_linux::Result<(Netns, LinkId, LinkId)> {
    for resource in resources {
        journal.intend(resource)?;
    }
    let name = occupant.netns();
    let netns = Netns::create_owned(&name, &occupant.owner())
        .map_err(|error| explain(error, &name, &occupant.owner()))?;
    *made += 1;
    let mut netlink = Netlink::open()?;
    let near = occupant.near();
    let end = |name, namespace| VethEnd {
        name,
        namespace,
        mac: None,
        mtu: Some(mtu),
    };
    netlink.apply([link::veth(&end(&near, None), &end(INNER, Some(&netns)))?])?;
    *made += 1;
    let near = netlink.link(&near)?.id();
    sysctl::disable_ipv6(&near.name, true)?;
    Ethtool::open()?.set(&near.name, &OFFLOADS)?;
    netlink.apply([link::no_ipv6_autoconfiguration(&near), link::up(&near)])?;
    let inner = netns.enter(furnish)??;
    Ok((netns, near, inner))
}

/// Runs inside.
fn furnish() -> myelin_linux::Result<LinkId> {
    sysctl::disable_ipv6(INNER, true)?;
    Ethtool::open()?.set(INNER, &OFFLOADS)?;
    let mut netlink = Netlink::open()?;
    let inner = netlink.link(INNER)?.id();
    netlink.apply([link::no_ipv6_autoconfiguration(&inner), link::up(&inner)])?;
    Ok(inner)
}

/// Says whose namespace is in the way.
fn explain(error: myelin_linux::Error, name: &str, owner: &str) -> myelin_linux::Error {
    if error.kind() != ErrorKind::Exists {
        return error;
    }
    match netns::owner(name) {
        Ok(Some(found)) if found == owner => {
            error.remedy("an agent that was killed left it: `myelin down --all` removes it")
        }
        Ok(Some(found)) => error.remedy(format!(
            "it belongs to another agent ({found}): rename the chain"
        )),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_occupant_and_fit() {
        let one = Occupant {
            run: "5f3a",
            chain: "tactile",
            function: "filter",
            spi: 0x00ff_ffff,
            generation: u16::MAX,
            position: 31,
        };
        assert_eq!(one.netns(), "myelin-tactile.filter.65535");
        assert!(link::check_name(&one.near()).is_ok(), "{}", one.near());
        let others = [
            Occupant { run: "5f3b", ..one },
            Occupant { spi: 1, ..one },
            Occupant {
                generation: 0,
                ..one
            },
            Occupant { position: 3, ..one },
        ];
        for other in others {
            assert_ne!(one.near(), other.near());
        }
    }
}
