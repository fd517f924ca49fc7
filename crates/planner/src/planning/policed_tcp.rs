//! What a policer leaves of its rate to TCP.

use myelin_packet::five_tuple::TCP;
use myelin_packet::traffic::Bucket;
use myelin_spec::ServiceChain;

/// The least retransmission timeout of Linux (`TCP_RTO_MIN`), ms.
const TIMEOUT_MS: u64 = 200;
/// The share of the rate below which the user gets a warning, percent.
const ENOUGH: u64 = 80;

/// Returns a warning if TCP gets much less than the agreed rate. A sender outruns the bucket within
/// a round trip, loses the rest of its window with the retransmissions, waits for its timeout, and
/// then sends what the bucket holds. So TCP gets a burst in each timeout.
pub(super) fn warn(chain: &ServiceChain) -> Option<String> {
    // Without a protocol, a contract with a latency or a burst is rather for datagrams.
    let is_for_tcp = chain.matches.protocol == Some(TCP) || chain.sla.has_tcp_burst;
    let is_dropped = chain.sla.is_policed() && chain.sla.excess_queue_ns.is_none();
    if !is_for_tcp || !is_dropped {
        return None;
    }
    let profile = chain.sla.policing_profile();
    let percent = |bucket: Bucket| {
        let in_timeout = bucket.rate().saturating_mul(TIMEOUT_MS) / 1000;
        bucket.burst().saturating_mul(100) / in_timeout.max(1)
    };
    let buckets = [profile.packets, profile.bits].into_iter().flatten();
    let percent = buckets.map(percent).min()?;
    (percent < ENOUGH).then(|| {
        format!(
            "TCP gets about {} % of the rate: the policer drops what exceeds `burst`, and a TCP sender then \
             often waits for {TIMEOUT_MS} ms; write `excess: {{ queue: 20ms }}` in `sla`, so that excess waits",
            percent.max(1)
        )
    })
}
