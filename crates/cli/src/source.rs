//! Reads a chain file and the files that it names, with the user's own rights.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use myelin_api::{ApiError, ChainSource};
use myelin_spec::FileContents;

use crate::secret_file;

/// Reads FILE (`-`: standard input) and every file that it names.
///
/// # Errors
/// The chain file cannot be read; a key file cannot be read, or others have access to the key file.
pub(crate) fn read(file: &Path) -> Result<ChainSource, ApiError> {
    let (name, text) = if file == Path::new("-") {
        let text = std::io::read_to_string(std::io::stdin())
            .map_err(|error| ApiError::usage(format!("cannot read standard input: {error}")))?;
        ("<stdin>".to_owned(), text)
    } else {
        let text = std::fs::read_to_string(file)
            .map_err(|error| ApiError::usage(format!("cannot read {}: {error}", file.display())))?;
        (file.display().to_string(), text)
    };
    let directory = file.parent().unwrap_or(Path::new("."));
    let mut source = ChainSource {
        name,
        text,
        ..ChainSource::default()
    };
    for named in myelin_spec::referenced_files(&source.text) {
        let path = directory.join(&named.path);
        let contents = if named.is_secret {
            secret_file::read(&path)
                .map_err(ApiError::usage)?
                .map(FileContents::Text)
        } else {
            read_limited(&path)?.map(FileContents::from)
        };
        // The parser reports a missing file with the line that names it.
        if let Some(contents) = contents {
            source.files.insert(named.path, contents);
        }
    }
    Ok(source)
}

/// Longest file that a chain file may name, bytes. A list of 131 072 routes is a tenth as long.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a file's bytes. Returns `None` if the read fails. Refuses a file above the limit, so also
/// an endless device.
fn read_limited(path: &Path) -> Result<Option<Vec<u8>>, ApiError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    if bytes.len() as u64 > MAX_BYTES {
        let path = path.display();
        return Err(ApiError::usage(format!(
            "{path}: longer than {} MiB, the limit for files that a chain file names: name a shorter file",
            MAX_BYTES >> 20
        )));
    }
    Ok(read.is_ok().then_some(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use myelin_spec::FunctionConfig;

    use super::*;

    #[test]
    fn keys_with_safe_access_rights_are_sent_and_not_printed() {
        const KEY: &str = "5ec2e7005ec2e7005ec2e7005ec2e700";
        const CHAIN: &str =
            "spec: { functions: [ { kind: aes-encrypt, config: { keyFile: a.key } } ] }";
        let directory = tempfile::tempdir().unwrap();
        let chain = directory.path().join("chain.yaml");
        let key = directory.path().join("a.key");
        fs::write(&chain, CHAIN).unwrap();
        // The parser reports a missing file.
        assert!(read(&chain).unwrap().files.is_empty());

        fs::write(&key, KEY).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        let source = read(&chain).unwrap();
        assert_eq!(source.files["a.key"], FileContents::Text(KEY.to_owned()));
        assert!(!format!("{source:?}").contains("5ec2"));

        fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
        let refused = read(&chain).unwrap_err().to_string();
        assert!(refused.contains("a.key") && refused.contains("chmod 600"));
    }

    #[test]
    fn an_endless_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let chain = directory.path().join("chain.yaml");
        let text = "spec: { functions: [ { kind: firewall, config: { rulesFile: /dev/zero } } ] }";
        fs::write(&chain, text).unwrap();
        let refused = read(&chain).unwrap_err().to_string();
        assert!(refused.contains("/dev/zero") && refused.contains("64 MiB"));
    }

    /// Sends the file as JSON, like the agent's socket, and parses the received chain.
    #[test]
    fn a_binary_file_reaches_the_agent() {
        let directory = tempfile::tempdir().unwrap();
        let dictionary: Vec<u8> = (0..=255).rev().collect();
        fs::write(directory.path().join("any.dict"), &dictionary).unwrap();
        let text = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: wan }
spec:
  match: { protocol: udp, destinationPort: 9000 }
  functions: [ { name: squeeze, kind: compress, config: { dictionary: any.dict } } ]
";
        let file = directory.path().join("wan.yaml");
        fs::write(&file, text).unwrap();
        let source = read(&file).ok().unwrap();
        let sent = serde_json::to_string(&source).unwrap();
        let received: ChainSource = serde_json::from_str(&sent).unwrap();
        let chains = received.parse().ok().unwrap();
        let FunctionConfig::Compress(config) = &chains[0].functions[0].config else {
            panic!("the function is not `compress`");
        };
        assert_eq!(config.dictionary.as_ref().unwrap().bytes(), dictionary);
    }
}
