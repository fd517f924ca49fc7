//! `spec.cpuLatency`: held while the chain is up, and by nothing but a living agent.

mod common;

use std::fs::File;
use std::io::Read;

use common::{Myelin, skip_unless_root, wait_for};

const DEVICE: &str = "/dev/cpu_dma_latency";

const CHAIN: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @k }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  functions: [ { name: f, kind: forward } ]
  cpuLatency: 3us
";

/// The limit that holds, us.
fn limit() -> i32 {
    let mut value = [0; 4];
    let mut device = File::open(DEVICE).expect(DEVICE);
    device.read_exact(&mut value).expect("four bytes");
    i32::from_ne_bytes(value)
}

#[test]
fn a_chain_limits_how_long_cores_take_to_wake_while_it_is_up() {
    if skip_unless_root() {
        return;
    }
    if let Err(error) = myelin_linux::pm_qos::idle_driver() {
        println!("skipped a_chain_limits_how_long_cores_take_to_wake_while_it_is_up: {error}");
        return;
    }
    let myelin = Myelin::new();
    let before = limit();
    if before <= 3 {
        println!(
            "skipped a_chain_limits_how_long_cores_take_to_wake_while_it_is_up: somebody limits it to {before} us"
        );
        return;
    }
    let limited = myelin.file(CHAIN);
    let free = myelin.file(&CHAIN.replace("  cpuLatency: 3us\n", ""));
    let up = |file: &std::path::Path| myelin.ok(&["up", file.to_str().unwrap()]);
    up(&limited);
    assert_eq!(limit(), 3);
    // A live change takes it away and brings it back.
    up(&free);
    assert_eq!(limit(), before);
    up(&limited);
    assert_eq!(limit(), 3);
    myelin.ok(&["down", &myelin.chain("k")]);
    assert_eq!(limit(), before);
    up(&limited);
    myelin.kill_agent();
    // A process that was killed is gone before all that it had is.
    wait_for("the limit to go", || limit() == before);
    myelin.ok(&["down", "--all"]);
    myelin.assert_clean();
}
