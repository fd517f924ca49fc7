//! The agent's operations: deploy, remove, show and measure chains.
//!
//! A change reserves the names of its chains and runs the steps of `deploy`. All other operations
//! only read, and do not wait for changes. A change that waits for a program ends early when its
//! client disconnects, when `down --all` runs, or when the agent stops.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use myelin_linux::procfs;
use myelin_packet::sojourn::Histogram;

use crate::Monitor;
use crate::api::{
    AgentInfo, ApiError, ChainSource, ChainStatus, ChainUp, ContainerStatus, CoreStatus, DownReply,
    Event, FunctionFlows, LinkRequest, NodeEvent, ProbeRequest, RunDir, RunRequest, SlaEvent,
    SlaSecond, SpanStatus, TopologyLink, TopologyStatus,
};
use crate::control::{links, losses, nodes, sampler, supervise};
use crate::deploy::{self, UpOptions};
use crate::node::chains::RunningChain;
use crate::node::hosts::{self, FoundHost};
use crate::node::{Node, NodeOptions};
use crate::pool::lock;
use crate::status;

/// The agent without its socket. Experiments call it directly.
pub struct Engine {
    pub(crate) node: Arc<Node>,
    sla: sampler::SharedMonitor,
    run_dir: RunDir,
    /// Number of running measurements. Above 0, the agent does not exit for idleness.
    pub(crate) measurements: AtomicUsize,
}

impl Engine {
    /// Declares that the interfaces of chain files deliver packets of wire size with whole
    /// checksums, and that their far ends have NAPI. For programs that made these links so.
    pub fn declare_links_whole(&self) {
        self.node.parts.whole_links.store(true, Ordering::Relaxed);
    }

    /// Prepares the node. Workers run `program` with the argument `worker`.
    ///
    /// # Errors
    /// No root privileges, or the kernel lacks a feature that eBPF maps need.
    pub fn open(run_dir: &RunDir, program: PathBuf) -> Result<Self, ApiError> {
        Self::open_with(run_dir, program, NodeOptions::default())
    }

    /// As [`open`](Self::open), with the control group and the clock of the options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_with(
        run_dir: &RunDir,
        program: PathBuf,
        options: NodeOptions,
    ) -> Result<Self, ApiError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(ApiError::failed("the agent needs root: use sudo"));
        }
        let node = Arc::new(Node::open(run_dir, program, options)?);
        supervise::start(&node);
        nodes::start(&node);
        let sla = sampler::start(&node);
        losses::start(&node, &sla);
        let monitor = Arc::clone(&sla);
        links::start(&node, move |node, running| {
            status::read_one(running, &node.parts.plane, &monitor)
        });
        Ok(Self {
            sla,
            node,
            run_dir: run_dir.clone(),
            measurements: AtomicUsize::new(0),
        })
    }

    /// Whether a chain, a topology or a measurement runs, or a request changes a chain.
    pub fn is_busy(&self) -> bool {
        self.measurements.load(Ordering::Relaxed) > 0
            || !self.node.chains.names().is_empty()
            || !self.node.topologies.all().is_empty()
    }

    /// The identity of this agent.
    pub fn info(&self) -> AgentInfo {
        let pid = std::process::id();
        AgentInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid,
            run_dir: self.run_dir.path().display().to_string(),
            orphans: self.node.orphans(),
            resident_kib: procfs::resident_bytes(pid).map_or(0, |bytes| bytes / 1024),
        }
    }

    /// Deploys all chains of a file, or none. A new chain comes up. A running chain with another
    /// description changes under traffic.
    ///
    /// # Errors
    /// A bad file, a refused chain, a change that cannot be made live, a system error, or a
    /// cancelled request.
    pub fn up(
        &self,
        source: &ChainSource,
        options: UpOptions<'_>,
    ) -> Result<Vec<ChainUp>, ApiError> {
        let is_cancelled_by_node = self.node.watch_cancellation();
        let is_cancelled = || {
            let cancelled = options.cancelled;
            cancelled.is_some_and(|cancelled| cancelled.load(Ordering::Relaxed))
                || is_cancelled_by_node()
        };
        deploy::up(&self.node, source, options, &is_cancelled)
    }

    /// Cancels all changes that wait.
    pub(crate) fn cancel_changes(&self) {
        self.node.cancel_changes();
    }

    /// Removes one chain or topology. Waits until no other request changes it.
    ///
    /// # Errors
    /// Nothing has that name, or chains use a host of the topology.
    pub fn down(&self, name: &str) -> Result<DownReply, ApiError> {
        let is_removed = deploy::down(&self.node, name)?
            || deploy::spans::down(&self.node, name)?
            || deploy::topology::down(&self.node, name)?;
        if !is_removed {
            let hint = if self.node.orphans().is_empty() {
                "`myelin ps` lists the running chains and topologies"
            } else {
                "a killed agent left resources behind; `myelin down --all` removes them"
            };
            return Err(ApiError::failed(format!(
                "no chain and no topology `{name}` runs; {hint}"
            )));
        }
        Ok(DownReply {
            removed: vec![name.to_owned()],
            recovered: Vec::new(),
        })
    }

    /// Cancels all changes that wait. Removes every chain and topology, and the resources of a
    /// killed agent.
    ///
    /// # Errors
    /// The first resource that could not be removed; all others are removed.
    pub fn down_all(&self) -> Result<DownReply, ApiError> {
        self.cancel_changes();
        Ok(DownReply {
            removed: self.remove_all()?,
            recovered: self.node.recover()?,
        })
    }

    fn remove_all(&self) -> Result<Vec<String>, ApiError> {
        let mut removed = Vec::new();
        for name in self.node.chains.names() {
            if deploy::down(&self.node, &name)? {
                removed.push(name);
            }
        }
        for span in self.node.spans.all() {
            if deploy::spans::down(&self.node, &span.chain.name)? {
                removed.push(span.chain.name.clone());
            }
        }
        for topology in self.node.topologies.all() {
            let name = topology.name.clone();
            drop(topology);
            if deploy::topology::down(&self.node, &name)? {
                removed.push(name);
            }
        }
        Ok(removed)
    }

    /// Returns the status of all running topologies, by name.
    pub fn topologies(&self) -> Vec<TopologyStatus> {
        let all = self.node.topologies.all();
        all.iter().map(|topology| topology.status()).collect()
    }

    /// Returns the status of all containers, by topology, host and name.
    pub(crate) fn containers(&self) -> Vec<ContainerStatus> {
        let topologies = self.node.topologies.all();
        let lists = topologies.iter().map(|topology| topology.containers.list());
        lists.flatten().collect()
    }

    /// Finds a host by its name.
    ///
    /// # Errors
    /// No object has such a host, or several have.
    pub(crate) fn find_host(&self, name: &str) -> Result<FoundHost, ApiError> {
        hosts::find(&self.node, name)
    }

    /// Returns the status of all running chains over nodes, by name.
    pub fn spans(&self) -> Vec<SpanStatus> {
        deploy::spans::list(&self.node)
    }

    /// Changes a link of a running topology under traffic.
    ///
    /// # Errors
    /// No such topology or link, a change that cannot be made, or a system error.
    pub fn change_link(&self, request: &LinkRequest) -> Result<TopologyLink, ApiError> {
        deploy::topology::change_link(&self.node, request)
    }

    /// Returns the status of all running and waiting chains, by name.
    pub fn list(&self) -> Vec<ChainStatus> {
        // A chain that changes between the lists is in both, and never in neither.
        let waiting = self.node.chains.all_waiting();
        let running = self.node.chains.all();
        let waiting = waiting.iter().filter(|waiting| {
            let name = &waiting.chain.name;
            running.iter().all(|running| running.name != *name)
        });
        let waiting: Vec<_> = waiting.map(|waiting| waiting.status()).collect();
        let plane = &self.node.parts.plane;
        let read = |running: &Arc<RunningChain>| status::read_one(running, plane, &self.sla);
        let mut statuses: Vec<_> = running.iter().map(read).collect();
        statuses.extend(waiting);
        statuses.sort_by(|one, other| one.chain.cmp(&other.chain));
        statuses
    }

    /// Returns contract violations with serial numbers above `after`, of one running chain or of
    /// all. Of a chain over nodes, violations of the whole.
    ///
    /// # Errors
    /// No chain has that name.
    pub fn events(&self, chain: Option<&str>, after: u64) -> Result<Vec<SlaEvent>, ApiError> {
        if let Some(name) = chain.filter(|name| self.node.spans.get(name).is_none()) {
            self.node.chains.expect(name)?;
        }
        // The lock of the monitor orders the serial numbers of both.
        let monitor = lock(&self.sla);
        let mut events = monitor.events(chain, after);
        let spans = self.node.spans.all();
        let is_wanted = |name: &str| chain.is_none_or(|chain| chain == name);
        for span in spans.iter().filter(|span| is_wanted(&span.chain.name)) {
            events.extend(lock(&span.loss).events_after(after).cloned());
        }
        events.sort_unstable_by_key(|event| event.serial);
        Ok(events)
    }

    /// Returns the events of the topologies' nodes with serial numbers above `after`.
    pub fn node_events(&self, after: u64) -> Vec<NodeEvent> {
        self.node.parts.node_events.after(after)
    }

    /// Returns the last seconds of a running chain, at most `limit`, the oldest first.
    ///
    /// # Errors
    /// No chain has that name.
    pub fn seconds(&self, chain: &str, limit: usize) -> Result<Vec<SlaSecond>, ApiError> {
        self.node.chains.expect(chain)?;
        Ok(lock(&self.sla).seconds(chain, limit))
    }

    /// Returns the sojourns of all packets since the chain came up, one histogram for each section.
    ///
    /// # Errors
    /// No chain has that name.
    pub fn sojourn(&self, chain: &str) -> Result<Vec<Histogram>, ApiError> {
        let running = self.node.chains.expect_during("measured", chain)?;
        Ok(running.read(&self.node.parts.plane).sections())
    }

    /// Lists the cores whose workers take turns.
    pub fn cores(&self) -> Vec<CoreStatus> {
        status::cores::read(&self.node.parts.cores)
    }

    /// Reads the flow tables of one chain's functions, or of all chains.
    ///
    /// # Errors
    /// No chain has that name, or a table or a worker cannot be read.
    pub fn flows(&self, chain: Option<&str>) -> Result<Vec<FunctionFlows>, ApiError> {
        let running = match chain {
            Some(name) => vec![self.node.chains.expect(name)?],
            None => self.node.chains.all(),
        };
        let mut tables = Vec::new();
        for running in running {
            tables.extend(status::flows::read(&running)?);
        }
        Ok(tables)
    }

    /// Measures a running chain.
    ///
    /// # Errors
    /// No such chain, a chain without end hosts, bad options, or a socket error.
    pub fn probe(&self, request: &ProbeRequest, monitor: &Monitor<'_>) -> Result<(), ApiError> {
        let _counted = MeasurementGuard::new(&self.measurements);
        let report =
            crate::measure::measure_chain(self, &request.chain, &request.options, &[], monitor)?;
        (monitor.emit)(Event::Report(Box::new(report)));
        Ok(())
    }

    /// Deploys a file, measures each chain that a probe can reach and that is not flooded, and
    /// removes all chains of the file.
    ///
    /// # Errors
    /// The errors of [`up`](Self::up) and [`probe`](Self::probe).
    pub fn run(&self, request: &RunRequest, monitor: &Monitor<'_>) -> Result<(), ApiError> {
        let _counted = MeasurementGuard::new(&self.measurements);
        monitor.progress("deploying", 0, 1);
        let options = UpOptions {
            force: request.force,
            only_new: true,
            own: None,
            floods: &request.floods,
            cancelled: Some(monitor.cancelled),
        };
        let up = self.up(&request.source, options)?;
        let measured = self.measure_all(&up, request, monitor);
        for chain_up in up.iter().rev() {
            // Another request may have removed the chain.
            let _ = self.down(&chain_up.chain);
        }
        measured
    }

    fn measure_all(
        &self,
        up: &[ChainUp],
        request: &RunRequest,
        monitor: &Monitor<'_>,
    ) -> Result<(), ApiError> {
        let mut reports = 0;
        for chain_up in up {
            (monitor.emit)(Event::Up(Box::new(chain_up.clone())));
            // A reverse chain is measured together with the chain whose replies it carries.
            let is_reverse_of_another = chain_up.hosts.is_empty()
                || up
                    .iter()
                    .take_while(|earlier| earlier.chain != chain_up.chain)
                    .any(|earlier| earlier.hosts == chain_up.hosts);
            let is_flooded = request
                .floods
                .iter()
                .any(|flood| flood.chain == chain_up.chain);
            if is_reverse_of_another || is_flooded || monitor.is_cancelled() {
                continue;
            }
            let (options, floods) = (&request.options, &request.floods);
            let report =
                crate::measure::measure_chain(self, &chain_up.chain, options, floods, monitor)?;
            (monitor.emit)(Event::Report(Box::new(report)));
            reports += 1;
        }
        if reports == 0 && !monitor.is_cancelled() {
            return Err(ApiError::usage(
                "`run` measures chains between emulated end hosts, and every chain of this file names interfaces \
                 (spec.ports): use `up`, and send your own traffic",
            ));
        }
        Ok(())
    }

    /// Removes all chains and resources. The engine cannot be used afterwards.
    pub fn close(&self) {
        self.cancel_changes();
        if self.node.chains.reserved.close() {
            self.node.chains.reserved.wait_until_free();
            deploy::down_all(&self.node);
            self.node.close();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

/// Counts a measurement until the guard is dropped.
pub(crate) struct MeasurementGuard<'a>(&'a AtomicUsize);

impl<'a> MeasurementGuard<'a> {
    pub(crate) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for MeasurementGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
