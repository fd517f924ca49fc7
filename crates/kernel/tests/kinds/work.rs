//! `work` changes nothing and takes the time that it is asked to take.

use std::time::Instant;

use myelin_functions::{Batch, Discard, Packet, instantiate};
use myelin_kernel::test_run::{TestRun, run};
use myelin_packet::fixtures;
use myelin_spec::{FunctionConfig, WorkConfig};

use crate::space::{Kernel, meta_of, on_fixtures};

fn work(cycles: u32, cycles_per_byte: u32) -> FunctionConfig {
    FunctionConfig::Work(WorkConfig {
        cycles,
        cycles_per_byte,
    })
}

#[test]
fn every_frame_goes_on_unchanged() {
    on_fixtures(|spaces, fixtures| {
        for functions in [vec![work(0, 0)], vec![work(150, 0), work(7, 3)]] {
            let chains = spaces.load(&functions);
            for fixture in fixtures {
                chains.expect(&fixture.frame, Some(&fixture.frame), fixture.name);
            }
        }
    });
}

/// The least of some runs, which noise only lengthens: what `times` packets take in user space, ns.
fn user_ns(config: &FunctionConfig, frame: &[u8]) -> f64 {
    const TIMES: usize = 10;
    let mut function = instantiate(config).unwrap();
    let took = (0..200).map(|_| {
        let mut buffers = vec![frame.to_vec(); TIMES];
        let mut batch = Batch::with_capacity(TIMES);
        for (token, buffer) in (0..).zip(&mut buffers) {
            let packet = Packet::new(buffer, 0, frame.len(), meta_of(frame, 0), token);
            batch.push(packet.unwrap());
        }
        let begin = Instant::now();
        function.process_batch(&mut batch, &mut Discard);
        begin.elapsed().as_nanos() as f64 / TIMES as f64
    });
    took.fold(f64::INFINITY, f64::min)
}

/// The same of the kernel.
fn kernel_ns(kernel: &Kernel, config: &FunctionConfig, frame: &[u8]) -> f64 {
    let chain = kernel.load_chain(std::slice::from_ref(config));
    let test = TestRun {
        repeat: 20,
        ..TestRun::new(frame)
    };
    let took = (0..200).map(|_| run(chain.program(), kernel.hook, &test).unwrap().mean_ns);
    took.min().unwrap().into()
}

/// Each further cycle takes as long as the ones before, and a byte's cycles as long as a packet's.
fn assert_linear(space: &str, ns: impl Fn(&FunctionConfig) -> f64, bytes: usize) {
    let base = ns(&work(0, 0));
    let [some, more, most] = [2_000, 8_000, 32_000].map(|cycles| ns(&work(cycles, 0)) - base);
    let by_bytes = ns(&work(0, 10)) - base;
    let told = format!("{space}: {base} ns, and {some}, {more}, {most}, {by_bytes}");
    assert!(some > 0.0, "{told}");
    for ratio in [more / some, most / more] {
        assert!((3.4..4.6).contains(&ratio), "{told}");
    }
    let per_cycle = [most / 32_000.0, by_bytes / (10 * bytes) as f64];
    assert!(
        (0.8..1.25).contains(&(per_cycle[1] / per_cycle[0])),
        "{told}"
    );
}

#[test]
fn time_grows_with_the_cycles_in_both_spaces() {
    let mut fixtures = fixtures::all();
    fixtures.retain(|fixture| fixture.expected.is_ok());
    let frames = fixtures.iter().map(|fixture| &fixture.frame);
    let frames = frames.filter(|frame| frame.len() <= 1514);
    let frame = frames.max_by_key(|frame| frame.len()).unwrap();
    assert_linear("user space", |config| user_ns(config, frame), frame.len());
    for kernel in Kernel::at_hooks() {
        let space = kernel.hook.to_string();
        assert_linear(
            &space,
            |config| kernel_ns(&kernel, config, frame),
            frame.len(),
        );
    }
}

/// The longest work that can be asked for is loaded, and bounded.
#[test]
fn the_most_that_can_be_asked_for_is_bounded() {
    let config = WorkConfig {
        cycles: 100_000,
        cycles_per_byte: 100,
    };
    assert_eq!(config.steps(60), (100_000 + 6_000) / 4);
    assert_eq!(config.steps(9000), 50_000);
    for kernel in Kernel::at_hooks() {
        kernel.load_chain(&[FunctionConfig::Work(config)]);
    }
}
