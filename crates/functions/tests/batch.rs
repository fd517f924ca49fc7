//! Tests that a batch and single packets give the same results.

mod common;

use myelin_functions::{Batch, Discard, Packet};
use myelin_packet::rules::{Action, Rule};
use myelin_packet::{Meta, fixtures, parse};
use myelin_spec::{FirewallConfig, FragmentPolicy, FunctionConfig, XorConfig};

#[test]
fn a_batch_and_single_packets_give_the_same_results() {
    let tcp_only = FirewallConfig {
        rules: vec![Rule {
            protocol: Some(6),
            ..Rule::any(Action::Allow)
        }],
        default: Action::Deny,
        fragments: FragmentPolicy::Drop,
    };
    let configs = [
        FunctionConfig::Forward,
        FunctionConfig::Xor(XorConfig { key: 7 }),
        FunctionConfig::Firewall(tcp_only),
    ];
    let frames: Vec<Vec<u8>> = fixtures::all()
        .into_iter()
        .filter(|fixture| fixture.expected.is_ok())
        .map(|fixture| fixture.frame)
        .collect();
    for config in configs {
        let mut function = common::function(&config);
        let singly: Vec<Vec<u8>> = frames
            .iter()
            .filter_map(|frame| common::run(&mut *function, frame))
            .collect();
        let mut buffers = frames.clone();
        let mut batch = Batch::with_capacity(frames.len());
        for buffer in &mut buffers {
            let meta = Meta::new(0, 1, 1, 0, &parse(buffer).unwrap());
            let len = buffer.len();
            batch.push(Packet::new(buffer, 0, len, meta, 0).unwrap());
        }
        let dropped = function.process_batch(&mut batch, &mut Discard);
        let together: Vec<Vec<u8>> = batch
            .packets()
            .iter()
            .map(|packet| packet.bytes().to_vec())
            .collect();
        assert_eq!(together, singly, "{config:?}");
        assert_eq!(dropped, frames.len() - singly.len(), "{config:?}");
        assert_eq!(batch.dropped().len(), dropped, "{config:?}");
    }
}
