//! One file for each command, and helpers that several commands share.

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod completions;
pub(crate) mod conform;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod feed;
pub(crate) mod functions;
pub(crate) mod graph;
mod host;
pub(crate) mod impairment;
pub(crate) mod init;
mod interrupt;
pub(crate) mod link;
pub(crate) mod man;
pub(crate) mod pcap;
pub(crate) mod plan;
pub(crate) mod probe;
pub(crate) mod ps;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod top;
pub(crate) mod up;
pub(crate) mod worker;
