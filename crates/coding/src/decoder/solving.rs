//! Recovers lost packets: directly if only one symbol is missing, otherwise with equations.

use std::mem;

use super::equations::EquationOutcome;
use super::{Decoder, Delivery};
use crate::serial;

impl Decoder {
    /// Adds a coded packet to the equations: `symbol` is the combination of the symbols from
    /// `first` on. Bit 0 of `missing` is `first`.
    pub(super) fn add_combination(
        &mut self,
        first: u32,
        coefficients: &[u8],
        missing: u64,
        symbol: &[u8],
        now_ns: u64,
    ) {
        if symbol.len() > self.equations.max_symbol_len() {
            self.counters.oversized += 1;
            return;
        }
        // Usually a window has one loss. Then no elimination is necessary.
        let at = missing.trailing_zeros();
        if missing.is_power_of_two() && coefficients.get(at as usize).is_some_and(|&own| own != 0) {
            self.recover_single(at, first, coefficients, symbol, now_ns);
            return;
        }
        let outcome = self
            .equations
            .insert(first, coefficients, symbol, &self.ring, self.next);
        match outcome {
            EquationOutcome::Added => {}
            EquationOutcome::Redundant => self.counters.redundant += 1,
            EquationOutcome::Contradiction => {
                self.counters.corrupt += 1;
                self.equations.clear();
            }
        }
        self.collect_solved(now_ns);
    }

    /// Recovers symbol `first + at`, the only missing one of a combination, without an equation.
    fn recover_single(
        &mut self,
        at: u32,
        first: u32,
        coefficients: &[u8],
        symbol: &[u8],
        now_ns: u64,
    ) {
        let kernel = self.equations.kernel();
        let esi = first.wrapping_add(at);
        let slot = self
            .ring
            .recover_in_place(kernel, at as usize, first, coefficients, symbol);
        if slot.symbol.trim().is_none() {
            self.counters.corrupt += 1;
            self.equations.clear();
            return;
        }
        self.equations
            .substitute(esi, slot.symbol.bytes(), self.next);
        self.forget_delivered();
        self.record_recovery(esi, now_ns);
        self.collect_solved(now_ns);
    }

    /// Moves solved symbols from the equations into the ring.
    pub(super) fn collect_solved(&mut self, now_ns: u64) {
        if self.equations.is_empty() {
            return;
        }
        self.forget_delivered();
        let mut is_corrupt = false;
        while let Some((esi, sum)) = self.equations.take_solved() {
            if sum.trim().is_none() {
                is_corrupt = true;
                continue;
            }
            mem::swap(&mut self.ring.slot_mut(esi).symbol, sum);
            self.record_recovery(esi, now_ns);
        }
        if is_corrupt {
            self.counters.corrupt += 1;
            self.equations.clear();
        }
    }

    /// Records that symbol `esi` was recovered into its slot.
    fn record_recovery(&mut self, esi: u32, now_ns: u64) {
        let slot = self.ring.slot_mut(esi);
        slot.is_known = true;
        slot.is_recovered = true;
        slot.known_ns = now_ns;
        let in_order = self.delivery == Delivery::InOrder;
        if in_order && serial::is_before(esi, self.next_delivery) {
            self.counters.late += 1;
            return;
        }
        self.counters.recovered += 1;
        if in_order {
            self.stored.push_back(esi);
        } else {
            self.recovered.push(esi);
        }
    }
}
