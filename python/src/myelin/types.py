"""Types of the agent's socket. `python/generate-types` writes this file from `crates/api/schema.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Optional, Union

from ._record import Record

if TYPE_CHECKING:
    from dataclasses import dataclass, field
else:
    from ._record import dataclass, field


VERSION = "0.1.0"
"""The version of the agent that these types describe."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class AgentInfo(Record):
    """The agent that answers."""
    orphans: list[str]
    """Objects that a killed agent left; `down --all` removes them."""
    pid: int
    """The agent's process number."""
    resident_kib: int
    """Resident memory of the agent, KiB."""
    run_dir: str
    """The agent's run directory."""
    version: str
    """The agent's version."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ApiError(Record):
    """An error as the agent reports it: the object, the place, the cause and the remedy in one text.
    """
    faults: list[FileFault] = field(default_factory=list)
    """The faults of the file that caused the error, each with its place; also in the text."""
    kind: ErrorKind
    """Kind of the error."""
    message: str
    """Text of the error."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class BlackBoxSharing(Record):
    """The turns of a black box on its core."""
    core: int
    """The core."""
    cost_ns: Optional[float] = None
    """Measured cost of a packet of [`Plan::frame_bytes`](super::Plan::frame_bytes) in the program,
    ns, from which the policy starts; absent if `myelin calibrate` has not measured the program.
    """
    function: str
    """The function."""
    turns: SharingPlan
    """The turns."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class BlackBoxStatus(Record):
    """The program of a black box."""
    cpu_s: float
    """CPU time of all processes of the black box and their children, including ended processes, s.
    """
    last_end: Optional[str] = None
    """Exit status of the last process, and the last lines of its output; absent if no process has
    ended.
    """
    log: str
    """File with the program's standard output and error."""
    packets_back: int
    """Packets that the program sent back to the senders."""
    packets_out: int
    """Packets that the program forwarded."""
    pid: Optional[int] = None
    """Process number; absent while the program does not run."""
    resident_kib: int
    """Resident memory of the process, KiB."""
    restarts: int
    """Number of restarts."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Bound(Record):
    """The worst-case delay of a chain whose traffic conforms to its profile, from the arrival at the
    ingress port to the departure from the egress port.
    """
    bound_ns: int
    """The bound by network calculus, ns."""
    hops: list[HopShare]
    """Share of each hop. The shares and `latency_ns` add up to the bound."""
    latency_ns: int
    """The part of the bound that is latency, ns: stalls, wake-ups, slices, and hold times of
    functions and shaper.
    """
    paper_sum_ns: Optional[int] = None
    """The sum of Rathore et al. 2022, equation (4), over the hops, ns; at least the bound. `None` if
    the equation does not apply: several processes share a core without slices, packets return to
    a core, or a worker has several ports.
    """
    servers: list[ServerShare]
    """The servers, in the order of the path."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Bucket(Record):
    """Rate and burst of one quantity: packets or bits."""
    burst: int
    """The burst."""
    rate: int
    """The rate per second."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class CalibrateRequest(Record):
    """Request to measure this machine's costs."""
    black_boxes: Optional[ChainSource] = None
    """Measure only the black boxes of this chain file, and keep the other costs of `file`."""
    file: str
    """File for the result."""
    quick: bool
    """Measure fewer rounds: seconds instead of half a minute."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ChainReport(Record):
    """All results of a chain's run, as its report shows them."""
    chain: str
    """The chain's name."""
    claims: list[Claim]
    """The contract's terms with their measured figures; empty for a chain without an SLA."""
    cpu: Optional[CpuUse] = None
    """CPU use during the run."""
    environment: Environment
    """The machine."""
    file_name: str
    """Name of the chain file."""
    file_text: str
    """Its text."""
    floods: list[Flood]
    """The chains that were flooded during the run."""
    hops: list[ReportHop]
    """The chain's hops in order: front door, functions, egress."""
    latency_bound_us: Optional[float] = None
    """The SLA's bound on the one-way delay, microseconds."""
    notes: list[str]
    """Remarks for the reader, for example about missing measurements."""
    probes: list[tuple[str, ProbeResult]]
    """Probes by name, such as `inline, 256 B`."""
    round_trip_bound_us: Optional[float] = None
    """The SLA's bound on the round trip, microseconds."""
    sojourns: list[tuple[str, Distribution]]
    """In-band sojourn of all traffic by section; one, named `chain`, unless the chain has black
    boxes.
    """
    traffic: Traffic
    """Counters of the run's packets."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ChainSource(Record):
    """A chain file and the files that it names. The client reads all of them with the rights of its
    user.
    """
    files: dict[str, FileContents]
    """Contents of the files that the text names, by the path in the text."""
    name: str
    """The file's name as the user gave it, for error messages."""
    text: str
    """The YAML text."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ChainStatus(Record):
    """A running chain, as `ps` shows it."""
    account: PacketAccount = field(default_factory=lambda: PacketAccount(dropped={}, lost={}, made=0, packets_in=0, packets_out=0, policed=0, under_way=0))
    """Counts each packet of the chain once, by the place where it is or was lost."""
    best_effort: bool = False
    """Whether the chain has no guarantee, because `--force` deployed it against admission, or
    because its workers have lost a core (`lost_cores` of `sla`).
    """
    bound_ns: Optional[int] = None
    """The worst-case delay at admission, ns; absent for a chain without a bound."""
    bytes_in: int
    """Bytes classified to the chain at the front door."""
    chain: str
    """The chain's name."""
    dropped_fragments: int = 0
    """Fragments that the front door of the ingress port dropped, for all chains of the port: their
    chain is unknown, or their match drops fragments. They are not in `packets_in`.
    """
    drops: int
    """Packets that functions and shaper dropped."""
    egress: str
    """Egress interface, by its present name."""
    generation: int
    """The current generation. Counters of functions cover this generation, counters of the chain
    cover all generations.
    """
    hook: str
    """The hook at the ingress: `xdp`, `tcx`, `dpdk` or `memory`."""
    hops: list[HopStatus]
    """The functions, in chain order."""
    hosts: list[HostInfo]
    """The end hosts, if Myelin made them."""
    ingress: str
    """Ingress interface, by its present name."""
    last_packet_ms_ago: Optional[float] = None
    """Time since the last packet came in, ms; absent before the first packet."""
    mapping: str
    """The chain's mapping of functions to processes."""
    missed: int = 0
    """Packets of a replay that came faster than the front door takes them. The port dropped them as
    a device drops packets whose queue is full. They are not in `packets_in`.
    """
    more_workers: list[WorkerStatus] = field(default_factory=list)
    """The workers of the other user functions, if each has its own."""
    owner: str
    """The chain's owner."""
    packets_in: int
    """Packets classified to the chain at the front door."""
    packets_out: int
    """Packets that left, except packets that the egress interface lost."""
    part: Optional[PartStatus] = None
    """The wires of a part of a chain; absent for a whole chain."""
    plan: Plan
    """The deployed plan."""
    policed: int = 0
    """Packets above the profile, which the policer dropped."""
    policed_bytes: int = 0
    """Bytes of the policed packets, as the policer counts bytes."""
    port_faults: list[str] = field(default_factory=list)
    """Changes of the chain's interfaces since its deployment that affect the chain, each with its
    remedy.
    """
    rings: list[RingStatus] = field(default_factory=list)
    """In mapping `pipeline`: the rings between the chain's processes."""
    shaper: Optional[ShaperStatus] = None
    """The shaper at the egress; absent without a shaper."""
    sla: Optional[SlaStatus] = None
    """The contract and the measured figures; absent in the chain's first second."""
    sojourn: Optional[SojournStatus] = None
    """The in-band sojourn. Absent if black boxes divide the chain into sections, because the time
    inside black boxes is not measured.
    """
    sojourn_sections: list[SojournStatus] = field(default_factory=list)
    """The sojourn of each section of a chain with black boxes: from the front door to the first
    black box, from each black box to the next, from the last to the egress.
    """
    spi: int
    """The chain's service path identifier."""
    state: ChainState
    """Whether the chain processes packets."""
    up_s: float
    """Time since the chain came up, s."""
    worker: Optional[WorkerStatus] = None
    """The worker of the user functions; the first worker if each function has its own."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ChainUp(Record):
    """A chain after `up`."""
    chain: str
    """The chain's name."""
    change: Change
    """The effect of `up`."""
    egress: str
    """Interface where packets leave."""
    exchange_ms: Optional[float] = None
    """Duration of a live change, ms: from the first packet that could take the new generation to the
    last packet of the old generation.
    """
    generation: int
    """The chain's generation: 0 for a new chain, one more with each change."""
    hosts: list[HostInfo]
    """The end hosts, if Myelin made them."""
    ingress: str
    """Interface where packets enter."""
    owner: str
    """The chain's owner (`metadata.namespace`)."""
    plan: Plan
    """The deployed plan."""
    previous_packets_out: Optional[int] = None
    """After a live change: the packets that left the previous generation, to the next node if it was
    a part of a chain.
    """
    rendering_ms: float
    """Time from the request until the chain is active, ms (the rendering delay of SFC-OStack); 0 for
    an unchanged chain.
    """
    spi: int
    """The chain's service path identifier on this node."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Claim(Record):
    """A measured figure and its bound."""
    bound: Any
    """Its bound, such as `"<= 1.12"`; null if the figure is shown and not judged."""
    holds: Optional[bool] = None
    """Whether the claim holds; null if it is undecided."""
    id: str
    """Name of the claim within its experiment."""
    measured: Any
    """The figure measured here."""
    paper: Any
    """The published figure, or null."""
    source: Optional[str] = None
    """Source of the published figure: paper, figure or table, section."""
    undecided: Optional[str] = None
    """Why the claim is undecided."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ContainerImageDirectory(Record):
    """The files of a directory, by its absolute path."""
    directory: str


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ContainerImageStored(Record):
    """An image that `myelin image import` stored."""
    stored: str


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ContainerLimits(Record):
    """Limits of a container. `None`: only the limits of the host hold."""
    cpu_millicores: Optional[int] = None
    """Processor time, thousandths of a core."""
    memory_bytes: Optional[int] = None
    """Memory, bytes."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ContainerLimitsRequest(Record):
    """Request to change limits of a running container."""
    host: str
    """The host, or `TOPOLOGY/HOST`."""
    limits: ContainerLimits
    """The new limits. `None`: the limit stays."""
    name: str
    """The container's name in the host."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ContainerLog(Record):
    """The output of a container."""
    text: str
    """The end of output and errors, at most 1 MiB. Bytes that are not UTF-8 are replaced."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ContainerName(Record):
    """The name of a container."""
    host: str
    """The host, or `TOPOLOGY/HOST`."""
    name: str
    """The container's name in the host."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ContainerRequest(Record):
    """Request to start a container in a host. It lies in the host's network namespace and below the
    host's control group, so all containers of a host share its limits.
    """
    command: list[str] = field(default_factory=list)
    """The program and its arguments. Empty: those of the image."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables besides those of the image."""
    host: str
    """The host, or `TOPOLOGY/HOST`."""
    image: ContainerImage = 'machine'
    """The files of the container."""
    limits: ContainerLimits = field(default_factory=lambda: ContainerLimits(cpu_millicores=None, memory_bytes=None))
    """Limits of the container's own."""
    name: str
    """The container's name, unique in the host."""
    watch_ms: int = 0
    """How long the agent watches the program after its start, ms; at most a minute. The answer comes
    with the end of the program, or after this time.
    """


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ContainerStatus(Record):
    """A container, and the resources that it has used."""
    command: list[str]
    """The program and its arguments."""
    cpu_s: float
    """Processor time, s."""
    end: Optional[str] = None
    """The end of the program in words; `None`: it runs."""
    exit_code: Optional[int] = None
    """The exit status of the program, if it has ended by itself and the kernel tells the status
    (Linux 6.15 or newer).
    """
    has_failed: bool = False
    """Whether a signal ended the program, or its exit status is not 0."""
    host: str
    """The host."""
    id: str
    """The container's name in `runc list`."""
    image: ContainerImage
    """The files."""
    last_lines: list[str] = field(default_factory=list)
    """The last lines of the output, if the program has ended."""
    limits: ContainerLimits
    """The limits of the container's own."""
    memory_bytes: int
    """Memory in use, bytes."""
    name: str
    """The container's name in the host."""
    oom_kills: int
    """Processes that the kernel killed at the memory limit."""
    pid: Optional[int] = None
    """The process number of the program on the machine; `None`: it has ended."""
    start_ms: float
    """Time that the start took, ms."""
    throttled_periods: int
    """Periods in which the container used up its processor time."""
    throttled_s: float
    """Time during which the container waited for processor time, s."""
    topology: str
    """The topology."""
    up_s: float
    """Time since the start, s."""
    user: Optional[int] = None
    """The user whom the container's root is outside of it; `None`: root."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ControllerStatus(Record):
    """The controller of an OpenFlow switch."""
    address: str
    """Its address, as in the file."""
    state: ControllerState
    """Whether the switch has reached it."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class CoreStatus(Record):
    """A core whose workers hand it over to each other (`worker.sharing`). The counters begin anew
    when a worker or a ring comes or goes.
    """
    core: int
    """The core."""
    decide_us: float
    """Time of all decisions, us."""
    decisions: int
    """Decisions of the policy."""
    mechanism: Optional[str] = None
    """How a preemptor gives turns: `flip`, `preempt`, `weights` or `freezer`; null if the workers
    hand over.
    """
    policy: str
    """The policy that chooses the next worker."""
    switch_us: Optional[float] = None
    """Time of a hand-over, us: its 0.9 quantile, learned; null before the first."""
    switches: int
    """Hand-overs from one task to another."""
    takeovers: int
    """Times that a task took the core from one that showed no sign of life."""
    tasks: list[TaskStatus]
    """The workers and pipeline stages, in the order of the turns."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class CoreUse(Record):
    """One core's use."""
    core: int
    """The core's number."""
    idle_share: float
    """Idle."""
    irq_share: float
    """In hardware interrupts."""
    softirq_share: float
    """In soft interrupts: most packet processing. On veth links it runs on the sender's core and is
    charged to no program.
    """
    steal_share: float
    """Ready to run while the hypervisor ran something else. A high share makes the run's other
    figures meaningless.
    """
    system_share: float
    """In the kernel on behalf of programs."""
    user_share: float
    """In programs."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Cores(Record):
    """The cores that the ends' threads are bound to."""
    client: int
    """The client's core, and in inline mode the only one."""
    server: int
    """The server's core. The same as the client's only in blocking mode."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Cost(Record):
    """A cost with a part for each packet and a part for each byte."""
    per_byte_ns: float
    """For each byte of the frame, ns."""
    per_packet_ns: float
    """For each packet, ns."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Costs(Record):
    """All costs for the planner."""
    black_boxes: dict[str, Cost] = field(default_factory=dict)
    """Black boxes by their command line: the time of a packet in a batch, from the ring at `ingress`
    to its sending, alone on a core. Only the turns of black boxes use it.
    """
    functions: dict[str, FunctionCosts]
    """Functions by the name of their kind. A missing kind or space has the catalogue's cost."""
    in_burst: Optional[InBurst] = None
    """Cost of a packet in a burst. Without this measurement, the cost of a single packet applies.
    """
    origin: Origin
    """Origin of the figures."""
    slice_from: str = ''
    """Source of `slice_ns`."""
    slice_ns: int = 4000000
    """Longest time that a process keeps a core while another process waits for it, ns: the
    scheduler's slice, or its tick if that is longer.
    """
    stalls: dict[str, Any] = field(default_factory=dict)
    """The stall of each measured core. Other cores have the worst of these stalls."""
    steps: StepCosts
    """The steps between functions."""
    version: int
    """Version of the JSON form: [`VERSION`]."""
    worst_case: float = 1.5
    """Worst-case cost as a multiple of the mean. 99 of 100 single packets, and the slowest of 8
    bursts, finish within one stall plus this multiple of the median.
    """


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Counts(Record):
    """Packets by outcome."""
    behind_schedule: int
    """Packets sent more than one interval after their time."""
    corrupted: int
    """Answers with an intact header and a wrong pattern, or cut short. They count as received."""
    duplicates: int
    """Further answers to an answered packet."""
    foreign: int
    """Datagrams of other programs or other runs that arrived at an end."""
    late: int
    """Lost packets whose answer came after the timeout."""
    lost: int
    """Packets not answered within the timeout."""
    received: int
    """Packets answered within the timeout."""
    reordered: int
    """Answers that came after an answer to a later packet (RFC 4737, section 3)."""
    send_errors: int
    """Sends that the system refused (a full queue, no route); these packets count as lost."""
    sent: int
    """Packets sent, answered or not."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class CpuUse(Record):
    """The results of a CPU meter."""
    duration_s: float
    """Length of the measurement, seconds."""
    idle_share: float = float()
    """Idle."""
    irq_share: float = float()
    """In hardware interrupts."""
    per_core: list[CoreUse]
    """Each core that was online at both ends."""
    processes: list[ProcessUse]
    """The requested processes."""
    softirq_share: float = float()
    """In soft interrupts: most packet processing. On veth links it runs on the sender's core and is
    charged to no program.
    """
    steal_share: float = float()
    """Ready to run while the hypervisor ran something else. A high share makes the run's other
    figures meaningless.
    """
    system_share: float = float()
    """In the kernel on behalf of programs."""
    user_share: float = float()
    """In programs."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class DelayLineStatus(Record):
    """The delay line of a topology: the worker that delays and loses packets."""
    foreign: int
    """Frames without the number of an existing direction."""
    has_failed: bool
    """Whether the worker died too often. Its links then drop all packets."""
    lateness: SojournStatus
    """The time from a packet's departure by the model until the worker passed it to the kernel."""
    most_waiting: int
    """Most packets that waited at the same time."""
    overflowed: int
    """Packets of any link that found the ring of the worker full."""
    pid: int
    """Number of the worker's process; 0 after a failed restart."""
    restarts: int
    """Number of restarts."""
    waiting: int
    """Packets that wait now."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class DirectionStatus(Record):
    """Counters of one direction of a link with delay, rate or loss. `arrived` is the sum of the
    other packet counters.
    """
    arrived: int
    """Packets that arrived."""
    arrived_bytes: int
    """Bytes of these packets."""
    died: int
    """Packets that were waiting when the worker died."""
    left: int
    """Packets that left."""
    left_bytes: int
    """Bytes of these packets."""
    line_drops: int
    """Packets that the delay line dropped: its packet memory or transmit ring was full."""
    lost: int
    """Packets that the link lost."""
    queue_drops: int
    """Packets that found the queue full."""
    waiting: int
    """Packets that wait now."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Distribution(Record):
    """A histogram of delays in nanoseconds."""
    buckets: list[tuple[int, int]]
    """A delay of the bucket, nanoseconds, and the number of delays in it."""
    max_ns: int
    min_ns: int
    moments: Moments
    repeat_means_ns: list[float]


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class DownReply(Record):
    """The chains, topologies and objects that `down` removed."""
    recovered: list[str]
    """Removed objects of a killed agent: kind and name."""
    removed: list[str]
    """Removed chains and topologies."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Endpoint(Record):
    """An address with a port."""
    address: str
    """IP address."""
    port: int
    """Port, or the identifier of an ICMP echo."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Environment(Record):
    """The machine and the settings of a measurement."""
    load_1min: Optional[float] = None
    """Load average over the last minute at that time."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings that affect the figures: probe mode, idle mode, hook, XDP mode."""
    taken_at_unix_s: int
    """Time of the measurement, seconds since 1970."""
    version: str
    """Version of Myelin."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class EventProgressBody(Record):
    """EventProgressBody"""
    done: int
    """Steps done."""
    stage: str
    """Current stage."""
    total: int
    """Steps in all."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class EventProgress(Record):
    """Progress of the request."""
    progress: EventProgressBody


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class EventUp(Record):
    """A chain came up (`run`)."""
    up: ChainUp


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class EventReport(Record):
    """The measurement of one chain."""
    report: ReportReply


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class EventCosts(Record):
    """Calibrated costs."""
    costs: Costs


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class EventError(Record):
    """The error that ended the stream."""
    error: ApiError


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ExecEventStartedBody(Record):
    """ExecEventStartedBody"""
    pid: int
    """Its process number on the machine."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ExecEventStarted(Record):
    """The program runs."""
    started: ExecEventStartedBody


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ExecEventEndedBody(Record):
    """ExecEventEndedBody"""
    code: Optional[int] = None
    """The exit status; `None`: a signal ended the program. In a container, 128 plus the signal."""
    signal: Optional[int] = None
    """The number of the signal that ended the program."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ExecEventEnded(Record):
    """The program has ended. This is the last line."""
    ended: ExecEventEndedBody


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ExecEventError(Record):
    """The program did not start. This is the last line."""
    error: ApiError


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ExecRequest(Record):
    """Request to run a program on a host."""
    command: list[str]
    """The program and its arguments. The agent looks for the program in the `PATH` of `env`, in a
    container in that of the container.
    """
    container: Optional[str] = None
    """A container in the host; `None`: the program runs in the host itself."""
    directory: str = '/'
    """The working directory. Empty in a container: that of the container."""
    env: dict[str, str] = field(default_factory=dict)
    """All environment variables of the program; in a container besides those of the container."""
    host: str
    """`client`, `server`, the host of a topology, or one of them after `CHAIN/` or `TOPOLOGY/`."""
    is_terminal: bool = False
    """Whether the input is a terminal, which becomes the program's controlling terminal."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ExecSignal(Record):
    """A line from the client: a signal for the program's process group."""
    signal: int
    """The signal's number."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class FileContentsBase64(Record):
    """Other bytes."""
    base64: str
    """The bytes as base64."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class FileFault(Record):
    """A fault of a chain file."""
    column: int
    """Column, from 1, in characters."""
    file: str
    """The file's name as the user gave it."""
    key: str
    """The path of the key, for example `spec.sla.latency`; may be empty."""
    line: int
    """Line, from 1."""
    message: str
    """The value found."""
    object: str
    """The object with the fault; empty if the text is not YAML."""
    remedy: str
    """What to write instead."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Flood(Record):
    """A chain that got more traffic than its rate while another chain was measured."""
    agreed_pps: float
    """The rate of its profile, packets of this length a second."""
    chain: str
    """The chain's name."""
    drops: int
    """Packets that the chain's functions and its shaper dropped."""
    duration_s: float
    """Duration, s."""
    packets_in: int
    """Packets that the chain's front door saw."""
    passed: int
    """Packets that left at the chain's egress."""
    passed_pps: float
    """Passed rate, packets a second."""
    payload_bytes: int
    """UDP payload of its packets, bytes."""
    policed: int
    """Packets that the policer dropped."""
    profile_share: float
    """Passed rate as a share of the agreed one; a little above 1 if the burst passed too."""
    sent: int
    """Packets that its client host sent."""
    sent_pps: float
    """Sent rate, packets a second."""
    times: float
    """Intended multiple of its rate."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class FloodRequest(Record):
    """A chain to flood."""
    chain: str
    """The chain's name."""
    times: float
    """Multiple of the rate in the chain's profile; above 0."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class FlowStatus(Record):
    """One flow, or one mapping of a `nat`. Fields that the function does not keep are null. Byte
    counts include the Ethernet header.
    """
    age_ms: Optional[float] = None
    """Time since the first packet, ms."""
    backend: Optional[str] = None
    """The backend to which `load-balancer` sends the packets."""
    bytes: Optional[int] = None
    """Bytes in the direction of the first packet."""
    destination: Optional[str] = None
    """Destination address of the first packet; null for a mapping, which applies to all
    destinations.
    """
    destination_port: Optional[int] = None
    """Destination port; null as `source_port`, and for a mapping."""
    expires_in_ms: Optional[float] = None
    """Time until the flow expires unless a packet renews it, ms."""
    flow: str
    """The flow as text, in the direction of its first packet: `udp 10.0.0.1:5000 > 10.0.0.2:9000`.
    For a mapping, the protocol and the inside endpoint: `udp 10.0.0.1:5000`.
    """
    last_packet_ms_ago: Optional[float] = None
    """Time since the last packet, ms."""
    packets: Optional[int] = None
    """Packets in the direction of the first packet."""
    protocol: int
    """IP protocol number."""
    reply_bytes: Optional[int] = None
    """Bytes in the other direction, from `flow-tracker`."""
    reply_packets: Optional[int] = None
    """Packets in the other direction, from `flow-tracker`."""
    source: str
    """Source address of the first packet; for a mapping, the inside address."""
    source_port: Optional[int] = None
    """Source port; null for fragments and other protocols than UDP and TCP. For a mapping of an ICMP
    echo, the identifier.
    """
    state: Optional[FlowState] = None
    """State of the flow, from `flow-tracker`."""
    translated: Optional[Endpoint] = None
    """The source that `nat` gives the packets."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class FunctionCosts(Record):
    """The cost of a function kind in each space; `None` without a measurement."""
    kernel: Optional[Cost] = None
    """In the kernel."""
    user: Optional[Cost] = None
    """In user space."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class FunctionFlows(Record):
    """The flow table of a function."""
    begun: Optional[int] = None
    """Flows that began; null for `nat`, which does not count flows."""
    chain: str
    """The chain's name."""
    evicted: Optional[int] = None
    """Flows that the full table evicted for new flows; null for `nat`."""
    flows: list[FlowStatus]
    """The flows in the table, sorted by bytes, the largest first. For `nat`: the mappings."""
    function: str
    """The function's name in the chain."""
    kind: str
    """The function's kind."""
    outside: Optional[int] = None
    """Packets that belong to no flow in the table; null for `nat`."""
    space: str
    """`kernel` or `user`."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Hop(Record):
    """A function and its place."""
    class_: Class
    """CALVIN's class of the kind."""
    cost_ns: Optional[float] = None
    """Cost of the function alone, ns; absent for a black box. No prediction includes the cost of a
    black box.
    """
    kind: str
    """The name of the function's kind."""
    name: str
    """The function's name."""
    position: int
    """Index in the chain, from 0."""
    process: Optional[int] = None
    """Index of the worker process in the chain; absent in the kernel and for a black box."""
    reach: Step
    """The step by which a packet reaches the function."""
    space: Space
    """Where the function runs."""
    why: str
    """The reason for the space."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class HopShare(Record):
    """A hop's share of the bound."""
    cost_ns: int
    """Worst-case cost of a packet at the hop, ns."""
    name: str
    """The function, or `front door`, `egress`, `egress link`."""
    paper_ns: Optional[int] = None
    """The hop's share of the paper's sum without latencies, ns."""
    share_ns: int
    """The hop's share of the bound, ns."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class HopStatus(Record):
    """One hop of a running chain."""
    black_box: Optional[BlackBoxStatus] = None
    """The program of a black box (`kind: external`). The `drops` of a black box are packets that
    entered and have not left, so they include packets in transit.
    """
    bytes_in: Optional[int] = None
    """Bytes received. `None` in user space, which only counts packets."""
    cost_ns: Optional[float] = None
    """Mean processing time of the sampled packets, ns; absent until the first sample."""
    counters: dict[str, int] = field(default_factory=dict)
    """Counters that only this kind of function has, by name. The kind's reference page lists them.
    """
    drops: int
    """Packets dropped. For a black box: all packets that entered and did not leave, including
    `held`.
    """
    emitted: int
    """Packets emitted in addition to the received packets."""
    held: int
    """Packets inside a black box, which may still leave."""
    kind: str
    """The function's kind."""
    name: str
    """The function's name."""
    packets_in: int
    """Packets received."""
    position: int
    """Position in the chain."""
    sampled_ns: int
    """Sum of the processing times of the timed packets, ns."""
    samples: int
    """Packets whose processing was timed."""
    sandbox: Optional[SandboxStatus] = None
    """The function's container and limits; absent without any."""
    space: str
    """`kernel` or `user`."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class HostInfo(Record):
    """One emulated end host."""
    address: str
    """The host's IP address."""
    interface: str
    """The host's interface inside the namespace."""
    link: str
    """The interface at the agent's end of the host's link."""
    netns: str
    """The host's network namespace, as in `ip netns`."""
    role: str
    """`client` or `server`."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class HostStatus(Record):
    """An emulated host: an end host of a chain, or a host or node of a topology."""
    host: str
    """The host's name in the object."""
    netns: str
    """The host's network namespace, as in `ip netns`."""
    object: str
    """The chain or topology."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ImageRequest(Record):
    """Request to store the image of an OCI archive. Only users with all rights may send it."""
    archive: str
    """The absolute path of the archive."""
    name: str
    """The new name."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ImageStatus(Record):
    """A stored image."""
    bytes: int
    """Bytes of all files."""
    command: list[str]
    """The program and its arguments."""
    env: list[str]
    """Environment variables, `NAME=VALUE`."""
    files: int
    """Number of files, directories and links of all layers."""
    layers: int
    """Number of layers in the archive."""
    name: str
    """The image's name."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ImpairmentChange(Record):
    """A change of delay, rate or loss. A field without a value stays as it is."""
    delay_ns: Optional[int] = None
    """Propagation delay, ns."""
    jitter_ns: Optional[int] = None
    """Largest deviation from the delay, ns."""
    loss_burst: Optional[int] = None
    """Mean number of packets that are lost in a row."""
    loss_ppm: Optional[int] = None
    """The share of lost packets, millionths."""
    queue_packets: Optional[int] = None
    """Longest queue before the rate, packets; 0: chosen from the rate."""
    rate_bps: Optional[int] = None
    """Rate, bits a second; 0: not limited."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class InBurst(Record):
    """The cost of a packet in a burst without functions and their calls. A single packet costs more,
    because [`StepCosts::enter_user`] and [`StepCosts::user_egress`] include a notification and a
    system call for this packet alone.
    """
    kernel: Cost
    """A kernel chain: from the ring of the port's link to the redirect, with receive work, front
    door, one function and egress. Round trips do not show this cost, because a link without a
    chain has receive work too.
    """
    kernel_function: Cost = field(default_factory=lambda: Cost(per_byte_ns=0.0, per_packet_ns=0.0))
    """Extra cost of a kernel function when packets of several chains with other functions alternate,
    because code and state of the function leave the caches near the core.
    """
    port: Cost
    """A port's receive work with the front door, up to the ring of the worker's socket."""
    user_function: Cost = field(default_factory=lambda: Cost(per_byte_ns=0.0, per_packet_ns=0.0))
    """Extra cost of a function in a worker when packets of several chains alternate."""
    worker: Cost
    """The worker's cost from the socket's ring to the egress port."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Lease(Record):
    """The first and only line of `POST /v2/leases`. The lease ends when the connection ends."""
    lease: int
    """The number that `up` takes as `lease`."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Limit(Record):
    """Rate and burst of packets or of bits, as plain numbers for messages between processes."""
    burst: int
    """Packets or bits at once."""
    rate: int
    """Packets or bits a second."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class LinkChangeMove(Record):
    """Move the end at a switch to this switch."""
    move: str


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class LinkChangeImpair(Record):
    """Change delay, rate or loss of one direction or of both."""
    impair: ImpairmentChange


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class LinkImpairments(Record):
    """Delay, rate and loss of a direction of a link."""
    delay_ns: int
    """Propagation delay, ns."""
    jitter_ns: int
    """Largest deviation from the delay, ns."""
    loss_burst: int
    """Mean number of packets that are lost in a row; 1: packets are lost independently."""
    loss_ppm: int
    """The share of lost packets, millionths."""
    queue_packets: Optional[int] = None
    """Longest queue before a limited rate, packets; `None`: chosen from the rate."""
    rate_bps: Optional[int] = None
    """Rate, bits a second; `None`: not limited."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class LinkRequest(Record):
    """Request to change a link under traffic."""
    change: LinkChange
    """The change."""
    from_: Optional[str] = None
    """Of a change of delay, rate or loss: the end that sends the packets whose direction changes;
    `None`: both directions.
    """
    link: str
    """The link's name, or its ends: `A-B`."""
    topology: Optional[str] = None
    """The topology; `None`: the only one with such a link."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Losses(Record):
    """Packets lost behind the policer, by place."""
    door: int
    """Packets lost at the front door, because no program and no worker could take them."""
    function: int
    """Packets lost in functions: drops less created packets."""
    link: int
    """Packets that interfaces did not send."""
    ring: int
    """Packets lost in rings of a worker's sockets, and in rings between the processes of a pipeline.
    """
    shaper: int
    """Packets that the shaper dropped."""
    unseen: int
    """Packets missing for a second, which no counter shows."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Moments(Record):
    """Count, mean and squared deviations of a stream of samples, without the samples (Welford;
    merged after Chan et al. 1979).
    """
    count: int
    mean: float
    squares: float


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class NamedFile(Record):
    """A file that a text names."""
    is_secret: bool
    """Whether the file holds a secret. The client then refuses a file that other users can read."""
    path: str
    """The path in the text. A relative path starts at the directory of the text's file."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class NodeAgentStatus(Record):
    """The agent of a topology's node."""
    fault: Optional[str] = None
    """Why the agent was last started anew, or why it is not."""
    pid: Optional[int] = None
    """The agent's process number; absent if the agent has ended."""
    restarts: int
    """How often the agent was started anew."""
    run_dir: str
    """The agent's run directory."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class NodeEvent(Record):
    """An event of a node of a topology."""
    chain: Optional[str] = None
    """The chain over nodes that was brought up again."""
    kind: NodeEventKind
    """The kind of the event."""
    node: str
    """The node."""
    serial: int
    """Serial number over all nodes of the agent's topologies."""
    text: str
    """The event in words."""
    time: str
    """The time, RFC 3339."""
    topology: str
    """The topology."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class OriginKind(Record):
    """Built in: [`StepCosts::default`] and the catalogue."""
    kind: Literal["default"]


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class OriginDate(Record):
    """Measured by `myelin calibrate`."""
    date: str
    """Time of the measurement, RFC 3339."""
    kind: Literal["measured"]
    machine: str
    """The machine: processor, cores, kernel."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class PacketAccount(Record):
    """Counts each packet of a chain once: `packets_in + made = packets_out + policed + dropped +
    lost + under_way`.
    """
    dropped: dict[str, int]
    """Packets that functions and shaper dropped, by the function's name or `shaper`."""
    lost: dict[str, int]
    """Packets lost elsewhere, by place: `door`, `ring`, `link`, `unseen` (as in [`Losses`])."""
    made: int
    """Packets that functions made, for example repair packets of a code."""
    packets_in: int
    """Packets classified to the chain at the front door."""
    packets_out: int
    """Packets that left, except the packets that the egress interface lost."""
    policed: int
    """Packets that the policer dropped, above the profile."""
    under_way: int
    """Packets in transit, or lost in the last second without a counter."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class PartPlan(Record):
    """The place of a part in its whole chain, and the packets that pass its wires."""
    first: int
    """Position of the part's first function in the whole chain."""
    from_mtu: Optional[int] = None
    """Longest IP packet in a frame of the previous node, bytes; absent in the first part."""
    length: int
    """Number of functions of the whole chain."""
    path: int
    """Service path identifier of the whole chain."""
    to_mtu: Optional[int] = None
    """Longest IP packet in a frame to the next node, bytes; absent in the last part."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class PartStatus(Record):
    """The wires of a part to the nodes of the previous and the next part. Counts since the part came
    up.
    """
    expired: int
    """Frames with NSH at the end of their time to live."""
    foreign: int
    """Frames with NSH that do not come from the part's neighbour."""
    malformed: int
    """Frames with NSH whose headers no node writes so. These and the next counts are of the part's
    interfaces, for all parts there. The frames are not in `packets_in`.
    """
    received: Optional[int] = None
    """Packets that arrived from the previous node; absent in the first part."""
    sent: Optional[int] = None
    """Packets that left to the next node; absent in the last part."""
    stamped: int
    """Of the received packets: those with a stamp of this machine's clock. Their sojourn begins
    where they entered the whole chain, that of all others where they entered this part.
    """
    too_long: int
    """Packets that are, with the headers between nodes, too long for the interface to the next node.
    The account counts them as lost at the egress, like the next ones.
    """
    unknown: int
    """Frames with NSH of a path, or with an index, that no part here has."""
    unresolved: int
    """Packets for a node whose Ethernet address is unknown."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Plan(Record):
    """The plan of one chain. Costs are means of one packet of [`Plan::frame_bytes`] bytes in one
    direction.
    """
    admitted: bool
    """Whether admission accepts the chain under this contract."""
    best_effort: bool = False
    """Whether admission refused the chain and the user deployed it with `--force`. The chain then
    has no guarantee.
    """
    black_box_sharing: list[BlackBoxSharing] = field(default_factory=list)
    """How black boxes share their cores, for each one that takes turns."""
    bound: Optional[Bound] = None
    """The worst case of policed traffic."""
    chain: str
    """The chain's name."""
    classify: Classify
    """The rule that chose the spaces."""
    costs_origin: Origin
    """Origin of the costs."""
    crossings: int
    """Crossings of a packet between kernel and user space."""
    crossings_cost_ns: float
    """Cost of the crossings, ns. The costs of hops and egress include this cost."""
    door: Step
    """The front door, with the cost of the hook."""
    egress: Step
    """The step from the last function to the egress port."""
    entry_link: bool = False
    """Whether packets reach the front door over an entry link, which makes super-packets packets of
    wire size and completes checksums.
    """
    frame_bytes: int
    """Frame length for all costs, bytes."""
    hook: Hook
    """The hook that takes the chain's packets: `xdp` or `tcx`."""
    hops: list[Hop]
    """The functions, in order."""
    mapping: Mapping
    """How the functions share processes."""
    mapping_why: str
    """The reason for this mapping."""
    no_bound: Optional[str] = None
    """The reason why there is no worst-case bound."""
    on_failure: OnFailure
    """The action on packets that the functions cannot process."""
    own_processes: int = 0
    """User functions with their own process besides the worker, in mapping `pipeline`."""
    owner: str
    """The chain's owner."""
    part: Optional[PartPlan] = None
    """The part of a chain over several nodes; absent for a whole chain."""
    policing: Optional[Profile] = None
    """The profile that the policer at the front door enforces; absent without a policer."""
    ports: Optional[Ports] = None
    """The interfaces or devices that the chain file names; absent if Myelin makes end hosts."""
    predicted_ns: float
    """Predicted cost of door, hops and egress, ns; without the time in black boxes."""
    refusal: Optional[str] = None
    """The reason why admission refuses the chain."""
    remedies: list[str] = field(default_factory=list)
    """Changes of the chain file, of which each alone would make admission accept the chain."""
    rings: int = 0
    """Rings between processes that a packet passes, in mapping `pipeline`."""
    segments: list[Segment]
    """Groups of adjacent functions in the same space. In mapping `distributed`, each function has
    its own segment.
    """
    shaper: Optional[ShaperPlan] = None
    """The chain's shaper; absent without one."""
    sharing: Optional[SharingPlan] = None
    """How the worker shares its core; absent without a worker, or if the operating system's
    scheduler shares it.
    """
    sla: Sla
    """The contract."""
    super_packets: bool = False
    """Whether super-packets stay whole on the entry link, for a worker with packet sockets."""
    warnings: list[str]
    """Warnings for the user."""
    wire_size: bool = False
    """Whether the chain needs packets of wire size with whole checksums."""
    worker: Optional[WorkerPlan] = None
    """The worker of the user functions; absent without user functions."""
    worst_case_note: str
    """Delays that the prediction does not include."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Ports(Record):
    """The two different interfaces or devices that a chain connects. Of ports in memory, the names
    describe them.
    """
    driver: PortDriver
    """The driver of both ports."""
    egress: str
    """The port where packets leave."""
    ingress: str
    """The port where packets arrive."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ProbeOptions(Record):
    """Options of a probe. The defaults are those of `myelin probe`."""
    count: int = 500
    """Packets in a repeat."""
    interval_us: int = 1000
    """Time between packets, us; 0 sends back to back."""
    modes: list[str] = field(default_factory=lambda: ['inline', 'blocking'])
    """`inline`, `spin` or `blocking`; several modes run one after the other."""
    payloads: list[int] = field(default_factory=lambda: [256, 1400])
    """UDP payloads, bytes."""
    repeats: int = 5
    """Repeats."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ProbeRequest(Record):
    """Request to probe a running chain."""
    chain: str
    """The chain's name."""
    options: ProbeOptions
    """Options of the probe."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ProbeResult(Record):
    """The result of a probe."""
    cores: Optional[Cores] = None
    """The cores that the ends' threads were bound to."""
    count: int
    """Packets in a repeat."""
    counts: Counts
    """Packets by outcome."""
    duration_s: float
    """Duration of all repeats, seconds."""
    forward: Optional[Summary] = None
    """One-way delays from the client's send to the server's receive."""
    interval_us: float
    """Time between sends, microseconds; 0 is back to back."""
    loss_ratio: float
    """Share (0 to 1) of the sent packets that were lost; 0 when none was sent."""
    matching: Matching
    """How answers were matched with packets."""
    mode: Mode
    """How both ends wait for packets."""
    payload_bytes: int
    """UDP payload, bytes."""
    repeats: int
    """Requested repeats."""
    reply: Optional[Summary] = None
    """One-way delays from the server's send to the client's receive."""
    rtt: Optional[Summary] = None
    """Round trips. `None` if no packet was answered."""
    rtt_distribution: Distribution
    """Distribution of the round trips, for histograms."""
    samples: Optional[Samples] = None
    """Every packet's times, if requested."""
    stopped: Optional[Stop] = None
    """Reason for an early end."""
    timeline: list[TimelinePoint]
    """Round trips over time."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ProcessUse(Record):
    """One process's use, all its threads together."""
    cores: Optional[float] = None
    """The same in cores: 1 is one core all the time."""
    cpu_s: Optional[float] = None
    """CPU time, seconds; `None` if it ended during the measurement."""
    name: str
    """The caller's name for it."""
    pid: int
    """Process number."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Profile(Record):
    """The profile of a chain: in packets, in bits, or in both. Without a bucket, all traffic
    conforms.
    """
    bits: Optional[Bucket] = None
    """The bucket of bits."""
    packets: Optional[Bucket] = None
    """The bucket of packets."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ReportHop(Record):
    """One hop of a packet's path."""
    drops: int
    """Packets that it dropped."""
    kind: str
    """The function's kind; empty for a hop that is no function."""
    measured_ns: Optional[float] = None
    """Measured cost of a packet, nanoseconds."""
    name: str
    """The function's name, or `front door`, `egress`, or a crossing between kernel and user space.
    """
    packets_in: int
    """Packets that entered it."""
    packets_out: int
    """Packets that it forwarded."""
    predicted_ns: Optional[float] = None
    """Predicted cost of a packet, nanoseconds."""
    space: str
    """Its space: `kernel` or `user`."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ReportReply(Record):
    """The measurement of one chain."""
    envelope: Any
    """For programs: `{"experiment", "environment", "rows", "claims"}`, and further findings."""
    report: ChainReport
    """For people: the figures, with the distributions for plots."""
    status: ChainStatus
    """The chain's status at the end of the measurement. `account` covers only the measurement."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class RingStatus(Record):
    """A descriptor ring between two processes of a chain in mapping `pipeline`."""
    capacity: int
    """Capacity of the ring, descriptors."""
    dequeued: int
    """Descriptors taken from the ring since its creation."""
    enqueued: int
    """Descriptors put into the ring since its creation."""
    from_: Optional[int] = None
    """Position of the function whose process sends; absent for the first process."""
    occupancy: int
    """Descriptors in the ring now."""
    to: Optional[int] = None
    """Position of the function whose process receives; absent for the first process."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class RunRequest(Record):
    """Request to deploy, probe, report and remove chains."""
    floods: list[FloodRequest] = field(default_factory=list)
    """Chains that get more traffic than their rate while the other chains are probed."""
    force: bool = False
    """Deploy chains that admission refuses, as best effort without a guarantee."""
    options: ProbeOptions
    """Options of the probes."""
    source: ChainSource
    """The chain file."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Samples(Record):
    """Times of every answered packet, in sending order."""
    forward_ns: list[int]
    """One-way delays to the server, nanoseconds."""
    rtt_ns: list[int]
    """Round trips, nanoseconds."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SandboxStatus(Record):
    """A function's container, limits and resource use since the chain came up, including restarts.
    """
    container: Optional[str] = None
    """The container's name in `runc --root RUN_DIR/runc list`."""
    cpu_limit_cores: Optional[float] = None
    """Limit of processor time, cores."""
    cpu_s: float
    """Processor time used, s."""
    isolation: Isolation
    """`process` or `container`."""
    memory_bytes: int
    """Memory in use, bytes; includes memory shared with the agent that the function touched first.
    """
    memory_limit_bytes: Optional[int] = None
    """Limit of memory, bytes."""
    oom_kills: int
    """Processes that the kernel killed at the memory limit."""
    throttled_periods: int
    """Periods (mostly of 10 ms) in which the function used up its processor time."""
    throttled_s: float
    """Time in which the limit kept the function from the processor, s."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Segment(Record):
    """A group of adjacent functions in the same space."""
    entry: Entry
    """Where packets enter."""
    exit: Exit
    """Where packets leave."""
    first_position: int
    """Position of the segment's first function."""
    functions: list[str]
    """The names of the segment's functions."""
    space: Space
    """The space."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ServerShare(Record):
    """A server on the path."""
    capacity_pps: int
    """Packets of the chain that the server can process in a second in the worst case, with no other
    load: `g` of the paper.
    """
    delay_ns: int
    """Delay of the server in the sum over the servers, ns."""
    latency_ns: int
    """Latency of the server, ns. The bound counts this latency once."""
    name: str
    """Name of the server."""
    reserved_ppm: int
    """Reserved share of the capacity, including this chain, in millionths."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ShaperPlan(Record):
    """The shaper of a chain."""
    bits: Optional[Limit] = None
    """Limit of bits. A frame counts with its Ethernet header, without check sequence."""
    delay_ns: int
    """The longest wait of a packet, ns."""
    packets: Optional[Limit] = None
    """Limit of packets."""
    place: ShaperPlace
    """Where the shaper is."""
    queue: int
    """The most packets that wait in the queue."""
    tolerance_ns: int = 0
    """The largest lateness of a departure that later departures compensate, T ns: in any time t the
    traffic is at most that of the profile in t + T. With 0, a late departure delays all later
    ones.
    """


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class ShaperStatus(Record):
    """The profile of a chain's shaper, and the counters over all generations."""
    burst_bits: Optional[int] = None
    """Burst, bits."""
    burst_packets: Optional[int] = None
    """Burst, packets."""
    by: str
    """The shaper: `worker`, or the egress interface's queueing discipline, `fq` or `htb`."""
    delay_us: float
    """Longest time that a packet may wait, us."""
    delayed: Optional[int] = None
    """Packets that waited; absent for `htb`, which does not count them."""
    drops_full: int
    """Packets dropped because the queue was full."""
    drops_late: int
    """Packets dropped because they would have waited longer than `delay_us`."""
    drops_too_big: int
    """Packets dropped because they are larger than the burst."""
    in_sojourn: bool
    """Whether the time in the queue is part of the sojourn."""
    lost: int
    """Packets that waited in a worker when it ended."""
    mean_wait_us: Optional[float] = None
    """Mean wait of the packets that waited, us; only for `worker`."""
    most_waiting: Optional[int] = None
    """Largest number of waiting packets so far; only for `worker`."""
    queue: int
    """Capacity of the queue, packets."""
    rate_bps: Optional[int] = None
    """Rate, bits a second."""
    rate_pps: Optional[int] = None
    """Rate, packets a second."""
    waiting: int
    """Packets in the queue now."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SharingPlan(Record):
    """The turns of a chain's worker or of one of its black boxes on their core."""
    longest_turn_ns: Optional[int] = None
    """Longest turn of one of the chain's processes while others have packets, ns, at the predicted
    cost of a packet; absent if it depends on the deadlines of packets, or on the unknown cost of
    a black box.
    """
    mechanism: SharingMechanism = 'auto'
    """How the core goes from one task to the next. `auto`: the workers hand it over. If the kernel
    refuses real-time priorities, `sharing.mechanism: auto` becomes `weights` at deployment.
    """
    policy: SharingPolicy
    """The policy that chooses the next worker."""
    why: str
    """The reason for this length."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Sla(Record):
    """The service level agreement of a chain. `None` means that the contract does not state the
    value.
    """
    burst_bits: Optional[int] = None
    """Burst b of the traffic profile, bits."""
    burst_packets: Optional[int] = None
    """Burst b of the traffic profile, packets."""
    enforce: Enforce = 'auto'
    """The mechanism that enforces the profile."""
    excess_queue_ns: Optional[int] = None
    """The longest wait of traffic above the profile, ns. The policer drops what would wait longer.
    With `None`, the policer drops all traffic above the profile.
    """
    has_tcp_burst: bool = False
    """Whether the default burst suits TCP: the match takes TCP, and the contract has neither
    `latency` nor a burst.
    """
    latency_ns: Optional[int] = None
    """One-way delay from the ingress port to the departure from the egress port, ns."""
    loss_percent: Optional[float] = None
    """The largest share of lost packets, percent."""
    percentile: float
    """The percentile of the measured sojourn that `latency_ns` applies to; above 0, at most 100."""
    policing_burst_bits: Optional[int] = None
    """Burst that the policer admits, if it is larger than the profile's, bits."""
    policing_burst_packets: Optional[int] = None
    """Burst that the policer admits, if it is larger than the profile's, packets."""
    rate_bps: Optional[int] = None
    """Rate r of the traffic profile, bits a second."""
    rate_pps: Optional[int] = None
    """Rate r of the traffic profile, packets a second."""
    round_trip_ns: Optional[int] = None
    """Round-trip time that an end host sees, ns."""
    shaper_delay_ns: Optional[int] = None
    """The longest wait in the shaper, ns; [`Sla::shaper_delay_ns`] adds the default."""
    shaper_queue: Optional[int] = None
    """The longest queue of the shaper, packets; [`Sla::shaper_queue`] adds the default."""
    shaper_tolerance_ns: int = 0
    """The largest lateness of a departure that later departures compensate, ns."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SlaContract(Record):
    """A chain's contract: profile and bounds. An absent field is not part of the contract."""
    burst_bits: Optional[int] = None
    """Burst of the profile, bits."""
    burst_packets: Optional[int] = None
    """Burst of the profile, packets."""
    latency_us: Optional[float] = None
    """Bound of the sojourn at `percentile`, us."""
    loss_percent: Optional[float] = None
    """Share of conforming packets that may be lost, percent."""
    percentile: float
    """The percentile of the sojourn that is compared with `latency_us`."""
    rate_bps: Optional[int] = None
    """Rate of the profile, bits a second."""
    rate_pps: Optional[int] = None
    """Rate of the profile, packets a second."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SlaEvent(Record):
    """A violation of one or more seconds. Cause, hop and evidence are those of the worst second."""
    cause: SlaCause
    """The cause."""
    chain: str
    """The chain's name."""
    end: Optional[str] = None
    """End of the last violated second, RFC 3339; absent until three seconds in a row keep the
    contract.
    """
    evidence: list[str]
    """The figures that support the cause."""
    hop: str
    """The function where the contract was violated, or `egress`; of a chain over nodes the node, or
    the links between two; `-` if unknown.
    """
    lost: int
    """Packets lost in the violated seconds."""
    seconds: int
    """Seconds that violated the contract."""
    serial: int
    """Serial number over all chains of an agent."""
    start: str
    """Start of the first violated second, RFC 3339."""
    terms: list[SlaTerm]
    """The violated terms."""
    worst_latency_us: Optional[float] = None
    """The worst second's sojourn at the agreed percentile, us."""
    worst_loss_percent: Optional[float] = None
    """The worst second's loss, percent."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SlaSecond(Record):
    """One second of a chain."""
    bytes_in: int
    """Bytes classified to the chain at the front door."""
    bytes_out: Optional[int] = None
    """Bytes that left; absent if a worker transmits at the egress, because a worker does not count
    bytes.
    """
    end: str
    """End of the second, RFC 3339."""
    in_bps: float
    """Mean rate in, bits a second."""
    in_pps: float
    """Mean rate in, packets a second."""
    loss_percent: Optional[float] = None
    """Lost packets as a share of conforming packets, percent; absent if no conforming packet
    arrived.
    """
    lost: Losses
    """Conforming packets that were lost, by place."""
    lost_in: dict[str, int] = field(default_factory=dict)
    """Packets lost in functions, by function name."""
    out_bps: Optional[float] = None
    """Mean rate out, bits a second; absent if the egress counts no bytes."""
    out_pps: float
    """Mean rate out, packets a second."""
    packets_in: int
    """Packets classified to the chain at the front door."""
    packets_out: int
    """Packets that left."""
    policed: int
    """Packets above the profile, which the policer dropped. Policed packets do not count as lost.
    """
    seconds: float
    """Length of the interval, s."""
    sojourn: Optional[SlaSojourn] = None
    """Sojourn; absent if no packet left, or if black boxes divide the chain into sections."""
    worker_cores: Optional[float] = None
    """Cores that the chain's workers used, for all chains of the workers. Absent without a worker,
    and for intervals longer than a second.
    """


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SlaSojourn(Record):
    """Sojourn (front door to egress) of the packets that left in an interval. The figures come from
    a histogram with 32 buckets an octave, so their error is at most 1.6 %.
    """
    agreed_us: float
    """Sojourn at the contract's percentile, us."""
    max_us: float
    """Longest sojourn, us."""
    p50_us: float
    """Median sojourn, us."""
    p99_us: float
    """99th percentile of the sojourn, us."""
    packets: int
    """Number of measured packets: all packets that left."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SlaStatus(Record):
    """A chain's contract, verdict and figures since it came up."""
    chain: str
    """The chain's name."""
    contract: SlaContract
    """The contract."""
    judged_s: int
    """Seconds with traffic to judge."""
    last_event: Optional[SlaEvent] = None
    """The last violation."""
    life: SlaWindow
    """Figures since the chain came up."""
    lost_cores: list[int] = field(default_factory=list)
    """Cores that the chain's workers have lost. While the list is not empty, the chain is best
    effort.
    """
    minute: SlaWindow
    """Figures of the last minute, or since the chain came up."""
    second: SlaWindow
    """Figures of the last second."""
    state: SlaState
    """The verdict."""
    under_way: int
    """Packets that came in, and have neither left nor been counted as lost."""
    violated_now: bool
    """Whether the last second violated the contract."""
    violated_s: int
    """Seconds that violated the contract."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SlaWindow(Record):
    """Figures of all traffic of a chain in an interval."""
    bytes_in: int
    """Bytes classified to the chain at the front door."""
    bytes_out: Optional[int] = None
    """Bytes that left; absent if a worker transmits at the egress, because a worker does not count
    bytes.
    """
    in_bps: float
    """Mean rate in, bits a second."""
    in_pps: float
    """Mean rate in, packets a second."""
    loss_percent: Optional[float] = None
    """Lost packets as a share of conforming packets, percent; absent if no conforming packet
    arrived.
    """
    lost: Losses
    """Conforming packets that were lost, by place."""
    lost_in: dict[str, int] = field(default_factory=dict)
    """Packets lost in functions, by function name."""
    out_bps: Optional[float] = None
    """Mean rate out, bits a second; absent if the egress counts no bytes."""
    out_pps: float
    """Mean rate out, packets a second."""
    packets_in: int
    """Packets classified to the chain at the front door."""
    packets_out: int
    """Packets that left."""
    policed: int
    """Packets above the profile, which the policer dropped. Policed packets do not count as lost.
    """
    seconds: float
    """Length of the interval, s."""
    sojourn: Optional[SlaSojourn] = None
    """Sojourn; absent if no packet left, or if black boxes divide the chain into sections."""
    worker_cores: Optional[float] = None
    """Cores that the chain's workers used, for all chains of the workers. Absent without a worker,
    and for intervals longer than a second.
    """


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SojournStatus(Record):
    """In-band sojourn (front door to egress) of all packets of a chain."""
    max_us: float
    """Longest sojourn, us."""
    mean_us: float
    """Mean sojourn, us."""
    p50_us: float
    """Median sojourn, us."""
    p99_9_us: float
    """99.9th percentile of the sojourn, us."""
    p99_us: float
    """99th percentile of the sojourn, us."""
    packets: int
    """Number of measured packets."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SpanEnd(Record):
    """A host at an end of a chain over nodes."""
    host: str
    """The host, `TOPOLOGY/HOST`."""
    interface: str
    """The host's interface at the link to the first or last node."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SpanLoss(Record):
    """The loss of a whole chain over nodes, judged once a second."""
    agreed_percent: float
    """Share of conforming packets that may be lost, percent."""
    conformed: int
    """Conforming packets that arrived at the first node."""
    judged_s: int
    """Seconds with traffic to judge."""
    loss_percent: Optional[float] = None
    """Lost packets since the chain came up, as a share of the conforming packets at the first node,
    percent; absent if no conforming packet arrived.
    """
    lost_in_parts: int
    """Packets that the parts lost."""
    lost_on_links: int
    """Packets that the links between the nodes lost."""
    second_percent: Optional[float] = None
    """The same of the last second."""
    state: SlaState
    """The verdict."""
    violated_now: bool
    """Whether the last second violated the contract."""
    violated_s: int
    """Seconds that violated the contract."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SpanPart(Record):
    """A part of a chain over nodes. All figures are those of its node."""
    bound_ns: Optional[int] = None
    """The worst-case delay of the part, ns."""
    drops: int
    """Packets that functions and shaper dropped."""
    functions: list[str]
    """The names of the functions."""
    node: str
    """The node."""
    packets_in: int
    """Packets that entered the part."""
    packets_out: int
    """Packets that left the part."""
    part: str
    """The name of the part on its node: `myelin --node NODE ps PART`."""
    policed: int
    """Packets above the profile, which the policer dropped."""
    replica: Optional[str] = None
    """The node of the replica whose flows pass the part; absent if all flows pass it."""
    sla: Optional[SlaStatus] = None
    """The part's share of the contract, and the measured figures. Its loss is that of the part
    alone. Its latency includes the shares of earlier parts and links from `sojourn_from` on.
    """
    sojourn: Optional[SojournStatus] = None
    """The sojourn, from where packets entered the part `sojourn_from`."""
    sojourn_from: int
    """The number of the part, from 0, where the sojourn begins: the first one if packets carry their
    time from there and all nodes have one clock, else a later one.
    """
    state: Optional[ChainState] = None
    """The state; absent if the node has lost the part."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SpanSojourn(Record):
    """The sojourn of a whole chain over nodes."""
    links_ns: int
    """The longest planned delay of the links that the figures do not include, ns: those between
    nodes of different clocks.
    """
    p50_us: float
    """Median, us; of an added sojourn the sum of medians."""
    p99_us: float
    """99th percentile, us; of an added sojourn the sum of 99th percentiles."""
    source: SojournSource
    """How it is known."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class SpanStatus(Record):
    """A running chain over nodes: the whole, and the part that each node holds."""
    bound_ns: Optional[int] = None
    """The worst-case delay of the whole, ns: of the parts and of the links between them; with
    replicas, of the slowest path. Absent if a part has no bound.
    """
    chain: str
    """The chain's name."""
    contract: SlaContract
    """The contract of the whole."""
    egress: Optional[SpanEnd] = None
    """Where packets go to; absent if the topology does not run."""
    generation: int
    """The generation: 0 for a new chain, one more with each change."""
    ingress: Optional[SpanEnd] = None
    """Where packets come from; absent if the topology does not run."""
    latency_ns: Optional[int] = None
    """The latency of the contract, ns."""
    links_ns: int
    """The longest delay of the links between the parts, ns."""
    loss: Optional[SpanLoss] = None
    """The loss of the whole; absent without `sla.loss`."""
    owner: str
    """The chain's owner."""
    packets_in: int
    """Packets that entered the first part."""
    packets_out: int
    """Packets that left the last part, of all replicas."""
    parts: list[SpanPart]
    """The parts, in the order of the chain. Those of each replica follow the part that splits the
    flows.
    """
    path: int
    """The service path identifier of the whole."""
    policed: int
    """Packets above the profile, which the policer of the first part dropped."""
    restored: Optional[str] = None
    """Why the chain was last brought up again, after a node had lost its part."""
    reverse: Optional[str] = None
    """The chain of the other direction (`spec.reverse`)."""
    sojourn: Optional[SpanSojourn] = None
    """The sojourn of the whole, since its parts came up; absent if no packet left a part."""
    state: ChainState
    """`active` if all parts are active, else the state of the first part that is not; `failed` if a
    node has lost its part.
    """
    topology: str
    """The topology of the nodes."""
    traffic: str
    """The traffic of the chain, as `myelin conform --match` takes it:
    `protocol=17,destinationPort=9000`. Empty: all IP packets.
    """
    up_s: float
    """Time since the chain came up, s."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Stall(Record):
    """The stalls of a core, as seen by a thread that only reads the clock."""
    gaps: int
    """Number of gaps in which the thread did not run."""
    longest_ns: int
    """Longest gap, ns."""
    looks_ns: tuple[int, int] = field(default_factory=lambda: (0, 0))
    """Least and greatest stall of the single readings, ns. A large difference means that a load
    started or ended during the measurement.
    """
    observed_ns: int
    """Measured time, ns."""
    others_percent: float = 0.0
    """Share of the measured time in which other programs had the core, percent."""
    stall_ns: int
    """The stall, ns. Longer gaps make up at most 0.1 % of the time. Interrupts, other threads and
    the hypervisor cause gaps.
    """
    steal_percent: float
    """Share of the measured time that the hypervisor took, percent."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Step(Record):
    """A step of a packet's path other than a function."""
    cost_ns: float
    """Cost of the step, ns."""
    name: str
    """The names of the step's parts in the costs, joined by ` + `."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class StepCosts(Record):
    """Costs of the steps between functions."""
    dispatch: Cost
    """The worker's call of a function."""
    door_tcx: Cost
    """The front door at tcx: parse, classify, count, stamp."""
    door_xdp: Cost
    """The front door at XDP: parse, classify, count, stamp."""
    egress_redirect: Cost
    """From tcx to an interface (`bpf_redirect`)."""
    egress_tcx_peer: Cost
    """From tcx directly into an end host (`bpf_redirect_peer`)."""
    egress_xdp: Cost
    """From XDP to an interface (`bpf_redirect` of a frame)."""
    enter_user: Cost
    """From an XDP program to the worker that polls the AF_XDP socket."""
    entry_link: Cost = field(default_factory=lambda: Cost(per_byte_ns=0.05, per_packet_ns=900.0))
    """Over the entry link of a virtual port to the front door behind it, which takes packets of wire
    size with whole checksums.
    """
    hop: Cost
    """The tail call into a kernel function."""
    link: Cost = field(default_factory=lambda: Cost(per_byte_ns=0.0, per_packet_ns=180.0))
    """Over the link to a function in its own namespace, without the function: `mapping: distributed`
    has one for each function.
    """
    link_tcx: Cost = field(default_factory=lambda: Cost(per_byte_ns=0.0, per_packet_ns=150.0))
    """Over the link to a function in its own namespace, at tcx, in both directions, without a queue.
    """
    ring: Cost = field(default_factory=lambda: Cost(per_byte_ns=0.0, per_packet_ns=250.0))
    """Over a descriptor ring to a worker process on another core: `mapping: pipeline` has one for
    each process after the first, and one for the return.
    """
    tcx_skb: Cost
    """Converts a frame to an skb: extra cost of tcx at a driver with native XDP."""
    user_egress: Cost
    """From the worker to an interface (AF_XDP transmit)."""
    user_to_kernel: Cost
    """From the worker over the internal link to the next kernel function, before its tail call."""
    wake_up: Cost
    """Wake-up of a sleeping worker. Not part of a predicted cost, because a busy worker does not pay
    it.
    """
    xdp_frame: Cost
    """Converts an skb to a frame: extra cost of XDP at a virtual link."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Summary(Record):
    """The figures of a distribution; all delays in microseconds."""
    bound_us: Optional[float] = None
    """The bound of `share_within_bound`."""
    cdf_us: list[tuple[float, float]] = field(default_factory=list)
    """Cumulative distribution: (delay, share at or below it). Not serialized if empty."""
    count: int
    """Number of delays."""
    max_us: float
    """The longest."""
    mean_ci95_us: Optional[float] = None
    """Half width of the mean's 95 % interval over repeats (Student's t). Quote this figure: packets
    of one repeat are not independent. `None` below two repeats.
    """
    mean_packets_ci95_us: Optional[float] = None
    """Half width of the mean's 95 % interval over packets, as if they were independent. `None` below
    two packets.
    """
    mean_us: float
    """Mean of all packets."""
    min_us: float
    """The shortest."""
    p50_us: float
    """Median."""
    p90_us: float
    """90th percentile."""
    p99_99_us: float
    """99.99th percentile."""
    p99_9_us: float
    """99.9th percentile."""
    p99_us: float
    """99th percentile."""
    share_within_bound: Optional[float] = None
    """Share (0 to 1) of delays at or below the bound."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class TaskStatus(Record):
    """A worker or pipeline stage that takes turns."""
    alive: bool
    """Whether the task can run."""
    empty_reads: int
    """Reads in these turns that found no packet."""
    run_us: float
    """Time of these turns, us."""
    turns: int
    """Turns that have ended."""
    wait_us: float = 0.0
    """Time in which packets waited for the worker's turn, us."""
    worker: str
    """The process, as in its command line."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class TextContents(Record):
    """The contents of a text. The agent has not checked the objects: `up` does."""
    files: list[NamedFile]
    """The files that the text names. The client reads them with the rights of its user, and sends
    them with the text.
    """
    objects: list[Any]
    """The documents of the text as JSON."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class TextRequest(Record):
    """Request to parse a text."""
    name: str
    """The file's name as the user gave it, for error messages."""
    text: str
    """The YAML text."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class TimelinePoint(Record):
    """Round trips of consecutive packets."""
    at_s: float
    """Send time of its first packet, seconds from the start of the first repeat."""
    max_us: float
    """Its longest round trip, microseconds."""
    min_us: float
    """Its shortest round trip, microseconds."""
    p50_us: float
    """Its median round trip, microseconds."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class TopologyEnd(Record):
    """An end of a link."""
    interface: str
    """The interface; empty if the topology does not run."""
    netns: Optional[str] = None
    """The network namespace of a host's interface; `None`: the agent's."""
    node: str
    """The host or switch."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class TopologyHost(Record):
    """A host, node or router of a topology."""
    addresses: list[str]
    """The addresses of `eth0`, each with its prefix length; of a router, those of all links."""
    agent: Optional[NodeAgentStatus] = None
    """The agent of a running node."""
    cgroup: Optional[str] = None
    """The control group of a host with limits, below each hierarchy's root."""
    cpu_millicores: Optional[int] = None
    """The limit of processor time, thousandths of a core."""
    cpus: list[int]
    """The cores of the host's programs; empty: all cores."""
    is_node: bool = False
    """Whether the host is a node: it runs an agent."""
    is_router: bool = False
    """Whether the host is a router: it forwards IP packets between its links."""
    memory_bytes: Optional[int] = None
    """The limit of memory, bytes."""
    name: str
    """The host's name."""
    netns: str
    """The host's network namespace, as in `ip netns`; empty if the topology does not run."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class TopologyLink(Record):
    """A link of a topology."""
    back: Optional[LinkImpairments] = None
    """Delay, rate and loss from the second end to the first; `None`: those of the other direction.
    """
    by: LinkEmulation = 'delay-line'
    """What delays and loses the packets."""
    directions: Optional[tuple[DirectionStatus, DirectionStatus]] = None
    """Counters of the direction from the first end to the second, and back, while the delay line
    serves the link.
    """
    ends: tuple[TopologyEnd, TopologyEnd]
    """Both ends."""
    impairments: LinkImpairments
    """Delay, rate and loss from the first end to the second."""
    is_up: bool
    """Whether `myelin link` has not set the link down."""
    name: str
    """The link's name."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class TopologyStatus(Record):
    """A topology: of a file, or running."""
    delay_line: Optional[DelayLineStatus] = None
    """The delay line; `None`: no link has had delay, rate or loss."""
    hosts: list[TopologyHost]
    """The hosts, in the order of the file, then the nodes."""
    links: list[TopologyLink]
    """The links, in the order of the file."""
    made_ms: Optional[float] = None
    """Time that the agent took to make the topology, ms; `None`: it does not run."""
    name: str
    """The topology's name."""
    switches: list[TopologySwitch]
    """The switches, in the order of the file."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class TopologySwitch(Record):
    """A switch of a topology."""
    bridges: list[str]
    """The kernel bridges of the switch; none if the topology does not run."""
    controller: Optional[ControllerStatus] = None
    """The controller of an OpenFlow switch."""
    name: str
    """The switch's name."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class Traffic(Record):
    """Counters of a chain's packets."""
    lost: list[tuple[str, int]]
    """Packets lost, by place."""
    packets_in: int
    """Packets that the front door classified to the chain."""
    packets_out: int
    """Packets that left."""
    policed: int
    """Packets that the policer dropped."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class UpRequest(Record):
    """Request to deploy a chain file."""
    files: dict[str, FileContents]
    """Contents of the files that the text names, by the path in the text."""
    force: bool = False
    """Deploy chains that admission refuses, as best effort without a guarantee."""
    lease: Optional[int] = None
    """The lease that holds the new objects. `None`: they stay until `down`."""
    name: str
    """The file's name as the user gave it, for error messages."""
    text: str
    """The YAML text."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class WorkerPlan(Record):
    """The worker that runs a chain's user functions. Chains with the same owner and circuit share
    it.
    """
    circuit: str
    """What the worker serves: the chain that makes the end hosts, also for its reverse chain; both
    DPDK devices, sorted; `replay` and the chain, for ports in memory; `super-packets`; empty for
    all other named interfaces. In mapping `distributed` the whole chain and a dot, to which each
    function's worker adds the function.
    """
    core: int
    """The core."""
    owner: str
    """The owner."""


@dataclass(kw_only=True, repr=False, eq=False, match_args=False)
class WorkerStatus(Record):
    """A worker process."""
    cpu_s: float
    """CPU time used, s."""
    pid: int
    """Process number."""
    resident_kib: int
    """Resident memory, KiB."""
    restarts: int
    """Number of restarts."""


ChainState = Literal["active", "waiting", "failed"]
Change = Literal["created", "changed", "unchanged"]
Class = Literal["elementary", "basic", "advanced"]
Classify = Literal["calvin", "cost"]
ContainerImage = Union[Literal["machine"], ContainerImageDirectory, ContainerImageStored]
ControllerState = Literal["not-running", "silent", "connected", "switch-ended"]
Enforce = Literal["auto", "both", "policer", "shaper", "none"]
Entry = Literal["door", "kernel", "user", "link"]
ErrorKind = Literal["usage", "failed", "refused"]
Event = Union[EventProgress, EventUp, EventReport, EventCosts, EventError]
ExecEvent = Union[ExecEventStarted, ExecEventEnded, ExecEventError]
Exit = Literal["egress", "kernel", "user", "link"]
FileContents = Union[str, FileContentsBase64]
FlowState = Literal["new", "established", "closing", "closed"]
Hook = Literal["auto", "xdp", "tcx"]
Isolation = Literal["process", "container"]
LinkChange = Union[Literal["up"], Literal["down"], LinkChangeMove, LinkChangeImpair]
LinkEmulation = Literal["delay-line", "netem"]
Mapping = Literal["auto", "compact", "pipeline", "distributed"]
Matching = Literal["by_id", "by_order"]
Mode = Literal["inline", "spin", "blocking"]
NodeEventKind = Literal["silent", "ended", "back", "restored", "failed"]
OnFailure = Literal["pass", "drop"]
Origin = Union[OriginKind, OriginDate]
PortDriver = Literal["kernel", "dpdk", "memory"]
ShaperPlace = Literal["worker", "qdisc"]
SharingMechanism = Literal["auto", "flip", "preempt", "weights", "freezer"]
SharingPolicy = Literal["os", "cooperative", "round-robin", "load-based", "unis", "deadline", "auto"]
SlaCause = Literal["overload", "steal", "neighbour", "sharing", "function", "link", "failure", "core", "unknown"]
SlaState = Literal["no_contract", "kept", "violated"]
SlaTerm = Literal["core", "latency", "loss"]
SojournSource = Literal["measured", "added"]
Space = Literal["kernel", "user"]
Stop = Literal["deadline", "cancelled", "no_answer"]
