//! Tests that run experiments. The experiments start an executable as worker, as agent and for
//! `plan`, `up`, `down` and `exec`. The test executable replaces `myelin`.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use libtest_mimic::{Arguments, Trial};
use myelin_agent::ServeOptions;
use myelin_api::{ChainSource, Client, ExecEvent, ExecRequest, RunDir, UpRequest};
use myelin_bench::{Effort, Monitor, Options, Report, Row, run};

/// Runs those of `tests` that the command line selects, or the part of `myelin` that the arguments
/// name.
pub(crate) fn main(tests: Vec<Trial>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("worker") => run_worker(&arguments),
        Some("agent") => run_agent(&arguments),
        Some("preemptor") => run_preemptor(&arguments),
        Some("up" | "down" | "exec") => run_client(&arguments),
        Some("plan") => {
            std::io::read_to_string(std::io::stdin()).unwrap();
        }
        // An experiment leaves out the functions that it cannot feed.
        Some("feed") => return ExitCode::FAILURE,
        _ => {
            let arguments = Arguments {
                // An experiment polls on two cores, and its leftovers are those of this process.
                test_threads: Some(1),
                ..Arguments::from_args()
            };
            return libtest_mimic::run(&arguments, tests).exit_code();
        }
    }
    ExitCode::SUCCESS
}

/// A test that runs an experiment, so it needs root.
pub(crate) fn test(name: String, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, || {
        if myelin_linux::capability::is_root() {
            test();
        } else {
            // The name of the test is on this line already.
            println!("\nSKIP: experiments need root");
        }
        Ok(())
    })
}

fn run_worker(arguments: &[String]) -> ! {
    let control = myelin_dataplane::control_from_stdin().unwrap();
    if arguments.iter().any(|word| word == "--delay-line") {
        myelin_dataplane::delay_line_main(control)
    }
    if arguments.iter().any(|word| word == "--dpdk") {
        myelin_dataplane::worker_main::<myelin_dpdk::Dpdk>(control)
    }
    myelin_dataplane::worker_main::<myelin_dataplane::Sockets>(control)
}

fn run_preemptor(arguments: &[String]) {
    let is_guardian = arguments.iter().any(|word| word == "--guardian");
    let name = arguments.last().unwrap();
    myelin_agent::run_preemptor(name, is_guardian).unwrap();
}

fn run_agent(arguments: &[String]) {
    let run_dir = arguments
        .iter()
        .skip_while(|word| *word != "--run-dir")
        .nth(1)
        .unwrap();
    let run_dir = RunDir::resolve(Some(Path::new(run_dir)));
    let program = std::env::current_exe().unwrap();
    myelin_agent::serve(&run_dir, &program, ServeOptions::default()).unwrap();
}

/// Takes the requests `up FILE`, `down NAME` and `exec HOST -- PROGRAM` to the agent of
/// `MYELIN_RUN_DIR`.
fn run_client(arguments: &[String]) {
    let client = Client::connect(&RunDir::resolve(None)).unwrap().unwrap();
    let name = &arguments[1];
    match arguments[0].as_str() {
        "up" => {
            let source = ChainSource {
                name: name.clone(),
                text: std::fs::read_to_string(name).unwrap(),
                ..ChainSource::default()
            };
            let (force, lease) = (false, None);
            let request = UpRequest {
                source,
                force,
                lease,
            };
            client.up(&request).unwrap();
        }
        "down" => drop(client.down(name).unwrap()),
        _ => {
            let request = ExecRequest {
                host: name.clone(),
                command: arguments[3..].to_vec(),
                env: std::env::vars().collect(),
                directory: "/".to_owned(),
                ..ExecRequest::default()
            };
            let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
            let descriptors = [input.as_fd(), output.as_fd(), errors.as_fd()];
            let mut stream = client.exec(&request, descriptors).unwrap();
            while !matches!(stream.next_event().unwrap(), ExecEvent::Ended { .. }) {}
        }
    }
}

/// Options of a run of this executable.
pub(crate) fn options(effort: Effort) -> Options {
    Options::new(effort, std::env::current_exe().unwrap())
}

/// Runs an experiment without showing its progress.
pub(crate) fn measure(name: &str, options: &Options) -> Report<Row> {
    let monitor = Monitor {
        emit: &|_| {},
        cancelled: &AtomicBool::new(false),
    };
    run(name, options, &monitor).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Checks that no network namespace and no run directory of this process is left.
pub(crate) fn check_leftovers(after: &str) {
    let own = format!("bench-{}-", std::process::id());
    let left: Vec<String> = ["/run", "/run/netns"]
        .into_iter()
        .flat_map(|directory| std::fs::read_dir(directory).into_iter().flatten().flatten())
        .map(|entry| entry.path().display().to_string())
        .filter(|path| path.contains(&own))
        .collect();
    assert!(left.is_empty(), "after {after}: {left:?}");
}
