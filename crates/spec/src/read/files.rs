//! Finds the files that a chain file names, before the parser reads the chain file.

use crate::keys::{ConfigKey, ValueType};
use crate::kinds::catalogue;
use crate::yaml::{self, Node, Value};

/// A file that a chain file names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferencedFile {
    /// The path in the chain file.
    pub path: String,
    /// Whether the file contains secrets ([`ValueType::SecretFile`]), so that only the file's owner
    /// may have access.
    pub is_secret: bool,
}

/// Returns the files that a chain file names, each path once, in file order.
///
/// Ignores faults: [`parse`](crate::parse) reports them.
pub fn referenced_files(text: &str) -> Vec<ReferencedFile> {
    let mut files: Vec<ReferencedFile> = Vec::new();
    for document in yaml::load(text).unwrap_or_default() {
        let Some(spec) = document.get("spec") else {
            continue;
        };
        let functions = match spec.get("functions").map(|node| &node.value) {
            Some(Value::List(functions)) => functions.as_slice(),
            _ => &[],
        };
        let of_functions = functions.iter().flat_map(files_of_function);
        for file in of_functions.chain(replayed_file(spec)) {
            match files.iter_mut().find(|known| known.path == file.path) {
                Some(known) => known.is_secret |= file.is_secret,
                None => files.push(file),
            }
        }
    }
    files
}

/// Returns the file that ports in memory replay.
fn replayed_file(spec: &Node) -> Option<ReferencedFile> {
    let keys = ["ports", "ingress", "replay", "file"];
    let path = keys.iter().try_fold(spec, |node, key| node.get(key))?;
    Some(ReferencedFile {
        path: path.text()?.to_owned(),
        is_secret: false,
    })
}

/// Returns the files that a function names.
fn files_of_function(function: &Node) -> Vec<ReferencedFile> {
    let kind = function
        .get("kind")
        .and_then(Node::text)
        .and_then(catalogue::kind);
    let (Some(kind), Some(config)) = (kind, function.get("config")) else {
        return Vec::new();
    };
    let file_at = |key: &ConfigKey| {
        let is_secret = match key.value {
            ValueType::File => false,
            ValueType::SecretFile => true,
            _ => return None,
        };
        let path = config.get(key.key).and_then(Node::text)?.to_owned();
        Some(ReferencedFile { path, is_secret })
    };
    kind.config.iter().filter_map(file_at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn referenced_files_returns_each_path_once() {
        let text = "
spec:
  functions:
    - { kind: firewall, config: { rulesFile: a.yaml } }
    - { kind: forward, config: { rulesFile: not-a-file-of-forward.yaml } }
    - { kind: aes-encrypt, config: { keyFile: a.key } }
    - { kind: firewall, config: { rulesFile: rules/b.yaml } }
    - { kind: aes-decrypt, config: { keyFile: rules/b.yaml } }
---
spec: { functions: [ { kind: firewall, config: { rulesFile: a.yaml } }, 3, { kind: firewall } ] }
---
spec: nothing here
---
spec: { ports: { ingress: { replay: { file: t.pcap } }, egress: { discard: true } } }
";
        let file = |path: &str, is_secret| ReferencedFile {
            path: path.to_owned(),
            is_secret,
        };
        let named = [
            file("a.yaml", false),
            file("a.key", true),
            file("rules/b.yaml", true),
            file("t.pcap", false),
        ];
        assert_eq!(referenced_files(text), named);
        assert_eq!(referenced_files("{ not yaml"), []);
    }
}
