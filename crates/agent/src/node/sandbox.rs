//! A function's sandbox: a network namespace with one link, or two for a black box. The near ends
//! are in the agent's namespace. The interfaces have no address, no IPv6 and no offloads, so they
//! send no packets by themselves.

use myelin_linux::ethtool::{self, Ethtool, Offload};
use myelin_linux::journal::{Journal, Resource, ResourceGuards};
use myelin_linux::link::{self, LinkId, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_linux::sysctl;
use myelin_spec::external;

use crate::api::{ApiError, short_hash};

/// The link's name inside the namespace.
const INNER: &str = "eth0";

/// Identifies the function in a sandbox; unique within a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionId<'a> {
    /// Identity of the run (agent).
    pub(crate) run: &'a str,
    /// Begins the chain's name in names of namespaces.
    pub(crate) host_prefix: &'a str,
    pub(crate) chain: &'a str,
    pub(crate) function: &'a str,
    pub(crate) spi: u32,
    pub(crate) generation: u16,
    pub(crate) position: u8,
}

/// A namespace and its links, with all ends up. Dropping the value removes namespace and links.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) netns: Netns,
    /// The link's end in the agent's namespace.
    pub(crate) near: LinkId,
    /// The link's end inside the namespace.
    pub(crate) inner: LinkId,
    /// The near end of a black box's second link, where its packets come out.
    pub(crate) out: Option<LinkId>,
    _resources: ResourceGuards,
}

/// Both ends of a link.
struct LinkEnds {
    near: LinkId,
    inner: LinkId,
}

impl FunctionId<'_> {
    /// Function names contain no dot, so the name is unique on the machine.
    fn netns(&self) -> String {
        format!(
            "myelin-{}{}.{}.{}",
            self.host_prefix, self.chain, self.function, self.generation
        )
    }

    fn run_name(&self) -> String {
        format!("myelin run {}", self.run)
    }

    /// `my`, 8 hex digits, `n` (`o` for a second link), the position: at most 13 bytes.
    fn near(&self, letter: char) -> String {
        let Self {
            run,
            chain,
            spi,
            generation,
            ..
        } = self;
        let identity = format!("{run}/{chain}/{spi}/{generation}");
        let hash = short_hash(identity.as_bytes());
        format!("my{hash}{letter}{}", self.position)
    }
}

impl Sandbox {
    /// Creates a sandbox with one link. On an error, leaves nothing behind. `mtu` is the largest
    /// packet without link header, bytes.
    pub(crate) fn create(
        id: &FunctionId<'_>,
        mtu: u32,
        journal: &Journal,
    ) -> Result<Self, ApiError> {
        Self::with_links(id, (INNER, None), mtu, journal)
    }

    /// Creates a sandbox with two links for a black box. On an error, leaves nothing behind.
    pub(crate) fn create_for_black_box(
        id: &FunctionId<'_>,
        mtu: u32,
        journal: &Journal,
    ) -> Result<Self, ApiError> {
        let names = (external::INGRESS, Some(external::EGRESS));
        let sandbox = Self::with_links(id, names, mtu, journal)?;
        let prepared = sandbox
            .netns
            .enter(|| prepare_for_redirects(&sandbox.inner));
        prepared
            .and_then(|result| result)
            .map_err(ApiError::failed)?;
        Ok(sandbox)
    }

    fn with_links(
        id: &FunctionId<'_>,
        (inner, out): (&str, Option<&str>),
        mtu: u32,
        journal: &Journal,
    ) -> Result<Self, ApiError> {
        let (name, owner) = (id.netns(), id.run_name());
        let resource = Resource::Netns {
            name: name.clone(),
            owner: owner.clone(),
        };
        // The guards remove the newest resource first, because a process inside may keep the
        // namespace and its link alive.
        let mut made = ResourceGuards::default();
        let make = || -> myelin_linux::Result<_> {
            let remedy = "a killed agent left the namespace: `myelin down --all` removes it";
            let create = || myelin_emulator::create_netns(&name, &owner, remedy);
            let (guard, netns) = journal.make(resource, create)?;
            made.0.push(guard);
            let mut connect = |letter, inner| {
                let near = id.near(letter);
                let resource = Resource::Link { name: near.clone() };
                made.0.push(journal.guard(resource)?);
                make_link(&netns, &near, inner, mtu)
            };
            let first = connect('n', inner)?;
            let out = out.map(|out| connect('o', out)).transpose()?;
            Ok((netns, first, out.map(|second| second.near)))
        };
        let (netns, first, out) = make().map_err(ApiError::failed)?;
        Ok(Self {
            netns,
            near: first.near,
            inner: first.inner,
            out,
            _resources: made,
        })
    }
}

/// Makes a link into the namespace and sets both ends up.
fn make_link(netns: &Netns, near: &str, inner: &str, mtu: u32) -> myelin_linux::Result<LinkEnds> {
    let mut netlink = Netlink::open()?;
    let end = |name, namespace| VethEnd {
        name,
        namespace,
        mac: None,
        mtu: Some(mtu),
    };
    netlink.apply([link::create_veth(
        &end(near, None),
        &end(inner, Some(netns)),
    )?])?;
    let near = netlink.link(near)?.id();
    ethtool::set_up_without_offloads(&mut netlink, &near)?;
    let inner = netns.enter(|| set_up_inner_end(inner))??;
    Ok(LinkEnds { near, inner })
}

/// Sets up the inner end. The caller has entered the namespace.
fn set_up_inner_end(inner: &str) -> myelin_linux::Result<LinkId> {
    let mut netlink = Netlink::open()?;
    let inner = netlink.link(inner)?.id();
    ethtool::set_up_without_offloads(&mut netlink, &inner)?;
    Ok(inner)
}

/// Prepares the inner end for redirects into the link, which need NAPI. The caller has entered the
/// namespace. Without an XDP program, GRO enables NAPI. A limit of one byte keeps GRO from merging
/// packets. Links that the black box makes, such as a bridge, must not send packets by themselves
/// either.
fn prepare_for_redirects(inner: &LinkId) -> myelin_linux::Result<()> {
    sysctl::disable_ipv6(sysctl::NEW_LINKS, true)?;
    Netlink::open()?.apply([link::set_gro_max_size(inner, 1)])?;
    Ethtool::open()?.set(&inner.name, &[Offload::GenericReceive], true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_short_enough() {
        let one = FunctionId {
            run: "5f3a",
            host_prefix: "",
            chain: "tactile",
            function: "filter",
            spi: 0x00ff_ffff,
            generation: u16::MAX,
            position: 31,
        };
        assert_eq!(one.netns(), "myelin-tactile.filter.65535");
        assert!(
            link::check_name(&one.near('n')).is_ok(),
            "{}",
            one.near('n')
        );
        let others = [
            FunctionId { run: "5f3b", ..one },
            FunctionId { spi: 1, ..one },
            FunctionId {
                generation: 0,
                ..one
            },
            FunctionId { position: 3, ..one },
        ];
        for other in others {
            assert_ne!(one.near('n'), other.near('n'));
        }
    }
}
