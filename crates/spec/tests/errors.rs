//! Tests the errors of likely mistakes: `errors/NAME.yaml` has mistakes, `errors/NAME.stderr` the
//! expected errors.
//!
//! `WRITE_FIXTURES=1 cargo test -p myelin-spec --test errors` rewrites the texts. Review the
//! difference.

use std::fs;
use std::path::{Path, PathBuf};

use myelin_spec::{FileResolver, Source, parse};

/// Reads the files to which chain files refer from `errors/files`.
struct Directory(PathBuf);

impl FileResolver for Directory {
    fn read(&self, path: &str) -> Result<String, String> {
        fs::read_to_string(self.0.join(path)).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "no such file".to_owned(),
            _ => error.to_string(),
        })
    }
}

#[test]
fn mistakes_give_the_expected_errors() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors");
    let files = Directory(directory.join("files"));
    let update = std::env::var_os("WRITE_FIXTURES").is_some();
    let mut paths: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    paths.sort();
    assert!(paths.len() >= 60, "only {} files found", paths.len());

    let mut different = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let Err(errors) = parse(&text, &Source::new(&name), &files) else {
            different.push(format!("{name}: no error"));
            continue;
        };
        let found = format!("{errors}\n");
        let expected_path = path.with_extension("stderr");
        if update {
            fs::write(&expected_path, &found).unwrap();
        }
        let expected = fs::read_to_string(&expected_path).unwrap_or_default();
        if found != expected {
            different.push(format!(
                "{name}:\n--- expected\n{expected}--- found\n{found}"
            ));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
