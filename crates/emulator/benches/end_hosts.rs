//! Measures the creation and the removal of a chain's end hosts. Run
//! `cargo bench -p myelin-emulator` as root.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use myelin_emulator::{Config, EndHosts};
use myelin_linux::journal::Journal;
use myelin_packet::Match;

/// Returns the total time of the creations, or of the removals.
fn measure(rounds: u64, creation: bool) -> Duration {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let journal = Journal::open(&directory.path().join("journal")).expect("a journal");
    let (run, matches) = (format!("bench {}", std::process::id()), Match::default());
    let config = Config {
        run: &run,
        chain: "bench",
        matches: &matches,
        mtu: 1500,
    };
    let mut total = Duration::ZERO;
    for _ in 0..rounds {
        let start = Instant::now();
        let hosts = black_box(EndHosts::create(&config, &journal)).expect("end hosts");
        let made = Instant::now();
        drop(hosts);
        assert_eq!(
            journal.replay(),
            [],
            "the journal lists objects after the removal"
        );
        total += if creation {
            made - start
        } else {
            made.elapsed()
        };
    }
    total
}

fn bench_end_hosts(criterion: &mut Criterion) {
    if !myelin_linux::capability::is_root() {
        println!("skipped: creating network namespaces needs root");
        return;
    }
    criterion.bench_function("end hosts: create", |bencher| {
        bencher.iter_custom(|rounds| measure(rounds, true));
    });
    criterion.bench_function("end hosts: destroy", |bencher| {
        bencher.iter_custom(|rounds| measure(rounds, false));
    });
}

criterion_group!(benches, bench_end_hosts);
criterion_main!(benches);
