//! Tests the programs of a delay line: packets enter with a tag, get their time of arrival at the
//! far end, and leave only with the number of a direction. The tests of the dataplane and of the
//! command line send real packets.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use myelin_kernel::test_run::{self, Outcome, TestRun};
use myelin_kernel::{DelayLink, Delivery, Hook, Plane, TrafficDirection};
use myelin_packet::fixtures;

use crate::chain::clock_ns;
use crate::common::{LOOPBACK, can_run, create_plane, is_root};

const NAME: &str = "lo";
/// `DELAYED_MARK` of `delay.h`.
const DELAYED: u32 = 0x4d79_646c;

fn create_link(plane: &Plane) -> Arc<DelayLink> {
    let end = (NAME, LOOPBACK);
    plane.add_delay_link(end, end).unwrap()
}

fn run(program: BorrowedFd<'_>, test: &TestRun<'_>) -> Outcome {
    test_run::run(program, Hook::Tcx, test).unwrap()
}

#[test]
fn packets_enter_once_and_count_with_their_segments() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let link = create_link(&plane);
    for number in [0, 4095] {
        let refused = link.load_direction(number).unwrap_err().to_string();
        assert!(refused.contains(&number.to_string()), "{refused}");
    }
    let enter = link.load_direction(7).unwrap();
    let end = ("myelin-none", u32::MAX);
    let refused = enter.attach(end, TrafficDirection::In, Delivery::Transmit(1));
    assert!(refused.unwrap_err().to_string().contains("myelin-none"));
    let mut entered = 0;
    for fixture in fixtures::all() {
        if !can_run(Hook::Tcx, &fixture.frame) {
            continue;
        }
        let test = TestRun {
            gso_segs: 3,
            gso_size: 1,
            ..TestRun::new(&fixture.frame)
        };
        let outcome = run(enter.program(), &test);
        entered += 3;
        assert_eq!(outcome.verdict, Hook::Tcx.redirect(), "{}", fixture.name);
        assert_eq!(outcome.frame, fixture.frame, "the tag is beside the frame");
        let delayed = TestRun {
            mark: DELAYED,
            ..test
        };
        let outcome = run(enter.program(), &delayed);
        assert_eq!(outcome.verdict, Hook::Tcx.pass(), "{}", fixture.name);
        assert_eq!((outcome.mark, outcome.frame), (0, fixture.frame));
        let counters = enter.counters();
        assert_eq!((counters.packets, counters.drops), (entered, 0));
    }
    assert!(entered > 30);
}

#[test]
fn frames_at_the_far_end_get_their_time_of_arrival() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let link = create_link(&plane);
    let frame = fixtures::all().remove(0).frame;
    let before_ns = clock_ns();
    let outcome = test_run::run(link.stamp_program(), Hook::Xdp, &TestRun::new(&frame)).unwrap();
    assert_eq!(outcome.verdict, Hook::Xdp.drop(), "there is no socket");
    assert_eq!(outcome.frame, frame);
    let stamp_ns = outcome.meta.unwrap().stamp_ns;
    assert!((before_ns..=clock_ns()).contains(&stamp_ns));
    assert_eq!(link.counters().to_worker.packets, 1);
    assert!(link.stamp_program().as_raw_fd() > 0);
}

#[test]
fn frames_without_a_tag_do_not_leave() {
    if !is_root() {
        return;
    }
    let plane = create_plane();
    let link = create_link(&plane);
    let mut dropped = 0;
    for fixture in fixtures::all() {
        if !can_run(Hook::Tcx, &fixture.frame) {
            continue;
        }
        let outcome = run(link.leave_program(), &TestRun::new(&fixture.frame));
        dropped += 1;
        assert_eq!(outcome.verdict, Hook::Tcx.drop(), "{}", fixture.name);
        let counters = link.counters().from_worker;
        assert_eq!((counters.packets, counters.drops), (dropped, dropped));
    }
    assert!(dropped > 10);
}
