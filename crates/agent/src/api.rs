//! What goes over the agent's socket: JSON over HTTP/1.1 on a Unix stream socket.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/agent` | - | [`AgentInfo`] |
//! | `GET /v1/chains` | - | [`ChainStatus`] list |
//! | `POST /v1/chains` | [`UpRequest`] | [`ChainUp`] list: deploys, or changes what runs |
//! | `GET /v1/events?after=SERIAL`, `GET /v1/events/NAME?after=SERIAL` | - | [`SlaEvent`] list: violations of contracts with higher numbers |
//! | `GET /v1/seconds/NAME?last=COUNT` | - | [`SlaSecond`] list: the last seconds of a chain, the oldest first; at most 300 are kept, all of them without `last` |
//! | `GET /v1/flows`, `GET /v1/flows/NAME` | - | [`FunctionFlows`] list: of all chains, of one |
//! | `DELETE /v1/chains/NAME`, `DELETE /v1/chains` | - | [`DownReply`] |
//! | `POST /v1/probe` | [`ProbeRequest`] | stream of [`Event`], one JSON object a line |
//! | `POST /v1/run` | [`RunRequest`] | stream of [`Event`] |
//! | `POST /v1/calibrate` | [`CalibrateRequest`] | stream of [`Event`] |
//! | `DELETE /v1/agent` | - | empty: the agent stops |
//!
//! An error is an [`ApiError`] with HTTP status 400 (usage), 409 (refused) or 500 (failed).

mod sla;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

pub use crate::flood::FloodRequest;
pub use myelin_packet::FlowState;
use myelin_planner::Plan;
use myelin_spec::{FileContents, Isolation};
use serde::{Deserialize, Serialize};

pub use sla::{
    Losses, SlaCause, SlaContract, SlaEvent, SlaSecond, SlaSojourn, SlaState, SlaStatus, SlaTerm,
    SlaWindow,
};

/// A chain file as the client read it, with its own rights: the text, and the files that the text names.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainSource {
    /// The file's name as the user gave it, for error messages.
    pub name: String,
    /// The YAML text.
    pub text: String,
    /// Contents of the files named in the text, by the path written there.
    pub files: BTreeMap<String, FileContents>,
}

/// Without what the files hold: some hold keys.
impl fmt::Debug for ChainSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainSource")
            .field("name", &self.name)
            .field("text", &self.text)
            .field("files", &self.files.keys())
            .finish()
    }
}

/// Deploy a chain file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UpRequest {
    /// The chain file.
    #[serde(flatten)]
    pub source: ChainSource,
    /// Deploy what admission refuses all the same: as best effort, without a promise.
    #[serde(default)]
    pub force: bool,
}

/// Who answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AgentInfo {
    /// The agent's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Its run directory.
    pub run_dir: String,
    /// What a killed agent left behind; `down --all` removes it.
    pub orphans: Vec<String>,
    /// Resident memory of the agent, KiB.
    pub resident_kib: u64,
}

/// One emulated end host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// `client` or `server`.
    pub role: String,
    /// Its network namespace, as `ip netns` lists it.
    pub netns: String,
    /// Its address.
    pub address: String,
    /// Its interface inside the namespace.
    pub interface: String,
    /// The other end of that link, on the agent's side.
    pub link: String,
}

/// What `up` did with a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It did not run, and does now.
    Created,
    /// It ran in another form and was changed under its traffic.
    Changed,
    /// It runs in this form already.
    Unchanged,
}

/// A chain as `up` leaves it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChainUp {
    /// The chain's name.
    pub chain: String,
    /// Its owner (`metadata.namespace`).
    pub owner: String,
    /// What was done.
    pub change: Change,
    /// Its service path identifier on this node.
    pub spi: u32,
    /// Its generation: 0 when it comes up, one more with each change.
    pub generation: u16,
    /// What was deployed.
    pub plan: Plan,
    /// Interface where packets enter.
    pub ingress: String,
    /// Interface where they leave.
    pub egress: String,
    /// The end hosts, where Myelin made them.
    pub hosts: Vec<HostInfo>,
    /// Time from the request to the chain being active in its form, ms (SFC-OStack's rendering delay); 0 for one that was
    /// unchanged.
    pub rendering_ms: f64,
    /// Of a chain that was changed: time from the moment when the first packet could take the new form to the last packet
    /// of the old one, ms.
    pub exchange_ms: Option<f64>,
}

/// State of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainState {
    /// Packets are processed.
    Active,
    /// Its worker, or the program of a black box, kept dying; the chain's `onFailure` rule applies.
    Failed,
}

/// One hop of a running chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HopStatus {
    /// Position in the chain.
    pub position: u8,
    /// The function's name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// `kernel` or `user`.
    pub space: String,
    /// Packets that came in.
    pub packets_in: u64,
    /// Bytes that came in; only the kernel counts them per function.
    pub bytes_in: Option<u64>,
    /// Packets that it dropped.
    pub drops: u64,
    /// Mean processing time of the sampled packets, ns; absent until one was sampled.
    pub cost_ns: Option<f64>,
    /// What it stands in, where that is a container or has limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxStatus>,
    /// What it counts besides, by its own names; kinds that do list them in their documentation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// The program, of a black box (`kind: external`). Its `drops` are what went in and has not come out, so packets under way
    /// are among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub black_box: Option<BlackBoxStatus>,
}

/// A black box: a program that nothing is known of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BlackBoxStatus {
    /// Its process; absent while none runs.
    pub pid: Option<u32>,
    /// How often it was started again.
    pub restarts: u64,
    /// How the last one ended, with the end of what it wrote; absent when none has.
    pub last_end: Option<String>,
    /// File with what it writes to its standard output and error.
    pub log: String,
    /// Resident memory of its process, KiB.
    pub resident_kib: u64,
    /// CPU time that it and its children used, ended ones included, s.
    pub cpu_s: f64,
    /// Packets that it let through.
    pub packets_out: u64,
    /// Packets that it sent back to the senders.
    pub packets_back: u64,
}

/// A container, a function's limits, and what the function has used since it came up, restarts included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// `process` or `container`.
    pub isolation: Isolation,
    /// Limit of processor time, cores.
    pub cpu_limit_cores: Option<f64>,
    /// Limit of memory, bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Processor time used, s.
    pub cpu_s: f64,
    /// Memory in use, bytes, with what it shares with the agent and has touched first.
    pub memory_bytes: u64,
    /// Periods (mostly of 10 ms) in which it had used its processor time up.
    pub throttled_periods: u64,
    /// How long it stood still for that, s.
    pub throttled_s: f64,
    /// How often one of its processes was killed at the memory limit.
    pub oom_kills: u64,
    /// The container's name, as `runc --root RUN_DIR/runc list` has it.
    pub container: Option<String>,
}

/// In-band sojourn (front door to egress) of all of a chain's traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SojournStatus {
    /// Packets measured.
    pub packets: u64,
    /// Mean, us.
    pub mean_us: f64,
    /// Median, us.
    pub p50_us: f64,
    /// 99th percentile, us.
    pub p99_us: f64,
    /// 99.9th percentile, us.
    pub p99_9_us: f64,
    /// Largest, us.
    pub max_us: f64,
}

/// The shaper of a chain: what it holds departing packets to, and what it did over all generations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShaperStatus {
    /// Who shapes: `worker`, or the egress interface's queueing discipline, `fq` or `htb`.
    pub by: String,
    /// Rate, packets a second.
    pub rate_pps: Option<u64>,
    /// Burst, packets.
    pub burst_packets: Option<u64>,
    /// Rate, bits a second.
    pub rate_bps: Option<u64>,
    /// Burst, bits.
    pub burst_bits: Option<u64>,
    /// Packets that may wait.
    pub queue: u32,
    /// How long a packet may wait, us.
    pub delay_us: f64,
    /// Packets that had to wait; `htb` does not count them.
    pub delayed: Option<u64>,
    /// How long they waited in the mean, us.
    pub mean_wait_us: Option<f64>,
    /// Packets dropped because the queue was full.
    pub drops_full: u64,
    /// Packets dropped because they would have waited too long.
    pub drops_late: u64,
    /// Packets dropped because they are larger than the burst.
    pub drops_too_big: u64,
    /// Packets that waited in a worker that died.
    pub lost: u64,
    /// Packets that wait now.
    pub waiting: u64,
    /// The most that ever waited.
    pub most_waiting: Option<u64>,
    /// Whether the time in the queue is part of the sojourn.
    pub in_sojourn: bool,
}

/// A worker process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its process.
    pub pid: u32,
    /// How often it was started again.
    pub restarts: u64,
    /// Resident memory, KiB.
    pub resident_kib: u64,
    /// CPU time used, s.
    pub cpu_s: f64,
}

/// A descriptor ring between two processes of a chain in mapping `pipeline`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RingStatus {
    /// Position of the function whose process sends; absent for the first process.
    pub from: Option<u8>,
    /// Position of the function whose process receives; absent for the first process.
    pub to: Option<u8>,
    /// Descriptors it can hold.
    pub capacity: u32,
    /// Descriptors in it now.
    pub occupancy: u32,
    /// Descriptors put in since it was made.
    pub enqueued: u64,
    /// Descriptors taken out since it was made.
    pub dequeued: u64,
}

/// A running chain, as `ps` shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChainStatus {
    /// The chain's name.
    pub chain: String,
    /// Its owner.
    pub owner: String,
    /// Its service path identifier.
    pub spi: u32,
    /// Its generation; the figures of its functions are of this one, those of the chain of all.
    pub generation: u16,
    /// Its state.
    pub state: ChainState,
    /// Whether nothing is promised: it was refused by admission and deployed all the same, or a core of its workers was taken away
    /// (`lost_cores` of `sla`).
    #[serde(default)]
    pub best_effort: bool,
    /// The worst-case delay that it was admitted with, ns; absent where it has none.
    #[serde(default)]
    pub bound_ns: Option<u64>,
    /// How its functions are laid out.
    pub mapping: String,
    /// `xdp` or `tcx`.
    pub hook: String,
    /// Ingress interface.
    pub ingress: String,
    /// Egress interface.
    pub egress: String,
    /// Packets classified to it at the front door.
    pub packets_in: u64,
    /// Bytes classified to it at the front door.
    pub bytes_in: u64,
    /// Those of them that the policer dropped, above the chain's profile.
    #[serde(default)]
    pub policed: u64,
    /// The bytes of these, as the policer counts them.
    #[serde(default)]
    pub policed_bytes: u64,
    /// Packets that left at its egress.
    pub packets_out: u64,
    /// Packets that its functions and its shaper dropped.
    pub drops: u64,
    /// When its last packet came in, ms ago; absent when none ever came.
    pub last_packet_ms_ago: Option<f64>,
    /// Its functions.
    pub hops: Vec<HopStatus>,
    /// What shapes its traffic where it leaves; absent where nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaper: Option<ShaperStatus>,
    /// Its in-band sojourn; absent where black boxes cut it into sections, for nothing tells how long a packet was in them.
    pub sojourn: Option<SojournStatus>,
    /// The sojourn of each section, where there are black boxes: from the front door to the first one, from one to the next,
    /// from the last one to the egress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sojourn_sections: Vec<SojournStatus>,
    /// Its worker, when it has user functions; the first one where each of them has its own.
    pub worker: Option<WorkerStatus>,
    /// The workers of its further user functions, where each has its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_workers: Vec<WorkerStatus>,
    /// The rings between its processes, in mapping `pipeline`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingStatus>,
    /// Its end hosts, where Myelin made them.
    pub hosts: Vec<HostInfo>,
    /// Its contract against what was measured; absent in its first second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sla: Option<Box<SlaStatus>>,
    /// Seconds since it came up.
    pub up_s: f64,
}

/// What a function that keeps a table of flows knows of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionFlows {
    /// The chain.
    pub chain: String,
    /// The function's name in it.
    pub function: String,
    /// Its kind.
    pub kind: String,
    /// `kernel` or `user`.
    pub space: String,
    /// Flows that began.
    pub begun: u64,
    /// Flows that had to make room for others in the full table.
    pub evicted: u64,
    /// Packets that belong to no flow.
    pub outside: u64,
    /// The flows in the table, that of the most bytes first.
    pub flows: Vec<FlowStatus>,
}

/// One flow. Bytes are those of whole frames, with the Ethernet header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// How it is written: `udp 10.0.0.1:5000 > 10.0.0.2:9000`, in the direction of its first packet.
    pub flow: String,
    /// IP protocol number.
    pub protocol: u8,
    /// Source of its first packet.
    pub source: IpAddr,
    /// Its port; absent for fragments and other protocols than UDP and TCP.
    pub source_port: Option<u16>,
    /// Destination of its first packet.
    pub destination: IpAddr,
    /// Its port.
    pub destination_port: Option<u16>,
    /// How far it has come, from functions that follow flows.
    pub state: Option<FlowState>,
    /// Packets in the direction of the first one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets the other way, from functions that see both.
    pub reply_packets: u64,
    /// Their bytes.
    pub reply_bytes: u64,
    /// When its first packet came, ms ago.
    pub age_ms: f64,
    /// When its last one came, ms ago.
    pub last_packet_ms_ago: f64,
}

/// What `down` removed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DownReply {
    /// Chains that were removed.
    pub removed: Vec<String>,
    /// Things of a killed agent that were removed: kind and name.
    pub recovered: Vec<String>,
}

/// How to probe. Every field has `myelin probe`'s default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeOptions {
    /// `inline`, `spin` or `blocking`; several are measured one after the other.
    pub modes: Vec<String>,
    /// UDP payloads, bytes.
    pub payloads: Vec<u16>,
    /// Time between packets, us; 0 sends back to back.
    pub interval_us: u64,
    /// Packets in a repeat.
    pub count: u32,
    /// Repeats.
    pub repeats: u32,
    /// How the report shall be rendered.
    pub rendering: Rendering,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            modes: vec!["inline".into(), "blocking".into()],
            payloads: vec![256, 1400],
            interval_us: 1000,
            count: 500,
            repeats: 5,
            rendering: Rendering::default(),
        }
    }
}

/// How a report shall be rendered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rendering {
    /// Width of the terminal, columns.
    pub columns: u16,
    /// Plain ASCII instead of box drawing and blocks.
    pub ascii: bool,
    /// A self-contained page as well.
    pub html: bool,
}

impl Default for Rendering {
    fn default() -> Self {
        Self {
            columns: 100,
            ascii: false,
            html: false,
        }
    }
}

/// The measurement of one chain, ready to be shown. The agent renders it, because the curves behind it are large.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReportReply {
    /// The chain's name.
    pub chain: String,
    /// `{"experiment", "environment", "rows", "claims"}`.
    pub envelope: serde_json::Value,
    /// Table, histogram and verdict as text.
    pub text: String,
    /// The page, if it was asked for.
    pub html: Option<String>,
    /// Whether the SLA was met.
    pub met: bool,
}

/// Probe a running chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// The chain's name.
    pub chain: String,
    /// How.
    pub options: ProbeOptions,
}

/// Deploy, probe, report, tear down.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRequest {
    /// The chain file.
    pub source: ChainSource,
    /// How to probe.
    pub options: ProbeOptions,
    /// As in [`UpRequest`].
    #[serde(default)]
    pub force: bool,
    /// Chains of the file that are not probed, but sent more than they agreed while the others are.
    #[serde(default)]
    pub floods: Vec<FloodRequest>,
}

/// Measure this machine's costs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CalibrateRequest {
    /// Fewer rounds: seconds instead of half a minute.
    pub quick: bool,
    /// Where to keep the result.
    pub file: String,
}

/// One line of a streamed answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Work under way.
    Progress {
        /// What is being done.
        stage: String,
        /// Steps done.
        done: u64,
        /// Steps in all.
        total: u64,
    },
    /// A chain came up (`run`).
    Up(Box<ChainUp>),
    /// The measurement of one chain.
    Report(Box<ReportReply>),
    /// Calibrated costs.
    Costs(Box<myelin_planner::Costs>),
    /// The end of a stream that failed.
    Error(ApiError),
}

/// What kind of failure; it decides the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorKind {
    /// Bad usage or a bad file: exit status 2.
    Usage,
    /// Something failed: exit status 1.
    Failed,
    /// Refused by admission: exit status 3.
    Refused,
}

/// An error as the agent reports it: the object, the place, the cause and the remedy in one text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Its kind.
    pub kind: ErrorKind,
    /// Its text.
    pub message: String,
}

// By value, so that the constructors fit `map_err`.
#[expect(clippy::needless_pass_by_value)]
impl ApiError {
    /// Bad usage or a bad file.
    pub fn usage(message: impl ToString) -> Self {
        Self {
            kind: ErrorKind::Usage,
            message: message.to_string(),
        }
    }

    /// Something failed.
    pub fn failed(message: impl ToString) -> Self {
        Self {
            kind: ErrorKind::Failed,
            message: message.to_string(),
        }
    }

    /// Refused by admission.
    pub fn refused(message: impl ToString) -> Self {
        Self {
            kind: ErrorKind::Refused,
            message: message.to_string(),
        }
    }

    /// The process exit status that stands for it.
    pub fn exit_status(&self) -> u8 {
        match self.kind {
            ErrorKind::Failed => 1,
            ErrorKind::Usage => 2,
            ErrorKind::Refused => 3,
        }
    }
}
