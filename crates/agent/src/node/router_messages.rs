//! Sends the ICMP messages of a router in the kernel. The program reports a packet, because a
//! program cannot make one; a thread of the agent writes the message with the code of user space,
//! and sends it out of the chain's ingress interface. Without the agent there are no messages.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use myelin_functions::icmp_error::{self, IcmpError};
use myelin_kernel::{LoadedChain, Report, ReportReason, RouterReports};
use myelin_linux::packet_socket::PacketSender;
use myelin_spec::{FunctionConfig, FunctionInstance, RouterConfig};

use crate::api::ApiError;

/// The thread that sends a router's messages. Dropping the value ends the thread a moment later.
pub(crate) struct RouterMessages(Arc<AtomicBool>);

impl Drop for RouterMessages {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts a thread for each router of a chain that runs in the kernel and has an address.
/// `functions` are the chain's functions in order; `ifindex` is the ingress interface.
pub(crate) fn start_all(
    loaded: &LoadedChain,
    functions: &[FunctionInstance],
    ifindex: u32,
) -> Result<Vec<RouterMessages>, ApiError> {
    let routers = functions
        .iter()
        .zip(0..)
        .filter_map(|(function, position)| {
            let FunctionConfig::Router(config) = &function.config else {
                return None;
            };
            (config.addresses != (None, None)).then_some((position, config))
        });
    let mut started = Vec::new();
    for (position, config) in routers {
        if let Some(reports) = loaded.reports(position).map_err(ApiError::failed)? {
            started.push(start(reports, config, ifindex)?);
        }
    }
    Ok(started)
}

fn start(
    reports: RouterReports,
    config: &RouterConfig,
    ifindex: u32,
) -> Result<RouterMessages, ApiError> {
    let mut sender = PacketSender::new(ifindex, &[]).map_err(ApiError::failed)?;
    let (addresses, mtu) = (config.addresses, config.mtu.unwrap_or(u32::MAX));
    let ended = Arc::new(AtomicBool::new(false));
    let is_ended = Arc::clone(&ended);
    let send = move |report: Report<'_>| {
        let from: Option<IpAddr> = if report.headers.flags.is_ipv6() {
            addresses.1.map(Into::into)
        } else {
            addresses.0.map(Into::into)
        };
        let error = match report.reason {
            ReportReason::TimeExceeded => IcmpError::TimeExceeded,
            ReportReason::TooBig => IcmpError::TooBig(mtu),
        };
        let Some(from) = from else { return };
        let packet = (report.frame, &report.headers);
        if icmp_error::write(error, packet, from, sender.frame_mut())
            && let Err(error) = sender.send(1)
        {
            tracing::debug!(ifindex, %error, "cannot send an ICMP message of a router");
        }
    };
    let watching = std::thread::Builder::new().spawn(move || {
        if let Err(error) = reports.watch(|| is_ended.load(Ordering::Relaxed), send) {
            tracing::warn!(%error, "a router in the kernel sends no ICMP messages");
        }
    });
    watching.map_err(|error| {
        ApiError::failed(format!(
            "cannot start the thread that sends a router's ICMP messages: {error}"
        ))
    })?;
    Ok(RouterMessages(ended))
}
