//! The agents of an experiment, separate from the machine's other agents, and chain files for them.

use std::path::Path;
use std::sync::Arc;

use myelin_agent::{Engine, UpOptions};
use myelin_api::{
    ApiError, ChainSource, ChainStatus, ChainUp, Client, ProbeOptions, ProbeRequest, UpRequest,
};
use myelin_measure::{Monitor, calibrate};
use myelin_packet::sojourn::Histogram;
use myelin_planner::Costs;

use crate::Error;
use crate::owned_run_dir::{OwnedRunDir, wait_for_agent_end};

/// An agent in this process. A drop removes its chains.
pub(crate) struct EmbeddedAgent {
    engine: Engine,
    pub(crate) dir: OwnedRunDir,
}

impl EmbeddedAgent {
    /// For links without offloads, as most experiments make them.
    pub(crate) fn open(program: &Path) -> Result<Arc<Self>, Error> {
        let agent = Self::open_for_offloads(program)?;
        agent.engine.declare_links_whole();
        Ok(agent)
    }

    /// For links with any offloads.
    pub(crate) fn open_for_offloads(program: &Path) -> Result<Arc<Self>, Error> {
        let dir = OwnedRunDir::create()?;
        let engine = Engine::open(&dir.run_dir, program.to_path_buf())?;
        Ok(Arc::new(Self { engine, dir }))
    }

    /// Deploys the chains of a chain file, even if admission refuses them.
    pub(crate) fn up_all(&self, text: String) -> Result<Vec<ChainUp>, Error> {
        let options = UpOptions {
            force: true,
            ..UpOptions::default()
        };
        Ok(self.engine.up(&chain_source(text), options)?)
    }

    /// Measures the costs of packets, as `myelin calibrate` does, but keeps no file.
    pub(crate) fn calibrate(&self, quick: bool, monitor: &Monitor<'_>) -> Result<Costs, Error> {
        Ok(calibrate::calibrate(&self.engine, quick, monitor)?)
    }

    /// Process ids of a chain's workers. Empty if all its functions are in the kernel.
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

impl Drop for EmbeddedAgent {
    fn drop(&mut self) {
        // The agent must close before its run directory is removed.
        self.engine.close();
    }
}

/// An agent in a separate process, as users start it. A drop stops it.
pub(crate) struct AgentProcess {
    pub(crate) client: Client,
    pub(crate) dir: OwnedRunDir,
}

impl AgentProcess {
    pub(crate) fn start(program: &Path) -> Result<Self, Error> {
        let dir = OwnedRunDir::create()?;
        let client = Client::connect_or_start(&dir.run_dir, program)?;
        Ok(Self { client, dir })
    }

    pub(crate) fn up(&self, text: String) -> Result<(), Error> {
        let request = UpRequest {
            source: chain_source(text),
            force: false,
            lease: None,
        };
        Ok(self.client.up(&request).map(drop)?)
    }

    /// Deploys the chain and sends `count` packets through it, so that all memory in use is
    /// resident. Returns the process ids of its workers.
    pub(crate) fn deploy_and_probe(
        &self,
        chain: &str,
        text: String,
        count: u32,
    ) -> Result<Vec<u32>, Error> {
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

impl Drop for AgentProcess {
    fn drop(&mut self) {
        // `myelin down --all` removes the objects of an agent that was killed.
        if self.client.stop().is_ok() {
            wait_for_agent_end(&self.dir.run_dir);
        }
    }
}

/// Process ids of the workers of `chain`. A missing worker is an error: its CPU time and memory
/// would count as zero.
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

/// A chain file in memory.
pub(crate) fn chain_source(text: String) -> ChainSource {
    ChainSource {
        name: "<bench>".to_owned(),
        text,
        ..ChainSource::default()
    }
}

/// Chain file of a chain that forwards the probe's packets to the server. `functions` are (kind and
/// configuration, space); `more` are further lines of its `spec`.
pub(crate) fn chain_text(name: &str, functions: &[(&str, &str)], more: &str) -> String {
    let port = crate::network::SERVER_PORT;
    let packets = format!("protocol: udp, destination: 10.0.0.2/32, destinationPort: {port}");
    chain_text_for(&packets, name, functions, more)
}

/// Chain file of this chain and of its reverse, which forwards replies through the same functions.
pub(crate) fn chain_text_both_ways(name: &str, functions: &[(&str, &str)], more: &str) -> String {
    let port = crate::network::SERVER_PORT;
    let back = format!("{name}-back");
    let there = chain_text(name, functions, &format!("{more}  reverse: {back}\n"));
    let replies = format!("protocol: udp, source: 10.0.0.2/32, sourcePort: {port}");
    let more = format!("{more}  reverse: {name}\n");
    format!(
        "{there}---\n{}",
        chain_text_for(&replies, &back, functions, &more)
    )
}

/// Chain file of a chain. `packets` is its match.
pub(crate) fn chain_text_for(
    packets: &str,
    name: &str,
    functions: &[(&str, &str)],
    more: &str,
) -> String {
    use std::fmt::Write;

    let mut text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {name} }}\nspec:\n  \
         match: {{ {packets} }}\n{more}  functions:\n"
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
        let text = chain_text(
            "mixed",
            &[
                ("kind: forward", "kernel"),
                ("kind: xor, config: { key: 90 }", "user"),
            ],
            "  worker: { batch: 1, idle: spin }\n",
        );
        let chains = chain_source(text).parse().unwrap();
        assert_eq!(chains[0].functions.len(), 2);
        let both = chain_text_both_ways("there", &[("kind: forward", "kernel")], "  hook: tcx\n");
        let chains = chain_source(both).parse().unwrap();
        assert_eq!(chains[0].reverse.as_deref(), Some("there-back"));
        assert_eq!(chains[1].reverse.as_deref(), Some("there"));
    }

    #[test]
    fn missing_worker_is_an_error() {
        let chain = chain_text("c", &[("kind: forward", "kernel")], "");
        let chain = &chain_source(chain).parse().unwrap()[0];
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
        let workers_of = |status| workers(&[status], "c");
        assert_eq!(workers_of(status("kernel", &[])).unwrap(), [0_u32; 0]);
        assert_eq!(workers_of(status("user", &[7, 8])).unwrap(), [7, 8]);
        let error = workers_of(status("user", &[])).unwrap_err().to_string();
        assert!(error.contains("chain c has no worker"), "{error}");
        assert!(workers(&[], "c").is_err());
    }
}
