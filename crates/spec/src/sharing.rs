//! How the workers of one core share it.

use crate::keys::field::Fields;
use crate::keys::words::word_enum;
use crate::keys::{ConfigKey, DURATION, ValueType, config, integer};

word_enum! {
    /// The scheduler of the workers on one core.
    #[derive(PartialOrd, Ord, Default)]
    pub enum SharingPolicy {
        /// The operating system's.
        #[default]
        Os = "os",
        /// Each worker in turn, for a number of batches; a read without packets ends its turn.
        Cooperative = "cooperative",
        /// Each worker in turn, for a time.
        RoundRobin = "round-robin",
        /// NFVnice (Kulkarni et al. 2017): each worker with packets in turn, for a part of a round
        /// in proportion to its load, arrival rate times cost of a packet.
        LoadBased = "load-based",
        /// UNiS (Anthony et al. 2020): the next worker with packets to read and room to write, for
        /// as long as its packets and the room last.
        Unis = "unis",
        /// The worker whose oldest packet must leave first, in turns as long as the delays of the
        /// contracts allow.
        Deadline = "deadline",
        /// `deadline` if several processes share the core, and their ports let them take turns.
        Auto = "auto",
    }
}

word_enum! {
    /// The way in which the core goes from one process to the next.
    #[derive(PartialOrd, Ord, Default)]
    pub enum SharingMechanism {
        /// Workers alone hand over. Beside a black box: the first of flip (preempt on a machine of
        /// one core), weights and freezer that the kernel permits.
        #[default]
        Auto = "auto",
        /// A process on another core changes real-time priorities, as UNiS does.
        Flip = "flip",
        /// A process on the same core, woken by a timer, changes real-time priorities.
        Preempt = "preempt",
        /// A process on another core changes weights in the kernel's fair class.
        Weights = "weights",
        /// A process on another core stops and continues processes.
        Freezer = "freezer",
    }
}

config! {
    /// How the workers of one core share it: `sharing: NAME`, or a mapping with parameters.
    pub struct SharingSpec {
        /// The scheduler: os, or a policy by which a worker hands the core over to the next one.
        "policy" policy: SharingPolicy = SharingPolicy::KEY.with_default("os");
        /// The way in which the core goes from one process to the next. Another one than auto needs
        /// no cooperation of the processes.
        "mechanism" mechanism: SharingMechanism = SharingMechanism::KEY.with_default("auto");
        /// The batches of a turn, with `policy: cooperative`.
        "reads" reads: u32 = integer(1, 65_536, "a number of batches").with_default("8");
        /// The length of a turn, with `policy: round-robin`.
        "slice" slice_ns: u64 = DURATION.with_default("100us");
        /// The time in which each worker with packets has a turn, with `policy: load-based`.
        "round" round_ns: u64 = DURATION.with_default("1ms");
        /// The share of the egress ring that fills a turn, and of its room that ends one, with
        /// `policy: unis`.
        "gamma" gamma: u32 = ConfigKey::new(ValueType::Number { max: 2 }).with_default("0.75");
        /// The longest wait of packets that are fewer than a batch, with `policy: unis`. The
        /// published algorithm has no limit; 3600s is as good as none.
        "longestWait" longest_wait_ns: u64 = DURATION.with_default("100us");
        /// The longest turn of a worker while packets of others have earlier deadlines, with
        /// `policy: deadline`. With it there is a worst-case bound. Without it, turns are as long
        /// as the deadlines allow.
        "longestTurn" longest_turn_ns: Option<u64> = DURATION.with_hint("200us");
    }
}

/// Part of the least budget that passes between two decisions of a long turn.
const BUDGET_PARTS: u64 = 4;
/// Shortest and longest time between two such decisions, ns.
const INTERVAL_NS: (u64, u64) = (10_000, 50_000);
/// Arrival times that a ring remembers in the time of one budget.
const MARKS_IN_BUDGET: u64 = 8;

impl SharingSpec {
    /// Time of a packet on the core, ns, if its chain agrees on no latency, with turns by deadline.
    pub const DEFAULT_BUDGET_NS: u64 = 10_000_000;

    /// Returns the time between two decisions in a long turn by deadline, ns, if this is the least
    /// budget of a packet on the core. A packet that comes to an empty ring may wait for a part of
    /// its budget, so decisions are rare.
    pub fn decision_interval_ns(least_budget_ns: u64) -> u64 {
        let (least_ns, most_ns) = INTERVAL_NS;
        (least_budget_ns / BUDGET_PARTS).clamp(least_ns, most_ns)
    }

    /// Returns the time by which a packet with this budget may seem older than it is, ns, because a
    /// ring remembers only some arrival times.
    pub fn mark_spacing_ns(budget_ns: u64) -> u64 {
        budget_ns / MARKS_IN_BUDGET
    }

    /// Whether tasks of the core take turns, other than the operating system's.
    pub fn hands_over(&self) -> bool {
        self.policy != SharingPolicy::Os
    }
}

/// The policy that each parameter belongs to.
const PARAMETERS: [(&str, SharingPolicy); 6] = [
    ("reads", SharingPolicy::Cooperative),
    ("slice", SharingPolicy::RoundRobin),
    ("round", SharingPolicy::LoadBased),
    ("gamma", SharingPolicy::Unis),
    ("longestWait", SharingPolicy::Unis),
    ("longestTurn", SharingPolicy::Deadline),
];

/// The key `sharing` of a worker.
pub(crate) const SHARING: ConfigKey = ConfigKey::new(ValueType::TextOrMap(SharingSpec::KEYS));

/// Reads the name of a policy, or a mapping with its parameters.
pub(crate) fn read_sharing(worker: &Fields<'_>) -> SharingSpec {
    let Some(field) = worker.get("sharing") else {
        return SharingSpec::default();
    };
    if !field.is_mapping() {
        let policy = field.read_word(SharingPolicy::WORDS).unwrap_or_default();
        return SharingSpec {
            policy,
            ..SharingSpec::default()
        };
    }
    let Some(fields) = field.mapping(SharingSpec::KEYS) else {
        return SharingSpec::default();
    };
    let spec = SharingSpec::from_fields(&fields);
    if let Some(mechanism) = fields.get("mechanism").filter(|_| !spec.hands_over()) {
        mechanism.fault(
            format!("`mechanism` has no effect with `policy: {}`", spec.policy),
            "`mechanism` only with a policy of turns",
            "remove `mechanism`, or write another `policy`",
        );
    }
    for (name, policy) in PARAMETERS {
        if let Some(parameter) = fields.get(name).filter(|_| spec.policy != policy) {
            parameter.fault(
                format!("`{name}` has no effect with `policy: {}`", spec.policy),
                format!("`{name}` only with `policy: {policy}`"),
                format!("remove `{name}`, or write `policy: {policy}`"),
            );
        }
    }
    spec
}
