//! The field GF(2^8) of RFC 8681 and RFC 5510 (section 8.1), in which 2 is a primitive element.
//!
//! Addition is XOR. This module computes tables at compile time: the products, to which tests
//! compare the fast kernels, and the tables that the kernels read.

/// The polynomial that reduces products: x^8 + x^4 + x^3 + x^2 + 1.
pub const POLYNOMIAL: u16 = 0x11d;

/// `PRODUCTS[a][b]` is a times b.
pub(crate) static PRODUCTS: [[u8; 256]; 256] = compute_products();

/// `NIBBLES[c]` contains c times 0 to 15, then c times 0x00, 0x10, to 0xf0. A product is the sum of
/// one entry of each half.
#[cfg(target_arch = "x86_64")]
pub(crate) static NIBBLES: [[u8; 32]; 256] = compute_nibbles();

/// `MATRICES[c]` is multiplication by c as a bit matrix for `gf2p8affineqb`. Byte 7 - i is a mask:
/// bit i of the product is the parity of the factor's bits in this mask.
#[cfg(target_arch = "x86_64")]
pub(crate) static MATRICES: [u64; 256] = compute_matrices();

/// Returns the product of two elements.
#[inline]
pub fn mul(a: u8, b: u8) -> u8 {
    PRODUCTS[a as usize][b as usize]
}

/// Returns the inverse of `a`. Returns 0 for 0, which has no inverse.
#[inline]
pub fn inverse(a: u8) -> u8 {
    static INVERSES: [u8; 256] = compute_inverses();
    INVERSES[a as usize]
}

/// Multiplies by the definition: shift, add, reduce.
const fn mul_by_definition(a: u8, b: u8) -> u8 {
    let (mut shifted, mut rest, mut product) = (a as u16, b, 0_u16);
    while rest != 0 {
        if rest & 1 != 0 {
            product ^= shifted;
        }
        shifted <<= 1;
        if shifted & 0x100 != 0 {
            shifted ^= POLYNOMIAL;
        }
        rest >>= 1;
    }
    product as u8
}

#[allow(clippy::large_stack_arrays)] // computed at compile time
const fn compute_products() -> [[u8; 256]; 256] {
    let mut table = [[0; 256]; 256];
    let mut a = 0;
    while a < 256 {
        let mut b = 0;
        while b <= a {
            let product = mul_by_definition(a as u8, b as u8);
            table[a][b] = product;
            table[b][a] = product;
            b += 1;
        }
        a += 1;
    }
    table
}

const fn compute_inverses() -> [u8; 256] {
    let mut table = [0; 256];
    let mut a = 1;
    while a < 256 {
        // a^255 is 1 for every element but 0. So the inverse is a^254, which is the product of a^2,
        // a^4, to a^128.
        let (mut inverse, mut square, mut i) = (1, a as u8, 0);
        while i < 7 {
            square = mul_by_definition(square, square);
            inverse = mul_by_definition(inverse, square);
            i += 1;
        }
        table[a] = inverse;
        a += 1;
    }
    table
}

#[cfg(target_arch = "x86_64")]
const fn compute_nibbles() -> [[u8; 32]; 256] {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[c][nibble] = mul_by_definition(c as u8, nibble as u8);
            table[c][16 + nibble] = mul_by_definition(c as u8, (nibble as u8) << 4);
            nibble += 1;
        }
        c += 1;
    }
    table
}

#[cfg(target_arch = "x86_64")]
const fn compute_matrices() -> [u64; 256] {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut column = 0;
        while column < 8 {
            // The summand of the product for the factor's bit `column`.
            let added = mul_by_definition(c as u8, 1 << column);
            let mut row = 0;
            while row < 8 {
                let bit = (added >> row & 1) as u64;
                table[c] |= bit << ((7 - row) * 8 + column);
                row += 1;
            }
            column += 1;
        }
        c += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplies with logarithms and exponentials to base 2, as in RFC 5510, section 8.1.
    #[test]
    fn products_equal_those_of_logarithms() {
        let (mut exponential, mut logarithm) = ([0_u8; 510], [0_usize; 256]);
        let mut power = 1_u16;
        for i in 0..255 {
            exponential[i] = power as u8;
            exponential[i + 255] = power as u8;
            logarithm[power as usize] = i;
            power <<= 1;
            if power > 255 {
                power ^= POLYNOMIAL;
            }
        }
        assert_eq!(power, 1, "2 is primitive");
        for a in 0..=255 {
            for b in 0..=255 {
                let expected = match (a, b) {
                    (0, _) | (_, 0) => 0,
                    _ => exponential[logarithm[a as usize] + logarithm[b as usize]],
                };
                assert_eq!(mul(a, b), expected, "{a} times {b}");
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        assert_eq!(inverse(0), 0);
        for a in 1..=255 {
            assert_eq!(mul(a, inverse(a)), 1);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn kernel_tables_equal_the_products() {
        for c in 0..=255_u8 {
            for b in 0..=255_u8 {
                let halves = &NIBBLES[c as usize];
                let by_nibbles = halves[usize::from(b & 15)] ^ halves[usize::from(16 + (b >> 4))];
                assert_eq!(by_nibbles, mul(c, b));
                let rows = MATRICES[c as usize].to_be_bytes();
                let by_matrix = (0..8).map(|i| ((rows[i] & b).count_ones() as u8 & 1) << i);
                assert_eq!(by_matrix.sum::<u8>(), mul(c, b));
            }
        }
    }
}
