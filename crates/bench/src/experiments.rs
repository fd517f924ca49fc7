//! All experiments, each a file that declares its name, its plots and its code.

mod accounting;
mod bound;
mod bulk;
pub(crate) mod calvin_advanced;
mod calvin_bandwidth;
mod calvin_chain;
mod calvin_cpu;
mod calvin_technologies;
mod chain_length;
mod chains_at_port;
mod classifier;
mod coding_loss;
mod containers;
pub(crate) mod deploy;
mod dpdk_port;
mod emulator_fidelity;
mod emulator_scale;
mod firewall;
mod framework;
mod hop_cost;
mod kernel_chain;
mod look_ups;
mod migration;
mod peers;
mod pendulum;
mod placement;
mod policing;
mod rate_bucket;
mod rate_isolation;
mod rate_overhead;
mod rings;
mod sfc_gap;
mod sfc_owd;
mod sfc_rendering;
mod sharing_delay;
mod switch_cost;
mod unis_agreement;
mod unis_batches;
mod unis_density;
mod unis_latency;
mod unis_motivation;
mod unis_multi;
mod unis_occupancy;
mod unis_scale;
mod unis_slices;
mod unis_throughput;

use crate::Experiment;

pub(crate) const ALL: &[Experiment] = &[
    hop_cost::EXPERIMENT,
    kernel_chain::EXPERIMENT,
    classifier::EXPERIMENT,
    deploy::EXPERIMENT,
    calvin_technologies::EXPERIMENT,
    calvin_chain::EXPERIMENT,
    calvin_bandwidth::EXPERIMENT,
    calvin_cpu::EXPERIMENT,
    calvin_advanced::EXPERIMENT,
    coding_loss::EXPERIMENT,
    chain_length::EXPERIMENT,
    dpdk_port::EXPERIMENT,
    peers::EXPERIMENT,
    bulk::EXPERIMENT,
    framework::EXPERIMENT,
    rings::EXPERIMENT,
    look_ups::EXPERIMENT,
    rate_isolation::EXPERIMENT,
    rate_overhead::EXPERIMENT,
    rate_bucket::EXPERIMENT,
    bound::EXPERIMENT,
    switch_cost::EXPERIMENT,
    sharing_delay::EXPERIMENT,
    unis_motivation::EXPERIMENT,
    unis_throughput::EXPERIMENT,
    unis_latency::EXPERIMENT,
    unis_slices::EXPERIMENT,
    unis_agreement::EXPERIMENT,
    unis_batches::EXPERIMENT,
    unis_density::EXPERIMENT,
    unis_multi::EXPERIMENT,
    unis_occupancy::EXPERIMENT,
    unis_scale::EXPERIMENT,
    placement::EXPERIMENT,
    emulator_scale::EXPERIMENT,
    emulator_fidelity::EXPERIMENT,
    pendulum::EXPERIMENT,
    sfc_rendering::EXPERIMENT,
    sfc_gap::EXPERIMENT,
    sfc_owd::EXPERIMENT,
    containers::EXPERIMENT,
    migration::EXPERIMENT,
];
