//! A symbol with its own memory.

use std::ops::Range;

use crate::wire::{ADUI_LEN, adu, adu_information};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Whole cache lines, of zeros to begin with: vectors of this length take longer to read and write
/// where each lies in two.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// One line more than there is room for: who allocates bytes does not get them at the beginning
    /// of a line.
    memory: Box<[u8]>,
    start: usize,
}

impl Lines {
    /// Room for `count` pieces of `len` bytes, each of which begins with a line; and the bytes from
    /// one to the next.
    pub(crate) fn new(count: usize, len: usize) -> (Self, usize) {
        let stride = len.next_multiple_of(LINE);
        let memory: Box<[u8]> = vec![0; count * stride + LINE].into();
        let start = memory.as_ptr().align_offset(LINE).min(LINE);
        (Self { memory, start }, stride)
    }

    /// Bytes there is room for.
    fn room(&self) -> usize {
        self.memory.len().saturating_sub(LINE)
    }

    #[inline]
    pub(crate) fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        let end = self.start + self.room();
        self.memory.get(self.start..end)?.get(range)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, range: Range<usize>) -> Option<&mut [u8]> {
        let end = self.start + self.room();
        self.memory.get_mut(self.start..end)?.get_mut(range)
    }
}

/// A symbol: memory for the longest, of which the first `len` bytes count.
/// The default one has no memory: what stays behind for the moment in which a symbol is taken.
#[derive(Debug, Default)]
pub(crate) struct Symbol {
    memory: Lines,
    len: usize,
}

impl Symbol {
    /// An empty symbol with room for a unit of `max_len` bytes.
    pub(crate) fn new(max_len: usize) -> Self {
        let (memory, _) = Lines::new(1, ADUI_LEN + max_len);
        Self { memory, len: 0 }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.get(0..self.len).unwrap_or_default()
    }

    /// Bytes there is room for.
    pub(crate) fn room(&self) -> usize {
        self.memory.room()
    }

    /// The unit in it.
    pub(crate) fn adu(&self) -> Option<&[u8]> {
        adu(self.bytes())
    }

    /// Becomes the source symbol of the unit that is given in parts; `None` when it is too long.
    pub(crate) fn set(&mut self, parts: &[&[u8]]) -> Option<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let symbol = self.memory.get_mut(0..ADUI_LEN + len)?;
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

    /// Copies `symbol`. `None` if it is too long.
    pub(crate) fn copy(&mut self, symbol: &[u8]) -> Option<()> {
        self.memory
            .get_mut(0..symbol.len())?
            .copy_from_slice(symbol);
        self.len = symbol.len();
        Some(())
    }

    /// The first `len` bytes, which become its length, to be overwritten: what they hold is of
    /// before.
    pub(crate) fn overwrite(&mut self, len: usize) -> &mut [u8] {
        self.len = len.min(self.memory.room());
        self.memory.get_mut(0..self.len).unwrap_or_default()
    }

    /// Its bytes, padded with zeros to `len` where it is shorter, to change.
    pub(crate) fn padded(&mut self, len: usize) -> &mut [u8] {
        let len = len.clamp(self.len, self.memory.room().max(self.len));
        let bytes = self.memory.get_mut(0..len).unwrap_or_default();
        if let Some(padding) = bytes.get_mut(self.len..) {
            padding.fill(0);
        }
        self.len = len;
        bytes
    }

    /// Cuts off what lies behind its unit; `None` when it holds none.
    pub(crate) fn trim(&mut self) -> Option<()> {
        self.len = ADUI_LEN + self.adu()?.len();
        Some(())
    }
}
