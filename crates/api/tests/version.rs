//! A client and an agent of different versions report both versions, and neither acts.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use myelin_api::{Client, RunDir, UpRequest, VERSION, check_client};

/// Starts an agent that gives every request the same answer, and reports the request heads.
fn start_agent(run_dir: &RunDir, answer: &'static str) -> Receiver<String> {
    let listener = UnixListener::bind(run_dir.socket()).unwrap();
    let (sender, heads) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if let Some(head) = answer_request(&stream.unwrap(), answer) {
                // The test has ended.
                if sender.send(head).is_err() {
                    return;
                }
            }
        }
    });
    heads
}

/// Answers one request and returns its head; `None` for a connection without a request.
fn answer_request(mut stream: &UnixStream, answer: &str) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let length = line
            .to_lowercase()
            .strip_prefix("content-length: ")?
            .parse();
        length.ok()
    });
    reader.read_exact(&mut vec![0; length.unwrap_or(0)]).ok()?;
    stream.write_all(answer.as_bytes()).ok()?;
    Some(head)
}

/// Starts an agent in `directory` and connects a client.
fn connect_client(directory: &Path, answer: &'static str) -> (Client, Receiver<String>) {
    let run_dir = RunDir::resolve(Some(directory));
    let heads = start_agent(&run_dir, answer);
    let client = Client::connect(&run_dir).unwrap().unwrap();
    // The client asks whether the agent answers at all.
    assert!(heads.recv().unwrap().starts_with("GET / "));
    (client, heads)
}

const NEWER: &str = "HTTP/1.1 200 OK\r\nmyelin-version: 99.1.2\r\ncontent-length: 2\r\n\r\n[]";
/// The answer of an agent that is older than the version header, to an unknown path.
const OLDER: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";

#[test]
fn a_client_reports_both_versions_and_the_remedy() {
    for (answer, agent) in [(NEWER, "version 99.1.2"), (OLDER, "an older version")] {
        let directory = tempfile::tempdir().unwrap();
        let (client, heads) = connect_client(directory.path(), answer);
        let errors = [
            client.list().unwrap_err(),
            client.up(&UpRequest::default()).unwrap_err(),
            client
                .probe(&probe(), &mut |_| {
                    panic!("the client accepted an event of another version")
                })
                .unwrap_err(),
        ];
        for error in errors {
            let parts = [
                &format!("the agent is {agent} and"),
                &format!("`myelin` is version {VERSION}"),
                "run `myelin down --all`",
            ];
            for part in parts {
                assert!(error.message.contains(part), "{error}");
            }
            assert_eq!(error.exit_status(), 1);
            // An older agent knows no path under /v2, so it does not act.
            let head = heads.recv().unwrap();
            assert!(head.contains(" /v2/"), "{head}");
            assert!(
                head.contains(&format!("myelin-version: {VERSION}\r\n")),
                "{head}"
            );
        }
    }
}

fn probe() -> myelin_api::ProbeRequest {
    myelin_api::ProbeRequest {
        chain: "c".into(),
        options: myelin_api::ProbeOptions::default(),
    }
}

#[test]
fn down_all_stops_an_agent_of_another_version() {
    let directory = tempfile::tempdir().unwrap();
    // The socket stays, but no process holds the lock, so the client regards the agent as ended.
    let (client, heads) = connect_client(directory.path(), NEWER);
    let reply = client.down_all().unwrap();
    assert_eq!(
        reply.removed,
        ["an agent of another version (99.1.2), with all its chains"]
    );
    assert!(heads.recv().unwrap().starts_with("GET / "));
    assert!(heads.recv().unwrap().starts_with("DELETE /v1/agent "));
}

#[test]
fn an_agent_refuses_a_client_of_another_version() {
    assert_eq!(check_client(Some(VERSION)), Ok(()));
    let (series, _) = VERSION.rsplit_once('.').unwrap();
    assert_eq!(check_client(Some(&format!("{series}.999"))), Ok(()));
    for (client, named) in [
        (Some("99.1.2"), "version 99.1.2"),
        (None, "an older version"),
    ] {
        let error = check_client(client).unwrap_err().message;
        assert!(
            error.contains(&format!("the agent is version {VERSION}")),
            "{error}"
        );
        assert!(
            error.contains(&format!("this `myelin` is {named}")),
            "{error}"
        );
        assert!(
            error.contains(&format!("sudo kill {}", std::process::id())),
            "{error}"
        );
    }
}
