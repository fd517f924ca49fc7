//! Linear equations of missing symbols, kept solved as far as possible (Gaussian elimination on the
//! fly).
//!
//! An equation states the sum of a combination of missing symbols. The equations are in reduced row
//! echelon form. The first missing symbol of an equation is its *pivot*. The pivot has coefficient
//! 1, and no other equation contains it. So one combination of sums, with known multipliers, brings
//! a new equation into this form. An equation that contains only its pivot is solved. If an
//! equation contains the oldest missing symbol, this symbol is its pivot.

use std::mem;

use arrayvec::ArrayVec;

use super::ring::Ring;
use crate::field::{inverse, mul};
use crate::kernel::{Kernel, Term};
use crate::serial;
use crate::symbol::Symbol;
use crate::wire::MAX_WINDOW;

/// Maximum number of equations. A further equation replaces the oldest.
pub(super) const MAX_ROWS: usize = 64;

/// One equation.
#[derive(Debug)]
struct Equation {
    /// The first missing symbol of the equation.
    pivot: u32,
    /// The coefficients, indexed by the lower bits of the ESI.
    coefficients: Box<[u8]>,
    /// Number of missing symbols in the equation.
    missing: usize,
    sum: Symbol,
}

impl Equation {
    fn new(capacity: usize, max_len: usize) -> Self {
        Self {
            pivot: 0,
            coefficients: vec![0; capacity].into(),
            missing: 0,
            sum: Symbol::new(max_len),
        }
    }

    #[inline]
    fn coefficient(&self, esi: u32) -> u8 {
        self.coefficients[esi as usize & (self.coefficients.len() - 1)]
    }

    #[inline]
    fn coefficient_mut(&mut self, esi: u32) -> &mut u8 {
        let mask = self.coefficients.len() - 1;
        &mut self.coefficients[esi as usize & mask]
    }

    /// Counts the missing symbols of the equation. All lie from `from` to before `next`.
    fn count_missing(&mut self, from: u32, next: u32) {
        let is_missing = |&esi: &u32| self.coefficient(esi) != 0;
        self.missing = serial::range(from, next).filter(is_missing).count();
    }

    /// Returns the first missing symbol of the equation in the range from `from` to before `next`.
    fn first_missing(&self, from: u32, next: u32) -> Option<u32> {
        serial::range(from, next).find(|&esi| self.coefficient(esi) != 0)
    }

    /// Multiplies all coefficients with `factor`, the inverse of the pivot's coefficient. All
    /// missing symbols are before `next`.
    fn scale_coefficients(&mut self, factor: u8, next: u32) {
        // The coefficients are usually few and adjacent, so do not multiply the whole buffer.
        let mut left = self.missing;
        for esi in serial::range(self.pivot, next) {
            if left == 0 {
                break;
            }
            let coefficient = self.coefficient_mut(esi);
            left -= usize::from(*coefficient != 0);
            *coefficient = mul(factor, *coefficient);
        }
    }

    /// Adds `factor` times `symbol` to the sum.
    fn add_to_sum(&mut self, kernel: Kernel, factor: u8, symbol: &[u8]) {
        let sum = self.sum.pad_to(symbol.len());
        kernel.mul_add(sum, factor, symbol);
    }
}

/// The result of adding an equation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EquationOutcome {
    /// The equation has new information.
    Added,
    /// The equation follows from the other equations.
    Redundant,
    /// The equation contradicts the other equations, so an equation is wrong.
    Contradiction,
}

/// A system of linear equations.
#[derive(Debug)]
pub(super) struct Equations {
    kernel: Kernel,
    /// The first `rank` equations are in use. At least one free equation follows.
    rows: Vec<Equation>,
    rank: usize,
    spare: Symbol,
}

impl Equations {
    pub(super) fn new(capacity: usize, max_len: usize) -> Self {
        Self {
            kernel: Kernel::fastest(),
            rows: (0..=MAX_ROWS)
                .map(|_| Equation::new(capacity, max_len))
                .collect(),
            rank: 0,
            spare: Symbol::new(max_len),
        }
    }

    pub(super) fn set_kernel(&mut self, kernel: Kernel) {
        self.kernel = kernel;
    }

    /// Returns the maximum length of a sum, bytes.
    pub(super) fn max_symbol_len(&self) -> usize {
        self.spare.capacity()
    }

    pub(super) fn kernel(&self) -> Kernel {
        self.kernel
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rank == 0
    }

    pub(super) fn clear(&mut self) {
        self.rank = 0;
    }

    /// Returns whether packets about the symbols from `live` on may still solve `esi`, which lies
    /// before `live`. That is so if the equation with pivot `esi` has no other missing symbol
    /// before `live`. No other equation helps: if its pivot is not before `live`, it contains no
    /// symbol before `live`.
    pub(super) fn may_solve(&self, esi: u32, live: u32) -> bool {
        let row = self.rows[..self.rank].iter().find(|row| row.pivot == esi);
        row.is_some_and(|row| row.first_missing(esi.wrapping_add(1), live).is_none())
    }

    /// Adds an equation: `symbol` is the combination of the source symbols from `first`, all before
    /// `next`.
    pub(super) fn insert(
        &mut self,
        first: u32,
        coefficients: &[u8],
        symbol: &[u8],
        ring: &Ring,
        next: u32,
    ) -> EquationOutcome {
        if self.rank == MAX_ROWS {
            self.remove_oldest(next);
        }
        {
            let (rows, free) = self.rows.split_at_mut(self.rank);
            let row = &mut free[0];
            // Fill and drop the list in place, because it is too large to move.
            let mut terms: ArrayVec<Term<'_>, { MAX_WINDOW + MAX_ROWS + 1 }> = ArrayVec::new();
            row.coefficients.fill(0);
            row.missing = 0;
            let mut longest = symbol.len();
            for (i, &coefficient) in coefficients.iter().enumerate().take(MAX_WINDOW) {
                let esi = first.wrapping_add(i as u32);
                match ring.get(esi) {
                    _ if coefficient == 0 => {}
                    Some(known) => {
                        longest = longest.max(known.len());
                        terms.push((coefficient, known));
                    }
                    None => {
                        *row.coefficient_mut(esi) = coefficient;
                        row.missing += 1;
                    }
                }
            }
            let unreduced = terms.len();
            for other in rows.iter() {
                let factor = row.coefficient(other.pivot);
                if factor != 0 {
                    self.kernel
                        .mul_add(&mut row.coefficients, factor, &other.coefficients);
                    longest = longest.max(other.sum.bytes().len());
                    terms.push((factor, other.sum.bytes()));
                }
            }
            if terms.len() > unreduced {
                row.count_missing(first, next);
            }
            let pivot = row.first_missing(first, next);
            let scale = pivot.map_or(1, |pivot| inverse(row.coefficient(pivot)));
            for (factor, _) in &mut terms {
                *factor = mul(scale, *factor);
            }
            terms.push((scale, symbol));
            let sum = row.sum.resize_for_overwrite(longest);
            self.kernel.dot(sum, &terms);
            let Some(pivot) = pivot else {
                return if row.sum.bytes().iter().all(|&byte| byte == 0) {
                    EquationOutcome::Redundant
                } else {
                    EquationOutcome::Contradiction
                };
            };
            row.pivot = pivot;
            row.scale_coefficients(scale, next);
        }
        self.rank += 1;
        self.eliminate_pivot_of(self.rank - 1, next);
        EquationOutcome::Added
    }

    /// Inserts the value of a symbol that has become known into the equations.
    pub(super) fn substitute(&mut self, esi: u32, symbol: &[u8], next: u32) {
        let mut without_pivot = None;
        for (i, row) in self.rows[..self.rank].iter_mut().enumerate() {
            let factor = row.coefficient(esi);
            if factor != 0 {
                *row.coefficient_mut(esi) = 0;
                row.missing -= 1;
                row.add_to_sum(self.kernel, factor, symbol);
                if row.pivot == esi {
                    without_pivot = Some(i);
                }
            }
        }
        // Only one equation contains a pivot.
        if let Some(i) = without_pivot {
            self.choose_pivot(i, esi, next);
        }
    }

    /// Chooses another pivot for equation `i`, whose pivot `from` became known.
    fn choose_pivot(&mut self, i: usize, from: u32, next: u32) {
        let row = &mut self.rows[i];
        let Some(pivot) = row.first_missing(from, next) else {
            self.remove(i);
            return;
        };
        row.pivot = pivot;
        let scale = inverse(row.coefficient(pivot));
        if scale != 1 {
            row.scale_coefficients(scale, next);
            let sum = row.sum.bytes();
            let scaled = self.spare.resize_for_overwrite(sum.len());
            self.kernel.dot(scaled, &[(scale, sum)]);
            mem::swap(&mut row.sum, &mut self.spare);
        }
        self.eliminate_pivot_of(i, next);
    }

    /// Removes the pivot of equation `i` from all other equations. All missing symbols are before
    /// `next`.
    fn eliminate_pivot_of(&mut self, i: usize, next: u32) {
        let (before, rest) = self.rows[..self.rank].split_at_mut(i);
        let Some((row, behind)) = rest.split_first_mut() else {
            return;
        };
        for other in before.iter_mut().chain(behind) {
            let factor = other.coefficient(row.pivot);
            if factor == 0 {
                continue;
            }
            if row.missing == 1 {
                *other.coefficient_mut(row.pivot) = 0;
                other.missing -= 1;
            } else {
                self.kernel
                    .mul_add(&mut other.coefficients, factor, &row.coefficients);
                other.count_missing(other.pivot, next);
            }
            other.add_to_sum(self.kernel, factor, row.sum.bytes());
        }
    }

    /// Removes a solved equation. Returns the ESI of the solved symbol, and the symbol for the
    /// caller to swap.
    pub(super) fn take_solved(&mut self) -> Option<(u32, &mut Symbol)> {
        let solved = self.rows[..self.rank]
            .iter()
            .position(|row| row.missing == 1);
        self.remove(solved?);
        // `remove` moved the equation after those in use.
        let row = &mut self.rows[self.rank];
        Some((row.pivot, &mut row.sum))
    }

    /// Removes all equations that contain symbol `esi`.
    pub(super) fn remove_equations_with(&mut self, esi: u32) {
        for i in (0..self.rank).rev() {
            if self.rows[i].coefficient(esi) != 0 {
                self.remove(i);
            }
        }
    }

    fn remove_oldest(&mut self, next: u32) {
        let age = |i: &usize| next.wrapping_sub(self.rows[*i].pivot);
        if let Some(oldest) = (0..self.rank).max_by_key(age) {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, i: usize) {
        self.rank -= 1;
        self.rows.swap(i, self.rank);
    }
}
