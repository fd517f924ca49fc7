//! The latest source symbols.

use std::mem;

use arrayvec::ArrayVec;

use crate::field::{inverse, mul};
use crate::kernel::{Kernel, Term};
use crate::symbol::Symbol;
use crate::wire::MAX_WINDOW;

/// The slot of one source symbol.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) symbol: Symbol,
    /// Whether `symbol` is the symbol of the slot's ESI. Otherwise it is an older symbol.
    pub(super) is_known: bool,
    /// Whether the symbol was recovered.
    pub(super) is_recovered: bool,
    /// Time of the arrival or recovery.
    pub(super) known_ns: u64,
}

/// Slots, indexed by the lower bits of the ESI. Their number is a power of two.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Box<[Slot]>,
}

impl Ring {
    pub(super) fn new(capacity: usize, max_len: usize) -> Self {
        let slot = |symbol| Slot {
            symbol,
            is_known: false,
            is_recovered: false,
            known_ns: 0,
        };
        let symbols = (0..capacity).map(|_| Symbol::new(max_len));
        Self {
            slots: symbols.map(slot).collect(),
        }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    #[inline]
    pub(super) fn slot(&self, esi: u32) -> &Slot {
        &self.slots[esi as usize & (self.slots.len() - 1)]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, esi: u32) -> &mut Slot {
        let mask = self.slots.len() - 1;
        &mut self.slots[esi as usize & mask]
    }

    /// Returns symbol `esi`, if it is known.
    #[inline]
    pub(super) fn get(&self, esi: u32) -> Option<&[u8]> {
        let slot = self.slot(esi);
        slot.is_known.then(|| slot.symbol.bytes())
    }

    /// Returns the mask of the missing symbols among `count` symbols from `first` on, at most 64.
    /// Bit 0 is `first`.
    #[inline]
    pub(super) fn missing_mask(&self, first: u32, count: u32) -> u64 {
        (0..count.min(u64::BITS)).fold(0, |missing, i| {
            missing | u64::from(!self.slot(first.wrapping_add(i)).is_known) << i
        })
    }

    /// Computes symbol `first + at` into its slot, and returns the slot. `symbol` is the
    /// combination of the symbols from `first` on. No other symbol of the combination is missing.
    pub(super) fn recover_in_place(
        &mut self,
        kernel: Kernel,
        at: usize,
        first: u32,
        coefficients: &[u8],
        symbol: &[u8],
    ) -> &mut Slot {
        let missing = first.wrapping_add(at as u32);
        let scale = coefficients.get(at).map_or(1, |&own| inverse(own));
        let mut sum = mem::take(&mut self.slot_mut(missing).symbol);
        let mut longest = symbol.len();
        {
            // Fill the list in place, because it is too large to move.
            let mut terms: ArrayVec<Term<'_>, { MAX_WINDOW + 1 }> = ArrayVec::new();
            for (i, &coefficient) in coefficients.iter().enumerate().take(MAX_WINDOW) {
                if coefficient != 0 && i != at {
                    let known = self.slot(first.wrapping_add(i as u32)).symbol.bytes();
                    longest = longest.max(known.len());
                    terms.push((mul(scale, coefficient), known));
                }
            }
            terms.push((scale, symbol));
            kernel.dot(sum.resize_for_overwrite(longest), &terms);
        }
        let slot = self.slot_mut(missing);
        slot.symbol = sum;
        slot
    }

    pub(super) fn mark_all_missing(&mut self) {
        for slot in &mut self.slots {
            slot.is_known = false;
        }
    }
}
