//! The road of a chain through the agent, where it is blocked: refused, killed, failing, called
//! off, or wanted by several at once.

mod common;
#[path = "road/failing.rs"]
mod failing;
#[path = "road/forms.rs"]
mod forms;
#[path = "road/killed.rs"]
mod killed;
#[path = "road/parallel.rs"]
mod parallel;
#[path = "road/refused.rs"]
mod refused;
#[path = "road/stalled.rs"]
mod stalled;
#[path = "road/steps.rs"]
mod steps;
#[path = "road/waiting.rs"]
mod waiting;
