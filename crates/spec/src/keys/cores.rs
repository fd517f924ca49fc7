//! Numbers of cores.

use super::field::{Field, Fields};
use super::{ConfigKey, ValueType};
use crate::printable::Printable;

/// A limit above the number of cores of any machine. At its start, a process checks its core.
pub(crate) const MAX_CORE: u32 = 4095;

/// A list of cores.
pub(crate) const CORES: ConfigKey = ConfigKey::new(ValueType::TextOrList);

const EXPECTED: &str = "the numbers of cores";

/// Reads a number, a range FROM-TO, or a list of both. Returns each core once, in the order of the
/// file.
pub(crate) fn read_cores(field: &Field<'_>) -> Vec<u32> {
    let mut cores = Vec::new();
    for part in field.one_or_list(EXPECTED) {
        let range = part.parsed(EXPECTED, "write for example 0, 0-3 or [ 0, 2 ]", |text| {
            let (from, to) = text.split_once('-').unwrap_or((text, text));
            let number = |text: &str| text.parse().ok().filter(|core: &u32| *core <= MAX_CORE);
            let range = number(from).zip(number(to));
            range
                .filter(|(from, to)| from <= to)
                .ok_or_else(|| format!("`{}` is no core and no range of cores", Printable(text)))
        });
        let range = range.into_iter().flat_map(|(from, to)| from..=to);
        for core in range {
            if !cores.contains(&core) {
                cores.push(core);
            }
        }
    }
    cores
}

/// Reads the key `cores` of a mapping. An empty list is a fault, because it says nothing.
pub(crate) fn read_cores_of(fields: &Fields<'_>) -> Vec<u32> {
    let Some(field) = fields.get("cores") else {
        return Vec::new();
    };
    let before = field.faults.count();
    let cores = read_cores(&field);
    if cores.is_empty() && field.faults.count() == before {
        field.fault(
            "an empty list",
            EXPECTED,
            "write for example [1], or remove the key",
        );
    }
    cores
}
