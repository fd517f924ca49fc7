//! The API of the agent: JSON over HTTP/1.1 on a Unix stream socket, and the [`Client`] that uses
//! it.
//!
//! The crate has the types, the errors, and the location of an agent's socket ([`RunDir`]). It
//! deploys, measures and draws nothing, and uses only pure crates. So a client links neither eBPF
//! nor DPDK.
//!
//! Start reading at [`Client`].
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v2/agent` | - | [`AgentInfo`] |
//! | `GET /v2/chains` | - | [`ChainStatus`] list |
//! | `POST /v2/chains` | [`UpRequest`] | [`ChainUp`] list: deploys chains, or changes them |
//! | `GET /v2/events?after=SERIAL` | - | [`SlaEvent`] list: violations with higher serials |
//! | `GET /v2/events/NAME?after=SERIAL` | - | [`SlaEvent`] list of one chain |
//! | `GET /v2/node-events?after=SERIAL` | - | [`NodeEvent`] list of the topologies' nodes |
//! | `GET /v2/seconds/NAME?last=COUNT` | - | [`SlaSecond`] list, the oldest first (1) |
//! | `GET /v2/flows`, `GET /v2/flows/NAME` | - | [`FunctionFlows`] list: of all chains, of one |
//! | `GET /v2/cores` | - | [`CoreStatus`] list: cores whose workers take turns |
//! | `DELETE /v2/chains/NAME`, `DELETE /v2/chains` | - | [`DownReply`] (2) |
//! | `GET /v2/topologies` | - | [`TopologyStatus`] list: the running topologies |
//! | `GET /v2/spans` | - | [`SpanStatus`] list: the running chains over nodes |
//! | `GET /v2/hosts/NAME` | - | [`HostStatus`]: finds a host, as `exec` does |
//! | `POST /v2/links` | [`LinkRequest`] | [`TopologyLink`]: changes a link of a topology |
//! | `POST /v2/texts` | [`TextRequest`] | [`TextContents`]: objects and named files of a text |
//! | `POST /v2/leases` | - | stream of one [`Lease`]; open as long as the lease lasts (3) |
//! | `DELETE /v2/leases/LEASE` | - | [`DownReply`]: ends the lease, and removes its objects |
//! | `POST /v2/exec` | [`ExecRequest`] | stream of [`ExecEvent`], after an upgrade (4) |
//! | `GET /v2/containers` | - | [`ContainerStatus`] list: the containers of all hosts |
//! | `POST /v2/containers` | [`ContainerRequest`] | [`ContainerStatus`]: starts a container |
//! | `POST /v2/containers/limits` | [`ContainerLimitsRequest`] | [`ContainerStatus`] |
//! | `POST /v2/containers/log` | [`ContainerName`] | [`ContainerLog`] |
//! | `POST /v2/containers/remove` | [`ContainerName`] | [`DownReply`] |
//! | `GET /v2/images` | - | [`ImageStatus`] list: the stored images |
//! | `POST /v2/images` | [`ImageRequest`] | [`ImageStatus`]: stores the image of an archive |
//! | `DELETE /v2/images/NAME` | - | [`DownReply`] |
//! | `POST /v2/probe` | [`ProbeRequest`] | stream of [`Event`], one JSON object a line |
//! | `POST /v2/run` | [`RunRequest`] | stream of [`Event`] |
//! | `POST /v2/calibrate` | [`CalibrateRequest`] | stream of [`Event`] |
//! | `DELETE /v1/agent` | - | empty: stops an agent of any version |
//!
//! (1) The agent keeps at most 300 seconds; without `last` it sends all of them.
//!
//! (2) `POST /v2/chains` also makes the topologies of the file, and `DELETE` also removes
//! topologies. The names of topologies and chains differ.
//!
//! (3) The agent removes the objects that `up` made with a lease when the lease's connection ends,
//! so a killed program leaves nothing.
//!
//! (4) The client sends the descriptors of input, output and errors on the stream
//! ([`ExecStream`]), then [`ExecSignal`] lines. The end of the stream ends the program.
//!
//! Requests and answers carry the header `myelin-version`; the agent refuses requests of a distant
//! version ([`check_client`]). An error is an [`ApiError`] with HTTP status 400 (usage), 409
//! (refused) or 500 (failed).

mod client;
mod container;
mod cores;
mod exec;
mod flood;
mod impairment;
mod paths;
mod session;
mod span;
mod status;
mod topology;
mod version;

use std::collections::BTreeMap;
use std::fmt;

use myelin_metrics::ChainReport;
use myelin_spec::{FileContents, Objects, ServiceChain};
use serde::{Deserialize, Serialize};

pub use client::Client;
pub use container::{
    ContainerImage, ContainerLimits, ContainerLimitsRequest, ContainerLog, ContainerName,
    ContainerRequest, ContainerStatus, ImageRequest, ImageStatus,
};
pub use cores::{CoreStatus, TaskStatus};
pub use exec::{
    EXEC_PROTOCOL, ExecEvent, ExecRequest, ExecSignal, ExecStream, receive_descriptors,
    send_descriptors,
};
pub use flood::{FloodRequest, check_floods};
pub use impairment::{DelayLineStatus, DirectionStatus, ImpairmentChange, LinkImpairments};
pub use myelin_packet::{FlowState, HopCounters};
pub use myelin_planner::placement::Placement;
pub use myelin_planner::{BlackBoxSharing, Origin, PartPlan, Plan, ShaperPlace, SharingPlan, Step};
pub use myelin_policy::sla::{
    Losses, PacketAccount, SlaCause, SlaContract, SlaEvent, SlaSecond, SlaSojourn, SlaState,
    SlaStatus, SlaTerm, SlaWindow, SpanLoss,
};
pub use myelin_spec::{LinkEmulation, Mapping, PortDriver, SharingMechanism, units};
pub use paths::{RunDir, calibration_file, short_hash};
pub use session::{Lease, NamedFile, TextContents, TextRequest};
pub use span::{
    NodeEvent, NodeEventKind, SojournSource, SpanEnd, SpanPart, SpanSojourn, SpanStatus,
    last_parts, sojourn_parts,
};
pub use status::{
    BlackBoxStatus, ChainState, ChainStatus, Endpoint, FlowStatus, FunctionFlows, HopStatus,
    PartStatus, RingStatus, SandboxStatus, ShaperStatus, SojournStatus, WorkerStatus,
};
pub use topology::{
    ControllerState, ControllerStatus, HostInfo, HostStatus, LinkChange, LinkRequest,
    NodeAgentStatus, TopologyEnd, TopologyHost, TopologyLink, TopologyStatus, TopologySwitch,
};
pub use version::{PREFIX, STOP, VERSION, VERSION_HEADER, check_client};

/// The JSON Schema (2020-12) of the API. `$defs` has the types. `endpoints` has each method and
/// path, and the types of request and answer. An answer in `lines` is a stream, one JSON object a
/// line. Any endpoint may answer an `error` instead. A test generates this text from the types
/// (feature `schema`) and compares both.
pub const SCHEMA: &str = include_str!("../schema.json");

/// A chain file and the files that it names. The client reads all of them with the rights of its
/// user.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChainSource {
    /// The file's name as the user gave it, for error messages.
    pub name: String,
    /// The YAML text.
    pub text: String,
    /// Contents of the files that the text names, by the path in the text.
    pub files: BTreeMap<String, FileContents>,
}

impl ChainSource {
    /// Parses the chains of the file.
    ///
    /// # Errors
    /// All faults of the file, each with its position.
    pub fn parse(&self) -> Result<Vec<ServiceChain>, ApiError> {
        self.parse_objects().map(|objects| objects.chains)
    }

    /// Parses the file.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_objects(&self) -> Result<Objects, ApiError> {
        let source = myelin_spec::Source::new(&self.name);
        myelin_spec::parse_objects(&self.text, &source, &self.files).map_err(ApiError::from)
    }
}

/// Omits the contents of the files, because some are secret keys.
impl fmt::Debug for ChainSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainSource")
            .field("name", &self.name)
            .field("text", &self.text)
            .field("files", &self.files.keys())
            .finish()
    }
}

/// Request to deploy a chain file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UpRequest {
    /// The chain file.
    #[serde(flatten)]
    pub source: ChainSource,
    /// Deploy chains that admission refuses, as best effort without a guarantee.
    #[serde(default)]
    pub force: bool,
    /// The lease that holds the new objects. `None`: they stay until `down`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<u64>,
}

/// The agent that answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentInfo {
    /// The agent's version.
    pub version: String,
    /// The agent's process number.
    pub pid: u32,
    /// The agent's run directory.
    pub run_dir: String,
    /// Objects that a killed agent left; `down --all` removes them.
    pub orphans: Vec<String>,
    /// Resident memory of the agent, KiB.
    pub resident_kib: u64,
}

/// The effect of `up` on a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// The chain is new.
    Created,
    /// The chain ran with another plan; the agent changed it live.
    Changed,
    /// The chain already ran with this plan.
    Unchanged,
}

/// A chain after `up`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChainUp {
    /// The chain's name.
    pub chain: String,
    /// The chain's owner (`metadata.namespace`).
    pub owner: String,
    /// The effect of `up`.
    pub change: Change,
    /// The chain's service path identifier on this node.
    pub spi: u32,
    /// The chain's generation: 0 for a new chain, one more with each change.
    pub generation: u16,
    /// The deployed plan.
    pub plan: Plan,
    /// Interface where packets enter.
    pub ingress: String,
    /// Interface where packets leave.
    pub egress: String,
    /// The end hosts, if Myelin made them.
    pub hosts: Vec<HostInfo>,
    /// Time from the request until the chain is active, ms (the rendering delay of SFC-OStack); 0
    /// for an unchanged chain.
    pub rendering_ms: f64,
    /// Duration of a live change, ms: from the first packet that could take the new generation to
    /// the last packet of the old generation.
    pub exchange_ms: Option<f64>,
    /// After a live change: the packets that left the previous generation, to the next node if it
    /// was a part of a chain.
    pub previous_packets_out: Option<u64>,
}

/// The chains, topologies and objects that `down` removed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DownReply {
    /// Removed chains and topologies.
    pub removed: Vec<String>,
    /// Removed objects of a killed agent: kind and name.
    pub recovered: Vec<String>,
}

/// Options of a probe. The defaults are those of `myelin probe`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProbeOptions {
    /// `inline`, `spin` or `blocking`; several modes run one after the other.
    pub modes: Vec<String>,
    /// UDP payloads, bytes.
    pub payloads: Vec<u16>,
    /// Time between packets, us; 0 sends back to back.
    pub interval_us: u64,
    /// Packets in a repeat.
    pub count: u32,
    /// Repeats.
    pub repeats: u32,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            modes: vec!["inline".into(), "blocking".into()],
            payloads: vec![256, 1400],
            interval_us: 1000,
            count: 500,
            repeats: 5,
        }
    }
}

/// The measurement of one chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReportReply {
    /// For programs: `{"experiment", "environment", "rows", "claims"}`, and further findings.
    pub envelope: serde_json::Value,
    /// For people: the figures, with the distributions for plots.
    pub report: ChainReport,
    /// The chain's status at the end of the measurement. `account` covers only the measurement.
    pub status: Box<ChainStatus>,
}

/// Request to probe a running chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbeRequest {
    /// The chain's name.
    pub chain: String,
    /// Options of the probe.
    pub options: ProbeOptions,
}

/// Request to deploy, probe, report and remove chains.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunRequest {
    /// The chain file.
    pub source: ChainSource,
    /// Options of the probes.
    pub options: ProbeOptions,
    /// Deploy chains that admission refuses, as best effort without a guarantee.
    #[serde(default)]
    pub force: bool,
    /// Chains that get more traffic than their rate while the other chains are probed.
    #[serde(default)]
    pub floods: Vec<FloodRequest>,
}

/// Request to measure this machine's costs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalibrateRequest {
    /// Measure fewer rounds: seconds instead of half a minute.
    pub quick: bool,
    /// File for the result.
    pub file: String,
    /// Measure only the black boxes of this chain file, and keep the other costs of `file`.
    #[serde(default)]
    pub black_boxes: Option<ChainSource>,
}

/// One line of a streamed answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Progress of the request.
    Progress {
        /// Current stage.
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
    /// The error that ended the stream.
    Error(ApiError),
}

/// Kind of an error. The kind decides the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ErrorKind {
    /// Bad usage or a bad file: exit status 2.
    Usage,
    /// The request failed: exit status 1.
    Failed,
    /// Refused by admission: exit status 3.
    Refused,
}

/// An error as the agent reports it: the object, the place, the cause and the remedy in one text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[error("{message}")]
pub struct ApiError {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// Text of the error.
    pub message: String,
    /// The faults of the file that caused the error, each with its place; also in the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FileFault>,
}

/// A fault of a chain file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileFault {
    /// The file's name as the user gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub column: usize,
    /// The object with the fault; empty if the text is not YAML.
    pub object: String,
    /// The path of the key, for example `spec.sla.latency`; may be empty.
    pub key: String,
    /// The value found.
    pub message: String,
    /// What to write instead.
    pub remedy: String,
}

impl FileFault {
    fn of(fault: &myelin_spec::SpecError) -> Self {
        Self {
            file: fault.place.file.clone(),
            line: fault.place.line,
            column: fault.place.column,
            object: fault.object.clone(),
            key: fault.key.clone(),
            message: fault.message.clone(),
            remedy: fault.help.clone(),
        }
    }
}

impl From<myelin_spec::SpecErrors> for ApiError {
    fn from(errors: myelin_spec::SpecErrors) -> Self {
        Self {
            faults: errors.iter().map(FileFault::of).collect(),
            ..Self::usage(errors)
        }
    }
}

/// Limits of a process: the system's text of the error in small letters, and the remedy.
const LIMITS: [(&str, &str); 3] = [
    (
        "cannot allocate memory",
        "a limit of memory is reached: raise it for the agent (`ulimit -v`, or `MemoryMax=` of its service), or free memory",
    ),
    (
        "too many open files",
        "the limit of open files is reached: raise it for the agent (`ulimit -Hn`, or `LimitNOFILE=` of its service)",
    ),
    (
        "file too large",
        "the limit of file sizes is reached: raise it for the agent (`ulimit -f`, or `LimitFSIZE=` of its service)",
    ),
];

/// Returns the remedy of an error that a limit of the agent's process causes. Any layer may report
/// such an error, so its text decides.
fn find_limit_remedy(message: &str) -> Option<&'static str> {
    let small = message.to_lowercase();
    let is_reached =
        |(text, remedy): &(&str, &str)| small.contains(text) && !message.contains(*remedy);
    let reached = LIMITS.iter().find(|limit| is_reached(limit));
    reached.map(|(_, remedy)| *remedy)
}

// By value, so that the constructors fit `map_err`.
#[expect(clippy::needless_pass_by_value)]
impl ApiError {
    fn new(kind: ErrorKind, message: impl ToString) -> Self {
        let mut message = message.to_string();
        if let Some(remedy) = find_limit_remedy(&message) {
            message = format!("{message}; {remedy}");
        }
        Self {
            kind,
            message,
            faults: Vec::new(),
        }
    }

    /// Makes an error of kind `usage`: bad usage or a bad file.
    pub fn usage(message: impl ToString) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// Makes an error of kind `failed`.
    pub fn failed(message: impl ToString) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// Makes an error of kind `refused`: admission refused the chain.
    pub fn refused(message: impl ToString) -> Self {
        Self::new(ErrorKind::Refused, message)
    }

    /// The exit status of a process that ends with this error.
    pub fn exit_status(&self) -> u8 {
        match self.kind {
            ErrorKind::Failed => 1,
            ErrorKind::Usage => 2,
            ErrorKind::Refused => 3,
        }
    }
}
