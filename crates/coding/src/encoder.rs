//! The encoder: adds repair packets, which are combinations of source packets.

use arrayvec::ArrayVec;

use crate::coefficients::{self, CoefficientCache, FULL_DENSITY};
use crate::kernel::{Kernel, Term};
use crate::redundancy::{Credit, Redundancy};
use crate::sums::BlockSums;
use crate::symbol::Symbol;
use crate::wire::{self, MAX_WINDOW, RepairId};

/// The source packets that a repair packet combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The latest packets. The window slides with each packet, and repair packets come between
    /// source packets.
    Window(u8),
    /// The packets of one block. Repair packets follow the block.
    Block(u8),
}

impl Code {
    /// Returns the maximum number of source packets in a combination, clamped to 1 to
    /// [`MAX_WINDOW`].
    pub fn size(self) -> usize {
        let (Self::Window(size) | Self::Block(size)) = self;
        usize::from(size).clamp(1, MAX_WINDOW)
    }
}

/// Makes repair packets.
///
/// The encoder computes a repair packet of a window on request. It computes repair packets of a
/// block while the source packets arrive, so that the last source packet does not wait for them.
/// There are three exceptions that it computes on request: repair packets beyond the 64th of a
/// block, those after a change of redundancy or density within the block, and those whose
/// coefficients are all zero.
///
/// [`Encoder::new`] allocates the memory. The number of symbols is a power of two and at least the
/// window. A block needs 64 more symbols, for any redundancy. So there are at most 128 symbols, or
/// about 200 KiB with units of 1500 bytes.
#[derive(Debug)]
pub struct Encoder {
    kernel: Kernel,
    code: Code,
    density: u8,
    credit: Credit,
    /// The source symbols, indexed by the lower bits of the ESI.
    symbols: Box<[Symbol]>,
    /// The repair symbols of the block.
    sums: Option<BlockSums>,
    coefficient_cache: Box<CoefficientCache>,
    /// ESI of the next source packet.
    next: u32,
    /// Source packets in the window or block.
    window_len: usize,
    /// Whether the block is closed, so that the next source packet begins another block.
    is_block_closed: bool,
    /// Source packets since the last repair packet.
    unprotected: u32,
    /// Repair packets that [`Self::next_repair`] may make now.
    due_packets: u32,
    key: u16,
}

impl Encoder {
    /// Makes an encoder for units of up to `max_len` bytes. The first source packet gets the ESI
    /// `first_esi`.
    pub fn new(code: Code, redundancy: Redundancy, max_len: usize, first_esi: u32) -> Self {
        let capacity = code.size().next_power_of_two();
        let symbols: Box<[Symbol]> = (0..capacity).map(|_| Symbol::new(max_len)).collect();
        let sums = match code {
            Code::Window(_) => None,
            Code::Block(_) => Some(BlockSums::new(symbols[0].capacity())),
        };
        Self {
            kernel: Kernel::fastest(),
            code,
            density: FULL_DENSITY,
            credit: Credit::new(redundancy),
            symbols,
            sums,
            coefficient_cache: Box::new(CoefficientCache::new()),
            next: first_esi,
            window_len: 0,
            is_block_closed: false,
            unprotected: 0,
            due_packets: 0,
            key: 0,
        }
    }

    /// Changes redundancy and density threshold (0 to 15).
    pub fn configure(&mut self, redundancy: Redundancy, density: u8) {
        self.credit.set(redundancy);
        self.density = density.min(FULL_DENSITY);
    }

    /// Changes the kernel. For measurements.
    pub fn set_kernel(&mut self, kernel: Kernel) {
        self.kernel = kernel;
    }

    /// Restarts with source packet `first_esi`. Later repair packets contain no earlier packet.
    pub fn restart(&mut self, first_esi: u32) {
        self.next = first_esi;
        (self.window_len, self.unprotected, self.due_packets) = (0, 0, 0);
        self.is_block_closed = false;
        self.credit.clear();
    }

    /// Adds a unit, given in parts. Returns its ESI, or `None` if it is too long.
    pub fn push(&mut self, parts: &[&[u8]]) -> Option<u32> {
        let esi = self.next;
        self.symbol_mut(esi).set_unit(parts)?;
        let size = self.code.size();
        match self.code {
            Code::Window(_) => self.window_len = (self.window_len + 1).min(size),
            Code::Block(_) if self.is_block_closed => self.window_len = 1,
            Code::Block(_) => self.window_len += 1,
        }
        self.next = esi.wrapping_add(1);
        self.add_to_sums(esi);
        self.unprotected = self.unprotected.saturating_add(1);
        self.credit.earn();
        self.is_block_closed = matches!(self.code, Code::Block(_)) && self.window_len >= size;
        // Drops repair packets of the previous block that the caller did not request.
        self.due_packets = match self.code {
            Code::Block(_) if !self.is_block_closed => 0,
            _ => self.credit.take(),
        };
        Some(esi)
    }

    /// Adds the latest source packet to the repair symbols of its block.
    fn add_to_sums(&mut self, esi: u32) {
        let Some(sums) = &mut self.sums else {
            return;
        };
        if self.window_len == 1 {
            let expected = self.credit.expected_after(self.code.size());
            sums.start_block(self.key, self.density, esi, expected);
        }
        let mask = self.symbols.len() - 1;
        sums.add_source(self.kernel, self.symbols[esi as usize & mask].bytes());
    }

    /// Makes a repair packet due for unprotected packets and ends an incomplete block. Call this
    /// method when no more packets arrive.
    pub fn flush(&mut self) {
        if self.unprotected > 0 && !self.credit.redundancy().is_none() {
            self.due_packets = self.credit.take().max(1);
            self.credit.clear();
            self.is_block_closed = true;
        }
    }

    /// Makes the next repair packet that is due. Writes the payload to `out` and returns its
    /// length. Returns `None` if no repair packet is due or `out` is too short. Call this method
    /// after each [`push`](Self::push) and [`flush`](Self::flush) until it returns `None`.
    pub fn next_repair(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.due_packets == 0 || self.window_len == 0 {
            return None;
        }
        self.due_packets -= 1;
        self.unprotected = 0;
        self.make_repair(out)
    }

    /// Makes a repair packet of the current window, even if none is due.
    pub fn make_repair(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.window_len == 0 {
            return None;
        }
        let mut id = RepairId {
            key: self.key,
            density: self.density,
            count: self.window_len as u16,
            first: self.next.wrapping_sub(self.window_len as u32),
        };
        self.key = self.key.wrapping_add(1);
        if let Some(sum) = self.sums.as_ref().and_then(|sums| sums.get(id)) {
            return wire::write_repair(out, id, sum.len(), |out| out.copy_from_slice(sum));
        }
        let mut all = [0; MAX_WINDOW];
        let coefficients = &mut all[..self.window_len];
        self.coefficient_cache
            .generate(id.key, id.density, self.code.size(), coefficients);
        if coefficients.iter().all(|&coefficient| coefficient == 0) {
            // Without a non-zero coefficient the packet protects no source packet.
            id.density = FULL_DENSITY;
            coefficients::generate(id.key, id.density, coefficients);
        }
        let mask = self.symbols.len() - 1;
        let mut longest = 0;
        // Fill the list in place, because it is too large to move.
        let mut terms: ArrayVec<Term<'_>, MAX_WINDOW> = ArrayVec::new();
        for (i, &coefficient) in coefficients.iter().enumerate() {
            let symbol = self.symbols[(id.first as usize).wrapping_add(i) & mask].bytes();
            longest = longest.max(symbol.len());
            terms.push((coefficient, symbol));
        }
        let fill = |sum: &mut [u8]| self.kernel.dot(sum, &terms);
        wire::write_repair(out, id, longest, fill)
    }

    fn symbol_mut(&mut self, esi: u32) -> &mut Symbol {
        let mask = self.symbols.len() - 1;
        &mut self.symbols[esi as usize & mask]
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::field::mul;
    use crate::wire::CodedPayload;

    const MAX_LEN: usize = 300;

    #[derive(Clone, Debug)]
    enum EncoderCall {
        /// Pushes a unit of the given length, then requests at most the given number of repair
        /// packets.
        Push(usize, u32),
        Flush,
        MakeRepair,
        Configure(u32, u32, u8),
        Restart(u32),
    }

    fn any_call() -> impl Strategy<Value = EncoderCall> {
        let length = prop_oneof![0..=MAX_LEN, Just(MAX_LEN), Just(MAX_LEN + 1)];
        let requested = prop_oneof![8 => Just(u32::MAX), 1 => 0..3_u32];
        let density = prop_oneof![3 => Just(FULL_DENSITY), 1 => Just(0), 1 => 0..16_u8];
        prop_oneof![
            60 => (length, requested).prop_map(|(length, requested)| EncoderCall::Push(length, requested)),
            3 => Just(EncoderCall::Flush),
            2 => Just(EncoderCall::MakeRepair),
            2 => (0..=6_u32, 1..=5_u32, density).prop_map(|(n, d, density)| EncoderCall::Configure(n, d, density)),
            1 => any::<u32>().prop_map(EncoderCall::Restart),
        ]
    }

    /// Checks each byte of a repair packet: it must be the combination that its identifier states.
    fn check_sum(packet: &[u8], units: &[Vec<u8>], next: u32) -> Result<(), TestCaseError> {
        let Some(CodedPayload::Repair { id, symbol }) = CodedPayload::parse(packet) else {
            return Err(TestCaseError::fail("not a repair packet"));
        };
        let mut coefficients = vec![0; id.count.into()];
        coefficients::generate(id.key, id.density, &mut coefficients);
        let from = units.len() - next.wrapping_sub(id.first) as usize;
        let units = &units[from..][..id.count.into()];
        let longest = units.iter().map(Vec::len).max().unwrap_or(0);
        prop_assert_eq!(symbol.len(), longest + wire::ADUI_LEN);
        let mut sum = vec![0; symbol.len()];
        for (unit, coefficient) in units.iter().zip(coefficients) {
            let mut symbol = wire::adu_information(unit.len() as u16).to_vec();
            symbol.extend(unit);
            for (sum, byte) in sum.iter_mut().zip(symbol) {
                *sum ^= mul(coefficient, byte);
            }
        }
        prop_assert_eq!(symbol, sum);
        Ok(())
    }

    #[test]
    fn early_sums_give_the_same_packets() {
        compare_early_sums(32);
    }

    #[test]
    #[ignore = "thorough: checks 1024 random cases"]
    fn early_sums_give_the_same_packets_in_many_cases() {
        compare_early_sums(1024);
    }

    /// Repair packets computed while source packets arrive equal those computed at the end of the
    /// block.
    fn compare_early_sums(cases: u32) {
        proptest!(ProptestConfig::with_cases(cases), |(
            block in 0..70_u8,
            numerator in 0..=6_u32,
            denominator in 1..=9_u32,
            density in prop_oneof![Just(FULL_DENSITY), Just(0), 0..16_u8],
            first in prop_oneof![any::<u32>(), Just(u32::MAX - 20)],
            first_key in prop_oneof![Just(0), Just(u16::MAX - 3), any::<u16>()],
            calls in prop::collection::vec(any_call(), 1..200),
        )| {
            let ratio = |n, d| Redundancy::new(n, NonZeroU32::new(d).unwrap());
            let make = || {
                let code = Code::Block(block);
                let mut encoder = Encoder::new(code, ratio(numerator, denominator), MAX_LEN, first);
                encoder.configure(ratio(numerator, denominator), density);
                encoder.key = first_key;
                encoder
            };
            let (mut early, mut late) = (make(), make());
            late.sums = None;
            let (mut out, mut expected) = (vec![0; 2 * MAX_LEN], vec![0; 2 * MAX_LEN]);
            let mut units: Vec<Vec<u8>> = Vec::new();
            for (i, call) in calls.into_iter().enumerate() {
                let mut requested = u32::MAX;
                match call {
                    EncoderCall::Push(length, some) => {
                        let unit: Vec<u8> = (0..length).map(|at| (at * 7 + i * 31) as u8).collect();
                        let (front, back) = unit.split_at(length / 3);
                        let esi = early.push(&[front, back]);
                        prop_assert_eq!(esi, late.push(&[front, back]));
                        if esi.is_some() {
                            units.push(unit);
                        }
                        requested = some;
                    }
                    EncoderCall::Flush => {
                        early.flush();
                        late.flush();
                    }
                    EncoderCall::MakeRepair => {
                        let len = early.make_repair(&mut out);
                        prop_assert_eq!(len, late.make_repair(&mut expected));
                        if let Some(len) = len {
                            prop_assert_eq!(&out[..len], &expected[..len]);
                            check_sum(&out[..len], &units, early.next)?;
                        }
                    }
                    EncoderCall::Configure(n, d, density) => {
                        early.configure(ratio(n, d), density);
                        late.configure(ratio(n, d), density);
                    }
                    EncoderCall::Restart(esi) => {
                        early.restart(esi);
                        late.restart(esi);
                    }
                }
                for _ in 0..requested {
                    let len = early.next_repair(&mut out);
                    prop_assert_eq!(len, late.next_repair(&mut expected));
                    let Some(len) = len else {
                        break;
                    };
                    prop_assert_eq!(&out[..len], &expected[..len]);
                    check_sum(&out[..len], &units, early.next)?;
                }
            }
            prop_assert_eq!((early.next, early.key, early.due_packets), (late.next, late.key, late.due_packets));
        });
    }

    #[test]
    fn all_repair_packets_are_ready_at_the_end_of_a_block() {
        for (numerator, denominator) in [(1, 4), (1, 3), (2, 7), (2, 1), (1, 50)] {
            let redundancy = Redundancy::new(numerator, NonZeroU32::new(denominator).unwrap());
            let mut encoder = Encoder::new(Code::Block(32), redundancy, MAX_LEN, 0);
            let mut out = [0; 2 * MAX_LEN];
            for i in 0..32 * 20 {
                encoder.push(&[&[i as u8; MAX_LEN]]).unwrap();
                let known = encoder.sums.as_ref().map(BlockSums::count_nonempty);
                assert!(encoder.due_packets == 0 || known == Some(encoder.due_packets as usize));
                while encoder.next_repair(&mut out).is_some() {}
            }
        }
    }
}
