//! Tests which features of the running kernel chains can use.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use myelin_linux::bpffs::is_bpffs;
use myelin_linux::capability::is_root;
use myelin_linux::link::{self, VethEnd};
use myelin_linux::machine;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_spec::{FunctionConfig, OnFailure, XorConfig};

use crate::attach::{AttachTarget, Attachment};
use crate::error::io_error;
use crate::{
    Capacity, ChainConfig, EntrySpace, Error, Exit, Hook, KernelSegment, Plane, PortConfig,
    XdpMode, sys,
};

/// The state of a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A test succeeded.
    Yes,
    /// A test failed, with the cause.
    No(String),
    /// The test could not run, with the cause.
    Unknown(String),
}

/// One kernel feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The feature's name.
    pub name: &'static str,
    /// The feature's state.
    pub state: State,
    /// Whether every chain in the kernel needs it.
    pub required: bool,
    /// The consequence of a missing feature.
    pub consequence: &'static str,
    /// How to get the feature.
    pub remedy: &'static str,
}

/// All features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// In the order in which a packet needs them.
    pub all: Vec<Feature>,
}

impl Features {
    /// Returns whether chains can run in the kernel, as far as known.
    pub fn usable(&self) -> bool {
        self.all
            .iter()
            .all(|feature| !feature.required || !matches!(feature.state, State::No(_)))
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::No(why) => write!(f, "no: {why}"),
            Self::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// Capacity for one chain of one port.
const SMALL: Capacity = Capacity {
    lines: 64,
    programs: 4,
    chains: 2,
    matches: 4,
    ports: 1,
    queues: 1,
};

/// Tests all features. Takes tens of milliseconds and mostly needs root. It touches no interface of
/// this machine: it attaches programs in a temporary network namespace.
pub fn features() -> Features {
    let release = machine::release();
    let plane = Plane::create(None, SMALL);
    let loaded = |hook| {
        plane
            .as_ref()
            .map_err(state_of)
            .and_then(|plane| load(plane, hook).map_err(|error| state_of(&error)))
    };
    let mut all = vec![
        feature(
            "Linux 6.1 or newer",
            true,
            recent(&release),
            ["older kernels are not tested", "install Linux 6.1 or newer"],
        ),
        feature(
            "eBPF maps in memory",
            true,
            plane.as_ref().map_or_else(state_of, |_| State::Yes),
            [
                "no chain runs: counters are read through arrays that are mapped into memory",
                "use Linux 6.1 or newer with CONFIG_BPF_SYSCALL",
            ],
        ),
        feature(
            "front door and functions at XDP",
            true,
            loaded(Hook::Xdp).map_or_else(|state| state, |()| State::Yes),
            [
                "no chain can use XDP or user space: the verifier must know bounded loops and bpf_loop",
                "use Linux 6.1 or newer with CONFIG_BPF_SYSCALL",
            ],
        ),
        feature(
            "front door and functions at tc",
            true,
            loaded(Hook::Tcx).map_or_else(|state| state, |()| State::Yes),
            [
                "no port works: each port has the tc front door",
                "use Linux 6.1 or newer with CONFIG_NET_CLS_ACT",
            ],
        ),
    ];
    all.extend(optional(&plane));
    Features { release, all }
}

/// Tests the features without which some chains run.
fn optional(plane: &Result<Plane, Error>) -> [Feature; 7] {
    [
        feature(
            "eBPF compiler (JIT)",
            false,
            jit(),
            [
                "kernel functions cost several times as much",
                "sysctl net.core.bpf_jit_enable=1",
            ],
        ),
        in_scratch(
            "tcx",
            [
                "clsact filters replace it: slower, and a killed agent leaves them to `myelin down --all`",
                "use Linux 6.6 or newer",
            ],
            plane,
            try_tcx,
        ),
        in_scratch(
            "XDP attached by a link",
            [
                "chains that need XDP or user space are refused",
                "use Linux 6.1 or newer",
            ],
            plane,
            try_xdp_link,
        ),
        in_scratch(
            "native XDP on veth",
            [
                "on links that Myelin makes, XDP runs generic: chains in user space are several times slower",
                "modprobe veth",
            ],
            plane,
            try_veth,
        ),
        feature(
            "AF_XDP sockets",
            false,
            sys::af_xdp().map_or_else(|error| of_io(&error), |()| State::Yes),
            [
                "functions in user space are refused",
                "use a kernel with CONFIG_XDP_SOCKETS",
            ],
        ),
        feature(
            "bpffs at /sys/fs/bpf",
            false,
            bpffs(),
            ["chains end with the agent", "mount -t bpf bpf /sys/fs/bpf"],
        ),
        feature(
            "BTF of the kernel",
            false,
            btf(),
            [
                "none for chains: bpftool and bpftrace show less of them",
                "use a kernel with CONFIG_DEBUG_INFO_BTF",
            ],
        ),
    ]
}

fn feature(
    name: &'static str,
    required: bool,
    state: State,
    [consequence, remedy]: [&'static str; 2],
) -> Feature {
    Feature {
        name,
        state,
        required,
        consequence,
        remedy,
    }
}

/// A test without permission gives no result.
fn of_io(error: &io::Error) -> State {
    if error.kind() == io::ErrorKind::PermissionDenied {
        State::Unknown("needs root to try".into())
    } else {
        State::No(error.to_string())
    }
}

fn state_of(error: &Error) -> State {
    match error {
        Error::Map { cause, .. } | Error::Attach { cause, .. } => of_io(cause),
        // The verifier also returns "not permitted" for a program that it cannot prove safe.
        Error::Load { cause, .. } if !is_root() => of_io(&io_error(cause)),
        _ => State::No(error.to_string()),
    }
}

fn recent(release: &str) -> State {
    match machine::version(release) {
        Some(version) if version >= (6, 1) => State::Yes,
        Some(_) => State::No(format!("this is {release}")),
        None => State::Unknown(format!("{release} is not a readable release")),
    }
}

/// Loads a front door, a loop over a payload and a program table.
fn load(plane: &Plane, hook: Hook) -> Result<(), Error> {
    plane.load_chain(&ChainConfig {
        spi: 1,
        generation: 0,
        hook,
        on_failure: OnFailure::Drop,
        policer: None,
        positions: 1,
        entry: EntrySpace::Kernel,
        segments: vec![KernelSegment {
            first_position: 0,
            functions: vec![FunctionConfig::Xor(XorConfig { key: 1 }).into()],
            exit: Exit::Egress {
                ifindex: LOOPBACK,
                peer: false,
            },
        }],
    })?;
    port(plane)?.program(hook)?;
    Ok(())
}

fn port(plane: &Plane) -> Result<crate::Port, Error> {
    plane.add_port(PortConfig {
        name: "lo".into(),
        ifindex: LOOPBACK,
        opposite: None,
        single_queue: false,
    })
}

/// The index of the loopback interface in every namespace.
const LOOPBACK: u32 = 1;

fn jit() -> State {
    match std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable") {
        Ok(text) if text.trim() == "0" => State::No("it is switched off".into()),
        Ok(_) => State::Yes,
        Err(error) => State::Unknown(error.to_string()),
    }
}

/// Runs a test in a temporary network namespace.
fn in_scratch(
    name: &'static str,
    consequence_and_remedy: [&'static str; 2],
    plane: &Result<Plane, Error>,
    attempt: fn(&Plane) -> State,
) -> Feature {
    let state = match plane {
        Err(error) => state_of(error),
        Ok(plane) => Netns::anonymous()
            .and_then(|netns| netns.enter(|| attempt(plane)))
            .unwrap_or_else(|error| State::Unknown(error.to_string())),
    };
    feature(name, false, state, consequence_and_remedy)
}

fn try_tcx(plane: &Plane) -> State {
    attach(plane, Hook::Tcx, |program| {
        sys::link_create(program, LOOPBACK, libbpf_sys::BPF_TCX_INGRESS, 0).map(drop)
    })
}

fn try_xdp_link(plane: &Plane) -> State {
    let flags = XdpMode::Generic.flags();
    attach(plane, Hook::Xdp, |program| {
        sys::link_create(program, LOOPBACK, libbpf_sys::BPF_XDP, flags).map(drop)
    })
}

fn attach(
    plane: &Plane,
    hook: Hook,
    attach: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> io::Result<()>,
) -> State {
    let program = match port(plane).and_then(|port| port.program(hook)) {
        Ok(program) => program,
        Err(error) => return State::Unknown(error.to_string()),
    };
    attach(program.as_fd()).map_or_else(|error| of_io(&error), |()| State::Yes)
}

fn try_veth(plane: &Plane) -> State {
    let made = link::veth(&VethEnd::named("my0"), &VethEnd::named("my1")).and_then(|request| {
        let mut netlink = Netlink::open()?;
        netlink.apply([request])?;
        netlink.link("my0")
    });
    let veth = match made {
        Ok(veth) => veth,
        Err(error) => return State::No(error.to_string()),
    };
    let program = match port(plane).and_then(|port| port.program(Hook::Xdp)) {
        Ok(program) => program,
        Err(error) => return State::Unknown(error.to_string()),
    };
    let place = AttachTarget {
        interface: veth.name,
        ifindex: veth.index,
    };
    Attachment::xdp(program.as_fd(), &place, XdpMode::Native, None)
        .map_or_else(|error| state_of(&error), |_| State::Yes)
}

fn bpffs() -> State {
    if is_bpffs(Path::new("/sys/fs/bpf")) {
        State::Yes
    } else {
        State::No("not mounted".into())
    }
}

fn btf() -> State {
    if Path::new("/sys/kernel/btf/vmlinux").exists() {
        State::Yes
    } else {
        State::No("built without CONFIG_DEBUG_INFO_BTF".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        for release in ["6.1.0-21-amd64", "6.10.2", "6.18.44-fc", "10.0"] {
            assert_eq!(recent(release), State::Yes, "{release}");
        }
        for release in ["5.15.0-91-generic", "6.0.19", "4.19"] {
            assert!(matches!(recent(release), State::No(_)), "{release}");
        }
        assert!(matches!(recent("Linux"), State::Unknown(_)));
    }

    #[test]
    fn tests_find_the_kernel_features_and_leave_interfaces_alone() {
        let features = features();
        for feature in &features.all {
            assert!(!feature.consequence.is_empty() && !feature.remedy.is_empty());
            // Without root most results are unknown. With root the suite runs only if all required
            // features exist.
            if feature.required && is_root() {
                assert_eq!(feature.state, State::Yes, "{}", feature.name);
            }
        }
        assert!(features.usable());
        assert!(
            !Path::new("/sys/class/net/my0").exists(),
            "tried outside of its namespace"
        );
    }
}
