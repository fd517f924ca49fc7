//! Occupies a core with a real-time thread, to create a controlled stall. Can also keep a core from
//! sleeping.
//!
//! Packets that arrive while the core is blocked form a burst when the core is released.
//! Calibration measures bursts this way, and `myelin bench bound` compares bounds with such stalls.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use myelin_api::ApiError;
use myelin_linux::priorities::STALL;
use myelin_linux::sched::Policy;
use myelin_linux::{affinity, sched};

use crate::clock::{now_ns, thread_ns};

const FREE: u32 = 0;
const REQUESTED: u32 = 1;
const BLOCKED: u32 = 2;

/// Two threads on one core: a real-time thread that occupies the core on request, and optionally an
/// idle-priority thread that keeps the core awake.
#[derive(Debug)]
pub struct CoreBlocker {
    shared: Arc<Shared>,
    blocker: Option<JoinHandle<()>>,
    awake: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: AtomicU32,
    released_ns: AtomicU64,
    /// CPU time of the thread that keeps the core awake, ns.
    idle_ns: AtomicU64,
    failed: AtomicBool,
    end: AtomicBool,
}

impl CoreBlocker {
    /// Starts the threads on `core`. The real-time thread also has priority over threads of receive
    /// work (`myelin_linux::napi`). `keep_awake` starts the second thread, for cores whose work
    /// does not poll.
    pub fn new(core: usize, keep_awake: bool) -> Self {
        let shared = Arc::new(Shared::default());
        let start = |work: fn(&Shared), policy| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let placed = affinity::set(0, &[core]).and_then(|()| sched::set(0, policy));
                if placed.is_err() {
                    shared.failed.store(true, Ordering::Release);
                    return;
                }
                work(&shared);
            })
        };
        let blocker = Some(start(block_on_request, Policy::Fifo(STALL)));
        let awake = keep_awake.then(|| start(stay_awake, Policy::Idle));
        Self {
            shared,
            blocker,
            awake,
        }
    }

    /// Blocks the core. Afterwards only interrupts run there.
    ///
    /// # Errors
    /// The thread gets no real-time priority.
    pub fn block(&self) -> Result<(), ApiError> {
        self.shared.released_ns.store(0, Ordering::Release);
        self.shared.state.store(REQUESTED, Ordering::Release);
        if let Some(blocker) = &self.blocker {
            blocker.thread().unpark();
        }
        while self.shared.state.load(Ordering::Acquire) != BLOCKED {
            if self.shared.failed.load(Ordering::Acquire) {
                return Err(ApiError::failed(
                    "cannot give a thread real-time priority on the core to block; run as root, in the root CPU control group",
                ));
            }
            spin_loop();
        }
        Ok(())
    }

    /// Releases the core after [`Self::block`]. Returns the time of the release, ns. The thread
    /// itself releases the core earlier if the core was blocked for too long.
    pub fn release(&self) -> u64 {
        self.shared.state.store(FREE, Ordering::Release);
        loop {
            match self.shared.released_ns.load(Ordering::Acquire) {
                0 => spin_loop(),
                ns => return ns,
            }
        }
    }

    /// Time in which no other thread used the core, ns.
    pub fn idle_ns(&self) -> u64 {
        self.shared.idle_ns.load(Ordering::Relaxed)
    }
}

impl Drop for CoreBlocker {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Release);
        self.shared.state.store(FREE, Ordering::Release);
        if let Some(blocker) = &self.blocker {
            blocker.thread().unpark();
        }
        for thread in [self.blocker.take(), self.awake.take()]
            .into_iter()
            .flatten()
        {
            // The threads return no result.
            let _ = thread.join();
        }
    }
}

fn block_on_request(shared: &Shared) {
    // A caller that fails must not keep the core blocked.
    const LONGEST: Duration = Duration::from_millis(50);
    while !shared.end.load(Ordering::Acquire) {
        if shared
            .state
            .compare_exchange(REQUESTED, BLOCKED, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            thread::park();
            continue;
        }
        let start_ns = now_ns();
        while shared.state.load(Ordering::Acquire) == BLOCKED
            && now_ns() - start_ns < LONGEST.as_nanos() as u64
        {
            spin_loop();
        }
        shared.released_ns.store(now_ns(), Ordering::Release);
    }
}

fn stay_awake(shared: &Shared) {
    loop {
        shared.idle_ns.store(thread_ns(), Ordering::Relaxed);
        if shared.end.load(Ordering::Acquire) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_returns_the_time_of_an_automatic_release() {
        let core = affinity::get(0).unwrap()[0];
        let blocker = CoreBlocker::new(core, true);
        // Read before the request, because this thread may run on that core.
        let requested_ns = now_ns();
        if blocker.block().is_err() {
            println!("SKIP: a real-time priority needs root");
            return;
        }
        while blocker.shared.released_ns.load(Ordering::Acquire) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        let slept_ns = now_ns();
        assert!((requested_ns..=slept_ns).contains(&blocker.release()));
        let again_ns = now_ns();
        blocker.block().unwrap();
        assert!(blocker.release() >= again_ns);
    }

    #[test]
    fn both_threads_run_on_the_core() {
        let core = *affinity::get(0).unwrap().last().unwrap();
        let blocker = CoreBlocker::new(core, true);
        if blocker.block().is_err() {
            println!("SKIP: a real-time priority needs root");
            return;
        }
        blocker.release();
        while blocker.idle_ns() == 0 {
            thread::yield_now();
        }
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let on_core: Vec<Policy> = tasks
            .filter_map(|task| {
                let thread = task.ok()?.file_name().to_str()?.parse().ok()?;
                let is_on_core = affinity::get(thread).ok()? == [core];
                sched::get(thread).ok().filter(|_| is_on_core)
            })
            .collect();
        for policy in [Policy::Fifo(STALL), Policy::Idle] {
            assert!(on_core.contains(&policy), "{policy} is not in {on_core:?}");
        }
    }

    #[test]
    fn idle_time_is_the_cpu_time_of_the_awake_thread() {
        let shared = Shared::default();
        shared.end.store(true, Ordering::Release);
        stay_awake(&shared);
        let idle_ns = shared.idle_ns.load(Ordering::Relaxed);
        assert!((1..=thread_ns()).contains(&idle_ns), "{idle_ns}");
        let (start_ns, started_ns) = (now_ns(), thread_ns());
        thread::sleep(Duration::from_millis(20));
        let ran_ns = thread_ns() - started_ns;
        assert!(
            ran_ns + 10_000_000 < now_ns() - start_ns,
            "CPU time does not include sleep"
        );
    }

    #[test]
    fn blocking_a_missing_core_fails() {
        assert!(CoreBlocker::new(1023, false).block().is_err());
    }
}
