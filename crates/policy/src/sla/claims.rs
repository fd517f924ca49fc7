//! Compares an SLA with the results of a measurement.

use myelin_metrics::envelope::Claim;
use myelin_packet::sojourn::Histogram;
use myelin_spec::Sla;

use super::SlaWindow;

/// The packets and delays of all probes of a measurement.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProbeTotals {
    /// Packets that the probes sent.
    pub sent: u64,
    /// Packets of the probes that were lost.
    pub lost: u64,
    /// Delay from the client's send to the server's receive, at the SLA's percentile, of the worst
    /// probe, us.
    pub one_way_us: Option<f64>,
    /// Round trip at the SLA's percentile, of the worst probe, us.
    pub round_trip_us: Option<f64>,
}

/// Compares each figure of the SLA with the measured figure. A figure that the SLA omits gives no
/// claim. A claim without a measured figure does not hold. If black boxes divide the chain into
/// sections, no sojourn covers the whole chain. Then the claim compares the probe's one-way delay,
/// which includes the end hosts. `account` covers all traffic.
pub fn check_claims(
    sla: &Sla,
    sojourn: &[Histogram],
    probed: &ProbeTotals,
    account: &SlaWindow,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    let percentile = sla.percentile;
    if let Some(bound_ns) = sla.latency_ns {
        let (figure, measured) = match sojourn {
            [whole] => {
                let ns = whole.quantile(percentile / 100.0);
                ("sojourn", ns.map(|ns| ns as f64 / 1e3))
            }
            _ => (
                "one-way delay of the probe, black boxes included,",
                probed.one_way_us,
            ),
        };
        claims.push(make_claim(
            format!("sla.latency: {figure} at p{percentile}, us"),
            measured,
            bound_ns as f64 / 1e3,
        ));
    }
    if let Some(bound) = sla.loss_percent {
        let measured = (probed.sent > 0).then(|| probed.lost as f64 * 100.0 / probed.sent as f64);
        claims.push(make_claim(
            "sla.loss: probe packets lost, %".to_owned(),
            measured,
            bound,
        ));
        claims.push(make_claim(
            "sla.loss: conforming packets lost, all traffic, %".to_owned(),
            account.loss_percent,
            bound,
        ));
    }
    if let Some(bound_ns) = sla.round_trip_ns {
        claims.push(make_claim(
            format!("sla.roundTrip: round trip at p{percentile}, us"),
            probed.round_trip_us,
            bound_ns as f64 / 1e3,
        ));
    }
    claims
}

/// Whether every claim holds.
pub fn all_hold(claims: &[Claim]) -> bool {
    claims.iter().all(|claim| claim.holds == Some(true))
}

/// Makes a claim. A claim without a measured value does not hold.
fn make_claim(id: String, measured: Option<f64>, bound: f64) -> Claim {
    let holds = measured.is_some_and(|measured| measured <= bound);
    Claim::new(id, measured).with_bound(format!("<= {bound}"), Some(holds))
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
    fn figures_outside_the_sla_give_no_claim() {
        assert!(
            check_claims(
                &Sla::default(),
                &sojourn(&[1]),
                &ProbeTotals::default(),
                &SlaWindow::default()
            )
            .is_empty()
        );
        assert!(all_hold(&[]));
    }

    #[test]
    fn latency_is_compared_at_the_percentile() {
        let mut samples = vec![10; 98];
        samples.extend([1000, 1000]);
        let sla = |percentile| Sla {
            latency_ns: Some(100_000),
            percentile,
            ..Sla::default()
        };
        assert!(all_hold(&check_claims(
            &sla(98.0),
            &sojourn(&samples),
            &ProbeTotals::default(),
            &SlaWindow::default()
        )));
        assert!(!all_hold(&check_claims(
            &sla(99.0),
            &sojourn(&samples),
            &ProbeTotals::default(),
            &SlaWindow::default()
        )));
    }

    #[test]
    fn a_chain_in_sections_is_judged_by_the_probe_delay() {
        let sla = Sla {
            latency_ns: Some(100_000),
            ..Sla::default()
        };
        let sections = [sojourn(&[1]), sojourn(&[1])].concat();
        let check = |one_way_us| {
            let probed = ProbeTotals {
                one_way_us,
                ..ProbeTotals::default()
            };
            check_claims(&sla, &sections, &probed, &SlaWindow::default()).remove(0)
        };
        assert_eq!(check(None).holds, Some(false));
        assert_eq!(check(Some(101.0)).holds, Some(false));
        assert_eq!(check(Some(99.0)).holds, Some(true));
        assert!(check(None).id.contains("black boxes included"));
    }

    #[test]
    fn loss_is_a_share_of_sent_packets() {
        let sla = Sla {
            loss_percent: Some(0.1),
            ..Sla::default()
        };
        let check = |sent, lost, loss_percent| {
            let account = SlaWindow {
                loss_percent,
                ..SlaWindow::default()
            };
            all_hold(&check_claims(
                &sla,
                &sojourn(&[]),
                &ProbeTotals {
                    sent,
                    lost,
                    ..ProbeTotals::default()
                },
                &account,
            ))
        };
        assert!(check(1000, 1, Some(0.1)));
        assert!(!check(1000, 2, Some(0.1)));
        // The probe's own packets may all have arrived.
        assert!(!check(1000, 0, Some(0.2)));
        assert!(!check(1000, 0, None));
    }

    #[test]
    fn unmeasured_figures_do_not_hold() {
        let sla = Sla {
            latency_ns: Some(1),
            loss_percent: Some(1.0),
            round_trip_ns: Some(1),
            ..Sla::default()
        };
        let claims = check_claims(
            &sla,
            &sojourn(&[]),
            &ProbeTotals::default(),
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
