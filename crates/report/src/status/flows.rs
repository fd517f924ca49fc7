//! The flows that functions keep, as tables.

use std::fmt::Write as _;
use std::net::SocketAddr;

use myelin_api::{Endpoint, FlowState, FlowStatus, FunctionFlows};

use crate::terminal::{grid, or_dash};

/// Most flows of one function in the text. The JSON has all flows.
const MAX_FLOWS: usize = 50;

/// Formats the flow tables of functions.
pub fn flows(functions: &[FunctionFlows], width: u16) -> String {
    let mut out = String::new();
    for function in functions {
        let FunctionFlows { kind, flows, .. } = function;
        let noun = if kind == "nat" { "mappings" } else { "flows" };
        let mut parts = vec![format!("{} {noun}", flows.len())];
        parts.extend(function.begun.map(|begun| format!("{begun} started")));
        parts.extend(function.evicted.map(|evicted| format!("{evicted} evicted")));
        let outside = function.outside;
        parts.extend(outside.map(|outside| format!("{outside} packets without a flow")));
        let FunctionFlows {
            chain,
            function,
            space,
            ..
        } = function;
        let _ = writeln!(
            out,
            "{chain}/{function} ({kind}, {space}): {}",
            parts.join(", ")
        );
        let (shown, more) = flows.split_at(flows.len().min(MAX_FLOWS));
        if !shown.is_empty() {
            let _ = writeln!(out, "{}", flow_table(shown, width));
        }
        if !more.is_empty() {
            let _ = writeln!(out, "{} more {noun}: `--json` lists all", more.len());
        }
    }
    out
}

/// Formats a table with the columns for which at least one flow has a value.
fn flow_table(flows: &[FlowStatus], width: u16) -> String {
    type Cell = fn(&FlowStatus) -> Option<String>;
    let columns: [(&str, Cell); 10] = [
        ("flow", |flow| Some(flow.flow.clone())),
        ("translated", |flow| {
            let Endpoint { address, port } = flow.translated?;
            Some(SocketAddr::new(address, port).to_string())
        }),
        ("backend", |flow| Some(flow.backend?.to_string())),
        ("state", |flow| Some(flow_state(flow.state?).to_owned())),
        (">packets", |flow| Some(flow.packets?.to_string())),
        (">bytes", |flow| Some(flow.bytes?.to_string())),
        (">replies", |flow| Some(flow.reply_packets?.to_string())),
        (">reply bytes", |flow| Some(flow.reply_bytes?.to_string())),
        (">idle s", |flow| flow.last_packet_ms_ago.map(format_s)),
        // Functions that keep the idle time need no expiry time.
        (">expires in s", |flow| match flow.last_packet_ms_ago {
            None => flow.expires_in_ms.map(format_s),
            Some(_) => None,
        }),
    ];
    let is_known = |(_, cell): &&(&str, Cell)| flows.iter().any(|flow| cell(flow).is_some());
    let known: Vec<_> = columns.iter().filter(is_known).collect();
    let mut table = grid(known.iter().map(|(heading, _)| *heading), width);
    for flow in flows {
        table.add_row(known.iter().map(|(_, cell)| or_dash(cell(flow))));
    }
    table.trim_fmt()
}

fn format_s(ms: f64) -> String {
    format!("{:.1}", ms / 1e3)
}

/// Returns the word for the state of a flow.
fn flow_state(state: FlowState) -> &'static str {
    match state {
        FlowState::New => "new",
        FlowState::Established => "established",
        FlowState::Closing => "closing",
        FlowState::Closed => "closed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: u16 = 100;

    /// Returns the status of a flow as a `monitor` reports it.
    fn flow(text: &str) -> FlowStatus {
        FlowStatus {
            flow: text.into(),
            protocol: 17,
            source: [10, 0, 0, 1].into(),
            source_port: Some(5000),
            destination: Some([10, 0, 0, 2].into()),
            destination_port: Some(9000),
            translated: None,
            backend: None,
            state: None,
            packets: Some(7),
            bytes: Some(700),
            reply_packets: None,
            reply_bytes: None,
            age_ms: Some(2000.0),
            last_packet_ms_ago: Some(1500.0),
            expires_in_ms: None,
        }
    }

    fn function(kind: &str, counts: Option<u64>, flows: Vec<FlowStatus>) -> FunctionFlows {
        FunctionFlows {
            chain: "c".into(),
            function: "f".into(),
            kind: kind.into(),
            space: "user".into(),
            begun: counts,
            evicted: counts,
            outside: counts,
            flows,
        }
    }

    /// Returns the lines of the text, with single spaces between words.
    fn lines(function: FunctionFlows) -> Vec<String> {
        let text = flows(&[function], WIDTH);
        assert!(
            text.lines()
                .all(|line| line.chars().count() <= WIDTH.into()),
            "{text}"
        );
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines()
            .filter(|line| !line.contains('─'))
            .map(words)
            .collect()
    }

    #[test]
    fn a_table_has_columns_only_for_known_values() {
        let text = "udp 10.0.0.1:5000 > 10.0.0.2:9000";
        let shown = lines(function("monitor", Some(3), vec![flow(text)]));
        assert_eq!(
            shown,
            [
                "c/f (monitor, user): 1 flows, 3 started, 3 evicted, 3 packets without a flow",
                "flow packets bytes idle s",
                "udp 10.0.0.1:5000 > 10.0.0.2:9000 7 700 1.5"
            ]
        );
        let mut balanced = flow(text);
        balanced.backend = Some([10, 0, 0, 11].into());
        balanced.expires_in_ms = Some(100.0);
        let shown = lines(function(
            "load-balancer",
            Some(1),
            vec![flow(text), balanced],
        ));
        assert_eq!(
            shown[1..],
            [
                "flow backend packets bytes idle s",
                "udp 10.0.0.1:5000 > 10.0.0.2:9000 - 7 700 1.5",
                "udp 10.0.0.1:5000 > 10.0.0.2:9000 10.0.0.11 7 700 1.5"
            ]
        );
    }

    #[test]
    fn a_nat_mapping_shows_its_endpoints_and_its_expiry_time() {
        let translated = "2001:db8::7".parse().unwrap();
        let mapping = FlowStatus {
            destination: None,
            destination_port: None,
            translated: Some(Endpoint {
                address: translated,
                port: 6000,
            }),
            packets: None,
            bytes: None,
            age_ms: None,
            last_packet_ms_ago: None,
            expires_in_ms: Some(119_960.0),
            ..flow("udp [fd00::1]:5000")
        };
        assert_eq!(
            lines(function("nat", None, vec![mapping])),
            [
                "c/f (nat, user): 1 mappings",
                "flow translated expires in s",
                "udp [fd00::1]:5000 [2001:db8::7]:6000 120.0"
            ]
        );
    }

    #[test]
    fn a_long_table_ends_with_the_number_of_flows_not_shown() {
        let all = (0..1234).map(|number| flow(&number.to_string())).collect();
        let shown = lines(function("monitor", Some(0), all));
        assert_eq!(shown.len(), 2 + MAX_FLOWS + 1);
        assert_eq!(shown.last().unwrap(), "1184 more flows: `--json` lists all");
    }
}
