//! A pool of chains between two virtual links, and a sender of the worst conforming traffic.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use myelin_api::ApiError;
use myelin_linux::napi;
use myelin_linux::packet_socket::PacketSender;
use myelin_measure::clock::{now_ns, thread_ns};
use myelin_measure::stall::CoreBlocker;
use myelin_packet::traffic::{Bucket, Profile, TokenBucket};

use super::draw::{Contract, Member, POOL, Pool, PoolKind, Set, port};
use super::verdict::{Absence, delay_ns};
use crate::agents::EmbeddedAgent;
use crate::ebpf::arrivals::{ArrivalRecorder, PACKETS};
use crate::frames::{self, SplitMix};
use crate::generator::run_on_core;
use crate::network::{CLIENT_LINK, Network};
use crate::variant::{polling_core, probing_core, run_time};
use crate::{Error, Fault, Session};

/// Duration of sending at the rates after the bursts, ns.
const SENDING_NS: u64 = 3_000_000;
/// Time of the second stall of the worker's core, ns. By then shapers hold packets.
const SECOND_STALL_NS: u64 = SENDING_NS / 2;
/// Wait for packets in flight beyond the longest bound, ns.
const DRAIN_NS: u64 = 500_000;
/// Extra time to fill the kernel's buckets, which see packets later than the sender's buckets.
const REFILL: Duration = Duration::from_millis(1);
/// Length of a UDP packet's headers, and position of its IP identification, bytes.
const HEADERS: u64 = 42;
const NUMBER: std::ops::Range<usize> = 18..20;
/// Error of the clock of arrivals with [`Fault::FastClock`] and [`Fault::SlowClock`].
const CLOCK_ERROR_NS: i64 = 10_000_000;

/// The pool and its sender. Fields drop in this order.
pub(super) struct BoundTestbed {
    agent: Arc<EmbeddedAgent>,
    pool: Pool,
    names: Vec<String>,
    senders: Vec<PacketSender>,
    blocker: CoreBlocker,
    /// Serving threads: the port's receive work, and the worker.
    servers: Vec<u32>,
    arrivals: ArrivalRecorder,
    /// Error of the clock of arrivals, for the faults of clocks.
    clock_error_ns: i64,
    _end: OwnedFd,
    network: Network,
}

/// The stalls that a turn creates, ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct CreatedStalls {
    /// The stall of the port, while all bursts wait for it.
    pub(super) port_ns: u64,
    /// The stall of the worker, while its shapers hold packets.
    pub(super) worker_ns: u64,
}

/// Results of a turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Longest delay of each member, ns. `None` if no packet arrived.
    pub(super) worst_ns: Vec<Option<u64>>,
    pub(super) sent: u64,
    /// Packets that did not arrive.
    pub(super) lost: u64,
    pub(super) absence: Absence,
}

/// Results of the turns of a set.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pub(super) turns: Vec<Turn>,
    /// Packets that the policers dropped.
    pub(super) policed: u64,
}

struct SentPacket {
    member: usize,
    number: u16,
    ns: u64,
}

/// Traffic of the members of a set.
struct Traffic<'a> {
    members: &'a [Member],
    senders: &'a mut [PacketSender],
    buckets: &'a mut [TokenBucket],
    /// The number of each member's next packet.
    numbers: Vec<u16>,
    log: Vec<SentPacket>,
}

impl Traffic<'_> {
    fn send(&mut self, member: usize, ns: u64) -> Result<(), Error> {
        let sender = &mut self.senders[self.members[member].index];
        let number = self.numbers[member];
        self.numbers[member] = number.wrapping_add(1);
        sender.frame_mut()[NUMBER].copy_from_slice(&number.to_be_bytes());
        sender
            .send(1)
            .map_err(|cause| Error::system("send frames", cause))?;
        self.log.push(SentPacket { member, number, ns });
        Ok(())
    }

    /// Until `until_ns`, each member sends whenever its bucket allows. The bucket is charged after
    /// the send call, when the packet reaches the policer, so that both buckets agree.
    fn send_until(&mut self, until_ns: u64) -> Result<(), Error> {
        while now_ns() < until_ns {
            for member in 0..self.members.len() {
                let ns = now_ns();
                let frame_bytes = self.members[member].contract.frame_bytes;
                let eligible_ns = self.buckets[member].eligible_ns(1, frame_bytes);
                if eligible_ns.is_some_and(|eligible_ns| eligible_ns <= ns) {
                    self.send(member, ns)?;
                    self.buckets[member].take(now_ns(), 1, frame_bytes);
                }
            }
        }
        Ok(())
    }
}

impl BoundTestbed {
    pub(super) fn new(session: Session<'_>, pool: Pool) -> Result<Self, Error> {
        let network = Network::create(false)?;
        let core = polling_core()?;
        let middle = &network.middle;
        // The agent runs in the namespace between the hosts, with its links and sockets.
        let (agent, names, mut servers) = middle.netns.enter(|| {
            let agent = EmbeddedAgent::open(session.program)?;
            let names: Vec<String> = (0..POOL)
                .map(|index| agent.dir.chain_name(&format!("bound{index}")))
                .collect();
            agent.up_all(pool.text(&names, &[None; POOL]))?;
            let servers = match pool.kind {
                PoolKind::Worker => agent.workers(&names[0])?,
                PoolKind::Kernel => Vec::new(),
            };
            Ok::<_, Error>((agent, names, servers))
        })??;
        // The front door at XDP has given the port NAPI.
        let receive_work = napi::move_receive_work_to_core(Some(&middle.netns), CLIENT_LINK, core)?;
        servers.extend(receive_work);
        let arrivals = ArrivalRecorder::load()?;
        let clock_error_ns = if session.has_fault(Fault::FastClock) {
            CLOCK_ERROR_NS
        } else if session.has_fault(Fault::SlowClock) {
            -CLOCK_ERROR_NS
        } else {
            0
        };
        let end = network.attach_at_server(arrivals.program())?;
        let senders = (0..POOL)
            .map(|_| network.client.sender(&[]))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            blocker: CoreBlocker::new(core, pool.kind == PoolKind::Kernel),
            agent,
            pool,
            names,
            senders,
            servers,
            arrivals,
            clock_error_ns,
            _end: end,
            network,
        })
    }

    /// Gives the members of a set their contracts, by a live change.
    pub(super) fn set_contracts(&mut self, set: &Set) -> Result<(), Error> {
        let mut contracts = [None; POOL];
        for member in &set.members {
            let contract = member.contract;
            contracts[member.index] = Some(contract);
            let payload = (contract.frame_bytes - HEADERS) as u16;
            *self.senders[member.index].frame_mut() =
                frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], port(member.index), payload);
        }
        let text = self.pool.text(&self.names, &contracts);
        let netns = &self.network.middle.netns;
        netns.enter(|| self.agent.up_all(text))?.map(drop)
    }

    /// Runs `count` turns: all bursts at one instant, then each chain at its rate.
    pub(super) fn run_turns(
        &mut self,
        set: &Set,
        count: usize,
        stalls: CreatedStalls,
        random: &mut SplitMix,
    ) -> Result<Turns, Error> {
        let mut buckets: Vec<TokenBucket> = set
            .members
            .iter()
            .map(|member| Ok(TokenBucket::new(&profile(&member.contract)?)))
            .collect::<Result<_, Error>>()?;
        let policed = self.count_policed();
        let run_turn = |_| {
            wait_until_buckets_are_full(set, &buckets, stalls.port_ns);
            self.run_turn(set, &mut buckets, stalls, random)
        };
        Ok(Turns {
            turns: run_on_core(probing_core()?, || (0..count).map(run_turn).collect())?,
            policed: self.count_policed().saturating_sub(policed),
        })
    }

    /// Packets that the policers of all chains have dropped.
    fn count_policed(&self) -> u64 {
        let chains = self.agent.status();
        chains.iter().map(|chain| chain.policed).sum()
    }

    fn run_turn(
        &mut self,
        set: &Set,
        buckets: &mut [TokenBucket],
        stalls: CreatedStalls,
        random: &mut SplitMix,
    ) -> Result<Turn, Error> {
        let stall_ns = stalls.port_ns;
        let members = &set.members;
        let mut order: Vec<usize> = members
            .iter()
            .enumerate()
            .flat_map(|(member, one)| std::iter::repeat_n(member, one.contract.burst as usize))
            .collect();
        for index in (1..order.len()).rev() {
            order.swap(index, random.draw_below(index as u64 + 1) as usize);
        }
        let drain_ns = members.iter().map(|one| one.bound.bound_ns).max();
        let drain_ns = drain_ns.unwrap_or(0) + DRAIN_NS;
        let mut traffic = Traffic {
            members,
            senders: &mut self.senders,
            buckets,
            numbers: members
                .iter()
                .map(|_| random.draw_below(PACKETS as u64) as u16)
                .collect(),
            log: Vec::with_capacity(PACKETS),
        };
        self.blocker.block()?;
        for member in order {
            traffic.send(member, now_ns())?;
        }
        // The bursts have arrived. The stall begins.
        spin_until(now_ns() + stall_ns);
        let (served_ns, idle_ns) = (cpu_time_ns(&self.servers)?, self.blocker.idle_ns());
        let own_ns = thread_ns();
        let released_ns = self.blocker.release();
        let from_ns = released_ns - stall_ns;
        // Further packets must conform together with this burst. The serving core also runs the
        // front door, so the burst may reach it later by a stall.
        let burst_ns = released_ns + stall_ns;
        for (member, bucket) in members.iter().zip(traffic.buckets.iter_mut()) {
            let Contract {
                burst, frame_bytes, ..
            } = member.contract;
            *bucket = TokenBucket::new(&profile(&member.contract)?);
            bucket.take(burst_ns, burst, burst * frame_bytes);
        }
        if self.pool.kind == PoolKind::Worker {
            traffic.send_until(released_ns + SECOND_STALL_NS)?;
            self.blocker.block()?;
            traffic.send_until(now_ns() + stalls.worker_ns)?;
            self.blocker.release();
        }
        traffic.send_until(released_ns + SENDING_NS)?;
        spin_until(released_ns + SENDING_NS + drain_ns);
        let end_ns = now_ns();
        let own_ns = thread_ns() - own_ns;
        // The kernel updates a thread's CPU time when it is descheduled, or at a tick.
        self.blocker.block()?;
        let served_ns = cpu_time_ns(&self.servers)? - served_ns + self.blocker.idle_ns() - idle_ns;
        self.blocker.release();
        let log = traffic.log;
        let arrivals = self.arrivals.read()?;
        let mut turn = Turn {
            worst_ns: vec![None; members.len()],
            sent: log.len() as u64,
            lost: 0,
            absence: Absence {
                turn_ns: end_ns - from_ns,
                sending_ns: (end_ns - released_ns).saturating_sub(own_ns),
                serving_ns: (end_ns - from_ns).saturating_sub(served_ns),
            },
        };
        for sent in &log {
            let at = arrivals.of(port(members[sent.member].index), sent.number);
            let at = at.map(|at| at.saturating_add_signed(self.clock_error_ns));
            // An older time belongs to an earlier packet with the same number.
            match at.filter(|at| *at > sent.ns) {
                Some(at) => {
                    let worst_ns = &mut turn.worst_ns[sent.member];
                    *worst_ns = (*worst_ns).max(Some(delay_ns(sent.ns, from_ns, at)));
                }
                None => turn.lost += 1,
            }
        }
        Ok(turn)
    }
}

fn spin_until(ns: u64) {
    while now_ns() < ns {
        std::hint::spin_loop();
    }
}

/// CPU time of the processes, ns.
fn cpu_time_ns(processes: &[u32]) -> Result<u64, Error> {
    Ok(run_time(processes)?.as_nanos() as u64)
}

fn profile(contract: &Contract) -> Result<Profile, Error> {
    let bits = contract.frame_bytes * 8;
    let bucket = |rate, burst| {
        Bucket::new(rate, burst)
            .map(Some)
            .map_err(|error| ApiError::failed(error.to_string()))
    };
    Ok(Profile {
        packets: bucket(contract.rate_pps, contract.burst)?,
        bits: bucket(contract.rate_pps * bits, contract.burst * bits)?,
    })
}

fn wait_until_buckets_are_full(set: &Set, buckets: &[TokenBucket], stall_ns: u64) {
    let full = set
        .members
        .iter()
        .zip(buckets)
        .filter_map(|(member, bucket)| {
            let contract = &member.contract;
            bucket.eligible_ns(contract.burst, contract.burst * contract.frame_bytes)
        });
    let wait_ns = full.max().unwrap_or(0).saturating_sub(now_ns());
    std::thread::sleep(Duration::from_nanos(wait_ns + stall_ns) + REFILL);
}
