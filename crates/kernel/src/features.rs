//! Tests which features the running kernel offers to chains.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

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
pub enum FeatureState {
    /// A test succeeded.
    Yes,
    /// A test failed. Holds the cause.
    No(String),
    /// The test could not run. Holds the cause.
    Unknown(String),
}

/// One kernel feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Name for the user, for example `AF_XDP sockets`.
    pub name: &'static str,
    /// Result of the feature's test.
    pub state: FeatureState,
    /// Whether every chain in the kernel needs the feature.
    pub required: bool,
    /// The consequence of a missing feature.
    pub consequence: &'static str,
    /// How to get the feature.
    pub remedy: &'static str,
}

/// The results of all feature tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// All features, in the order in which a packet needs them.
    pub all: Vec<Feature>,
}

impl Features {
    /// Returns whether no test of a required feature failed. Unknown results do not count.
    pub fn are_usable(&self) -> bool {
        self.all
            .iter()
            .all(|feature| !feature.required || !matches!(feature.state, FeatureState::No(_)))
    }
}

impl fmt::Display for FeatureState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::No(reason) => write!(f, "no: {reason}"),
            Self::Unknown(reason) => write!(f, "unknown: {reason}"),
        }
    }
}

/// Capacity that suffices for one chain of one port.
const SMALL: Capacity = Capacity {
    lines: 64,
    programs: 4,
    chains: 2,
    matches: 4,
    ports: 1,
    queues: 1,
};

/// Tests all features. Takes tens of milliseconds; most tests need root. Touches no interface of
/// this machine: attaches programs in a temporary network namespace.
pub fn test_features() -> Features {
    let release = machine::release();
    let plane = Plane::create(None, SMALL);
    let load = |hook| {
        plane
            .as_ref()
            .map_err(state_of_error)
            .and_then(|plane| load_test_chain(plane, hook).map_err(|error| state_of_error(&error)))
    };
    let mut all = vec![
        feature(
            "Linux 6.1 or newer",
            true,
            check_release(&release),
            ["older kernels are not tested", "install Linux 6.1 or newer"],
        ),
        feature(
            "memory-mapped eBPF arrays",
            true,
            plane
                .as_ref()
                .map_or_else(state_of_error, |_| FeatureState::Yes),
            [
                "no chain runs: Myelin reads counters from arrays that are mapped into memory",
                "use Linux 6.1 or newer with CONFIG_BPF_SYSCALL",
            ],
        ),
        feature(
            "front door and functions at XDP",
            true,
            load(Hook::Xdp).map_or_else(|state| state, |()| FeatureState::Yes),
            [
                "no chain can use XDP or user space: the verifier must know bounded loops and bpf_loop",
                "use Linux 6.1 or newer with CONFIG_BPF_SYSCALL",
            ],
        ),
        feature(
            "front door and functions at tc",
            true,
            load(Hook::Tcx).map_or_else(|state| state, |()| FeatureState::Yes),
            [
                "no port works: each port has the tc front door",
                "use Linux 6.1 or newer with CONFIG_NET_CLS_ACT",
            ],
        ),
    ];
    all.extend(test_optional_features(&plane));
    Features { release, all }
}

/// Tests the features that only some chains need.
fn test_optional_features(plane: &Result<Plane, Error>) -> [Feature; 7] {
    [
        feature(
            "eBPF compiler (JIT)",
            false,
            check_jit(),
            [
                "kernel functions cost several times as much",
                "sysctl net.core.bpf_jit_enable=1",
            ],
        ),
        test_in_namespace(
            "tcx",
            [
                "Myelin uses clsact filters: they are slower, and after a killed agent only `myelin down --all` removes them",
                "use Linux 6.6 or newer",
            ],
            plane,
            try_tcx,
        ),
        test_in_namespace(
            "XDP attached by a link",
            [
                "Myelin refuses chains that need XDP or user space",
                "use Linux 6.1 or newer",
            ],
            plane,
            try_xdp_link,
        ),
        test_in_namespace(
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
            sys::test_af_xdp()
                .map_or_else(|error| state_of_io_error(&error), |()| FeatureState::Yes),
            [
                "Myelin refuses functions in user space",
                "use a kernel with CONFIG_XDP_SOCKETS",
            ],
        ),
        feature(
            "eBPF file system",
            true,
            check_bpffs(),
            [
                "the agent cannot start, because it mounts one in its run directory",
                "use a kernel with CONFIG_BPF_SYSCALL",
            ],
        ),
        feature(
            "BTF of the kernel",
            false,
            check_btf(),
            [
                "chains run, but bpftool and bpftrace show fewer details",
                "use a kernel with CONFIG_DEBUG_INFO_BTF",
            ],
        ),
    ]
}

fn feature(
    name: &'static str,
    required: bool,
    state: FeatureState,
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

/// Returns the state after a failed test. Without permission the state is unknown.
fn state_of_io_error(error: &io::Error) -> FeatureState {
    if error.kind() == io::ErrorKind::PermissionDenied {
        FeatureState::Unknown("the test needs root".into())
    } else {
        FeatureState::No(error.to_string())
    }
}

fn state_of_error(error: &Error) -> FeatureState {
    match error {
        Error::Map { cause, .. } | Error::Attach { cause, .. } => state_of_io_error(cause),
        // The verifier also returns "not permitted" for a program that it cannot prove safe.
        Error::Load { cause, .. } if !is_root() => state_of_io_error(&io_error(cause)),
        _ => FeatureState::No(error.to_string()),
    }
}

fn check_release(release: &str) -> FeatureState {
    match machine::version(release) {
        Some(version) if version >= (6, 1) => FeatureState::Yes,
        Some(_) => FeatureState::No(format!("the kernel is {release}")),
        None => FeatureState::Unknown(format!("the release {release} names no version")),
    }
}

/// Loads a front door, and a chain whose function loops over the payload.
fn load_test_chain(plane: &Plane, hook: Hook) -> Result<(), Error> {
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
                by_stack: false,
            },
        }],
    })?;
    add_loopback_port(plane)?.program(hook)?;
    Ok(())
}

fn add_loopback_port(plane: &Plane) -> Result<crate::Port, Error> {
    plane.add_port(PortConfig {
        name: "lo".into(),
        ifindex: LOOPBACK,
        opposite: None,
        single_queue: false,
        behind_link: crate::BehindLink::No,
        discards: false,
    })
}

/// The index of the loopback interface in every namespace.
const LOOPBACK: u32 = 1;

fn check_jit() -> FeatureState {
    match std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable") {
        Ok(text) if text.trim() == "0" => FeatureState::No("the JIT is off".into()),
        Ok(_) => FeatureState::Yes,
        Err(error) => FeatureState::Unknown(error.to_string()),
    }
}

/// Runs a test in a temporary network namespace.
fn test_in_namespace(
    name: &'static str,
    consequence_and_remedy: [&'static str; 2],
    plane: &Result<Plane, Error>,
    attempt: fn(&Plane) -> FeatureState,
) -> Feature {
    let state = match plane {
        Err(error) => state_of_error(error),
        Ok(plane) => Netns::anonymous()
            .and_then(|netns| netns.enter(|| attempt(plane)))
            .unwrap_or_else(|error| FeatureState::Unknown(error.to_string())),
    };
    feature(name, false, state, consequence_and_remedy)
}

fn try_tcx(plane: &Plane) -> FeatureState {
    try_attach(plane, Hook::Tcx, |program| {
        sys::link_create(program, LOOPBACK, libbpf_sys::BPF_TCX_INGRESS, 0).map(drop)
    })
}

fn try_xdp_link(plane: &Plane) -> FeatureState {
    let flags = XdpMode::Generic.flags();
    try_attach(plane, Hook::Xdp, |program| {
        sys::link_create(program, LOOPBACK, libbpf_sys::BPF_XDP, flags).map(drop)
    })
}

fn try_attach(
    plane: &Plane,
    hook: Hook,
    attach: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> io::Result<()>,
) -> FeatureState {
    let program = match add_loopback_port(plane).and_then(|port| port.program(hook)) {
        Ok(program) => program,
        Err(error) => return FeatureState::Unknown(error.to_string()),
    };
    attach(program.as_fd()).map_or_else(|error| state_of_io_error(&error), |()| FeatureState::Yes)
}

fn try_veth(plane: &Plane) -> FeatureState {
    let created =
        link::create_veth(&VethEnd::named("my0"), &VethEnd::named("my1")).and_then(|request| {
            let mut netlink = Netlink::open()?;
            netlink.apply([request])?;
            netlink.link("my0")
        });
    let veth = match created {
        Ok(veth) => veth,
        Err(error) => return FeatureState::No(error.to_string()),
    };
    let program = match add_loopback_port(plane).and_then(|port| port.program(Hook::Xdp)) {
        Ok(program) => program,
        Err(error) => return FeatureState::Unknown(error.to_string()),
    };
    let target = AttachTarget {
        interface: veth.name,
        ifindex: veth.index,
    };
    Attachment::attach_xdp(program.as_fd(), &target, XdpMode::Native, None)
        .map_or_else(|error| state_of_error(&error), |_| FeatureState::Yes)
}

fn check_bpffs() -> FeatureState {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.ends_with("\tbpf")) {
        FeatureState::Yes
    } else {
        FeatureState::No("the kernel does not know it".into())
    }
}

fn check_btf() -> FeatureState {
    if Path::new("/sys/kernel/btf/vmlinux").exists() {
        FeatureState::Yes
    } else {
        FeatureState::No("built without CONFIG_DEBUG_INFO_BTF".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        for release in ["6.1.0-21-amd64", "6.10.2", "6.18.44-fc", "10.0"] {
            assert_eq!(check_release(release), FeatureState::Yes, "{release}");
        }
        for release in ["5.15.0-91-generic", "6.0.19", "4.19"] {
            assert!(
                matches!(check_release(release), FeatureState::No(_)),
                "{release}"
            );
        }
        assert!(matches!(check_release("Linux"), FeatureState::Unknown(_)));
    }

    #[test]
    fn required_features_are_found_and_no_interface_of_this_namespace_is_created() {
        let features = test_features();
        for feature in &features.all {
            assert!(!feature.consequence.is_empty() && !feature.remedy.is_empty());
            // Without root most results are unknown. With root the suite runs only if all required
            // features exist.
            if feature.required && is_root() {
                assert_eq!(feature.state, FeatureState::Yes, "{}", feature.name);
            }
        }
        assert!(features.are_usable());
        assert!(
            !Path::new("/sys/class/net/my0").exists(),
            "the test ran outside its namespace"
        );
    }
}
