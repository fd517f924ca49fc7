//! Symbols, in memory that is aligned to cache lines.

use std::ops::Range;

use crate::wire::{ADUI_LEN, adu, adu_information};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Memory of whole cache lines, initially zero. A vector that crosses a cache line takes longer to
/// read and write.
#[derive(Debug, Default)]
pub(crate) struct AlignedBytes {
    /// One line more than the capacity, because an allocation may not start at a line.
    memory: Box<[u8]>,
    start: usize,
}

impl AlignedBytes {
    /// Allocates `count` pieces of `len` bytes. Each piece starts at a line. Also returns the
    /// distance between two pieces, bytes.
    pub(crate) fn new(count: usize, len: usize) -> (Self, usize) {
        let stride = len.next_multiple_of(LINE);
        let memory: Box<[u8]> = vec![0; count * stride + LINE].into();
        let start = memory.as_ptr().align_offset(LINE).min(LINE);
        (Self { memory, start }, stride)
    }

    /// Returns the capacity, bytes.
    fn capacity(&self) -> usize {
        self.memory.len().saturating_sub(LINE)
    }

    #[inline]
    pub(crate) fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        let end = self.start + self.capacity();
        self.memory.get(self.start..end)?.get(range)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, range: Range<usize>) -> Option<&mut [u8]> {
        let end = self.start + self.capacity();
        self.memory.get_mut(self.start..end)?.get_mut(range)
    }
}

/// A symbol. Has memory for the longest symbol, of which the first `len` bytes are valid. The
/// default value has no memory. It replaces a symbol while the symbol is moved out.
#[derive(Debug, Default)]
pub(crate) struct Symbol {
    memory: AlignedBytes,
    len: usize,
}

impl Symbol {
    /// Returns an empty symbol with room for a unit of `max_len` bytes.
    pub(crate) fn new(max_len: usize) -> Self {
        let (memory, _) = AlignedBytes::new(1, ADUI_LEN + max_len);
        Self { memory, len: 0 }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.get(0..self.len).unwrap_or_default()
    }

    /// Returns the capacity, bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Returns the unit of the symbol.
    pub(crate) fn adu(&self) -> Option<&[u8]> {
        adu(self.bytes())
    }

    /// Sets this symbol to the source symbol of a unit, given in parts. Returns `None` if the unit
    /// is too long.
    pub(crate) fn set_unit(&mut self, parts: &[&[u8]]) -> Option<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let symbol = self.memory.get_mut(0..ADUI_LEN + len)?;
        let (information, mut rest) = symbol.split_first_chunk_mut()?;
        *information = adu_information(len.try_into().ok()?);
        for part in parts {
            let (to, remaining) = rest.split_at_mut_checked(part.len())?;
            to.copy_from_slice(part);
            rest = remaining;
        }
        self.len = ADUI_LEN + len;
        Some(())
    }

    /// Copies the bytes of `symbol`. Returns `None` if `symbol` is too long.
    pub(crate) fn copy_from(&mut self, symbol: &[u8]) -> Option<()> {
        self.memory
            .get_mut(0..symbol.len())?
            .copy_from_slice(symbol);
        self.len = symbol.len();
        Some(())
    }

    /// Sets the length and returns the bytes, which contain older content. Overwrite all of them.
    pub(crate) fn resize_for_overwrite(&mut self, len: usize) -> &mut [u8] {
        self.len = len.min(self.memory.capacity());
        self.memory.get_mut(0..self.len).unwrap_or_default()
    }

    /// Pads a shorter symbol with zeros to `len`. Returns the symbol's bytes for changes.
    pub(crate) fn pad_to(&mut self, len: usize) -> &mut [u8] {
        let len = len.clamp(self.len, self.memory.capacity().max(self.len));
        let bytes = self.memory.get_mut(0..len).unwrap_or_default();
        if let Some(padding) = bytes.get_mut(self.len..) {
            padding.fill(0);
        }
        self.len = len;
        bytes
    }

    /// Removes the padding after the unit. Returns `None` if the symbol contains no valid unit.
    pub(crate) fn trim(&mut self) -> Option<()> {
        self.len = ADUI_LEN + self.adu()?.len();
        Some(())
    }
}
