//! Big-endian words in a frame.

/// Reads the word at the offset. Returns `None` if it is not inside the frame.
#[inline]
pub(crate) fn word(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// Writes the word at the offset. Returns `None` if it is not inside the frame.
#[inline]
pub(crate) fn set_word(frame: &mut [u8], at: usize, value: u16) -> Option<()> {
    *frame.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}
