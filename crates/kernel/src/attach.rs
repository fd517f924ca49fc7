//! Front doors on interfaces. Another's program is never replaced.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook};

use crate::error::io_error;
use crate::{Error, pins};

/// Where an XDP program sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before an skb exists. Veth and most NIC drivers have it.
    Native,
    /// After the driver, on an skb: works on every interface, and costs more than tcx.
    Generic,
}

/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of `linux/if_link.h`.
impl XdpMode {
    pub(crate) const fn flags(self) -> u32 {
        match self {
            Self::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            Self::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
        }
    }
}

/// Which packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Those that come in.
    In,
    /// Those that go out, before the interface's queueing discipline.
    Out,
}

impl Direction {
    /// How a program sees them that sees all: what comes in before others can take it away, and what goes out after all
    /// others have changed it. Attach type of tcx, and flags.
    const fn outermost(self) -> (libbpf_sys::bpf_attach_type, u32) {
        match self {
            Self::In => (libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_F_BEFORE),
            Self::Out => (libbpf_sys::BPF_TCX_EGRESS, 0),
        }
    }
}

/// Attach type of tcx, and flags, of a front door: after the programs that are there.
const DOOR: (libbpf_sys::bpf_attach_type, u32) = (libbpf_sys::BPF_TCX_INGRESS, 0);

/// The interface that a program stands on, as errors and pins name it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) interface: String,
    pub(crate) ifindex: u32,
}

/// An attached program; detached on drop, unless it is pinned.
#[derive(Debug)]
pub(crate) struct Attachment {
    kind: Kind,
    pin: Option<PathBuf>,
}

#[derive(Debug)]
enum Kind {
    Link(OwnedFd),
    /// A filter of the clsact qdisc, on kernels without tcx (before 6.6).
    Clsact(TcHook),
    /// What goes with its interface.
    Left,
}

// SAFETY: a `TcHook` is plain numbers and the name of a qdisc, which is null here; nothing of it belongs to a thread.
unsafe impl Send for Kind {}

impl Attachment {
    /// Attaches at XDP.
    pub(crate) fn xdp(
        program: BorrowedFd<'_>,
        place: &Place,
        mode: XdpMode,
        pin: Option<PathBuf>,
    ) -> Result<Self, Error> {
        let link =
            crate::sys::link_create(program, place.ifindex, libbpf_sys::BPF_XDP, mode.flags())
                .map_err(|cause| place.error("XDP", cause, |errno| xdp_remedy(errno, mode)))?;
        Self::link(link, pin)
    }

    /// Attaches a front door at tcx; on a kernel without tcx as a clsact filter.
    pub(crate) fn tc(
        program: BorrowedFd<'_>,
        place: &Place,
        pin_dir: Option<&Path>,
    ) -> Result<Self, Error> {
        match tcx(program, place, DOOR)? {
            Some(link) => Self::link(link, place.pin(pin_dir, "tcx")),
            None => Self::clsact(program, place, Direction::In, pin_dir),
        }
    }

    /// The same on an interface of the calling thread's namespace that is not the plane's, where its index may be that of another
    /// interface elsewhere: so the pin has a name of the caller's choice, and a filter of clsact is left to go with its interface.
    pub(crate) fn tc_elsewhere(
        program: BorrowedFd<'_>,
        place: &Place,
        pin: Option<PathBuf>,
    ) -> Result<Self, Error> {
        if let Some(link) = tcx(program, place, DOOR)? {
            return Self::link(link, pin);
        }
        // Dropped, it would look for its filter in the namespace of whoever drops it.
        std::mem::forget(Self::clsact(program, place, Direction::In, None)?);
        Ok(Self {
            kind: Kind::Left,
            pin: None,
        })
    }

    /// Attaches a program that only looks on, outermost in its direction; at clsact on a kernel without tcx.
    pub(crate) fn watch(
        program: BorrowedFd<'_>,
        place: &Place,
        direction: Direction,
    ) -> Result<Self, Error> {
        match tcx(program, place, direction.outermost())? {
            Some(link) => Self::link(link, None),
            None => Self::clsact(program, place, direction, None),
        }
    }

    /// Attaches as a filter of the clsact qdisc, at a priority of the kernel's choice. The qdisc stays when the filter
    /// goes: others may have come to use it.
    pub(crate) fn clsact(
        program: BorrowedFd<'_>,
        place: &Place,
        direction: Direction,
        pin_dir: Option<&Path>,
    ) -> Result<Self, Error> {
        let fail = |cause: &libbpf_rs::Error| place.error("clsact", io_error(cause), tc_remedy);
        let mut hook = TcHook::new(program);
        hook.ifindex(place.ifindex.cast_signed())
            .attach_point(match direction {
                Direction::In => TC_INGRESS,
                Direction::Out => TC_EGRESS,
            })
            .handle(1);
        hook.create().map_err(|cause| fail(&cause))?;
        let hook = hook.attach().map_err(|cause| fail(&cause))?;
        let mut attachment = Self {
            kind: Kind::Clsact(hook),
            pin: None,
        };
        if let Some(dir) = pin_dir {
            let name = format!(
                "{}{}-{}-{}",
                pins::CLSACT,
                place.ifindex,
                hook.get_handle(),
                hook.get_priority()
            );
            let path = dir.join(name);
            pins::pin(program, &path)?;
            attachment.pin = Some(path);
        }
        Ok(attachment)
    }

    fn link(link: OwnedFd, pin: Option<PathBuf>) -> Result<Self, Error> {
        if let Some(path) = &pin {
            pins::pin(link.as_fd(), path)?;
        }
        Ok(Self {
            kind: Kind::Link(link),
            pin,
        })
    }

    /// Puts another program in the place of the attached one, in one step; a filter of clsact cannot do that.
    pub(crate) fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        match &self.kind {
            Kind::Link(link) => crate::sys::link_update(link.as_fd(), program),
            Kind::Clsact(_) | Kind::Left => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Detaches, pinned or not.
    pub(crate) fn detach(mut self) -> Result<(), Error> {
        // Dropping this detaches the link itself, whatever becomes of the pin.
        self.pin.take().map_or(Ok(()), |path| pins::unpin(&path))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.pin.is_some() {
            return;
        }
        // The interface may be gone, and what was attached with it.
        let _ = match &mut self.kind {
            Kind::Link(link) => crate::sys::link_detach(link.as_fd()).ok(),
            Kind::Clsact(hook) => hook.detach().ok(),
            Kind::Left => None,
        };
    }
}

impl Place {
    /// Where the link of a program at `point` is pinned; of an interface of the plane's namespace, whose index names it.
    pub(crate) fn pin(&self, dir: Option<&Path>, point: &str) -> Option<PathBuf> {
        dir.map(|dir| dir.join(format!("{}{point}-{}", pins::LINK, self.ifindex)))
    }

    fn error(
        &self,
        point: &'static str,
        mut cause: io::Error,
        remedy: impl Fn(i32) -> &'static str,
    ) -> Error {
        // XDP says EINVAL then.
        if crate::sys::interface_name(self.ifindex).is_err() {
            cause = io::Error::from_raw_os_error(libc::ENODEV);
        }
        let remedy = remedy(cause.raw_os_error().unwrap_or_default());
        Error::Attach {
            interface: self.interface.clone(),
            point,
            cause,
            remedy,
        }
    }
}

/// A link at tcx with that attach type and those flags; none on a kernel without tcx.
fn tcx(
    program: BorrowedFd<'_>,
    place: &Place,
    (attach_type, flags): (libbpf_sys::bpf_attach_type, u32),
) -> Result<Option<OwnedFd>, Error> {
    match crate::sys::link_create(program, place.ifindex, attach_type, flags) {
        Ok(link) => Ok(Some(link)),
        Err(cause) if cause.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(cause) => Err(place.error("tcx", cause, tc_remedy)),
    }
}

fn xdp_remedy(errno: i32, mode: XdpMode) -> &'static str {
    match (errno, mode) {
        (libc::EBUSY | libc::EEXIST, _) => {
            "another XDP program is attached, which Myelin leaves alone: remove it (`ip link set dev NAME xdp off`, or stop its owner), or set `hook: tcx`"
        }
        (libc::ENODEV, _) => "the interface does not exist any more: check its name with `ip link`",
        (libc::EPERM, _) => "attaching needs root (CAP_NET_ADMIN and CAP_BPF)",
        (libc::ERANGE | libc::EMSGSIZE, _) => {
            "the MTU is too large for XDP, a packet must fit in one page: lower the MTU to 3500 or less on both ends"
        }
        (libc::EOPNOTSUPP | libc::EINVAL, XdpMode::Native) => {
            "the driver has no native XDP, or not with the offloads that are on: turn them off (`ethtool -K NAME lro off`), or set `hook: tcx`"
        }
        _ => "see `myelin doctor`, or set `hook: tcx`",
    }
}

fn tc_remedy(errno: i32) -> &'static str {
    match errno {
        libc::ENODEV => "the interface does not exist any more: check its name with `ip link`",
        libc::EPERM => "attaching needs root (CAP_NET_ADMIN and CAP_BPF)",
        libc::ENOENT | libc::EOPNOTSUPP => {
            "this kernel has neither tcx nor clsact: load the modules sch_ingress and cls_bpf"
        }
        _ => "see `myelin doctor`",
    }
}
