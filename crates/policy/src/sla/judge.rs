//! One second of a chain against its contract. Pure.

use myelin_spec::Sla;

use crate::sla::{SlaTerm, SlaWindow};

/// What was not kept in a second, by how many times the measured figure is above its bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Breach {
    pub(crate) term: SlaTerm,
    /// Measured: us or percent; of a core its number.
    pub(crate) measured: f64,
    /// Above 1; infinite above a bound of 0.
    pub(crate) times: f64,
}

/// Whether anything that a second can be held against is agreed.
pub(crate) fn is_agreed(sla: &Sla) -> bool {
    sla.latency_ns.is_some() || sla.loss_percent.is_some()
}

/// Whether a second tells anything of the contract: whether a packet came that kept to the profile, or left, or was lost.
pub(crate) fn is_telling(second: &SlaWindow) -> bool {
    second.packets_in > second.policed || second.packets_out > 0 || second.lost.total() > 0
}

/// What a second did not keep. What the policer dropped was above the profile, to which nothing is owed.
pub(crate) fn breaches(sla: &Sla, second: &SlaWindow) -> Vec<Breach> {
    let latency = sla.latency_ns.and_then(|ns| {
        let measured = second.sojourn?.agreed_us;
        breach(SlaTerm::Latency, measured, ns as f64 / 1e3)
    });
    let loss = sla
        .loss_percent
        .and_then(|bound| breach(SlaTerm::Loss, second.loss_percent?, bound));
    latency.into_iter().chain(loss).collect()
}

/// A worker was taken off its core, for a moment or until further notice: worse than anything that was measured meanwhile.
pub(crate) fn without_core(core: u32, is_lost: bool) -> Breach {
    Breach {
        term: SlaTerm::Core,
        measured: f64::from(core),
        times: if is_lost { f64::INFINITY } else { f64::MAX },
    }
}

fn breach(term: SlaTerm, measured: f64, bound: f64) -> Option<Breach> {
    (measured > bound).then(|| Breach {
        term,
        measured,
        times: measured / bound,
    })
}

/// Packets lost of those that kept to the profile, percent. Packets that are lost may have come in before: then at most all are.
pub(crate) fn loss_percent(packets_in: u64, policed: u64, lost: u64) -> Option<f64> {
    let conformed = packets_in.saturating_sub(policed);
    match (conformed, lost) {
        (0, 0) => None,
        (conformed, lost) => Some(lost as f64 * 100.0 / conformed.max(lost) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sla::{Losses, SlaSojourn};

    fn second(agreed_us: f64, loss_percent: Option<f64>) -> SlaWindow {
        SlaWindow {
            sojourn: Some(SlaSojourn {
                packets: 1,
                agreed_us,
                ..SlaSojourn::default()
            }),
            loss_percent,
            ..SlaWindow::default()
        }
    }

    fn sla(latency_us: Option<u64>, loss_percent: Option<f64>) -> Sla {
        Sla {
            latency_ns: latency_us.map(|us| us * 1000),
            loss_percent,
            ..Sla::default()
        }
    }

    fn terms(sla: &Sla, second: &SlaWindow) -> Vec<SlaTerm> {
        let breaches = breaches(sla, second);
        breaches.iter().map(|breach| breach.term).collect()
    }

    #[test]
    fn only_what_is_above_its_bound_is_a_breach() {
        let both = sla(Some(100), Some(1.0));
        assert!(terms(&both, &second(100.0, Some(1.0))).is_empty());
        assert_eq!(terms(&both, &second(100.1, Some(1.0))), [SlaTerm::Latency]);
        assert_eq!(terms(&both, &second(99.0, Some(1.1))), [SlaTerm::Loss]);
        let worst = breaches(&both, &second(300.0, Some(2.0)));
        assert_eq!(
            worst.iter().map(|one| one.times).collect::<Vec<_>>(),
            [3.0, 2.0]
        );
    }

    #[test]
    fn what_was_not_agreed_or_not_measured_is_none() {
        assert!(terms(&sla(None, None), &second(1e9, Some(100.0))).is_empty());
        let silent = SlaWindow::default();
        assert!(terms(&sla(Some(1), Some(0.0)), &silent).is_empty());
        assert!(!is_agreed(&sla(None, None)) && is_agreed(&sla(None, Some(0.0))));
        assert!(!is_telling(&silent));
    }

    #[test]
    fn the_profile_s_excess_is_no_loss() {
        assert_eq!(loss_percent(1000, 900, 0), Some(0.0));
        assert_eq!(loss_percent(1000, 900, 1), Some(1.0));
        assert_eq!(loss_percent(50, 50, 0), None);
        // Lost now, come in a second ago.
        assert_eq!(loss_percent(0, 0, 3), Some(100.0));
        let policed = SlaWindow {
            packets_in: 5,
            policed: 5,
            ..SlaWindow::default()
        };
        assert!(!is_telling(&policed));
        let lost = SlaWindow {
            lost: Losses {
                ring: 1,
                ..Losses::default()
            },
            ..SlaWindow::default()
        };
        assert!(is_telling(&lost));
    }

    #[test]
    fn a_bound_of_zero_allows_none() {
        let breaches = breaches(&sla(None, Some(0.0)), &second(1.0, Some(0.1)));
        assert!(breaches[0].times.is_infinite());
    }
}
