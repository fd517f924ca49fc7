//! Delay bounds under earliest deadline first, with turns that run to their end.

use super::rounding::mul_div_up;
use super::{ArrivalCurve, LeakyBucket, RateLatency, SECOND, after_delay, busy_period};

/// A task of a core that runs the waiting packet with the earliest deadline first, in turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlineTask {
    /// Processor work of the packets without switches, fs. Packets count when they are stamped.
    pub arrival: ArrivalCurve,
    /// Most turns that the packets of an interval need. This is the number of packets, because a
    /// packet may be alone in its turn, unless the task waits for full batches.
    pub turns: ArrivalCurve,
    /// Time from the stamp to the deadline of each packet, fs.
    pub deadline_fs: u128,
    /// Longest time from the stamp of a packet to its arrival at the core, fs.
    pub earlier_fs: u128,
    /// Most work of one turn, fs.
    pub turn_fs: u128,
    /// Most work of one turn behind its first packet, fs. Zero if a turn has one packet.
    pub tail_fs: u128,
}

/// The longest time until the end of a packet's turn, fs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlineBound {
    /// From the stamp.
    pub from_stamp_fs: u128,
    /// From the arrival at the core.
    pub at_core_fs: u128,
}

/// Returns the bounds of each of the `tasks`; `None` if there is no bound.
///
/// The bounds are valid whether or not the tasks meet their deadlines. For turns of one packet they
/// are within the deadlines under the condition of Liebeherr, Wrege and Ferrari 1996, who prove it
/// exact. Later packets in a turn with an urgent packet count as well.
/// `switch_fs` is the cost of a turn besides its packets. `service` is that of the core. Proof:
/// `docs/guarantees/proofs.md`, theorem 13.
pub fn earliest_deadline(
    service: &RateLatency,
    tasks: &[DeadlineTask],
    switch_fs: u128,
) -> Option<Vec<DeadlineBound>> {
    let all = ways_to_count(tasks);
    let bounds = all.filter_map(|uncounted| bounds_with(service, tasks, switch_fs, uncounted));
    bounds.reduce(|least, other| {
        let pairs = least.into_iter().zip(other);
        let least = pairs.map(|(one, other)| DeadlineBound {
            from_stamp_fs: one.from_stamp_fs.min(other.from_stamp_fs),
            at_core_fs: one.at_core_fs.min(other.at_core_fs),
        });
        least.collect()
    })
}

/// Returns the longest time in which the core always has work of the `tasks`, fs; `None` if there
/// is no bound.
pub fn busy_with_turns(
    service: &RateLatency,
    tasks: &[DeadlineTask],
    switch_fs: u128,
) -> Option<u128> {
    let times = ways_to_count(tasks).filter_map(|uncounted| {
        let (loads, first_fs) = loads(tasks, switch_fs, uncounted)?;
        let last_fs = loads.iter().map(|load| load.first_due_fs).max()?;
        Phase::at(&loads, first_fs, last_fs, None).busy_fs(service)
    });
    times.min()
}

/// Returns the ways to count switches: one for each turn, or two for each turn of all tasks but
/// one, and one more.
fn ways_to_count(tasks: &[DeadlineTask]) -> impl Iterator<Item = Option<usize>> {
    std::iter::once(None).chain((0..tasks.len()).map(Some))
}

/// Returns the tasks with their switches, counted by the turns of all tasks but `uncounted`; and
/// the switches that these do not contain, fs.
fn loads(
    tasks: &[DeadlineTask],
    switch_fs: u128,
    uncounted: Option<usize>,
) -> Option<(Vec<Load>, u128)> {
    let loads = tasks.iter().enumerate().map(|(index, task)| {
        let switches = match uncounted {
            None => 1,
            Some(uncounted) if uncounted == index => 0,
            Some(_) => 2,
        };
        Load::of(task, switch_fs, switches)
    });
    let first_fs = uncounted.map_or(0, |_| switch_fs);
    Some((loads.collect::<Option<_>>()?, first_fs))
}

/// Returns the bounds if the switches are counted by the turns of all tasks but `uncounted`.
fn bounds_with(
    service: &RateLatency,
    tasks: &[DeadlineTask],
    switch_fs: u128,
    uncounted: Option<usize>,
) -> Option<Vec<DeadlineBound>> {
    let (loads, first_fs) = loads(tasks, switch_fs, uncounted)?;
    let starts = loads
        .iter()
        .flat_map(|load| [load.first_due_fs, load.deadline_fs]);
    let mut starts: Vec<_> = starts.collect();
    starts.sort_unstable();
    starts.dedup();
    let phases = starts.iter().enumerate().map(|(index, start_fs)| {
        let phase = Phase::at(&loads, first_fs, *start_fs, starts.get(index + 1).copied());
        Some((*start_fs, phase.max_lateness_fs(service)?))
    });
    let phases: Vec<_> = phases.collect::<Option<_>>()?;
    let lateness_from_fs = |first_fs: i128| {
        let later = phases.iter().filter(|(start_fs, _)| *start_fs >= first_fs);
        later.map(|(_, lateness_fs)| *lateness_fs).max()
    };
    let bounds = tasks.iter().zip(&loads).map(|(task, load)| {
        let bound_fs = |first_fs| {
            task.deadline_fs
                .checked_add_signed(lateness_from_fs(first_fs)?)
        };
        Some(DeadlineBound {
            from_stamp_fs: bound_fs(load.first_due_fs)?,
            at_core_fs: bound_fs(load.deadline_fs)?,
        })
    });
    bounds.collect()
}

/// A task with its switches.
#[derive(Debug)]
struct Load {
    /// Work of the packets with a switch for each turn, by stamp.
    work: ArrivalCurve,
    /// The same work, by arrival at the core.
    at_core: ArrivalCurve,
    /// Shortest time from the arrival at the core to the deadline, fs.
    first_due_fs: i128,
    /// Time from the stamp to the deadline, fs.
    deadline_fs: i128,
    /// Most work of one turn with its switch, fs.
    turn_fs: u128,
    tail_fs: u128,
}

impl Load {
    /// Creates the load with a number of switches for each turn.
    fn of(task: &DeadlineTask, switch_fs: u128, switches: u128) -> Option<Self> {
        let switches_fs = switch_fs.checked_mul(switches)?;
        let work = task.arrival.plus(&task.turns.times(switches_fs)?)?;
        let deadline_fs = i128::try_from(task.deadline_fs).ok()?;
        Some(Self {
            at_core: after_delay(&work, task.earlier_fs)?,
            work,
            first_due_fs: deadline_fs.checked_sub_unsigned(task.earlier_fs)?,
            deadline_fs,
            turn_fs: task.turn_fs.checked_add(switch_fs)?,
            tail_fs: task.tail_fs,
        })
    }

    /// Returns the most work that has its deadline within `time_fs`.
    fn due(&self, time_fs: i128) -> Option<u128> {
        let time_fs = time_fs.checked_sub(self.first_due_fs)?;
        self.work.at(u128::try_from(time_fs).ok()?)
    }
}

/// Times from the begin of a busy period to a deadline, for which the same tasks have due packets.
#[derive(Debug)]
struct Phase<'a> {
    start_fs: i128,
    end_fs: Option<i128>,
    /// Tasks whose packets may be due before the deadline.
    due: Vec<&'a Load>,
    /// Longest turn of the other tasks, fs.
    blocking_fs: u128,
    /// Switches that no turn of a counted task contains, fs.
    first_fs: u128,
}

impl<'a> Phase<'a> {
    fn at(loads: &'a [Load], first_fs: u128, start_fs: i128, end_fs: Option<i128>) -> Self {
        let (due, later): (Vec<_>, Vec<_>) =
            loads.iter().partition(|load| load.first_due_fs <= start_fs);
        let turns = later.iter().map(|load| load.turn_fs);
        Self {
            start_fs,
            end_fs,
            due,
            blocking_fs: turns.max().unwrap_or(0),
            first_fs,
        }
    }

    /// Returns the longest time from a deadline to the end of the packet's turn, fs; negative if
    /// all packets leave before. `None` if there is no bound.
    fn max_lateness_fs(&self, service: &RateLatency) -> Option<i128> {
        let longest_fs = self.busy_fs(service);
        let ahead_fs = self.blocking_fs.checked_add(self.tails_fs(longest_fs)?)?;
        let ahead_fs = ahead_fs.checked_add(self.first_fs)?;
        // The lateness if the work is that of `time_fs`, but the deadline is at `deadline_fs`.
        let late_fs = |time_fs: i128, deadline_fs: i128| {
            let mut due = self.due.iter();
            let work_fs =
                due.try_fold(ahead_fs, |sum, load| sum.checked_add(load.due(time_fs)?))?;
            let leaves_fs = mul_div_up(work_fs, SECOND, service.rate)?;
            let leaves_fs = leaves_fs.checked_add(service.latency_fs)?;
            i128::try_from(leaves_fs).ok()?.checked_sub(deadline_fs)
        };
        // Between the start, the crossovers and the end, lateness is linear in time.
        let mut lateness_fs = late_fs(self.start_fs, self.start_fs)?;
        let mut rate = 0_u128;
        for load in &self.due {
            let (short, long) = (load.work.short(), load.work.long());
            rate = rate.checked_add(long.rate)?;
            if short.rate <= long.rate {
                continue;
            }
            let (crossover_fs, _) = load.work.crossover()?;
            let time_fs = load.first_due_fs.checked_add_unsigned(crossover_fs)?;
            if time_fs >= self.start_fs && self.end_fs.is_none_or(|end_fs| time_fs < end_fs) {
                // The curves cross within the next femtosecond.
                lateness_fs = lateness_fs.max(late_fs(time_fs.checked_add(1)?, time_fs)?);
            }
        }
        if let Some(end_fs) = self.end_fs {
            lateness_fs = lateness_fs.max(late_fs(end_fs, end_fs)?);
        } else if rate > service.rate {
            return None;
        }
        let Some(longest_fs) = longest_fs else {
            return Some(lateness_fs);
        };
        let by_busy_fs = i128::try_from(longest_fs).ok()?;
        Some(lateness_fs.min(by_busy_fs.checked_sub(self.start_fs)?))
    }

    /// Returns the longest time in which the core works on due tasks only, after a turn that
    /// blocks, fs; `None` if there is no bound.
    fn busy_fs(&self, service: &RateLatency) -> Option<u128> {
        let once_fs = self.blocking_fs.checked_add(self.first_fs)?;
        let blocking = ArrivalCurve::of(LeakyBucket::new(once_fs, 0));
        let mut loads = self.due.iter();
        let all = loads.try_fold(blocking, |sum, load| sum.plus(&load.at_core))?;
        // No packet returns to the core.
        busy_period(&all, &ArrivalCurve::default(), service)
    }

    /// Returns the work of packets with later deadlines in turns of due tasks, fs. A tail has at
    /// most the packets that arrive in `longest_fs` beyond the burst.
    fn tails_fs(&self, longest_fs: Option<u128>) -> Option<u128> {
        self.due.iter().try_fold(0_u128, |sum, load| {
            let later = longest_fs
                .and_then(|longest_fs| load.at_core.at(longest_fs)?.checked_sub(load.work.at(0)?));
            sum.checked_add(later.map_or(load.tail_fs, |later| later.min(load.tail_fs)))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::arrival::tests::curve_with_crossover;
    use super::*;
    use crate::calculus::delay;

    /// Femtoseconds of a microsecond.
    const US: u128 = SECOND / 1_000_000;

    /// A task in microseconds and packets.
    #[derive(Debug, Clone, Copy, Default)]
    struct Drawn {
        burst: u128,
        /// Time between packets in the long term; 0 for no packets after the burst.
        period: u128,
        /// Time between any two packets.
        peak: u128,
        /// Greatest work of a packet.
        work: u128,
        deadline: u128,
        earlier: u128,
        /// Most packets of a turn.
        batch: u128,
    }

    /// A packet: its stamp, its arrival at the core and its work, us.
    type Packet = (u128, u128, u128);

    impl Drawn {
        fn new(burst: u128, period: u128, work: u128, deadline: u128) -> Self {
            Self {
                burst,
                period,
                work,
                deadline,
                batch: 1,
                ..Self::default()
            }
        }

        fn task(&self) -> DeadlineTask {
            let bucket = |burst, period: u128| {
                let rate = (SECOND / US).checked_div(period);
                LeakyBucket::new(burst, rate.map_or(0, |rate| rate + 1))
            };
            let mean = bucket(self.burst, self.period);
            let turns = if self.peak > 0 {
                ArrivalCurve::least_of([bucket(1, self.peak), mean]).unwrap()
            } else {
                ArrivalCurve::of(mean)
            };
            DeadlineTask {
                arrival: turns.times(self.work * US).unwrap(),
                turns,
                deadline_fs: self.deadline * US,
                earlier_fs: self.earlier * US,
                turn_fs: self.batch * self.work * US,
                tail_fs: (self.batch - 1) * self.work * US,
            }
        }

        /// Returns packets that conform to the arrival curve. Each has a gap to the packet before,
        /// a delay before the core, and a part of the greatest work that it does not need.
        fn send(&self, drawn: &[(u128, u128, u128)]) -> Vec<Packet> {
            let mut packets: Vec<Packet> = Vec::new();
            for (gap, before_core, less) in drawn {
                let (last, arrived, _) = packets.last().copied().unwrap_or_default();
                let earliest = packets.iter().enumerate().map(|(index, (stamp, _, _))| {
                    let number = (packets.len() - index + 1) as u128;
                    let mean = number.saturating_sub(self.burst) * self.period;
                    stamp + mean.max((number - 1) * self.peak)
                });
                let stamp = earliest.fold(last + gap, u128::max);
                let arrival = arrived.max(stamp + before_core.min(&self.earlier));
                packets.push((stamp, arrival, self.work.saturating_sub(*less).max(1)));
            }
            packets
        }
    }

    /// Returns the longest delay of each task from the stamp, us. A turn of another task than the
    /// last one costs a switch. The core stalls for `stall.1` after it has chosen turn `stall.0` of
    /// a busy period. Of simultaneous packets that end its idle time, it serves the last task. Of
    /// equal deadlines, it serves the last task.
    fn simulate(sent: &[(Drawn, Vec<Packet>)], switch: u128, stall: (usize, u128)) -> Vec<u128> {
        let longest = simulate_both(sent, switch, stall).into_iter();
        longest.map(|[from_stamp, _]| from_stamp).collect()
    }

    /// Like [`simulate`], from the stamp and from the arrival at the core.
    fn simulate_both(
        sent: &[(Drawn, Vec<Packet>)],
        switch: u128,
        stall: (usize, u128),
    ) -> Vec<[u128; 2]> {
        let (mut next, mut longest) = (vec![0; sent.len()], vec![[0; 2]; sent.len()]);
        let (mut now, mut turns, mut last) = (0, 0, None);
        loop {
            let heads = sent.iter().enumerate().filter_map(|(task, (drawn, all))| {
                let (stamp, arrival, _) = all.get(next[task])?;
                Some((*arrival, stamp + drawn.deadline, task))
            });
            let heads: Vec<_> = heads.collect();
            let Some(first) = heads.iter().map(|(arrival, ..)| *arrival).min() else {
                return longest;
            };
            let mut waiting = heads
                .iter()
                .filter(|(arrival, ..)| *arrival <= now.max(first));
            let chosen = if first >= now {
                waiting.next_back()
            } else {
                waiting.min_by_key(|(_, deadline, task)| (*deadline, sent.len() - task))
            };
            if first > now {
                (now, turns) = (first, 0);
            }
            let (_, _, task) = *chosen.unwrap();
            let (drawn, packets) = &sent[task];
            let switch = if last == Some(task) { 0 } else { switch };
            now += switch + if turns == stall.0 { stall.1 } else { 0 };
            (turns, last) = (turns + 1, Some(task));
            let from = next[task];
            // Packets that arrive in the turn join it.
            while let Some((_, _, work)) = packets.get(next[task]).filter(|(_, arrival, _)| {
                next[task] - from < drawn.batch as usize && *arrival <= now
            }) {
                now += work;
                next[task] += 1;
            }
            for (stamp, arrival, _) in &packets[from..next[task]] {
                let [from_stamp, at_core] = longest[task];
                longest[task] = [from_stamp.max(now - stamp), at_core.max(now - arrival)];
            }
        }
    }

    fn all_bounds(tasks: &[Drawn], switch: u128, stall: u128) -> Option<Vec<DeadlineBound>> {
        let tasks: Vec<_> = tasks.iter().map(Drawn::task).collect();
        earliest_deadline(&RateLatency::core(stall * US), &tasks, switch * US)
    }

    fn bounds(tasks: &[Drawn], switch: u128, stall: u128) -> Option<Vec<u128>> {
        let bounds = all_bounds(tasks, switch, stall)?.into_iter();
        Some(bounds.map(|bound| bound.from_stamp_fs).collect())
    }

    #[test]
    fn urgent_packet_waits_for_one_later_turn() {
        let tasks = [Drawn::new(1, 0, 2, 5), Drawn::new(1, 0, 4, 20)];
        assert_eq!(bounds(&tasks, 0, 0), Some(vec![6 * US, 6 * US]));
        assert_eq!(
            bounds(&tasks, 1, 0),
            Some(vec![8 * US, 8 * US]),
            "two switches"
        );
        assert_eq!(bounds(&tasks, 0, 3), Some(vec![9 * US, 9 * US]), "a stall");
        let sent = tasks.map(|task| (task, task.send(&[(0, 0, 0)])));
        assert_eq!(simulate(&sent, 1, (0, 3)), [11, 8]);
        assert_eq!(bounds(&tasks, 1, 3), Some(vec![11 * US, 11 * US]));
        // With a deadline of 6 us, the first packet is in time.
        let tasks = [Drawn::new(1, 0, 2, 6), tasks[1]];
        assert_eq!(bounds(&tasks, 0, 0), Some(vec![6 * US, 6 * US]));
        // A packet that reaches the core 3 us after its stamp has less time.
        let late = Drawn {
            earlier: 3,
            ..tasks[0]
        };
        assert_eq!(bounds(&[late], 0, 0), Some(vec![5 * US]));
    }

    #[test]
    fn turn_with_an_urgent_packet_has_a_tail_of_later_ones() {
        let batched = Drawn {
            batch: 4,
            ..Drawn::new(1, 2, 1, 10)
        };
        let tasks = [Drawn::new(1, 0, 1, 10), batched];
        // During a stall of 6 us, three packets join the urgent packet of the second task.
        let sent = [
            (tasks[0], tasks[0].send(&[(0, 0, 0)])),
            (tasks[1], tasks[1].send(&[(0, 0, 0); 4])),
        ];
        assert_eq!(simulate(&sent, 0, (0, 6))[0], 11);
        assert_eq!(bounds(&tasks, 0, 6).unwrap()[0], 11 * US);
        // Three packets of 2 us reach the core together.
        let late = Drawn {
            earlier: 16,
            batch: 3,
            ..Drawn::new(1, 8, 2, 26)
        };
        let packets = late.send(&[(0, 16, 0), (0, 8, 0), (0, 0, 0)]);
        let sent = [(tasks[0], tasks[0].send(&[(16, 0, 0)])), (late, packets)];
        assert_eq!(simulate(&sent, 0, (0, 0))[0], 7);
        assert_eq!(bounds(&[tasks[0], late], 0, 0).unwrap()[0] / US, 7);
    }

    #[test]
    fn lateness_grows_up_to_the_first_deadline_of_the_blocking_task() {
        let fast = Drawn {
            peak: 1,
            ..Drawn::new(6, 40, 2, 5)
        };
        let blocking = Drawn {
            batch: 4,
            ..Drawn::new(1, 0, 2, 8)
        };
        // A turn of 8 us, and four packets of 2 us that are due within 8 us.
        assert_eq!(bounds(&[fast, blocking], 0, 0).unwrap()[0] / US, 16 - 8 + 5);
    }

    #[test]
    fn only_packets_of_one_busy_period_count() {
        let sparse = Drawn {
            batch: 30,
            ..Drawn::new(1, 1000, 1, 5)
        };
        let tasks = [Drawn::new(10, 2, 1, 5), sparse];
        assert_eq!(bounds(&tasks, 0, 0).unwrap()[0] / US, 11, "no tail");
        let tasks = [Drawn::new(1, 4, 2, 10), Drawn::new(1, 0, 3, 1000)];
        let bounds = bounds(&tasks, 0, 0).unwrap();
        assert_eq!(bounds[1] / US, 10, "5 us at half the core");
    }

    #[test]
    fn a_task_with_many_packets_needs_no_more_turns_than_the_others() {
        // A packet each 5 us beside a packet each 1000 us: a switch of 5 us for each is too much.
        let tasks = [Drawn::new(1, 1000, 1, 50), Drawn::new(1, 5, 1, 200)];
        let least = bounds(&tasks, 5, 0).unwrap()[0] / US;
        let sent = tasks.map(|task| (task, task.send(&vec![(0, 0, 0); 400])));
        let longest = simulate(&sent, 5, (0, 0))[0];
        assert!(longest <= least && least < 50, "{longest} {least}");
    }

    #[test]
    fn overload_and_overflow_have_no_bound() {
        let tasks = [Drawn::new(1, 4, 2, 5), Drawn::new(1, 4, 1, 5)];
        assert!(bounds(&tasks, 0, 0).is_some());
        assert_eq!(bounds(&tasks, 1, 0), None, "each packet may need a switch");
        assert_eq!(
            earliest_deadline(&RateLatency::core(0), &[], 0),
            Some(vec![])
        );
        let task = tasks[0].task();
        for field in 0..3 {
            let mut endless = task;
            *[
                &mut endless.deadline_fs,
                &mut endless.turn_fs,
                &mut endless.earlier_fs,
            ][field] = u128::MAX;
            let tasks = [task, endless];
            assert_eq!(earliest_deadline(&RateLatency::core(0), &tasks, 1), None);
        }
    }

    proptest! {
        /// Packets have gaps, delays before the core, and work below the greatest. Most are greedy.
        #[test]
        fn no_packet_exceeds_the_bound(
            tasks in prop::collection::vec((
                (1_u128..7, 8_u128..80, 1_u128..7, 0_u128..100),
                (prop_oneof![Just(0_u128), 1_u128..12], prop_oneof![Just(0_u128), 0_u128..30], 1_u128..6),
                prop::collection::vec((
                    prop_oneof![3 => Just(0_u128), 1 => 0_u128..90], 0_u128..40,
                    prop_oneof![3 => Just(0_u128), 1 => 0_u128..6],
                ), 1..40),
            ), 1..5),
            switch in 0_u128..3, stall in (0_usize..6, 0_u128..20),
        ) {
            let sent: Vec<_> = tasks.into_iter().map(|(traffic, (peak, earlier, batch), packets)| {
                let (burst, period, work, deadline) = traffic;
                let drawn = Drawn { peak, earlier, batch, ..Drawn::new(burst, period, work, deadline) };
                (drawn, drawn.send(&packets))
            }).collect();
            let drawn: Vec<_> = sent.iter().map(|(drawn, _)| *drawn).collect();
            if let Some(bounds) = all_bounds(&drawn, switch, stall.1) {
                for (took, bound) in simulate_both(&sent, switch, stall).iter().zip(&bounds) {
                    let bound = [bound.from_stamp_fs, bound.at_core_fs];
                    let holds = took.iter().zip(bound).all(|(took, bound)| took * US <= bound);
                    prop_assert!(holds, "{:?} us above {:?} fs", took, bound);
                }
            }
        }

        /// Turns have one packet. The first task sends its burst so that it is due with another
        /// task; a turn of the last task blocks. The worst of these runs meets the bound.
        #[test]
        fn bursts_meet_the_bound_exactly(
            drawn in prop::collection::vec((1_u128..7, 1_u128..9, 0_u128..60), 1..5), stall in 0_u128..9,
        ) {
            let (mut works, mut deadlines): (Vec<_>, Vec<_>) =
                drawn.iter().map(|(_, work, deadline)| (*work, *deadline)).unzip();
            works.sort_unstable();
            deadlines.sort_unstable();
            let tasks: Vec<_> = drawn.iter().zip(works.iter().zip(&deadlines))
                .map(|((burst, ..), (work, deadline))| Drawn::new(*burst, 0, *work, *deadline))
                .collect();
            let longest = deadlines.iter().map(|due| {
                let sent: Vec<_> = tasks.iter().enumerate().map(|(index, task)| {
                    let start = if index == 0 { due - deadlines[0] } else { 0 };
                    (*task, vec![(start, start, task.work); task.burst as usize])
                }).collect();
                simulate(&sent, 0, (0, stall))[0]
            });
            let bound = bounds(&tasks, 0, stall).unwrap()[0];
            prop_assert_eq!(longest.max().unwrap() * US, bound);
        }

        /// A lone task whose turns have one packet is first come, first served.
        #[test]
        fn lone_task_has_the_delay_of_first_come_first_served(
            arrival in curve_with_crossover(), rate in 20_u128..500, deadline in 0_u128..9,
        ) {
            let task = DeadlineTask {
                arrival,
                turns: ArrivalCurve::default(),
                deadline_fs: deadline * SECOND,
                earlier_fs: 0,
                turn_fs: 0,
                tail_fs: 0,
            };
            let service = RateLatency::new(rate, SECOND / 10);
            let bound = earliest_deadline(&service, &[task], 0).unwrap()[0].from_stamp_fs;
            let expected = delay(&arrival, &service).unwrap();
            // At the crossover a part of a unit may have arrived.
            prop_assert!(bound.abs_diff(expected) <= SECOND / rate + 2, "{} not {}", bound, expected);
        }
    }
}
