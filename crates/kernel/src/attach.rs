//! Attaches programs to interfaces. Never replaces a program that another process attached.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook};

use crate::error::io_error;
use crate::{Error, pins};

/// The XDP mode of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel makes an skb. Veth and most NIC drivers support this mode.
    Native,
    /// After the driver, on an skb. Works on every interface, but costs more than tcx.
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

/// The packets of an interface that a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficDirection {
    /// Incoming packets.
    In,
    /// Outgoing packets, before the interface's queueing discipline.
    Out,
}

impl TrafficDirection {
    /// Returns attach type and flags for a program that sees all packets. The program sees incoming
    /// packets before all other programs, and outgoing packets after all other programs.
    const fn outermost_point(self) -> (libbpf_sys::bpf_attach_type, u32) {
        match self {
            Self::In => (libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_F_BEFORE),
            Self::Out => (libbpf_sys::BPF_TCX_EGRESS, 0),
        }
    }

    /// Returns the name of that point in a pin.
    const fn pin_name(self) -> &'static str {
        match self {
            Self::In => "outermost-in",
            Self::Out => "outermost-out",
        }
    }
}

/// The pin of the program that takes frames of other nodes.
const WIRE: &str = "wire";

/// Attach type and flags of a front door at tcx: after the existing programs.
const DOOR: (libbpf_sys::bpf_attach_type, u32) = (libbpf_sys::BPF_TCX_INGRESS, 0);

/// The interface of a program.
#[derive(Clone, Debug)]
pub(crate) struct AttachTarget {
    /// Name of the interface, for errors.
    pub(crate) interface: String,
    /// Index of the interface, which also names the pin.
    pub(crate) ifindex: u32,
}

/// An attached program. The drop detaches the program, unless the attachment is pinned.
#[derive(Debug)]
pub(crate) struct Attachment {
    kind: Attached,
    pin: Option<PathBuf>,
}

#[derive(Debug)]
enum Attached {
    Link(OwnedFd),
    /// A filter of the clsact qdisc, on kernels without tcx (before 6.6).
    Clsact(TcHook),
    /// The program stays until its interface is removed.
    Permanent,
}

// SAFETY: a `TcHook` holds plain numbers and the name of a qdisc, which is null here. No part of
// the hook belongs to a thread.
unsafe impl Send for Attached {}

impl Attachment {
    /// Attaches a program at XDP.
    pub(crate) fn attach_xdp(
        program: BorrowedFd<'_>,
        target: &AttachTarget,
        mode: XdpMode,
        pin: Option<PathBuf>,
    ) -> Result<Self, Error> {
        let link =
            crate::sys::link_create(program, target.ifindex, libbpf_sys::BPF_XDP, mode.flags())
                .map_err(|cause| target.error("XDP", cause, |errno| xdp_remedy(errno, mode)))?;
        Self::from_link(link, pin)
    }

    /// Attaches a front door at tcx, or as a clsact filter on a kernel without tcx.
    pub(crate) fn attach_tc(
        program: BorrowedFd<'_>,
        target: &AttachTarget,
        pin_dir: Option<&Path>,
    ) -> Result<Self, Error> {
        match attach_tcx(program, target, DOOR)? {
            Some(link) => Self::from_link(link, target.pin_path(pin_dir, "tcx")),
            None => Self::attach_clsact(program, target, TrafficDirection::In, pin_dir),
        }
    }

    /// Attaches the program that takes frames of other nodes, which may share the interface with a
    /// front door.
    pub(crate) fn attach_wire(
        program: BorrowedFd<'_>,
        target: &AttachTarget,
        pin_dir: Option<&Path>,
    ) -> Result<Self, Error> {
        match attach_tcx(program, target, DOOR)? {
            Some(link) => Self::from_link(link, target.pin_path(pin_dir, WIRE)),
            None => Self::attach_clsact(program, target, TrafficDirection::In, pin_dir),
        }
    }

    /// Attaches a front door in the calling thread's namespace, if that is not the plane's
    /// namespace. An interface index may repeat in another namespace, so the caller names the pin.
    /// A clsact filter stays until its interface is removed.
    pub(crate) fn attach_tc_in_other_namespace(
        program: BorrowedFd<'_>,
        target: &AttachTarget,
        pin: Option<PathBuf>,
    ) -> Result<Self, Error> {
        if let Some(link) = attach_tcx(program, target, DOOR)? {
            return Self::from_link(link, pin);
        }
        // A drop would search for the filter in the namespace of the dropping thread.
        std::mem::forget(Self::attach_clsact(
            program,
            target,
            TrafficDirection::In,
            None,
        )?);
        Ok(Self {
            kind: Attached::Permanent,
            pin: None,
        })
    }

    /// Attaches a program outermost in its direction. Uses clsact on a kernel without tcx.
    pub(crate) fn attach_outermost(
        program: BorrowedFd<'_>,
        target: &AttachTarget,
        direction: TrafficDirection,
        pin_dir: Option<&Path>,
    ) -> Result<Self, Error> {
        match attach_tcx(program, target, direction.outermost_point())? {
            Some(link) => Self::from_link(link, target.pin_path(pin_dir, direction.pin_name())),
            None => Self::attach_clsact(program, target, direction, pin_dir),
        }
    }

    /// Attaches a clsact filter. The kernel chooses the priority. The qdisc stays after the removal
    /// of the filter, because other programs may use the qdisc.
    pub(crate) fn attach_clsact(
        program: BorrowedFd<'_>,
        target: &AttachTarget,
        direction: TrafficDirection,
        pin_dir: Option<&Path>,
    ) -> Result<Self, Error> {
        let fail = |cause: &libbpf_rs::Error| target.error("clsact", io_error(cause), tc_remedy);
        let mut hook = TcHook::new(program);
        hook.ifindex(target.ifindex.cast_signed())
            .attach_point(match direction {
                TrafficDirection::In => TC_INGRESS,
                TrafficDirection::Out => TC_EGRESS,
            })
            .handle(1);
        hook.create().map_err(|cause| fail(&cause))?;
        let hook = hook.attach().map_err(|cause| fail(&cause))?;
        let mut attachment = Self {
            kind: Attached::Clsact(hook),
            pin: None,
        };
        if let Some(dir) = pin_dir {
            let name = format!(
                "{}{}-{}-{}",
                pins::CLSACT,
                target.ifindex,
                hook.get_handle(),
                hook.get_priority()
            );
            let path = dir.join(name);
            pins::pin(program, &path)?;
            attachment.pin = Some(path);
        }
        Ok(attachment)
    }

    fn from_link(link: OwnedFd, pin: Option<PathBuf>) -> Result<Self, Error> {
        if let Some(path) = &pin {
            pins::pin(link.as_fd(), path)?;
        }
        Ok(Self {
            kind: Attached::Link(link),
            pin,
        })
    }

    /// Replaces the attached program atomically. A clsact filter does not support this operation.
    pub(crate) fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        match &self.kind {
            Attached::Link(link) => crate::sys::link_update(link.as_fd(), program),
            Attached::Clsact(_) | Attached::Permanent => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Detaches the program, pinned or not.
    pub(crate) fn detach(mut self) -> Result<(), Error> {
        // The drop of `self` detaches the link, even if the pin cannot be removed.
        self.pin.take().map_or(Ok(()), |path| pins::unpin(&path))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.pin.is_some() {
            return;
        }
        // Ignore errors, because the kernel may have removed the interface and its attachment.
        let _ = match &mut self.kind {
            Attached::Link(link) => crate::sys::link_detach(link.as_fd()).ok(),
            Attached::Clsact(hook) => hook.detach().ok(),
            Attached::Permanent => None,
        };
    }
}

impl AttachTarget {
    /// Returns the pin path of a link at `point`. The interface index is unique in the plane's
    /// namespace.
    pub(crate) fn pin_path(&self, dir: Option<&Path>, point: &str) -> Option<PathBuf> {
        dir.map(|dir| dir.join(format!("{}{point}-{}", pins::LINK, self.ifindex)))
    }

    fn error(
        &self,
        point: &'static str,
        mut cause: io::Error,
        remedy: impl Fn(i32) -> &'static str,
    ) -> Error {
        // XDP returns EINVAL if the interface does not exist.
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

/// Creates a tcx link. Returns `None` on a kernel without tcx.
fn attach_tcx(
    program: BorrowedFd<'_>,
    target: &AttachTarget,
    (attach_type, flags): (libbpf_sys::bpf_attach_type, u32),
) -> Result<Option<OwnedFd>, Error> {
    match crate::sys::link_create(program, target.ifindex, attach_type, flags) {
        Ok(link) => Ok(Some(link)),
        Err(cause) if cause.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(cause) => Err(target.error("tcx", cause, tc_remedy)),
    }
}

fn xdp_remedy(errno: i32, mode: XdpMode) -> &'static str {
    match (errno, mode) {
        (libc::EBUSY | libc::EEXIST, _) => {
            "another XDP program is attached, and Myelin does not replace it: remove that program (`ip link set dev NAME xdp off`, or stop the process that attached the program), or set `hook: tcx`"
        }
        (libc::ENODEV, _) => "the interface does not exist any more: check its name with `ip link`",
        (libc::EPERM, _) => "run as root (CAP_NET_ADMIN and CAP_BPF)",
        (libc::ERANGE | libc::EMSGSIZE, _) => {
            "the MTU is too large for XDP, because a packet must fit in one page: lower the MTU to 3500 or less on both ends"
        }
        (libc::EOPNOTSUPP | libc::EINVAL, XdpMode::Native) => {
            "the driver has no native XDP, or no native XDP with the present offloads: turn the offloads off (`ethtool -K NAME lro off`), or set `hook: tcx`"
        }
        _ => "run `myelin doctor`, or set `hook: tcx`",
    }
}

fn tc_remedy(errno: i32) -> &'static str {
    match errno {
        libc::ENODEV => "the interface does not exist any more: check its name with `ip link`",
        libc::EPERM => "run as root (CAP_NET_ADMIN and CAP_BPF)",
        libc::ENOENT | libc::EOPNOTSUPP => {
            "this kernel has neither tcx nor clsact: load the modules sch_ingress and cls_bpf"
        }
        _ => "run `myelin doctor`",
    }
}
