//! Checks that `work` changes no packet and takes the configured time.

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
fn every_frame_passes_unchanged() {
    on_fixtures(|spaces, fixtures| {
        for functions in [vec![work(0, 0)], vec![work(150, 0), work(7, 3)]] {
            let chains = spaces.load(&functions);
            for fixture in fixtures {
                chains.expect(&fixture.frame, Some(&fixture.frame), fixture.name);
            }
        }
    });
}

/// Returns the shortest time of `rounds` runs of each subject, because noise only lengthens a run.
/// Alternates the subjects, so a change of the clock rate affects all subjects alike.
fn measure_min_ns<T>(
    rounds: u32,
    subjects: &mut [T],
    mut run: impl FnMut(&mut T) -> f64,
) -> Vec<f64> {
    let mut min_ns = vec![f64::INFINITY; subjects.len()];
    for _ in 0..rounds {
        for (min_ns, subject) in min_ns.iter_mut().zip(subjects.iter_mut()) {
            *min_ns = min_ns.min(run(subject));
        }
    }
    min_ns
}

/// Measures the time of a packet in user space for each configuration, ns.
fn measure_user_ns(configs: &[FunctionConfig], frame: &[u8]) -> Vec<f64> {
    const PACKETS: usize = 10;
    let mut functions: Vec<_> = configs
        .iter()
        .map(|config| instantiate(config).unwrap())
        .collect();
    measure_min_ns(200, &mut functions, |function| {
        let mut buffers = vec![frame.to_vec(); PACKETS];
        let mut batch = Batch::with_capacity(PACKETS);
        for (token, buffer) in (0..).zip(&mut buffers) {
            let packet = Packet::new(buffer, 0, frame.len(), meta_of(frame, 0), token);
            batch.push(packet.unwrap());
        }
        let begin = Instant::now();
        function.process_batch(&mut batch, &mut Discard);
        begin.elapsed().as_nanos() as f64 / PACKETS as f64
    })
}

/// Measures the time of a packet in the kernel for each configuration, ns.
fn measure_kernel_ns(kernel: &Kernel, configs: &[FunctionConfig], frame: &[u8]) -> Vec<f64> {
    let chain = |config| kernel.load_chain(std::slice::from_ref(config));
    let mut chains: Vec<_> = configs.iter().map(chain).collect();
    let test = TestRun {
        repeat: 20,
        ..TestRun::new(frame)
    };
    // A run at XDP changes the kernel's dispatcher, which waits for an RCU grace period of about 8
    // ms.
    measure_min_ns(40, &mut chains, |chain| {
        run(chain.program(), kernel.hook, &test)
            .unwrap()
            .mean_ns
            .into()
    })
}

/// Checks that the cycles per packet and the cycles per byte take the same time per cycle.
fn assert_linear(space: &str, measure: impl Fn(&[FunctionConfig]) -> Vec<f64>, bytes: usize) {
    let cycles = [(0, 0), (2_000, 0), (8_000, 0), (32_000, 0), (0, 10)];
    let ns = measure(&cycles.map(|(cycles, cycles_per_byte)| work(cycles, cycles_per_byte)));
    let [for_2k, for_8k, for_32k, for_bytes] = [1, 2, 3, 4].map(|index| ns[index] - ns[0]);
    let report = format!(
        "{space}: {} ns without work; 2000, 8000, 32000 cycles and 10 cycles per byte add \
         {for_2k}, {for_8k}, {for_32k}, {for_bytes} ns",
        ns[0]
    );
    assert!(for_2k > 0.0, "{report}");
    for ratio in [for_8k / for_2k, for_32k / for_8k] {
        assert!((3.4..4.6).contains(&ratio), "{report}");
    }
    let per_cycle = [for_32k / 32_000.0, for_bytes / (10 * bytes) as f64];
    assert!(
        (0.8..1.25).contains(&(per_cycle[1] / per_cycle[0])),
        "{report}"
    );
}

/// Returns the longest frame that fits into a packet.
fn longest_frame() -> Vec<u8> {
    let mut fixtures = fixtures::all();
    fixtures.retain(|fixture| fixture.expected.is_ok());
    let frames = fixtures.iter().map(|fixture| &fixture.frame);
    let frames = frames.filter(|frame| frame.len() <= 1514);
    frames.max_by_key(|frame| frame.len()).unwrap().clone()
}

/// No machine runs 100000 cycles in less than 10 us.
#[test]
fn work_takes_at_least_its_cycles_in_both_spaces() {
    let (frame, configs) = (longest_frame(), [work(100_000, 0)]);
    assert!(measure_user_ns(&configs, &frame)[0] > 10_000.0);
    for kernel in Kernel::at_hooks() {
        let ns = measure_kernel_ns(&kernel, &configs, &frame)[0];
        assert!(ns > 10_000.0, "{}: {ns}", kernel.hook);
    }
}

#[test]
#[ignore = "thorough: measures the time of cycles on a quiet machine"]
fn time_grows_with_the_cycles_in_both_spaces() {
    let frame = &longest_frame();
    assert_linear(
        "user space",
        |configs| measure_user_ns(configs, frame),
        frame.len(),
    );
    for kernel in Kernel::at_hooks() {
        let space = kernel.hook.to_string();
        assert_linear(
            &space,
            |configs| measure_kernel_ns(&kernel, configs, frame),
            frame.len(),
        );
    }
}

/// The verifier accepts the longest work. The number of steps is bounded.
#[test]
fn the_longest_work_is_bounded() {
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
