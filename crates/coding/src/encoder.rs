//! The encoder: source packets go out as they are, and now and then a repair packet that is a combination of them.

use arrayvec::ArrayVec;

use crate::coefficients::{self, FULL_DENSITY};
use crate::kernel::{Kernel, Term};
use crate::redundancy::{Credit, Redundancy};
use crate::symbol::Symbol;
use crate::wire::{self, MAX_WINDOW, RepairId};

/// Which source packets a repair packet is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The latest so many: the window slides with each packet, and repair packets come between source packets.
    Window(u8),
    /// Those of one block of so many; repair packets come behind the block.
    Block(u8),
}

impl Code {
    /// Most source packets of a combination: 1 to [`MAX_WINDOW`], what else was asked for is brought into that range.
    pub fn size(self) -> usize {
        let (Self::Window(size) | Self::Block(size)) = self;
        usize::from(size).clamp(1, MAX_WINDOW)
    }
}

/// Makes repair packets.
///
/// Memory: a power of two, not below the window, of symbols of the longest length, allocated by [`Encoder::new`].
#[derive(Debug)]
pub struct Encoder {
    kernel: Kernel,
    code: Code,
    density: u8,
    credit: Credit,
    /// By the lower bits of their ESI.
    symbols: Box<[Symbol]>,
    /// ESI of the next source packet.
    next: u32,
    /// Source packets in the window or in the block.
    held: usize,
    /// The block is closed: the next source packet begins another.
    closed: bool,
    /// Source packets since the last repair packet.
    unprotected: u32,
    /// Repair packets to be made now.
    due: u32,
    key: u16,
}

impl Encoder {
    /// An encoder for units of up to `max_len` bytes, whose first source packet will have the number `first_esi`.
    pub fn new(code: Code, redundancy: Redundancy, max_len: usize, first_esi: u32) -> Self {
        let capacity = code.size().next_power_of_two();
        Self {
            kernel: Kernel::fastest(),
            code,
            density: FULL_DENSITY,
            credit: Credit::new(redundancy),
            symbols: Symbol::ring(capacity, max_len),
            next: first_esi,
            held: 0,
            closed: false,
            unprotected: 0,
            due: 0,
            key: 0,
        }
    }

    /// Goes on with another redundancy and density threshold (0 to 15).
    pub fn tune(&mut self, redundancy: Redundancy, density: u8) {
        self.credit.set(redundancy);
        self.density = density.min(FULL_DENSITY);
    }

    /// Goes on with another kernel: for measurements.
    pub fn set_kernel(&mut self, kernel: Kernel) {
        self.kernel = kernel;
    }

    /// The ESI that the next source packet will have.
    pub fn next_esi(&self) -> u32 {
        self.next
    }

    /// Starts anew with that number; nothing of before is in any repair packet to come.
    pub fn restart(&mut self, first_esi: u32) {
        self.next = first_esi;
        (self.held, self.unprotected, self.due) = (0, 0, 0);
        self.closed = false;
        self.credit.clear();
    }

    /// Takes in a unit, given in parts; returns its ESI, or `None` when it is longer than the longest.
    pub fn push(&mut self, parts: &[&[u8]]) -> Option<u32> {
        let esi = self.next;
        self.slot(esi).set(parts)?;
        let size = self.code.size();
        match self.code {
            Code::Window(_) => self.held = (self.held + 1).min(size),
            Code::Block(_) if self.closed => self.held = 1,
            Code::Block(_) => self.held += 1,
        }
        self.next = esi.wrapping_add(1);
        self.unprotected = self.unprotected.saturating_add(1);
        self.credit.earn();
        self.closed = matches!(self.code, Code::Block(_)) && self.held >= size;
        // Repair packets of the block before that nobody asked for are void.
        self.due = match self.code {
            Code::Block(_) if !self.closed => 0,
            _ => self.credit.take(),
        };
        Some(esi)
    }

    /// What no repair packet protects so far gets one, and an incomplete block ends: for when no more packets come.
    pub fn flush(&mut self) {
        if self.unprotected > 0 && !self.credit.redundancy().is_none() {
            self.due = self.credit.take().max(1);
            self.credit.clear();
            self.closed = true;
        }
    }

    /// Makes the next repair packet that is due; to be asked after each [`push`](Self::push) and
    /// [`flush`](Self::flush) until there is none. Its payload is written to `out`; returns its length, `None` when
    /// none is due or it does not fit.
    pub fn repair(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.due == 0 || self.held == 0 {
            return None;
        }
        self.due -= 1;
        self.unprotected = 0;
        self.combine(out)
    }

    /// Makes a repair packet of the window as it is, due or not.
    pub fn combine(&mut self, out: &mut [u8]) -> Option<usize> {
        let mut id = RepairId {
            key: self.key,
            density: self.density,
            count: self.held as u16,
            first: self.next.wrapping_sub(self.held as u32),
        };
        self.key = self.key.wrapping_add(1);
        let mut all = [0; MAX_WINDOW];
        let coefficients = &mut all[..self.held];
        coefficients::generate(id.key, id.density, coefficients);
        if coefficients.iter().all(|&coefficient| coefficient == 0) {
            // A sparse draw of nothing protects nothing.
            id.density = FULL_DENSITY;
            coefficients::generate(id.key, id.density, coefficients);
        }
        let mask = self.symbols.len() - 1;
        let symbols =
            (0..self.held).map(|i| &self.symbols[(id.first as usize).wrapping_add(i) & mask]);
        let terms: ArrayVec<Term<'_>, MAX_WINDOW> = coefficients
            .iter()
            .zip(symbols)
            .map(|(&coefficient, symbol)| (coefficient, symbol.bytes()))
            .collect();
        let longest = terms.iter().map(|(_, symbol)| symbol.len()).max()?;
        let fill = |sum: &mut [u8]| self.kernel.dot(sum, &terms);
        wire::write_repair(out, id, longest, fill)
    }

    fn slot(&mut self, esi: u32) -> &mut Symbol {
        let mask = self.symbols.len() - 1;
        &mut self.symbols[esi as usize & mask]
    }
}
