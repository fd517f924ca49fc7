//! The SLA against what was measured. Pure.

use myelin_packet::sojourn::Histogram;
use myelin_probe::envelope::Claim;
use myelin_spec::Sla;

/// What the probes of a measurement saw together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Probed {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Round trip at the SLA's percentile, us: of the worst row.
    pub(crate) round_trip_us: Option<f64>,
}

/// Each agreed figure against the measured one. What was not agreed is left out; what was not measured does not
/// count as met.
pub(crate) fn claims(sla: &Sla, sojourn: &Histogram, probed: &Probed) -> Vec<Claim> {
    let mut claims = Vec::new();
    let percentile = sla.percentile;
    if let Some(bound_ns) = sla.latency_ns {
        let measured = sojourn
            .quantile(percentile / 100.0)
            .map(|ns| ns as f64 / 1e3);
        claims.push(claim(
            format!("sla.latency: sojourn at p{percentile}, us"),
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
pub(crate) fn met(claims: &[Claim]) -> bool {
    claims.iter().all(|claim| claim.holds == Some(true))
}

fn claim(id: String, measured: Option<f64>, bound: f64) -> Claim {
    match measured {
        Some(measured) => Claim::figure_at_most(id, serde_json::Value::Null, measured, bound),
        None => Claim {
            id,
            paper: serde_json::Value::Null,
            measured: serde_json::Value::Null,
            bound: format!("<= {bound}").into(),
            holds: Some(false),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sojourn(us: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        for us in us {
            histogram.record(us * 1000);
        }
        histogram
    }

    #[test]
    fn only_what_was_agreed_is_judged() {
        assert!(claims(&Sla::default(), &sojourn(&[1]), &Probed::default()).is_empty());
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
            &Probed::default()
        )));
        assert!(!met(&claims(
            &sla(99.0),
            &sojourn(&samples),
            &Probed::default()
        )));
    }

    #[test]
    fn loss_is_a_share_of_what_was_sent() {
        let sla = Sla {
            loss_percent: Some(0.1),
            ..Sla::default()
        };
        let of = |sent, lost| {
            met(&claims(
                &sla,
                &sojourn(&[]),
                &Probed {
                    sent,
                    lost,
                    round_trip_us: None,
                },
            ))
        };
        assert!(of(1000, 1));
        assert!(!of(1000, 2));
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        let sla = Sla {
            latency_ns: Some(1),
            loss_percent: Some(1.0),
            round_trip_ns: Some(1),
            ..Sla::default()
        };
        let claims = claims(&sla, &sojourn(&[]), &Probed::default());
        assert_eq!(claims.len(), 3);
        assert!(
            claims
                .iter()
                .all(|claim| claim.holds == Some(false) && claim.measured.is_null())
        );
    }
}
