//! `forward` on the shared list of frames.

mod common;

use myelin_packet::fixtures;
use myelin_spec::FunctionConfig;

#[test]
fn every_frame_goes_on_unchanged() {
    let mut forward = common::function(&FunctionConfig::Forward);
    for fixture in fixtures::all()
        .into_iter()
        .filter(|fixture| fixture.expected.is_ok())
    {
        assert_eq!(
            common::run(&mut *forward, &fixture.frame),
            Some(fixture.frame),
            "{}",
            fixture.name
        );
    }
}
