//! Judges the interfaces of a chain: what changed since the deployment, and what the agent does.
//!
//! All functions are pure. `control::links` reads the links and acts.

use crate::node::mtu::LARGEST_MTU;

/// The state of a link that matters to a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkState {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Whether the link is administratively up.
    pub(crate) is_up: bool,
    pub(crate) has_carrier: bool,
    pub(crate) mtu: u32,
    /// Number of receive queues.
    pub(crate) queues: u32,
}

/// One interface of a chain.
#[derive(Debug, Clone)]
pub(crate) struct PortView {
    /// Name in the chain file; `None` for a link that Myelin made.
    pub(crate) named: Option<String>,
    /// The interface when it became a port; `has_carrier` says whether it has had a carrier since.
    pub(crate) deployed: LinkState,
    /// Whether the kernel has reported the removal of the interface.
    pub(crate) was_removed: bool,
    /// The interface now; `None` if no interface has its index.
    pub(crate) now: Option<LinkState>,
    /// The interface that has the name in the chain file now.
    pub(crate) namesake: Option<LinkState>,
    /// Whether the chain's packets meet XDP programs or sockets here or behind the entry link.
    pub(crate) limits_mtu: bool,
    /// Whether the chain's front door at XDP needs a socket for each receive queue.
    pub(crate) needs_all_queues: bool,
    /// Whether the chain's bound depends on the MTU.
    pub(crate) bounds_mtu: bool,
}

/// The judgement on a chain's interfaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ChainLinks {
    /// Present names of ingress and egress; empty before the first judgement.
    pub(crate) names: Vec<String>,
    /// Each fault with its remedy.
    pub(crate) faults: Vec<String>,
    /// Whether the chain forwards no packets until an interface is back.
    pub(crate) is_waiting: bool,
    /// Whether the agent must take the chain down, and deploy it again when all its interfaces are
    /// there.
    pub(crate) must_redeploy: bool,
    /// Whether the ingress port can stay while the agent does so.
    pub(crate) keeps_ingress: bool,
}

/// The judgement on one interface.
#[derive(Debug, Default)]
struct PortJudgement {
    faults: Vec<String>,
    /// Whether the chain forwards no packets because of this interface.
    stops_chain: bool,
    /// Whether the interface is gone.
    is_gone: bool,
    /// Whether the interface has another name than in the chain file.
    is_renamed: bool,
    /// Whether the port must be opened again.
    is_outgrown: bool,
}

/// Judges the interfaces of a running chain. `missing_link` names an internal link of the chain
/// that somebody removed.
pub(crate) fn judge(ports: &[PortView; 2], missing_link: Option<String>) -> ChainLinks {
    let judged = ports.each_ref().map(judge_port);
    let has_names = ports.iter().all(|port| port.named.is_some());
    let is_gone = judged.iter().any(|port| port.is_gone);
    let is_renamed = judged.iter().any(|port| port.is_renamed);
    let is_outgrown = judged.iter().any(|port| port.is_outgrown);
    // A renamed interface would not be found again. The chain works until an interface is gone.
    let is_broken = is_gone || missing_link.is_some();
    let mut links = ChainLinks {
        names: ports.iter().map(present_name).collect(),
        is_waiting: missing_link.is_some() || judged.iter().any(|port| port.stops_chain),
        must_redeploy: has_names && (is_broken || is_outgrown && !is_renamed),
        keeps_ingress: !judged[0].is_gone && !judged[0].is_outgrown,
        faults: Vec::new(),
    };
    for (port, judged) in ports.iter().zip(judged) {
        links.faults.extend(judged.faults);
        if judged.is_renamed && (is_broken || is_outgrown) {
            links.faults.extend(describe_rename(port));
        }
    }
    let missing = missing_link.map(|link| describe_missing(&link, has_names));
    links.faults.extend(missing);
    links.faults.dedup();
    links
}

/// Judges the interfaces of a chain that was taken down: the names in the chain file, and the
/// interfaces that have these names now. The chain was deployed on the interfaces with `indices`.
pub(crate) fn judge_waiting(
    ports: &[(String, Option<LinkState>); 2],
    indices: [u32; 2],
) -> Vec<String> {
    let judge = |((name, now), index): (&(String, Option<LinkState>), u32)| match now {
        None => Some(describe_gone(name, index)),
        Some(link) if link.is_up => None,
        Some(link) => Some(describe_down(link)),
    };
    let mut faults: Vec<_> = ports.iter().zip(indices).filter_map(judge).collect();
    faults.dedup();
    faults
}

fn judge_port(port: &PortView) -> PortJudgement {
    let (name, index) = (&port.deployed.name, port.deployed.index);
    let mut judged = PortJudgement::default();
    let Some(now) = port.now.as_ref().filter(|_| !port.was_removed) else {
        judged.is_gone = true;
        judged.stops_chain = true;
        judged.faults.push(match (&port.named, &port.namesake) {
            (None, _) => describe_missing(&format!("interface {name} (index {index})"), false),
            (Some(named), None) => describe_gone(named, index),
            (Some(named), Some(next)) => format!(
                "interface {named} (index {index}) is gone: the agent deploys the chain on the new {named} (index {})",
                next.index
            ),
        });
        return judged;
    };
    let namesake = port.namesake.as_ref().map(|link| link.index);
    judged.is_renamed = port.named.is_some() && namesake != Some(index);
    if !now.is_up {
        judged.stops_chain = true;
        judged.faults.push(describe_down(now));
    } else if !now.has_carrier && port.deployed.has_carrier {
        judged.faults.push(format!(
            "interface {} (index {index}) has no carrier, so no packets pass: check its far end",
            now.name
        ));
    }
    judged.faults.extend(describe_mtu(port, now));
    if port.needs_all_queues && now.queues > port.deployed.queues {
        judged.is_outgrown = true;
        judged.faults.push(format!(
            "interface {} (index {index}) has {} receive queues now, and the chain has sockets at {}: the agent deploys \
             the chain again",
            now.name, now.queues, port.deployed.queues
        ));
    }
    judged
}

fn present_name(port: &PortView) -> String {
    let now = port.now.as_ref().filter(|_| !port.was_removed);
    now.unwrap_or(&port.deployed).name.clone()
}

fn describe_gone(name: &str, index: u32) -> String {
    format!(
        "interface {name} (index {index}) is gone: make an interface with this name and set it up, and the agent \
         deploys the chain on it; or remove the chain with `myelin down`"
    )
}

fn describe_down(link: &LinkState) -> String {
    let (name, index) = (&link.name, link.index);
    format!("interface {name} (index {index}) is down: set it up with `ip link set {name} up`")
}

/// Describes why packets above a limit are lost after a change of the MTU.
fn describe_mtu(port: &PortView, now: &LinkState) -> Option<String> {
    let (name, index, mtu, before) = (&now.name, now.index, now.mtu, port.deployed.mtu);
    if mtu <= before {
        return None;
    }
    let subject = format!("interface {name} (index {index}): the MTU is now {mtu}");
    if port.limits_mtu && mtu > LARGEST_MTU {
        return Some(format!(
            "{subject}, above {LARGEST_MTU}, the limit of XDP and user-space functions: the chain loses longer packets; \
             set it with `ip link set {name} mtu {before}`"
        ));
    }
    if port.limits_mtu {
        return Some(format!(
            "{subject}, and the chain was deployed for {before}: the chain loses longer packets; set it with \
             `ip link set {name} mtu {before}`, or deploy the chain again with `myelin down` and `myelin up`"
        ));
    }
    port.bounds_mtu.then(|| {
        format!(
            "{subject}, and the chain was admitted for {before}: its worst case does not hold for longer packets; set it \
             with `ip link set {name} mtu {before}`, or deploy the chain again with `myelin down` and `myelin up`"
        )
    })
}

fn describe_rename(port: &PortView) -> Option<String> {
    let (now, named) = (port.now.as_ref()?, port.named.as_ref()?);
    Some(format!(
        "interface {named} (index {}) is now named {}, so the agent cannot deploy the chain again: name it {named} again, \
         or write the new name into the chain file and run `myelin down` and `myelin up`",
        now.index, now.name
    ))
}

fn describe_missing(link: &str, has_names: bool) -> String {
    let remedy = if has_names {
        "the agent deploys the chain again"
    } else {
        "make it again with `myelin down` and `myelin up`"
    };
    format!("{link} is gone or down, and Myelin made it for the chain: {remedy}")
}

#[cfg(test)]
mod tests;
