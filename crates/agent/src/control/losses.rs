//! Judges the loss of each chain over nodes once a second, from the first node to the last. Each
//! chain has a thread, so a silent agent delays only the chains with parts on its node.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::control::sampler::SharedMonitor;
use crate::control::watched::Watched;
use crate::deploy::spans;
use crate::node::Node;
use crate::node::spans::RunningSpan;

/// Time between two readings of a chain.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Judges until the node is dropped. Violations get serial numbers of the monitor.
pub(crate) fn start(node: &Arc<Node>, monitor: &SharedMonitor) {
    let (node, monitor) = (Arc::downgrade(node), Arc::clone(monitor));
    std::thread::spawn(move || {
        let mut judged = Watched::default();
        while let Some(running) = node.upgrade() {
            for span in running.spans.all() {
                judged.start_missing(&span, 1, |_| {
                    let span = Arc::downgrade(&span);
                    judge(Weak::clone(&node), span, Arc::clone(&monitor))
                });
            }
            drop(running);
            std::thread::sleep(READ_INTERVAL);
        }
    });
}

/// Judges one generation of a chain, in a thread, until it is dropped.
fn judge(node: Weak<Node>, span: Weak<RunningSpan>, monitor: SharedMonitor) -> io::Result<()> {
    let judging = std::thread::Builder::new().spawn(move || {
        while let Some((node, span)) = node.upgrade().zip(span.upgrade()) {
            // A failed change may bring a previous generation back.
            let current = node.spans.get(&span.chain.name);
            if current.is_some_and(|current| Arc::ptr_eq(&current, &span)) {
                spans::judge_loss(&node, &span, &monitor);
            }
            drop((span, node));
            std::thread::sleep(READ_INTERVAL);
        }
    });
    judging.map(drop)
}
