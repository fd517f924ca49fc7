//! Packets that a router in the kernel cannot forward, for the ICMP messages to their senders.
//! `report.h` writes them.

use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapHandle, MapType, RingBufferBuilder};
use myelin_packet::{Flags, Headers};

use crate::Error;
use crate::state::{FunctionState, MapShape};

const REPORTS: &str = "reports";
/// Bytes of the ring: about 40 reports.
const RING: u32 = 1 << 16;
/// Longest time after the end of a router until its reader ends.
const POLL: Duration = Duration::from_millis(200);

/// The maps of a router's reports.
pub(crate) const REPORT_MAPS: [MapShape; 2] = [
    MapShape {
        name: REPORTS,
        kind: MapType::RingBuf,
        key: 0,
        value: 0,
        entries: RING,
        flags: 0,
    },
    MapShape {
        name: "report_limit",
        kind: MapType::Array,
        key: size_of::<u32>(),
        value: size_of::<u64>(),
        entries: 1,
        flags: 0,
    },
];

/// `struct report_header`, which the frame follows.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ReportHeader {
    l3: u16,
    l4: u16,
    payload: u16,
    end: u16,
    length: u16,
    flags: u8,
    protocol: u8,
    reason: u32,
}

// `report.h` asserts the same size.
const _: () = assert!(size_of::<ReportHeader>() == 16);

/// Why the router does not forward a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportReason {
    /// The time to live or hop limit has expired.
    TimeExceeded,
    /// The packet is longer than the MTU of the next link and must not be fragmented.
    TooBig,
}

/// A packet that the router does not forward. The frame may be cut behind its first 1408 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The reason.
    pub reason: ReportReason,
    /// The frame as the router received it.
    pub frame: &'a [u8],
    /// The headers of the frame.
    pub headers: Headers,
}

impl<'a> Report<'a> {
    /// Reads a record; `None` if no router wrote it.
    fn read(header: &ReportHeader, bytes: &'a [u8]) -> Option<Self> {
        let reason = match header.reason {
            1 => ReportReason::TimeExceeded,
            2 => ReportReason::TooBig,
            _ => return None,
        };
        let headers = Headers {
            l3: header.l3,
            l4: header.l4,
            payload: header.payload,
            end: header.end,
            flags: Flags::from_bits(header.flags),
            protocol: header.protocol,
        };
        let frame = bytes.get(..usize::from(header.length))?;
        Some(Self {
            reason,
            frame,
            headers,
        })
    }
}

/// The reports of one router.
#[derive(Debug)]
pub struct RouterReports(MapHandle);

impl RouterReports {
    /// Returns the reports of a router's state; `None` if the state belongs to another kind.
    pub(crate) fn of(state: &FunctionState) -> Result<Option<Self>, Error> {
        let Some(ring) = state.map(REPORTS) else {
            return Ok(None);
        };
        let ring = MapHandle::try_from(ring);
        let ring = ring.map_err(|cause| Error::map(REPORTS, "open", &cause))?;
        Ok(Some(Self(ring)))
    }

    /// Calls `handle` with each report, until `is_ended`.
    ///
    /// # Errors
    /// The kernel refuses the ring, or waiting fails.
    pub fn watch(
        &self,
        is_ended: impl Fn() -> bool,
        mut handle: impl FnMut(Report<'_>),
    ) -> Result<(), Error> {
        let failed = |cause: libbpf_rs::Error| Error::map(REPORTS, "read", &cause);
        let mut builder = RingBufferBuilder::new();
        let read = |bytes: &[u8]| {
            if let Some((header, frame)) = bytes.split_at_checked(size_of::<ReportHeader>()) {
                let report = Report::read(&bytemuck::pod_read_unaligned(header), frame);
                report.into_iter().for_each(&mut handle);
            }
            0
        };
        builder.add(&self.0, read).map_err(failed)?;
        let ring = builder.build().map_err(failed)?;
        while !is_ended() {
            ring.poll(POLL).map_err(failed)?;
        }
        Ok(())
    }
}
