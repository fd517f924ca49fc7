//! `docs/reference/chain-file.md` describes every key of a chain file, `topology-file.md` of a
//! topology.
//! `docs/reference/errors.md` lists the errors of `errors/*.stderr` with their remedies.
//! `docs/reference/kinds.md` contains the descriptions of all kinds.
//!
//! `WRITE_DOCS=1 cargo test -p myelin-spec --test reference` rewrites the pages.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use myelin_spec::catalogue::{self, ConfigKey, Kind, flatten};

/// Wraps text at 100 columns. Lines after the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let options = textwrap::Options::new(100)
        .subsequent_indent(indent)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let words: Vec<_> = text.split_whitespace().collect();
    textwrap::fill(&words.join(" "), options)
}

fn page() -> String {
    let intro = "After this page you can write `spec.functions` of a chain file: it lists every kind with keys, counters, and its \
                 cost before `myelin calibrate`. `myelin functions KIND` prints keys and example, `myelin schema chain` a JSON Schema. The \
                 page is generated from `crates/spec/src/kinds` (`WRITE_DOCS=1 cargo test -p myelin-spec --test reference`).";
    let mut page = format!("# Function kinds\n\n{}\n", wrapped(intro, ""));
    for kind in catalogue::kinds() {
        describe(kind, &mut page).unwrap();
    }
    page
}

/// Returns the functions of the kind's example chain.
fn example(kind: &Kind) -> String {
    let file = kind.chain_file();
    let lines = file.lines().skip_while(|line| !line.contains("functions:"));
    let lines = lines.skip(1).take_while(|line| line.starts_with("    "));
    let lines: Vec<_> = lines.map(|line| &line[4..]).collect();
    lines.join("\n") + "\n"
}

fn describe(kind: &Kind, page: &mut String) -> std::fmt::Result {
    writeln!(page, "\n## {}\n", kind.name)?;
    writeln!(page, "{}\n", wrapped(kind.description, ""))?;
    let spaces = kind.spaces().map(|space| {
        let cost = kind.default_cost(space).unwrap_or_default();
        if kind.is_black_box() {
            return format!("{space} space, at an unknown cost");
        }
        let (packet, byte) = (cost.per_packet_ns, cost.per_byte_ns);
        format!("{space} space, {packet} ns a packet and {byte} ns a byte")
    });
    let spaces: Vec<_> = spaces.collect();
    let (class, works_on, state) = (kind.class, kind.works_on, kind.state);
    let guards = if kind.fails_closed {
        "guards the chain"
    } else {
        "does not guard"
    };
    let facts = format!(
        "Class {class}; works on: {works_on}; state: {state}; fragments: {}; {guards}. Runs in {}.",
        kind.fragments,
        spaces.join("; ")
    );
    writeln!(
        page,
        "{}\n\n```yaml\n{}```",
        wrapped(&facts, ""),
        example(kind)
    )?;
    describe_keys(&flatten(kind.config, ""), page)?;
    if !kind.counters.is_empty() {
        writeln!(page, "\n| counter | packets |\n|---|---|")?;
    }
    for (name, meaning) in kind.counters {
        writeln!(page, "| `{name}` | {meaning} |")?;
    }
    Ok(())
}

/// Writes a table of the keys with their paths, then the meaning of each key.
fn describe_keys(keys: &[(String, &ConfigKey)], page: &mut String) -> std::fmt::Result {
    if keys.is_empty() {
        return Ok(());
    }
    writeln!(page, "\n| key | value | default |\n|---|---|---|")?;
    for (path, key) in keys {
        let value = key.value.to_string().replace('|', "\\|");
        let default = match (key.required, key.default) {
            (true, _) => "required".to_owned(),
            (false, None) => "-".to_owned(),
            (false, Some(default)) => format!("`{default}`"),
        };
        writeln!(page, "| `{path}` | {value} | {default} |")?;
    }
    writeln!(page)?;
    for (path, key) in keys {
        let meaning = wrapped(&format!("* `{path}`: {}", key.doc), "  ");
        writeln!(page, "{meaning}")?;
    }
    Ok(())
}

/// Returns the page of the keys of a chain file, with a section for each mapping.
fn chain_file_page() -> String {
    let intro = "After this page you can write every key of a chain file. The keys of `config` are those of the kind: see \
                 [kinds](kinds.md). `myelin init` writes a first file, `myelin schema chain` prints the JSON Schema. The page \
                 is generated from `crates/spec/src/read` (`WRITE_DOCS=1 cargo test -p myelin-spec --test reference`).";
    keys_page("Chain file", intro, &myelin_spec::chain_keys())
}

/// Returns the page of the keys of a topology.
fn topology_page() -> String {
    let intro = "After this page you can write every key of a topology. [emulator](../operation/emulator.md) says how to use \
                 it. `myelin schema chain` prints the JSON Schema. The page is generated from \
                 `crates/spec/src/read/topology.rs` (`WRITE_DOCS=1 cargo test -p myelin-spec --test reference`).";
    keys_page("Topology file", intro, &myelin_spec::topology_keys())
}

/// Returns a page of keys with a section for each mapping.
fn keys_page(title: &str, intro: &str, keys: &[(String, &'static ConfigKey)]) -> String {
    let mut page = format!("# {title}\n\n{}\n", wrapped(intro, ""));
    let mut sections: Vec<(&str, Vec<_>)> = Vec::new();
    for (path, key) in keys {
        let (mapping, name) = path.rsplit_once('.').unwrap_or(("top of an object", path));
        let entry = (name.to_owned(), *key);
        match sections.iter_mut().find(|(section, _)| *section == mapping) {
            Some((_, entries)) => entries.push(entry),
            None => sections.push((mapping, vec![entry])),
        }
    }
    for (mapping, keys) in sections {
        write!(page, "\n## {mapping}\n").unwrap();
        describe_keys(&keys, &mut page).unwrap();
    }
    page
}

#[test]
fn chain_file_page_matches_the_keys() {
    assert_page(&chain_file_page(), "chain-file.md");
    assert_page(&topology_page(), "topology-file.md");
}

/// Compares a page of docs/reference with the generated text.
fn assert_page(page: &str, name: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/reference")
        .join(name);
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "{} is not up to date", path.display());
}

#[test]
fn kinds_page_matches_the_descriptions() {
    assert_page(&page(), "kinds.md");
}

/// Returns the page of the errors of chain files with their remedies. It lists each error once, in
/// the order of the fixtures' names.
fn errors_page() -> String {
    let intro = "After this page you know what `myelin plan` says of a mistake in a chain file, and what to write instead. Every \
                 error names file, line and column, and shows the line. The page is generated from \
                 `crates/spec/tests/errors` (`WRITE_DOCS=1 cargo test -p myelin-spec --test reference`).";
    let mut page = format!("# Errors of chain files\n\n{}\n", wrapped(intro, ""));
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/errors");
    let files = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|e| e == "stderr"))
        .collect();
    files.sort();
    let mut listed = std::collections::HashSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let mut entries = String::new();
        for error in text.split("\n\n") {
            // The message may have several lines. The line of the file follows below a margin.
            let first: Vec<_> = error
                .lines()
                .take_while(|line| line.trim() != "|")
                .map(str::trim)
                .collect();
            let first = first.join(" ");
            let (_, message) = first.split_once(": error: ").unwrap();
            let (_, help) = error.trim_end().split_once("= help: ").unwrap();
            if listed.insert(message.to_owned()) {
                let entry = wrapped(&format!("* {message}: *{help}*"), "  ");
                writeln!(entries, "{entry}").unwrap();
            }
        }
        if !entries.is_empty() {
            let name = file
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .replace('-', " ");
            write!(page, "\n## {name}\n\n{entries}").unwrap();
        }
    }
    page
}

#[test]
fn errors_page_matches_the_fixtures() {
    assert_page(&errors_page(), "errors.md");
}
