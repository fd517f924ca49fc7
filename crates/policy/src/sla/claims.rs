//! The SLA against what a measurement found.

use myelin_metrics::envelope::Claim;
use myelin_packet::sojourn::Histogram;
use myelin_spec::Sla;

use super::SlaWindow;

/// What the probes of a measurement saw together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Probed {
    /// Packets sent.
    pub sent: u64,
    /// Packets lost.
    pub lost: u64,
    /// From the client's send to the server's receive, at the SLA's percentile, us: of the worst row.
    pub one_way_us: Option<f64>,
    /// Round trip at the SLA's percentile, us: of the worst row.
    pub round_trip_us: Option<f64>,
}

/// Each agreed figure against the measured one. What was not agreed is left out; what was not measured does not
/// count as met. Where black boxes cut the chain's way into several sections, no sojourn tells its delay: that of the probe stands
/// in, which is longer by the way through the end hosts. `account` is that of all traffic.
pub fn claims(
    sla: &Sla,
    sojourn: &[Histogram],
    probed: &Probed,
    account: &SlaWindow,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    let percentile = sla.percentile;
    if let Some(bound_ns) = sla.latency_ns {
        let (what, measured) = match sojourn {
            [whole] => {
                let ns = whole.quantile(percentile / 100.0);
                ("sojourn", ns.map(|ns| ns as f64 / 1e3))
            }
            _ => (
                "one-way delay of the probe, black boxes included,",
                probed.one_way_us,
            ),
        };
        claims.push(claim(
            format!("sla.latency: {what} at p{percentile}, us"),
            measured,
            bound_ns as f64 / 1e3,
        ));
    }
    if let Some(bound) = sla.loss_percent {
        let measured = (probed.sent > 0).then(|| probed.lost as f64 * 100.0 / probed.sent as f64);
        claims.push(claim(
            "sla.loss: probe packets lost, %".to_owned(),
            measured,
            bound,
        ));
        claims.push(claim(
            "sla.loss: packets of all traffic lost that kept to the profile, %".to_owned(),
            account.loss_percent,
            bound,
        ));
    }
    if let Some(bound_ns) = sla.round_trip_ns {
        claims.push(claim(
            format!("sla.roundTrip: round trip at p{percentile}, us"),
            probed.round_trip_us,
            bound_ns as f64 / 1e3,
        ));
    }
    claims
}

/// Whether every claim holds.
pub fn met(claims: &[Claim]) -> bool {
    claims.iter().all(|claim| claim.holds == Some(true))
}

/// What was not measured is not kept.
fn claim(id: String, measured: Option<f64>, bound: f64) -> Claim {
    let holds = measured.is_some_and(|measured| measured <= bound);
    Claim::new(id, measured).bounded(format!("<= {bound}"), Some(holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sojourn(us: &[u64]) -> [Histogram; 1] {
        let mut histogram = Histogram::new();
        for us in us {
            histogram.record(us * 1000);
        }
        [histogram]
    }

    #[test]
    fn only_what_was_agreed_is_judged() {
        assert!(
            claims(
                &Sla::default(),
                &sojourn(&[1]),
                &Probed::default(),
                &SlaWindow::default()
            )
            .is_empty()
        );
        assert!(met(&[]));
    }

    #[test]
    fn the_percentile_decides() {
        let mut samples = vec![10; 98];
        samples.extend([1000, 1000]);
        let sla = |percentile| Sla {
            latency_ns: Some(100_000),
            percentile,
            ..Sla::default()
        };
        assert!(met(&claims(
            &sla(98.0),
            &sojourn(&samples),
            &Probed::default(),
            &SlaWindow::default()
        )));
        assert!(!met(&claims(
            &sla(99.0),
            &sojourn(&samples),
            &Probed::default(),
            &SlaWindow::default()
        )));
    }

    #[test]
    fn a_sojourn_in_sections_does_not_tell_the_delay() {
        let sla = Sla {
            latency_ns: Some(100_000),
            ..Sla::default()
        };
        let sections = [sojourn(&[1]), sojourn(&[1])].concat();
        let of = |one_way_us| {
            let probed = Probed {
                one_way_us,
                ..Probed::default()
            };
            claims(&sla, &sections, &probed, &SlaWindow::default()).remove(0)
        };
        assert_eq!(of(None).holds, Some(false));
        assert_eq!(of(Some(101.0)).holds, Some(false));
        assert_eq!(of(Some(99.0)).holds, Some(true));
        assert!(of(None).id.contains("black boxes included"));
    }

    #[test]
    fn loss_is_a_share_of_what_was_sent() {
        let sla = Sla {
            loss_percent: Some(0.1),
            ..Sla::default()
        };
        let of = |sent, lost, loss_percent| {
            let account = SlaWindow {
                loss_percent,
                ..SlaWindow::default()
            };
            met(&claims(
                &sla,
                &sojourn(&[]),
                &Probed {
                    sent,
                    lost,
                    ..Probed::default()
                },
                &account,
            ))
        };
        assert!(of(1000, 1, Some(0.1)));
        assert!(!of(1000, 2, Some(0.1)));
        // The probe's own packets may all have come through.
        assert!(!of(1000, 0, Some(0.2)));
        assert!(!of(1000, 0, None));
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        let sla = Sla {
            latency_ns: Some(1),
            loss_percent: Some(1.0),
            round_trip_ns: Some(1),
            ..Sla::default()
        };
        let claims = claims(
            &sla,
            &sojourn(&[]),
            &Probed::default(),
            &SlaWindow::default(),
        );
        assert_eq!(claims.len(), 4);
        assert!(
            claims
                .iter()
                .all(|claim| claim.holds == Some(false) && claim.measured.is_null())
        );
    }
}
