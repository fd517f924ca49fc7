//! Clients of other versions at a real agent.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use common::{Myelin, skip_unless_root};

/// Sends a request as another version's client would, and returns the whole answer.
fn ask(myelin: &Myelin, request: &str, version: Option<&str>, body: &str) -> String {
    let mut stream = UnixStream::connect(myelin.run_dir().join("agent.sock")).unwrap();
    let version = version.map_or(String::new(), |version| {
        format!("myelin-version: {version}\r\n")
    });
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: myelin\r\nconnection: close\r\n{version}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_agent_acts_on_no_request_of_another_version_and_stops_for_any() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.file(FORWARD);
    myelin.ok(&["up", file.to_str().unwrap()]);
    let body = "{}";
    // As an older client, from before the handshake; as an older and a newer one, which have it.
    let others = [
        ("/v1", None),
        ("/v2", Some("0.0.1")),
        ("/v2", Some("99.0.0")),
    ];
    for (prefix, version) in others {
        for request in ["GET", "DELETE"] {
            let answer = ask(
                &myelin,
                &format!("{request} {prefix}/chains"),
                version,
                body,
            );
            assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
            let says = format!("the agent is version {}", env!("CARGO_PKG_VERSION"));
            assert!(answer.contains(&says), "{answer}");
            assert!(
                answer.contains(version.unwrap_or("an older version")),
                "{answer}"
            );
        }
    }
    let name = myelin.chain("c");
    assert!(myelin.ok(&["ps"]).contains(&name), "the chain still runs");
    let answer = ask(&myelin, "DELETE /v1/agent", Some("99.0.0"), "");
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
}

const FORWARD: &str = "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: { name: @c }\nspec:\n  \
                       functions: [ { name: f, kind: forward } ]\n";
