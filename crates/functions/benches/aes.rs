//! Measures `aes-encrypt` and `aes-decrypt` by payload length, and compares them with the library
//! alone and with AES one byte at a time.
//!
//! `cargo bench -p myelin-functions --bench aes` first prints a comparison of function and library,
//! which it measures alternately.

#[path = "../tests/aes/plain_aes.rs"]
mod plain_aes;

use std::hint::black_box;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use aws_lc_rs::cipher::{AES_128, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_functions::aes::{SessionKey, TRAILER_LEN};
use myelin_functions::{Batch, Discard, Function, Packet, instantiate};
use myelin_packet::fixtures::build;
use myelin_packet::{Meta, parse};
use myelin_spec::{AesDecryptConfig, AesEncryptConfig, Cipher, FunctionConfig, SecretKey};

/// Packets of a batch. They fit into the first-level cache, for library and function.
const BATCH: usize = 16;
const LENGTHS: [usize; 2] = [256, 1400];
const HEADERS: usize = 42;
/// Rounds of a comparison, each of many batches.
const ROUNDS: usize = 61;
const BATCHES: u32 = 300;

/// Work to measure, one batch at a time.
trait MeasuredWork {
    fn run_batch(&mut self) -> Duration;

    /// Returns the time of `count` packets, measured in whole batches.
    fn time_packets(&mut self, count: u64) -> Duration {
        let batches = count.div_ceil(BATCH as u64);
        let total: Duration = (0..batches).map(|_| self.run_batch()).sum();
        total.mul_f64(count as f64 / (batches * BATCH as u64) as f64)
    }
}

fn key() -> SecretKey {
    SecretKey::new((0..16).collect())
}

fn encrypter(cipher: Cipher) -> Box<dyn Function> {
    let config = AesEncryptConfig {
        cipher,
        keys: vec![key()],
        mtu: 1500,
    };
    instantiate(&FunctionConfig::AesEncrypt(config)).expect("a function")
}

fn decrypter(cipher: Cipher) -> Box<dyn Function> {
    let config = AesDecryptConfig {
        cipher,
        keys: vec![key()],
        replay_window: 1024,
        sessions: 16,
    };
    instantiate(&FunctionConfig::AesDecrypt(config)).expect("a function")
}

fn buffers(len: usize) -> Vec<Vec<u8>> {
    let frame = build::udp(build::client_v4(), build::server_v4(), &build::payload(len));
    vec![[&frame[..], &[0; 64]].concat(); BATCH]
}

/// Returns a batch of the frames at the start of `buffers`.
fn batch_of(buffers: &mut [Vec<u8>], frame_len: usize) -> Batch<'_> {
    let mut batch = Batch::with_capacity(BATCH);
    for buffer in buffers {
        let headers = parse(&buffer[..frame_len]).expect("a frame that parses");
        let meta = Meta::new(0, 1, 1, 0, &headers);
        batch.push(Packet::new(buffer, 0, frame_len, meta, 0).expect("a packet"));
    }
    batch
}

/// `aes-encrypt` on plain frames.
struct Encrypt {
    function: Box<dyn Function>,
    buffers: Vec<Vec<u8>>,
    plain: Vec<u8>,
    frame_len: usize,
}

impl Encrypt {
    fn new(cipher: Cipher, len: usize) -> Self {
        let buffers = buffers(len);
        Self {
            function: encrypter(cipher),
            plain: buffers[0].clone(),
            buffers,
            frame_len: HEADERS + len,
        }
    }
}

impl MeasuredWork for Encrypt {
    fn run_batch(&mut self) -> Duration {
        for buffer in &mut self.buffers {
            buffer[..HEADERS].copy_from_slice(&self.plain[..HEADERS]);
        }
        let mut batch = batch_of(&mut self.buffers, self.frame_len);
        let start = Instant::now();
        let dropped = black_box(&mut *self.function).process_batch(&mut batch, &mut Discard);
        let time = start.elapsed();
        assert_eq!(dropped, 0);
        time
    }
}

/// `aes-decrypt` on packets of `aes-encrypt`. The time includes decryption alone.
struct Decrypt {
    encrypt: Encrypt,
    function: Box<dyn Function>,
    overhead: usize,
}

impl Decrypt {
    fn new(cipher: Cipher, len: usize) -> Self {
        Self {
            encrypt: Encrypt::new(cipher, len),
            function: decrypter(cipher),
            overhead: myelin_functions::aes::overhead(cipher),
        }
    }
}

impl MeasuredWork for Decrypt {
    fn run_batch(&mut self) -> Duration {
        self.encrypt.run_batch();
        let sealed_len = self.encrypt.frame_len + self.overhead;
        let mut batch = batch_of(&mut self.encrypt.buffers, sealed_len);
        let start = Instant::now();
        let dropped = black_box(&mut *self.function).process_batch(&mut batch, &mut Discard);
        let time = start.elapsed();
        assert_eq!(dropped, 0);
        time
    }
}

/// AES-GCM of the library alone, with the same length of additional data.
struct LibraryGcm {
    key: LessSafeKey,
    count: u64,
    aad: [u8; TRAILER_LEN],
    /// Each payload follows room for the headers, so it has the same alignment as in a frame.
    payloads: Vec<Vec<u8>>,
    tags: Vec<Tag>,
    is_opening: bool,
}

impl LibraryGcm {
    fn new(len: usize, is_opening: bool) -> Self {
        let key = UnboundKey::new(&AES_128_GCM, key().expose()).expect("a key");
        Self {
            key: LessSafeKey::new(key),
            count: 0,
            aad: [7; TRAILER_LEN],
            payloads: vec![build::payload(HEADERS + len); BATCH],
            tags: Vec::with_capacity(BATCH),
            is_opening,
        }
    }

    fn nonce(count: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&count.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

impl MeasuredWork for LibraryGcm {
    fn run_batch(&mut self) -> Duration {
        self.tags.clear();
        let first = self.count;
        let start = Instant::now();
        for payload in &mut self.payloads {
            let nonce = Self::nonce(self.count);
            self.count += 1;
            let sealed = self.key.seal_in_place_separate_tag(
                nonce,
                Aad::from(&self.aad),
                black_box(&mut payload[HEADERS..]),
            );
            self.tags.push(sealed.expect("sealed"));
        }
        let sealing = start.elapsed();
        if !self.is_opening {
            return sealing;
        }
        let start = Instant::now();
        for ((payload, tag), count) in self.payloads.iter_mut().zip(&self.tags).zip(first..) {
            let nonce = Self::nonce(count);
            let opened = self.key.open_in_place_separate_tag(
                nonce,
                Aad::from(&self.aad),
                tag.as_ref(),
                black_box(&mut payload[HEADERS..]),
            );
            assert!(opened.is_ok());
        }
        start.elapsed()
    }
}

/// AES-CTR of the library alone.
struct LibraryCtr {
    key: EncryptingKey,
    count: u64,
    payloads: Vec<Vec<u8>>,
}

impl LibraryCtr {
    fn new(len: usize) -> Self {
        let key = UnboundCipherKey::new(&AES_128, key().expose()).expect("a key");
        Self {
            key: EncryptingKey::ctr(key).expect("a key"),
            count: 0,
            payloads: vec![build::payload(HEADERS + len); BATCH],
        }
    }
}

impl MeasuredWork for LibraryCtr {
    fn run_batch(&mut self) -> Duration {
        let start = Instant::now();
        for payload in &mut self.payloads {
            let mut block = [0; 16];
            block[4..12].copy_from_slice(&self.count.to_be_bytes());
            self.count += 1;
            let context = EncryptionContext::Iv128(FixedLength::from(block));
            let done = self
                .key
                .less_safe_encrypt(black_box(&mut payload[HEADERS..]), context);
            assert!(done.is_ok());
        }
        start.elapsed()
    }
}

/// AES-CTR one byte at a time.
struct BytewiseCtr {
    key: plain_aes::PlainAes,
    payload: Vec<u8>,
}

impl MeasuredWork for BytewiseCtr {
    fn run_batch(&mut self) -> Duration {
        let start = Instant::now();
        for _ in 0..BATCH {
            self.key.ctr([7; 16], black_box(&mut self.payload));
        }
        start.elapsed()
    }
}

/// Prints the times of function and library, the median of the paired ratios with its 95 %
/// interval, and the difference.
fn compare(
    name: &str,
    len: usize,
    function: &mut dyn MeasuredWork,
    library: &mut dyn MeasuredWork,
) {
    let round = |work: &mut dyn MeasuredWork| {
        let total: Duration = (0..BATCHES).map(|_| work.run_batch()).sum();
        total.as_secs_f64() * 1e9 / f64::from(BATCHES) / BATCH as f64
    };
    let pairs: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|_| (round(function), round(library)))
        .collect();
    let sorted = |of: &dyn Fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = pairs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let ratios = sorted(&|(own, other)| own / other);
    let middle = ROUNDS / 2;
    // Ranks of the 95 % interval of a median: the binomial distribution, approximated as normal.
    let half_width = (0.98 * (ROUNDS as f64).sqrt()).ceil() as usize;
    println!(
        "{name:24} {len:5} B: function {:7.1} ns, library {:7.1} ns, ratio {:.3} [{:.3}, {:.3}], difference {:5.1} ns",
        sorted(&|pair| pair.0)[middle],
        sorted(&|pair| pair.1)[middle],
        ratios[middle],
        ratios[middle - half_width],
        ratios[middle + half_width],
        sorted(&|(own, other)| own - other)[middle],
    );
}

fn bench_aes(criterion: &mut Criterion) {
    for len in LENGTHS {
        let (gcm, ctr) = (Cipher::Aes128Gcm, Cipher::Aes128Ctr);
        let mut sealing = LibraryGcm::new(len, false);
        compare(
            "encrypt, aes-128-gcm",
            len,
            &mut Encrypt::new(gcm, len),
            &mut sealing,
        );
        let mut opening = LibraryGcm::new(len, true);
        compare(
            "decrypt, aes-128-gcm",
            len,
            &mut Decrypt::new(gcm, len),
            &mut opening,
        );
        let mut bare = LibraryCtr::new(len);
        compare(
            "encrypt, aes-128-ctr",
            len,
            &mut Encrypt::new(ctr, len),
            &mut bare,
        );
        compare(
            "decrypt, aes-128-ctr",
            len,
            &mut Decrypt::new(ctr, len),
            &mut bare,
        );
    }

    let mut group = criterion.benchmark_group("aes");
    for len in LENGTHS {
        group.throughput(Throughput::Bytes(len as u64));
        let mut measure = |name: &str, work: &mut dyn MeasuredWork| {
            group.bench_function(BenchmarkId::new(name, len), |bencher| {
                bencher.iter_custom(|packets| work.time_packets(packets));
            });
        };
        for cipher in [Cipher::Aes128Gcm, Cipher::Aes128Ctr] {
            measure(&format!("encrypt-{cipher}"), &mut Encrypt::new(cipher, len));
            measure(&format!("decrypt-{cipher}"), &mut Decrypt::new(cipher, len));
        }
        measure("library-gcm-seal", &mut LibraryGcm::new(len, false));
        measure("library-ctr", &mut LibraryCtr::new(len));
        let key = plain_aes::PlainAes::new(key().expose());
        let payload = build::payload(len);
        measure("byte-by-byte-ctr", &mut BytewiseCtr { key, payload });
    }
    group.finish();

    // Measures the cost of a packet of an unknown session, before the decrypter checks its tag.
    criterion.bench_function("aes/session-key", |bencher| {
        bencher.iter(|| SessionKey::derive(Cipher::Aes128Gcm, &key(), black_box(&[3; 16])).is_ok());
    });
}

criterion_group!(benches, bench_aes);
criterion_main!(benches);
