//! Tests that the agent can read the flows of a worker's functions while packets pass.

mod common;

use std::time::{Duration, Instant};

use common::{
    ADAPTIVE, Network, TO_SERVER, UdpPath, config, connect_udp, echo, is_root, wait_until,
};
use myelin_spec::{FunctionConfig, MonitorConfig};

#[test]
fn flows_are_read_from_a_running_worker_and_end_with_it() {
    if !is_root() {
        return;
    }
    let network = Network::new();
    // The table has more entries than fit into one page.
    let monitor = FunctionConfig::Monitor(MonitorConfig { flows: 3000 });
    let functions = vec![FunctionConfig::Forward, monitor];
    let mut path = UdpPath::new(&network, config(8, ADAPTIVE), functions);
    let (client, server) = connect_udp(&network);
    let start = Instant::now();
    for _ in 0..20 {
        echo(&client, &server, b"counted", b"counted").unwrap();
        let flows = path.worker.flows(TO_SERVER, 0, 1).unwrap().unwrap();
        assert_eq!(flows.records.len(), 1);
    }
    let flows = path.worker.flows(TO_SERVER, 0, 1).unwrap().unwrap();
    assert_eq!((flows.records[0].packets, flows.totals.begun), (20, 1));
    assert_eq!(flows.records[0].bytes, 20 * (14 + 20 + 8 + 7));
    let age = flows.records[0].last_ns - flows.records[0].first_ns;
    assert!(age > 0 && u128::from(age) < start.elapsed().as_nanos());

    assert_eq!(path.worker.flows(TO_SERVER, 0, 0).unwrap(), None);
    assert_eq!(path.worker.flows(TO_SERVER, 9, 1).unwrap(), None);

    path.worker.restart().unwrap();
    let flows = path.worker.flows(TO_SERVER, 0, 1).unwrap().unwrap();
    assert!(flows.records.is_empty());
    // A packet may be lost during the restart.
    for socket in [&client, &server] {
        socket
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
    }
    let again = || echo(&client, &server, b"again", b"again").is_ok();
    assert!(wait_until(again));
    let flows = path.worker.flows(TO_SERVER, 0, 1).unwrap().unwrap();
    assert_eq!(flows.records.len(), 1);
}
