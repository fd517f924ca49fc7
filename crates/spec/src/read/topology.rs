//! Reads a `Topology`.

mod hosts;
mod networks;
mod switches;

use std::collections::HashMap;

use super::chain;
use crate::keys::field::{Field, Fields};
use crate::keys::{ConfigKey, DURATION, TEXT, ValueType, integer, keys, name, read_percent};
use crate::printable::Printable;
use crate::topology::{
    Impairments, LinkEmulation, LinkSpec, Loss, MAX_LINKS, Topology, default_name,
};
use crate::units;

/// Longest delay of a link. Longer delays are mistakes in the unit.
const MAX_DELAY_NS: u64 = 10_000_000_000;

keys! {
    /// Keys of a loss in bursts.
    LOSS_KEYS {
        /// The share of packets that the link loses.
        "rate" = ConfigKey::new(ValueType::Percent).required();
        /// The mean number of packets lost in a row (Gilbert's model).
        "burst" = integer(1, 100_000, "a number of packets").with_default("1");
    }
}

keys! {
    /// Keys of the direction of a link from its second end to its first. What it lacks is off.
    BACK_KEYS {
        /// The propagation delay.
        "delay" = DURATION;
        /// The largest deviation from the delay; at most the delay.
        "jitter" = DURATION;
        /// The rate: bit, kbit, Mbit or Gbit a second.
        "bandwidth" = TEXT;
        /// The longest queue before the rate, packets. Default: chosen from the rate.
        "queue" = integer(1, 1_000_000, "a number of packets");
        /// The share of packets that the link loses, or the share and the length of bursts.
        "loss" = ConfigKey::new(ValueType::TextOrMap(LOSS_KEYS));
    }
}

keys! {
    /// Keys of a link.
    LINK_KEYS {
        /// The two hosts, nodes, routers or switches that the link joins.
        "ends" = ConfigKey::new(ValueType::Ends).required();
        /// The name. Default: the names of both ends, A-B. Two links between the same ends need
        /// names.
        "name" = TEXT;
        /// The propagation delay of each direction.
        "delay" = DURATION;
        /// The largest deviation from the delay; at most the delay.
        "jitter" = DURATION;
        /// The rate of each direction: bit, kbit, Mbit or Gbit a second.
        "bandwidth" = TEXT;
        /// The longest queue before the rate, packets. Default: chosen from the rate.
        "queue" = integer(1, 1_000_000, "a number of packets");
        /// The share of packets that the link loses, or the share and the length of bursts.
        "loss" = ConfigKey::new(ValueType::TextOrMap(LOSS_KEYS));
        /// The direction from the second end to the first, if it differs. Then the keys above are
        /// about the other direction.
        "back" = ConfigKey::new(ValueType::Map(BACK_KEYS));
        /// What delays and loses the packets: the delay line of Myelin, or netem of the kernel.
        "by" = LinkEmulation::KEY.with_default("delay-line");
    }
}

keys! {
    /// Keys of `spec`.
    KEYS {
        /// The hosts: each a name, or a mapping.
        "hosts" = ConfigKey::new(ValueType::Hosts(hosts::HOST_KEYS)).required();
        /// The nodes: hosts that each run an agent and forward frames between their links. Each is
        /// a name, or a mapping.
        "nodes" = ConfigKey::new(ValueType::Hosts(hosts::HOST_KEYS));
        /// The routers: hosts that forward IP packets between their links.
        "routers" = ConfigKey::new(ValueType::Routers(hosts::ROUTER_KEYS));
        /// The switches: each a name, or a mapping.
        "switches" = ConfigKey::new(ValueType::Hosts(switches::SWITCH_KEYS));
        /// The links between hosts, nodes, routers and switches. Links between nodes and switches
        /// form no loop; a router ends a loop.
        "links" = ConfigKey::new(ValueType::Links(LINK_KEYS));
    }
}

/// Reads the topology of one document. Returns `None` after a fault.
pub(super) fn read(top: &Fields<'_>) -> Option<Topology> {
    let faults = top.faults;
    let before = faults.count();
    let metadata = chain::metadata(top);
    let example = "{ hosts: [ h1, h2 ], links: [ { ends: [ h1, h2 ] } ] }";
    let spec = top.required("spec", "hosts, switches and links", example)?;
    let fields = spec.mapping(KEYS)?;
    let mut names = Names::default();
    let hosts = hosts::read_all(&fields, &mut names);
    let (hosts, places): (Vec<_>, Vec<_>) = hosts.into_iter().unzip();
    let switches = switches::read(&fields, &hosts, &mut names);
    let mut topology = Topology {
        name: String::new(),
        hosts,
        switches: switches.names,
        controllers: switches.controllers,
        links: Vec::new(),
        place: faults.place(top.span),
    };
    read_links(&fields, &names, &mut topology);
    networks::complete(&mut topology, &places);
    let metadata = metadata?;
    (topology.name, topology.place) = (metadata.name, metadata.place);
    (faults.count() == before).then_some(topology)
}

/// The names of hosts, nodes, routers and switches, each with its line, and whether it forwards
/// frames.
#[derive(Default)]
struct Names(HashMap<String, (usize, bool)>);

impl Names {
    fn forwards(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|(_, forwards)| *forwards)
    }

    /// Adds a name; logs a fault if another object has it.
    fn add(&mut self, name: &str, forwards: bool, field: &Field<'_>) {
        let is_known = self.0.contains_key(name);
        let line = field.span.line;
        let (first, _) = self.0.entry(name.to_owned()).or_insert((line, forwards));
        if is_known {
            field.fault(
                format!("the name `{name}` was already given on line {first}"),
                "names that differ, also between hosts, nodes, routers and switches",
                "rename one of the two",
            );
        }
    }
}

/// Returns the elements of a list; logs a fault and returns none if the list is too long.
fn elements<'a>(field: &Field<'a>, what: &str, max: usize) -> Vec<Field<'a>> {
    let elements = field.list(&format!("a list of {what}")).unwrap_or_default();
    if elements.len() > max {
        field.fault(
            format!("{} {what}", elements.len()),
            format!("at most {max}"),
            "split the topology",
        );
        return Vec::new();
    }
    elements
}

fn read_links(spec: &Fields<'_>, names: &Names, topology: &mut Topology) {
    let field = spec.get("links");
    let elements = field.map(|field| elements(&field, "links", MAX_LINKS));
    let mut taken = HashMap::new();
    let mut groups = Groups::default();
    let mut has_loop = false;
    for element in elements.unwrap_or_default() {
        let Some(fields) = element.mapping(LINK_KEYS) else {
            continue;
        };
        let own_name = fields.get("name");
        let own_name = own_name.map(|field| name::read_label(&field));
        let impairments = read_impairments(&fields, LINK_KEYS);
        let back = fields.get("back");
        let back = back.and_then(|field| field.mapping(BACK_KEYS));
        let back = back.map(|fields| read_impairments(&fields, BACK_KEYS));
        let Some((ends, field)) = read_ends(&fields, names) else {
            continue;
        };
        let name = own_name.flatten().unwrap_or_else(|| default_name(&ends));
        if let Some(line) = taken.insert(name.clone(), field.span.line) {
            field.fault(
                format!("the link `{name}` was already given on line {line}"),
                "links whose names differ",
                "remove one of the two, or give one a `name`",
            );
        }
        let forward = ends.iter().all(|end| names.forwards(end));
        // The first loop is enough: its removal may open the others.
        if forward && !groups.join(&ends) && !has_loop {
            has_loop = true;
            let ends = ends.each_ref().map(String::as_str);
            let path = topology.find_loop(ends, topology.links.len());
            field.fault(
                format!(
                    "the link closes a loop: {}",
                    path.unwrap_or_default().join(" - ")
                ),
                "no loop: a packet to all hosts would circle forever",
                "remove one link of the loop",
            );
        }
        topology.links.push(LinkSpec {
            name,
            ends,
            impairments,
            back: back.filter(|back| *back != impairments),
            by: fields.read(LINK_KEYS, "by"),
        });
    }
}

/// Sets of switches and nodes that links join.
#[derive(Default)]
struct Groups(HashMap<String, String>);

impl Groups {
    /// Joins the sets of two of them. Returns false if they are in one set already.
    fn join(&mut self, [one, other]: &[String; 2]) -> bool {
        let (one, other) = (self.first(one), self.first(other));
        let is_new = one != other;
        if is_new {
            self.0.insert(one, other);
        }
        is_new
    }

    /// Returns the name that stands for the set, and shortens the way to it.
    fn first(&mut self, name: &str) -> String {
        let mut at = name.to_owned();
        while let Some(next) = self.0.get(&at) {
            at.clone_from(next);
        }
        if at != name {
            self.0.insert(name.to_owned(), at.clone());
        }
        at
    }
}

/// Reads the two ends of a link, and returns them with their field.
fn read_ends<'a>(fields: &Fields<'a>, names: &Names) -> Option<([String; 2], Field<'a>)> {
    const EXPECTED: &str = "two different hosts, nodes, routers or switches";
    let field = fields.required("ends", EXPECTED, "[ h1, s1 ]")?;
    let elements = field.list(EXPECTED)?;
    let help = "write for example `ends: [ h1, s1 ]`";
    let [one, other] = &elements[..] else {
        field.fault(format!("{} ends", elements.len()), EXPECTED, help);
        return None;
    };
    let read = |element: &Field<'a>| {
        element.parsed(
            EXPECTED,
            "name a host, a node, a router or a switch of this topology",
            |text| {
                let is_known = names.0.contains_key(text);
                let unknown = || {
                    format!(
                        "no host, node, router or switch is called `{}`",
                        Printable(text)
                    )
                };
                is_known.then(|| text.to_owned()).ok_or_else(unknown)
            },
        )
    };
    let (one, other) = (read(one), read(other));
    let ends = [one?, other?];
    if ends[0] == ends[1] {
        let message = format!("the link joins `{}` with itself", ends[0]);
        field.fault(message, EXPECTED, help);
        return None;
    }
    Some((ends, field))
}

fn read_impairments(fields: &Fields<'_>, keys: &'static [ConfigKey]) -> Impairments {
    let duration = |key: &str, example: &str| {
        let field = fields.get(key)?;
        let value = field.quantity(&units::DURATION, example)?;
        if value > MAX_DELAY_NS {
            let max = units::DURATION.format(MAX_DELAY_NS);
            field.fault(
                format!("{} is out of range", units::DURATION.format(value)),
                format!("at most {max}"),
                format!("write {max} or less"),
            );
        }
        Some(value)
    };
    let (delay, jitter) = (duration("delay", "10ms"), duration("jitter", "1ms"));
    let bandwidth = fields.get("bandwidth");
    let rate_bps = bandwidth
        .as_ref()
        .and_then(|field| field.quantity(&units::BIT_RATE, "100Mbit"));
    let queue_packets: Option<u32> = fields.read(keys, "queue");
    if let Some(field) = fields.get("queue").filter(|_| bandwidth.is_none()) {
        field.fault(
            "`queue` has no effect without a rate",
            "`bandwidth` too",
            "add for example `bandwidth: 100Mbit`, or remove the key",
        );
    }
    let delay_ns = delay.unwrap_or_default();
    let has_faulty_delay = delay.is_none() && fields.get("delay").is_some();
    if let (Some(jitter), Some(field)) = (jitter, fields.get("jitter"))
        && jitter > delay_ns
        && !has_faulty_delay
    {
        field.fault(
            format!(
                "the jitter of {} is above the delay",
                units::DURATION.format(jitter)
            ),
            "at most the delay: no packet arrives before it departs",
            "write a smaller `jitter`, or a longer `delay`",
        );
    }
    Impairments {
        delay_ns,
        jitter_ns: jitter.unwrap_or_default(),
        rate_bps,
        queue_packets,
        loss: fields.get("loss").and_then(|field| read_loss(&field)),
    }
}

fn read_loss(field: &Field<'_>) -> Option<Loss> {
    const PPM_PER_PERCENT: f64 = 10_000.0;
    let ppm = |field: &Field<'_>| {
        let percent = read_percent(field, "1%")?;
        Some((percent * PPM_PER_PERCENT).round() as u32)
    };
    let (ppm, burst) = if field.is_mapping() {
        let fields = field.mapping(LOSS_KEYS)?;
        let rate = fields.required("rate", "the share of lost packets", "1%");
        let burst: u32 = fields.read(LOSS_KEYS, "burst");
        (rate.and_then(|field| ppm(&field))?, burst)
    } else {
        (ppm(field)?, 1)
    };
    // With a share p, the mean time without loss is burst * (1 - p) / p packets, at least one.
    if burst > 1 && u64::from(ppm) * (u64::from(burst) + 1) > u64::from(burst) * 1_000_000 {
        field.fault(
            format!("bursts of {burst} packets cannot give this loss"),
            format!("at most {burst} of {} packets", burst + 1),
            "write a smaller `rate`, or longer bursts",
        );
    }
    (ppm > 0).then_some(Loss { ppm, burst })
}
