//! Text output: at most 100 columns, escape codes on a terminal only, the verdict in the first
//! line.

mod common;

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use common::chains::MIXED;
use common::{Myelin, skip_unless_root};
use nix::pty::{Winsize, openpty};

const MAX_COLUMNS: usize = 100;

/// Commands that print for programs, and `exec`, which prints the output of another program.
const NO_TEXT: [&str; 6] = ["agent", "completions", "exec", "pcap", "schema", "shell"];

fn assert_plain_lines(command: &str, text: &str) {
    assert!(!text.contains('\x1b'), "{command}: {text:?}");
    let long_line = text.lines().find(|line| line.chars().count() > MAX_COLUMNS);
    assert_eq!(long_line, None, "{command}");
}

/// Reads the commands in the output of `myelin --help`.
fn list_visible_commands(myelin: &Myelin) -> Vec<String> {
    let help = myelin.run_ok(&["--help"]);
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    list.take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn each_help_text_is_plain_in_a_pipe() {
    let myelin = Myelin::new_shared();
    assert_plain_lines("--help", &myelin.run_ok(&["--help"]));
    for command in list_visible_commands(&myelin) {
        for option in ["-h", "--help"] {
            let text = myelin.run_ok(&[&command, option]);
            assert_plain_lines(&command, &text);
        }
    }
}

#[test]
fn each_command_prints_its_verdict_first_and_plain_text_in_a_pipe() {
    if skip_unless_root() {
        return;
    }
    let myelin = Myelin::new();
    let file = myelin.write_file(MIXED);
    let (file, chain) = (file.to_str().unwrap(), &*myelin.chain_name("m"));
    let probes = ["--count", "20", "--repeats", "2"];
    let server = format!("{chain}/server");
    let watch = ["--rate", "1kpps", "--host", &server, "--count", "3"];
    let verdict = format!("chain {chain}: SLA ");
    let topology = "apiVersion: myelin.dev/v1alpha1\nkind: Topology\nmetadata: { name: @lab }\n\
                    spec: { hosts: [ h1 ], switches: [ s1 ], links: [ { ends: [ h1, s1 ] } ] }\n";
    let topology = myelin.write_file(topology);
    let (topology, lab) = (topology.to_str().unwrap(), &*myelin.chain_name("lab"));
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (vec!["init", "-"], ""),
        (vec!["functions"], ""),
        (vec!["functions", "firewall"], "firewall (class basic"),
        (vec!["doctor"], "ready: "),
        (vec!["doctor", "-v"], "ready: "),
        (vec!["bench", "--list"], ""),
        (vec!["plan", file], ""),
        (vec!["plan", "-v", file], ""),
        ([&["run", file, "-v"], &probes[..]].concat(), &verdict),
        (vec!["up", "-v", file], ""),
        ([&["probe", chain], &probes[..]].concat(), &verdict),
        ([&["probe", "-v", chain], &probes[..]].concat(), &verdict),
        (vec!["ps"], ""),
        (vec!["ps", "-v", chain], ""),
        (vec!["ps", chain, "--seconds"], ""),
        (vec!["ps", "--flows"], ""),
        (vec!["top", "-v", "--count", "1"], ""),
        (vec!["events", "-v"], ""),
        ([&["conform", "eth0", "-v"], &watch[..]].concat(), ""),
        (vec!["calibrate", "--quick", "-v"], "calibrated: "),
        (vec!["plan", topology], "topology "),
        (vec!["up", topology], "topology "),
        (vec!["ps", lab], "topology "),
        (vec!["graph", lab], "topology "),
        (vec!["link", "h1-s1", "--down"], "link h1-s1: "),
        (
            ["container", "add", "h1", "box", "--", "sleep", "60"].to_vec(),
            "",
        ),
        (vec!["container", "ps"], ""),
        (vec!["image", "ls"], ""),
        (vec!["down", chain], "removed "),
        (vec!["down", "--all"], ""),
    ];
    for command in list_visible_commands(&myelin) {
        let is_tested = cases.iter().any(|(arguments, _)| arguments[0] == command);
        assert!(is_tested || NO_TEXT.contains(&&*command), "{command}");
    }
    for (arguments, start) in cases {
        let mut ping = None;
        if arguments[0] == "conform" {
            // Until `conform` has seen its packets.
            let ping_server = ["exec", "client", "--", "ping", "-i", "0.2", "10.0.0.2"];
            let mut command = myelin.command(&ping_server);
            ping = Some(command.stdout(Stdio::null()).spawn().expect("ping starts"));
        }
        let output = myelin.run(&arguments);
        if let Some(mut ping) = ping {
            let _ = ping.kill();
            let _ = ping.wait();
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // On a loaded machine the SLA may not be met.
        let status = output.status.code();
        assert!(matches!(status, Some(0 | 5)), "{arguments:?}: {output:?}");
        assert_plain_lines(&format!("{arguments:?}"), &text);
        assert!(text.starts_with(start), "{arguments:?}: {text}");
    }
    myelin.assert_clean();
}

/// Runs `command` on a terminal with that many columns; returns the output.
fn run_on_terminal(mut command: Command, columns: u16) -> String {
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = openpty(&size, None).expect("the terminal opens");
    command
        .stdin(Stdio::null())
        .stderr(terminal.slave.try_clone().expect("the terminal opens"))
        .stdout(terminal.slave);
    let mut child = command.spawn().expect("myelin runs");
    // The command holds the other end of the terminal.
    drop(command);
    let mut text = Vec::new();
    // The read fails with EIO when the last process closes the terminal.
    let _ = File::from(terminal.master).read_to_end(&mut text);
    child.wait().expect("the process ends");
    String::from_utf8(text).expect("the output is UTF-8")
}

#[test]
fn terminal_output_has_colour_unless_no_color_is_set_and_fits_the_columns() {
    let myelin = Myelin::new_shared();
    let coloured = run_on_terminal(myelin.command(&["--help"]), 80);
    assert!(coloured.contains("\x1b[1m"), "{coloured:?}");
    let mut command = myelin.command(&["--help"]);
    command.env("NO_COLOR", "1");
    let plain = run_on_terminal(command, 80);
    assert!(
        plain.contains("Usage:") && !plain.contains('\x1b'),
        "{plain:?}"
    );
    let missing = format!("/{}", "no-such-directory/".repeat(6));
    for (arguments, columns) in [
        (vec!["functions", "firewall"], 80),
        (vec!["doctor", "-v"], 80),
        (vec!["bench", "--list"], 80),
        (vec!["functions"], 200),
        (vec!["bench", "unknown-experiment"], 60),
        (vec!["plan", &missing], 140),
    ] {
        let text = run_on_terminal(myelin.command(&arguments), columns);
        assert!(!text.contains('\x1b') && !text.is_empty(), "{text:?}");
        let max_columns = usize::from(columns).min(MAX_COLUMNS);
        let mut long_lines = text
            .lines()
            .filter(|line| line.trim_end().chars().count() > max_columns);
        // `myelin` does not break a path into two lines.
        let long_line = long_lines.find(|line| !line.contains(&missing));
        assert_eq!(long_line, None, "{arguments:?}: {text}");
    }
}
