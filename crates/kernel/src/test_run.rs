//! Runs programs on given data (`BPF_PROG_TEST_RUN`), for tests and to measure their cost.

use std::os::fd::{BorrowedFd, OwnedFd};

use bytemuck::{Pod, Zeroable};
use myelin_packet::Meta;
use myelin_packet::meta::META_LEN;
use myelin_spec::{FunctionConfig, OnFailure};

use crate::object::POLICER;
use crate::sys::{self, RunBuffers};
use crate::{
    ChainConfig, EntrySpace, Error, Exit, Hook, KernelSegment, Plane, Policer, PortConfig,
};

/// The loopback interface. No packet of a test run reaches this interface.
const LOOPBACK: u32 = 1;

/// Returns a port that only test runs reach.
pub fn port() -> PortConfig {
    PortConfig {
        name: "lo".to_owned(),
        ifindex: LOOPBACK,
        opposite: None,
        single_queue: false,
        behind_link: crate::BehindLink::No,
        discards: false,
    }
}

/// Returns a chain of kernel functions that ends in a redirect. No packet of a test run leaves the
/// chain.
pub fn chain(hook: Hook, spi: u32, functions: &[FunctionConfig]) -> ChainConfig {
    ChainConfig {
        spi,
        generation: 0,
        hook,
        on_failure: OnFailure::Drop,
        policer: None,
        positions: functions.len() as u8,
        entry: EntrySpace::Kernel,
        segments: vec![KernelSegment {
            first_position: 0,
            functions: functions.iter().cloned().map(Into::into).collect(),
            exit: Exit::Egress {
                ifindex: LOOPBACK,
                peer: false,
                by_stack: false,
            },
        }],
    }
}

/// The input of a test run.
#[derive(Clone, Copy, Debug)]
pub struct TestRun<'a> {
    /// The frame, of at least 14 bytes.
    pub frame: &'a [u8],
    /// The metadata of the front door. The tc hook carries only stamp, offsets and flags.
    pub meta: Option<Meta>,
    /// Segments of a GSO packet; tc only.
    pub gso_segs: u32,
    /// Payload bytes of a segment; tc only.
    pub gso_size: u32,
    /// The packet's priority; tc only.
    pub priority: u32,
    /// The packet's mark; tc only.
    pub mark: u32,
    /// Arrival time, ns; tc only, for programs that read the time from the packet.
    pub arrival_ns: u64,
    /// Number of runs on the same frame; at least 1.
    pub repeat: u32,
}

impl<'a> TestRun<'a> {
    /// Returns a single run on a frame without metadata.
    pub fn new(frame: &'a [u8]) -> Self {
        Self {
            frame,
            meta: None,
            gso_segs: 0,
            gso_size: 0,
            priority: 0,
            mark: 0,
            arrival_ns: 0,
            repeat: 1,
        }
    }
}

/// The result of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The program's verdict, a number of its hook; see [`Hook::drop`], [`Hook::pass`] and
    /// [`Hook::redirect`].
    pub verdict: u32,
    /// The frame after the run; empty after several runs.
    pub frame: Vec<u8>,
    /// The metadata after the run. At the tc hook path identifier, generation and position are 0.
    pub meta: Option<Meta>,
    /// The packet's priority after the run; tc only.
    pub priority: u32,
    /// The packet's mark after the run; tc only.
    pub mark: u32,
    /// The departure time after the run, CLOCK_MONOTONIC, ns; 0 for immediately; tc only.
    pub departs_ns: u64,
    /// Mean time of a run, ns.
    pub mean_ns: u32,
}

/// `struct xdp_md`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct XdpContext {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

/// `struct __sk_buff` up to `gso_size`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SkbContext {
    before_cb: [u32; 12],
    cb: [u32; 5],
    before_tstamp: [u32; 21],
    tstamp: [u32; 2],
    wire_len: u32,
    gso_segs: u32,
    sk: [u32; 2],
    gso_size: u32,
}

// Offsets of `linux/bpf.h`, which never change.
const _: () = assert!(std::mem::offset_of!(SkbContext, cb) == 48);
const _: () = assert!(std::mem::offset_of!(SkbContext, tstamp) == 152);
const _: () = assert!(std::mem::offset_of!(SkbContext, gso_segs) == 164);
const _: () = assert!(std::mem::offset_of!(SkbContext, gso_size) == 176);

/// Index of the member `priority` in [`SkbContext::before_cb`].
const PRIORITY: usize = 32 / 4;
/// Index of the member `mark`.
const MARK: usize = 8 / 4;

/// The kernel requires room for all of its `struct __sk_buff`, 192 bytes today.
const SKB_CONTEXT_LEN: usize = 512;

/// Bytes for headers that a program writes in front of a frame.
const HEADROOM: usize = 256;

/// Runs a program of `hook` on the input `test`.
pub fn run(program: BorrowedFd<'_>, hook: Hook, test: &TestRun<'_>) -> Result<Outcome, Error> {
    match hook {
        Hook::Xdp => run_xdp(program, test),
        Hook::Tcx => run_tc(program, test),
    }
    .map_err(Error::TestRun)
}

/// Loads an XDP program that runs a policer over the arrivals in the test frame (`struct arrival`
/// of `policer.bpf.c`). With `shapes`, the policer delays packets as a shaper. With `single_cpu`,
/// the program assumes that only one CPU at a time runs the front door.
pub fn load_policer(
    plane: &Plane,
    policer: &Policer,
    single_cpu: bool,
    shapes: bool,
) -> Result<OwnedFd, Error> {
    // `struct trial`.
    let instance = [policer.number(), single_cpu.into(), shapes.into()];
    let maps = [("policers", plane.policers())];
    POLICER.load(Hook::Xdp, bytemuck::bytes_of(&instance), &maps)
}

/// Returns a buffer for the frame after a single run; several runs return no frame.
fn output_buffer(test: &TestRun<'_>, bytes: usize) -> Option<Vec<u8>> {
    (test.repeat <= 1).then(|| vec![0; bytes + HEADROOM])
}

fn run_xdp(program: BorrowedFd<'_>, test: &TestRun<'_>) -> std::io::Result<Outcome> {
    let mut data = Vec::with_capacity(META_LEN + test.frame.len());
    if let Some(meta) = test.meta {
        data.extend_from_slice(&meta.to_bytes());
    }
    let context = XdpContext {
        data: data.len() as u32,
        data_end: (data.len() + test.frame.len()) as u32,
        ..XdpContext::default()
    };
    data.extend_from_slice(test.frame);
    let mut data_out = output_buffer(test, data.len());
    let mut context_out = vec![0; size_of::<XdpContext>()];
    let (verdict, mean_ns) = sys::test_run(
        program,
        RunBuffers {
            data_in: &data,
            data_out: data_out.as_mut(),
            context_in: bytemuck::bytes_of(&context),
            context_out: &mut context_out,
            repeat: test.repeat,
        },
    )?;
    let context: XdpContext = bytemuck::pod_read_unaligned(&context_out);
    let data_out = data_out.unwrap_or_default();
    let (meta, frame) = data_out.split_at(data_out.len().min(context.data as usize));
    let meta = meta.first_chunk().map(Meta::from_bytes);
    Ok(Outcome {
        verdict,
        frame: frame.to_vec(),
        meta,
        priority: 0,
        mark: 0,
        departs_ns: 0,
        mean_ns,
    })
}

fn run_tc(program: BorrowedFd<'_>, test: &TestRun<'_>) -> std::io::Result<Outcome> {
    let mut context = SkbContext {
        gso_segs: test.gso_segs,
        gso_size: test.gso_size,
        tstamp: [test.arrival_ns as u32, (test.arrival_ns >> 32) as u32],
        ..SkbContext::zeroed()
    };
    context.before_cb[PRIORITY] = test.priority;
    context.before_cb[MARK] = test.mark;
    if let Some(meta) = test.meta {
        context.cb = [
            meta.stamp_ns as u32,
            (meta.stamp_ns >> 32) as u32,
            u32::from(meta.l3) | u32::from(meta.l4) << 16,
            u32::from(meta.payload) | u32::from(meta.end) << 16,
            u32::from(meta.flags) | test.gso_segs.max(1) << 16,
        ];
    }
    let mut data_out = output_buffer(test, test.frame.len());
    let mut context_out = vec![0; SKB_CONTEXT_LEN];
    let (verdict, mean_ns) = sys::test_run(
        program,
        RunBuffers {
            data_in: test.frame,
            data_out: data_out.as_mut(),
            context_in: bytemuck::bytes_of(&context),
            context_out: &mut context_out,
            repeat: test.repeat,
        },
    )?;
    let SkbContext {
        cb,
        before_cb,
        tstamp,
        ..
    } = bytemuck::pod_read_unaligned(&context_out[..size_of::<SkbContext>()]);
    let meta = Meta {
        stamp_ns: u64::from(cb[0]) | u64::from(cb[1]) << 32,
        l3: cb[2] as u16,
        l4: (cb[2] >> 16) as u16,
        payload: cb[3] as u16,
        end: (cb[3] >> 16) as u16,
        flags: cb[4] as u8,
        ..Meta::default()
    };
    let meta = (cb != [0; 5]).then_some(meta);
    Ok(Outcome {
        verdict,
        frame: data_out.unwrap_or_default(),
        meta,
        priority: before_cb[PRIORITY],
        mark: before_cb[MARK],
        departs_ns: u64::from(tstamp[0]) | u64::from(tstamp[1]) << 32,
        mean_ns,
    })
}
