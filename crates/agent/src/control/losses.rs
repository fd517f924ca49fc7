//! Judges the loss of each chain over nodes once a second, from the first node to the last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::deploy::spans;
use crate::node::Node;

/// Time between two readings of a chain.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Judges until the node is dropped.
pub(crate) fn start(node: &Arc<Node>) {
    let node = Arc::downgrade(node);
    let started = Instant::now();
    std::thread::spawn(move || {
        while let Some(node) = node.upgrade() {
            for span in node.spans.all() {
                spans::judge_loss(&node, &span, started.elapsed());
            }
            drop(node);
            std::thread::sleep(READ_INTERVAL);
        }
    });
}
