//! Topologies: a list, the details of one, and its picture as text and as SVG.
//!
//! The switches and their links form trees, and most hosts have one link. So the picture is a tree:
//! each link leads to a line with the node at its far end. A node with several links appears at
//! each of them; its own links are drawn at the first.

mod impairment;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use myelin_api::units::{CPU, format_memory_bytes};
use myelin_api::{ControllerState, ControllerStatus, TopologyHost, TopologyLink, TopologyStatus};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Error;
use crate::html::canvas::{self, BOUND, INK, Name, SERIES_COLOURS};
use crate::html::standalone_svg;
use crate::terminal::{Column, add_field, listing, or_dash};
pub use impairment::describe_impairments;

/// Pixels of a letter's cell.
const CELL: (i32, i32) = (7, 17);
const MARGIN: i32 = 8;
/// The drawing library makes letters of 0.8 times this size.
const FONT_SIZE: u32 = 14;
/// Columns by which a level of the tree is indented.
const INDENT: usize = 4;

/// A line of the picture: a node, and the link that leads to it.
struct Row<'a> {
    /// Number of links from the root.
    depth: usize,
    node: &'a str,
    link: Option<&'a TopologyLink>,
    /// Whether another row below has the same parent.
    has_next: bool,
    /// Whether the node's own links are drawn at an earlier line.
    is_repeated: bool,
}

/// Formats all topologies, one a line.
pub fn overview(topologies: &[TopologyStatus], width: u16) -> String {
    let columns: [Column<TopologyStatus>; 7] = [
        ("topology", |status| status.name.clone()),
        (">hosts", |status| count_hosts(status).to_string()),
        (">nodes", |status| count_nodes(status).to_string()),
        (">routers", |status| count_routers(status).to_string()),
        (">switches", |status| status.switches.len().to_string()),
        (">links", |status| status.links.len().to_string()),
        ("links down", |status| {
            let down = status.links.iter().filter(|link| !link.is_up);
            let names: Vec<_> = down.map(|link| link.name.as_str()).collect();
            or_dash((!names.is_empty()).then(|| names.join(", ")))
        }),
    ];
    listing(&columns, topologies, width)
}

fn count_nodes(status: &TopologyStatus) -> usize {
    status.hosts.iter().filter(|host| host.is_node).count()
}

fn count_routers(status: &TopologyStatus) -> usize {
    status.hosts.iter().filter(|host| host.is_router).count()
}

/// The hosts that are neither nodes nor routers.
fn count_hosts(status: &TopologyStatus) -> usize {
    status.hosts.len() - count_nodes(status) - count_routers(status)
}

/// Counts the parts of a topology in words.
pub fn summary(status: &TopologyStatus) -> String {
    let count = |number: usize, one: &str, many: &str| {
        let noun = if number == 1 { one } else { many };
        format!("{number} {noun}")
    };
    let if_any = |number: usize, one: &str, many: &str| match number {
        0 => String::new(),
        _ => format!("{}, ", count(number, one, many)),
    };
    format!(
        "topology {}: {}, {}{}{}, {}",
        status.name,
        count(count_hosts(status), "host", "hosts"),
        if_any(count_nodes(status), "node", "nodes"),
        if_any(count_routers(status), "router", "routers"),
        count(status.switches.len(), "switch", "switches"),
        count(status.links.len(), "link", "links"),
    )
}

fn describe_controller(controller: &ControllerStatus) -> String {
    let state = match controller.state {
        ControllerState::NotRunning => "",
        ControllerState::Silent => ", which does not answer",
        ControllerState::Connected => ", connected",
        ControllerState::SwitchEnded => ": Open vSwitch has ended",
    };
    format!("Open vSwitch, controller {}{state}", controller.address)
}

/// Formats the hosts, switches and links of a topology.
pub fn details(status: &TopologyStatus, width: u16) -> String {
    let hosts: [Column<TopologyHost>; 4] = [
        ("host", |host| {
            let kind = if host.is_router { " (router)" } else { "" };
            format!("{}{kind}", host.name)
        }),
        ("addresses", |host| host.addresses.join(", ")),
        ("limits", format_limits),
        ("network namespace", |host| host.netns.clone()),
    ];
    let links: [Column<TopologyLink>; 4] = [
        ("link", |link| link.name.clone()),
        ("interfaces", |link| {
            let [one, other] = link.ends.each_ref();
            let end = |end: &myelin_api::TopologyEnd| format!("{} {}", end.node, end.interface);
            format!("{} - {}", end(one).trim_end(), end(other).trim_end())
        }),
        ("state", |link| format_state(link).to_owned()),
        ("delay, rate, loss", |link| {
            let text = describe_impairments(link);
            or_dash((!text.is_empty()).then(|| text.trim_start_matches(", ").to_owned()))
        }),
    ];
    let mut out = summary(status) + "\n";
    for switch in &status.switches {
        let bridges = switch.bridges.join(", ");
        let text = match &switch.controller {
            None => format!("bridge {bridges}"),
            Some(controller) => describe_controller(controller),
        };
        add_field(&mut out, &switch.name, &text, width);
    }
    out.push_str(&listing(&hosts, &status.hosts, width));
    out.push('\n');
    for host in &status.hosts {
        if let Some(agent) = &host.agent {
            let state = agent.pid.map(|pid| format!("agent {pid}"));
            let state = state.unwrap_or_else(|| "its agent has ended".to_owned());
            let fault = agent.fault.as_ref().map(|fault| match agent.restarts {
                0 => format!(" ({fault})"),
                restarts => format!(" (started anew {restarts} times: {fault})"),
            });
            let state = format!("{state}{}", fault.unwrap_or_default());
            add_field(
                &mut out,
                &host.name,
                &format!("{state}, {}", agent.run_dir),
                width,
            );
        }
    }
    if !status.links.is_empty() {
        out.push_str(&listing(&links, &status.links, width));
        out.push('\n');
    }
    out.push_str(&impairment::details(status, width));
    out
}

fn format_state(link: &TopologyLink) -> &'static str {
    if link.is_up { "up" } else { "down" }
}

fn format_limits(host: &TopologyHost) -> String {
    let cpu = host.cpu_millicores.map(|cpu| CPU.format(cpu.into()));
    let memory = host.memory_bytes.map(format_memory_bytes);
    let cores: Vec<_> = host.cpus.iter().map(u32::to_string).collect();
    let cores = (!cores.is_empty()).then(|| format!("cores {}", cores.join(" ")));
    let limits: Vec<_> = cpu.into_iter().chain(memory).chain(cores).collect();
    or_dash((!limits.is_empty()).then(|| limits.join(", ")))
}

/// Draws the picture as text.
pub fn text(status: &TopologyStatus) -> String {
    let mut out = summary(status) + "\n";
    let addresses = addresses(status);
    // For each level above: whether its line continues.
    let mut open: Vec<bool> = Vec::new();
    for row in rows(status) {
        open.truncate(row.depth.saturating_sub(1));
        for continues in &open {
            out.push_str(if *continues { "│   " } else { "    " });
        }
        if row.depth > 0 {
            out.push_str(if row.has_next {
                "├── "
            } else {
                "└── "
            });
            open.push(row.has_next);
        }
        out.push_str(&describe(&row, &addresses));
        out.push('\n');
    }
    out
}

/// Draws the picture as the text of an SVG file.
///
/// # Errors
/// [`Error::Plot`] if the library cannot draw the picture.
pub fn svg(status: &TopologyStatus) -> Result<String, Error> {
    let (rows, addresses) = (rows(status), addresses(status));
    let labels: Vec<String> = rows.iter().map(|row| describe(row, &addresses)).collect();
    let columns = |(row, label): (&Row<'_>, &String)| row.depth * INDENT + label.chars().count();
    let widest = rows.iter().zip(&labels).map(columns).max();
    let corner = |column: usize, line: usize| {
        let pixels = |cells: usize, size: i32| i32::try_from(cells).unwrap_or(0) * size;
        (
            MARGIN + pixels(column, CELL.0),
            MARGIN + pixels(line, CELL.1),
        )
    };
    let title = summary(status);
    let end = corner(widest.unwrap_or_default().max(60) + 2, rows.len());
    let name = Name {
        id: "topology",
        title: &title,
        description: &labels.join(". "),
    };
    let drawn = canvas::draw_svg(name, (end.0 + MARGIN, end.1 + MARGIN), |area| {
        // For each level: the line of its last node.
        let mut parents: Vec<usize> = Vec::new();
        for (line, (row, label)) in rows.iter().zip(&labels).enumerate() {
            parents.truncate(row.depth);
            let at = corner(row.depth * INDENT, line);
            let middle = at.1 + CELL.1 / 2;
            if let Some(parent) = row
                .depth
                .checked_sub(1)
                .and_then(|level| parents.get(level))
            {
                let from = corner((row.depth - 1) * INDENT, *parent);
                let x = from.0 + CELL.0;
                let is_down = row.link.is_some_and(|link| !link.is_up);
                let colour = if is_down { BOUND } else { INK };
                let path = vec![(x, from.1 + CELL.1), (x, middle), (at.0 - 2, middle)];
                area.draw(&PathElement::new(path, colour))?;
            }
            parents.push(line);
            let is_switch = !addresses.contains_key(row.node);
            let colour = if is_switch { SERIES_COLOURS[0] } else { INK };
            let font = ("monospace", FONT_SIZE).into_font().color(&colour);
            let style = font.pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(label.clone(), (at.0, middle), style))?;
        }
        Ok(())
    })?;
    Ok(standalone_svg(&drawn))
}

/// The addresses of each host, for its line; of a router with that word.
fn addresses(status: &TopologyStatus) -> HashMap<&str, String> {
    let hosts = status.hosts.iter();
    let describe = |host: &TopologyHost| {
        let kind = if host.is_router { "router " } else { "" };
        format!("{kind}{}", host.addresses.join(" "))
    };
    hosts
        .map(|host| (host.name.as_str(), describe(host)))
        .collect()
}

/// Describes a node and the link that leads to it.
fn describe(row: &Row<'_>, addresses: &HashMap<&str, String>) -> String {
    let mut text = row.node.to_owned();
    let address = addresses.get(row.node).filter(|text| !text.is_empty());
    if let Some(address) = address.filter(|_| !row.is_repeated) {
        text.push_str("  ");
        text.push_str(address);
    }
    if let Some(link) = row.link {
        let [one, other] = &link.ends;
        let (plain, reverse) = (
            format!("{}-{}", one.node, other.node),
            format!("{}-{}", other.node, one.node),
        );
        let has_own_name = link.name != plain && link.name != reverse;
        if has_own_name {
            let _ = write!(text, "  ({})", link.name);
        }
        if !link.is_up {
            text.push_str("  down");
        }
        let impairments = describe_impairments(link);
        if !impairments.is_empty() {
            let _ = write!(text, "  {}", impairments.trim_start_matches(", "));
        }
    }
    text
}

/// Arranges the nodes as trees: first those with a switch, then hosts that only other hosts reach.
fn rows(status: &TopologyStatus) -> Vec<Row<'_>> {
    let mut links_of: HashMap<&str, Vec<usize>> = HashMap::new();
    for (number, link) in status.links.iter().enumerate() {
        for end in &link.ends {
            links_of.entry(&end.node).or_default().push(number);
        }
    }
    let mut rows = Vec::new();
    let mut drawn_links = HashSet::new();
    let mut drawn_nodes = HashSet::new();
    let switches = status.switches.iter().map(|switch| switch.name.as_str());
    let switch_names: HashSet<&str> = switches.clone().collect();
    let roots = switches.chain(status.hosts.iter().map(|host| host.name.as_str()));
    for root in roots {
        if drawn_nodes.contains(root) {
            continue;
        }
        // The nodes to draw, the next one last: depth, link, node, whether a sibling follows.
        let mut rest: Vec<(usize, Option<usize>, &str, bool)> = vec![(0, None, root, false)];
        while let Some((depth, number, node, has_next)) = rest.pop() {
            let link = number.map(|number| &status.links[number]);
            let is_repeated = !drawn_nodes.insert(node);
            rows.push(Row {
                depth,
                node,
                link,
                has_next,
                is_repeated,
            });
            if is_repeated {
                continue;
            }
            let own = links_of.get(node).map(Vec::as_slice).unwrap_or_default();
            // The link of a host and a switch is drawn at the switch.
            let is_switch = |name: &str| switch_names.contains(name);
            let is_drawn_here = |number: &usize| {
                let ends = &status.links[*number].ends;
                is_switch(node) || ends.iter().all(|end| !is_switch(&end.node))
            };
            let here = own.iter().copied().filter(is_drawn_here);
            let new: Vec<usize> = here.filter(|link| drawn_links.insert(*link)).collect();
            for (position, number) in new.iter().enumerate().rev() {
                let [one, other] = &status.links[*number].ends;
                let far = if one.node == node { other } else { one };
                let has_next = position + 1 < new.len();
                rest.push((depth + 1, Some(*number), &far.node, has_next));
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use myelin_api::ChainSource;

    fn lab() -> TopologyStatus {
        let source = ChainSource {
            name: "lab.yaml".to_owned(),
            text: "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: { name: lab }\nspec:\n  \
                   hosts: [ h1, h2, { name: h3, cpu: 500m, memory: 64MiB, cpus: 0 }, h4, h5 ]\n  switches: [ s1, s2 ]\n  links:\n    \
                   - { ends: [ h1, s1 ] }\n    - { ends: [ s2, s1 ], name: trunk }\n    \
                   - { ends: [ h2, s2 ] }\n    - { ends: [ h3, s2 ] }\n    - { ends: [ h3, h4 ] }\n    \
                   - { ends: [ h1, s2 ] }\n"
                .to_owned(),
            ..ChainSource::default()
        };
        let objects = source.parse_objects().unwrap();
        TopologyStatus::of(&objects.topologies[0])
    }

    #[test]
    fn each_link_and_node_is_drawn_once() {
        let mut lab = lab();
        lab.links[2].is_up = false;
        let expected = "\
topology lab: 5 hosts, 2 switches, 6 links
s1
├── h1  10.0.0.1/8
└── s2  (trunk)
    ├── h2  10.0.0.2/8  down
    ├── h3  10.0.0.3/8
    │   └── h4  10.0.0.4/8
    └── h1
h5  10.0.0.5/8
";
        assert_eq!(text(&lab), expected);
        let svg = svg(&lab).unwrap();
        for word in ["h1  10.0.0.1/8", "(trunk)", ">topology lab: 5 hosts"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
    }

    #[test]
    fn details_name_limits_and_interfaces() {
        let text = details(&lab(), 100);
        for words in ["500m, 64MiB, cores 0", "h1 - s1", "trunk"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(overview(&[lab()], 100).contains("lab"));
    }
}
