//! `lossy-link`.

use super::prelude::*;

/// The longest mean burst of losses, packets.
const MAX_BURST: u64 = 1000;
const ALL_PPM: u32 = 1_000_000;

config! {
    /// Configuration of a `lossy-link` function: the model of Gilbert ("Capacity of a burst-noise
    /// channel", 1960). The bad state loses every packet, the good state none.
    #[derive(Copy)]
    pub struct LossyLinkConfig {
        /// The share of packets to lose, 0% to 100%.
        "loss" loss_ppm: u32 = ConfigKey::new(ValueType::Percent).required().with_hint("5%");
        /// The mean number of packets lost in a row. Without it, losses are independent of each
        /// other.
        "burst" burst: Option<u32> = integer(1, MAX_BURST, "a number of packets");
        /// The seed of the random numbers. The same seed loses the same packets at each start;
        /// without it, the seed is random.
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
    description: "Loses packets at random, to test a chain against loss. Loses each packet independently, or \
                  in bursts (Gilbert's model). Lost packets count as dropped by this function.",
    example: "{ name: radio, kind: lossy-link, config: { loss: 5%, burst: 3 } }",
    read: |fields| {
        let config = LossyLinkConfig::from_fields(fields);
        check(config, fields);
        FunctionConfig::LossyLink(config)
    },
    ..Kind::BASE
};

/// Checks `loss` against `burst`: at least one packet passes between two bursts, which limits the
/// share of losses.
fn check(config: LossyLinkConfig, fields: &Fields<'_>) {
    let (Some(burst), Some(loss)) = (config.burst.map(u64::from), fields.get("loss")) else {
        return;
    };
    let most_ppm = u64::from(ALL_PPM) * burst / (burst + 1);
    if config.loss_ppm < ALL_PPM && u64::from(config.loss_ppm) > most_ppm {
        let most = most_ppm as f64 / 10_000.0;
        loss.fault(
            format!("the loss is too high for bursts of {burst} packets"),
            format!("at most {most}% with `burst: {burst}`: one packet passes between two bursts"),
            "write a longer `burst`, or remove the key",
        );
    }
}
