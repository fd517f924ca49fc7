//! `lossy-link`: drops single packets or bursts of packets, as a radio link does.

use fastrand::Rng;
use myelin_spec::LossyLinkConfig;

use crate::{Emitter, Function, Packet, Verdict};

/// Gilbert's model: the bad state loses every packet, the good state none. Without bursts, the next
/// state does not depend on the current state.
#[derive(Debug)]
pub struct LossyLink {
    random: Rng,
    is_bad: bool,
    /// Probability of a loss after a forwarded packet.
    to_bad: f64,
    /// Probability of a loss after a loss.
    stay_bad: f64,
}

impl LossyLink {
    /// Makes a link in the good state.
    pub fn new(config: LossyLinkConfig) -> Self {
        let loss = (f64::from(config.loss_ppm) / 1e6).min(1.0);
        let (to_bad, stay_bad) = match config.burst {
            // All packets are in one burst.
            _ if loss >= 1.0 => (1.0, 1.0),
            None => (loss, loss),
            // In equilibrium, as many bursts begin as end: (1 - loss) * to_bad = loss / burst.
            Some(burst) => {
                let ends = 1.0 / f64::from(burst.max(1));
                (loss * ends / (1.0 - loss), 1.0 - ends)
            }
        };
        Self {
            random: config.seed.map_or_else(Rng::new, Rng::with_seed),
            is_bad: false,
            to_bad,
            stay_bad,
        }
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

impl Function for LossyLink {
    fn process(&mut self, _packet: &mut Packet<'_>, _emitter: &mut dyn Emitter) -> Verdict {
        if self.draw_loss() {
            Verdict::Drop
        } else {
            Verdict::Forward
        }
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "the ends are exact")]
mod tests {
    use super::*;

    const PACKETS: u32 = 400_000;

    /// Measures the share of lost packets, and the mean burst length.
    fn measure_losses(loss_ppm: u32, burst: Option<u32>) -> (f64, f64) {
        let mut link = LossyLink::new(LossyLinkConfig {
            loss_ppm,
            burst,
            seed: Some(7),
        });
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
        for (loss_ppm, burst) in [
            (10_000, None),
            (200_000, None),
            (50_000, Some(1)),
            (10_000, Some(4)),
            (200_000, Some(8)),
        ] {
            let (share, length) = measure_losses(loss_ppm, burst);
            let wanted = f64::from(loss_ppm) / 1e6;
            assert!((share / wanted - 1.0).abs() < 0.06, "{share} of {wanted}");
            let wanted = burst.map_or(1.0 / (1.0 - wanted), f64::from);
            assert!((length / wanted - 1.0).abs() < 0.06, "{length} of {wanted}");
        }
    }

    #[test]
    fn zero_and_full_loss_are_exact() {
        for burst in [None, Some(5)] {
            assert_eq!(measure_losses(0, burst).0, 0.0);
            assert_eq!(measure_losses(1_000_000, burst).0, 1.0);
        }
    }

    #[test]
    fn equal_seeds_give_equal_losses() {
        let config = LossyLinkConfig {
            loss_ppm: 500_000,
            burst: None,
            seed: Some(1),
        };
        let losses = |config| {
            let mut link = LossyLink::new(config);
            (0..100).map(|_| link.draw_loss()).collect::<Vec<_>>()
        };
        assert_eq!(losses(config), losses(config));
        let other = LossyLinkConfig {
            seed: Some(2),
            ..config
        };
        assert_ne!(losses(config), losses(other));
    }
}
