//! What user functions cost to which every packet must be new, or must have come through another function: coders, ciphers, compressors, inspection.

use std::collections::BTreeMap;

use myelin_api::ApiError;
use myelin_dataplane::feed::{Feed, FeedConfig};
use myelin_planner::Cost;
use myelin_spec::LossyLinkConfig;

use super::{FRAMES, Result, fit, median};
use crate::snippet::config;

/// Packets of one measurement.
const PACKETS: u32 = 2048;
/// What a decoder lacks, so that it has something to work out, millionths.
const LOSS_PPM: u32 = 50_000;

/// Costs by kind, the worker's call (`dispatch_ns`) not included. A kind that cannot be made here, for want of a library, is left out.
pub(super) fn measure(rounds: usize, dispatch_ns: f64) -> Result<Vec<(&'static str, Cost)>> {
    let mut all = Vec::new();
    let files = files();
    for (function, after, loss_ppm) in PAIRS {
        let function = config(function, &files)?;
        let after = after.map(|after| config(after, &files)).transpose()?;
        let mut ns = [0.0; 2];
        let mut made = true;
        for (frame_bytes, ns) in FRAMES.iter().zip(&mut ns) {
            let diet = FeedConfig {
                function: function.clone(),
                after: after.clone(),
                link: Some(LossyLinkConfig {
                    loss_ppm,
                    burst: None,
                    seed: Some(1),
                }),
                payload_bytes: frame_bytes - myelin_dataplane::feed::HEADERS,
            };
            let Ok(mut feed) = Feed::new(&diet) else {
                made = false;
                break;
            };
            let figures = (0..=rounds)
                .map(|_| mean_ns(&mut feed, function.kind().name))
                .collect::<Result<Vec<_>, _>>()?;
            // The first one warmed it up.
            *ns = (median(figures[1..].to_vec()) - dispatch_ns).max(0.0);
        }
        if made {
            all.push((function.kind().name, fit(ns)));
        }
    }
    Ok(all)
}

fn mean_ns(feed: &mut Feed, kind: &str) -> Result<f64> {
    let (mut sum, mut came_out) = (0, 0);
    for _ in 0..PACKETS {
        let fed = feed.feed().ok_or_else(|| {
            ApiError::failed(format!("measuring `{kind}`: no packet arrives at it"))
        })?;
        sum += fed.ns;
        came_out += fed.came_out;
    }
    if came_out < PACKETS as usize / 2 {
        return Err(ApiError::failed(format!(
            "measuring `{kind}`: it drops what it is fed, so this is not its cost"
        ))
        .into());
    }
    Ok(sum as f64 / f64::from(PACKETS))
}

/// Functions as files have them that say no more than they must, those that their packets come through, and what is lost behind these, millionths.
const PAIRS: [(&str, Option<&str>, u32); 9] = [
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

/// Files that these name: a key, and ten thousand patterns, none of which is in what is fed: numbers in words.
fn files() -> BTreeMap<String, String> {
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
    fn all_functions_are_read() {
        let files = files();
        for (function, after, _) in PAIRS {
            config(function, &files).unwrap();
            after.map(|after| config(after, &files).unwrap());
        }
        let all = crate::calibrate::configurations().unwrap();
        assert_eq!(all.len(), crate::calibrate::FUNCTIONS.len());
    }
}
