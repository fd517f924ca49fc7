//! Several payloads in one input.

/// Splits bytes into payloads: each follows a byte with its length. The last may be shorter.
pub(super) fn payloads(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut payloads = Vec::new();
    while let Some((len, rest)) = bytes.split_first() {
        let (payload, following) = rest.split_at(rest.len().min(usize::from(*len)));
        payloads.push(payload);
        bytes = following;
    }
    payloads
}
