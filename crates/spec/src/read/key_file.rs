//! Reads key files: a key a line, in hexadecimal digits.

use super::field::Field;
use crate::aes::{Cipher, MAX_KEYS};
use crate::error::{Fault, Report};
use crate::files::FileResolver;
use crate::printable::Printable;
use crate::secret::SecretKey;

const EXPECTED: &str = "32 or 64 hexadecimal digits a line, blank lines, and comments after `#`";
/// Lengths of keys, bytes.
const LENGTHS: [usize; 2] = [16, 32];

/// The keys of the file that `field` names. Faults tell its lines by their number and never show what they hold.
pub(super) fn read(
    field: &Field<'_>,
    cipher: Cipher,
    files: &dyn FileResolver,
    report: &mut Report<'_>,
) -> Option<Vec<SecretKey>> {
    const FILE: &str =
        "the path of a readable key file, relative to the directory of the chain file";
    let path = field.text(report, FILE, "write for example tactile.key")?;
    let text = match files.read(path) {
        Ok(text) => text,
        Err(reason) => {
            let fault = Fault::new(
                format!("cannot read `{}`: {}", Printable(path), Printable(&reason)),
                FILE,
                "correct the path, or make the file with `(umask 077; openssl rand -hex 32 > FILE)`",
            );
            field.fault(report, fault);
            return None;
        }
    };
    match keys(&text, cipher) {
        Ok(keys) => Some(keys),
        Err(what) => {
            let message = format!("`{}`: {what}", Printable(path));
            let help = match cipher.key_len() {
                16 => "make a key with `openssl rand -hex 16`",
                _ => "make a key with `openssl rand -hex 32`",
            };
            field.fault(report, Fault::new(message, EXPECTED, help));
            None
        }
    }
}

/// The keys, or what is wrong with their file.
fn keys(text: &str, cipher: Cipher) -> Result<Vec<SecretKey>, String> {
    let mut keys: Vec<SecretKey> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let digits = line.split('#').next().unwrap_or_default().trim();
        if digits.is_empty() {
            continue;
        }
        let length = digits.chars().count();
        if !LENGTHS.contains(&(length / 2)) || length % 2 != 0 {
            return Err(format!(
                "line {number} has {length} characters, which is no key"
            ));
        }
        let key = SecretKey::from_hex(digits)
            .ok_or_else(|| format!("line {number} holds something else than digits"))?;
        if key.expose().len() < cipher.key_len() {
            return Err(format!(
                "line {number} has a key of {} bytes, {cipher} needs {}",
                key.expose().len(),
                cipher.key_len()
            ));
        }
        if keys.contains(&key) {
            return Err(format!("line {number} repeats a key"));
        }
        keys.push(key);
    }
    match keys.len() {
        0 => Err("the file holds no key".to_owned()),
        1..=MAX_KEYS => Ok(keys),
        count => Err(format!(
            "the file holds {count} keys, {MAX_KEYS} are the most"
        )),
    }
}
