//! The kernel's fair class on a core.

use crate::setup::Scheduler;

const NICE_0_WEIGHT: u32 = 1024;

/// The tasks of a core in the fair class.
#[derive(Debug, Clone)]
pub(crate) struct FairClass {
    tasks: Vec<FairTask>,
    slice_start_ns: u64,
    pub(crate) slice_end_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct FairTask {
    weight: u32,
    /// Weighted run time.
    virtual_ns: u64,
    sleeps: bool,
}

impl FairClass {
    pub(crate) fn new(tasks: usize) -> Self {
        let task = FairTask {
            weight: NICE_0_WEIGHT,
            virtual_ns: 0,
            sleeps: true,
        };
        Self {
            tasks: vec![task; tasks],
            slice_start_ns: 0,
            slice_end_ns: 0,
        }
    }

    pub(crate) fn weigh(&mut self, task: usize, weight: u32) {
        self.tasks[task].weight = weight.max(1);
    }

    /// Charges a task for `reads` reads of `read_ns` each. Tasks that poll use the core also
    /// without packets: [`Self::choose`] charges them.
    pub(crate) fn charge(&mut self, task: usize, read_ns: u64, reads: u32) {
        let task = &mut self.tasks[task];
        let weighted_ns = read_ns.saturating_mul(NICE_0_WEIGHT.into()) / u64::from(task.weight);
        let weighted_ns = weighted_ns.saturating_mul(reads.into());
        task.virtual_ns = task.virtual_ns.saturating_add(weighted_ns);
    }

    /// Chooses the next task at the end of a slice, or when the running one sleeps. Returns it, and
    /// the time to wake it, ns; `None` if all sleep.
    pub(crate) fn choose(
        &mut self,
        now_ns: u64,
        scheduler: Scheduler,
        running: Option<usize>,
        has_packets: impl Fn(usize) -> bool,
    ) -> Option<(usize, u64)> {
        let Scheduler::Fair {
            slice_ns,
            wake_ns,
            polls,
        } = scheduler
        else {
            return None;
        };
        if let (true, Some(task)) = (polls, running) {
            self.charge(task, now_ns.saturating_sub(self.slice_start_ns), 1);
        }
        let can_run = |task: usize| polls || has_packets(task);
        let runnable = (0..self.tasks.len()).filter(|task| can_run(*task));
        let Some(next) = runnable.min_by_key(|task| self.tasks[*task].virtual_ns) else {
            if let Some(task) = running {
                self.tasks[task].sleeps = true;
            }
            return None;
        };
        self.slice_start_ns = now_ns;
        self.slice_end_ns = now_ns.saturating_add(slice_ns);
        if let Some(before) = running.filter(|before| *before != next) {
            self.tasks[before].sleeps = !can_run(before);
        }
        let has_slept = std::mem::take(&mut self.tasks[next].sleeps);
        // A task that slept gets no credit for it.
        let least_ns = self.tasks[next].virtual_ns.saturating_sub(slice_ns);
        for task in &mut self.tasks {
            task.virtual_ns = task.virtual_ns.max(least_ns);
        }
        let wakes = has_slept && !polls;
        Some((next, if wakes { wake_ns } else { 0 }))
    }
}
