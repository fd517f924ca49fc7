//! The interface of all controllers.

/// A controller: a state machine that reads a view of the system and decides actions.
///
/// A policy does no I/O and reads no clock. So the same code can run against a live system, in a
/// simulation of ten thousand cores, and in a property test.
pub trait Policy {
    /// The figures that the policy reads.
    type View<'a>;
    /// A change that the policy decides.
    type Action;

    /// Reads `view` at the time `now_ns` and calls `act` for each action, in order. Returns the
    /// time at which the caller must ask again, ns. Times are of one monotonic clock.
    fn decide(
        &mut self,
        now_ns: u64,
        view: Self::View<'_>,
        act: &mut dyn FnMut(Self::Action),
    ) -> u64;
}
