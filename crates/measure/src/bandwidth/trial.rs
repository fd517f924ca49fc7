//! A trial whose receiver needs no core. The server's socket queues all packets, and the trial
//! reads the queue after the last send.
//!
//! To run sender, path and receiver separately takes three cores. With two cores, the receiver
//! would compete with the path or the sender, and limit the rate. Here the socket's buffer holds
//! the whole trial, and its fill level shows when the last packet arrived. The *carried* rate is
//! the number of packets over the time from the first send to the last arrival. So a queue on the
//! path does not inflate the rate, and short trials suffice.

use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;
use std::thread;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, getsockopt, sendmsg};
use nix::{getsockopt_impl, sockopt_impl};

use super::trial_result::{Arrivals, TrialResult};
use crate::Error;
use crate::clock::now_ns;
use crate::config::{check_payload, check_range};
use crate::control::{Control, Watch};
use crate::echo::{is_no_datagram, receive};
use crate::generator::{Late, Pace, SendOutcome, Stream, Wait, generate};
use crate::payload::{Codec, HEADER_BYTES, Header};
use crate::run::{pin_thread, random_run_id};
use crate::socket::{Sockets, forbid_fragments, widen_receive_buffer};

/// Maximum number of packets of a trial. The server's socket buffer holds all of them.
pub const MAX_PACKETS: u32 = 50_000;
/// Maximum number of packets of a system call (`UDP_MAX_SEGMENTS` of Linux before 6.9).
pub const MAX_BURST: u16 = 64;
/// Maximum payload of a system call, bytes. With the headers, this is one IPv6 datagram before
/// segmentation.
const MAX_BURST_BYTES: usize = 65_000;

/// Maximum buffer space of a queued packet, bytes: a page of data, and the descriptor.
const QUEUED_BYTES: usize = 4096 + 1024;
/// If the fill level has not changed for this time, all packets have arrived, or a thread was
/// interrupted. In that case the read of the queue finds more packets.
const QUIET_NS: u64 = 1_000_000;
/// Longest wait for missing packets after the last arrival.
const MISSING_WAIT_NS: u64 = 10_000_000;
/// Longest trial, including sending and reading.
const LIMIT_NS: u64 = 10_000_000_000;
/// A sender that is later than this time restarts its timeline, because a burst to catch up would
/// overflow queues that suffice for the requested rate.
const MAX_LAG_NS: u64 = 1_000_000;
/// Number of refused sends in a row that fails the trial.
const MAX_REFUSALS: u32 = 100_000;
/// Names the socket in errors.
const SERVER: &str = "the bandwidth measurement's server";
/// Number of packets before a trial, which wake sleeping threads and cores.
const WARM_UP: u32 = 64;

sockopt_impl!(
    /// Memory use of a socket's queues (`SK_MEMINFO_*` of linux/sock_diag.h). nix has no such
    /// option.
    MemInfo,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_MEMINFO,
    [u32; 9]
);

/// The traffic of a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Destination of the packets.
    pub destination: SocketAddr,
    /// UDP payload, bytes.
    pub payload_bytes: usize,
    /// Number of packets, 2 to [`MAX_PACKETS`].
    pub packets: u32,
    /// Packets of one system call, 1 to [`MAX_BURST`], with at most 65 000 bytes of payload.
    /// Several packets use UDP segmentation offload (`UDP_SEGMENT` of udp(7)), as senders of bulk
    /// data do. The kernel then segments the burst before the sender's link. If the link has no
    /// segmentation (without checksum offload before Linux 6.12), the trial sends the packets one
    /// by one; see [`TrialResult::segmented`].
    pub burst: u16,
    /// Core of the sending thread.
    pub core: Option<usize>,
}

/// Sends `load` at `offered_mpps` millions of packets a second, or as fast as possible, and reports
/// the arrivals.
///
/// One thread polls during the trial, at most 10 s.
///
/// # Errors
/// [`Error::Option`] for a load out of range, [`Error::System`] if a socket fails.
pub fn run_trial(
    load: &Load,
    sockets: &Sockets,
    offered_mpps: Option<f64>,
    control: Control<'_>,
) -> Result<TrialResult, Error> {
    load.validate()?;
    let packets = load.packets.max(WARM_UP) as usize;
    prepare_sockets(sockets, packets * QUEUED_BYTES)?;
    thread::scope(|scope| {
        // Use a new thread, so that the caller's CPU affinity does not change.
        let trial = scope.spawn(|| {
            pin_thread(load.core)?;
            let never_failed = AtomicBool::new(false);
            let watch = Watch::new(control, now_ns() + LIMIT_NS, &never_failed);
            measure(load, sockets, offered_mpps, &watch)
        });
        trial.join().map_err(|_| Error::Thread("sender"))?
    })
}

/// Sets the socket options for a trial. `receive_buffer` is the size of the server's buffer, bytes.
fn prepare_sockets(sockets: &Sockets, receive_buffer: usize) -> Result<(), Error> {
    for socket in [&sockets.client, &sockets.server] {
        forbid_fragments(socket)
            .and_then(|()| socket.set_nonblocking(true))
            .map_err(|error| {
                Error::system(
                    "prepare the bandwidth measurement's sockets",
                    error,
                    "check that both sockets are open",
                )
            })?;
    }
    widen_receive_buffer(&sockets.server, receive_buffer);
    Ok(())
}

impl Load {
    fn validate(&self) -> Result<(), Error> {
        /// MTU of Ethernet.
        const MTU: usize = 1500;
        check_payload(self.destination, self.payload_bytes, MTU)?;
        check_range("packets", self.packets, 2..=MAX_PACKETS, "")?;
        check_range("burst", self.burst, 1..=MAX_BURST, "")
    }
}

fn measure(
    load: &Load,
    sockets: &Sockets,
    offered_mpps: Option<f64>,
    watch: &Watch<'_>,
) -> Result<TrialResult, Error> {
    let warm_up = Load {
        packets: WARM_UP,
        ..load.clone()
    };
    let (_, growth) = send_and_receive(&warm_up, sockets, None, None, watch)?;
    // The size is known if all packets take the same space and no packet is lost.
    let bytes_per_packet =
        (growth > 0 && growth.is_multiple_of(WARM_UP)).then_some(growth / WARM_UP);
    let (result, _) = send_and_receive(load, sockets, offered_mpps, bytes_per_packet, watch)?;
    Ok(result)
}

/// Sends a load, and reads its packets at the server. Returns the result, and the growth of the
/// server's queue in bytes.
fn send_and_receive(
    load: &Load,
    sockets: &Sockets,
    offered_mpps: Option<f64>,
    bytes_per_packet: Option<u32>,
    watch: &Watch<'_>,
) -> Result<(TrialResult, u32), Error> {
    let codec = Codec::new(random_run_id(), 0, load.payload_bytes);
    let mut receiver = Receiver::new(&sockets.server, &codec, load.packets)?;
    let mut sender = Sender::new(load, &codec);
    let start = now_ns();
    let (sent, sending_ns) = sender.send(&sockets.client, offered_mpps, watch)?;
    let (mut last, grown) = receiver.watch_queue(sent, bytes_per_packet)?;
    receiver.read(sent, &mut last, watch)?;
    let ns = [sending_ns, last.saturating_sub(start)];
    let result = TrialResult {
        segmented: sender.segments,
        ..TrialResult::new(sent, ns, &receiver.arrivals)
    };
    Ok((result, grown))
}

/// Sends a trial's packets in bursts on an absolute timeline.
struct Sender<'a> {
    load: &'a Load,
    codec: &'a Codec,
    /// The payloads of a burst.
    payloads: Vec<u8>,
    destination: SockaddrStorage,
    /// Whether the kernel segments bursts for this link.
    segments: bool,
}

impl<'a> Sender<'a> {
    fn new(load: &'a Load, codec: &'a Codec) -> Self {
        let burst = usize::from(load.burst).min((MAX_BURST_BYTES / load.payload_bytes).max(1));
        Self {
            payloads: codec.template().repeat(burst),
            destination: SockaddrStorage::from(load.destination),
            segments: burst > 1,
            load,
            codec,
        }
    }

    /// Sends all packets. Returns their number, and the time from the first to the last packet, ns.
    fn send(
        &mut self,
        socket: &UdpSocket,
        offered_mpps: Option<f64>,
        watch: &Watch<'_>,
    ) -> Result<(u64, u64), Error> {
        let (bytes, destination) = (self.load.payload_bytes, self.load.destination);
        let packets = u64::from(self.load.packets);
        let start = now_ns();
        let (mut next, mut last, mut refusals) = (0, start, 0);
        let rate_pps = offered_mpps.map(|mpps| mpps * 1e6);
        let pace = Pace::new(rate_pps, Late::CatchUp(MAX_LAG_NS), start);
        let send = |_, now| match self.send_burst(socket, next, now) {
            Ok(packets) => {
                (next, last, refusals) = (next + packets, now, 0);
                Ok(SendOutcome {
                    packets,
                    refused: 0,
                })
            }
            // A full send buffer is the sender's limit and not a loss, so the sender tries again.
            Err(error) if refusals < MAX_REFUSALS && is_no_datagram(&error) => {
                refusals += 1;
                Ok(SendOutcome::default())
            }
            Err(error) => Err(Error::system(
                format!("send {bytes} bytes to {destination}"),
                error,
                "check the route and the link's MTU",
            )),
        };
        generate(
            &mut [Stream::new(pace, send)],
            Wait::Spin,
            |streams, now| streams[0].sent() < packets && watch.stop_reason(now).is_none(),
        )?;
        Ok((next, last - start))
    }

    /// Sends one burst. Returns the number of packets that the kernel accepted.
    fn send_burst(&mut self, socket: &UdpSocket, first: u64, now: u64) -> std::io::Result<u64> {
        let left = (u64::from(self.load.packets) - first) as usize;
        let size = self.load.payload_bytes;
        let burst = (self.payloads.len() / size).min(left);
        let payloads = &mut self.payloads[..burst * size];
        for (id, payload) in (first..).zip(payloads.chunks_exact_mut(size)) {
            self.codec.write(payload, &Header::at_send(id, 0, now));
        }
        if self.segments && burst > 1 {
            match sendmsg(
                socket.as_raw_fd(),
                &[IoSlice::new(payloads)],
                &[ControlMessage::UdpGsoSegments(&(size as u16))],
                MsgFlags::empty(),
                Some(&self.destination),
            ) {
                Ok(_) => return Ok(burst as u64),
                Err(Errno::EIO) => self.segments = false,
                Err(errno) => return Err(errno.into()),
            }
        }
        let mut sent = 0;
        for payload in payloads.chunks_exact(size) {
            match socket.send_to(payload, self.load.destination) {
                Ok(_) => sent += 1,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }
}

/// Receives the packets of a trial at the server.
struct Receiver<'a> {
    socket: &'a UdpSocket,
    codec: &'a Codec,
    arrivals: Arrivals,
    /// Bytes in the queue at the start. The kernel does not subtract read packets at once.
    queued_at_start: u32,
}

impl<'a> Receiver<'a> {
    fn new(socket: &'a UdpSocket, codec: &'a Codec, packets: u32) -> Result<Self, Error> {
        let mut receiver = Self {
            socket,
            codec,
            arrivals: Arrivals::new(packets as usize),
            queued_at_start: 0,
        };
        receiver.queued_at_start = receiver.queued_bytes()?;
        Ok(receiver)
    }

    /// Waits for the `sent` packets without reading them. If `bytes_per_packet` is known, the wait
    /// ends when the queue has grown by this size for each packet. Returns the time of the last
    /// growth, and the growth in bytes.
    fn watch_queue(&self, sent: u64, bytes_per_packet: Option<u32>) -> Result<(u64, u32), Error> {
        let expected = bytes_per_packet.map(|bytes| u64::from(bytes) * sent);
        let (mut grown, mut last) = (0, now_ns());
        loop {
            let now = now_ns();
            let growth = self.queued_bytes()?.wrapping_sub(self.queued_at_start);
            if growth != grown {
                (grown, last) = (growth, now);
            }
            if expected == Some(grown.into()) || now - last > QUIET_NS {
                return Ok((last, grown));
            }
        }
    }

    /// Reads the queue and waits for missing packets of `sent`. Sets `last` to the time of the last
    /// arrival after a wait.
    fn read(&mut self, sent: u64, last: &mut u64, watch: &Watch<'_>) -> Result<(), Error> {
        let mut header = [0; HEADER_BYTES];
        let mut waited = false;
        loop {
            if let Some((length, _)) = receive(self.socket, &mut header, SERVER)? {
                self.arrivals.record(self.codec, &header[..length]);
                if waited {
                    *last = now_ns();
                }
                continue;
            }
            let now = now_ns();
            let missing = self.arrivals.received < sent;
            if !missing || now - *last > MISSING_WAIT_NS || watch.stop_reason(now).is_some() {
                return Ok(());
            }
            waited = true;
        }
    }

    /// Memory of the packets in the socket's queue, bytes.
    fn queued_bytes(&self) -> Result<u32, Error> {
        let info = getsockopt(self.socket, MemInfo).map_err(|errno| {
            let action = format!("receive at {SERVER}");
            Error::system(
                action,
                errno,
                "check that the server's namespace still exists",
            )
        })?;
        // SK_MEMINFO_RMEM_ALLOC.
        Ok(info[0])
    }
}
