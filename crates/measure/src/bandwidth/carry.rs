//! A trial whose receiver takes no core: the server's socket keeps what arrives until all is sent, then it is read.
//!
//! Sender, way and receiver need three cores to be measured apart. With two the receiver would compete with the way, or with the sender, and be
//! what limits; here the socket's buffer holds the whole trial instead, and how full it is tells when the last packet arrived. So a
//! rate counts as *carried*: packets over the time from the first send to the last arrival. What a queue on the way took in faster than
//! it went on does not flatter it, and short trials suffice.

use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;
use std::thread;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, getsockopt, sendmsg};
use nix::{getsockopt_impl, sockopt_impl};

use super::trial::{Arrivals, Carried};
use crate::Error;
use crate::clock::now_ns;
use crate::config::{check_payload, check_range};
use crate::control::{Control, Watch};
use crate::echo::{is_nothing, receive};
use crate::generator::{Late, Pace, Sent, Stream, Wait, generate};
use crate::payload::{Codec, HEADER_BYTES, Header};
use crate::run::{fresh_run, pin};
use crate::socket::{Sockets, forbid_fragments, widen_receive_buffer};

/// Most packets of a trial: the server's socket buffer holds them all.
pub const MAX_PACKETS: u32 = 50_000;
/// Most packets of a system call (`UDP_MAX_SEGMENTS` of Linux before 6.9).
pub const MAX_BURST: u16 = 64;
/// Most payload of a system call, bytes: with the headers one IPv6 datagram before it is segmented.
const MAX_BURST_BYTES: usize = 65_000;

/// What a queued packet takes of a socket's buffer at most, bytes: its data in a page, and its descriptor.
const QUEUED_BYTES: usize = 4096 + 1024;
/// The buffer stands still this long: what is on the way has arrived, unless somebody was interrupted, which reading will show.
const STANDSTILL_NS: u64 = 1_000_000;
/// How long after the last arrival missing packets are waited for.
const GRACE_NS: u64 = 10_000_000;
/// Longest trial, sending and reading.
const LIMIT_NS: u64 = 10_000_000_000;
/// A sender further behind than this starts its timeline anew: catching up in one burst would overflow queues that the asked rate does not.
const LARGEST_LAG_NS: u64 = 1_000_000;
/// Sends refused in a row until the trial fails with the system's reason.
const REFUSALS: u32 = 100_000;
/// Whose socket it is, for errors.
const SERVER: &str = "the bandwidth measurement's server";
/// Packets before a trial: they wake up who slept.
const WARM_UP: u32 = 64;

sockopt_impl!(
    /// What a socket's queues hold (`SK_MEMINFO_*` of linux/sock_diag.h), which nix does not name.
    MemInfo,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_MEMINFO,
    [u32; 9]
);

/// What a trial sends.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Where the client sends to.
    pub destination: SocketAddr,
    /// UDP payload, bytes.
    pub payload_bytes: usize,
    /// Packets, 2 to [`MAX_PACKETS`].
    pub packets: u32,
    /// Packets of one system call, 1 to [`MAX_BURST`]; as many as make up 65 000 bytes of payload at most. More than one leave by UDP segmentation
    /// offload (`UDP_SEGMENT` of udp(7)), as senders of bulk data do, in the kernel before they leave the sender's link; where that link cannot
    /// (without checksum offload before Linux 6.12) one by one, which [`Carried::segmented`] tells.
    pub burst: u16,
    /// The core that sends.
    pub core: Option<usize>,
}

/// Sends `load` at `offered_mpps` millions of packets a second, or as fast as it can, and tells what arrived.
///
/// One thread polls for the length of the trial, 10 s at most.
///
/// # Errors
/// [`Error::Option`] for a load out of range, [`Error::System`] when a socket cannot be used.
pub fn carry(
    load: &Load,
    sockets: &Sockets,
    offered_mpps: Option<f64>,
    control: Control<'_>,
) -> Result<Carried, Error> {
    load.validate()?;
    let packets = load.packets.max(WARM_UP) as usize;
    prepare(sockets, packets * QUEUED_BYTES)?;
    thread::scope(|scope| {
        // A thread of its own, so that the caller's core binding stays as it is.
        let trial = scope.spawn(|| {
            pin(load.core)?;
            let never_failed = AtomicBool::new(false);
            let watch = Watch::new(control, now_ns() + LIMIT_NS, &never_failed);
            measure(load, sockets, offered_mpps, &watch)
        });
        trial.join().map_err(|_| Error::Thread("sender"))?
    })
}

/// Makes the sockets fit for a measurement; the server's is to hold so many bytes.
fn prepare(sockets: &Sockets, receive_buffer: usize) -> Result<(), Error> {
    for socket in [&sockets.client, &sockets.server] {
        forbid_fragments(socket)
            .and_then(|()| socket.set_nonblocking(true))
            .map_err(|error| {
                Error::system(
                    "prepare the bandwidth measurement's sockets",
                    error,
                    "are both still open?",
                )
            })?;
    }
    widen_receive_buffer(&sockets.server, receive_buffer);
    Ok(())
}

impl Load {
    fn validate(&self) -> Result<(), Error> {
        /// What an Ethernet link carries.
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
) -> Result<Carried, Error> {
    let warm_up = Load {
        packets: WARM_UP,
        ..load.clone()
    };
    let (_, grown) = run(&warm_up, sockets, None, None, watch)?;
    // All alike, and none lost.
    let each = (grown > 0 && grown.is_multiple_of(WARM_UP)).then_some(grown / WARM_UP);
    let (carried, _) = run(load, sockets, offered_mpps, each, watch)?;
    Ok(carried)
}

/// Sends a load and takes it in: what became of it, and by how many bytes the queue grew.
fn run(
    load: &Load,
    sockets: &Sockets,
    offered_mpps: Option<f64>,
    each: Option<u32>,
    watch: &Watch<'_>,
) -> Result<(Carried, u32), Error> {
    let codec = Codec::new(fresh_run(), 0, load.payload_bytes);
    let mut receiver = Receiver::new(&sockets.server, &codec, load.packets)?;
    let mut sender = Sender::new(load, &codec);
    let start = now_ns();
    let (sent, sending_ns) = sender.send(&sockets.client, offered_mpps, watch)?;
    let (mut last, grown) = receiver.watch_queue(sent, each)?;
    receiver.read(sent, &mut last, watch)?;
    let ns = [sending_ns, last.saturating_sub(start)];
    let carried = Carried {
        segmented: sender.segments,
        ..Carried::new(sent, ns, &receiver.arrivals)
    };
    Ok((carried, grown))
}

/// Sends a trial's packets, each burst at its moment of an absolute timeline.
struct Sender<'a> {
    load: &'a Load,
    codec: &'a Codec,
    /// The payloads of a burst, one after another.
    payloads: Vec<u8>,
    destination: SockaddrStorage,
    /// The kernel segments for this link.
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

    /// Sends all; how many packets those were, and the time from the first to the last, ns.
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
        let pace = Pace::new(rate_pps, Late::CatchUp(LARGEST_LAG_NS), start);
        let send = |_, now| match self.burst(socket, next, now) {
            Ok(packets) => {
                (next, last, refusals) = (next + packets, now, 0);
                Ok(Sent {
                    packets,
                    refused: 0,
                })
            }
            // A full send buffer is the sender's limit, not a loss: try again.
            Err(error) if refusals < REFUSALS && is_nothing(&error) => {
                refusals += 1;
                Ok(Sent::default())
            }
            Err(error) => Err(Error::system(
                format!("send {bytes} bytes to {destination}"),
                error,
                "is there a route, and does the link's MTU fit?",
            )),
        };
        generate(
            &mut [Stream::new(pace, send)],
            Wait::Spin,
            |streams, now| streams[0].sent() < packets && watch.stopped(now).is_none(),
        )?;
        Ok((next, last - start))
    }

    /// One system call; how many packets it took.
    fn burst(&mut self, socket: &UdpSocket, first: u64, now: u64) -> std::io::Result<u64> {
        let left = (u64::from(self.load.packets) - first) as usize;
        let size = self.load.payload_bytes;
        let burst = (self.payloads.len() / size).min(left);
        let payloads = &mut self.payloads[..burst * size];
        for (id, payload) in (first..).zip(payloads.chunks_exact_mut(size)) {
            self.codec.write(payload, &Header::leaving(id, 0, now));
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

/// The server's end.
struct Receiver<'a> {
    socket: &'a UdpSocket,
    codec: &'a Codec,
    arrivals: Arrivals,
    /// What was queued at the start, bytes; the kernel is in no hurry to count down what was read.
    before: u32,
}

impl<'a> Receiver<'a> {
    fn new(socket: &'a UdpSocket, codec: &'a Codec, packets: u32) -> Result<Self, Error> {
        let mut receiver = Self {
            socket,
            codec,
            arrivals: Arrivals::new(packets as usize),
            before: 0,
        };
        receiver.before = receiver.queued()?;
        Ok(receiver)
    }

    /// Waits for the `sent` packets without reading them; they are there when the queue has grown by `each` bytes a packet, where that is known.
    /// Gives when the queue last grew, and by how much it did.
    fn watch_queue(&self, sent: u64, each: Option<u32>) -> Result<(u64, u32), Error> {
        let expected = each.map(|each| u64::from(each) * sent);
        let (mut grown, mut last) = (0, now_ns());
        loop {
            let now = now_ns();
            let growth = self.queued()?.wrapping_sub(self.before);
            if growth != grown {
                (grown, last) = (growth, now);
            }
            if expected == Some(grown.into()) || now - last > STANDSTILL_NS {
                return Ok((last, grown));
            }
        }
    }

    /// Reads what is queued and waits for what is missing of `sent` packets; `last` becomes the time of the last arrival that was waited for.
    fn read(&mut self, sent: u64, last: &mut u64, watch: &Watch<'_>) -> Result<(), Error> {
        let mut header = [0; HEADER_BYTES];
        let mut waited = false;
        loop {
            if let Some((length, _)) = receive(self.socket, &mut header, SERVER)? {
                self.arrivals.note(self.codec, &header[..length]);
                if waited {
                    *last = now_ns();
                }
                continue;
            }
            let now = now_ns();
            let missing = self.arrivals.received < sent;
            if !missing || now - *last > GRACE_NS || watch.stopped(now).is_some() {
                return Ok(());
            }
            waited = true;
        }
    }

    /// Bytes that the socket's queue is charged with.
    fn queued(&self) -> Result<u32, Error> {
        let info = getsockopt(self.socket, MemInfo).map_err(|errno| {
            let what = format!("receive at {SERVER}");
            Error::system(what, errno, "is its namespace still there?")
        })?;
        // SK_MEMINFO_RMEM_ALLOC.
        Ok(info[0])
    }
}
