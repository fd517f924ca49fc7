//! `rlnc-recode`: sends new combinations of the packets that it receives.

use myelin_coding::{CodedPayload, Recoder, wire};
use myelin_spec::{RlncCoded, RlncRecodeConfig};

use super::header_template::HeaderTemplate;
use super::unit::Unit;
use super::{MAX_UNIT, find_datagram, new_frame_buffer, redundancy};
use crate::{Emitter, Packet, Stateful, Verdict};

/// The state of a recoder: the latest packets, and counters.
#[derive(Debug)]
pub struct RecodeState {
    recoder: Recoder,
    counters: RecodeCounters,
}

#[derive(Debug, Default)]
struct RecodeCounters {
    source: u64,
    coded: u64,
    recoded: u64,
    replaced: u64,
    malformed: u64,
    too_long: u64,
}

impl RecodeState {
    /// Makes a recoder with all its memory.
    pub fn new(config: &RlncRecodeConfig) -> Self {
        let redundancy = redundancy(config.redundancy);
        Self {
            recoder: Recoder::new(config.window.into(), redundancy, MAX_UNIT),
            counters: RecodeCounters::default(),
        }
    }
}

/// Forwards packets of an encoder and emits recoded packets after them. Drops and counts packets
/// that no encoder has sent (`malformed`).
#[derive(Debug)]
pub struct Recode {
    config: RlncRecodeConfig,
    frame: Box<[u8]>,
}

impl Recode {
    /// Makes the function with this configuration.
    pub fn new(config: &RlncRecodeConfig) -> Self {
        Self {
            config: *config,
            frame: new_frame_buffer(),
        }
    }

    /// Recodes a packet. Returns `None` if no encoder sent the packet.
    fn try_recode(
        &mut self,
        state: &mut RecodeState,
        packet: &mut Packet<'_>,
        emitter: &mut dyn Emitter,
    ) -> Option<Verdict> {
        let mut datagram = find_datagram(packet)?;
        let template = HeaderTemplate::of(packet, &datagram)?;
        match CodedPayload::parse(packet.payload())? {
            CodedPayload::Source { esi, .. } => {
                // The code does not cover the trailer. Remove it before coding, then append it
                // again.
                datagram.remove_tail(packet, wire::SOURCE_TRAILER_LEN)?;
                let unit = Unit::of(&datagram, packet.bytes())?;
                state.recoder.add_source(esi, &unit.parts())?;
                datagram.append(packet, &wire::source_trailer(esi))?;
                state.counters.source += 1;
                let at = template.payload_offset();
                while let Some(len) = state.recoder.next_recoded(&mut self.frame[at..]) {
                    if self.emit(&template, len, emitter) {
                        state.counters.recoded += 1;
                    } else {
                        state.counters.too_long += 1;
                    }
                }
                return Some(Verdict::Forward);
            }
            CodedPayload::Repair { id, symbol } => state.recoder.add_repair(id, symbol)?,
            CodedPayload::Recoded {
                first,
                coefficients,
                symbol,
            } => state.recoder.add_recoded(first, coefficients, symbol)?,
        }
        state.counters.coded += 1;
        if self.config.coded == RlncCoded::Pass {
            return Some(Verdict::Forward);
        }
        let len = state
            .recoder
            .make_recoded(&mut self.frame[template.payload_offset()..]);
        if len.is_some_and(|len| self.emit(&template, len, emitter)) {
            state.counters.replaced += 1;
            Some(Verdict::Drop)
        } else {
            // The coefficients make the new packet too long. Forward the received packet, which is
            // as useful.
            state.counters.too_long += 1;
            Some(Verdict::Forward)
        }
    }

    /// Sends the packet whose payload of `len` bytes is in the frame. Returns `false` if the packet
    /// is too long.
    fn emit(&mut self, template: &HeaderTemplate, len: usize, emitter: &mut dyn Emitter) -> bool {
        let len = template.write_headers(&mut self.frame, len, self.config.mtu.into());
        if let Some(len) = len {
            emitter.emit(template.meta(), &self.frame[..len]);
        }
        len.is_some()
    }
}

impl Stateful for Recode {
    type State = RecodeState;

    fn begin_batch(&mut self, state: &mut RecodeState) {
        state.recoder.configure(redundancy(self.config.redundancy));
    }

    fn process(
        &mut self,
        state: &mut RecodeState,
        packet: &mut Packet<'_>,
        emitter: &mut dyn Emitter,
    ) -> Verdict {
        let verdict = self.try_recode(state, packet, emitter);
        verdict.unwrap_or_else(|| {
            state.counters.malformed += 1;
            Verdict::Drop
        })
    }

    fn read_counters(&self, state: &RecodeState, sink: &mut dyn FnMut(&'static str, u64)) {
        let counters = &state.counters;
        sink("source", counters.source);
        sink("coded", counters.coded);
        sink("recoded", counters.recoded);
        sink("replaced", counters.replaced);
        sink("malformed", counters.malformed);
        sink("too-long", counters.too_long);
    }
}
