//! Tests that no packet of a simulation exceeds its bound. The simulation has functions that extend
//! frames, decoders that release several packets together, and shapers whose departures precede
//! arrivals.

#[allow(dead_code)]
mod common;

use std::collections::VecDeque;

use common::machine;
use common::node::{bound, chain_on_shared_ports, plan_on_node};
use myelin_packet::traffic::Bucket;
use myelin_planner::Machine;
use myelin_planner::admission::{Booking, Ledger, Resource};
use proptest::prelude::*;

const NS: u128 = 1_000_000;
const SECOND: u128 = 1_000_000_000 * NS;

/// The functions of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// A function in the kernel extends packets before the worker receives them.
    Stamped,
    /// A decoder that releases all held packets when its timer runs, every 5 ms.
    Held,
    Shaped,
}

const TIMEOUT: u128 = 5_000_000 * NS;

impl Kind {
    fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Plain | Self::Shaped => &["kind: xor, space: user, config: { key: 1 }"],
            Self::Stamped => &[
                "kind: timestamp, space: kernel",
                "kind: xor, space: user, config: { key: 1 }",
            ],
            Self::Held => &[
                "kind: rlnc-decode, space: user, config: { delivery: in-order, timeout: 5ms }",
                "kind: xor, space: user, config: { key: 1 }",
            ],
        }
    }

    fn added_bytes(self) -> u128 {
        if self == Self::Stamped { 16 } else { 0 }
    }
}

/// A chain and its arrivals.
#[derive(Debug, Clone)]
struct Traffic {
    kind: Kind,
    rate: u64,
    burst: u64,
    with_bits: bool,
    from_us: u64,
    /// For each packet its bytes, and the pause after the earliest time that the profile allows,
    /// us.
    frames: Vec<(u64, u64)>,
}

impl Traffic {
    fn agreed(&self) -> String {
        let enforce = if self.kind == Kind::Shaped {
            "auto"
        } else {
            "policer"
        };
        let (rate, burst) = (self.rate, self.burst);
        if self.with_bits {
            // Frames of 400 B on average, and at least one long frame.
            let (bps, bits) = (rate * 3200, (burst * 3200).max(12144));
            format!(
                "  sla: {{ rate: [ {rate}pps, {bps}bit ], burst: [ {burst}, {bits}bit ], enforce: {enforce} }}\n"
            )
        } else {
            format!("  sla: {{ rate: {rate}pps, burst: {burst}, enforce: {enforce} }}\n")
        }
    }

    /// Returns arrival time and length of each packet, fs and bytes. A packet arrives as early as
    /// the buckets allow, plus the pause.
    fn arrivals(&self, booking: &Booking) -> Vec<(u128, u128)> {
        let mut all: Vec<(u128, u128)> = Vec::new();
        let earliest = |all: &[(u128, u128)],
                        bucket: Option<Bucket>,
                        amount: &dyn Fn(u128) -> u128,
                        bytes: u128| {
            let Some(bucket) = bucket else { return 0 };
            let (rate, burst) = (u128::from(bucket.rate()), u128::from(bucket.burst()));
            let mut at = 0;
            let mut sum = amount(bytes);
            for (arrived, bytes) in all.iter().rev() {
                sum += amount(*bytes);
                at = at.max(arrived + (sum.saturating_sub(burst) * SECOND).div_ceil(rate));
            }
            at
        };
        for (bytes, pause_us) in &self.frames {
            let bytes = u128::from(*bytes);
            let last = all
                .last()
                .map_or(u128::from(self.from_us) * 1000 * NS, |(at, _)| *at);
            let by_packets = earliest(&all, booking.profile.packets, &|_| 1, bytes);
            let by_bits = earliest(&all, booking.profile.bits, &|bytes| 8 * bytes, bytes);
            let at = last.max(by_packets).max(by_bits) + u128::from(*pause_us) * 1000 * NS;
            all.push((at, bytes));
        }
        all
    }
}

/// A packet in transit.
#[derive(Debug, Clone, Copy)]
struct Packet {
    chain: usize,
    arrived: u128,
    /// Time of the arrival at the next server.
    at: u128,
    bytes: u128,
}

/// A first-come, first-served server that stalls at the start of each busy period, and forwards
/// packets when a batch is full or no packet waits.
fn serve(
    mut packets: Vec<Packet>,
    stall: u128,
    turn: usize,
    cost: impl Fn(&Packet) -> u128,
) -> Vec<Packet> {
    packets.sort_by_key(|packet| packet.at);
    let (mut now, mut next) = (0, 0);
    while next < packets.len() {
        let first = next;
        if packets[next].at >= now {
            now = packets[next].at + stall;
        }
        while next < packets.len() && next - first < turn && packets[next].at <= now {
            now += cost(&packets[next]);
            next += 1;
        }
        for packet in &mut packets[first..next] {
            packet.at = now;
        }
    }
    packets
}

/// The token bucket of a shaper, in packets.
struct Shaper {
    rate: u128,
    burst: u128,
    /// Credit in packets times a second.
    credit: u128,
    updated: u128,
    waiting: VecDeque<Packet>,
}

impl Shaper {
    fn update_credit(&mut self, now: u128) {
        self.credit = (self.credit + (now - self.updated) * self.rate).min(self.burst * SECOND);
        self.updated = now;
    }

    /// Returns the departure time of the next packet.
    fn due(&self) -> Option<u128> {
        let missing = SECOND.saturating_sub(self.credit);
        (!self.waiting.is_empty()).then(|| self.updated + missing.div_ceil(self.rate))
    }
}

/// The worker. In each step it processes departures first, then one arrived packet. When it
/// releases a held or shaped packet, it does the part `release_work` of the packet's work.
struct Worker {
    stall: u128,
    /// Work at the release of a packet of each chain, fs.
    release_work: Vec<u128>,
    shapers: Vec<Option<Shaper>>,
}

impl Worker {
    fn serve(
        &mut self,
        mut packets: Vec<Packet>,
        kinds: &[Kind],
        cost: &impl Fn(&Packet) -> u128,
    ) -> Vec<Packet> {
        packets.sort_by_key(|packet| packet.at);
        let mut ring: VecDeque<Packet> = packets.into();
        let mut held: Vec<(u128, Packet)> = Vec::new();
        let mut departed: Vec<Packet> = Vec::new();
        let mut now = 0;
        let mut has_worked = false;
        loop {
            let due_held = held.iter().map(|(due, _)| *due).min();
            let due_shaped = self.shapers.iter().flatten().filter_map(Shaper::due).min();
            let next = [due_held, due_shaped, ring.front().map(|packet| packet.at)];
            let Some(next) = next.into_iter().flatten().min() else {
                return departed;
            };
            if next > now || !has_worked {
                now = now.max(next) + self.stall;
            }
            has_worked = true;
            let mut released: Vec<Packet> = Vec::new();
            held.retain(|(due, packet)| {
                let is_due = *due <= now;
                if is_due {
                    released.push(*packet);
                }
                !is_due
            });
            for shaper in self.shapers.iter_mut().flatten() {
                shaper.update_credit(now);
                while shaper.credit >= SECOND
                    && let Some(packet) = shaper.waiting.pop_front()
                {
                    shaper.credit -= SECOND;
                    released.push(packet);
                }
            }
            for mut packet in released {
                now += self.release_work[packet.chain];
                packet.at = now;
                departed.push(packet);
            }
            if ring.front().is_none_or(|packet| packet.at > now) {
                continue;
            }
            let Some(mut packet) = ring.pop_front() else {
                continue;
            };
            let chain = packet.chain;
            now += cost(&packet) - self.release_work[chain];
            if kinds[chain] == Kind::Held {
                held.push(((now / TIMEOUT + 1) * TIMEOUT, packet));
                continue;
            }
            if let Some(shaper) = &mut self.shapers[chain] {
                shaper.update_credit(now);
                if shaper.credit < SECOND || !shaper.waiting.is_empty() {
                    shaper.waiting.push_back(packet);
                    continue;
                }
                shaper.credit -= SECOND;
            }
            now += self.release_work[chain];
            packet.at = now;
            departed.push(packet);
        }
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Plain),
        Just(Kind::Stamped),
        Just(Kind::Held),
        Just(Kind::Shaped)
    ]
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let frame = (
        prop_oneof![Just(60_u64), Just(1518), 60_u64..1518],
        prop_oneof![4 => Just(0_u64), 1 => 0_u64..2000],
    );
    let frames = prop::collection::vec(frame, 40..120);
    (
        kind(),
        500_u64..20_000,
        4_u64..40,
        any::<bool>(),
        0_u64..500,
        frames,
    )
        .prop_map(|(kind, rate, burst, with_bits, from_us, frames)| Traffic {
            kind,
            rate,
            burst,
            // The simulated shaper counts packets.
            with_bits: with_bits && kind != Kind::Shaped,
            from_us,
            frames,
        })
}

proptest! {
    #[test]
    fn no_packet_takes_longer_than_its_bound(sent in prop::collection::vec(traffic(), 1..5), share in 0_u128..100, fast: bool) {
        let machine = Machine {
            egress_bps: Some(if fast { 10_000_000_000 } else { 1_000_000_000 }),
            ..machine()
        };
        let chain = |index: usize, sent: &Traffic| chain_on_shared_ports(&format!("c{index}"), sent.kind.functions(), &sent.agreed());
        let mut ledger = Ledger::default();
        for (index, sent) in sent.iter().enumerate() {
            let (_, booking) = plan_on_node(&ledger, &chain(index, sent), &machine);
            ledger.insert(booking);
        }
        // Plans each chain with all other chains.
        let all: Vec<_> = sent.iter().enumerate().map(|(index, sent)| plan_on_node(&ledger, &chain(index, sent), &machine)).collect();
        prop_assume!(all.iter().all(|(plan, _)| plan.bound.is_some()));
        prop_assume!(!all.iter().any(|(plan, _)| plan.warnings.iter().any(|warning| warning.contains("more credit"))));
        let kinds: Vec<Kind> = sent.iter().map(|sent| sent.kind).collect();
        let cost = |server: usize| {
            let all = &all;
            move |packet: &Packet| all[packet.chain].1.visits[server].work.frame_fs(packet.bytes)
        };
        let sources = sent.iter().zip(&all).enumerate();
        let mut packets: Vec<Packet> = sources.flat_map(|(chain, (sent, (_, booking)))| {
            let added_bytes = sent.kind.added_bytes();
            let arrivals = sent.arrivals(booking).into_iter();
            arrivals.map(move |(at, bytes)| Packet { chain, arrived: at, at, bytes: (bytes + added_bytes).min(1518) })
        }).collect();
        let stall = |server: usize| match &all[0].1.visits[server].resource {
            Resource::Worker { wake_up_fs, .. } => 20_000 * NS + wake_up_fs,
            Resource::Port { .. } => 20_000 * NS,
            Resource::Link(_) => 0,
        };
        // The port's hook is XDP.
        packets = serve(packets, stall(0), 64, cost(0));
        let release_work = |(kind, (plan, booking)): (&Kind, &(myelin_planner::Plan, Booking))| match kind {
            Kind::Plain | Kind::Stamped => 0,
            Kind::Held => booking.visits[1].work.frame_fs(60) * share / 100,
            Kind::Shaped => {
                let egress = bound(plan).hops.iter().find(|hop| hop.name == "egress").unwrap();
                u128::from(egress.cost_ns - 1).min(booking.visits[1].work.frame_fs(60) / NS) * NS
            }
        };
        let mut worker = Worker {
            stall: stall(1),
            release_work: kinds.iter().zip(&all).map(release_work).collect(),
            shapers: sent.iter().map(|sent| (sent.kind == Kind::Shaped).then(|| Shaper {
                rate: sent.rate.into(),
                burst: sent.burst.into(),
                credit: u128::from(sent.burst) * SECOND,
                updated: 0,
                waiting: VecDeque::new(),
            })).collect(),
        };
        packets = worker.serve(packets, &kinds, &cost(1));
        packets = serve(packets, 0, 1, cost(2));
        for packet in packets {
            let (plan, took) = (&all[packet.chain].0, packet.at - packet.arrived);
            let bound = bound(plan);
            prop_assert!(
                took <= u128::from(bound.bound_ns) * NS,
                "{} ns above {} of {:?}", took / NS, bound.bound_ns, kinds[packet.chain]
            );
        }
    }
}
