//! Measures the cost of a packet in a black box, alone on a core: from the ring at its interface
//! `ingress` to the ring behind its interface `egress`.
//!
//! A real-time thread blocks the core while a burst fills the program's ring, then releases it. Two
//! bursts that differ only in length differ in time by the cost of the further packets.

use myelin_api::{ApiError, ChainUp};
use myelin_linux::affinity;
use myelin_linux::netlink::Netlink;
use myelin_planner::{Cost, Machine};
use myelin_spec::ExternalConfig;
use serde_json::json;

use super::bursts::{BurstSamples, FIRST_PORT, create_senders};
use super::deployed::{DeployedChains, open_hosts};
use super::direct::SERVER;
use super::{Chains, Monitor, Result, fit_clamped};
use crate::stall::CoreBlocker;

const CHAIN: &str = "calibrate-black-box";
/// Packets of the longest burst, at most. A link's ring holds 256.
const MAX_BURST: usize = 224;
/// A long burst has this many times the packets of a short one.
const SHORT_BURST: usize = 7;
/// The shortest ring, packets.
const MIN_RING: u32 = 2 * SHORT_BURST as u32;

/// Measures the program of a function. No other function may run on its core.
///
/// # Errors
/// The program does not run, or does not pass the packets; the machine has one core, or no
/// real-time priority for the thread that blocks the core.
pub fn measure_black_box(
    chains: &dyn Chains,
    (name, config): (&str, &ExternalConfig),
    quick: bool,
    monitor: &Monitor<'_>,
) -> Result<Cost, ApiError> {
    let failed = |problem: &dyn std::fmt::Display| {
        ApiError::failed(format!("cannot measure the black box `{name}`: {problem}"))
    };
    if config.ring < MIN_RING {
        return Err(failed(&format!(
            "its `ring` holds {} packets, and a measurement needs {MIN_RING}",
            config.ring
        )));
    }
    let default = Machine::with_end_hosts(affinity::highest_core() + 1).default_core();
    let core = config.core.unwrap_or(default);
    let before = affinity::get(0).map_err(|error| failed(&error))?;
    let mut others = before.iter().copied();
    let here = others
        .find(|other| *other != core as usize)
        .ok_or_else(|| {
            failed(&"the thread that sends needs a second core, and this machine has one")
        })?;
    let mut deployed = DeployedChains::new(chains);
    let up = deployed.up([CHAIN.to_owned()], chain_text(config, core));
    let up = up.map_err(|error| failed(&error))?;
    // Changes only this thread: the agent's own cores decide the cores of chains.
    affinity::set(0, &[here]).map_err(|error| failed(&error))?;
    let measured = measure_bursts(&up, (name, config.ring, core), quick, monitor);
    affinity::set(0, &before).map_err(|error| failed(&error))?;
    measured.map_err(|error| failed(&error))
}

fn measure_bursts(
    up: &[ChainUp],
    (name, ring, core): (&str, u32, u32),
    quick: bool,
    monitor: &Monitor<'_>,
) -> Result<Cost> {
    let [client, server] = open_hosts(up)?;
    let mut netlink = Netlink::open_in(&server)?;
    let end = netlink.link("eth0")?;
    let (link, mac) = (end.id().index, end.mac.map(|mac| mac.0));
    let senders = create_senders(&client, mac, &[FIRST_PORT])?;
    let blocker = CoreBlocker::new(core as usize, false);
    let mut arrived = || Ok(netlink.received_packets(link)?);
    let mut long = MAX_BURST.min(ring as usize);
    // A program's ring may hold fewer packets of the longer frame.
    let mut samples = loop {
        let mut samples = BurstSamples::of_bursts([long / SHORT_BURST, long]);
        samples.measure_round(&senders, &blocker, &mut arrived)?;
        if samples.is_complete() || long / 2 < MIN_RING as usize {
            break samples;
        }
        long /= 2;
    };
    let rounds = if quick { 2 } else { 8 };
    for round in 1..rounds {
        monitor.progress(name, round, rounds);
        if monitor.is_cancelled() {
            return Err(ApiError::failed("the calibration was cancelled").into());
        }
        samples.measure_round(&senders, &blocker, &mut arrived)?;
    }
    let costs = samples.compute_costs().map_err(|_| {
        ApiError::failed(format!(
            "of each burst of {long} UDP packets to port {FIRST_PORT} it dropped some, or took too long, so its packets \
             have no single cost; a program that changes packets or answers them cannot be measured"
        ))
    })?;
    Ok(fit_clamped(costs.each_ns))
}

/// The text of a chain with this program alone. JSON is YAML.
fn chain_text(config: &ExternalConfig, core: u32) -> String {
    let chain = json!({
        "apiVersion": "myelin.dev/v1alpha1",
        "kind": "ServiceChain",
        "metadata": { "name": CHAIN, "namespace": "calibrate" },
        "spec": {
            "match": {
                "protocol": "udp",
                "destination": SERVER,
                "destinationPort": FIRST_PORT,
            },
            "functions": [ {
                "name": "box",
                "kind": "external",
                "config": {
                    "command": config.command,
                    "environment": config.environment,
                    "startup": format!("{}ns", config.startup_ns),
                    "cores": [core],
                },
            } ],
        },
    });
    chain.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_measured_chain_has_the_program_as_it_is() {
        let config = ExternalConfig {
            command: ["python3", "-c", "a = \"{ingress}\"\nb: [1, 2] # \t'"]
                .map(str::to_owned)
                .to_vec(),
            environment: BTreeMap::from([("LEVEL".to_owned(), "3: a".to_owned())]),
            startup_ns: 1_500_000_000,
            ..ExternalConfig::default()
        };
        let source = myelin_spec::Source::new("test");
        let text = chain_text(&config, 3);
        let parsed = myelin_spec::parse_objects(&text, &source, &BTreeMap::<String, String>::new());
        let parsed = parsed.expect("the text is a chain file");
        let found = parsed.chains[0].functions[0].config.own_core();
        let found = found.expect("a black box");
        assert_eq!(found.command, config.command);
        assert_eq!(found.environment, config.environment);
        assert_eq!(found.startup_ns, config.startup_ns);
        assert_eq!(found.core, Some(3));
    }
}
