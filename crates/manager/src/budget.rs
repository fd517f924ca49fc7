//! Shares the latency of a contract among the parts of a chain.

/// Shares the latency that the links leave, in proportion to the predicted costs of the parts. Each
/// part keeps its share by itself, so the whole keeps the latency. Returns `None` if the links take
/// all.
pub fn share_latency(latency_ns: u64, links_ns: u64, costs_ns: &[f64]) -> Option<Vec<u64>> {
    let rest = latency_ns.checked_sub(links_ns)?;
    // Each part has the costs of its ports too, so an even share is the least.
    let costs = costs_ns
        .iter()
        .map(|cost| if cost.is_finite() { cost.max(0.0) } else { 0.0 });
    let even = costs.clone().sum::<f64>() / costs_ns.len().max(1) as f64;
    let weights: Vec<f64> = costs.map(|cost| cost + even.max(1.0)).collect();
    let sum: f64 = weights.iter().sum();
    let mut left = rest;
    let shares: Vec<u64> = weights
        .iter()
        .map(|weight| {
            let share = ((rest as f64 * (weight / sum)) as u64).min(left);
            left -= share;
            share
        })
        .collect();
    shares.iter().all(|share| *share > 0).then_some(shares)
}
