//! What would make a refused chain admissible, found by trying it.

use myelin_spec::units::format_duration_ns;
use myelin_traffic::{Bucket, Profile};

use super::booking::Booking;
use super::decision::admit;
use super::ledger::Ledger;
use super::site::Platform;

/// The same chain in another form.
#[derive(Debug, Clone)]
pub struct Alternative {
    /// What to write for it.
    pub what: String,
    /// What it would take.
    pub booking: Booking,
}

/// What would be admitted instead, each by itself: the largest rate, the largest burst, the least latency, and those of `alternatives`
/// that fit.
pub fn remedies(
    ledger: &Ledger,
    booking: &Booking,
    alternatives: &[Alternative],
    platform: &Platform,
) -> Vec<String> {
    let fits = |booking: &Booking| admit(ledger, booking, platform).refusal.is_none();
    let mut all = Vec::new();
    if booking.policed {
        let rate = largest(booking, &fits, |bucket, parts| {
            Bucket::new(scaled(bucket.rate(), parts), bucket.burst())
        });
        all.extend(
            rate.map(|profile| {
                format!("`rate: {}`", shown(&profile, Bucket::rate, ["pps", "bit"]))
            }),
        );
        let burst = largest(booking, &fits, |bucket, parts| {
            Bucket::new(bucket.rate(), scaled(bucket.burst(), parts))
        });
        all.extend(
            burst
                .map(|profile| format!("`burst: {}`", shown(&profile, Bucket::burst, ["", "bit"]))),
        );
        let patient = Booking {
            latency_ns: None,
            ..booking.clone()
        };
        let decision = admit(ledger, &patient, platform);
        if let (Some(_), None, Some(bound)) =
            (booking.latency_ns, &decision.refusal, &decision.bound)
        {
            all.push(format!(
                "`latency: {}`",
                format_duration_ns(bound.bound_ns.next_multiple_of(1000))
            ));
        }
    }
    let others = alternatives.iter().filter(|other| fits(&other.booking));
    all.extend(others.map(|other| other.what.clone()));
    all
}

/// Parts of the agreed figure that are tried: a step of the search.
const PARTS: u64 = 1 << 12;

fn scaled(amount: u64, parts: u64) -> u64 {
    let scaled = u128::from(amount) * u128::from(parts) / u128::from(PARTS);
    (scaled as u64).max(1)
}

/// The largest profile that fits, where `change` makes each bucket a share of what it is: what fits with more fits with less.
fn largest<E>(
    booking: &Booking,
    fits: &impl Fn(&Booking) -> bool,
    change: impl Fn(Bucket, u64) -> Result<Bucket, E>,
) -> Option<Profile> {
    let with = |parts: u64| {
        let changed = |bucket: Option<Bucket>| bucket.and_then(|bucket| change(bucket, parts).ok());
        Booking {
            profile: Profile {
                packets: changed(booking.profile.packets),
                bits: changed(booking.profile.bits),
            },
            ..booking.clone()
        }
    };
    if !fits(&with(1)) {
        return None;
    }
    let (mut fitting, mut too_much) = (1, PARTS);
    while too_much - fitting > 1 {
        let middle = fitting.midpoint(too_much);
        if fits(&with(middle)) {
            fitting = middle;
        } else {
            too_much = middle;
        }
    }
    Some(with(fitting).profile)
}

fn shown(profile: &Profile, figure: impl Fn(Bucket) -> u64, units: [&str; 2]) -> String {
    let buckets = [profile.packets, profile.bits];
    let parts = buckets.into_iter().zip(units);
    let parts: Vec<_> = parts
        .filter_map(|(bucket, unit)| Some(format!("{}{unit}", figure(bucket?))))
        .collect();
    match &parts[..] {
        [one] => one.clone(),
        several => format!("[ {} ]", several.join(", ")),
    }
}
