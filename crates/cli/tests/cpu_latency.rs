//! `spec.cpuLatency`: the agent limits the wake-up latency of cores while the chain is up.

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

/// Reads the current limit of the kernel, us.
fn read_limit() -> i32 {
    let mut value = [0; 4];
    let mut device = File::open(DEVICE).expect(DEVICE);
    device
        .read_exact(&mut value)
        .expect("the device has four bytes");
    i32::from_ne_bytes(value)
}

#[test]
fn cpu_latency_is_limited_while_the_chain_is_up() {
    if skip_unless_root() {
        return;
    }
    if let Err(error) = myelin_linux::pm_qos::idle_driver() {
        println!("skipped cpu_latency_is_limited_while_the_chain_is_up: {error}");
        return;
    }
    let myelin = Myelin::new();
    let before = read_limit();
    if before <= 3 {
        println!(
            "skipped cpu_latency_is_limited_while_the_chain_is_up: another process limits the latency to {before} us"
        );
        return;
    }
    let limited = myelin.write_file(CHAIN);
    let unlimited = myelin.write_file(&CHAIN.replace("  cpuLatency: 3us\n", ""));
    let up = |file: &std::path::Path| myelin.run_ok(&["up", file.to_str().unwrap()]);
    up(&limited);
    assert_eq!(read_limit(), 3);
    // A live change removes the limit and sets it again.
    up(&unlimited);
    assert_eq!(read_limit(), before);
    up(&limited);
    assert_eq!(read_limit(), 3);
    myelin.run_ok(&["down", &myelin.chain_name("k")]);
    assert_eq!(read_limit(), before);
    up(&limited);
    myelin.kill_agent();
    // The kernel closes the files of a killed process after the process is gone.
    wait_for("the end of the limit", || read_limit() == before);
    assert_eq!(read_limit(), before);
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
