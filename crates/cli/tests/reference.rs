//! `docs/reference/command-line.md` shows the help of every command.
//!
//! `WRITE_DOCS=1 cargo test -p myelin-cli --test reference` writes the page.

use std::fmt::Write;
use std::process::Command;

const PAGE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/reference/command-line.md"
);
const INTRO: &str = "\
# Command line

After this page you know every command and option. `myelin help COMMAND` prints the same. The page
is generated (`WRITE_DOCS=1 cargo test -p myelin-cli --test reference`).

## myelin
";

/// Runs `myelin ARGUMENTS --help`; returns the text.
fn read_help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_myelin"))
        .args(arguments)
        .arg("--help")
        .output()
        .expect("myelin runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("the output is UTF-8");
    let lines: Vec<_> = text.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// Finds the commands in the output of `myelin --help`.
fn list_commands(help: &str) -> Vec<&str> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let entries = list.take_while(|line| !line.is_empty());
    let names = entries.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect()
}

#[test]
fn the_page_shows_the_help_of_every_command() {
    let all = read_help(&[]);
    let mut page = format!("{INTRO}\n```text\n{all}\n```\n");
    let commands = list_commands(&all);
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        let text = read_help(&[command]);
        write!(page, "\n## {command}\n\n```text\n{text}\n```\n").expect("a string accepts text");
    }
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &page).expect("the page is written");
    }
    let found = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        found == page,
        "{PAGE} is not up to date: WRITE_DOCS=1 writes it"
    );
}
