//! Measures the cost of a descriptor ring between two processes. The cost is half a round trip over
//! two rings between two cores.

use std::time::Instant;

use myelin_api::ApiError;
use myelin_dataplane::spsc::{RingFile, SharedConsumer, SharedProducer};
use myelin_linux::affinity;
use myelin_planner::{Cost, StepCosts};

use super::{Result, median};

/// Number of round trips in one measurement. They take some milliseconds.
const REPEAT: u64 = 10_000;
/// Length of a descriptor, words.
const WORDS: usize = 2;

/// Measures the cost of a packet. Returns the built-in cost if there is only one core.
pub(super) fn measure(rounds: usize) -> Result<Cost> {
    let cores = affinity::get(0)?;
    let [here, .., there] = cores[..] else {
        return Ok(StepCosts::default().ring);
    };
    let figures = (0..rounds)
        .map(|_| measure_one_way_ns(here, there))
        .collect::<Result<_, _>>()?;
    Ok(Cost::new(median(figures), 0.0))
}

/// Measures the mean one-way time, ns.
fn measure_one_way_ns(here: usize, there: usize) -> Result<f64> {
    let forth = RingFile::create(64, WORDS)?;
    let back = RingFile::create(64, WORDS)?;
    let (to, from) = (forth.producer()?, back.consumer()?);
    let (echo_from, echo_to) = (forth.consumer()?, back.producer()?);
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || echo(there, echo_from, echo_to));
        // Use a new thread, so that the caller's CPU affinity does not change.
        let ping = scope.spawn(move || ping(here, to, from));
        echo.join().map_err(|_| thread_error())??;
        ping.join().map_err(|_| thread_error())?
    })
}

fn ping(
    core: usize,
    mut to: SharedProducer<WORDS>,
    mut from: SharedConsumer<WORDS>,
) -> Result<f64> {
    // Send the packets even if this fails, because the other thread waits for them.
    let pinned = affinity::set(0, &[core]);
    let start = Instant::now();
    for number in 0..REPEAT {
        to.enqueue(&[[number; WORDS]]);
        while from.dequeue(&mut [[0; WORDS]]) == 0 {
            std::hint::spin_loop();
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / (2 * REPEAT) as f64;
    pinned?;
    Ok(ns)
}

fn echo(core: usize, mut from: SharedConsumer<WORDS>, mut to: SharedProducer<WORDS>) -> Result<()> {
    let pinned = affinity::set(0, &[core]);
    for _ in 0..REPEAT {
        let mut descriptor = [[0; WORDS]];
        while from.dequeue(&mut descriptor) == 0 {
            std::hint::spin_loop();
        }
        to.enqueue(&descriptor);
    }
    Ok(pinned?)
}

fn thread_error() -> ApiError {
    ApiError::failed("cannot measure the rings: a thread panicked; please report it")
}
