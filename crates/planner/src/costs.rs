//! The cost of each step of a packet's path.
//!
//! [`Costs`] are either built in ([`Costs::default`]) or measured by `myelin calibrate`, which
//! stores them as JSON ([`Costs::to_json`], [`Costs::from_json`]). All figures are means of one
//! packet in one direction, on an idle machine with warm caches, in nanoseconds.

use std::collections::BTreeMap;

pub use myelin_spec::Cost;
use myelin_spec::catalogue::{self, Kind};
use myelin_spec::{FunctionConfig, Hook, Space};
use serde::{Deserialize, Serialize};

/// The version of the JSON form.
pub const VERSION: u32 = 1;

/// Defines [`StepCosts`]: each step with its built-in cost, ns a packet and ns a byte.
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
            /// Derived from measurements with minimal programs on a two-core virtual machine (AMD
            /// EPYC, about 3 GHz, Linux 6.18, veth pairs). Inline UDP round trips of 256 and 1400 B
            /// above the direct link, halved: redirect to the peer 0.3 us, plain redirect 0.5 us,
            /// an XDP hop 1.25 us, each further XDP hop 0.33 us, a function in its own namespace
            /// 0.18 us, an AF_XDP forwarder 3.4 us. Test runs: a tail call that the JIT made a
            /// direct jump 3 ns, parsing and counting 36 ns, two clock reads 65 ns. A wake-up from
            /// another core takes 33 us, a memory copy 0.02 ns a byte. `tcx_skb` is an estimate,
            /// from the distance between XDP and the stack in the XDP paper (Hoiland-Jorgensen et
            /// al., CoNEXT 2018): the machine has no network card. `link_tcx` is an estimate from
            /// the sojourn of a chain of two functions at tcx (0.27 us, another machine). `myelin
            /// calibrate` measures the others.
            fn default() -> Self {
                Self { $($step: Cost::new($packet_ns, $byte_ns),)* }
            }
        }

        impl StepCosts {
            /// Every step with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, Cost)> {
                [$((stringify!($step), self.$step)),*].into_iter()
            }
        }
    };
}

steps! {
    /// The front door at tcx: parse, classify, count, stamp.
    door_tcx = (150.0, 0.0);
    /// The front door at XDP: parse, classify, count, stamp.
    door_xdp = (150.0, 0.0);
    /// Over the entry link of a virtual port to the front door behind it, which takes packets of
    /// wire size with whole checksums.
    #[serde(default = "default_entry_link")]
    entry_link = (900.0, 0.05);
    /// Converts an skb to a frame: extra cost of XDP at a virtual link.
    xdp_frame = (770.0, 0.02);
    /// Converts a frame to an skb: extra cost of tcx at a driver with native XDP.
    tcx_skb = (150.0, 0.0);
    /// The tail call into a kernel function.
    hop = (3.0, 0.0);
    /// From tcx directly into an end host (`bpf_redirect_peer`).
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
    /// From the worker over the internal link to the next kernel function, before its tail call.
    user_to_kernel = (2200.0, 0.07);
    /// Over the link to a function in its own namespace, without the function: `mapping:
    /// distributed` has one for each function.
    #[serde(default = "default_link")]
    link = (180.0, 0.0);
    /// Over the link to a function in its own namespace, at tcx, in both directions, without a
    /// queue.
    #[serde(default = "default_link_tcx")]
    link_tcx = (150.0, 0.0);
    /// Over a descriptor ring to a worker process on another core: `mapping: pipeline` has one for
    /// each process after the first, and one for the return.
    #[serde(default = "default_ring")]
    ring = (250.0, 0.0);
    /// Wake-up of a sleeping worker. Not part of a predicted cost, because a busy worker does not
    /// pay it.
    wake_up = (33_000.0, 0.0);
}

/// Default for calibration files of earlier releases.
fn default_entry_link() -> Cost {
    StepCosts::default().entry_link
}

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
    /// Returns name and cost of a function's own link at a hook.
    pub(crate) fn link_at(&self, hook: Hook) -> (&'static str, Cost) {
        match hook {
            Hook::Tcx => ("link_tcx", self.link_tcx),
            Hook::Xdp | Hook::Auto => ("link", self.link),
        }
    }
}

/// The cost of a function kind in each space; `None` without a measurement.
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

/// Origin of the costs.
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
        /// Time of the measurement, RFC 3339.
        date: String,
    },
}

/// All costs for the planner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Version of the JSON form: [`VERSION`].
    pub version: u32,
    /// Origin of the figures.
    pub origin: Origin,
    /// The steps between functions.
    pub steps: StepCosts,
    /// Functions by the name of their kind. A missing kind or space has the catalogue's cost.
    pub functions: BTreeMap<String, FunctionCosts>,
    /// Black boxes by their command line: the time of a packet in a batch, from the ring at
    /// `ingress` to its sending, alone on a core. Only the turns of black boxes use it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub black_boxes: BTreeMap<String, Cost>,
    /// The stall of each measured core. Other cores have the worst of these stalls.
    #[serde(default)]
    pub stalls: BTreeMap<u32, Stall>,
    /// Worst-case cost as a multiple of the mean. 99 of 100 single packets, and the slowest of 8
    /// bursts, finish within one stall plus this multiple of the median.
    #[serde(default = "default_worst_case")]
    pub worst_case: f64,
    /// Cost of a packet in a burst. Without this measurement, the cost of a single packet applies.
    #[serde(default)]
    pub in_burst: Option<InBurst>,
    /// Longest time that a process keeps a core while another process waits for it, ns: the
    /// scheduler's slice, or its tick if that is longer.
    #[serde(default = "default_slice_ns")]
    pub slice_ns: u64,
    /// Longest time in which the control group of the agent may not run although it has work, ns.
    #[serde(skip)]
    pub pause_ns: u64,
    /// Source of `slice_ns`.
    #[serde(default)]
    pub slice_from: String,
}

/// The cost of a packet in a burst without functions and their calls. A single packet costs more,
/// because [`StepCosts::enter_user`] and [`StepCosts::user_egress`] include a notification and a
/// system call for this packet alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InBurst {
    /// A kernel chain: from the ring of the port's link to the redirect, with receive work, front
    /// door, one function and egress. Round trips do not show this cost, because a link without a
    /// chain has receive work too.
    pub kernel: Cost,
    /// A port's receive work with the front door, up to the ring of the worker's socket.
    pub port: Cost,
    /// The worker's cost from the socket's ring to the egress port.
    pub worker: Cost,
    /// Extra cost of a kernel function when packets of several chains with other functions
    /// alternate, because code and state of the function leave the caches near the core.
    #[serde(default)]
    pub kernel_function: Cost,
    /// Extra cost of a function in a worker when packets of several chains alternate.
    #[serde(default)]
    pub user_function: Cost,
}

/// Stall of a core without a measurement, ns: a timer interrupt with its softirqs, and a short
/// wake-up of another thread. This is an estimate for an idle machine; `myelin calibrate` measures
/// the stall.
pub const DEFAULT_STALL_NS: u64 = 20_000;

/// A stall that deserves a warning, ns: five times that of an idle core.
const LONG_STALL_NS: u64 = 5 * DEFAULT_STALL_NS;

/// Default for calibration files of earlier releases. This is an estimate; `myelin calibrate`
/// measures the ratio.
fn default_worst_case() -> f64 {
    1.5
}

/// Default without a measurement. EEVDF's slice (Linux 6.6 and later) is 1.4 ms with two cores and
/// 2.8 ms with eight or more. The tick is at most 10 ms, mostly 4 ms.
fn default_slice_ns() -> u64 {
    4_000_000
}

/// The stalls of a core, as seen by a thread that only reads the clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// The stall, ns. Longer gaps make up at most 0.1 % of the time. Interrupts, other threads and
    /// the hypervisor cause gaps.
    pub stall_ns: u64,
    /// Number of gaps in which the thread did not run.
    pub gaps: u64,
    /// Longest gap, ns.
    pub longest_ns: u64,
    /// Measured time, ns.
    pub observed_ns: u64,
    /// Share of the measured time that the hypervisor took, percent.
    pub steal_percent: f64,
    /// Share of the measured time in which other programs had the core, percent.
    #[serde(default)]
    pub others_percent: f64,
    /// Least and greatest stall of the single readings, ns. A large difference means that a load
    /// started or ended during the measurement.
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
            black_boxes: BTreeMap::new(),
            stalls: BTreeMap::new(),
            worst_case: default_worst_case(),
            in_burst: None,
            slice_ns: default_slice_ns(),
            pause_ns: 0,
            slice_from: String::new(),
        }
    }
}

impl Costs {
    /// Returns the cost of `kind` in `space`; `None` if the kind does not exist in that space.
    pub fn kind_cost(&self, kind: &Kind, space: Space) -> Option<Cost> {
        let default = kind.default_cost(space)?;
        let known = self.functions.get(kind.name);
        let known = known.and_then(|costs| match space {
            Space::Kernel => costs.kernel,
            Space::User => costs.user,
        });
        Some(known.unwrap_or(default))
    }

    /// Returns the cost of a function with this configuration in `space`; `None` if the function's
    /// kind does not exist in that space.
    pub fn function_cost(&self, config: &FunctionConfig, space: Space) -> Option<Cost> {
        let own = self.kind_cost(config.kind(), space)?;
        Some(own.plus(config.effect().busy))
    }

    /// Returns the costs as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Parses the JSON form and checks every figure.
    pub fn from_json(text: &str) -> Result<Self, CostsError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        // Another version may have any shape, so parse the version alone first.
        let Versioned { version } = serde_json::from_str(text).map_err(CostsError::Syntax)?;
        if version != VERSION {
            return Err(CostsError::Version { found: version });
        }
        let costs: Self = serde_json::from_str(text).map_err(CostsError::Syntax)?;
        costs.check()?;
        Ok(costs)
    }

    /// Returns warnings about stalls that are so long that admission refuses chains.
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
                    why.push("interrupts, or a hypervisor that reports no steal time".to_owned());
                }
                warnings.push(format!(
                    "core {core} stalled for up to {} us at a time ({}): admission refuses a `latency` \
                     below that, and below three times that with a shaper in its worker; stop other \
                     programs there (`isolcpus`, a cpuset) and calibrate again, or use another core \
                     (`worker: {{ cores: [N] }}`)",
                    us(stall.stall_ns),
                    why.join(", "),
                ));
            }
            if high_ns >= LONG_STALL_NS && high_ns > 10 * low_ns {
                warnings.push(format!(
                    "the readings of core {core} disagree, from {} to {} us: a program ran there for part of \
                     the time; calibrate under the machine's usual load",
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
        let black_boxes = self.black_boxes.iter();
        let black_boxes = black_boxes.map(|(command, cost)| (format!("`{command}`"), *cost));
        let in_burst = self.in_burst.into_iter().flat_map(|cost| {
            [
                ("a packet of a burst in the kernel", cost.kernel),
                ("a packet of a burst at the port", cost.port),
                ("a packet of a burst in a worker", cost.worker),
                ("a kernel function among other chains", cost.kernel_function),
                ("a user function among other chains", cost.user_function),
            ]
        });
        let named = self.steps.iter().chain(in_burst);
        let named = named.map(|(name, cost)| (name.to_owned(), cost));
        for (name, cost) in named.chain(functions).chain(black_boxes) {
            for value_ns in [cost.per_packet_ns, cost.per_byte_ns] {
                if !(0.0..=MAX_COST_NS).contains(&value_ns) {
                    return Err(CostsError::Figure { name, value_ns });
                }
            }
        }
        let name = "the ratio of worst case and mean".to_owned();
        if !(1.0..=MAX_WORST_CASE).contains(&self.worst_case) {
            let value = self.worst_case;
            return Err(CostsError::Ratio { name, value });
        }
        let stalls = self.stalls.iter();
        let stalls =
            stalls.map(|(core, stall)| (format!("a stall of core {core}"), stall.stall_ns));
        for (name, ns) in stalls.chain([("a slice of the scheduler".to_owned(), self.slice_ns)]) {
            let value_ns = ns as f64;
            if value_ns > MAX_COST_NS {
                return Err(CostsError::Figure { name, value_ns });
            }
        }
        Ok(())
    }
}

/// Greatest plausible ratio of worst case and mean.
const MAX_WORST_CASE: f64 = 1000.0;

/// Greatest plausible cost of a packet, ns.
const MAX_COST_NS: f64 = 1e9;

/// The reason why a text is not a valid cost file.
#[derive(Debug, thiserror::Error)]
pub enum CostsError {
    /// The text is not the JSON form of costs.
    #[error("not a cost file ({0}); run `myelin calibrate` to write a new one")]
    Syntax(#[source] serde_json::Error),
    /// The file has another version.
    #[error(
        "cost file of version {found}, but this release reads version {VERSION}; run `myelin calibrate` to write a new one"
    )]
    Version {
        /// Version of the file.
        found: u32,
    },
    /// A figure is no plausible cost.
    #[error(
        "the cost of {name} is {value_ns} ns, expected 0 to {MAX_COST_NS} ns; run `myelin calibrate` to measure it again"
    )]
    Figure {
        /// The step or function.
        name: String,
        /// The implausible cost, ns.
        value_ns: f64,
    },
    /// A ratio is not plausible.
    #[error(
        "{name} is {value}, expected 1 to {MAX_WORST_CASE}; run `myelin calibrate` to measure it again"
    )]
    Ratio {
        /// Name of the ratio.
        name: String,
        /// The implausible ratio.
        value: f64,
    },
}

#[cfg(test)]
mod tests {
    use myelin_spec::WorkConfig;

    use super::*;

    #[test]
    fn costs_round_trip_through_json() {
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
    fn long_stalls_and_readings_that_disagree_give_warnings() {
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
        assert!(short.is_empty(), "different, but all short: {short:?}");
        let found = warnings(4_000_000, [3_000_000, 5_000_000], [7.0, 0.0]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains("core 1 stalled for up to 4000 us")
                && found[0].contains("(other programs ran there for 7.0 % of the time)"),
            "{found:?}"
        );
        let found = warnings(4_000_000, [4_000_000; 2], [0.0, 2.5]);
        assert!(
            found[0].contains("(the hypervisor took 2.5 %)"),
            "{found:?}"
        );
        let found = warnings(4_000_000, [4_000_000; 2], [0.0; 2]);
        assert!(found[0].contains("(interrupts, or a hyper"), "{found:?}");
        let found = warnings(20_000, [10_000, 3_000_000], [0.0; 2]);
        assert!(found[0].contains("from 10 to 3000 us"), "{found:?}");
    }

    #[test]
    fn implausible_figures_are_refused() {
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
        let mut costs = Costs::default();
        let command = "bump {ingress}".to_owned();
        costs.black_boxes.insert(command, Cost::new(-1.0, 0.0));
        let error = Costs::from_json(&costs.to_json()).unwrap_err().to_string();
        assert!(
            error.starts_with("the cost of `bump {ingress}` is -1 ns"),
            "{error}"
        );
    }

    #[test]
    fn another_version_and_broken_json_are_different_errors() {
        let error = Costs::from_json(r#"{ "version": 2, "anything": [] }"#).unwrap_err();
        assert!(matches!(error, CostsError::Version { found: 2 }));
        assert!(matches!(Costs::from_json("{"), Err(CostsError::Syntax(_))));
        assert!(matches!(
            Costs::from_json(r#"{ "version": 1 }"#),
            Err(CostsError::Syntax(_))
        ));
    }

    #[test]
    fn unmeasured_kind_has_the_catalogues_cost() {
        let mut costs = Costs::default();
        costs.functions.clear();
        let xor = &myelin_spec::XOR;
        let cost = costs.kind_cost(xor, Space::User).unwrap();
        assert_eq!(
            Some(cost.per_packet_ns),
            xor.user.map(|cost| cost.per_packet_ns)
        );
        let mut absent = xor.clone();
        absent.user = None;
        assert_eq!(costs.kind_cost(&absent, Space::User), None);
    }

    #[test]
    fn configuration_cost_adds_to_the_kinds_cost() {
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
        let user = costs.function_cost(&config, Space::User);
        assert_eq!(user, Some(Cost::new(1007.0, 1.5)));
    }

    #[test]
    fn iter_lists_every_step() {
        let json = serde_json::to_value(StepCosts::default()).unwrap();
        assert_eq!(
            json.as_object().unwrap().len(),
            StepCosts::default().iter().count()
        );
    }
}
