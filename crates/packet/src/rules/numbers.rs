//! Maps ports and protocols to classes.

use std::ops::RangeInclusive;

use super::vectors::{self, ClassVector};

/// The class of a packet without the field. The class matches the rules without this field.
pub const NO_NUMBER: u16 = 0;

/// Classes indexed by number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NumberTable {
    /// A class for each number, 65 536 of ports and 256 of protocols.
    pub classes: Vec<u16>,
    /// The rules of each class, indexed by class.
    pub vectors: Vec<ClassVector>,
}

impl NumberTable {
    /// Builds the table of a field of numbers up to `last` from the range of each rule.
    pub(super) fn build(
        last: u16,
        fields: impl Iterator<Item = Option<RangeInclusive<u16>>>,
    ) -> Self {
        let range = |range: RangeInclusive<u16>| {
            let (from, to) = range.into_inner();
            (from <= to).then(|| (from.into(), to.into()))
        };
        let (pieces, vectors) = vectors::build_classes(fields, range, last.into());
        let count = usize::from(last) + 1;
        let mut classes = Vec::with_capacity(count);
        for (i, &(_, class)) in pieces.iter().enumerate() {
            let end = pieces.get(i + 1).map_or(count, |next| next.0 as usize);
            // There are at most 2050 classes.
            classes.resize(end, class as u16);
        }
        Self { classes, vectors }
    }

    /// Returns the rules that `number` matches. `None` stands for a packet without the field.
    #[inline]
    pub(super) fn find_vector(&self, number: Option<u16>) -> &ClassVector {
        let class = number.map_or(NO_NUMBER, |number| self.classes[usize::from(number)]);
        &self.vectors[usize::from(class)]
    }
}
