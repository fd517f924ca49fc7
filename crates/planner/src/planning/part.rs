//! The wires of a part: the longest packets that fit into frames with the headers between nodes.

use myelin_packet::wire::{header_len, remaining_mtu};
use myelin_spec::{PeerSpec, ServiceChain};

use crate::error::PlanError;
use crate::machine::Machine;
use crate::plan::{PartPlan, Plan};

/// MTU of an interface if the machine does not know it: Ethernet's.
const DEFAULT_MTU: u32 = 1500;
/// Shortest MTU of an IPv4 link (RFC 791).
const LEAST_MTU: u32 = 68;

/// Plans the wires of a part, and returns the plan with its warning.
pub(super) fn plan(
    chain: &ServiceChain,
    machine: &Machine,
) -> Result<Option<(PartPlan, Option<String>)>, PlanError> {
    let Some(part) = &chain.part else {
        return Ok(None);
    };
    let ingress_mtu = machine.ingress_mtu.unwrap_or(DEFAULT_MTU);
    let egress_mtu = machine.egress_mtu.unwrap_or(DEFAULT_MTU);
    let remaining = |peer: Option<&PeerSpec>, key: &str, mtu: u32| {
        let peer = peer.map(|peer| (peer, peer.tunnel()));
        let Some((peer, tunnel)) = peer else {
            return Ok(None);
        };
        let (remaining, headers) = (
            remaining_mtu(mtu, tunnel.as_ref()),
            header_len(tunnel.as_ref()),
        );
        if remaining >= LEAST_MTU {
            return Ok(Some(remaining));
        }
        let least = LEAST_MTU + headers as u32;
        let name = &peer.interface;
        let problem = format!(
            ": spec.part.{key}: the headers between nodes take {headers} bytes of the MTU of {name}, {mtu}, and leave no room \
             for packets; set it with `ip link set {name} mtu {least}` or more",
        );
        Err(PlanError::new(chain, &chain.places.part, problem))
    };
    let planned = PartPlan {
        path: part.path,
        first: part.first,
        length: part.length,
        from_mtu: remaining(part.from.as_ref(), "from", ingress_mtu)?,
        to_mtu: remaining(part.to.as_ref(), "to", egress_mtu)?,
    };
    let arriving = planned.from_mtu.unwrap_or(ingress_mtu);
    let warning = part.to.as_ref().zip(planned.to_mtu);
    let warning = warning.filter(|(_, leaving)| arriving > *leaving);
    let warning = warning.map(|(peer, leaving)| {
        format!(
            "packets of up to {arriving} bytes arrive, and {leaving} bytes fit into a frame to the next node: longer packets \
             are dropped at {}; set its MTU and the neighbour's to {} or more, or the senders' MTU to {leaving}",
            peer.interface,
            arriving + egress_mtu - leaving,
        )
    });
    Ok(Some((planned, warning)))
}

/// Warns if a part leaves without a shaper, because its queues may cluster packets, and the next
/// part's bound holds for packets in the profile.
pub(super) fn warn_of_clusters(plan: &Plan, chain: &ServiceChain) -> Option<String> {
    let is_unshaped = chain.to().is_some() && plan.shaper.is_none();
    let has_profile = !chain.sla.profile().is_unlimited();
    (is_unshaped && has_profile).then(|| {
        "nothing shapes the part's packets, so they may reach the next node in clusters above the profile, for which its \
         worst case does not hold; write `enforce: both`"
            .to_owned()
    })
}
