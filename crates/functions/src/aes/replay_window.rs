//! Which packets of a session came already.

/// What a packet's number says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It did not come before.
    New,
    /// It came before.
    Replayed,
    /// It lies behind the window: nobody knows whether it came.
    TooOld,
}

/// Remembers the numbers from the newest packet down to as many below it as the window is long: RFC 4303, section 3.4.3, kept
/// as a ring of words of which a whole one is cleared at a time (RFC 6479).
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    size: u64,
    newest: Option<u64>,
    /// As many as a power of two, and more than `size` bits in all but one.
    words: Box<[u64]>,
}

impl ReplayWindow {
    /// A window of that many packets that has seen none; of none, it takes every packet for new.
    pub fn new(size: u32) -> Self {
        let words = size.div_ceil(64) as usize + 1;
        Self {
            size: size.into(),
            newest: None,
            words: vec![0; words.next_power_of_two()].into(),
        }
    }

    /// What `number` says of its packet.
    #[inline]
    pub fn look(&self, number: u64) -> Arrival {
        match self.newest {
            Some(newest) if number <= newest && self.size > 0 => {
                if newest - number >= self.size {
                    Arrival::TooOld
                } else if self.words[self.word(number)] & 1 << (number % 64) != 0 {
                    Arrival::Replayed
                } else {
                    Arrival::New
                }
            }
            _ => Arrival::New,
        }
    }

    /// Notes that the packet with this number came. It is new, as [`look`](Self::look) says.
    #[inline]
    pub fn note(&mut self, number: u64) {
        let newest = self.newest.unwrap_or(0);
        if number >= newest {
            let new_words = (number / 64 - newest / 64).min(self.words.len() as u64);
            for ahead in 0..new_words {
                // From the new end downwards, so that no number overflows.
                let word = self.word(number - 64 * ahead);
                self.words[word] = 0;
            }
            self.newest = Some(number);
        }
        let word = self.word(number);
        self.words[word] |= 1 << (number % 64);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.newest = None;
        self.words.fill(0);
    }

    #[inline]
    fn word(&self, number: u64) -> usize {
        (number / 64) as usize & (self.words.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The same in plain: all numbers that ever came.
    fn reference(seen: &BTreeSet<u64>, size: u32, number: u64) -> Arrival {
        let newest = seen.last().copied().unwrap_or(0);
        if size > 0 && newest >= number && newest - number >= size.into() {
            Arrival::TooOld
        } else if size > 0 && seen.contains(&number) {
            Arrival::Replayed
        } else {
            Arrival::New
        }
    }

    /// Steps of all sizes, forwards and backwards, also at the end of the numbers.
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
    fn the_window_is_exactly_as_long_as_asked() {
        for size in [1, 63, 64, 65, 1024, 65_536] {
            let mut window = ReplayWindow::new(size);
            window.note(1_000_000);
            let oldest = 1_000_000 - u64::from(size) + 1;
            assert_eq!(window.look(oldest - 1), Arrival::TooOld, "{size}");
            assert_eq!(
                window.look(oldest) == Arrival::New,
                size > 1,
                "{size}: its own number, when that is all there is"
            );
        }
    }

    proptest! {
        #[test]
        fn it_remembers_what_a_list_of_all_numbers_does(
            numbers in numbers(),
            size in prop_oneof![0..3_u32, 60..70_u32, Just(1024_u32)],
        ) {
            let mut window = ReplayWindow::new(size);
            let mut seen = BTreeSet::new();
            for number in numbers {
                let arrival = window.look(number);
                prop_assert_eq!(arrival, reference(&seen, size, number), "{}", number);
                if arrival == Arrival::New {
                    window.note(number);
                    seen.insert(number);
                }
            }
            window.clear();
            prop_assert_eq!(window.look(0), Arrival::New);
        }
    }
}
