//! `make install`: the binary, its manual pages, completions and Python package.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::{repository_root, skip_without};

const MYELIN: &str = env!("CARGO_BIN_EXE_myelin");

fn list_names(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).expect("the directory exists");
    entries
        .map(|entry| {
            entry
                .expect("the entry is readable")
                .file_name()
                .into_string()
        })
        .collect::<Result<_, _>>()
        .expect("the names are UTF-8")
}

/// The commands that the help of a command lists.
fn list_commands(command: &[&str]) -> Vec<String> {
    let help = Command::new(MYELIN).args(command).arg("--help").output();
    let help = String::from_utf8(help.expect("myelin runs").stdout).expect("the output is UTF-8");
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = list
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn make_install_copies_the_binary_manual_pages_completions_and_python_package() {
    if skip_without("make") {
        return;
    }
    let staging = tempfile::tempdir().expect("a temporary directory is made");
    let output = Command::new("make")
        .current_dir(repository_root())
        .args(["install", "PREFIX=/usr"])
        .arg(format!("MYELIN={MYELIN}"))
        .arg(format!("DESTDIR={}", staging.path().display()))
        .output()
        .expect("make runs");
    assert!(output.status.success(), "{output:?}");
    let usr = staging.path().join("usr");
    let version = Command::new(usr.join("bin/myelin"))
        .arg("--version")
        .status();
    assert!(version.is_ok_and(|status| status.success()));
    for file in [
        "bash-completion/completions/myelin",
        "zsh/site-functions/_myelin",
        "fish/vendor_completions.d/myelin.fish",
    ] {
        let text = std::fs::read_to_string(usr.join("share").join(file)).expect(file);
        assert!(text.contains("calibrate"), "{file}");
    }
    if !skip_without("python3") {
        // The installed program finds the installed package.
        let shell = Command::new(usr.join("bin/myelin"))
            .args(["shell", "no-such-network", "--run-dir"])
            .arg(staging.path())
            .output()
            .expect("myelin runs");
        let error = String::from_utf8_lossy(&shell.stderr);
        assert_eq!(shell.status.code(), Some(1), "{error}");
        assert!(error.contains("`no-such-network` does not run"), "{error}");
    }
    let commands = list_commands(&[]);
    assert!(commands.len() > 15, "{commands:?}");
    let mut expected = BTreeSet::from(["myelin.1".to_owned()]);
    for command in commands {
        let own = list_commands(&[&command]);
        expected.extend(own.iter().map(|name| format!("myelin-{command}-{name}.1")));
        expected.insert(format!("myelin-{command}.1"));
    }
    let pages = usr.join("share/man/man1");
    assert_eq!(list_names(&pages), expected);
    if skip_without("groff") {
        return;
    }
    for page in expected {
        let path = pages.join(&page);
        // -ww: all warnings of troff. -P-cbou: plain text without overstrikes.
        let shown = Command::new("groff")
            .args(["-man", "-ww", "-Tutf8", "-P-cbou"])
            .arg(&path)
            .output()
            .expect("groff runs");
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(
            shown.status.success() && shown.stderr.is_empty(),
            "{page}: {shown:?}"
        );
        // The examples of `myelin container add` are those of `myelin container`.
        let is_of_subcommand = page.matches('-').count() > 1;
        for part in ["NAME", "SYNOPSIS", "OPTIONS", "Examples:"] {
            if is_of_subcommand && part == "Examples:" {
                continue;
            }
            assert!(text.contains(part), "{page} has no {part}: {text}");
        }
    }
}

#[test]
fn man_refuses_a_missing_directory_and_names_the_remedy() {
    let output = Command::new(MYELIN)
        .args(["man", "/no-such-directory"])
        .output();
    let output = output.expect("myelin runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    for part in ["/no-such-directory", "name a directory that exists"] {
        assert!(error.contains(part), "{error}");
    }
}
