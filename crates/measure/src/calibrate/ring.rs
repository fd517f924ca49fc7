//! What a descriptor ring between two processes costs a packet: half a round trip over two rings between two cores.

use std::time::Instant;

use myelin_api::ApiError;
use myelin_dataplane::spsc::{RingFile, SharedConsumer, SharedProducer};
use myelin_linux::affinity;
use myelin_planner::{Cost, StepCosts};

use super::median;

/// Round trips in one measurement: some milliseconds.
const REPEAT: u64 = 10_000;
/// Words of a descriptor.
const WORDS: usize = 2;

/// Measures; the built-in cost where there is one core only.
pub(super) fn measure(rounds: usize) -> Result<Cost, ApiError> {
    let cores = affinity::get(0).map_err(ApiError::failed)?;
    let [here, .., there] = cores[..] else {
        return Ok(StepCosts::default().ring);
    };
    let figures = (0..rounds)
        .map(|_| once(here, there))
        .collect::<Result<_, _>>()?;
    Ok(Cost::new(median(figures), 0.0))
}

/// Mean time of one way, ns.
fn once(here: usize, there: usize) -> Result<f64, ApiError> {
    let rings = [RingFile::create(64, WORDS), RingFile::create(64, WORDS)];
    let [forth, back] = rings.map(|ring| ring.map_err(ApiError::failed));
    let (forth, back) = (forth?, back?);
    let (to, from) = (producer(&forth)?, consumer(&back)?);
    let (echo_from, echo_to) = (consumer(&forth)?, producer(&back)?);
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || echo(there, echo_from, echo_to));
        // A thread of its own: the caller's stays where it is.
        let ping = scope.spawn(move || ping(here, to, from));
        echo.join().map_err(|_| ended())??;
        ping.join().map_err(|_| ended())?
    })
}

fn ping(
    core: usize,
    mut to: SharedProducer<WORDS>,
    mut from: SharedConsumer<WORDS>,
) -> Result<f64, ApiError> {
    // The other one must not wait for ever: on a failure here the packets are sent all the same.
    let pinned = affinity::set(0, &[core]).map_err(ApiError::failed);
    let start = Instant::now();
    for number in 0..REPEAT {
        to.enqueue(&[[number; WORDS]]);
        while from.dequeue(&mut [[0; WORDS]]) == 0 {
            std::hint::spin_loop();
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / (2 * REPEAT) as f64;
    pinned.map(|()| ns)
}

fn echo(
    core: usize,
    mut from: SharedConsumer<WORDS>,
    mut to: SharedProducer<WORDS>,
) -> Result<(), ApiError> {
    let pinned = affinity::set(0, &[core]).map_err(ApiError::failed);
    for _ in 0..REPEAT {
        let mut descriptor = [[0; WORDS]];
        while from.dequeue(&mut descriptor) == 0 {
            std::hint::spin_loop();
        }
        to.enqueue(&descriptor);
    }
    pinned
}

fn producer(ring: &RingFile) -> Result<SharedProducer<WORDS>, ApiError> {
    ring.producer().map_err(ApiError::failed)
}

fn consumer(ring: &RingFile) -> Result<SharedConsumer<WORDS>, ApiError> {
    ring.consumer().map_err(ApiError::failed)
}

fn ended() -> ApiError {
    ApiError::failed("measuring the rings: a thread ended early")
}
