//! Measured costs of black boxes, right and wrong ones.

use serde_json::{Value, json};

use super::common::load::Sender;
use super::common::{Myelin, skip_unless_root, skip_without, wait_for};
use super::{RATE, assert_no_answer_missing, expect_core, two_pollers};

/// The costs that calibration of a chain file prints.
fn calibrate(myelin: &Myelin, file: &str) -> Value {
    let printed = myelin.run_ok(&["calibrate", "--quick", "--json", file]);
    serde_json::from_str(&printed).expect("calibrate prints JSON")
}

#[test]
fn a_black_box_is_measured_alone_and_wrong_costs_stop_no_packet() {
    if skip_unless_root() || skip_without("python3") {
        return;
    }
    let myelin = Myelin::new();
    let without = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @n }
spec: { match: { protocol: udp }, functions: [ { name: f, kind: forward } ] }
";
    let without = myelin.write_file(without);
    let error = myelin.run_failing(2, &["calibrate", without.to_str().unwrap()]);
    assert!(error.contains("no black box to measure"), "{error}");

    let file = myelin.write_file(&two_pollers("c", "sharing: unis"));
    let file = file.to_str().expect("the path is UTF-8");
    let costs = calibrate(&myelin, file);
    // Both functions have the same command.
    let boxes = costs["black_boxes"].as_object().expect("measured costs");
    assert_eq!(boxes.len(), 1, "{costs}");
    let (command, cost) = boxes.iter().next().expect("a program");
    assert!(command.starts_with("python3 -c"), "{command}");
    let packet_ns = cost["per_packet_ns"].as_f64().expect("a cost");
    // A packet takes at least two system calls, and the timeout of a burst is 50 ms.
    assert!((100.0..1e6).contains(&packet_ns), "{costs}");
    let plan = myelin.run_ok(&["plan", file]);
    let plan = plan.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plan.contains("us, 384 packets"), "{plan}");

    for (factor, policy) in [(10.0, "unis"), (0.1, "deadline")] {
        let mut costs = costs.clone();
        costs["black_boxes"][command]["per_packet_ns"] = json!(packet_ns * factor);
        std::fs::write(myelin.calibration(), costs.to_string()).expect("the costs are written");
        let file = myelin.write_file(&two_pollers("c", &format!("sharing: {policy}")));
        let file = file.to_str().expect("the path is UTF-8");
        myelin.run_ok(&["up", file]);
        let what = format!("{policy}, costs wrong by {factor}");
        expect_core(&myelin, 2);
        assert_no_answer_missing(&myelin, "c", &what);
        let sender = Sender::start_through_chain(&myelin.read_status("c"), RATE);
        wait_for("turns of both tasks", || {
            let core = expect_core(&myelin, 2);
            let mut tasks = core["tasks"].as_array().expect("the tasks").iter();
            tasks.all(|task| task["turns"].as_u64() > Some(20))
        });
        sender.stop();
        assert_no_answer_missing(&myelin, "c", &what);
        let error = myelin.run_failing(1, &["calibrate", file]);
        assert!(error.contains("measured alone"), "{error}");
        myelin.run_ok(&["down", &myelin.chain_name("c")]);
    }
    // A calibration of the machine keeps the costs of black boxes.
    let measured = myelin.run_ok(&["calibrate", "--quick", "--json"]);
    let measured: Value = serde_json::from_str(&measured).expect("calibrate prints JSON");
    assert!(measured["black_boxes"][command].is_object(), "{measured}");
    myelin.run_ok(&["down", "--all"]);
    myelin.assert_clean();
}
