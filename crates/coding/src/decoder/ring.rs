//! The source symbols around the newest one.

use crate::symbol::Symbol;

/// A place for one source symbol.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) symbol: Symbol,
    /// The symbol is that of the place's ESI; otherwise it is missing, and what is here is of before.
    pub(super) known: bool,
    /// It did not come but was worked out.
    pub(super) recovered: bool,
    /// When it came or was worked out.
    pub(super) known_ns: u64,
}

/// A power of two of places, found by the lower bits of the ESI.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Box<[Slot]>,
}

impl Ring {
    pub(super) fn new(capacity: usize, max_len: usize) -> Self {
        let slot = |symbol| Slot {
            symbol,
            known: false,
            recovered: false,
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

    /// The symbol of that number, where it is known.
    #[inline]
    pub(super) fn known(&self, esi: u32) -> Option<&[u8]> {
        let slot = self.slot(esi);
        slot.known.then(|| slot.symbol.bytes())
    }

    pub(super) fn forget_all(&mut self) {
        for slot in &mut self.slots {
            slot.known = false;
        }
    }
}
