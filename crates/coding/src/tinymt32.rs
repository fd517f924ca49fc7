//! TinyMT32, the pseudo-random number generator of RFC 8682, with its parameters.

const MAT1: u32 = 0x8f70_11ee;
const MAT2: u32 = 0xfc78_ff1f;
const TMAT: u32 = 0x3793_fdff;

/// The generator. Not for cryptography.
#[derive(Clone, Debug)]
pub struct TinyMt32 {
    state: [u32; 4],
}

impl TinyMt32 {
    /// Makes a generator with a seed.
    pub fn new(seed: u32) -> Self {
        let mut generator = Self {
            state: initial_state(seed),
        };
        for _ in 0..WARM_UP_STEPS {
            generator.advance();
        }
        generator
    }

    /// Returns the next number of 32 random bits.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        self.advance();
        temper(self.state)
    }

    /// Returns a number from 0 to 15: `tinymt32_rand16` of RFC 8681.
    #[inline]
    pub fn next_16(&mut self) -> u8 {
        self.next_u32() as u8 & 0x0f
    }

    /// Returns a number from 0 to 255: `tinymt32_rand256` of RFC 8681.
    #[inline]
    pub fn next_256(&mut self) -> u8 {
        self.next_u32() as u8
    }

    /// Returns a number from 1 to 255: the next number of `tinymt32_rand256` that is not 0.
    #[inline]
    pub fn next_nonzero(&mut self) -> u8 {
        loop {
            let number = self.next_256();
            if number != 0 {
                return number;
            }
        }
    }

    #[inline]
    fn advance(&mut self) {
        self.state = next_state(self.state);
    }
}

/// Eight generators that advance in parallel. Each number depends on the previous one, so a single
/// generator uses only a small part of the processor. Eight generators take little longer than one.
#[derive(Clone, Debug)]
pub(crate) struct ParallelTinyMt32 {
    /// Each of the four words of the state, for all generators.
    state: [[u32; LANES]; 4],
}

/// Number of parallel generators.
pub(crate) const LANES: usize = 8;

impl ParallelTinyMt32 {
    /// Makes one generator for each seed.
    pub(crate) fn new(seeds: [u32; LANES]) -> Self {
        let mut state = [[0; LANES]; 4];
        let [s0, s1, s2, s3] = &mut state;
        for (i, &seed) in seeds.iter().enumerate() {
            [s0[i], s1[i], s2[i], s3[i]] = initial_state(seed);
        }
        let mut generators = Self { state };
        for _ in 0..WARM_UP_STEPS {
            generators.advance();
        }
        generators
    }

    /// Returns the next number from 1 to 255 of each generator, like [`TinyMt32::next_nonzero`].
    #[inline]
    pub(crate) fn next_nonzero(&mut self) -> [u8; LANES] {
        self.advance();
        let [s0, s1, s2, s3] = &self.state;
        let mut numbers = [0; LANES];
        for (i, number) in numbers.iter_mut().enumerate() {
            *number = temper([s0[i], s1[i], s2[i], s3[i]]) as u8;
        }
        if numbers.contains(&0) {
            for (i, number) in numbers.iter_mut().enumerate().filter(|(_, n)| **n == 0) {
                *number = self.run_single(i, TinyMt32::next_nonzero);
            }
        }
        numbers
    }

    /// Calls `work` with one of the generators.
    pub(crate) fn run_single<T>(
        &mut self,
        lane: usize,
        work: impl FnOnce(&mut TinyMt32) -> T,
    ) -> T {
        let mut alone = TinyMt32 {
            state: self.state.map(|words| words[lane]),
        };
        let result = work(&mut alone);
        for (words, word) in self.state.iter_mut().zip(alone.state) {
            words[lane] = word;
        }
        result
    }

    #[inline]
    fn advance(&mut self) {
        let [s0, s1, s2, s3] = &mut self.state;
        for i in 0..LANES {
            [s0[i], s1[i], s2[i], s3[i]] = next_state([s0[i], s1[i], s2[i], s3[i]]);
        }
    }
}

/// Steps before the first number.
const WARM_UP_STEPS: usize = 8;

/// Returns the state of a seed, before any step.
#[inline]
fn initial_state(seed: u32) -> [u32; 4] {
    let mixed =
        |i: u32, before: u32| i.wrapping_add(1_812_433_253_u32.wrapping_mul(before ^ before >> 30));
    let s0 = seed;
    let s1 = MAT1 ^ mixed(1, s0);
    let s2 = MAT2 ^ mixed(2, s1);
    let s3 = TMAT ^ mixed(3, s2);
    let s0 = s0 ^ mixed(4, s3);
    let s1 = s1 ^ mixed(5, s0);
    let s2 = s2 ^ mixed(6, s1);
    let s3 = s3 ^ mixed(7, s2);
    [s0, s1, s2, s3]
}

/// Returns the state after one step.
#[inline]
fn next_state([s0, s1, s2, s3]: [u32; 4]) -> [u32; 4] {
    let x = (s0 & 0x7fff_ffff) ^ s1 ^ s2;
    let x = x ^ x << 1;
    let y = s3 ^ s3 >> 1 ^ x;
    let odd = (y & 1).wrapping_neg();
    [s1, s2 ^ odd & MAT1, x ^ y << 10 ^ odd & MAT2, y]
}

/// Returns the output of a state.
#[inline]
fn temper([s0, _, s2, s3]: [u32; 4]) -> u32 {
    let sum = s0.wrapping_add(s2 >> 8);
    s3 ^ sum ^ if sum & 1 == 0 { 0 } else { TMAT }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8682: the first 50 numbers of seed 1, which are those of TinyMT's `check32.out.txt`.
    #[rustfmt::skip]
    const NUMBERS_OF_SEED_1: [u32; 50] = [
        2_545_341_989, 981_918_433, 3_715_302_833, 2_387_538_352, 3_591_001_365,
        3_820_442_102, 2_114_400_566, 2_196_103_051, 2_783_359_912, 764_534_509,
        643_179_475, 1_822_416_315, 881_558_334, 4_207_026_366, 3_690_273_640,
        3_240_535_687, 2_921_447_122, 3_984_931_427, 4_092_394_160, 44_209_675,
        2_188_315_343, 2_908_663_843, 1_834_519_336, 3_774_670_961, 3_019_990_707,
        4_065_554_902, 1_239_765_502, 4_035_716_197, 3_412_127_188, 552_822_483,
        161_364_450, 353_727_785, 140_085_994, 149_132_008, 2_547_770_827,
        4_064_042_525, 4_078_297_538, 2_057_335_507, 622_384_752, 2_041_665_899,
        2_193_913_817, 1_080_849_512, 33_160_901, 662_956_935, 642_999_063,
        3_384_709_977, 1_723_175_122, 3_866_752_252, 521_822_317, 2_292_524_454,
    ];

    #[test]
    fn numbers_of_seed_1_match_rfc_8682() {
        let mut generator = TinyMt32::new(1);
        assert_eq!([(); 50].map(|()| generator.next_u32()), NUMBERS_OF_SEED_1);
    }

    #[test]
    fn small_numbers_are_the_lower_bits_as_in_rfc_8681() {
        let (mut bytes, mut nibbles) = (TinyMt32::new(1), TinyMt32::new(1));
        for number in NUMBERS_OF_SEED_1 {
            assert_eq!(u32::from(bytes.next_256()), number & 0xff);
            assert_eq!(u32::from(nibbles.next_16()), number & 0x0f);
        }
    }

    #[test]
    fn parallel_generators_equal_single_ones() {
        let seeds = [0, 1, 2, 77, 0xffff, 0x1_0000, u32::MAX - 1, u32::MAX];
        let mut lanes = ParallelTinyMt32::new(seeds);
        let mut alone = seeds.map(TinyMt32::new);
        for _ in 0..2000 {
            let numbers = alone.each_mut().map(TinyMt32::next_nonzero);
            assert_eq!(lanes.next_nonzero(), numbers);
            assert_eq!(lanes.run_single(3, TinyMt32::next_16), alone[3].next_16());
        }
    }
}
