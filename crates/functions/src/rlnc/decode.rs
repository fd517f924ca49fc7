//! `rlnc-decode`: restores the packets of an encoder, and recovers lost packets.

use myelin_coding::{CodedPayload, Decoder, DeliveredPacket, Delivery, SourceAction, wire};
use myelin_spec::{RlncDecodeConfig, RlncDelivery};

use super::header_template::HeaderTemplate;
use super::unit::Unit;
use super::{MAX_UNIT, find_datagram, new_frame_buffer};
use crate::{Emitter, Packet, Stateful, Verdict};

/// The state of a decoder: packets, equations and counters.
#[derive(Debug)]
pub struct DecodeState {
    decoder: Decoder,
    /// Headers of the latest packet. Without them, the decoder can send no packet.
    latest: Option<HeaderTemplate>,
    /// Headers of the stored packets, because units lack some fields. Indexed by the lower bits of
    /// the packet's number.
    stored_headers: Box<[Option<HeaderTemplate>]>,
    malformed: u64,
    corrupt: u64,
}

impl DecodeState {
    /// Makes a decoder with all its memory.
    pub fn new(config: &RlncDecodeConfig) -> Self {
        let capacity = usize::from(config.buffer).next_power_of_two();
        Self {
            decoder: Decoder::new(capacity, MAX_UNIT),
            latest: None,
            stored_headers: vec![None; capacity].into(),
            malformed: 0,
            corrupt: 0,
        }
    }
}

/// Removes the trailers of source packets, drops coded packets, and emits recovered packets. Drops
/// and counts packets that no encoder has sent (`malformed`), and recovered packets that are not
/// UDP with a correct checksum (`corrupt`).
#[derive(Debug)]
pub struct Decode {
    delivery: Delivery,
    timeout_ns: u64,
    now_ns: u64,
    frame: Box<[u8]>,
    /// Whether the function emitted a packet in this batch. Emitted packets leave after the batch,
    /// so the function must emit later packets of the batch, too.
    has_emitted: bool,
}

impl Decode {
    /// Makes the function with this configuration.
    pub fn new(config: &RlncDecodeConfig) -> Self {
        Self {
            delivery: match config.delivery {
                RlncDelivery::Immediate => Delivery::Immediate,
                RlncDelivery::InOrder => Delivery::InOrder,
            },
            timeout_ns: config.timeout_ns,
            now_ns: 0,
            frame: new_frame_buffer(),
            has_emitted: false,
        }
    }
}

/// Emits the packets that leave the decoder's memory. Recovered packets take the headers of
/// `latest`.
struct DeliverySink<'w> {
    latest: &'w HeaderTemplate,
    stored_headers: &'w mut [Option<HeaderTemplate>],
    frame: &'w mut [u8],
    emitter: &'w mut dyn Emitter,
    has_emitted: &'w mut bool,
    corrupt: &'w mut u64,
}

impl DeliverySink<'_> {
    fn emit(&mut self, packet: DeliveredPacket<'_>) {
        let stored_headers =
            self.stored_headers[packet.esi as usize & (self.stored_headers.len() - 1)].as_ref();
        let template = stored_headers
            .filter(|_| !packet.recovered)
            .unwrap_or(self.latest);
        let Some(len) = template.restore(self.frame, packet.adu) else {
            *self.corrupt += 1;
            return;
        };
        self.emitter.emit(template.meta(), &self.frame[..len]);
        *self.has_emitted = true;
    }
}

impl Decode {
    /// Decodes a packet. Returns `None` if no encoder sent the packet.
    fn try_decode(
        &mut self,
        state: &mut DecodeState,
        packet: &mut Packet<'_>,
        emitter: &mut dyn Emitter,
    ) -> Option<Verdict> {
        let mut datagram = find_datagram(packet)?;
        let mut source = None;
        if let CodedPayload::Source { esi, .. } = CodedPayload::parse(packet.payload())? {
            datagram.remove_tail(packet, wire::SOURCE_TRAILER_LEN)?;
            source = Some(esi);
        }
        let DecodeState {
            decoder,
            latest,
            stored_headers,
            corrupt,
            ..
        } = state;
        let latest = latest.insert(HeaderTemplate::of(packet, &datagram)?);
        let mut delivery_sink = DeliverySink {
            latest,
            stored_headers,
            frame: &mut self.frame,
            emitter,
            has_emitted: &mut self.has_emitted,
            corrupt,
        };
        let mut action = SourceAction::Drop;
        if let Some(esi) = source {
            let unit = Unit::of(&datagram, packet.bytes())?;
            let mut sink = |packet: DeliveredPacket<'_>| delivery_sink.emit(packet);
            action = decoder.add_source(esi, &unit.parts(), self.now_ns, &mut sink);
            if action == SourceAction::Store {
                let mask = delivery_sink.stored_headers.len() - 1;
                delivery_sink.stored_headers[esi as usize & mask] = Some(*delivery_sink.latest);
            }
            let must_emit = self.delivery == Delivery::InOrder && *delivery_sink.has_emitted;
            if action == SourceAction::Deliver && must_emit {
                delivery_sink.emitter.emit(packet.meta(), packet.bytes());
                action = SourceAction::Store;
            }
        }
        let mut sink = |packet: DeliveredPacket<'_>| delivery_sink.emit(packet);
        if source.is_none() {
            match CodedPayload::parse(packet.payload())? {
                CodedPayload::Repair { id, symbol } => {
                    decoder.add_repair(id, symbol, self.now_ns, &mut sink);
                }
                CodedPayload::Recoded {
                    first,
                    coefficients,
                    symbol,
                } => decoder.add_recoded(first, coefficients, symbol, self.now_ns, &mut sink),
                CodedPayload::Source { .. } => {}
            }
        }
        decoder.deliver(self.now_ns, &mut sink);
        Some(match action {
            SourceAction::Deliver => Verdict::Forward,
            SourceAction::Store | SourceAction::Drop => Verdict::Drop,
        })
    }
}

impl Stateful for Decode {
    type State = DecodeState;

    fn begin_batch(&mut self, state: &mut DecodeState) {
        state.decoder.configure(self.delivery, self.timeout_ns);
        self.has_emitted = false;
    }

    fn process(
        &mut self,
        state: &mut DecodeState,
        packet: &mut Packet<'_>,
        emitter: &mut dyn Emitter,
    ) -> Verdict {
        let verdict = self.try_decode(state, packet, emitter);
        verdict.unwrap_or_else(|| {
            state.malformed += 1;
            Verdict::Drop
        })
    }

    fn needs_time(&self) -> bool {
        true
    }

    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// For delivery in order, returns the longest wait for a missing packet.
    fn timer_period_ns(&self) -> Option<u64> {
        (self.delivery == Delivery::InOrder).then_some(self.timeout_ns)
    }

    fn run_timer(&mut self, state: &mut DecodeState, now_ns: u64, emitter: &mut dyn Emitter) {
        let DecodeState {
            decoder,
            latest: Some(latest),
            stored_headers,
            corrupt,
            ..
        } = state
        else {
            return;
        };
        let mut delivery_sink = DeliverySink {
            latest,
            stored_headers,
            frame: &mut self.frame,
            emitter,
            has_emitted: &mut self.has_emitted,
            corrupt,
        };
        decoder.deliver(now_ns, &mut |packet| delivery_sink.emit(packet));
    }

    fn read_counters(&self, state: &DecodeState, sink: &mut dyn FnMut(&'static str, u64)) {
        let counters = state.decoder.counters();
        sink("source", counters.source);
        sink("coded", counters.coded);
        sink("redundant", counters.redundant);
        sink("recovered", counters.recovered);
        sink("lost", counters.lost);
        sink("late", counters.late);
        sink("duplicate", counters.duplicate);
        sink("malformed", state.malformed + counters.oversized);
        sink("corrupt", state.corrupt + counters.corrupt);
        sink("reset", counters.reset);
    }
}
