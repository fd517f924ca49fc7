//! AES one byte at a time, written from the standards. It is the reference of the tests and the
//! slow side of the benchmark.
//!
//! The standards are FIPS 197, NIST SP 800-38A (CTR) and SP 800-38D (GCM). The time of this code
//! depends on the data, so do not use the code elsewhere.

/// An expanded key (FIPS 197, section 5.2).
pub(crate) struct PlainAes {
    round_keys: Vec<[u8; 16]>,
    sbox: [u8; 256],
}

/// Multiplies by x in the field of AES (section 4.2.1).
fn xtime(byte: u8) -> u8 {
    byte << 1 ^ if byte & 0x80 == 0 { 0 } else { 0x1b }
}

/// Multiplies in the field of AES, bit by bit.
fn multiply(a: u8, b: u8) -> u8 {
    let power = |n: u8| (0..n).fold(a, |a, _| xtime(a));
    (0..8)
        .filter(|bit| b >> bit & 1 == 1)
        .fold(0, |sum, bit| sum ^ power(bit))
}

/// Computes the S-box: the inverse, then an affine map (section 5.1.1).
fn sbox() -> [u8; 256] {
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        let inverse = (0..=255)
            .find(|&other| multiply(byte, other) == 1)
            .unwrap_or(0);
        (1..5).fold(inverse ^ 0x63, |sum, turn| sum ^ inverse.rotate_left(turn))
    })
}

impl PlainAes {
    /// Expands a key of 16 or 32 bytes.
    pub(crate) fn new(key: &[u8]) -> Self {
        let sbox = sbox();
        let words = key.len() / 4;
        let rounds = words + 6;
        let mut expanded: Vec<[u8; 4]> = key.as_chunks().0.to_vec();
        let mut constant = 1;
        for i in words..4 * (rounds + 1) {
            let mut word = expanded[i - 1];
            if i % words == 0 {
                word.rotate_left(1);
                word = word.map(|byte| sbox[usize::from(byte)]);
                word[0] ^= constant;
                constant = xtime(constant);
            } else if words > 6 && i % words == 4 {
                word = word.map(|byte| sbox[usize::from(byte)]);
            }
            let before = expanded[i - words];
            expanded.push(std::array::from_fn(|at| word[at] ^ before[at]));
        }
        Self {
            round_keys: expanded.as_flattened().as_chunks().0.to_vec(),
            sbox,
        }
    }

    /// Encrypts one block (section 5.1).
    pub(crate) fn encrypt(&self, block: [u8; 16]) -> [u8; 16] {
        let add = |state: &mut [u8; 16], key: &[u8; 16]| {
            for (byte, key) in state.iter_mut().zip(key) {
                *byte ^= key;
            }
        };
        let last = self.round_keys.len() - 1;
        let mut state = block;
        add(&mut state, &self.round_keys[0]);
        for (round, key) in self.round_keys.iter().enumerate().skip(1) {
            // Columns of four bytes. ShiftRows takes row r from r columns to the right.
            state =
                std::array::from_fn(|at| self.sbox[usize::from(state[(at + 4 * (at % 4)) % 16])]);
            if round < last {
                for column in state.as_chunks_mut::<4>().0 {
                    let all = column.iter().fold(0, |sum, byte| sum ^ byte);
                    let old = *column;
                    for (row, byte) in column.iter_mut().enumerate() {
                        *byte ^= all ^ xtime(old[row] ^ old[(row + 1) % 4]);
                    }
                }
            }
            add(&mut state, key);
        }
        state
    }

    /// Encrypts with CTR from a counter block, whose last 32 bits count.
    pub(crate) fn ctr(&self, mut counter: [u8; 16], data: &mut [u8]) {
        for chunk in data.chunks_mut(16) {
            for (byte, key) in chunk.iter_mut().zip(self.encrypt(counter)) {
                *byte ^= key;
            }
            let (_, count) = counter.split_last_chunk_mut::<4>().expect("16 bytes");
            *count = u32::from_be_bytes(*count).wrapping_add(1).to_be_bytes();
        }
    }

    /// Encrypts `data` with GCM and a nonce of 96 bits, and returns the tag.
    #[allow(dead_code)] // the benchmark only uses CTR
    pub(crate) fn gcm(&self, nonce: [u8; 12], aad: &[u8], data: &mut [u8]) -> [u8; 16] {
        let block = |count: u32| {
            let mut block = [0; 16];
            block[..12].copy_from_slice(&nonce);
            block[12..].copy_from_slice(&count.to_be_bytes());
            block
        };
        self.ctr(block(2), data);
        let hash_key = u128::from_be_bytes(self.encrypt([0; 16]));
        let lengths = (aad.len() as u128 * 8) << 64 | (data.len() as u128 * 8);
        let blocks = aad.chunks(16).chain(data.chunks(16)).map(|chunk| {
            let mut block = [0; 16];
            block[..chunk.len()].copy_from_slice(chunk);
            u128::from_be_bytes(block)
        });
        let hash = blocks
            .chain([lengths])
            .fold(0, |hash, block| ghash_multiply(hash ^ block, hash_key));
        (hash ^ u128::from_be_bytes(self.encrypt(block(1)))).to_be_bytes()
    }
}

/// Multiplies in GF(2^128) (SP 800-38D, section 6.3).
fn ghash_multiply(x: u128, y: u128) -> u128 {
    let (mut product, mut v) = (0, y);
    for bit in (0..128).rev() {
        if x >> bit & 1 == 1 {
            product ^= v;
        }
        v = v >> 1 ^ if v & 1 == 1 { 0xe1 << 120 } else { 0 };
    }
    product
}
