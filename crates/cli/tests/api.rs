//! The agent's socket: clients of other versions, and answers that must match the printed schema.

mod common;
#[path = "../../api/tests/validate/mod.rs"]
mod validate;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

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
    // A near version may have requests that this agent lacks.
    let (series, _) = VERSION.rsplit_once('.').unwrap();
    let near = format!("{series}.999");
    let answer = send_request(&myelin, "GET /v2/chains", Some(&near));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for request in ["GET /v2/chainz", "PUT /v2/chains"] {
        let answer = send_request(&myelin, request, Some(&near));
        let lacks = format!("lacks the request `{request}`");
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains(&lacks), "{answer}");
    }
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
            .replace("{host}", "client")
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
    assert_eq!(answers, 14);
}

/// Opens a lease and returns its connection and number.
fn open_lease(myelin: &Myelin) -> (UnixStream, u64) {
    let mut stream = UnixStream::connect(myelin.run_dir().join("agent.sock")).unwrap();
    let head = format!(
        "POST /v2/leases HTTP/1.1\r\nhost: myelin\r\nmyelin-version: {VERSION}\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    while !answer.contains("{\"lease\":") || !answer.ends_with("}\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(char::from(byte[0]));
    }
    let last = answer.rsplit("{\"lease\":").next().unwrap();
    let digits: String = last.chars().take_while(char::is_ascii_digit).collect();
    (stream, digits.parse().unwrap())
}

#[test]
fn the_end_of_a_lease_removes_its_objects_and_ends_their_programs() {
    if skip_unless_root() {
        return;
    }
    let myelin = start_agent_with_chain();
    let (connection, lease) = open_lease(&myelin);
    let (topology, text) = (
        myelin.chain_name("net"),
        "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: { name: @net }\nspec: { hosts: [ h1 ] }\n",
    );
    let text = text.replace("@net", &topology);
    let up = |lease: u64| {
        let body = serde_json::json!({ "name": "net", "text": text, "files": {}, "lease": lease });
        let body = body.to_string();
        let request = format!(
            "POST /v2/chains HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\nhost: myelin\r\n\
             connection: close\r\nmyelin-version: {VERSION}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = UnixStream::connect(myelin.run_dir().join("agent.sock")).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(up(lease).starts_with("HTTP/1.1 200"));
    // Another program neither shares nor changes the topology.
    let (other, number) = open_lease(&myelin);
    let refused = up(number);
    assert!(refused.contains("this lease does not hold it"), "{refused}");
    drop(other);
    let host = format!("{topology}/h1");
    let mut command = myelin.command(&["exec", &host, "--", "sh", "-c", "echo x; sleep 300"]);
    let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = program.stdout.as_mut().unwrap();
    output.read_exact(&mut [0]).unwrap();
    drop(connection);
    common::wait_for("the end of the program", || {
        program.try_wait().unwrap().is_some()
    });
    common::wait_for("the removal of the topology", || {
        !myelin.run_ok(&["ps"]).contains(&topology)
    });
    assert!(myelin.run_ok(&["ps"]).contains(&myelin.chain_name("c")));
    let refused = up(lease);
    assert!(refused.contains("has ended"), "{refused}");
}
