//! What each step of a packet's way costs.
//!
//! A [`Costs`] is either the built-in one ([`Costs::default`]) or was measured on a machine by `myelin calibrate`, which
//! keeps it as JSON ([`Costs::to_json`], [`Costs::from_json`]). All figures are means of one packet in one direction on
//! an idle machine, warm caches, in nanoseconds.

use std::collections::BTreeMap;

pub use myelin_spec::Cost;
use myelin_spec::catalogue::{self, Kind};
use myelin_spec::{FunctionConfig, Hook, Space};
use serde::{Deserialize, Serialize};

/// The version of the JSON form that this release reads and writes.
pub const VERSION: u32 = 1;

/// Defines [`StepCosts`]: each step below what it is, with its cost where nobody has measured it, ns a packet and a byte.
macro_rules! steps {
    ($($(#[$attribute:meta])* $step:ident = ($packet_ns:literal, $byte_ns:literal);)*) => {
        /// Costs of the steps between functions.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        pub struct StepCosts {
            $($(#[$attribute])* pub $step: Cost,)*
        }

        impl Default for StepCosts {
            /// Derived from figures measured with minimal programs on a two-core virtual machine (AMD EPYC, about 3 GHz, Linux
            /// 6.18, veth pairs). Inline UDP round trips of 256 and 1400 B above the direct link, halved: redirect to the peer
            /// 0.3 us, plain redirect 0.5 us, an XDP hop 1.25 us, each further XDP hop 0.33 us, a function in a namespace of its own
            /// 0.18 us, an AF_XDP forwarder 3.4 us. Test runs:
            /// a tail call that the JIT made a direct jump 3 ns, parsing and counting 36 ns, two clock reads 65 ns. A wake-up from
            /// another core 33 us, a memory copy 0.02 ns a byte. `tcx_skb` alone is an estimate, from the distance between XDP and
            /// the stack in the XDP paper (Hoiland-Jorgensen et al., CoNEXT 2018), since such a machine has no network card.
            /// `link_tcx` is an estimate too, from the sojourn of a chain of two functions at tcx (0.27 us, another machine).
            /// `myelin calibrate` measures the others on yours.
            fn default() -> Self {
                Self { $($step: Cost::new($packet_ns, $byte_ns),)* }
            }
        }

        impl StepCosts {
            /// Every step by its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, Cost)> {
                [$((stringify!($step), self.$step)),*].into_iter()
            }
        }
    };
}

steps! {
    /// The front door at tcx: parse, classify, count, stamp.
    door_tcx = (150.0, 0.0);
    /// The front door at XDP: the same work.
    door_xdp = (150.0, 0.0);
    /// Making a frame of an skb so that XDP can take it: the price of XDP at a virtual link.
    xdp_frame = (770.0, 0.02);
    /// Making an skb of a frame: the price of tcx at a port whose driver hands over frames.
    tcx_skb = (150.0, 0.0);
    /// The tail call into a kernel function.
    hop = (3.0, 0.0);
    /// From tcx straight into an end host (`bpf_redirect_peer`).
    egress_tcx_peer = (150.0, 0.0);
    /// From tcx to an interface (`bpf_redirect`).
    egress_redirect = (350.0, 0.0);
    /// From XDP to an interface (`bpf_redirect` of a frame).
    egress_xdp = (330.0, 0.0);
    /// From an XDP program to the worker that polls the AF_XDP socket.
    enter_user = (1100.0, 0.03);
    /// The worker's call of a function.
    dispatch = (1.0, 0.0);
    /// From the worker to an interface (AF_XDP transmit).
    user_egress = (1370.0, 0.05);
    /// From the worker over the internal link to the first kernel function behind it, before that function's tail call.
    user_to_kernel = (2200.0, 0.07);
    /// Over the link to a function in a namespace of its own, the function itself excluded: what `mapping: distributed` pays for each
    /// function.
    #[serde(default = "default_link")]
    link = (180.0, 0.0);
    /// The same at tcx, there and back: from end to end without a queue.
    #[serde(default = "default_link_tcx")]
    link_tcx = (150.0, 0.0);
    /// Over a descriptor ring to another worker process on another core: what `mapping: pipeline` pays for each process after the first, and
    /// for the way back.
    #[serde(default = "default_ring")]
    ring = (250.0, 0.0);
    /// Waking a worker that sleeps. Not part of a predicted cost, since a busy worker does not pay it.
    wake_up = (33_000.0, 0.0);
}

/// Calibration files of earlier releases do not have it.
fn default_link() -> Cost {
    StepCosts::default().link
}

fn default_link_tcx() -> Cost {
    StepCosts::default().link_tcx
}

fn default_ring() -> Cost {
    StepCosts::default().ring
}

impl StepCosts {
    /// What a function at the end of a link of its own pays for it at a hook, with the name of that cost.
    pub(crate) fn link_at(&self, hook: Hook) -> (&'static str, Cost) {
        match hook {
            Hook::Tcx => ("link_tcx", self.link_tcx),
            Hook::Xdp | Hook::Auto => ("link", self.link),
        }
    }
}

/// What a kind of function costs in each space; a space that was not measured is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FunctionCosts {
    /// In the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Cost>,
    /// In user space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Cost>,
}

/// Where costs come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Origin {
    /// Built in: [`StepCosts::default`] and the catalogue.
    Default,
    /// Measured by `myelin calibrate`.
    Measured {
        /// The machine: processor, cores, kernel.
        machine: String,
        /// When, RFC 3339.
        date: String,
    },
}

/// All costs the planner reckons with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// The version of this form: [`VERSION`].
    pub version: u32,
    /// Where the figures come from.
    pub origin: Origin,
    /// The steps between functions.
    pub steps: StepCosts,
    /// The functions, by the name of their kind. A kind or space that is missing costs what the catalogue says.
    pub functions: BTreeMap<String, FunctionCosts>,
    /// For how long each core that was looked at stands still. A core that is missing does so as long as the worst of them.
    #[serde(default)]
    pub stalls: BTreeMap<u32, Stall>,
    /// What packets cost at worst, as a multiple of the mean: 99 of 100 single packets, and the slowest of 8 bursts, are done within a stall of the core and so many
    /// times what they mostly take.
    #[serde(default = "default_worst_case")]
    pub worst_case: f64,
    /// What packets in bursts cost a worker. Where nobody has measured it, as much as single ones.
    #[serde(default)]
    pub in_burst: Option<InBurst>,
    /// The longest that a process keeps a core that another one wants too, ns: the scheduler's slice, or its tick if that is longer.
    #[serde(default = "default_slice_ns")]
    pub slice_ns: u64,
    /// Where that is known from.
    #[serde(default)]
    pub slice_from: String,
}

/// What a packet of a burst costs; on its way through a worker, functions and their calls excluded. One that comes alone costs more: [`StepCosts::enter_user`] and
/// [`StepCosts::user_egress`] hold the time until it is noticed, and a system call of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InBurst {
    /// Of a chain that stays in the kernel: from the ring of the port's link to the redirect, receive work, front door, one function and egress. Nobody's round trip
    /// tells that, since one without a chain has receive work too.
    pub kernel: Cost,
    /// The receive work of the port, front door and all, up to the ring of the worker's socket.
    pub port: Cost,
    /// The worker's, from that ring to the egress port.
    pub worker: Cost,
    /// What a function in the kernel takes more than alone where packets of several chains come in turn, with other functions each: its code and state are not in
    /// the caches next to the core then.
    #[serde(default)]
    pub kernel_function: Cost,
    /// The same of one in a worker.
    #[serde(default)]
    pub user_function: Cost,
}

/// For how long a core stands still that nobody has looked at, ns: a timer interrupt with what hangs on it, and a wake-up of some other
/// thread for a moment. An estimate for a machine with nothing else to do; `myelin calibrate` measures.
pub const DEFAULT_STALL_NS: u64 = 20_000;

/// A stall from which on there is something to be mended, ns: five times that of a core that has nothing else to do.
const LONG_STALL_NS: u64 = 5 * DEFAULT_STALL_NS;

/// Calibration files of earlier releases do not have it. An estimate; `myelin calibrate` measures.
fn default_worst_case() -> f64 {
    1.5
}

/// The slice of EEVDF (Linux 6.6 and later) with two cores is 1.4 ms and with eight or more 2.8 ms, the tick at most 10 ms, mostly 4.
fn default_slice_ns() -> u64 {
    4_000_000
}

/// For how long a core stands still, seen by a thread that does nothing but look at the clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// Gaps longer than this make up at most 0.1 % of the time, ns: interrupts, other threads, and the hypervisor.
    pub stall_ns: u64,
    /// Gaps that were seen.
    pub gaps: u64,
    /// The longest one, ns.
    pub longest_ns: u64,
    /// For how long it was looked at, ns.
    pub observed_ns: u64,
    /// Share of that time that the hypervisor took, percent.
    pub steal_percent: f64,
    /// Share of that time in which other programs had the core, percent.
    #[serde(default)]
    pub others_percent: f64,
    /// The least and the greatest stall that one of the looks by itself would have told, ns. Far apart, something came and went meanwhile.
    #[serde(default)]
    pub looks_ns: [u64; 2],
}

impl Default for Costs {
    fn default() -> Self {
        let functions = catalogue::kinds().map(|kind| {
            let costs = FunctionCosts {
                kernel: kind.kernel,
                user: kind.user,
            };
            (kind.name.to_owned(), costs)
        });
        Self {
            version: VERSION,
            origin: Origin::Default,
            steps: StepCosts::default(),
            functions: functions.collect(),
            stalls: BTreeMap::new(),
            worst_case: default_worst_case(),
            in_burst: None,
            slice_ns: default_slice_ns(),
            slice_from: String::new(),
        }
    }
}

impl Costs {
    /// What `kind` costs in `space`; `None` when it does not exist there.
    pub fn function(&self, kind: &Kind, space: Space) -> Option<Cost> {
        let default = kind.default_cost(space)?;
        let known = self.functions.get(kind.name);
        let known = known.and_then(|costs| match space {
            Space::Kernel => costs.kernel,
            Space::User => costs.user,
        });
        Some(known.unwrap_or(default))
    }

    /// What a function costs in `space` as it is configured; `None` when its kind does not exist there.
    pub fn of(&self, config: &FunctionConfig, space: Space) -> Option<Cost> {
        let own = self.function(config.kind(), space)?;
        Some(own.plus(config.effect().busy))
    }

    /// The JSON form.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads the JSON form and checks every figure.
    pub fn from_json(text: &str) -> Result<Self, CostsError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        // A file of another version may have any shape, so the version is looked at alone first.
        let Versioned { version } = serde_json::from_str(text).map_err(CostsError::Syntax)?;
        if version != VERSION {
            return Err(CostsError::Version { found: version });
        }
        let costs: Self = serde_json::from_str(text).map_err(CostsError::Syntax)?;
        costs.check()?;
        Ok(costs)
    }

    /// What of the stalls keeps chains from being promised what they could be, with the remedy.
    pub fn warnings(&self) -> Vec<String> {
        let us = |ns: u64| ns.div_ceil(1000);
        let mut warnings = Vec::new();
        for (core, stall) in &self.stalls {
            let [low_ns, high_ns] = stall.looks_ns;
            if stall.stall_ns >= LONG_STALL_NS {
                let mut why = Vec::new();
                if stall.others_percent > 0.1 {
                    why.push(format!(
                        "other programs ran there for {:.1} % of the time",
                        stall.others_percent
                    ));
                }
                if stall.steal_percent > 0.1 {
                    why.push(format!("the hypervisor took {:.1} %", stall.steal_percent));
                }
                if why.is_empty() {
                    why.push("interrupts, or a hypervisor that does not tell".to_owned());
                }
                warnings.push(format!(
                    "core {core} stood still for up to {} us at a time ({}): no chain is promised a latency below that, one with a shaped worker there \
                     none below three times that; stop what else runs there (`isolcpus`, a cpuset) and calibrate again, or give workers another \
                     core (`worker: {{ core: N }}`)",
                    us(stall.stall_ns),
                    why.join(", "),
                ));
            }
            if high_ns >= LONG_STALL_NS && high_ns > 10 * low_ns {
                warnings.push(format!(
                    "the looks at core {core} disagree, from {} to {} us: something ran there for part of the time; calibrate while the machine does what it \
                     will do",
                    us(low_ns),
                    us(high_ns),
                ));
            }
        }
        warnings
    }

    fn check(&self) -> Result<(), CostsError> {
        let functions = self.functions.iter().flat_map(|(kind, costs)| {
            let spaces = [(Space::Kernel, costs.kernel), (Space::User, costs.user)];
            spaces
                .into_iter()
                .filter_map(move |(space, cost)| Some((format!("{kind} ({space})"), cost?)))
        });
        let in_burst = self.in_burst.into_iter().flat_map(|cost| {
            [
                ("a burst's packet in the kernel", cost.kernel),
                ("a burst's packet at the port", cost.port),
                ("a burst's packet in a worker", cost.worker),
                ("a crowd's function in the kernel", cost.kernel_function),
                ("a crowd's function in user space", cost.user_function),
            ]
        });
        let named = self.steps.iter().chain(in_burst);
        let named = named.map(|(name, cost)| (name.to_owned(), cost));
        for (name, cost) in named.chain(functions) {
            for value_ns in [cost.per_packet_ns, cost.per_byte_ns] {
                if !(0.0..=MOST_NS).contains(&value_ns) {
                    return Err(CostsError::Figure { name, value_ns });
                }
            }
        }
        let name = "the worst case against the mean".to_owned();
        if !(1.0..=MOST_TIMES).contains(&self.worst_case) {
            let value = self.worst_case;
            return Err(CostsError::Times { name, value });
        }
        let stalls = self.stalls.iter();
        let stalls =
            stalls.map(|(core, stall)| (format!("a stall of core {core}"), stall.stall_ns));
        for (name, ns) in stalls.chain([("a slice of the scheduler".to_owned(), self.slice_ns)]) {
            let value_ns = ns as f64;
            if value_ns > MOST_NS {
                return Err(CostsError::Figure { name, value_ns });
            }
        }
        Ok(())
    }
}

/// A worst case so much above the mean is none.
const MOST_TIMES: f64 = 1000.0;

/// A figure above one second is no cost of a packet.
const MOST_NS: f64 = 1e9;

/// Why a JSON text gives no costs.
#[derive(Debug, thiserror::Error)]
pub enum CostsError {
    /// It is not the JSON form of costs.
    #[error("not a cost file ({0}); run `myelin calibrate` to write it anew")]
    Syntax(#[source] serde_json::Error),
    /// Another release wrote it.
    #[error(
        "cost file of version {found}, but this release reads version {VERSION}; run `myelin calibrate` to write it anew"
    )]
    Version {
        /// The version it has.
        found: u32,
    },
    /// A figure cannot be a cost.
    #[error(
        "the cost of {name} is {value_ns} ns, expected 0 to {MOST_NS} ns; run `myelin calibrate` to measure it anew"
    )]
    Figure {
        /// The step or function.
        name: String,
        /// The figure.
        value_ns: f64,
    },
    /// A multiple cannot be one.
    #[error(
        "{name} is {value}, expected 1 to {MOST_TIMES}; run `myelin calibrate` to measure it anew"
    )]
    Times {
        /// What it is.
        name: String,
        /// The figure.
        value: f64,
    },
}

#[cfg(test)]
mod tests {
    use myelin_spec::WorkConfig;

    use super::*;

    #[test]
    fn costs_survive_json() {
        let costs = Costs {
            origin: Origin::Measured {
                machine: "2 cores".into(),
                date: "2026-01-01T00:00:00Z".into(),
            },
            ..Costs::default()
        };
        assert_eq!(Costs::from_json(&costs.to_json()).unwrap(), costs);
    }

    #[test]
    fn long_stalls_and_looks_that_disagree_are_warned_of() {
        let mut costs = Costs::default();
        let mut warnings = |stall_ns, looks_ns, [others_percent, steal_percent]: [f64; 2]| {
            let stall = Stall {
                stall_ns,
                steal_percent,
                others_percent,
                looks_ns,
                ..Stall::default()
            };
            costs.stalls.insert(1, stall);
            costs.warnings()
        };
        assert!(warnings(20_000, [10_000, 30_000], [0.0; 2]).is_empty());
        let short = warnings(20_000, [1000, 90_000], [0.0; 2]);
        assert!(short.is_empty(), "apart, but all of them short: {short:?}");
        let told = warnings(4_000_000, [3_000_000, 5_000_000], [7.0, 0.0]);
        assert_eq!(told.len(), 1);
        assert!(
            told[0].contains("core 1 stood still for up to 4000 us")
                && told[0].contains("(other programs ran there for 7.0 % of the time)"),
            "{told:?}"
        );
        let told = warnings(4_000_000, [4_000_000; 2], [0.0, 2.5]);
        assert!(told[0].contains("(the hypervisor took 2.5 %)"), "{told:?}");
        let told = warnings(4_000_000, [4_000_000; 2], [0.0; 2]);
        assert!(told[0].contains("(interrupts, or a hyper"), "{told:?}");
        let told = warnings(20_000, [10_000, 3_000_000], [0.0; 2]);
        assert!(told[0].contains("from 10 to 3000 us"), "{told:?}");
    }

    #[test]
    fn figures_that_cannot_be_costs_are_refused() {
        for figure in ["-1.0", "1e300"] {
            let json = Costs::default().to_json().replacen("150.0", figure, 1);
            let error = Costs::from_json(&json).unwrap_err();
            assert!(
                error.to_string().starts_with("the cost of door_tcx is "),
                "{error}"
            );
        }
        let mut costs = Costs::default();
        costs.functions.insert(
            "xor".into(),
            FunctionCosts {
                kernel: None,
                user: Some(Cost::new(0.0, -1.0)),
            },
        );
        let error = Costs::from_json(&costs.to_json()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the cost of xor (user) is -1 ns"),
            "{error}"
        );
    }

    #[test]
    fn a_file_of_another_version_is_told_apart_from_a_broken_one() {
        let error = Costs::from_json(r#"{ "version": 2, "anything": [] }"#).unwrap_err();
        assert!(matches!(error, CostsError::Version { found: 2 }));
        assert!(matches!(Costs::from_json("{"), Err(CostsError::Syntax(_))));
        assert!(matches!(
            Costs::from_json(r#"{ "version": 1 }"#),
            Err(CostsError::Syntax(_))
        ));
    }

    #[test]
    fn a_kind_that_was_not_measured_costs_what_the_catalogue_says() {
        let mut costs = Costs::default();
        costs.functions.clear();
        let xor = &myelin_spec::XOR;
        let cost = costs.function(xor, Space::User).unwrap();
        assert_eq!(
            Some(cost.per_packet_ns),
            xor.user.map(|cost| cost.per_packet_ns)
        );
        let mut absent = xor.clone();
        absent.user = None;
        assert_eq!(costs.function(&absent, Space::User), None);
    }

    #[test]
    fn a_cost_that_depends_on_the_configuration_comes_on_top_of_the_kinds() {
        let mut costs = Costs::default();
        let base = FunctionCosts {
            kernel: None,
            user: Some(Cost::new(7.0, 0.5)),
        };
        costs.functions.insert("work".into(), base);
        let config = FunctionConfig::Work(WorkConfig {
            cycles: 3000,
            cycles_per_byte: 3,
        });
        let user = costs.of(&config, Space::User);
        assert_eq!(user, Some(Cost::new(1007.0, 1.5)));
    }

    #[test]
    fn every_step_is_listed() {
        let json = serde_json::to_value(StepCosts::default()).unwrap();
        assert_eq!(
            json.as_object().unwrap().len(),
            StepCosts::default().iter().count()
        );
    }
}
