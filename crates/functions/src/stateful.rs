//! Functions with a state.

use crate::{Batch, Emitter, FlowPage, Function, Packet, SharedState, Verdict};

/// A service function with a [`mod@state`](crate::state). The methods correspond to those of
/// [`Function`], and get the state as an argument.
pub trait Stateful: Send {
    /// The memory of the function.
    type State: Send + Sync;

    /// Processes one packet in place.
    fn process(
        &mut self,
        state: &mut Self::State,
        packet: &mut Packet<'_>,
        emitter: &mut dyn Emitter,
    ) -> Verdict;

    /// Prepares a batch.
    #[inline]
    fn begin_batch(&mut self, _state: &mut Self::State) {}

    /// Returns the verdict while another thread holds the state.
    fn verdict_without_state(&self) -> Verdict {
        Verdict::Drop
    }

    fn needs_time(&self) -> bool {
        false
    }

    fn set_time(&mut self, _now_ns: u64) {}

    fn timer_period_ns(&self) -> Option<u64> {
        None
    }

    fn run_timer(&mut self, _state: &mut Self::State, _now_ns: u64, _emitter: &mut dyn Emitter) {}

    fn read_counters(&self, _state: &Self::State, _sink: &mut dyn FnMut(&'static str, u64)) {}

    fn read_flows(&self, _state: &Self::State, _page: &mut FlowPage) {}
}

/// A function with its state. Borrows the state once a batch.
#[derive(Debug)]
pub struct WithState<F: Stateful> {
    function: F,
    state: SharedState<F::State>,
}

impl<F: Stateful> WithState<F> {
    /// Combines a function and its state.
    pub fn new(function: F, state: SharedState<F::State>) -> Self {
        Self { function, state }
    }
}

impl<F: Stateful> Function for WithState<F> {
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict {
        let Some(mut state) = self.state.try_borrow() else {
            return self.function.verdict_without_state();
        };
        self.function.begin_batch(&mut state);
        self.function.process(&mut state, packet, emitter)
    }

    fn process_batch(&mut self, batch: &mut Batch<'_>, emitter: &mut dyn Emitter) -> usize {
        let Some(mut state) = self.state.try_borrow() else {
            return batch.retain(|_| self.function.verdict_without_state());
        };
        self.function.begin_batch(&mut state);
        batch.retain(|packet| self.function.process(&mut state, packet, emitter))
    }

    fn needs_time(&self) -> bool {
        self.function.needs_time()
    }

    fn set_time(&mut self, now_ns: u64) {
        self.function.set_time(now_ns);
    }

    fn timer_period_ns(&self) -> Option<u64> {
        self.function.timer_period_ns()
    }

    fn run_timer(&mut self, now_ns: u64, emitter: &mut dyn Emitter) {
        if let Some(mut state) = self.state.try_borrow() {
            self.function.run_timer(&mut state, now_ns, emitter);
        }
    }

    fn read_counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        if let Some(state) = self.state.try_borrow() {
            self.function.read_counters(&state, sink);
        }
    }

    fn read_flows(&self, page: &mut FlowPage) {
        if let Some(state) = self.state.try_borrow() {
            self.function.read_flows(&state, page);
        }
    }
}
