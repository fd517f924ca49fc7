//! A lossy link: drops single packets or bursts of packets, as a radio link does.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// One million, the unit of a share.
const MILLION: f64 = 1e6;

/// The losses of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Share of lost packets, parts per million. Above one million equals one million.
    pub ppm: u32,
    /// Mean number of packets lost in a row. `None`: the losses are independent.
    pub burst: Option<u32>,
}

/// Gilbert's model: the bad state loses every packet, the good state none. Without bursts, the next
/// state does not depend on the current state.
#[derive(Debug)]
pub struct LossModel {
    random: Rng,
    is_bad: bool,
    /// Probability of a loss after a forwarded packet.
    to_bad: f64,
    /// Probability of a loss after a loss.
    stay_bad: f64,
}

impl LossModel {
    /// Makes a link in the good state. Equal seeds give equal losses.
    pub fn new(loss: Loss, seed: u64) -> Self {
        let mut model = Self {
            random: Rng::with_seed(seed),
            is_bad: false,
            to_bad: 0.0,
            stay_bad: 0.0,
        };
        model.set_loss(loss);
        model
    }

    /// Changes the losses. The state and the random numbers continue.
    pub fn set_loss(&mut self, loss: Loss) {
        let share = (f64::from(loss.ppm) / MILLION).min(1.0);
        (self.to_bad, self.stay_bad) = match loss.burst {
            // All packets are in one burst.
            _ if share >= 1.0 => (1.0, 1.0),
            // A change to no loss ends a burst.
            _ if loss.ppm == 0 => (0.0, 0.0),
            None => (share, share),
            // In equilibrium, as many bursts begin as end: (1 - share) * to_bad = share / burst.
            Some(burst) => {
                let ends = 1.0 / f64::from(burst.max(1));
                (share * ends / (1.0 - share), 1.0 - ends)
            }
        };
    }

    /// Draws the next state. Returns whether the link loses the packet.
    #[inline]
    pub fn draw_loss(&mut self) -> bool {
        let probability = if self.is_bad {
            self.stay_bad
        } else {
            self.to_bad
        };
        self.is_bad = self.random.f64() < probability;
        self.is_bad
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "the ends are exact")]
mod tests {
    use super::*;

    const PACKETS: u32 = 400_000;

    /// Measures the share of lost packets, and the mean burst length.
    fn measure_losses(ppm: u32, burst: Option<u32>) -> (f64, f64) {
        let mut link = LossModel::new(Loss { ppm, burst }, 7);
        let (mut lost, mut bursts, mut before) = (0_u32, 0_u32, false);
        for _ in 0..PACKETS {
            let now = link.draw_loss();
            lost += u32::from(now);
            bursts += u32::from(now && !before);
            before = now;
        }
        (
            f64::from(lost) / f64::from(PACKETS),
            f64::from(lost) / f64::from(bursts.max(1)),
        )
    }

    #[test]
    fn loss_rate_and_burst_length_match_the_configuration() {
        for (ppm, burst) in [
            (10_000, None),
            (200_000, None),
            (50_000, Some(1)),
            (10_000, Some(4)),
            (200_000, Some(8)),
        ] {
            let (share, length) = measure_losses(ppm, burst);
            let wanted = f64::from(ppm) / 1e6;
            assert!((share / wanted - 1.0).abs() < 0.06, "{share} of {wanted}");
            let wanted = burst.map_or(1.0 / (1.0 - wanted), f64::from);
            assert!((length / wanted - 1.0).abs() < 0.06, "{length} of {wanted}");
        }
    }

    #[test]
    fn independent_losses_stay_within_their_binomial_bounds() {
        for ppm in [1_000, 10_000, 100_000, 500_000, 999_000] {
            let share = f64::from(ppm) / 1e6;
            let (packets, measured) = (f64::from(PACKETS), measure_losses(ppm, None).0);
            // The seed is fixed. Four standard deviations: a right generator fails one in 15 000.
            let bound = 4.0 * (share * (1.0 - share) / packets).sqrt();
            assert!((measured - share).abs() < bound, "{measured} of {share}");
        }
    }

    #[test]
    fn zero_and_full_loss_are_exact_also_after_a_change() {
        for burst in [None, Some(5)] {
            assert_eq!(measure_losses(0, burst).0, 0.0);
            assert_eq!(measure_losses(1_000_000, burst).0, 1.0);
            let mut link = LossModel::new(
                Loss {
                    ppm: 500_000,
                    burst,
                },
                3,
            );
            (0..100).for_each(|_| _ = link.draw_loss());
            link.set_loss(Loss {
                ppm: 1_000_000,
                burst,
            });
            assert!((0..1000).all(|_| link.draw_loss()));
            link.set_loss(Loss { ppm: 0, burst });
            assert!((0..1000).all(|_| !link.draw_loss()));
        }
    }

    #[test]
    fn equal_seeds_give_equal_losses() {
        let losses = |seed| {
            let loss = Loss {
                ppm: 500_000,
                burst: None,
            };
            let mut link = LossModel::new(loss, seed);
            (0..100).map(|_| link.draw_loss()).collect::<Vec<_>>()
        };
        assert_eq!(losses(1), losses(1));
        assert_ne!(losses(1), losses(2));
    }
}
