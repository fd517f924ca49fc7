//! Measures the cost of a descriptor of 64 bytes in a ring, in batches of 1 and 32, within one
//! thread and between two threads.
//!
//! Run `cargo bench -p myelin-dataplane --bench spsc`. Within one thread only the instructions
//! count. Between two threads the transfer of cache lines dominates.

use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use myelin_dataplane::spsc::RingFile;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const ENTRIES: u32 = 1024;
/// 64 bytes.
const WORDS: usize = 8;

/// Enqueues and dequeues `BATCH` descriptors at a time.
fn within_one_thread<const BATCH: usize>(count: u64) -> Duration {
    let file = RingFile::create(ENTRIES, WORDS).expect("a ring");
    let mut producer = file.producer::<WORDS>().expect("the producer's end");
    let mut consumer = file.consumer::<WORDS>().expect("the consumer's end");
    let items = [[7; WORDS]; BATCH];
    let mut out = [[0; WORDS]; BATCH];
    let start = Instant::now();
    for _ in 0..count.div_ceil(BATCH as u64) {
        producer.enqueue(black_box(&items));
        consumer.dequeue(black_box(&mut out));
    }
    start.elapsed()
}

/// Sends descriptors from one core to another at full speed.
fn between_two_threads<const BATCH: usize>(count: u64) -> Duration {
    let file = RingFile::create(ENTRIES, WORDS).expect("a ring");
    let mut producer = file.producer::<WORDS>().expect("the producer's end");
    let mut consumer = file.consumer::<WORDS>().expect("the consumer's end");
    let batches = count.div_ceil(BATCH as u64);
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            pin_to(0);
            let items = [[7; WORDS]; BATCH];
            for _ in 0..batches {
                let mut sent = 0;
                while sent < BATCH {
                    match producer.enqueue(black_box(&items[sent..])) {
                        0 => spin_loop(),
                        accepted => sent += accepted,
                    }
                }
            }
        });
        let receiver = scope.spawn(move || {
            pin_to(1);
            let mut out = [[0; WORDS]; BATCH];
            let (mut missing, start) = (batches * BATCH as u64, Instant::now());
            while missing > 0 {
                match consumer.dequeue(black_box(&mut out)) {
                    0 => spin_loop(),
                    found => missing -= found as u64,
                }
            }
            start.elapsed()
        });
        sender.join().expect("the sender");
        receiver.join().expect("the receiver")
    })
}

/// Pins this thread to an allowed core. On a machine with fewer cores the thread stays unpinned.
fn pin_to(index: usize) {
    let this = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this) else {
        return;
    };
    let core = (0..CpuSet::count())
        .filter(|&core| allowed.is_set(core) == Ok(true))
        .nth(index);
    let mut set = CpuSet::new();
    if let Some(core) = core
        && set.set(core).is_ok()
    {
        let _ = sched_setaffinity(this, &set);
    }
}

fn spsc(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("spsc");
    group.throughput(Throughput::Elements(1));
    group.bench_function(BenchmarkId::new("one-thread", 1), |bencher| {
        bencher.iter_custom(within_one_thread::<1>);
    });
    group.bench_function(BenchmarkId::new("one-thread", 32), |bencher| {
        bencher.iter_custom(within_one_thread::<32>);
    });
    group.bench_function(BenchmarkId::new("two-threads", 1), |bencher| {
        bencher.iter_custom(between_two_threads::<1>);
    });
    group.bench_function(BenchmarkId::new("two-threads", 32), |bencher| {
        bencher.iter_custom(between_two_threads::<32>);
    });
    group.finish();
}

criterion_group!(benches, spsc);
criterion_main!(benches);
