//! `lossy-link`.

use super::prelude::*;

/// Most packets that a burst of losses may have in the mean.
const MAX_BURST: u64 = 1000;
const ALL_PPM: u32 = 1_000_000;

config! {
    /// Configuration of a `lossy-link` function: the model of Gilbert ("Capacity of a burst-noise channel", 1960) with a bad state that loses
    /// everything and a good one that loses nothing.
    #[derive(Copy)]
    pub struct LossyLinkConfig {
        /// share of packets that are lost, 0% to 100%
        "loss" loss_ppm: u32 = ConfigKey::new(ValueType::Percent).required().like("5%");
        /// packets in a row that are lost, in the mean; left out, each packet is lost or not whatever became of the others
        "burst" burst: Option<u32> = integer(1, MAX_BURST, "a number of packets");
        /// what the random numbers start from, so that the same packets are lost each time; left out, others are
        "seed" seed: Option<u64> = integer(0, u64::MAX, "a number");
    }
}

/// `lossy-link`.
pub static LOSSY_LINK: Kind = Kind {
    name: "lossy-link",
    class: Class::Elementary,
    user: Some(Cost::new(3.0, 0.0)),
    state: State::PerInstance,
    config: LossyLinkConfig::KEYS,
    description: "A link that loses packets, to try a chain against: each by itself, or in bursts (Gilbert's model). What is lost \
                  counts as dropped by it.",
    example: "{ name: radio, kind: lossy-link, config: { loss: 5%, burst: 3 } }",
    read: |fields| {
        let config = LossyLinkConfig::of(fields);
        check(config, fields);
        FunctionConfig::LossyLink(config)
    },
    ..Kind::BASE
};

/// Between two bursts at least one packet comes through, so bursts bound the share that can be lost.
fn check(config: LossyLinkConfig, fields: &Fields<'_>) {
    let (Some(burst), Some(loss)) = (config.burst.map(u64::from), fields.get("loss")) else {
        return;
    };
    let most_ppm = u64::from(ALL_PPM) * burst / (burst + 1);
    if config.loss_ppm < ALL_PPM && u64::from(config.loss_ppm) > most_ppm {
        let most = most_ppm as f64 / 10_000.0;
        loss.fault(
            format!("bursts of {burst} cannot lose as much"),
            format!(
                "at most {most}% with `burst: {burst}`, as at least one packet comes through between two bursts"
            ),
            "make `burst` longer, or leave it out",
        );
    }
}
