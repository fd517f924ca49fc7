//! What user functions cost to which every packet must be new, or must have come through another function: coders, ciphers, compressors, inspection.

use myelin_api::ApiError;
use myelin_dataplane::feed::{Diet, Feed};
use myelin_planner::Cost;
use myelin_spec::{
    AesDecryptConfig, AesEncryptConfig, Cipher, CompressConfig, DecompressConfig, DpiAction,
    DpiConfig, FunctionConfig, LossyLinkConfig, Pattern, PatternList, RlncDecodeConfig,
    RlncEncodeConfig, RlncRecodeConfig, SecretKey,
};

use super::{FRAMES, Result, fit, median};

/// Packets of one measurement.
const PACKETS: u32 = 2048;
/// What a decoder lacks, so that it has something to work out, millionths.
const LOSS_PPM: u32 = 50_000;

/// Costs by kind, the worker's call (`dispatch_ns`) not included. A kind that cannot be made here, for want of a library, is left out.
pub(super) fn measure(rounds: usize, dispatch_ns: f64) -> Result<Vec<(&'static str, Cost)>> {
    let mut all = Vec::new();
    for (function, after, loss_ppm) in pairs() {
        let mut ns = [0.0; 2];
        let mut made = true;
        for (frame_bytes, ns) in FRAMES.iter().zip(&mut ns) {
            let diet = Diet {
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
fn pairs() -> Vec<(FunctionConfig, Option<FunctionConfig>, u32)> {
    let keys = vec![SecretKey::new(vec![0x5a; 32])];
    let encoder = FunctionConfig::RlncEncode(RlncEncodeConfig::default());
    let encrypter = FunctionConfig::AesEncrypt(AesEncryptConfig {
        cipher: Cipher::default(),
        keys: keys.clone(),
        mtu: 1500,
    });
    let decrypter = FunctionConfig::AesDecrypt(AesDecryptConfig {
        cipher: Cipher::default(),
        keys,
        replay_window: 1024,
        sessions: 16,
    });
    let compressor = FunctionConfig::Compress(CompressConfig::default());
    let decompressor = FunctionConfig::Decompress(DecompressConfig::default());
    let recoder = FunctionConfig::RlncRecode(RlncRecodeConfig::default());
    let decoder = FunctionConfig::RlncDecode(RlncDecodeConfig::default());
    let link = FunctionConfig::LossyLink(LossyLinkConfig {
        loss_ppm: 0,
        burst: None,
        seed: None,
    });
    vec![
        (encoder.clone(), None, 0),
        (recoder, Some(encoder.clone()), LOSS_PPM),
        (decoder, Some(encoder), LOSS_PPM),
        (encrypter.clone(), None, 0),
        (decrypter, Some(encrypter), 0),
        (compressor.clone(), None, 0),
        (decompressor, Some(compressor), 0),
        (link, None, 0),
        (inspection(), None, 0),
    ]
}

/// Ten thousand patterns, none of which is in what is fed: numbers in words.
fn inspection() -> FunctionConfig {
    let pattern = |line: usize| Pattern {
        line,
        action: DpiAction::Drop,
        regex: format!("{:016x}", (line as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        literal: true,
        caseless: false,
        multiline: false,
        dotall: false,
    };
    FunctionConfig::Dpi(DpiConfig {
        lists: vec![PatternList {
            file: "calibrate".to_owned(),
            patterns: (1..=10_000).map(pattern).collect(),
        }],
        ..DpiConfig::default()
    })
}
