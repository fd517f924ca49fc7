//! One driver for all spaces of a function: user space, and the kernel at each hook.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use myelin_functions::{Batch, Emitter, FlowPage, Function, Packet, States};
use myelin_kernel::test_run::{TestRun, run};
use myelin_kernel::{CounterLine, Hook, LoadedChain, Plane};
use myelin_packet::fixtures::{self, Fixture};
use myelin_packet::{FlowRecord, FlowTotals, Headers, Meta, checksum, parse};
use myelin_spec::{FunctionConfig, FunctionInstance, Side, StateKey};
use proptest::prelude::*;

use crate::common::{self, can_run, create_plane, is_root, kernel_chain};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// The name of user space in messages.
pub(crate) const USER: &str = "user space";

/// The result of a chain for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) is_forwarded: bool,
    /// The frame after the chain, dropped or not.
    pub(crate) frame: Vec<u8>,
    /// Replies to the sender; the kernel sends no replies.
    pub(crate) replies: Vec<Vec<u8>>,
}

impl Outcome {
    /// Returns the frame that leaves the chain; `None` if the chain dropped the frame.
    pub(crate) fn out(self) -> Option<Vec<u8>> {
        self.is_forwarded.then_some(self.frame)
    }
}

/// The flows of a function by their printed form, and its totals.
pub(crate) type Flows = (BTreeMap<String, FlowRecord>, FlowTotals);

fn index_by_name(records: &[FlowRecord], totals: FlowTotals) -> Flows {
    let name = |record: &FlowRecord| record.key.five_tuple().to_string();
    let flows: BTreeMap<_, _> = records
        .iter()
        .map(|record| (name(record), *record))
        .collect();
    assert_eq!(flows.len(), records.len(), "a flow is listed twice");
    (flows, totals)
}

/// A space in which functions run.
pub(crate) trait Space {
    fn name(&self) -> String;

    /// Loads a chain of these functions.
    fn load(&self, functions: &[FunctionInstance]) -> Box<dyn Chain>;
}

/// Loaded functions in order.
pub(crate) trait Chain {
    /// Runs the chain on frames with these arrival times, ns.
    fn run(&self, frames: &[(u64, Vec<u8>)]) -> Vec<Outcome>;

    /// Returns the flows of the first function; `None` if the function keeps no flows.
    fn flows(&self) -> Option<Flows>;

    /// Returns the counter that the kind of the first function describes; 0 without a counter.
    fn special_count(&self) -> u64;
}

/// User space: a worker's loop without ports.
struct User {
    states: RefCell<States>,
    /// Free bytes behind each frame.
    tailroom: usize,
}

impl Space for User {
    fn name(&self) -> String {
        USER.into()
    }

    fn load(&self, functions: &[FunctionInstance]) -> Box<dyn Chain> {
        let mut states = self.states.borrow_mut();
        let mut load = |instance| {
            states
                .instantiate(instance)
                .expect("the configuration must be valid")
        };
        Box::new(UserChain {
            functions: RefCell::new(functions.iter().map(&mut load).collect()),
            tailroom: self.tailroom,
            runs: Cell::new(0),
        })
    }
}

struct UserChain {
    functions: RefCell<Vec<Box<dyn Function>>>,
    tailroom: usize,
    runs: Cell<u64>,
}

/// Collects replies to the sender.
#[derive(Default)]
struct Replies(Vec<Vec<u8>>);

impl Emitter for Replies {
    fn emit(&mut self, _origin: &Meta, _frame: &[u8]) {
        panic!("no kind of this suite emits packets");
    }

    fn reply(&mut self, _origin: &Meta, frame: &[u8]) {
        self.0.push(frame.to_vec());
    }
}

/// Value of the bytes around a frame in its buffer. A function must not change these bytes.
const GUARD: u8 = 0xa5;
const HEADROOM: usize = 32;

/// Returns the time at which user space processes a packet with that stamp, a value that tests
/// recognise.
pub(crate) fn user_time(stamp_ns: u64) -> u64 {
    stamp_ns.rotate_left(32)
}

impl Chain for UserChain {
    fn run(&self, frames: &[(u64, Vec<u8>)]) -> Vec<Outcome> {
        let add_guards =
            |frame: &[u8]| [&[GUARD; HEADROOM], frame, &vec![GUARD; self.tailroom]].concat();
        let mut buffers: Vec<_> = frames.iter().map(|(_, frame)| add_guards(frame)).collect();
        let mut batch = Batch::with_capacity(frames.len());
        for ((token, buffer), (stamp_ns, frame)) in (0..).zip(&mut buffers).zip(frames) {
            let meta = meta_of(frame, *stamp_ns);
            let packet = Packet::new(buffer, HEADROOM, frame.len(), meta, token);
            batch.push(packet.expect("the frame must fit into the buffer"));
        }
        let mut replies = Replies::default();
        // Alternate, because a kind may have separate code for batches and single packets.
        self.runs.set(self.runs.get() + 1);
        let one_by_one = self.runs.get() % 2 == 1 && frames.len() == 1;
        for function in &mut *self.functions.borrow_mut() {
            if function.needs_time() {
                function.set_time(user_time(frames[0].0));
            }
            let before = batch.len();
            let dropped = if one_by_one {
                batch.retain(|packet| function.process(packet, &mut replies))
            } else {
                function.process_batch(&mut batch, &mut replies)
            };
            assert_eq!(batch.len() + dropped, before, "a function lost packets");
        }
        let kept = batch.packets().iter().map(|packet| {
            let headers = parse(packet.bytes());
            assert_eq!(
                Ok(*packet.headers()),
                headers,
                "the packet has other headers than the parser finds"
            );
            (packet, true)
        });
        let dropped = batch.dropped().iter().map(|packet| (packet, false));
        let mut outcomes = BTreeMap::new();
        for (packet, is_forwarded) in kept.chain(dropped) {
            let (frame, replies) = (packet.bytes().to_vec(), Vec::new());
            let outcome = Outcome {
                is_forwarded,
                frame,
                replies,
            };
            outcomes.insert(packet.token(), outcome);
        }
        let mut outcomes: Vec<_> = outcomes.into_values().collect();
        drop(batch);
        for ((buffer, outcome), (_, frame)) in buffers.iter().zip(&outcomes).zip(frames) {
            let end = HEADROOM + frame.len().max(outcome.frame.len());
            let mut guards = buffer[..HEADROOM].iter().chain(&buffer[end..]);
            assert!(
                guards.all(|byte| *byte == GUARD),
                "a function wrote outside the frame"
            );
        }
        outcomes[0].replies = replies.0;
        outcomes
    }

    fn flows(&self) -> Option<Flows> {
        let functions = self.functions.borrow();
        let mut page = FlowPage::new(64);
        loop {
            // Read page by page, as a worker does.
            functions[0].read_flows(&mut page);
            let totals = page.totals?;
            if page.is_last() {
                return Some(index_by_name(&page.records, totals));
            }
        }
    }

    fn special_count(&self) -> u64 {
        let mut sum = 0;
        self.functions.borrow()[0].read_counters(&mut |_, count| sum += count);
        sum
    }
}

/// The kernel at one hook: programs run by `BPF_PROG_TEST_RUN`.
pub(crate) struct Kernel {
    pub(crate) hook: Hook,
    plane: Rc<Plane>,
}

impl Kernel {
    /// Creates the kernel space of each hook, with separate maps. Without root, prints a message
    /// and returns an empty list.
    pub(crate) fn at_hooks() -> Vec<Self> {
        let hooks = Hook::ALL.into_iter().filter(|_| is_root());
        hooks
            .map(|hook| Self {
                hook,
                plane: Rc::new(create_plane()),
            })
            .collect()
    }

    /// Creates the kernel space at tcx, for properties that only an skb has.
    pub(crate) fn at_tcx() -> Option<Self> {
        let mut all = Self::at_hooks().into_iter();
        all.find(|kernel| kernel.hook == Hook::Tcx)
    }

    /// Creates the kernel space at XDP, for tests that do not depend on the hook.
    pub(crate) fn at_xdp() -> Option<Self> {
        let mut all = Self::at_hooks().into_iter();
        all.find(|kernel| kernel.hook == Hook::Xdp)
    }

    /// Returns this hook with the maps of `other`.
    pub(crate) fn with_maps_of(&self, other: &Self) -> Self {
        Self {
            hook: self.hook,
            plane: Rc::clone(&other.plane),
        }
    }

    pub(crate) fn load_chain<T>(&self, functions: &[T]) -> KernelChain
    where
        T: Clone + Into<FunctionInstance>,
    {
        let config = kernel_chain(self.hook, 1, functions);
        KernelChain {
            hook: self.hook,
            plane: Rc::clone(&self.plane),
            loaded: self.plane.load_chain(&config).unwrap(),
            functions: functions.len() as u8,
        }
    }
}

impl Space for Kernel {
    fn name(&self) -> String {
        format!("kernel at {}", self.hook)
    }

    fn load(&self, functions: &[FunctionInstance]) -> Box<dyn Chain> {
        Box::new(self.load_chain(functions))
    }
}

pub(crate) struct KernelChain {
    pub(crate) hook: Hook,
    pub(crate) loaded: LoadedChain,
    plane: Rc<Plane>,
    functions: u8,
}

/// Runs a program on a frame with that arrival time. Returns the forwarded frame. Reads no
/// counters, so several threads may call this function.
pub(crate) fn send(
    program: BorrowedFd<'_>,
    hook: Hook,
    frame: &[u8],
    stamp_ns: u64,
    repeat: u32,
) -> Option<Vec<u8>> {
    let meta = Some(meta_of(frame, stamp_ns));
    let test = TestRun {
        meta,
        repeat,
        ..TestRun::new(frame)
    };
    let outcome = run(program, hook, &test).unwrap();
    (outcome.verdict == hook.redirect()).then_some(outcome.frame)
}

impl KernelChain {
    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.loaded
            .program(0)
            .expect("the chain must have a first function")
    }

    fn counters(&self) -> Vec<CounterLine> {
        let slots = (0..self.functions).filter_map(|position| self.loaded.counter_slot(position));
        slots.map(|slot| self.plane.counters().read(slot)).collect()
    }

    /// Runs the chain on one frame and checks the counters. `gso_segs` is 0 for a packet without
    /// GSO.
    pub(crate) fn run_one(&self, frame: &[u8], stamp_ns: u64, gso_segs: u32) -> Outcome {
        let test = TestRun {
            meta: Some(meta_of(frame, stamp_ns)),
            gso_segs,
            gso_size: if gso_segs > 0 { 250 } else { 0 },
            ..TestRun::new(frame)
        };
        let (hook, before) = (self.hook, self.counters());
        let outcome = run(self.program(), hook, &test).unwrap();
        let after = self.counters();
        let is_forwarded = outcome.verdict == hook.redirect();
        assert!(
            is_forwarded || outcome.verdict == hook.drop(),
            "{hook}: verdict {}",
            outcome.verdict
        );
        let segments = u64::from(gso_segs.max(1));
        let first = (
            after[0].packets - before[0].packets,
            after[0].bytes - before[0].bytes,
        );
        assert_eq!(
            first,
            (segments, frame.len() as u64),
            "{hook}: packets and bytes"
        );
        let drops = |lines: &[CounterLine]| lines.iter().map(|line| line.drops).sum::<u64>();
        let dropped = if is_forwarded { 0 } else { segments };
        assert_eq!(drops(&after) - drops(&before), dropped, "{hook}: drops");
        if is_forwarded {
            let written = outcome.meta.expect("a forwarded packet must have metadata");
            let expected = meta_of(&outcome.frame, stamp_ns);
            let offsets = |meta: Meta| (meta.stamp_ns, meta.l3, meta.l4, meta.payload, meta.end);
            assert_eq!(
                offsets(written),
                offsets(expected),
                "{hook}: the metadata differs from the parsed headers"
            );
        }
        let (frame, replies) = (outcome.frame, Vec::new());
        Outcome {
            is_forwarded,
            frame,
            replies,
        }
    }
}

impl Chain for KernelChain {
    fn run(&self, frames: &[(u64, Vec<u8>)]) -> Vec<Outcome> {
        let run = |(stamp_ns, frame): &(u64, Vec<u8>)| self.run_one(frame, *stamp_ns, 0);
        frames.iter().map(run).collect()
    }

    fn flows(&self) -> Option<Flows> {
        let flows = self.loaded.flows(0).unwrap()?;
        Some(index_by_name(&flows.records, flows.totals))
    }

    fn special_count(&self) -> u64 {
        self.counters()[0].special()
    }
}

/// Spaces that get the same functions and frames.
pub(crate) struct Spaces(Vec<Box<dyn Space>>);

impl Spaces {
    pub(crate) fn user() -> Self {
        Self::user_with_tailroom(64)
    }

    /// Returns user space with `tailroom` free bytes behind each frame.
    pub(crate) fn user_with_tailroom(tailroom: usize) -> Self {
        let states = RefCell::default();
        Self(vec![Box::new(User { states, tailroom })])
    }

    /// Returns user space and the kernel at both hooks; without root, only user space.
    pub(crate) fn all() -> Self {
        let mut spaces = Self::user();
        let kernels = Kernel::at_hooks().into_iter();
        spaces
            .0
            .extend(kernels.map(|kernel| Box::new(kernel) as Box<dyn Space>));
        spaces
    }

    pub(crate) fn are_user_only(&self) -> bool {
        self.0.len() == 1
    }

    pub(crate) fn load<T>(&self, functions: &[T]) -> Chains
    where
        T: Clone + Into<FunctionInstance>,
    {
        let functions: Vec<_> = functions.iter().cloned().map(Into::into).collect();
        let spaces = self.0.iter();
        Chains(
            spaces
                .map(|space| (space.name(), space.load(&functions)))
                .collect(),
        )
    }

    /// Loads a function and its reverse, with the state of that name.
    pub(crate) fn load_pair(&self, config: &FunctionConfig, state: &str) -> [Chains; 2] {
        [Side::Forward, Side::Reply].map(|side| self.load(&[instance(config, state, side)]))
    }
}

/// Returns a function on one side, with the state of that name.
pub(crate) fn instance(config: &FunctionConfig, state: &str, side: Side) -> FunctionInstance {
    let key = StateKey {
        chain: state.into(),
        function: "function".into(),
    };
    FunctionInstance {
        config: config.clone(),
        state: Some(key),
        side,
    }
}

/// The same chain in several spaces.
pub(crate) struct Chains(Vec<(String, Box<dyn Chain>)>);

impl Chains {
    /// Runs the frames in each space.
    fn run_batch<'a>(&'a self, frames: &[(u64, Vec<u8>)]) -> Vec<(&'a str, Vec<Outcome>)> {
        let run = |(name, chain): &'a (String, Box<dyn Chain>)| (name.as_str(), chain.run(frames));
        self.0.iter().map(run).collect()
    }

    /// Runs one frame in each space.
    pub(crate) fn run_each(&self, frame: &[u8], stamp_ns: u64) -> Vec<(&str, Outcome)> {
        let all = self.run_batch(&[(stamp_ns, frame.to_vec())]).into_iter();
        all.map(|(name, mut outcomes)| (name, outcomes.remove(0)))
            .collect()
    }

    /// Runs the frames in all spaces and asserts equal outcomes.
    #[track_caller]
    pub(crate) fn run_all(&self, frames: &[(u64, Vec<u8>)]) -> Vec<Outcome> {
        let mut all = self.run_batch(frames).into_iter();
        let (_, mut first) = all.next().expect("there must be a space");
        for (name, others) in all {
            for (at, (first, other)) in first.iter_mut().zip(others).enumerate() {
                assert_eq!(
                    other.is_forwarded, first.is_forwarded,
                    "{name}: frame {at} differs from {USER}"
                );
                if other.is_forwarded {
                    assert_eq!(
                        other.frame, first.frame,
                        "{name}: frame {at} differs from {USER}"
                    );
                }
            }
        }
        first
    }

    /// Returns the frame that leaves all spaces; `None` if all spaces drop the frame.
    #[track_caller]
    pub(crate) fn run(&self, frame: &[u8], stamp_ns: u64) -> Option<Vec<u8>> {
        self.run_all(&[(stamp_ns, frame.to_vec())]).remove(0).out()
    }

    /// Asserts the frame that leaves each space.
    #[track_caller]
    pub(crate) fn expect(&self, frame: &[u8], expected: Option<&[u8]>, case: &str) {
        self.expect_at(1, frame, expected, case);
    }

    #[track_caller]
    pub(crate) fn expect_at(&self, now: u64, frame: &[u8], expected: Option<&[u8]>, case: &str) {
        for (name, outcome) in self.run_each(frame, now) {
            assert_eq!(outcome.out().as_deref(), expected, "{name}: {case}");
        }
    }

    /// Returns the counter that the kind of the first function describes, equal in all spaces.
    #[track_caller]
    pub(crate) fn special_count(&self) -> u64 {
        let mut all = self.0.iter();
        let (_, first) = all.next().expect("there must be a space");
        let count = first.special_count();
        for (name, chain) in all {
            assert_eq!(
                chain.special_count(),
                count,
                "{name} counts otherwise than {USER}"
            );
        }
        count
    }

    /// Returns the flows of the first function, which all spaces must report alike. Returns `None`
    /// if the function keeps no flows.
    #[track_caller]
    pub(crate) fn flows(&self) -> Option<Flows> {
        let mut all = self.0.iter().map(|(name, chain)| (name, chain.flows()));
        let (_, first) = all.next().expect("there must be a space");
        for (name, flows) in all {
            assert_eq!(flows, first, "{name} has other flows than {USER}");
        }
        first
    }
}

/// Checks random cases in user space, then fewer cases in all spaces, because the kernel must load
/// programs for each case.
pub(crate) fn for_all<S: Strategy>(
    user_cases: u32,
    all_cases: u32,
    strategy: &S,
    check: impl Fn(&Spaces, S::Value),
) {
    for (cases, spaces) in [(user_cases, Spaces::user()), (all_cases, Spaces::all())] {
        common::for_all(cases, strategy, |value| check(&spaces, value));
    }
}

/// Checks all parseable fixtures in user space. Checks the fixtures that a test run accepts in all
/// spaces.
pub(crate) fn on_fixtures(check: impl Fn(&Spaces, &[Fixture])) {
    let mut fixtures = fixtures::all();
    fixtures.retain(|fixture| fixture.expected.is_ok());
    check(&Spaces::user(), &fixtures);
    fixtures.retain(|fixture| Hook::ALL.iter().all(|hook| can_run(*hook, &fixture.frame)));
    assert!(fixtures.len() > 40, "only {} fixtures", fixtures.len());
    check(&Spaces::all(), &fixtures);
}

/// Returns the metadata that the front door would write.
pub(crate) fn meta_of(frame: &[u8], stamp_ns: u64) -> Meta {
    let headers = parse(frame).expect("the frame must parse");
    Meta::new(stamp_ns, 1, 7, 0, &headers)
}

/// Returns random bytes. Many bytes are edge cases of the ones' complement sum.
pub(crate) fn edge_case_bytes(longest: usize) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0_u8), Just(0xff), any::<u8>()];
    prop::collection::vec(byte, 0..longest)
}

/// Returns random sources and destinations of the same family.
pub(crate) fn ends() -> impl Strategy<Value = (std::net::SocketAddr, std::net::SocketAddr)> {
    let end = |v6: bool| {
        any::<([u8; 16], u16)>().prop_map(move |(address, port)| {
            let [a, b, c, d, ..] = address;
            if v6 {
                (address, port).into()
            } else {
                ([a, b, c, d], port).into()
            }
        })
    };
    prop_oneof![(end(false), end(false)), (end(true), end(true))]
}

/// Recomputes the checksum of the segment; a UDP checksum of zero stays.
pub(crate) fn fix_l4(frame: &mut [u8], headers: &Headers) -> Option<()> {
    let field = checksum::l4_offset(headers)?;
    if frame[field..field + 2] != [0, 0] || headers.protocol != 17 {
        let valid = checksum::l4_checksum(frame, headers)?;
        frame[field..field + 2].copy_from_slice(&valid.to_be_bytes());
    }
    Some(())
}

/// Recomputes the checksum of the IPv4 header.
pub(crate) fn fix_l3(frame: &mut [u8], headers: &Headers) {
    let l3 = usize::from(headers.l3);
    if !headers.flags.is_ipv6() {
        let end = l3 + usize::from(frame[l3] & 15) * 4;
        frame[l3 + 10..l3 + 12].fill(0);
        let valid = checksum::checksum(&frame[l3..end]);
        frame[l3 + 10..l3 + 12].copy_from_slice(&valid.to_be_bytes());
    }
}

/// Returns a TCP segment with these flags. The checksum does not cover the flags.
pub(crate) fn segment(from: std::net::SocketAddr, to: std::net::SocketAddr, flags: u8) -> Vec<u8> {
    let mut frame = fixtures::build::tcp(from, to, b"data");
    let at = usize::from(parse(&frame).unwrap().l4) + 13;
    frame[at] = flags;
    frame
}

/// TCP flags.
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;
