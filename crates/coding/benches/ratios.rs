//! Compares implementations by paired ratios: in each round, every implementation runs once.
//!
//! Run `cargo bench -p myelin-coding --bench ratios`.
//!
//! Each round measures each implementation for about 20 us and computes one ratio. The benchmark
//! prints the median ratio of all rounds with its 95 % confidence interval (by order statistics).
//!
//! *Encoding* is the time of one coded packet of a window: coefficients, sum and identifier. One
//! figure uses the same window each time. For the figure *in a stream*, a repair packet follows
//! each window, and the time is the difference to the same stream without repair packets.
//!
//! *Decoding* is the time of one recovered packet. Each window of 8 has one or two losses, and as
//! many repair packets. The time is the difference to the same stream without repair packets. So no
//! figure contains the time of storing source packets.

mod peers;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Instant;

use myelin_coding::{Code, CodedPayload, Decoder, DeliveredPacket, Encoder, Kernel, Redundancy};
use rand::SeedableRng;
use rand::rngs::SmallRng;

const ROUNDS: usize = 201;
/// Windows between two readings of the clock.
const WINDOWS: u32 = 256;
/// Windows before the first reading.
const WARM_UP: u32 = 64;

/// The name of a contender, and the function to measure.
type Contender<'a> = (&'static str, Box<dyn FnMut() + 'a>);

fn main() {
    let isal = peers::Isal::load();
    if let Err(cause) = &isal {
        println!("ISA-L is not measured: {cause}. Install `libisal2` to measure it.");
    }
    println!("{ROUNDS} rounds, kernel {}", Kernel::fastest().name());
    for (count, len) in [(8, 256), (8, 1400), (32, 256), (32, 1400)] {
        measure_coded_packet(isal.as_ref().ok(), count, len);
    }
    for len in [256, 1400] {
        measure_window_of_8(len);
    }
}

/// Measures one coded packet of `count` symbols of `len` bytes.
fn measure_coded_packet(isal: Option<&peers::Isal>, count: usize, len: usize) {
    let symbols = peers::make_symbols(count, len);
    let terms = peers::make_terms(&symbols);
    let kernel = Kernel::fastest();
    let mut result = vec![0; len];
    kernel.dot(&mut result, &terms);
    let expected = result.clone();

    let mut contenders: Vec<Contender<'_>> = Vec::new();
    contenders.push((
        "dot",
        Box::new(|| kernel.dot(black_box(&mut result), black_box(&terms))),
    ));
    if let Some(isal) = isal {
        let (dot_terms, mut table_terms) = (isal.prepare_terms(&terms), isal.prepare_terms(&terms));
        let mut sum = vec![0; len];
        isal.dot(&mut sum, &dot_terms);
        assert_eq!(sum, expected, "the sum differs from ISA-L's");
        let (mut table_sum, mut encode_sum) = (vec![0; len], vec![0; len]);
        let encode_terms = isal.prepare_terms(&terms);
        isal.encode(&mut encode_sum, &encode_terms);
        assert_eq!(encode_sum, expected, "the sum differs from ISA-L's");
        let dot = move || isal.dot(black_box(&mut sum), black_box(&dot_terms));
        contenders.push(("ISA-L gf_vect_dot_prod", Box::new(dot)));
        let encode = move || isal.encode(black_box(&mut encode_sum), black_box(&encode_terms));
        contenders.push(("ISA-L ec_encode_data", Box::new(encode)));
        let with_tables = move || {
            isal.expand_coefficients(black_box(&mut table_terms));
            isal.dot(black_box(&mut table_sum), &table_terms);
        };
        contenders.push(("ISA-L, ec_init_tables each time", Box::new(with_tables)));
    }

    let mut encoder = encoder(count, len);
    for symbol in &symbols {
        encoder.push(&[symbol]).expect("not too long");
    }
    let mut out = vec![0; len + 64];
    let encode = move || {
        black_box(black_box(&mut encoder).make_repair(black_box(&mut out)));
    };
    contenders.push(("encoder", Box::new(encode)));

    // The data has one byte less, because this encoder appends a byte.
    let data = symbols.concat()[1..].to_vec();
    let other = rlnc::full::Encoder::new(data, count).expect("an encoder");
    let mut random = SmallRng::seed_from_u64(1);
    let mut piece = vec![0; other.get_full_coded_piece_byte_len()];
    let other = move || {
        let coded = other.code_with_buf(&mut random, black_box(&mut piece));
        coded.expect("a piece");
    };
    contenders.push(("crate rlnc, encoder", Box::new(other)));

    let repeat = 20_000 / (count * len / 160).max(1);
    let mut times = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        for ((_, run), times) in contenders.iter_mut().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..repeat {
                run();
            }
            times.push(start.elapsed().as_nanos() as f64 / repeat as f64);
        }
    }
    let names: Vec<_> = contenders.iter().map(|(name, _)| *name).collect();
    print_ratios(
        &format!("coded packet, {count} symbols of {len} B"),
        &names,
        &times,
    );
}

fn encoder(count: usize, len: usize) -> Encoder {
    let none = Redundancy::new(0, NonZeroU32::MIN);
    Encoder::new(Code::Window(count as u8), none, len, 0)
}

/// Measures one coded packet of a window of 8, and one recovered packet.
fn measure_window_of_8(len: usize) {
    let units = peers::make_symbols(8, len);
    let mut times = vec![Vec::new(); 4];
    for _ in 0..ROUNDS {
        let mut encoder = encoder(8, len);
        let mut out = vec![0; len + 64];
        for unit in &units {
            encoder.push(&[unit]).expect("not too long");
        }
        let start = Instant::now();
        for _ in 0..WINDOWS {
            black_box(black_box(&mut encoder).make_repair(black_box(&mut out)));
        }
        times[0].push(start.elapsed().as_nanos() as f64 / f64::from(WINDOWS));
        let added = time_encoder(&units, true) - time_encoder(&units, false);
        times[1].push(added / f64::from(WINDOWS));
        for losses in [1, 2] {
            let (without, _) = time_decoder(&units, losses, false);
            let (with, recovered) = time_decoder(&units, losses, true);
            times[1 + losses].push((with - without) / f64::from(recovered));
        }
    }
    let names = [
        "encoding, the same window each time",
        "encoding, in a stream",
        "decoding, one loss",
        "decoding, two losses",
    ];
    print_ratios(&format!("window of 8, {len} B"), &names, &times);
}

/// Returns the time of an encoder for windows of 8, ns. If `coded`, a repair packet with separate
/// memory follows each window.
fn time_encoder(units: &[Vec<u8>], coded: bool) -> f64 {
    let len = units[0].len();
    let mut encoder = encoder(8, len);
    let mut packets = vec![vec![1; len + 64]; (WARM_UP + WINDOWS) as usize];
    let mut start = Instant::now();
    for (window, packet) in packets.iter_mut().enumerate() {
        if window == WARM_UP as usize {
            start = Instant::now();
        }
        for unit in units {
            black_box(encoder.push(&[black_box(unit)]));
        }
        if coded {
            black_box(encoder.make_repair(black_box(packet)));
        }
    }
    start.elapsed().as_nanos() as f64
}

/// Returns the time of a decoder for windows of 8 with losses, ns, and the number of recovered
/// packets. If `repaired`, each window has as many repair packets as losses.
fn time_decoder(units: &[Vec<u8>], losses: usize, repaired: bool) -> (f64, u32) {
    let len = units[0].len();
    let mut encoder = encoder(8, len);
    let mut decoder = Decoder::new(Decoder::MIN_CAPACITY, len);
    let mut out = vec![0; len + 64];
    let mut repairs: Vec<Vec<u8>> = Vec::new();
    for _ in 0..WARM_UP + WINDOWS {
        for unit in units {
            encoder.push(&[unit]).expect("not too long");
        }
        for _ in 0..losses {
            let size = encoder.make_repair(&mut out).expect("a packet");
            repairs.push(out[..size].to_vec());
        }
    }
    let (mut recovered, mut esi) = (0, 0);
    let mut start = Instant::now();
    for (window, repairs) in repairs.chunks(losses).enumerate() {
        if window == WARM_UP as usize {
            // The decoder has used all its memory once.
            (recovered, start) = (0, Instant::now());
        }
        let mut sink = |packet: DeliveredPacket<'_>| {
            black_box(packet.adu);
            recovered += 1;
        };
        for unit in &units[losses..] {
            decoder.add_source(esi, &[black_box(unit)], 0, &mut sink);
            decoder.deliver(0, &mut sink);
            esi += 1;
        }
        for repair in repairs.iter().filter(|_| repaired) {
            let Some(CodedPayload::Repair { id, symbol }) = CodedPayload::parse(black_box(repair))
            else {
                continue;
            };
            decoder.add_repair(id, symbol, 0, &mut sink);
            decoder.deliver(0, &mut sink);
        }
        esi += losses as u32;
    }
    (start.elapsed().as_nanos() as f64, recovered)
}

/// Prints the median time of each contender, and its ratio to the first contender.
fn print_ratios(title: &str, names: &[&str], times: &[Vec<f64>]) {
    println!("\n{title}");
    for (name, own) in names.iter().zip(times) {
        let ratios: Vec<f64> = own.iter().zip(&times[0]).map(|(a, b)| a / b).collect();
        let [low, median, high] = median(&ratios);
        let [_, ns, _] = self::median(own);
        println!("  {name:42} {ns:8.1} ns   {median:5.2} times the first [{low:.2}, {high:.2}]");
    }
}

/// Returns the median between the ends of its 95 % confidence interval.
fn median(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let half_width = 1.96 * n.sqrt() / 2.0;
    let at = |rank: f64| sorted[(rank.max(0.0) as usize).min(sorted.len() - 1)];
    [
        at(n / 2.0 - half_width),
        at(n / 2.0),
        at(n / 2.0 + half_width),
    ]
}
