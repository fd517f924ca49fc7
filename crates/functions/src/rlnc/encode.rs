//! `rlnc-encode`: numbers packets and sends repair packets after them.

use myelin_coding::{Code, Encoder, wire};
use myelin_packet::Meta;
use myelin_spec::{RlncCode, RlncEncodeConfig};

use super::header_template::HeaderTemplate;
use super::unit::Unit;
use super::{MAX_UNIT, find_datagram, new_frame_buffer, redundancy};
use crate::{Emitter, Packet, Stateful, Verdict};

/// The state of an encoder: the code, the time of the last packet, and counters.
#[derive(Debug)]
pub struct EncodeState {
    encoder: Encoder,
    has_started: bool,
    last_ns: u64,
    /// Headers of the latest packet. Without them, the encoder can send no packet.
    latest: Option<HeaderTemplate>,
    counters: EncodeCounters,
}

#[derive(Debug, Default)]
struct EncodeCounters {
    source: u64,
    repair: u64,
    unsupported: u64,
    too_long: u64,
    no_room: u64,
}

impl EncodeState {
    /// Makes an encoder with all its memory.
    pub fn new(config: &RlncEncodeConfig) -> Self {
        let code = match config.code {
            RlncCode::Window => Code::Window(config.window),
            RlncCode::Block => Code::Block(config.block),
        };
        Self {
            encoder: Encoder::new(code, redundancy(config.redundancy), MAX_UNIT, 0),
            has_started: false,
            last_ns: 0,
            latest: None,
            counters: EncodeCounters::default(),
        }
    }
}

/// Appends a number to each UDP packet, and emits repair packets after the numbered packets.
///
/// Drops and counts a packet that is not UDP, is a fragment, or has bytes after its datagram
/// (`unsupported`). Also drops and counts a packet if the packet or its repair packet would exceed
/// the MTU (`too-long`), or if the buffer has no room for the trailer (`no-room`).
#[derive(Debug)]
pub struct Encode {
    config: RlncEncodeConfig,
    now_ns: u64,
    frame: Box<[u8]>,
}

impl Encode {
    /// Makes the function with this configuration.
    pub fn new(config: &RlncEncodeConfig) -> Self {
        Self {
            config: *config,
            now_ns: 0,
            frame: new_frame_buffer(),
        }
    }

    /// Sends the repair packets that are due, with `meta`.
    fn emit_repairs(&mut self, state: &mut EncodeState, meta: &Meta, emitter: &mut dyn Emitter) {
        let Some(template) = &state.latest else {
            return;
        };
        let at = template.payload_offset();
        while let Some(len) = state.encoder.next_repair(&mut self.frame[at..]) {
            match template.write_headers(&mut self.frame, len, self.config.mtu.into()) {
                Some(len) => {
                    state.counters.repair += 1;
                    emitter.emit(meta, &self.frame[..len]);
                }
                // The IPv6 header is longer than the IPv4 header of the longest packet in the
                // window.
                None => state.counters.too_long += 1,
            }
        }
    }
}

impl Stateful for Encode {
    type State = EncodeState;

    fn begin_batch(&mut self, state: &mut EncodeState) {
        let config = &self.config;
        state
            .encoder
            .configure(redundancy(config.redundancy), config.density);
    }

    fn process(
        &mut self,
        state: &mut EncodeState,
        packet: &mut Packet<'_>,
        emitter: &mut dyn Emitter,
    ) -> Verdict {
        let found = find_datagram(packet).and_then(|datagram| {
            let template = HeaderTemplate::of(packet, &datagram)?;
            Some((datagram, template))
        });
        let Some((mut datagram, template)) = found else {
            state.counters.unsupported += 1;
            return Verdict::Drop;
        };
        let repair = template.headers_len() + wire::REPAIR_OVERHEAD + wire::ADUI_LEN;
        if datagram.ip_len() + repair > self.config.mtu.into() {
            state.counters.too_long += 1;
            return Verdict::Drop;
        }
        if packet.tailroom() < wire::SOURCE_TRAILER_LEN {
            state.counters.no_room += 1;
            return Verdict::Drop;
        }
        if !state.has_started {
            // Start from a new number each time, so that a decoder notices the restart of an
            // encoder.
            let mixed = packet.meta().stamp_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            state.encoder.restart((mixed >> 32) as u32);
            state.has_started = true;
        }
        let unit = Unit::of(&datagram, packet.bytes());
        let esi = unit.and_then(|unit| state.encoder.push(&unit.parts()));
        let sent = esi.and_then(|esi| datagram.append(packet, &wire::source_trailer(esi)));
        if sent.is_none() {
            state.counters.unsupported += 1;
            return Verdict::Drop;
        }
        state.counters.source += 1;
        state.last_ns = self.now_ns;
        state.latest = Some(template);
        self.emit_repairs(state, template.meta(), emitter);
        Verdict::Forward
    }

    fn needs_time(&self) -> bool {
        true
    }

    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    fn timer_period_ns(&self) -> Option<u64> {
        Some(self.config.flush_ns)
    }

    fn run_timer(&mut self, state: &mut EncodeState, now_ns: u64, emitter: &mut dyn Emitter) {
        let idle_ns = now_ns.saturating_sub(state.last_ns);
        let Some(mut meta) = state.latest.as_ref().map(|latest| *latest.meta()) else {
            return;
        };
        if idle_ns >= self.config.flush_ns {
            // The sojourn of the repair packets starts now, because it must not include the time
            // since the latest packet.
            meta.stamp_ns = now_ns;
            self.begin_batch(state);
            state.encoder.flush();
            self.emit_repairs(state, &meta, emitter);
        }
    }

    fn read_counters(&self, state: &EncodeState, sink: &mut dyn FnMut(&'static str, u64)) {
        let counters = &state.counters;
        sink("source", counters.source);
        sink("repair", counters.repair);
        sink("unsupported", counters.unsupported);
        sink("too-long", counters.too_long);
        sink("no-room", counters.no_room);
    }
}
