//! The files that a chain file names.
//!
//! This room does no I/O: whoever parses reads those files, with its own rights, and hands them in.

use std::collections::BTreeMap;

use crate::catalogue::{self, ValueType};
use crate::yaml::{self, Node, Value};

/// Gives the contents of a file that a chain file names.
pub trait FileResolver {
    /// The text of the file at `path`, which is as written in the chain file: relative paths start at that file's
    /// directory. The error says why it cannot be read.
    fn read(&self, path: &str) -> Result<String, String>;
}

/// Files that were read before, by the path written in the chain file.
impl FileResolver for BTreeMap<String, String> {
    fn read(&self, path: &str) -> Result<String, String> {
        self.get(path)
            .cloned()
            .ok_or_else(|| "there is no such file, or it cannot be read".to_owned())
    }
}

/// For chain files that name no file: refuses all.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFiles;

impl FileResolver for NoFiles {
    fn read(&self, _: &str) -> Result<String, String> {
        Err("no files can be read here".to_owned())
    }
}

/// The files that a chain file names, as written there, each once, in order.
///
/// Looks no further than needed to find them: a text with errors gives those that can be seen, and
/// [`parse`](crate::parse) tells the errors.
pub fn referenced_files(text: &str) -> Vec<String> {
    let mut files = Vec::new();
    for document in yaml::load(text).unwrap_or_default() {
        let functions = document.get("spec").and_then(|spec| spec.get("functions"));
        let Some(Value::List(functions)) = functions.map(|node| &node.value) else {
            continue;
        };
        for path in functions.iter().flat_map(named_by) {
            if !files.contains(&path) {
                files.push(path);
            }
        }
    }
    files
}

/// The files that one function names.
fn named_by(function: &Node) -> Vec<String> {
    let kind = function
        .get("kind")
        .and_then(text)
        .and_then(catalogue::kind);
    let (Some(kind), Some(config)) = (kind, function.get("config")) else {
        return Vec::new();
    };
    kind.config
        .iter()
        .filter(|key| key.value == ValueType::File)
        .filter_map(|key| config.get(key.key).and_then(text).map(str::to_owned))
        .collect()
}

fn text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_each_file_once() {
        let text = "
spec:
  functions:
    - { kind: firewall, config: { rulesFile: a.yaml } }
    - { kind: forward, config: { rulesFile: not-a-file-of-forward.yaml } }
    - { kind: firewall, config: { rulesFile: rules/b.yaml } }
---
spec: { functions: [ { kind: firewall, config: { rulesFile: a.yaml } }, 3, { kind: firewall } ] }
---
spec: nothing here
";
        assert_eq!(referenced_files(text), ["a.yaml", "rules/b.yaml"]);
        assert_eq!(referenced_files("{ not yaml"), Vec::<String>::new());
    }
}
