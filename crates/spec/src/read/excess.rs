//! Reads the treatment of traffic above the profile (`spec.sla.excess`).

use myelin_packet::traffic::Bucket;

use crate::keys::field::{Field, Fields};
use crate::keys::{DURATION, config};
use crate::sla::{Enforce, FULL_FRAME, MAX_SHAPER_QUEUE, Sla, traffic_of};
use crate::units;

config! {
    /// The treatment of traffic above the profile.
    pub(super) struct Excess {
        /// The longest wait of excess in the shaper, after which it leaves at `rate`. The policer
        /// drops what would wait longer.
        "queue" queue_ns: Option<u64> = DURATION.with_hint("20ms").required(), from read_queue;
    }
}

fn read_queue(fields: &Fields<'_>) -> Option<u64> {
    let field = fields.required("queue", "the longest wait", "20ms");
    // An absent `excess` is an empty mapping, too.
    field?.quantity(&units::DURATION, "20ms")
}

impl Excess {
    /// Returns the enforcement: excess that waits needs the policer, which limits the queue, and
    /// the shaper, which has the queue.
    pub(super) fn enforce(&self, given: Enforce) -> Enforce {
        match (self.queue_ns, given) {
            (Some(_), Enforce::Auto) => Enforce::Both,
            _ => given,
        }
    }
}

/// Reports an `excess` that contradicts another key, and a queue that holds too little or too much.
pub(super) fn check(
    sla: &Sla,
    enforce: Enforce,
    field: &Field<'_>,
    policing_burst: Option<&Field<'_>>,
) {
    let Some(wait_ns) = sla.excess_queue_ns else {
        return;
    };
    if !matches!(enforce, Enforce::Auto | Enforce::Both) {
        field.fault(
            format!("excess waits between the policer and the shaper, but `enforce: {enforce}` lacks one of them"),
            "`enforce: both`, or no `enforce`",
            "remove `enforce`, or remove `excess`",
        );
    }
    if let Some(policing_burst) = policing_burst {
        policing_burst.fault(
            "`excess` and `policingBurst` both choose the policer's burst",
            "one of the two keys",
            "remove `policingBurst`: with `excess`, the policer's burst is `burst` and the traffic of `queue`",
        );
    }
    if sla
        .shaper_delay_ns
        .is_some_and(|delay_ns| delay_ns < wait_ns)
    {
        let wait = units::DURATION.format(wait_ns);
        field.fault(
            format!("the shaper would drop packets before they have waited {wait}"),
            format!("`delay` of `shaper` to be at least {wait}"),
            "remove `delay` of `shaper`, or write a shorter `queue`",
        );
    }
    let profile = sla.profile();
    match (profile.packets, profile.bits) {
        (Some(_), Some(_)) => field.fault(
            "excess may wait for any time if rates in packets and in bits are agreed",
            "`excess` with one rate",
            "remove one of the two rates, or remove `excess`",
        ),
        (Some(packets), None) => check_length(wait_ns, packets, (1, "packet"), field),
        (None, Some(bits)) => check_length(wait_ns, bits, (FULL_FRAME * 8, "full frame"), field),
        (None, None) => {}
    }
}

/// Reports a queue with room for no packet, and a queue that is longer than any shaper's.
fn check_length(wait_ns: u64, bucket: Bucket, (size, counted): (u64, &str), field: &Field<'_>) {
    let [wait, shortest, longest] = [
        wait_ns,
        time_of(bucket, size),
        time_of(bucket, size * u64::from(MAX_SHAPER_QUEUE)),
    ]
    .map(|time_ns| units::DURATION.format(time_ns));
    let waiting = traffic_of(bucket, wait_ns) / size;
    if waiting == 0 {
        field.fault(
            format!(
                "in {wait} less than one {counted} leaves at this rate, so no excess could wait"
            ),
            format!("at least {shortest}"),
            format!("write for example `{{ queue: {shortest} }}`, or remove `excess`"),
        );
    } else if waiting > u64::from(MAX_SHAPER_QUEUE) {
        field.fault(
            format!("up to {waiting} {counted}s would wait, and a shaper holds at most {MAX_SHAPER_QUEUE}"),
            format!("at most {longest}"),
            format!("write `{{ queue: {longest} }}` or less"),
        );
    }
}

/// Returns the time in which a bucket earns this much, ns, rounded up to microseconds.
fn time_of(bucket: Bucket, amount: u64) -> u64 {
    const SECOND_US: u128 = 1_000_000;
    let us = (u128::from(amount) * SECOND_US).div_ceil(u128::from(bucket.rate()));
    u64::try_from(us).unwrap_or(u64::MAX).saturating_mul(1000)
}
