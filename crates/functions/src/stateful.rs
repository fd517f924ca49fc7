//! Functions that work on a state.

use crate::{Batch, Emitter, FlowPage, Function, Packet, Shared, Verdict};

/// A service function that works on a [`mod@state`](crate::state): what [`Function`] says of each method holds here, with the state at
/// hand.
pub trait Stateful: Send {
    /// What it remembers.
    type State: Send + Sync;

    /// Handles one packet, in place.
    fn process(
        &mut self,
        state: &mut Self::State,
        packet: &mut Packet<'_>,
        emitter: &mut dyn Emitter,
    ) -> Verdict;

    /// Gets ready for a batch.
    #[inline]
    fn begin(&mut self, _state: &mut Self::State) {}

    /// What becomes of packets when the state cannot be entered.
    fn without_state(&self) -> Verdict {
        Verdict::Drop
    }

    fn needs_time(&self) -> bool {
        false
    }

    fn set_time(&mut self, _now_ns: u64) {}

    fn timer_ns(&self) -> Option<u64> {
        None
    }

    fn expire(&mut self, _state: &mut Self::State, _now_ns: u64, _emitter: &mut dyn Emitter) {}

    fn read_counters(&self, _state: &Self::State, _sink: &mut dyn FnMut(&'static str, u64)) {}

    fn read_flows(&self, _state: &Self::State, _page: &mut FlowPage) {}
}

/// A function with its state, which is entered once a batch.
#[derive(Debug)]
pub struct WithState<F: Stateful> {
    function: F,
    state: Shared<F::State>,
}

impl<F: Stateful> WithState<F> {
    /// That function on that state.
    pub fn new(function: F, state: Shared<F::State>) -> Self {
        Self { function, state }
    }
}

impl<F: Stateful> Function for WithState<F> {
    fn process(&mut self, packet: &mut Packet<'_>, emitter: &mut dyn Emitter) -> Verdict {
        let Some(mut state) = self.state.enter() else {
            return self.function.without_state();
        };
        self.function.begin(&mut state);
        self.function.process(&mut state, packet, emitter)
    }

    fn process_batch(&mut self, batch: &mut Batch<'_>, emitter: &mut dyn Emitter) -> usize {
        let Some(mut state) = self.state.enter() else {
            return batch.retain(|_| self.function.without_state());
        };
        self.function.begin(&mut state);
        batch.retain(|packet| self.function.process(&mut state, packet, emitter))
    }

    fn needs_time(&self) -> bool {
        self.function.needs_time()
    }

    fn set_time(&mut self, now_ns: u64) {
        self.function.set_time(now_ns);
    }

    fn timer_ns(&self) -> Option<u64> {
        self.function.timer_ns()
    }

    fn expire(&mut self, now_ns: u64, emitter: &mut dyn Emitter) {
        if let Some(mut state) = self.state.enter() {
            self.function.expire(&mut state, now_ns, emitter);
        }
    }

    fn read_counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        if let Some(state) = self.state.enter() {
            self.function.read_counters(&state, sink);
        }
    }

    fn read_flows(&self, page: &mut FlowPage) {
        if let Some(state) = self.state.enter() {
            self.function.read_flows(&state, page);
        }
    }
}
