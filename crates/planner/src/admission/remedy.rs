//! Finds remedies for a refused chain by trials.

use myelin_packet::traffic::{Bucket, Profile};
use myelin_spec::units::DURATION;

use super::booking::Booking;
use super::decision::admit;
use super::ledger::Ledger;
use super::site::Platform;

/// A refused chain with another value of one key.
#[derive(Debug, Clone)]
pub struct Alternative {
    /// The key and value to write.
    pub key: String,
    /// The chain's booking with that value.
    pub booking: Booking,
}

/// Returns remedies, of which each suffices alone: the largest rate, the largest burst, the least
/// latency, and the `alternatives` that fit.
pub fn remedies(
    ledger: &Ledger,
    booking: &Booking,
    alternatives: &[Alternative],
    platform: &Platform,
) -> Vec<String> {
    let fits = |booking: &Booking| admit(ledger, booking, platform).refusal.is_none();
    let mut found = Vec::new();
    if booking.policed {
        let rate = largest_profile(booking, &fits, |bucket, share| {
            Bucket::new(share.scale(bucket.rate()), bucket.burst())
        });
        found.extend(rate.map(|profile| {
            format!(
                "`rate: {}`",
                format_profile(&profile, Bucket::rate, ["pps", "bit"])
            )
        }));
        let burst = largest_profile(booking, &fits, |bucket, share| {
            Bucket::new(bucket.rate(), share.scale(bucket.burst()))
        });
        // The policer's burst is not the file's `burst` if excess waits.
        let burst = burst.filter(|_| !booking.queues_excess);
        found.extend(burst.map(|profile| {
            format!(
                "`burst: {}`",
                format_profile(&profile, Bucket::burst, ["", "bit"])
            )
        }));
        let without_promise = Booking {
            latency_ns: None,
            ..booking.clone()
        };
        let decision = admit(ledger, &without_promise, platform);
        if let (Some(_), None, Some(bound)) =
            (booking.latency_ns, &decision.refusal, &decision.bound)
        {
            found.push(format!(
                "`latency: {}`",
                DURATION.format(bound.bound_ns.next_multiple_of(1000))
            ));
        }
    }
    let fitting = alternatives.iter().filter(|other| fits(&other.booking));
    found.extend(fitting.map(|alternative| alternative.key.clone()));
    found
}

/// Steps of the search.
const PARTS: u64 = 1 << 12;
/// Further searches in the lowest part, if not even one part fits. They suffice to scale a bucket's
/// largest figure to 1.
const MAX_DEPTH: u32 = 4;

/// A share of the agreed figure: `parts / PARTS^(1 + depth)`.
#[derive(Debug, Clone, Copy)]
struct Share {
    parts: u64,
    depth: u32,
}

impl Share {
    fn scale(self, amount: u64) -> u64 {
        let whole = u128::from(PARTS).pow(1 + self.depth);
        let scaled = u128::from(amount) * u128::from(self.parts) / whole;
        (scaled as u64).max(1)
    }
}

/// Returns the largest profile that fits, where `change` scales each bucket. If a profile fits, so
/// does every smaller profile.
fn largest_profile<E>(
    booking: &Booking,
    fits: &impl Fn(&Booking) -> bool,
    change: impl Fn(Bucket, Share) -> Result<Bucket, E>,
) -> Option<Profile> {
    let with = |share: Share| {
        let changed = |bucket: Option<Bucket>| bucket.and_then(|bucket| change(bucket, share).ok());
        Booking {
            profile: Profile {
                packets: changed(booking.profile.packets),
                bits: changed(booking.profile.bits),
            },
            ..booking.clone()
        }
    };
    let fits_at = |depth: u32, parts: u64| fits(&with(Share { parts, depth }));
    let (depth, mut fitting, mut too_much) = match (0..MAX_DEPTH).find(|at| fits_at(*at, 1))? {
        0 => (0, 1, PARTS),
        // Because of rounding, a small part may fit in full.
        at => (at + 1, PARTS, PARTS * PARTS),
    };
    while too_much - fitting > 1 {
        let middle = fitting.midpoint(too_much);
        if fits_at(depth, middle) {
            fitting = middle;
        } else {
            too_much = middle;
        }
    }
    let share = Share {
        parts: fitting,
        depth,
    };
    Some(with(share).profile)
}

fn format_profile(profile: &Profile, figure: impl Fn(Bucket) -> u64, units: [&str; 2]) -> String {
    let buckets = [profile.packets, profile.bits];
    let parts = buckets.into_iter().zip(units);
    let parts: Vec<_> = parts
        .filter_map(|(bucket, unit)| Some(format!("{}{unit}", figure(bucket?))))
        .collect();
    match &parts[..] {
        [part] => part.clone(),
        several => format!("[ {} ]", several.join(", ")),
    }
}
