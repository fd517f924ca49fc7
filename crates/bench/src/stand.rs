//! Chains of an agent of the experiment's own, which knows nothing of the machine's other agents.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use myelin_agent::{Engine, UpOptions};
use myelin_api::{
    ApiError, CalibrateRequest, ChainSource, ChainStatus, ChainUp, Client, Event, ProbeOptions,
    ProbeRequest, UpRequest,
};
use myelin_packet::sojourn::Histogram;
use myelin_planner::Costs;

use crate::Error;
use crate::place::{Place, wait_for_end_of_agent};

/// An agent's engine in this process.
pub(crate) struct Stand {
    engine: Engine,
    pub(crate) place: Place,
}

impl Stand {
    pub(crate) fn open(program: &Path) -> Result<Arc<Self>, Error> {
        let place = Place::new()?;
        let engine = Engine::open(&place.run_dir, program.to_path_buf())?;
        Ok(Arc::new(Self { engine, place }))
    }

    /// Deploys the chains of that text, whatever this machine's calibration says of their promises.
    /// They go with the stand.
    pub(crate) fn up_all(&self, text: String) -> Result<Vec<ChainUp>, Error> {
        let options = UpOptions {
            force: true,
            ..UpOptions::default()
        };
        Ok(self.engine.up(&source(text), options)?)
    }

    /// What packets cost here and now, as `myelin calibrate` measures it; kept nowhere.
    pub(crate) fn calibrate(&self, quick: bool, cancelled: &AtomicBool) -> Result<Costs, Error> {
        let file = self.place.run_dir.path().join("costs.json");
        let measured = Mutex::new(None);
        let emit = |event| {
            if let Event::Costs(costs) = event {
                *measured.lock().unwrap_or_else(PoisonError::into_inner) = Some(*costs);
            }
        };
        let request = CalibrateRequest {
            quick,
            file: file.display().to_string(),
        };
        let monitor = myelin_agent::Monitor {
            emit: &emit,
            cancelled,
        };
        self.engine.calibrate(&request, &monitor)?;
        let measured = measured
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        measured.ok_or_else(|| ApiError::failed("calibration told no costs").into())
    }

    /// The workers of a chain, none if all its functions are in the kernel.
    pub(crate) fn workers(&self, chain: &str) -> Result<Vec<u32>, Error> {
        workers(&self.status(), chain)
    }

    /// The state of all chains.
    pub(crate) fn status(&self) -> Vec<ChainStatus> {
        self.engine.list()
    }

    /// The sojourn of all packets of a chain so far, by section.
    pub(crate) fn sojourn(&self, chain: &str) -> Result<Vec<Histogram>, Error> {
        Ok(self.engine.sojourn(chain)?)
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        // Before the directory goes.
        self.engine.close();
    }
}

/// An agent's process, as users have it; stopped when dropped.
pub(crate) struct Agent {
    pub(crate) client: Client,
    pub(crate) place: Place,
}

impl Agent {
    pub(crate) fn start(program: &Path) -> Result<Self, Error> {
        let place = Place::new()?;
        let client = Client::connect_or_start(&place.run_dir, program)?;
        Ok(Self { client, place })
    }

    pub(crate) fn up(&self, text: String) -> Result<(), Error> {
        let request = UpRequest {
            source: source(text),
            force: false,
        };
        Ok(self.client.up(&request).map(drop)?)
    }

    /// Deploys a chain of that name and text and sends so many packets through it: what has never
    /// been touched is not resident. Tells its workers.
    pub(crate) fn work(&self, chain: &str, text: String, count: u32) -> Result<Vec<u32>, Error> {
        self.up(text)?;
        let options = ProbeOptions {
            modes: vec!["inline".into()],
            interval_us: 0,
            count,
            repeats: 1,
            ..ProbeOptions::default()
        };
        let request = ProbeRequest {
            chain: chain.to_owned(),
            options,
        };
        self.client.probe(&request, &mut |_| {})?;
        workers(&self.client.list()?, chain)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // `myelin down --all` removes the objects of an agent that was killed.
        if self.client.stop().is_ok() {
            wait_for_end_of_agent(&self.place.run_dir);
        }
    }
}

/// A worker that is missing is an error: a figure of its CPU time or memory would be nothing, and
/// the best of all.
fn workers(all: &[ChainStatus], chain: &str) -> Result<Vec<u32>, Error> {
    let status = all
        .iter()
        .find(|status| status.chain == chain)
        .ok_or_else(|| ApiError::failed(format!("the agent has no chain {chain}")))?;
    let workers = status.worker.iter().chain(&status.more_workers);
    let pids: Vec<u32> = workers.map(|worker| worker.pid).collect();
    let in_user_space = status.hops.iter().any(|hop| hop.space == "user");
    if in_user_space && pids.is_empty() {
        return Err(ApiError::failed(format!("chain {chain} has no worker")).into());
    }
    Ok(pids)
}

/// A chain file that is in no file.
pub(crate) fn source(text: String) -> ChainSource {
    ChainSource {
        name: "<bench>".to_owned(),
        text,
        ..ChainSource::default()
    }
}

/// The text of a chain that takes the probe's packets to the server. `functions` are (kind and
/// configuration, space); `more` are further lines of its `spec`.
pub(crate) fn chain(name: &str, functions: &[(&str, &str)], more: &str) -> String {
    let port = crate::network::SERVER_PORT;
    let packets = format!("destination: 10.0.0.2/32, destinationPort: {port}");
    chain_for(&packets, name, functions, more)
}

/// The text of that chain and of its reverse, which takes the replies through the same functions.
pub(crate) fn chain_both_ways(name: &str, functions: &[(&str, &str)], more: &str) -> String {
    let port = crate::network::SERVER_PORT;
    let back = format!("{name}-back");
    let there = chain(name, functions, &format!("{more}  reverse: {back}\n"));
    let replies = format!("source: 10.0.0.2/32, sourcePort: {port}");
    let more = format!("{more}  reverse: {name}\n");
    format!(
        "{there}---\n{}",
        chain_for(&replies, &back, functions, &more)
    )
}

/// The text of a chain that takes the packets of this match.
pub(crate) fn chain_for(
    packets: &str,
    name: &str,
    functions: &[(&str, &str)],
    more: &str,
) -> String {
    use std::fmt::Write;

    let mut text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name} }}\nspec:\n  \
         match: {{ protocol: udp, {packets} }}\n{more}  functions:\n"
    );
    for (position, (kind, space)) in functions.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "    - {{ name: f{position}, {kind}, space: {space} }}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn chains_are_valid() {
        let parent = tempfile::tempdir().unwrap();
        let place = Place::inside(parent.path()).unwrap();
        let text = chain(
            &place.chain_name("mixed"),
            &[
                ("kind: forward", "kernel"),
                ("kind: xor, config: { key: 90 }", "user"),
            ],
            "  worker: { batch: 1, idle: spin }\n",
        );
        let chains = source(text).parse().unwrap();
        assert_eq!(chains[0].functions.len(), 2);
        assert!(chains[0].name.starts_with("bench-"));
        let both = chain_both_ways("there", &[("kind: forward", "kernel")], "  hook: tcx\n");
        let chains = source(both).parse().unwrap();
        assert_eq!(chains[0].reverse.as_deref(), Some("there-back"));
        assert_eq!(chains[1].reverse.as_deref(), Some("there"));
    }

    #[test]
    fn a_worker_that_is_missing_is_an_error() {
        let chain = chain("c", &[("kind: forward", "kernel")], "");
        let chain = &source(chain).parse().unwrap()[0];
        let machine = myelin_planner::Machine::with_end_hosts(2);
        let plan = myelin_planner::plan(chain, &myelin_planner::Costs::default(), &machine);
        let plan = plan.unwrap();
        let status = |space: &str, pids: &[u32]| -> ChainStatus {
            let workers: Vec<_> = pids
                .iter()
                .map(|pid| json!({ "pid": pid, "restarts": 0, "resident_kib": 1, "cpu_s": 0.1 }))
                .collect();
            let hop = json!({
                "position": 0, "name": "f0", "kind": "forward", "space": space,
                "packets_in": 0, "drops": 0, "emitted": 0, "held": 0, "samples": 0, "sampled_ns": 0,
            });
            serde_json::from_value(json!({
                "chain": "c", "owner": "o", "spi": 1, "generation": 0, "state": "active",
                "plan": plan, "mapping": "compact", "hook": "xdp", "ingress": "a", "egress": "b",
                "packets_in": 0, "bytes_in": 0, "packets_out": 0, "drops": 0,
                "hops": [hop], "hosts": [], "up_s": 1.0,
                "worker": workers.first(), "more_workers": workers.get(1..).unwrap_or_default(),
            }))
            .unwrap()
        };
        let of = |status| workers(&[status], "c");
        assert_eq!(of(status("kernel", &[])).unwrap(), [0_u32; 0]);
        assert_eq!(of(status("user", &[7, 8])).unwrap(), [7, 8]);
        let error = of(status("user", &[])).unwrap_err().to_string();
        assert!(error.contains("chain c has no worker"), "{error}");
        assert!(workers(&[], "c").is_err());
    }
}
