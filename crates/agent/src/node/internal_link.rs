//! The veth link between a worker and the kernel, for chains that return from user space to the
//! kernel.

use std::sync::Arc;

use myelin_dataplane::{Role, SocketId, XskConfig};
use myelin_kernel::{Plane, Reentry, XdpMode};
use myelin_linux::journal::{Resource, ResourceGuard};
use myelin_linux::link::{self, Link, VethEnd};
use myelin_linux::netlink::Netlink;
use myelin_packet::nsh::ENCAPSULATION_LEN;

use crate::api::{ApiError, short_hash};
use crate::node::mtu::LARGEST_MTU;
use crate::node::workers::{WorkerState, socket_redirect};

/// The internal link of a worker, its sockets and its re-entry door.
pub(crate) struct InternalLink {
    door: ReentryDoorGuard,
    pub(crate) transmit: SocketId,
    /// The socket that receives packets from kernel functions, and its interface.
    pub(crate) receive: (SocketId, u32),
    _link: ResourceGuard,
}

/// Detaches the re-entry door when dropped.
struct ReentryDoorGuard(Arc<Reentry>);

impl Drop for ReentryDoorGuard {
    fn drop(&mut self) {
        if let Err(error) = self.0.detach() {
            tracing::warn!(%error, "cannot detach a re-entry door");
        }
    }
}

impl InternalLink {
    /// The re-entry door at the far end.
    pub(crate) fn door(&self) -> Arc<Reentry> {
        Arc::clone(&self.door.0)
    }

    /// Makes the link of this worker, with a socket at each end and the re-entry door at the far
    /// end.
    pub(crate) fn make(worker: &mut WorkerState, plane: &Plane) -> Result<Self, ApiError> {
        let base = format!(
            "my{}",
            short_hash(worker.handle().config().run_id.as_bytes())
        );
        let (near, far) = (format!("{base}a"), format!("{base}b"));
        let name = near.clone();
        let made = worker.journal.guard(Resource::Link { name });
        let made = made.map_err(ApiError::failed)?;
        let (near, far) = make_internal_link(&near, &far)?;
        let door = plane.add_reentry(far.index).map_err(ApiError::failed)?;
        let door = ReentryDoorGuard(Arc::new(door));
        let attached = door.0.attach_xdp(XdpMode::Native);
        attached.map_err(ApiError::failed)?;
        let ring = worker.settings().receive_ring(1);
        let socket = |link: &Link, role| {
            let mut config = XskConfig::new(&link.name, link.index, 0, role);
            config.ring_size = ring;
            config
        };
        let receive = worker.bind(socket(&far, Role::Ingress))?;
        let receive = receive.with_redirect(socket_redirect(door.0.sockets(), 0));
        let receive = worker
            .handle()
            .add_socket(receive)
            .map_err(ApiError::failed)?;
        let transmit = worker
            .bind(socket(&near, Role::Egress))
            .and_then(|xsk| worker.handle().add_socket(xsk).map_err(ApiError::failed));
        match transmit {
            Ok(transmit) => Ok(Self {
                door,
                transmit,
                receive: (receive, far.index),
                _link: made,
            }),
            Err(error) => {
                worker.close_socket(receive);
                Err(error)
            }
        }
    }
}

/// Makes an internal link and sets both ends up. Its MTU has room for the longest packet of any
/// port behind an NSH header.
fn make_internal_link(near: &str, far: &str) -> Result<(Link, Link), ApiError> {
    let mtu = Some(LARGEST_MTU + ENCAPSULATION_LEN as u32);
    let make = || -> myelin_linux::Result<(Link, Link)> {
        let mut netlink = Netlink::open()?;
        let end = |name| VethEnd {
            mtu,
            ..VethEnd::named(name)
        };
        netlink.apply([link::create_veth(&end(near), &end(far))?])?;
        let (near, far) = (netlink.link(near)?, netlink.link(far)?);
        netlink.apply([
            link::disable_ipv6_autoconfiguration(&near.id()),
            link::disable_ipv6_autoconfiguration(&far.id()),
            link::set_up(&near.id()),
            link::set_up(&far.id()),
        ])?;
        Ok((near, far))
    };
    make().map_err(ApiError::failed)
}
