//! Compares one second of a chain with its contract. Pure.

use myelin_spec::Sla;

use crate::sla::{SlaTerm, SlaWindow};

/// A term of the contract that a second violated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Breach {
    pub(crate) term: SlaTerm,
    /// Measured value: us, percent, or the number of a core.
    pub(crate) measured: f64,
    /// Measured value divided by the bound: above 1, or infinite for a bound of 0.
    pub(crate) ratio: f64,
}

/// Whether the SLA has a term that a second can violate.
pub(crate) fn has_terms(sla: &Sla) -> bool {
    sla.latency_ns.is_some() || sla.loss_percent.is_some()
}

/// Whether the second had traffic to judge: a conforming packet arrived, left, or was lost.
pub(crate) fn has_traffic(second: &SlaWindow) -> bool {
    second.packets_in > second.policed || second.packets_out > 0 || second.lost.total() > 0
}

/// Finds the terms that a second violated. Policed packets do not count, because they were above
/// the profile.
pub(crate) fn find_breaches(sla: &Sla, second: &SlaWindow) -> Vec<Breach> {
    let latency = sla.latency_ns.and_then(|ns| {
        let measured = second.sojourn?.agreed_us;
        check_bound(SlaTerm::Latency, measured, ns as f64 / 1e3)
    });
    let loss = sla
        .loss_percent
        .and_then(|bound| check_bound(SlaTerm::Loss, second.loss_percent?, bound));
    latency.into_iter().chain(loss).collect()
}

/// Builds the breach for a worker that was moved off its core. This breach is worse than any
/// measured breach.
pub(crate) fn lost_core_breach(core: u32, is_lost: bool) -> Breach {
    Breach {
        term: SlaTerm::Core,
        measured: f64::from(core),
        ratio: if is_lost { f64::INFINITY } else { f64::MAX },
    }
}

/// Returns the breach of a term whose measured value is above its bound.
pub(crate) fn check_bound(term: SlaTerm, measured: f64, bound: f64) -> Option<Breach> {
    (measured > bound).then(|| Breach {
        term,
        measured,
        ratio: measured / bound,
    })
}

/// Computes lost packets as a share of conforming packets, percent. A lost packet may have arrived
/// in an earlier second, so the share is limited to 100 %.
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
        let breaches = find_breaches(sla, second);
        breaches.iter().map(|breach| breach.term).collect()
    }

    #[test]
    fn a_measurement_above_its_bound_is_a_breach() {
        let bounds = sla(Some(100), Some(1.0));
        assert!(terms(&bounds, &second(100.0, Some(1.0))).is_empty());
        assert_eq!(
            terms(&bounds, &second(100.1, Some(1.0))),
            [SlaTerm::Latency]
        );
        assert_eq!(terms(&bounds, &second(99.0, Some(1.1))), [SlaTerm::Loss]);
        let worst = find_breaches(&bounds, &second(300.0, Some(2.0)));
        assert_eq!(
            worst.iter().map(|breach| breach.ratio).collect::<Vec<_>>(),
            [3.0, 2.0]
        );
    }

    #[test]
    fn terms_that_are_not_agreed_or_not_measured_give_no_breach() {
        assert!(terms(&sla(None, None), &second(1e9, Some(100.0))).is_empty());
        let silent = SlaWindow::default();
        assert!(terms(&sla(Some(1), Some(0.0)), &silent).is_empty());
        assert!(!has_terms(&sla(None, None)) && has_terms(&sla(None, Some(0.0))));
        assert!(!has_traffic(&silent));
    }

    #[test]
    fn policed_packets_are_no_loss() {
        assert_eq!(loss_percent(1000, 900, 0), Some(0.0));
        assert_eq!(loss_percent(1000, 900, 1), Some(1.0));
        assert_eq!(loss_percent(50, 50, 0), None);
        // Packets that arrived in the previous second were lost in this second.
        assert_eq!(loss_percent(0, 0, 3), Some(100.0));
        let policed = SlaWindow {
            packets_in: 5,
            policed: 5,
            ..SlaWindow::default()
        };
        assert!(!has_traffic(&policed));
        let lost = SlaWindow {
            lost: Losses {
                ring: 1,
                ..Losses::default()
            },
            ..SlaWindow::default()
        };
        assert!(has_traffic(&lost));
    }

    #[test]
    fn a_bound_of_zero_allows_no_loss() {
        let breaches = find_breaches(&sla(None, Some(0.0)), &second(1.0, Some(0.1)));
        assert!(breaches[0].ratio.is_infinite());
    }
}
