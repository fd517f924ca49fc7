//! Known-bad systems. Each replaces a part of an experiment, so that its claims must turn false or
//! undecided. They show that the experiments can fail.

use std::fmt;

/// A fault that an experiment gets on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Workers sleep while they wait for packets.
    SleepingForwarder,
    /// The policer admits four times the profile.
    LeakyPolicer,
    /// A forwarder that swaps pairs of packets replaces the chain with mapping `compact`.
    ReorderingChain,
    /// The consumer of Myelin's ring waits 2 us before each batch.
    SlowRing,
    /// The clock of arrivals is 10 ms ahead.
    FastClock,
    /// The clock of arrivals is 10 ms behind.
    SlowClock,
    /// The generator sends half of the packets.
    HalfRateGenerator,
    /// Each of the 32 functions of a chain is an XOR over the whole packet.
    SlowFunction,
    /// `plan` runs on a program that waits 50 ms.
    SlowProgram,
    /// The links of the chains have no offloads.
    LinksWithoutOffloads,
    /// Fixed turns of 10 ms replace the policy `unis` on simulated cores.
    FixedTurns,
    /// A switch of `unis` costs 100 us on simulated cores.
    SlowSwitch,
    /// `unis` assumes ten times the cost of the second chain, and has no occupancy rule.
    WrongCosts,
    /// `unis` has no occupancy rule where it should.
    RuleOff,
    /// The second of two equal simulations has another seed.
    OtherSeed,
    /// UNiS has slices of a thousandth of a ring.
    ShortSlices,
    /// The algorithm `lb` takes the place of `delay`.
    PlaceByLoad,
    /// A star of hosts takes longer by the square of its hosts.
    QuadraticUp,
    /// A link of 10 ms has 11 ms.
    LongDelay,
    /// A control loop of 1 ms has 60 ms.
    SlowLoop,
    /// A hand-over by a futex takes a millisecond longer.
    SlowHandOver,
    /// Turns of 100 us, whatever the budgets, replace the policy `deadline`.
    TurnsWithoutBudget,
    /// Ten nodes take a second longer for each node more than one.
    SlowNodes,
    /// A chain counts as active a second before the request.
    EarlyActive,
    /// The nodes of Myelin's chains are twenty times as far from each other.
    FarNodes,
    /// Functions that the operating system should let share a core have a core each.
    OwnCores,
    /// Slices of `unis` without the occupancy rule where it should have it, on a live core.
    LiveRuleOff,
    /// A switch costs 30 us more in the simulation that is compared with a live core.
    DearSwitch,
    /// `deadline` keeps the core for a millisecond at a time.
    LongTurns,
    /// The controller removes the old service before it starts the new one.
    RemoveFirst,
    /// A service pauses before it sends its state.
    SlowExport,
    /// The workers of a shared core have a core each.
    SpreadWorkers,
    /// The guardian of a preemptor is stopped.
    DeafGuardian,
    /// The operating system shares the core in place of the policy `deadline`.
    KernelTurns,
    /// `auto` leaves the core to the operating system.
    AutoByKernel,
    /// The operating system shares a core whose functions should take turns.
    NoTurns,
    /// Turns of 2 ms replace the policy `unis` on a live core.
    SlowUnis,
    /// The shortest slices are a hundred times shorter, on a live core.
    TinySlices,
    /// To bring up a chain takes 20 s longer.
    SlowRendering,
    /// A chain has a function less than it should.
    ShortChain,
    /// The placement `lb` takes the place of the others, and another one its place.
    SwappedPlacements,
    /// A control loop of 50 ms has 1 ms, and one of 40 ms has 60 ms.
    SwappedLoops,
    /// No chain has the datagrams of the first control loop.
    UnchainedLoops,
    /// Containers get twice the processor time that was asked.
    WrongShares,
    /// Two containers start in place of one.
    TwoStarts,
    /// The agent needs ten times the time and the memory for a star of hosts.
    HeavyStar,
    /// The Python package waits for seconds before a star and an import, and before each command.
    SlowPython,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 47] = [
        Self::SleepingForwarder,
        Self::LeakyPolicer,
        Self::ReorderingChain,
        Self::SlowRing,
        Self::FastClock,
        Self::SlowClock,
        Self::HalfRateGenerator,
        Self::SlowFunction,
        Self::SlowProgram,
        Self::LinksWithoutOffloads,
        Self::FixedTurns,
        Self::SlowSwitch,
        Self::WrongCosts,
        Self::RuleOff,
        Self::OtherSeed,
        Self::ShortSlices,
        Self::PlaceByLoad,
        Self::QuadraticUp,
        Self::LongDelay,
        Self::SlowLoop,
        Self::SlowHandOver,
        Self::TurnsWithoutBudget,
        Self::SlowNodes,
        Self::EarlyActive,
        Self::FarNodes,
        Self::OwnCores,
        Self::LiveRuleOff,
        Self::DearSwitch,
        Self::LongTurns,
        Self::RemoveFirst,
        Self::SlowExport,
        Self::SpreadWorkers,
        Self::DeafGuardian,
        Self::KernelTurns,
        Self::AutoByKernel,
        Self::NoTurns,
        Self::SlowUnis,
        Self::TinySlices,
        Self::SlowRendering,
        Self::ShortChain,
        Self::SwappedPlacements,
        Self::SwappedLoops,
        Self::UnchainedLoops,
        Self::WrongShares,
        Self::TwoStarts,
        Self::HeavyStar,
        Self::SlowPython,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::SleepingForwarder => "sleeping-forwarder",
            Self::LeakyPolicer => "leaky-policer",
            Self::ReorderingChain => "reordering-chain",
            Self::SlowRing => "slow-ring",
            Self::FastClock => "fast-clock",
            Self::SlowClock => "slow-clock",
            Self::HalfRateGenerator => "half-rate-generator",
            Self::SlowFunction => "slow-function",
            Self::SlowProgram => "slow-program",
            Self::LinksWithoutOffloads => "links-without-offloads",
            Self::FixedTurns => "fixed-turns",
            Self::SlowSwitch => "slow-switch",
            Self::WrongCosts => "wrong-costs",
            Self::RuleOff => "rule-off",
            Self::OtherSeed => "other-seed",
            Self::ShortSlices => "short-slices",
            Self::PlaceByLoad => "place-by-load",
            Self::QuadraticUp => "quadratic-up",
            Self::LongDelay => "long-delay",
            Self::SlowLoop => "slow-loop",
            Self::SlowHandOver => "slow-hand-over",
            Self::TurnsWithoutBudget => "turns-without-budget",
            Self::SlowNodes => "slow-nodes",
            Self::EarlyActive => "early-active",
            Self::FarNodes => "far-nodes",
            Self::OwnCores => "own-cores",
            Self::LiveRuleOff => "live-rule-off",
            Self::DearSwitch => "dear-switch",
            Self::LongTurns => "long-turns",
            Self::RemoveFirst => "remove-first",
            Self::SlowExport => "slow-export",
            Self::SpreadWorkers => "spread-workers",
            Self::DeafGuardian => "deaf-guardian",
            Self::KernelTurns => "kernel-turns",
            Self::AutoByKernel => "auto-by-kernel",
            Self::NoTurns => "no-turns",
            Self::SlowUnis => "slow-unis",
            Self::TinySlices => "tiny-slices",
            Self::SlowRendering => "slow-rendering",
            Self::ShortChain => "short-chain",
            Self::SwappedPlacements => "swapped-placements",
            Self::SwappedLoops => "swapped-loops",
            Self::UnchainedLoops => "unchained-loops",
            Self::WrongShares => "wrong-shares",
            Self::TwoStarts => "two-starts",
            Self::HeavyStar => "heavy-star",
            Self::SlowPython => "slow-python",
        }
    }

    /// The experiment that has the fault, and parts of the names of the claims that it must turn.
    pub fn target(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::SleepingForwarder => ("hop-cost", &["user / "]),
            Self::LeakyPolicer => ("rate-isolation", &["flooded neighbour, policed, of what"]),
            Self::ReorderingChain => ("calvin-bandwidth", &["compact / centralized as published"]),
            Self::SlowRing => ("rings", &["throughput / "]),
            Self::FastClock => ("bound", &["delays above the bound"]),
            Self::SlowClock => ("bound", &["policed or lost"]),
            Self::HalfRateGenerator => ("rate-isolation", &["policed, of packets"]),
            Self::SlowFunction => ("kernel-chain", &["each further function"]),
            Self::SlowProgram => ("deploy", &["plan, ms"]),
            Self::LinksWithoutOffloads => ("bulk", &["TCP bulk, kernel chain"]),
            Self::FixedTurns => ("unis-batches", &["same mechanism, unis / cooperative"]),
            Self::SlowSwitch => (
                "unis-density",
                &["same mechanism, unis / cooperative k=8, light"],
            ),
            Self::WrongCosts => ("unis-multi", &["unis, difference of S1 and S2"]),
            Self::RuleOff => (
                "unis-occupancy",
                &["rule on, slices of 125 % / 75 %, switch of 1 us"],
            ),
            Self::OtherSeed => ("unis-scale", &["cores that differ"]),
            Self::ShortSlices => ("unis-throughput", &["unis / cooperative k=8, 8 light"]),
            Self::PlaceByLoad => ("placement", &["simulated chains, delay"]),
            Self::QuadraticUp => ("emulator-scale", &["hosts / "]),
            Self::HeavyStar => ("emulator-scale", &["mininet / myelin"]),
            Self::SlowPython => ("emulator-scale", &["python / ", "/ python", "import, "]),
            Self::LongDelay => ("emulator-fidelity", &["10 ms of delay"]),
            Self::SlowLoop => ("pendulum", &["1 ms, "]),
            Self::SlowHandOver => (
                "switch-cost",
                &["lost, futex / ", "until the next one runs, futex / weights"],
            ),
            Self::TurnsWithoutBudget => ("sharing-delay", &["beside a backlog, p99, deadline / "]),
            Self::SlowNodes => ("sfc-rendering", &["nodes / 1 node"]),
            Self::EarlyActive => ("sfc-gap", &["packets after active", "gap, "]),
            Self::FarNodes => (
                "sfc-owd",
                &["/ kernel forwarding", "/ function in", "VXLAN / "],
            ),
            Self::OwnCores => ("unis-motivation", &["class / own cores"]),
            Self::LiveRuleOff => ("unis-slices", &["rule on, slices of 125 % / 75 %"]),
            Self::DearSwitch => ("unis-agreement", &["throughput, difference"]),
            Self::LongTurns => ("unis-latency", &["deadline / unis"]),
            Self::SpreadWorkers => ("switch-cost", &["hand-over, workers"]),
            Self::DeafGuardian => ("switch-cost", &["tasks are the kernel's again"]),
            Self::KernelTurns => (
                "sharing-delay",
                &[
                    "p99, deadline / unis",
                    "packets out of those sent",
                    "packets of the backlog",
                ],
            ),
            Self::AutoByKernel => ("sharing-delay", &["p99, auto / "]),
            Self::NoTurns => (
                "unis-motivation",
                &["unis / own cores", "deadline / own cores"],
            ),
            Self::SlowUnis => ("unis-latency", &["mean delay, unis"]),
            Self::TinySlices => ("unis-slices", &["slices of 25 % / 75 %"]),
            Self::SlowRendering => (
                "sfc-rendering",
                &["functions, lb, s", "functions in Python"],
            ),
            Self::ShortChain => (
                "sfc-gap",
                &["packets after active", "packets that passed some functions"],
            ),
            Self::SwappedPlacements => ("sfc-owd", &[" / lb"]),
            Self::SwappedLoops => ("pendulum", &["50 ms, ", "40 ms, "]),
            Self::UnchainedLoops => ("pendulum", &["datagrams that the chains forwarded"]),
            Self::WrongShares => ("containers", &["deviation"]),
            Self::TwoStarts => ("containers", &["start, myelin / runc"]),
            Self::RemoveFirst => ("migration", &["station, datagrams without an answer"]),
            Self::SlowExport => ("migration", &["interruption with state / transfer"]),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = Self::ALL.into_iter().find(|fault| fault.name() == text);
        fault.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no fault `{text}`; the faults are {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_a_name_and_an_experiment() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
            let (experiment, _) = fault.target();
            let mut all = crate::experiments().iter();
            assert!(all.any(|one| one.name == experiment), "{experiment}");
        }
        assert!("none".parse::<Fault>().unwrap_err().contains("slow-ring"));
    }
}
