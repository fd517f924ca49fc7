//! Sets of rules as bit vectors. A field stores each different set once.

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};

use super::MAX_RULES;

/// 64-bit words of a vector.
pub const WORDS: usize = MAX_RULES / 64;

/// The rules that a class of values matches. Same layout as `struct class_vector` of the eBPF
/// programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct ClassVector {
    /// Bit `w` is set if `words[w]` is not zero: the aggregate of Baboescu and Varghese.
    pub summary: u64,
    /// Bit `r % 64` of word `r / 64` is set if the class matches rule `r`.
    pub words: [u64; WORDS],
}

impl ClassVector {
    fn insert(&mut self, rule: usize) {
        self.words[rule / 64] |= 1 << (rule % 64);
        self.summary |= 1 << (rule / 64);
    }

    fn remove(&mut self, rule: usize) {
        self.words[rule / 64] &= !(1 << (rule % 64));
        if self.words[rule / 64] == 0 {
            self.summary &= !(1 << (rule / 64));
        }
    }
}

/// Numbers the different vectors of one field in order of appearance.
#[derive(Default)]
struct Interner {
    numbers: HashMap<ClassVector, u32>,
    vectors: Vec<ClassVector>,
}

impl Interner {
    fn number_of(&mut self, vector: ClassVector) -> u32 {
        *self.numbers.entry(vector).or_insert_with(|| {
            self.vectors.push(vector);
            (self.vectors.len() - 1) as u32
        })
    }
}

/// Builds the classes of a field with values up to `last`. `range` returns the first and last value
/// that a rule accepts, if any. Returns the first value and the class of each piece, and the
/// vectors by class. Class 0 matches the rules without this field.
pub(super) fn build_classes<T>(
    fields: impl Iterator<Item = Option<T>>,
    range: impl Fn(T) -> Option<(u128, u128)>,
    last: u128,
) -> (Vec<(u128, u32)>, Vec<ClassVector>) {
    let mut always = ClassVector::default();
    let mut ranges = Vec::new();
    for (rule, field) in fields.enumerate() {
        match field {
            None => always.insert(rule),
            Some(field) => ranges.extend(range(field).map(|(from, to)| (from, to, rule))),
        }
    }
    let mut interner = Interner::default();
    interner.number_of(always);
    let pieces = cut_pieces(always, &ranges, last, &mut interner);
    (pieces, interner.vectors)
}

/// Cuts the range `0..=last` at the edges of `ranges` (first value, last value, rule). Returns the
/// first value and the class of each piece.
///
/// `always` are the rules that every value matches. Adjacent values of the same class form one
/// piece.
fn cut_pieces(
    always: ClassVector,
    ranges: &[(u128, u128, usize)],
    last: u128,
    interner: &mut Interner,
) -> Vec<(u128, u32)> {
    let mut edges: Vec<(u128, bool, usize)> = Vec::with_capacity(2 * ranges.len());
    for &(from, to, rule) in ranges {
        edges.push((from, true, rule));
        if to < last {
            edges.push((to + 1, false, rule));
        }
    }
    edges.sort_unstable();
    let mut vector = always;
    let mut pieces: Vec<(u128, u32)> = Vec::new();
    let mut at = 0;
    let mut edges = edges.into_iter().peekable();
    loop {
        while let Some((_, enters, rule)) = edges.next_if(|edge| edge.0 == at) {
            if enters {
                vector.insert(rule);
            } else {
                vector.remove(rule);
            }
        }
        let class = interner.number_of(vector);
        if pieces.last().is_none_or(|piece| piece.1 != class) {
            pieces.push((at, class));
        }
        match edges.peek() {
            Some(edge) => at = edge.0,
            None => return pieces,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_marks_nonzero_words() {
        let mut vector = ClassVector::default();
        for rule in [0, 63, 64, 1023] {
            vector.insert(rule);
        }
        assert_eq!(vector.summary, 1 << 15 | 0b11);
        vector.remove(0);
        assert_eq!(vector.summary, 1 << 15 | 0b11);
        vector.remove(63);
        vector.remove(1023);
        assert_eq!(vector.summary, 0b10);
        vector.remove(64);
        assert_eq!(vector, ClassVector::default());
    }

    #[test]
    fn equal_rule_sets_share_one_class() {
        // Rules 0 and 1 have the same values. 9 lies between two gaps that match nothing.
        let ranges = [(4, 6, 0), (4, 6, 1), (9, 9, 2)];
        let mut interner = Interner::default();
        let pieces = cut_pieces(ClassVector::default(), &ranges, 10, &mut interner);
        assert_eq!(pieces, [(0, 0), (4, 1), (7, 0), (9, 2), (10, 0)]);
        assert_eq!(interner.vectors.len(), 3);
    }
}
