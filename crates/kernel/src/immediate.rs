//! Writes members of a program's instance into the program's instructions as operands. `instance.h`
//! defines `IMMEDIATE`.
//!
//! For each use of a member the compiler emits a 64-bit constant: [`MARK`] and the member's offset.
//! This module replaces the constant by the member's value before the load. So the verifier knows
//! the value, and the program does not read the value from memory.

/// Upper half of `IMMEDIATE_MARK`. No other constant of the programs has this upper half.
const MARK: u32 = 0x4d79_656c;
/// Bytes of an instruction. A load of 64 bits takes two instructions.
const INSTRUCTION: usize = 8;
/// `BPF_LD | BPF_IMM | BPF_DW`.
const LOAD: u8 = 0x18;

/// Returns a copy of the object with the 32-bit members of `instance` as operands. Leaves a
/// constant unchanged if the offset is beyond the instance; a test finds such constants.
pub fn fill_immediates(object: &[u8], instance: &[u8]) -> Vec<u8> {
    let mut object = object.to_vec();
    for at in (0..object.len().saturating_sub(2 * INSTRUCTION - 1)).step_by(INSTRUCTION) {
        let [low, high] = [at + 4, at + INSTRUCTION + 4].map(|from| read_word(&object, from));
        // The second half has no opcode, and a load from a map has a source register.
        if object[at] != LOAD
            || object[at + 1] >> 4 != 0
            || object[at + INSTRUCTION] != 0
            || high != MARK
        {
            continue;
        }
        let from = low as usize;
        if let Some(value) = instance.get(from..from + 4) {
            object[at + 4..at + 8].copy_from_slice(value);
            object[at + INSTRUCTION + 4..at + 2 * INSTRUCTION].fill(0);
        }
    }
    object
}

fn read_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object;

    fn load(register: u8, low: u32, high: u32) -> Vec<u8> {
        let mut bytes = vec![LOAD, register, 0, 0];
        bytes.extend(low.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(high.to_ne_bytes());
        bytes
    }

    #[test]
    fn only_marked_constants_are_replaced() {
        let instance: Vec<u8> = [7_u32, 0x8000_0001].map(u32::to_ne_bytes).concat();
        let map = load(0x12, 4, MARK);
        let object = [
            load(1, 0, MARK),
            load(3, 4, MARK),
            load(2, 4, MARK + 1),
            load(1, 8, MARK),
            map.clone(),
        ]
        .concat();
        let expected = [
            load(1, 7, 0),
            load(3, 0x8000_0001, 0),
            load(2, 4, MARK + 1),
            load(1, 8, MARK),
            map,
        ]
        .concat();
        assert_eq!(fill_immediates(&object, &instance), expected);
        assert_eq!(fill_immediates(&object[..15], &instance), object[..15]);
    }

    #[test]
    fn all_marks_of_all_programs_are_replaced() {
        for program in object::ALL {
            for bytes in program.objects() {
                let (marked, instance) = (count_marks(bytes), [0; 256]);
                assert!(
                    marked > 0 || ["closed", "split"].contains(&program.name()),
                    "{}",
                    program.name()
                );
                assert_eq!(
                    count_marks(&fill_immediates(bytes, &instance)),
                    0,
                    "{}",
                    program.name()
                );
            }
        }
    }

    fn count_marks(object: &[u8]) -> usize {
        object
            .chunks_exact(4)
            .filter(|bytes| **bytes == MARK.to_ne_bytes())
            .count()
    }
}
