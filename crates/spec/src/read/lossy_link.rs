//! Reads the configuration of a `lossy-link`.

use super::field::{Field, Fields};
use crate::error::{Fault, Report};
use crate::lossy_link::{LossyLinkConfig, MAX_BURST};
use crate::units::parse_percent;

const PPM_PER_PERCENT: f64 = 10_000.0;
const ALL_PPM: u32 = 1_000_000;

pub(super) fn read(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<LossyLinkConfig> {
    let loss = fields.get("loss")?;
    let loss_ppm = loss_ppm(&loss, report);
    let burst = fields
        .get("burst")
        .and_then(|field| field.integer(report, 1..=MAX_BURST.into(), "a number of packets"))
        .map(|burst| burst as u32);
    let seed = fields
        .get("seed")
        .and_then(|field| field.integer(report, 0..=u64::MAX, "a number"));
    let config = LossyLinkConfig {
        loss_ppm: loss_ppm?,
        burst,
        seed,
    };
    check(&config, &loss, report);
    Some(config)
}

fn loss_ppm(field: &Field<'_>, report: &mut Report<'_>) -> Option<u32> {
    let text = field.text(report, "a percentage (0% to 100%)", "write for example 5%")?;
    let percent = parse_percent(text).map_err(|error| field.unit_fault(report, error));
    Some((percent.ok()? * PPM_PER_PERCENT).round() as u32)
}

/// Between two bursts at least one packet comes through, so bursts bound the share that can be lost.
fn check(config: &LossyLinkConfig, loss: &Field<'_>, report: &mut Report<'_>) {
    let Some(burst) = config.burst else { return };
    let most_ppm = u64::from(ALL_PPM) * u64::from(burst) / (u64::from(burst) + 1);
    if config.loss_ppm < ALL_PPM && u64::from(config.loss_ppm) > most_ppm {
        let most = most_ppm as f64 / PPM_PER_PERCENT;
        let fault = Fault::new(
            format!("bursts of {burst} cannot lose as much"),
            format!(
                "at most {most}% with `burst: {burst}`, as at least one packet comes through between two bursts"
            ),
            "make `burst` longer, or leave it out",
        );
        loss.fault(report, fault);
    }
}
