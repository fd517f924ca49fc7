//! `rlnc-recode`: sends new combinations of the packets that come.

use myelin_coding::{Coded, Recoder, wire};
use myelin_spec::{RlncCoded, RlncRecodeConfig};

use super::carrier::Carrier;
use super::unit::Unit;
use super::{MAX_UNIT, datagram, frame_memory, redundancy};
use crate::{Emitter, Packet, Stateful, Verdict};

/// What a recoder remembers: the latest packets, and what it counted.
#[derive(Debug)]
pub struct RecodeState {
    recoder: Recoder,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    source: u64,
    coded: u64,
    recoded: u64,
    replaced: u64,
    malformed: u64,
    too_long: u64,
}

impl RecodeState {
    /// A recoder with all its memory.
    pub fn new(config: &RlncRecodeConfig) -> Self {
        let redundancy = redundancy(config.redundancy);
        Self {
            recoder: Recoder::new(config.window.into(), redundancy, MAX_UNIT),
            counters: Counters::default(),
        }
    }
}

/// Passes packets of an encoder on and emits recoded ones behind them; what no encoder has sent is dropped and counted
/// (`malformed`).
#[derive(Debug)]
pub struct Recode {
    config: RlncRecodeConfig,
    frame: Box<[u8]>,
}

impl Recode {
    /// The function of that configuration.
    pub fn new(config: &RlncRecodeConfig) -> Self {
        Self {
            config: *config,
            frame: frame_memory(),
        }
    }

    /// `None` when it is not a packet of an encoder.
    fn try_recode(
        &mut self,
        state: &mut RecodeState,
        packet: &mut Packet<'_>,
        emitter: &mut dyn Emitter,
    ) -> Option<Verdict> {
        let mut datagram = datagram(packet)?;
        let carrier = Carrier::of(packet, &datagram)?;
        match Coded::parse(packet.payload())? {
            Coded::Source { esi, .. } => {
                // The unit is the packet without its trailer, which is put back.
                datagram.cut(packet, wire::SOURCE_TRAILER_LEN)?;
                let unit = Unit::of(&datagram, packet.bytes())?;
                state.recoder.source(esi, &unit.parts())?;
                datagram.append(packet, &wire::source_trailer(esi))?;
                state.counters.source += 1;
                let at = carrier.payload_at();
                while let Some(len) = state.recoder.due(&mut self.frame[at..]) {
                    if self.emit(&carrier, len, emitter) {
                        state.counters.recoded += 1;
                    } else {
                        state.counters.too_long += 1;
                    }
                }
                return Some(Verdict::Forward);
            }
            Coded::Repair { id, symbol } => state.recoder.repair(id, symbol)?,
            Coded::Recoded {
                first,
                coefficients,
                symbol,
            } => state.recoder.recoded(first, coefficients, symbol)?,
        }
        state.counters.coded += 1;
        if self.config.coded == RlncCoded::Pass {
            return Some(Verdict::Forward);
        }
        let len = state
            .recoder
            .combine(&mut self.frame[carrier.payload_at()..]);
        if len.is_some_and(|len| self.emit(&carrier, len, emitter)) {
            state.counters.replaced += 1;
            Some(Verdict::Drop)
        } else {
            // Its coefficients would make it too long: what came is as good.
            state.counters.too_long += 1;
            Some(Verdict::Forward)
        }
    }

    /// Sends the packet whose payload of `len` bytes is in the frame; `false` when it is too long.
    fn emit(&mut self, carrier: &Carrier, len: usize, emitter: &mut dyn Emitter) -> bool {
        let len = carrier.wrap(&mut self.frame, len, self.config.mtu.into());
        if let Some(len) = len {
            emitter.emit(carrier.meta(), &self.frame[..len]);
        }
        len.is_some()
    }
}

impl Stateful for Recode {
    type State = RecodeState;

    fn begin(&mut self, state: &mut RecodeState) {
        state.recoder.tune(redundancy(self.config.redundancy));
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
