//! Reads the configurations of `aes-encrypt` and `aes-decrypt`.

use super::field::Fields;
use super::{key_file, mtu};
use crate::aes::{
    AesDecryptConfig, AesEncryptConfig, Cipher, MAX_MTU, MAX_REPLAY_WINDOW, MAX_SESSIONS,
};
use crate::error::Report;
use crate::files::FileResolver;
use crate::secret::SecretKey;

const REPLAY_WINDOW: u32 = 1024;
const SESSIONS: u16 = 16;

pub(super) fn encrypt(
    fields: &Fields<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> Option<AesEncryptConfig> {
    let (cipher, keys) = cipher_and_keys(fields, files, report);
    Some(AesEncryptConfig {
        cipher,
        keys: keys?,
        mtu: mtu::read(fields, MAX_MTU, report),
    })
}

pub(super) fn decrypt(
    fields: &Fields<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> Option<AesDecryptConfig> {
    let (cipher, keys) = cipher_and_keys(fields, files, report);
    let window = fields.get("replayWindow").and_then(|field| {
        field.integer(report, 0..=MAX_REPLAY_WINDOW.into(), "a number of packets")
    });
    let sessions = fields
        .get("sessions")
        .and_then(|field| field.integer(report, 1..=MAX_SESSIONS.into(), "a number of sessions"));
    Some(AesDecryptConfig {
        cipher,
        keys: keys?,
        replay_window: window.map_or(REPLAY_WINDOW, |window| window as u32),
        sessions: sessions.map_or(SESSIONS, |sessions| sessions as u16),
    })
}

fn cipher_and_keys(
    fields: &Fields<'_>,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> (Cipher, Option<Vec<SecretKey>>) {
    let cipher = fields
        .get("cipher")
        .and_then(|field| field.word(report, Cipher::WORDS))
        .unwrap_or_default();
    let keys = fields
        .get("keyFile")
        .and_then(|field| key_file::read(&field, cipher, files, report));
    (cipher, keys)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::catalogue::{AES_DECRYPT, AES_ENCRYPT, Kind};
    use crate::{FunctionConfig, Source, SpecErrors, parse};

    const KEY: &str = "5ec2e7005ec2e7005ec2e7005ec2e700";

    fn read(kind: &str, config: &str, key_file: &str) -> Result<FunctionConfig, SpecErrors> {
        let text = format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: a }}\nspec:\n  match: {{}}\n  functions:\n    \
             - {{ name: b, kind: {kind}, config: {{ keyFile: a.key, {config} }} }}\n"
        );
        let files = BTreeMap::from([("a.key".to_owned(), key_file.to_owned())]);
        parse(&text, &Source::new("a.yaml"), &files).map(|mut chains| {
            let function = chains.remove(0).functions.remove(0);
            function.config
        })
    }

    /// What the catalogue says of a default is what is taken.
    #[test]
    fn the_defaults_are_those_of_the_catalogue() {
        let written = |kind: &Kind| -> String {
            let keys = kind.config.iter();
            keys.filter_map(|key| Some(format!("{}: {}, ", key.key, key.default?)))
                .collect()
        };
        for kind in [&AES_ENCRYPT, &AES_DECRYPT] {
            let with = read(kind.name, &written(kind), KEY).unwrap();
            assert_eq!(with, read(kind.name, "", KEY).unwrap());
        }
    }

    #[test]
    fn keys_are_read_in_their_order_without_comments() {
        let long = KEY.repeat(2);
        let file = format!("# the new one\n{long}\n\n  {KEY}  \r\n");
        let Ok(FunctionConfig::AesDecrypt(config)) = read("aes-decrypt", "", &file) else {
            panic!("it is valid");
        };
        let lengths: Vec<_> = config.keys.iter().map(|key| key.expose().len()).collect();
        assert_eq!(lengths, [32, 16]);
    }

    #[test]
    fn a_bad_key_file_is_told_without_what_it_holds() {
        let cases = [
            ("", "", "no key"),
            ("", "# only this\n", "no key"),
            ("", "5ec2e7", "line 1 has 6 characters"),
            (
                "",
                "5ec2e7005ec2e7005ec2e7005ec2e70g",
                "line 1 holds something else",
            ),
            ("cipher: aes-256-gcm", KEY, "line 1 has a key of 16 bytes"),
            ("", &format!("{KEY}\n\n{KEY}"), "line 3 repeats"),
            ("", &"\n".repeat(20), "no key"),
        ];
        for (config, file, expected) in cases {
            for kind in ["aes-encrypt", "aes-decrypt"] {
                let error = read(kind, config, file).unwrap_err().to_string();
                assert!(error.contains(expected), "{error}");
                assert!(error.contains("`a.key`"), "{error}");
                assert!(!error.contains("5ec2e7"), "{error}");
            }
        }
        let many: Vec<_> = (0..17).map(|i| format!("{i:032x}")).collect();
        let error = read("aes-encrypt", "", &many.join("\n"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("17 keys"), "{error}");
    }

    #[test]
    fn nothing_shows_a_key() {
        let config = read("aes-encrypt", "", KEY).unwrap();
        assert!(!format!("{config:?} {config:#?}").contains("5ec2"));
    }
}
