//! Loads, tests and attaches the eBPF programs of `reference/`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{Object, ObjectBuilder, OpenMapMut};
use myelin_kernel::Hook;
use myelin_kernel::test_run::{self, TestRun};
use myelin_linux::link::{self, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;

use crate::Error;

pub(crate) mod arrivals;
pub(crate) mod look_up;

const REDIRECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/redirect.o"));
const TC_POLICE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tc_police.o"));
const ACCOUNTING_XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/accounting.xdp.o"));
const ACCOUNTING_TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/accounting.tc.o"));

/// The section of read-only data that this module fills.
const INSTANCE: &str = ".rodata.instance";
/// Clock reads of the program `clock`.
pub(crate) const CLOCK_READS: f64 = 64.0;
/// Counter lines of the accounting programs for each CPU: front door, function, egress. A power of
/// two.
const LINES: u32 = 4;

/// The read-only data of `accounting.bpf.c`: the kernel crate's `struct hop`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Accounting {
    lines: u32,
    last_cpu: u32,
    line: u32,
    exit: u32,
    next: u32,
    ifindex: u32,
    egress_line: u32,
    fallback: u32,
}

/// Loads a program that redirects all frames to `ifindex`: by XDP, or at tc to the far end of that
/// veth.
pub(crate) fn load_redirect(hook: Hook, ifindex: u32) -> Result<OwnedFd, Error> {
    let name = match hook {
        Hook::Xdp => "redirect_xdp",
        Hook::Tcx => "redirect_peer",
    };
    load_of_redirect(name, ifindex)
}

/// Loads an XDP program that sends all frames back.
pub(crate) fn load_bounce() -> Result<OwnedFd, Error> {
    load_of_redirect("bounce", 0)
}

/// Loads an XDP program that drops all frames.
pub(crate) fn load_sink() -> Result<OwnedFd, Error> {
    load_of_redirect("sink", 0)
}

/// Loads a program of `redirect.bpf.c`. Its read-only data are the interface and a spare word.
fn load_of_redirect(name: &str, ifindex: u32) -> Result<OwnedFd, Error> {
    load_one(REDIRECT, bytemuck::bytes_of(&[ifindex, 0]), name)
}

/// Loads the policer of a Linux router, for tc.
pub(crate) fn load_tc_policer() -> Result<OwnedFd, Error> {
    load_one(TC_POLICE, &[], "tc_police")
}

/// Loads the programs `accounted`, `bare`, `clock` and `empty` of `accounting.bpf.c`, in this
/// order.
pub(crate) fn load_accounting(hook: Hook) -> Result<Vec<OwnedFd>, Error> {
    let object = match hook {
        Hook::Xdp => ACCOUNTING_XDP,
        Hook::Tcx => ACCOUNTING_TC,
    };
    let cpus = libbpf_rs::num_possible_cpus()
        .map_err(|cause| failed("accounting", "count the CPUs", &cause))?;
    let parts = cpus.next_power_of_two() as u32;
    let instance = Accounting {
        lines: LINES,
        last_cpu: parts - 1,
        line: 1,
        // The loopback interface, which no packet of a test run reaches.
        ifindex: 1,
        egress_line: 2,
        ..Accounting::zeroed()
    };
    load(
        object,
        bytemuck::bytes_of(&instance),
        &["accounted", "bare", "clock", "empty"],
        parts,
    )
}

fn load_one(object: &[u8], instance: &[u8], name: &str) -> Result<OwnedFd, Error> {
    let mut programs = load(object, instance, &[name], 1)?;
    programs.pop().ok_or_else(|| missing(name))
}

fn load(object: &[u8], instance: &[u8], names: &[&str], parts: u32) -> Result<Vec<OwnedFd>, Error> {
    let object = myelin_kernel::fill_immediates(object, instance);
    let loaded = load_object(&object, names, |name, map| match name {
        INSTANCE => map.set_initial_value(instance),
        ".data.counters" => map.set_value_size(parts * LINES * map.value_size()),
        ".data.sojourn" => map.set_value_size(parts * map.value_size()),
        _ => Ok(()),
    })?;
    keep_programs(&loaded, names)
}

/// Loads these programs of an object. `prepare` prepares each map, given by name.
fn load_object(
    object: &[u8],
    names: &[&str],
    prepare: impl Fn(&str, &mut OpenMapMut<'_>) -> libbpf_rs::Result<()>,
) -> Result<Object, Error> {
    let first = names[0];
    let mut open = ObjectBuilder::default()
        .open_memory(object)
        .map_err(|cause| failed(first, "read", &cause))?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        prepare(&name, &mut map).map_err(|cause| failed(first, "fill its maps", &cause))?;
    }
    for mut program in open.progs_mut() {
        let is_named = names.contains(&program.name().to_string_lossy().as_ref());
        program.set_autoload(is_named);
    }
    open.load().map_err(|cause| failed(first, "load", &cause))
}

fn keep_programs(loaded: &Object, names: &[&str]) -> Result<Vec<OwnedFd>, Error> {
    names
        .iter()
        .map(|name| keep_program(loaded, name))
        .collect()
}

/// Duplicates the descriptor of a loaded program, so that the program outlives its object.
fn keep_program(loaded: &Object, name: &str) -> Result<OwnedFd, Error> {
    let program = loaded
        .progs()
        .find(|program| program.name().to_string_lossy() == name)
        .ok_or_else(|| missing(name))?;
    program
        .as_fd()
        .try_clone_to_owned()
        .map_err(|cause| Error::ebpf(name, "keep", cause))
}

/// Attaches a program to an interface of the calling thread's network namespace. A drop of the
/// result detaches it.
pub(crate) fn attach(program: BorrowedFd<'_>, hook: Hook, ifindex: u32) -> Result<OwnedFd, Error> {
    let (point, flags) = match hook {
        Hook::Xdp => (libbpf_sys::BPF_XDP, libbpf_sys::XDP_FLAGS_DRV_MODE),
        Hook::Tcx => (libbpf_sys::BPF_TCX_INGRESS, 0),
    };
    myelin_kernel::link_create(program, ifindex, point, flags)
        .map_err(|cause| Error::ebpf(&format!("program for interface {ifindex}"), "attach", cause))
}

/// Detaches the XDP program of an interface of the calling thread's network namespace, also if
/// another process attached it.
pub(crate) fn detach_xdp(ifindex: u32) -> Result<(), Error> {
    // SAFETY: the pointer to the options is null, which the call allows.
    let failure = unsafe { libbpf_sys::bpf_xdp_detach(ifindex.cast_signed(), 0, std::ptr::null()) };
    if failure < 0 {
        let cause = io::Error::from_raw_os_error(-failure);
        return Err(Error::ebpf("net_af_xdp", "detach", cause));
    }
    Ok(())
}

/// Keeps programs in the kernel's XDP dispatcher, by attaching each to a link of an unnamed
/// namespace. Otherwise every test run adds and removes its program and waits for all CPUs both
/// times: 20 ms for a packet instead of 20 us. Other hooks have no such dispatcher.
pub(crate) struct DispatcherEntries {
    _attached: Vec<OwnedFd>,
    _netns: Netns,
}

impl DispatcherEntries {
    pub(crate) fn add(hook: Hook, programs: &[BorrowedFd<'_>]) -> Result<Option<Self>, Error> {
        if hook != Hook::Xdp {
            return Ok(None);
        }
        let netns = Netns::anonymous()?;
        let attached = netns.enter(|| {
            let mut netlink = Netlink::open()?;
            let hold = |(number, program): (usize, &BorrowedFd<'_>)| {
                let (name, far) = (format!("hold{number}"), format!("far{number}"));
                netlink.apply([link::create_veth(
                    &VethEnd::named(&name),
                    &VethEnd::named(&far),
                )?])?;
                attach(*program, hook, netlink.link(&name)?.index)
            };
            programs
                .iter()
                .enumerate()
                .map(hold)
                .collect::<Result<Vec<_>, Error>>()
        })??;
        Ok(Some(Self {
            _attached: attached,
            _netns: netns,
        }))
    }
}

/// Mean time of a program on a frame, ns.
pub(crate) fn mean_ns(
    program: BorrowedFd<'_>,
    hook: Hook,
    frame: &[u8],
    repeat: u32,
) -> Result<f64, Error> {
    let test = TestRun {
        repeat,
        ..TestRun::new(frame)
    };
    Ok(test_run::run(program, hook, &test)?.mean_ns.into())
}

fn failed(program: &str, action: &'static str, cause: &libbpf_rs::Error) -> Error {
    Error::ebpf(program, action, io::Error::other(cause.to_string()))
}

fn missing(program: &str) -> Error {
    Error::ebpf(program, "find", io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames;

    #[test]
    fn programs_run_with_the_expected_verdicts() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: loading eBPF programs needs root");
            return;
        }
        let frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 64);
        for hook in Hook::ALL {
            let verdict = |program: &OwnedFd| {
                test_run::run(program.as_fd(), hook, &TestRun::new(&frame))
                    .unwrap()
                    .verdict
            };
            let programs = load_accounting(hook).unwrap();
            let verdicts: Vec<u32> = programs.iter().map(verdict).collect();
            assert_eq!(
                verdicts,
                [hook.redirect(), hook.redirect(), hook.pass(), hook.pass()],
                "{hook}"
            );
            let fds: Vec<_> = programs.iter().map(AsFd::as_fd).collect();
            let dispatched = DispatcherEntries::add(hook, &fds).unwrap();
            assert_eq!(dispatched.is_some(), hook == Hook::Xdp);
            for program in &programs[2..] {
                mean_ns(program.as_fd(), hook, &frame, 1000).unwrap();
            }
            assert_eq!(verdict(&load_redirect(hook, 1).unwrap()), hook.redirect());
        }
    }

    #[test]
    #[ignore = "thorough: compares the times of two programs"]
    fn clock_reads_take_time() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: loading eBPF programs needs root");
            return;
        }
        let frame = frames::udp_frame([10, 0, 0, 1], [10, 0, 0, 2], 9000, 64);
        for hook in Hook::ALL {
            let programs = load_accounting(hook).unwrap();
            let cost =
                |program: usize| mean_ns(programs[program].as_fd(), hook, &frame, 1000).unwrap();
            assert!(
                cost(2) > cost(3),
                "{hook}: {CLOCK_READS} clock reads take no time"
            );
        }
    }
}
