//! Measures user functions that need a new packet each time, or packets of another function:
//! coders, ciphers, compressors, inspection.

use std::collections::BTreeMap;

use myelin_api::ApiError;
use myelin_dataplane::feed::{Feed, FeedConfig};
use myelin_planner::Cost;
use myelin_spec::LossyLinkConfig;

use super::{FRAMES, Result, fit, median};
use crate::function_config::parse;

/// Number of packets of one measurement.
const PACKETS: u32 = 2048;
/// Loss before a decoder, millionths, so that the decoder has packets to recover.
const LOSS_PPM: u32 = 50_000;

/// Measures the costs by kind, without the worker's call (`dispatch_ns`). Skips a kind whose
/// library is missing on this machine.
pub(super) fn measure(rounds: usize, dispatch_ns: f64) -> Result<Vec<(&'static str, Cost)>> {
    let mut costs = Vec::new();
    let files = make_files();
    for (function, upstream, loss_ppm) in FUNCTIONS {
        let function = parse(function, &files)?;
        let upstream = upstream.map(|text| parse(text, &files)).transpose()?;
        let mut ns = [0.0; 2];
        let mut is_available = true;
        for (frame_bytes, ns) in FRAMES.iter().zip(&mut ns) {
            let feed_config = FeedConfig {
                function: function.clone(),
                after: upstream.clone(),
                link: Some(LossyLinkConfig {
                    loss_ppm,
                    burst: None,
                    seed: Some(1),
                }),
                payload_bytes: frame_bytes - myelin_dataplane::feed::HEADERS,
            };
            let Ok(mut feed) = Feed::new(&feed_config) else {
                is_available = false;
                break;
            };
            let figures = (0..=rounds)
                .map(|_| measure_mean_ns(&mut feed, function.kind().name))
                .collect::<Result<Vec<_>, _>>()?;
            // The first figure is the warm-up.
            *ns = (median(figures[1..].to_vec()) - dispatch_ns).max(0.0);
        }
        if is_available {
            costs.push((function.kind().name, fit(ns)));
        }
    }
    Ok(costs)
}

/// Measures the mean time of a packet in the function, ns.
fn measure_mean_ns(feed: &mut Feed, kind: &str) -> Result<f64> {
    let (mut sum, mut packets_out) = (0, 0);
    for _ in 0..PACKETS {
        let fed = feed.feed().ok_or_else(|| {
            ApiError::failed(format!(
                "cannot measure `{kind}`: no packet reaches the function; please report it"
            ))
        })?;
        sum += fed.ns;
        packets_out += fed.packets_out;
    }
    if packets_out < PACKETS as usize / 2 {
        return Err(ApiError::failed(format!(
            "cannot measure `{kind}`: the function drops most packets; please report it"
        ))
        .into());
    }
    Ok(sum as f64 / f64::from(PACKETS))
}

/// For each measured function: its minimal configuration, the function before it, and the loss
/// between both, millionths.
const FUNCTIONS: [(&str, Option<&str>, u32); 9] = [
    (ENCODER, None, 0),
    ("kind: rlnc-recode", Some(ENCODER), LOSS_PPM),
    ("kind: rlnc-decode", Some(ENCODER), LOSS_PPM),
    (ENCRYPTER, None, 0),
    (
        "kind: aes-decrypt, config: { keyFile: key }",
        Some(ENCRYPTER),
        0,
    ),
    (COMPRESSOR, None, 0),
    ("kind: decompress", Some(COMPRESSOR), 0),
    ("kind: lossy-link, config: { loss: 0% }", None, 0),
    ("kind: dpi, config: { patternsFile: patterns }", None, 0),
];
const ENCODER: &str = "kind: rlnc-encode";
const ENCRYPTER: &str = "kind: aes-encrypt, config: { keyFile: key }";
const COMPRESSOR: &str = "kind: compress";

/// Makes the files that the configurations name: a key, and ten thousand patterns that no packet
/// contains.
fn make_files() -> BTreeMap<String, String> {
    let pattern = |line: u64| format!("{:016x}\n", line.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    BTreeMap::from([
        ("key".to_owned(), "5a".repeat(32)),
        ("patterns".to_owned(), (1..=10_000).map(pattern).collect()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_configurations_parse() {
        let files = make_files();
        for (function, upstream, _) in FUNCTIONS {
            parse(function, &files).unwrap();
            upstream.map(|upstream| parse(upstream, &files).unwrap());
        }
        let configurations = crate::calibrate::parse_configurations().unwrap();
        assert_eq!(configurations.len(), crate::calibrate::FUNCTIONS.len());
    }
}
