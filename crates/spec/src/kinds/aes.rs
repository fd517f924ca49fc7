//! `aes-encrypt` and `aes-decrypt`.

use super::mtu;
use super::prelude::*;
use crate::files;
use crate::secret::SecretKey;

/// Most keys in one key file.
const MAX_KEYS: usize = 16;
/// Lengths of keys, bytes.
const KEY_LENGTHS: [usize; 2] = [16, 32];

word_enum! {
    /// The cipher of payloads.
    #[derive(Default, Hash)]
    pub enum Cipher {
        /// AES in Galois/Counter Mode (NIST SP 800-38D) with a key of 128 bits.
        #[default]
        Aes128Gcm = "aes-128-gcm",
        /// AES in Galois/Counter Mode with a key of 256 bits.
        Aes256Gcm = "aes-256-gcm",
        /// AES in Counter Mode (NIST SP 800-38A) with a key of 128 bits, for comparison with other
        /// systems. It authenticates nothing: an attacker on the path can flip any bit of the
        /// plaintext.
        Aes128Ctr = "aes-128-ctr",
        /// AES in Counter Mode with a key of 256 bits.
        Aes256Ctr = "aes-256-ctr",
    }
}

impl Cipher {
    /// Returns the length of the cipher's keys, bytes.
    pub fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::Aes128Ctr => 16,
            Self::Aes256Gcm | Self::Aes256Ctr => 32,
        }
    }

    /// Whether the receiver detects changed packets.
    pub fn is_authenticated(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes256Gcm)
    }

    /// The bytes that encryption appends.
    fn added_bytes(self) -> u64 {
        if self.is_authenticated() { 44 } else { 28 }
    }

    fn caution(self) -> Option<String> {
        (!self.is_authenticated()).then(|| {
            format!(
                "uses {self}, which authenticates nothing: an attacker on the path can change any bit of the payload unnoticed; \
                 write `cipher: aes-128-gcm`"
            )
        })
    }
}

const SECRET_FILE: ConfigKey = ConfigKey::new(ValueType::SecretFile).required();
const CIPHER: ConfigKey = Cipher::KEY.with_default("aes-128-gcm");

config! {
    /// Configuration of an `aes-encrypt` function. Each key has at least the cipher's key length.
    /// The first key encrypts.
    pub struct AesEncryptConfig {
        /// A file of 1 to 16 keys, one a line, each of 32 or 64 hexadecimal digits (`openssl rand
        /// -hex 32`); AES-256 needs 64. The first key encrypts, every key decrypts. Only its owner
        /// may have access to it. `/dev/urandom` gives one random key to all functions of the chain
        /// file, a new one at each `up`.
        "keyFile" keys: Vec<SecretKey> = SECRET_FILE, from keys;
        /// The cipher, the same on both sides. `ctr` authenticates nothing: an attacker on the path
        /// can flip bits of the payload and forge counters.
        "cipher" cipher: Cipher = CIPHER;
        /// The longest IP packet that may leave, bytes. Encryption adds 44 bytes (28 with `ctr`);
        /// the function drops a packet that would become longer.
        "mtu" mtu: u16 = mtu(9216);
    }
}

config! {
    /// Configuration of an `aes-decrypt` function. Each key has at least the cipher's key length.
    /// Every key decrypts.
    pub struct AesDecryptConfig {
        /// A file of 1 to 16 keys, one a line, each of 32 or 64 hexadecimal digits (`openssl rand
        /// -hex 32`); AES-256 needs 64. The first key encrypts, every key decrypts. Only its owner
        /// may have access to it. `/dev/urandom` gives one random key to all functions of the chain
        /// file, a new one at each `up`.
        "keyFile" keys: Vec<SecretKey> = SECRET_FILE, from keys;
        /// The cipher, the same on both sides. `ctr` authenticates nothing: an attacker on the path
        /// can flip bits of the payload and forge counters.
        "cipher" cipher: Cipher = CIPHER;
        /// The size of the anti-replay window, packets. 0 accepts every packet any number of times.
        "replayWindow" replay_window: u32 = integer(0, 65_536, "a number of packets").with_default("1024");
        /// The most live sessions. Each start of an encrypter begins a session, which stays live
        /// for 10 s after its last packet.
        "sessions" sessions: u16 = integer(1, 256, "a number of sessions").with_default("16");
    }
}

impl AesEncryptConfig {
    /// Returns the part of the configuration that a session depends on: cipher and first key.
    #[must_use]
    pub fn state_config(&self) -> Self {
        Self {
            cipher: self.cipher,
            keys: self.keys.iter().take(1).cloned().collect(),
            mtu: 0,
        }
    }
}

impl AesDecryptConfig {
    /// Returns the part of the configuration that sessions depend on. Sessions survive a change of
    /// the keys.
    #[must_use]
    pub fn state_config(&self) -> Self {
        Self {
            keys: Vec::new(),
            ..self.clone()
        }
    }
}

/// Measured with `aes-128-gcm` on an Intel Xeon that has VAES and AVX-512. Without these
/// instructions, a byte costs several times as much.
const COST: Cost = Cost::new(105.0, 0.09);

/// `aes-encrypt`.
pub static AES_ENCRYPT: Kind = Kind {
    name: "aes-encrypt",
    class: Class::Advanced,
    user: Some(COST),
    works_on: PacketParts::Payload,
    state: State::PerInstance,
    fails_closed: true,
    config: AesEncryptConfig::KEYS,
    fragments: FragmentSupport::WholeDatagram,
    description: "Encrypts and authenticates the UDP payload with AES-GCM. Appends a trailer that \
                  `aes-decrypt` needs. Drops fragments, packets of other protocols, and packets that \
                  would become longer than the MTU.",
    example: "{ name: cipher, kind: aes-encrypt, config: { keyFile: /dev/urandom } }",
    counters: &[
        ("fragment", "dropped: a fragment, the first included"),
        ("not-udp", "dropped: another protocol"),
        (
            "surplus",
            "dropped: the IP packet has bytes after the datagram",
        ),
        ("too-long", "dropped: it would be longer than the MTU"),
        ("no-room", "dropped: it would be longer than its buffer"),
        (
            "no-session",
            "dropped: the library had no memory or no random numbers",
        ),
        ("sessions-started", "sessions that started"),
    ],
    read: |fields| FunctionConfig::AesEncrypt(AesEncryptConfig::from_fields(fields)),
    effect: |config| match config {
        FunctionConfig::AesEncrypt(config) => Effect {
            added_bytes: AddedBytes::new(config.cipher.added_bytes(), config.mtu),
            caution: config.cipher.caution(),
            ..Effect::default()
        },
        _ => Effect::default(),
    },
    ..Kind::BASE
};

/// `aes-decrypt`.
pub static AES_DECRYPT: Kind = Kind {
    name: "aes-decrypt",
    class: Class::Advanced,
    user: Some(COST),
    works_on: PacketParts::Payload,
    state: State::PerInstance,
    fails_closed: true,
    config: AesDecryptConfig::KEYS,
    fragments: FragmentSupport::WholeDatagram,
    description: "Decrypts packets of `aes-encrypt`. Drops and counts packets that are not authentic: \
                  another key, changed, replayed, too late, truncated, or not encrypted.",
    example: "{ name: clear, kind: aes-decrypt, config: { keyFile: /dev/urandom } }",
    counters: &[
        ("fragment", "dropped: a fragment, the first included"),
        ("not-udp", "dropped: another protocol"),
        (
            "surplus",
            "dropped: the IP packet has bytes after the datagram",
        ),
        ("no-session", "dropped: the library had no memory"),
        ("too-short", "dropped: shorter than trailer and tag"),
        (
            "unknown-key",
            "dropped: no key of the file has its key identifier",
        ),
        (
            "not-authentic",
            "dropped: changed, forged, or another cipher",
        ),
        ("replayed", "dropped: received before"),
        ("too-old", "dropped: older than the window"),
        ("session-evicted", "dropped: its session was evicted"),
        (
            "sessions-full",
            "dropped: its session is new, and all sessions are live",
        ),
        ("sessions-started", "sessions that started"),
        ("sessions-evicted", "sessions that were evicted"),
    ],
    read: |fields| FunctionConfig::AesDecrypt(AesDecryptConfig::from_fields(fields)),
    effect: |config| match config {
        FunctionConfig::AesDecrypt(config) => Effect {
            caution: config.cipher.caution(),
            ..Effect::default()
        },
        _ => Effect::default(),
    },
    ..Kind::BASE
};

/// Reads the key file. Faults have line numbers, and never show the text of a line.
fn keys(fields: &Fields<'_>) -> Vec<SecretKey> {
    fields
        .get("keyFile")
        .and_then(|field| read_keys(&field, fields))
        .unwrap_or_default()
}

fn read_keys(field: &Field<'_>, fields: &Fields<'_>) -> Option<Vec<SecretKey>> {
    const FILE: &str =
        "the path of a readable key file, relative to the directory of the chain file";
    const EXPECTED: &str =
        "32 or 64 hexadecimal digits a line, blank lines, and comments after `#`";
    let path = field.text(FILE, "write for example tactile.key")?;
    let shown = Printable(path);
    // The reader of the key `cipher` logs a faulty cipher.
    let cipher = fields
        .get("cipher")
        .and_then(|field| field.node.text())
        .and_then(|word| Cipher::WORDS.iter().find(|(name, _)| *name == word));
    let cipher = cipher.map_or_else(Cipher::default, |(_, cipher)| *cipher);
    let read = files::read_text(field.faults.files, path);
    match read.map(|text| parse_keys(&text, cipher)) {
        Ok(Ok(keys)) => return Some(keys),
        Ok(Err(problem)) => field.fault(
            format!("`{shown}`: {problem}"),
            EXPECTED,
            format!("make a key with `openssl rand -hex {}`", cipher.key_len()),
        ),
        Err(reason) => field.fault(
            format!("cannot read `{shown}`: {}", Printable(&reason)),
            FILE,
            "correct the path, or make the file with `(umask 077; openssl rand -hex 32 > FILE)`",
        ),
    }
    None
}

/// Parses a key file. The error is the first fault.
fn parse_keys(text: &str, cipher: Cipher) -> Result<Vec<SecretKey>, String> {
    let mut keys: Vec<SecretKey> = Vec::new();
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    for (number, digits) in (1..).zip(lines).filter(|(_, digits)| !digits.is_empty()) {
        let length = digits.chars().count();
        if !KEY_LENGTHS.contains(&(length / 2)) || length % 2 != 0 {
            return Err(format!(
                "line {number} has {length} characters, but a key has 32 or 64"
            ));
        }
        let key = SecretKey::from_hex(digits).ok_or_else(|| {
            format!("line {number} contains characters other than hexadecimal digits")
        })?;
        let (length, needed) = (key.expose().len(), cipher.key_len());
        if length < needed {
            return Err(format!(
                "line {number} has a key of {length} bytes, but {cipher} needs {needed}"
            ));
        }
        if keys.contains(&key) {
            return Err(format!("line {number} repeats a key"));
        }
        keys.push(key);
    }
    match keys.len() {
        0 => Err("the file has no key".to_owned()),
        1..=MAX_KEYS => Ok(keys),
        count => Err(format!(
            "the file has {count} keys; the maximum is {MAX_KEYS}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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

    #[test]
    fn keys_are_read_in_file_order_without_comments() {
        let long = KEY.repeat(2);
        let file = format!("# the new one\n{long}\n\n  {KEY}  \r\n");
        let Ok(FunctionConfig::AesDecrypt(config)) = read("aes-decrypt", "", &file) else {
            panic!("the key file is valid");
        };
        let lengths: Vec<_> = config.keys.iter().map(|key| key.expose().len()).collect();
        assert_eq!(lengths, [32, 16]);
    }

    #[test]
    fn a_key_file_may_start_with_a_byte_order_mark() {
        let file = format!("\u{feff}{KEY}\r\n");
        let Ok(FunctionConfig::AesEncrypt(config)) = read("aes-encrypt", "", &file) else {
            panic!("the key file is valid");
        };
        assert_eq!(config.keys[0].expose().len(), 16);
    }

    #[test]
    fn errors_of_a_key_file_hide_its_content() {
        let cases = [
            ("", "", "no key"),
            ("", "# only this\n", "no key"),
            ("", "5ec2e7", "line 1 has 6 characters"),
            (
                "",
                "5ec2e7005ec2e7005ec2e7005ec2e70g",
                "line 1 contains characters other",
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
}
