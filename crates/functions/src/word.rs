//! Reads and writes big-endian 16-bit words of a frame.

/// Reads the word at offset `at`. Returns `None` if the word is not inside the frame.
#[inline]
pub(crate) fn read_word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// Writes the word at offset `at`. Returns `None` if the word is not inside the frame.
#[inline]
pub(crate) fn write_word(frame: &mut [u8], at: usize, value: u16) -> Option<()> {
    *frame.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}
