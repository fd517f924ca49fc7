//! The recoder: makes new combinations of received packets, without decoding.
//!
//! A combination of combinations is a combination of the source symbols. Its coefficients are
//! combined in the same way. So a node that received some packets of a window can send new
//! combinations. These help to recover even source packets that were lost before that node.

use arrayvec::ArrayVec;

use crate::coefficients;
use crate::kernel::{Kernel, Term};
use crate::redundancy::{Credit, Redundancy};
use crate::serial;
use crate::symbol::Symbol;
use crate::tinymt32::TinyMt32;
use crate::wire::{self, MAX_WINDOW, RepairId};

/// A received packet: its combination and its symbol.
#[derive(Debug)]
struct Received {
    first: u32,
    /// One coefficient for each source symbol. An unused entry has no coefficients.
    coefficients: ArrayVec<u8, MAX_WINDOW>,
    symbol: Symbol,
}

impl Received {
    /// Returns the ESI after the last source symbol.
    fn end_esi(&self) -> u32 {
        self.first.wrapping_add(self.coefficients.len() as u32)
    }
}

/// Makes recoded packets.
///
/// [`Recoder::new`] allocates the memory: `window` symbols of the maximum length with 64
/// coefficients each.
#[derive(Debug)]
pub struct Recoder {
    kernel: Kernel,
    credit: Credit,
    due_packets: u32,
    received: Box<[Received]>,
    /// Index in `received` that the next packet overwrites.
    next_slot: usize,
    generator: TinyMt32,
}

impl Recoder {
    /// Makes a recoder that combines the latest `window` packets (1 to [`MAX_WINDOW`]), with units
    /// of up to `max_len` bytes.
    pub fn new(window: usize, redundancy: Redundancy, max_len: usize) -> Self {
        let received = |symbol| Received {
            first: 0,
            coefficients: ArrayVec::new(),
            symbol,
        };
        let symbols = (0..window.clamp(1, MAX_WINDOW)).map(|_| Symbol::new(max_len));
        Self {
            kernel: Kernel::fastest(),
            credit: Credit::new(redundancy),
            due_packets: 0,
            received: symbols.map(received).collect(),
            next_slot: 0,
            generator: TinyMt32::new(0),
        }
    }

    /// Changes the redundancy: recoded packets for each source packet.
    pub fn configure(&mut self, redundancy: Redundancy) {
        self.credit.set(redundancy);
    }

    /// Adds a source packet whose unit is given in parts. Returns `None` if the unit is too long.
    pub fn add_source(&mut self, esi: u32, parts: &[&[u8]]) -> Option<()> {
        let received = &mut self.received[self.next_slot];
        received.coefficients.clear();
        received.symbol.set_unit(parts)?;
        received.first = esi;
        received.coefficients.push(1);
        self.advance();
        self.credit.earn();
        self.due_packets = self.credit.take();
        Some(())
    }

    /// Adds a repair packet. Returns `None` if it is too long.
    pub fn add_repair(&mut self, id: RepairId, symbol: &[u8]) -> Option<()> {
        let mut all = [0; MAX_WINDOW];
        let coefficients = all.get_mut(..id.count.into())?;
        coefficients::generate(id.key, id.density, coefficients);
        self.add_recoded(id.first, coefficients, symbol)
    }

    /// Adds a recoded packet. Returns `None` if it is too long or has too many source packets.
    pub fn add_recoded(&mut self, first: u32, coefficients: &[u8], symbol: &[u8]) -> Option<()> {
        let received = &mut self.received[self.next_slot];
        received.coefficients.clear();
        received.symbol.copy_from(symbol)?;
        received.first = first;
        received
            .coefficients
            .try_extend_from_slice(coefficients)
            .ok()?;
        self.advance();
        Some(())
    }

    /// Makes the next recoded packet that is due. Writes the payload to `out` and returns its
    /// length. Call this method after each source packet until it returns `None`.
    pub fn next_recoded(&mut self, out: &mut [u8]) -> Option<usize> {
        self.due_packets = self.due_packets.checked_sub(1)?;
        self.make_recoded(out)
    }

    /// Makes a recoded packet of the stored packets, even if none is due. Writes the payload to
    /// `out` and returns its length. Returns `None` if no packet is stored or `out` is too short.
    ///
    /// Combines the stored packets that cover only the newest [`MAX_WINDOW`] source packets.
    pub fn make_recoded(&mut self, out: &mut [u8]) -> Option<usize> {
        let latest = &self.received[self
            .next_slot
            .checked_sub(1)
            .unwrap_or(self.received.len() - 1)];
        let is_used = |received: &&Received| !received.coefficients.is_empty();
        // After a restart of the stream, only packets near the latest one count.
        let is_near = |received: &&Received| {
            received
                .end_esi()
                .wrapping_sub(latest.first)
                .wrapping_add(MAX_WINDOW as u32)
                <= 3 * MAX_WINDOW as u32
        };
        let end = self
            .received
            .iter()
            .filter(is_used)
            .filter(is_near)
            .map(Received::end_esi)
            .reduce(|a, b| if serial::is_before(a, b) { b } else { a })?;
        let fits = |received: &&Received| end.wrapping_sub(received.first) <= MAX_WINDOW as u32;
        let chosen: ArrayVec<&Received, MAX_WINDOW> = self
            .received
            .iter()
            .filter(is_used)
            .filter(is_near)
            .filter(fits)
            .collect();
        let first = end.wrapping_sub(
            chosen
                .iter()
                .map(|received| end.wrapping_sub(received.first))
                .max()?,
        );
        let mut all = [0; MAX_WINDOW];
        let coefficients = &mut all[..end.wrapping_sub(first) as usize];
        let mut terms: ArrayVec<Term<'_>, MAX_WINDOW> = ArrayVec::new();
        for received in chosen {
            let factor = self.generator.next_nonzero();
            let from = received.first.wrapping_sub(first) as usize;
            self.kernel
                .mul_add(&mut coefficients[from..], factor, &received.coefficients);
            terms.push((factor, received.symbol.bytes()));
        }
        let longest = terms.iter().map(|(_, symbol)| symbol.len()).max()?;
        let fill = |sum: &mut [u8]| self.kernel.dot(sum, &terms);
        wire::write_recoded(out, first, coefficients, longest, fill)
    }

    fn advance(&mut self) {
        self.next_slot = (self.next_slot + 1) % self.received.len();
    }
}
