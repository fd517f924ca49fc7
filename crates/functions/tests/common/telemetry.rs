//! Makes payloads like those of sensors.

use std::fmt::Write;

/// Returns `len` bytes of sensor readings as JSON, different for each seed.
pub(crate) fn telemetry(len: usize, seed: u64) -> Vec<u8> {
    let mut noise = noise(seed);
    let mut text = String::with_capacity(len + 128);
    let mut time = 1_700_000_000 + noise.next().unwrap_or(0) % 1_000_000;
    while text.len() < len {
        let mut draw = |below: u64| noise.next().unwrap_or(0) % below;
        time += draw(5_000);
        let _ = write!(
            text,
            r#"{{"sensor":"press-{}","time":{time},"temperature":{}.{:02},"vibration":{},"state":"{}"}},"#,
            draw(24),
            18 + draw(60),
            draw(100),
            draw(4096),
            ["idle", "running", "fault"][draw(3) as usize],
        );
    }
    text.truncate(len);
    text.into_bytes()
}

/// Returns `len` bytes that do not compress.
pub(crate) fn random(len: usize, seed: u64) -> Vec<u8> {
    noise(seed)
        .map(|word| (word >> 24) as u8)
        .take(len)
        .collect()
}

/// Generates pseudo-random numbers with xorshift64 (Marsaglia).
fn noise(seed: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), |&x| {
        let x = x ^ x << 13;
        let x = x ^ x >> 7;
        Some(x ^ x << 17)
    })
}
