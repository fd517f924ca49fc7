//! The agent's socket: clients of other versions, and answers that must match the printed schema.

mod common;
#[path = "../../api/tests/validate/mod.rs"]
mod validate;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use common::{Myelin, skip_unless_root};
use serde_json::Value;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Sends a request with the version header of a client; returns the head and body of the answer.
fn send_request(myelin: &Myelin, request: &str, version: Option<&str>) -> String {
    let mut stream = UnixStream::connect(myelin.run_dir().join("agent.sock")).unwrap();
    let version = version.map_or(String::new(), |version| {
        format!("myelin-version: {version}\r\n")
    });
    let head = format!("{request} HTTP/1.1\r\nhost: myelin\r\nconnection: close\r\n{version}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn start_agent_with_chain() -> Myelin {
    let myelin = Myelin::new();
    let file = myelin.write_file(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: { name: @c }\nspec:\n  \
         match: { protocol: udp, destination: 10.0.0.2/32 }\n  \
         functions: [ { name: watch, kind: monitor }, { name: f, kind: forward, space: user } ]\n  \
         sla: { rate: 20kpps, latency: 500ms }\n",
    );
    myelin.run_ok(&["up", "--force", file.to_str().unwrap()]);
    myelin
}

#[test]
fn agent_rejects_requests_of_other_versions_except_the_stop_request() {
    if skip_unless_root() {
        return;
    }
    let myelin = start_agent_with_chain();
    // The first client is older than the version header.
    let others = [
        ("/v1", None),
        ("/v2", Some("0.0.1")),
        ("/v2", Some("99.0.0")),
    ];
    for (prefix, version) in others {
        for request in ["GET", "DELETE"] {
            let answer = send_request(&myelin, &format!("{request} {prefix}/chains"), version);
            assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
            let names = [
                &format!("the agent is version {VERSION}"),
                version.unwrap_or("an older version"),
            ];
            assert!(names.iter().all(|name| answer.contains(name)), "{answer}");
        }
    }
    let chain = myelin.chain_name("c");
    assert!(
        myelin.run_ok(&["ps"]).contains(&chain),
        "the chain still runs"
    );
    let answer = send_request(&myelin, "GET /v2/chainz", Some(VERSION));
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("/v2/chainz"),
        "{answer}"
    );
    let answer = send_request(&myelin, "DELETE /v1/agent", Some("99.0.0"));
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    common::wait_for("the end of the agent", || {
        !myelin.run_dir().join("agent.sock").exists()
    });
}

#[test]
fn every_answer_of_the_agent_matches_the_printed_schema() {
    if skip_unless_root() {
        return;
    }
    let myelin = start_agent_with_chain();
    let schema = myelin.run_json(&["schema", "api"]);
    // The answers contain `sla` only after the SLA monitor has read the counters once.
    common::wait_for("the first second", || {
        !myelin.read_status("c")["sla"].is_null()
    });
    let endpoints = schema["endpoints"].as_array().unwrap();
    let reads = endpoints
        .iter()
        .filter(|endpoint| endpoint["method"] == "GET");
    let mut answers = 0;
    for endpoint in reads {
        let path = endpoint["path"].as_str().unwrap();
        let path = path
            .replace("{chain}", &myelin.chain_name("c"))
            .replace("{serial}", "0")
            .replace("{count}", "5");
        let answer = send_request(&myelin, &format!("GET {path}"), Some(VERSION));
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(
            validate::find_fault(&schema, &endpoint["answer"], &body),
            None,
            "{path}"
        );
        answers += 1;
    }
    assert_eq!(answers, 9);
}
