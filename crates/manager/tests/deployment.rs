//! Tests that a chain over nodes comes up whole or not at all, whatever agent ends and when.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use myelin_api::{
    ApiError, ChainState, ChainStatus, ChainUp, PacketAccount, PartStatus, UpRequest,
};
use myelin_manager::deployment::{NewPart, bring_up, retire, take_down, undo};
use myelin_manager::{Deployment, EndedEntrance, EndedPath, PartTakers, PlacedPart};

/// Nodes that record their parts, and of which one ends at a given call.
#[derive(Default)]
struct Nodes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    parts: BTreeSet<(String, String)>,
    log: Vec<String>,
    takes: usize,
    /// The call of `take` that fails, and whether the agent takes the part before it ends.
    failing: Option<(usize, bool)>,
    /// Whether the parts have counts.
    counts: bool,
    /// Packets that still arrive at the last part, one before each answer.
    late: u64,
    /// Packets that each part has received.
    passed: u64,
}

impl PartTakers for Nodes {
    fn take(&self, node: &str, request: &UpRequest) -> Result<ChainUp, ApiError> {
        let mut state = self.state.lock().unwrap();
        let part = request.source.name.clone();
        state.log.push(format!("take {part}"));
        let number = state.takes;
        state.takes += 1;
        let fails = state.failing.filter(|(at, _)| *at == number);
        let mut is_new = true;
        if fails.is_none_or(|(_, is_taken)| is_taken) {
            is_new = state.parts.insert((node.to_owned(), part.clone()));
        }
        match fails {
            Some(_) => Err(ApiError::failed("lost the connection to the agent")),
            None => Ok(ChainUp {
                previous_packets_out: (!is_new && state.counts).then_some(state.passed),
                ..up(&part)
            }),
        }
    }

    fn remove(&self, node: &str, part: &str) -> Result<(), ApiError> {
        let mut state = self.state.lock().unwrap();
        state.log.push(format!("remove {part}"));
        state.parts.remove(&(node.to_owned(), part.to_owned()));
        if part == "stuck" {
            return Err(ApiError::failed("the node is stuck"));
        }
        Ok(())
    }

    fn status(&self, node: &str, part: &str) -> Result<Option<ChainStatus>, ApiError> {
        let mut state = self.state.lock().unwrap();
        if !state.counts || !state.parts.contains(&(node.to_owned(), part.to_owned())) {
            return Ok(None);
        }
        let mut passed = state.passed;
        if part.ends_with("p3") {
            // The last part has all packets but the late ones.
            passed -= state.late;
            state.late = state.late.saturating_sub(1);
            let late = format!("late {}", state.late);
            state.log.push(late);
        }
        Ok(Some(status(part, passed)))
    }
}

/// The status of a part that all received packets have left.
fn status(part: &str, passed: u64) -> ChainStatus {
    let ChainUp { owner, plan, .. } = up(part);
    let wires = PartStatus {
        received: (!part.ends_with("p0")).then_some(passed),
        sent: (!part.ends_with("p3")).then_some(passed),
        ..PartStatus::default()
    };
    ChainStatus {
        chain: part.to_owned(),
        owner,
        spi: 1,
        generation: 0,
        state: ChainState::Active,
        best_effort: false,
        bound_ns: None,
        plan: Box::new(plan),
        mapping: String::new(),
        hook: String::new(),
        ingress: String::new(),
        egress: String::new(),
        port_faults: Vec::new(),
        packets_in: passed,
        bytes_in: 0,
        policed: 0,
        policed_bytes: 0,
        dropped_fragments: 0,
        missed: 0,
        part: Some(wires),
        packets_out: passed,
        drops: 0,
        account: PacketAccount {
            packets_in: passed,
            packets_out: passed,
            ..PacketAccount::default()
        },
        last_packet_ms_ago: None,
        hops: Vec::new(),
        shaper: None,
        sojourn: None,
        sojourn_sections: Vec::new(),
        worker: None,
        more_workers: Vec::new(),
        rings: Vec::new(),
        hosts: Vec::new(),
        sla: None,
        up_s: 0.0,
    }
}

fn up(part: &str) -> ChainUp {
    let source = myelin_api::ChainSource {
        name: "c.yaml".into(),
        text: "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: { name: c }\nspec:\n  match: {}\n  \
               functions: [ { name: f, kind: forward } ]\n"
            .into(),
        ..myelin_api::ChainSource::default()
    };
    let chain = source.parse().unwrap().remove(0);
    let costs = myelin_planner::Costs::default();
    let machine = myelin_planner::Machine::with_end_hosts(2);
    ChainUp {
        chain: part.to_owned(),
        owner: "default".into(),
        change: myelin_api::Change::Created,
        spi: 1,
        generation: 0,
        plan: myelin_planner::plan(&chain, &costs, &machine).unwrap(),
        ingress: String::new(),
        egress: String::new(),
        hosts: Vec::new(),
        rendering_ms: 0.0,
        exchange_ms: None,
        previous_packets_out: None,
    }
}

fn parts(generation: u16) -> Vec<NewPart> {
    let part = |number: usize| {
        let name = match number {
            0 => "p0".to_owned(),
            _ => format!("g{generation}p{number}"),
        };
        let mut request = UpRequest::default();
        request.source.name.clone_from(&name);
        let node = format!("n{}", number % 2);
        NewPart {
            at: PlacedPart {
                node,
                name,
                begins_branch: false,
            },
            request,
        }
    };
    (0..4).map(part).collect()
}

fn names(nodes: &Nodes) -> Vec<String> {
    let state = nodes.state.lock().unwrap();
    let names: BTreeSet<_> = state.parts.iter().map(|(_, name)| name.clone()).collect();
    names.into_iter().collect()
}

fn all_up(nodes: &Nodes) -> Deployment {
    bring_up(nodes, parts(0), Duration::ZERO, None).unwrap()
}

const OLD: [&str; 4] = ["g0p1", "g0p2", "g0p3", "p0"];
const NEW: [&str; 4] = ["g1p1", "g1p2", "g1p3", "p0"];

#[test]
fn the_first_part_comes_last_and_goes_first() {
    let nodes = Nodes::default();
    let first = all_up(&nodes);
    let calls = || nodes.state.lock().unwrap().log.len();
    assert_eq!(nodes.state.lock().unwrap().log.last().unwrap(), "take p0");
    let second = bring_up(&nodes, parts(1), Duration::ZERO, Some(&first)).unwrap();
    assert_eq!(nodes.state.lock().unwrap().log.last().unwrap(), "take p0");
    // Both paths are there until the old one is retired.
    assert_eq!(names(&nodes), [&OLD[..3], &NEW[..]].concat());
    retire(&nodes, &first, &second, 0);
    assert_eq!(names(&nodes), NEW);
    let before = calls();
    take_down(&nodes, &second).unwrap();
    let log = &nodes.state.lock().unwrap().log;
    assert_eq!(log[before], "remove p0");
}

#[test]
fn an_undone_change_leads_packets_back_before_new_parts_go() {
    let nodes = Nodes::default();
    let first = all_up(&nodes);
    let second = bring_up(&nodes, parts(1), Duration::ZERO, Some(&first)).unwrap();
    let before = {
        let mut state = nodes.state.lock().unwrap();
        (state.counts, state.passed) = (true, 30);
        state.log.len()
    };
    let undone = undo(&nodes, &second, Some(&first)).unwrap();
    assert_eq!(names(&nodes), OLD);
    assert_eq!(nodes.state.lock().unwrap().log[before], "take p0");
    let all = EndedPath {
        first: EndedEntrance::Stays(30),
        left: 30,
    };
    assert_eq!(undone, all);
    // The first part has counted from zero since, and the other parts go on.
    let third = bring_up(&nodes, parts(1), Duration::ZERO, Some(&first)).unwrap();
    let ended = retire(&nodes, &first, &third, 70);
    assert_eq!(ended.first, EndedEntrance::Stays(70 + 30));
}

#[test]
fn nothing_remains_of_a_chain_whose_agent_ends_at_any_step() {
    for at in 0..4 {
        for is_taken in [false, true] {
            let nodes = Nodes::default();
            nodes.state.lock().unwrap().failing = Some((at, is_taken));
            let error = bring_up(&nodes, parts(0), Duration::ZERO, None).unwrap_err();
            assert!(error.message.starts_with("node `n"), "{error}");
            assert_eq!(names(&nodes), [""; 0], "{at} {is_taken}");

            let nodes = Nodes::default();
            let first = all_up(&nodes);
            nodes.state.lock().unwrap().failing = Some((4 + at, is_taken));
            bring_up(&nodes, parts(1), Duration::ZERO, Some(&first)).unwrap_err();
            assert_eq!(names(&nodes), OLD, "{at} {is_taken}");
            let takes = nodes.state.lock().unwrap().takes;
            // The first part may have taken the new path before its agent's answer was lost.
            assert_eq!(takes, if at == 3 { 9 } else { 7 }, "{at} {is_taken}");
        }
    }
}

/// The parts of the next path, when packets enter at another node.
fn moved() -> Vec<NewPart> {
    let mut parts = parts(1);
    "n9".clone_into(&mut parts[0].at.node);
    parts
}

#[test]
fn a_path_with_another_first_part_comes_up_beside_the_previous_one() {
    let nodes = Nodes::default();
    let first = all_up(&nodes);
    let second = bring_up(&nodes, moved(), Duration::ZERO, Some(&first)).unwrap();
    let state = || nodes.state.lock().unwrap();
    assert_eq!(state().parts.len(), 8);
    state().counts = true;
    state().passed = 70;
    let before = state().log.len();
    let ended = retire(&nodes, &first, &second, 0);
    assert_eq!(state().log[before], "remove p0");
    assert_eq!(names(&nodes), NEW);
    assert!(state().parts.contains(&("n9".into(), "p0".into())));
    let all = EndedPath {
        first: EndedEntrance::Gone {
            entered: 70,
            policed: 0,
        },
        left: 70,
    };
    assert_eq!(ended, all);
}

#[test]
fn an_undone_change_keeps_the_previous_first_part_at_its_place() {
    let nodes = Nodes::default();
    let first = all_up(&nodes);
    let second = bring_up(&nodes, moved(), Duration::ZERO, Some(&first)).unwrap();
    {
        let mut state = nodes.state.lock().unwrap();
        (state.counts, state.passed) = (true, 20);
    }
    let undone = undo(&nodes, &second, Some(&first)).unwrap();
    let all = EndedPath {
        first: EndedEntrance::Gone {
            entered: 20,
            policed: 0,
        },
        left: 20,
    };
    assert_eq!(undone, all);
    assert_eq!(names(&nodes), OLD);
    for (at, is_taken) in [(4, false), (5, true), (7, false), (7, true)] {
        let nodes = Nodes::default();
        let first = all_up(&nodes);
        nodes.state.lock().unwrap().failing = Some((at, is_taken));
        bring_up(&nodes, moved(), Duration::ZERO, Some(&first)).unwrap_err();
        let state = nodes.state.lock().unwrap();
        assert_eq!(state.parts.len(), 4, "{at} {is_taken}");
        assert!(state.parts.contains(&("n0".into(), "p0".into())));
        assert!(state.log.iter().filter(|call| *call == "take p0").count() <= 2);
    }
}

/// All parts drain together: none goes before the last packet has left the last part.
#[test]
fn no_part_goes_while_packets_move() {
    let nodes = Nodes::default();
    let deployment = all_up(&nodes);
    let before = {
        let mut state = nodes.state.lock().unwrap();
        (state.counts, state.passed, state.late) = (true, 40, 5);
        state.log.len()
    };
    take_down(&nodes, &deployment).unwrap();
    let state = nodes.state.lock().unwrap();
    let log = &state.log[before..];
    let place = |call: &str| log.iter().position(|done| done == call).unwrap();
    assert_eq!(place("remove p0"), 0);
    for part in ["g0p1", "g0p2", "g0p3"] {
        assert!(
            place(&format!("remove {part}")) > place("late 0"),
            "{log:?}"
        );
    }
}

#[test]
fn a_part_that_stays_is_told_and_keeps_no_other_part() {
    let nodes = Nodes::default();
    let mut parts = parts(0);
    for stuck in [0, 2] {
        let mut parts = parts.clone();
        "stuck".clone_into(&mut parts[stuck].at.name);
        let deployment = bring_up(&nodes, parts, Duration::ZERO, None).unwrap();
        let error = take_down(&nodes, &deployment).unwrap_err();
        assert_eq!(error.message, "the node is stuck");
        let state = nodes.state.lock().unwrap();
        let removed = state.log.iter().filter(|call| call.starts_with("remove"));
        assert_eq!(removed.count() % 4, 0, "{:?}", state.log);
    }
    parts.clear();
    assert!(bring_up(&nodes, parts, Duration::ZERO, None).is_err());
}
