//! Checks that the crates `planner` and `policy` contain no name of a kind, because they use the
//! descriptions of the kinds.

use std::fs;
use std::path::{Path, PathBuf};

use myelin_spec::catalogue;

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let each = entries.flat_map(|path| {
        if path.is_dir() {
            sources(&path)
        } else {
            vec![path]
        }
    });
    each.filter(|path| path.file_name().is_some_and(|name| name != "tests.rs"))
        .collect()
}

/// Returns the code of a file without comments and without the tests at the end.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn planner_and_policy_contain_no_name_of_a_kind() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = 0;
    for name in ["planner", "policy"] {
        for path in sources(&crates.join(name).join("src")) {
            let code = code(&path);
            files += 1;
            assert!(!code.contains("FunctionConfig::"), "{}", path.display());
            for kind in catalogue::kinds() {
                let name = format!("\"{}\"", kind.name);
                assert!(!code.contains(&name), "{} in {}", kind.name, path.display());
            }
        }
    }
    assert!(files > 30, "only {files} files found");
}
