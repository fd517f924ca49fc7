//! Deployment under faults: refused chains, failing system calls, lost interfaces, a killed agent,
//! clients that disconnect or stall, and commands that run at the same time.

mod common;
#[path = "deploy_faults/concurrent_commands.rs"]
mod concurrent_commands;
#[path = "deploy_faults/disconnected_clients.rs"]
mod disconnected_clients;
#[path = "deploy_faults/failing_calls.rs"]
mod failing_calls;
#[path = "deploy_faults/fixtures.rs"]
mod fixtures;
#[path = "deploy_faults/killed_agent.rs"]
mod killed_agent;
#[path = "deploy_faults/lost_links.rs"]
mod lost_links;
#[path = "deploy_faults/refused_chains.rs"]
mod refused_chains;
#[path = "deploy_faults/stalled_clients.rs"]
mod stalled_clients;
#[path = "deploy_faults/steps.rs"]
mod steps;
