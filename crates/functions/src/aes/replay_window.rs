//! Detects replayed packets of a session.

/// Whether a packet's number arrived before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The number did not arrive before.
    New,
    /// The number arrived before.
    Replayed,
    /// The number is older than the window, so it may have arrived before.
    TooOld,
}

/// Records in a ring of words which of the last `size` numbers arrived (RFC 4303, section 3.4.3).
/// Clears a whole word at a time (RFC 6479).
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    size: u64,
    newest: Option<u64>,
    /// The number of words is a power of two. All words but one contain at least `size` bits.
    words: Box<[u64]>,
}

impl ReplayWindow {
    /// Makes an empty window of `size` packets. With size 0, every packet is new.
    pub fn new(size: u32) -> Self {
        let words = size.div_ceil(64) as usize + 1;
        Self {
            size: size.into(),
            newest: None,
            words: vec![0; words.next_power_of_two()].into(),
        }
    }

    /// Checks whether `number` is new.
    #[inline]
    pub fn check(&self, number: u64) -> Freshness {
        match self.newest {
            Some(newest) if number <= newest && self.size > 0 => {
                if newest - number >= self.size {
                    Freshness::TooOld
                } else if self.words[self.word_index(number)] & 1 << (number % 64) != 0 {
                    Freshness::Replayed
                } else {
                    Freshness::New
                }
            }
            _ => Freshness::New,
        }
    }

    /// Records the packet with this number, which is new according to [`check`](Self::check).
    #[inline]
    pub fn record(&mut self, number: u64) {
        let newest = self.newest.unwrap_or(0);
        if number >= newest {
            let new_words = (number / 64 - newest / 64).min(self.words.len() as u64);
            for ahead in 0..new_words {
                // Clear downwards from the new end, so that no number overflows.
                let word = self.word_index(number - 64 * ahead);
                self.words[word] = 0;
            }
            self.newest = Some(number);
        }
        let word = self.word_index(number);
        self.words[word] |= 1 << (number % 64);
    }

    /// Removes all numbers.
    pub fn clear(&mut self) {
        self.newest = None;
        self.words.fill(0);
    }

    #[inline]
    fn word_index(&self, number: u64) -> usize {
        (number / 64) as usize & (self.words.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Checks `number` against `seen`, the set of all numbers that arrived.
    fn check_with_set(seen: &BTreeSet<u64>, size: u32, number: u64) -> Freshness {
        let newest = seen.last().copied().unwrap_or(0);
        if size > 0 && newest >= number && newest - number >= size.into() {
            Freshness::TooOld
        } else if size > 0 && seen.contains(&number) {
            Freshness::Replayed
        } else {
            Freshness::New
        }
    }

    /// Generates steps of all sizes, forwards and backwards, also at the end of the number range.
    fn numbers() -> impl Strategy<Value = Vec<u64>> {
        let step = prop_oneof![-3..8_i64, -70..70_i64, -3000..3000_i64, any::<i64>()];
        let first = prop_oneof![Just(0_u64), Just(u64::MAX), any::<u64>()];
        (first, prop::collection::vec(step, 0..200)).prop_map(|(first, steps)| {
            steps
                .iter()
                .scan(first, |number, step| {
                    *number = number.saturating_add_signed(*step);
                    Some(*number)
                })
                .collect()
        })
    }

    #[test]
    fn window_has_exactly_the_configured_size() {
        for size in [1, 63, 64, 65, 1024, 65_536] {
            let mut window = ReplayWindow::new(size);
            window.record(1_000_000);
            let oldest = 1_000_000 - u64::from(size) + 1;
            assert_eq!(window.check(oldest - 1), Freshness::TooOld, "{size}");
            assert_eq!(
                window.check(oldest) == Freshness::New,
                size > 1,
                "{size}: the only number in the window"
            );
        }
    }

    proptest! {
        #[test]
        fn window_equals_a_set_of_all_numbers(
            numbers in numbers(),
            size in prop_oneof![0..3_u32, 60..70_u32, Just(1024_u32)],
        ) {
            let mut window = ReplayWindow::new(size);
            let mut seen = BTreeSet::new();
            for number in numbers {
                let arrival = window.check(number);
                prop_assert_eq!(arrival, check_with_set(&seen, size, number), "{}", number);
                if arrival == Freshness::New {
                    window.record(number);
                    seen.insert(number);
                }
            }
            window.clear();
            prop_assert_eq!(window.check(0), Freshness::New);
        }
    }
}
