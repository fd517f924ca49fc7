//! A symbol in memory of its own.

use crate::wire::{ADUI_LEN, adu, adu_information};

/// Bytes that the length of a symbol's memory is a multiple of: a cache line.
const GRAIN: usize = 64;

/// A symbol: memory for the longest, of which the first `len` bytes count.
/// The default one has no memory: what stays behind for the moment in which a symbol is taken.
#[derive(Debug, Default)]
pub(crate) struct Symbol {
    memory: Box<[u8]>,
    len: usize,
}

impl Symbol {
    /// An empty symbol with room for a unit of `max_len` bytes.
    pub(crate) fn new(max_len: usize) -> Self {
        let room = (ADUI_LEN + max_len).next_multiple_of(GRAIN);
        Self {
            memory: vec![0; room].into(),
            len: 0,
        }
    }

    /// `count` empty symbols.
    pub(crate) fn ring(count: usize, max_len: usize) -> Box<[Self]> {
        (0..count).map(|_| Self::new(max_len)).collect()
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.get(..self.len).unwrap_or_default()
    }

    /// Bytes there is room for.
    pub(crate) fn room(&self) -> usize {
        self.memory.len()
    }

    /// The unit in it.
    pub(crate) fn adu(&self) -> Option<&[u8]> {
        adu(self.bytes())
    }

    /// Becomes the source symbol of the unit that is given in parts; `None` when it is too long.
    pub(crate) fn set(&mut self, parts: &[&[u8]]) -> Option<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let symbol = self.memory.get_mut(..ADUI_LEN + len)?;
        let (information, mut rest) = symbol.split_first_chunk_mut()?;
        *information = adu_information(len.try_into().ok()?);
        for part in parts {
            let (to, behind) = rest.split_at_mut_checked(part.len())?;
            to.copy_from_slice(part);
            rest = behind;
        }
        self.len = ADUI_LEN + len;
        Some(())
    }

    /// Becomes a copy of `symbol`; `None` when it is too long.
    pub(crate) fn copy(&mut self, symbol: &[u8]) -> Option<()> {
        self.memory.get_mut(..symbol.len())?.copy_from_slice(symbol);
        self.len = symbol.len();
        Some(())
    }

    /// The first `len` bytes, which become its length, to be overwritten: what they hold is of before.
    pub(crate) fn overwrite(&mut self, len: usize) -> &mut [u8] {
        self.len = len.min(self.memory.len());
        &mut self.memory[..self.len]
    }

    /// Its bytes, padded with zeros to `len` where it is shorter, to change.
    pub(crate) fn padded(&mut self, len: usize) -> &mut [u8] {
        let len = len.clamp(self.len, self.memory.len().max(self.len));
        self.memory[self.len..len].fill(0);
        self.len = len;
        &mut self.memory[..len]
    }

    /// Cuts off what lies behind its unit.
    pub(crate) fn trim(&mut self) {
        self.len = self.adu().map_or(0, |unit| ADUI_LEN + unit.len());
    }
}
