//! How many frames a port is lent to receive into.
//!
//! The fill ring is first in, first out: with n frames in it, every packet comes in the frame that was used n packets ago, whose cache lines and
//! address translations are the colder the larger n is. On the build machine a round trip takes 5 % longer with 1024 frames than with 128. But
//! with few frames a burst is dropped. So few while packets come one by one, and more as soon as they pile up.

/// Lowest level: a worker that sleeps is awake in 92 us (99 % of wake-ups on the build machine), in which 92 packets arrive at 1 Mpps.
const LOWEST: u32 = 128;
/// Frames that are lent at once.
const REFILL_BATCH: u32 = 16;
/// Batches without a backlog after which the level falls.
const CALM_BATCHES: u32 = 4096;

/// The level, and how far the port is from it.
#[derive(Debug)]
pub(crate) struct FillLevel {
    level: u32,
    lowest: u32,
    highest: u32,
    calm: u32,
    /// Frames the port has, in the fill ring and in the RX ring. A predecessor may have left more than the level.
    present: u32,
}

impl FillLevel {
    /// The lowest level of a ring of `ring_size`; with zero-copy always all of it, since a driver moves frames on into its own ring.
    pub(crate) fn new(ring_size: u32, zero_copy: bool, present: u32) -> Self {
        let lowest = if zero_copy {
            ring_size
        } else {
            LOWEST.min(ring_size)
        };
        Self {
            level: lowest,
            lowest,
            highest: ring_size,
            calm: 0,
            present,
        }
    }

    /// A packet was taken from the port, with its frame.
    #[inline]
    pub(crate) fn took(&mut self) {
        self.present = self.present.saturating_sub(1);
    }

    /// Frames were lent to the port.
    #[inline]
    pub(crate) fn lent(&mut self, frames: u32) {
        self.present += frames;
    }

    /// Frames the port is to be lent. None before a whole batch is missing: the index of the fill ring lies in a cache line that the receiving
    /// core owns.
    #[inline]
    pub(crate) fn missing(&self) -> u32 {
        let missing = self.level.saturating_sub(self.present);
        if missing < REFILL_BATCH.min(self.highest / 2) {
            0
        } else {
            missing
        }
    }

    /// Takes note of how many packets still waited when a batch had been taken.
    #[inline]
    pub(crate) fn observe(&mut self, backlog: u32) {
        if backlog * 4 >= self.level {
            self.calm = 0;
            self.level = (self.level * 2).min(self.highest);
        } else if self.level > self.lowest && backlog * 16 < self.level {
            self.calm += 1;
            if self.calm == CALM_BATCHES {
                self.calm = 0;
                self.level /= 2;
            }
        } else {
            self.calm = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pile_raises_the_level_at_once_and_calm_lowers_it_slowly() {
        let mut fill = FillLevel::new(1024, false, 0);
        let mut after = |backlog| {
            fill.observe(backlog);
            fill.level
        };
        assert_eq!(after(31), 128, "a few are no pile");
        assert_eq!([32, 300, 300, 1024].map(&mut after), [256, 512, 1024, 1024]);
        let mut batches = 1;
        while after(1) > 128 {
            batches += 1;
        }
        assert_eq!(batches, 3 * CALM_BATCHES);
        assert!((0..2 * CALM_BATCHES).all(|_| after(0) == 128), "no lower");
    }

    #[test]
    fn calm_must_be_unbroken() {
        let mut fill = FillLevel::new(256, false, 0);
        fill.observe(256);
        for _ in 0..10 {
            (1..CALM_BATCHES).for_each(|_| fill.observe(3));
            fill.observe(20);
        }
        assert_eq!(fill.level, 256, "neither a pile nor calm in between");
    }

    #[test]
    fn drivers_and_short_rings_have_one_level() {
        for (size, zero_copy) in [(1024, true), (64, false)] {
            let mut fill = FillLevel::new(size, zero_copy, 0);
            fill.observe(size);
            (0..2 * CALM_BATCHES).for_each(|_| fill.observe(0));
            assert_eq!(fill.level, size);
        }
    }

    #[test]
    fn what_is_missing_follows_what_is_taken_and_lent() {
        let mut fill = FillLevel::new(1024, false, 0);
        assert_eq!(fill.missing(), 128);
        fill.lent(128);
        (1..REFILL_BATCH).for_each(|_| fill.took());
        assert_eq!(fill.missing(), 0, "not worth it yet");
        fill.took();
        assert_eq!(fill.missing(), REFILL_BATCH);
        // A predecessor left a full ring: nothing until it is down to the level.
        let mut fill = FillLevel::new(1024, false, 1024);
        (0..896 + REFILL_BATCH - 1).for_each(|_| fill.took());
        assert_eq!(fill.missing(), 0);
        fill.took();
        assert_eq!(fill.missing(), REFILL_BATCH);
    }

    #[test]
    fn the_shortest_ring_is_filled_too() {
        let fill = FillLevel::new(1, false, 0);
        assert_eq!(fill.missing(), 1);
    }
}
