//! Subjects with the same figures: a figure is declared once, with its column, and rows and claims
//! read it by its name.

use myelin_metrics::stats::{Deployments, Estimate};

use crate::sampling::Turns;
use crate::{Error, Row};

/// A figure of an observation `O`.
pub(crate) struct Figure<O> {
    name: &'static str,
    column: Column,
    pub(crate) of: fn(&O) -> f64,
}

/// How rows show a figure, from its values in all rounds of all deployments.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Column {
    /// Median and interval. The column's name ends with this unit.
    Interval(&'static str),
    /// Mean and interval. The column's name ends with this unit.
    Mean(&'static str),
    /// The median alone.
    Median,
    /// The mean alone.
    MeanValue,
    Sum,
    Least,
    /// Only claims read it.
    Hidden,
}

impl<O> Figure<O> {
    pub(crate) const fn new(name: &'static str, column: Column, of: fn(&O) -> f64) -> Self {
        Self { name, column, of }
    }
}

/// Subjects, one for each combination of `N` indices, such as variant and payload. Each
/// has the same figures. Their slots are consecutive.
pub(crate) struct Subjects<O: 'static, const N: usize> {
    figures: &'static [Figure<O>],
    shape: [usize; N],
}

impl<O, const N: usize> Subjects<O, N> {
    /// `shape` is the number of values of each index.
    pub(crate) fn new(figures: &'static [Figure<O>], shape: [usize; N]) -> Self {
        Self { figures, shape }
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.count() * self.figures.len()
    }

    fn count(&self) -> usize {
        self.shape.iter().product()
    }

    fn figures_of(&self, observation: &O) -> Vec<f64> {
        let figures = self.figures.iter();
        figures.map(|figure| (figure.of)(observation)).collect()
    }

    /// The indices of a subject. The last index changes fastest.
    fn indices(&self, mut subject: usize) -> [usize; N] {
        let mut indices = [0; N];
        for (index, values) in indices.iter_mut().zip(self.shape).rev() {
            *index = subject % values;
            subject /= values;
        }
        indices
    }

    /// The indices of all subjects, in the order of their slots.
    pub(crate) fn all(&self) -> impl Iterator<Item = [usize; N]> {
        (0..self.count()).map(|subject| self.indices(subject))
    }

    /// The figures of a subject in a sample.
    pub(crate) fn at<'a>(&self, samples: &'a Deployments, indices: [usize; N]) -> Subject<'a, O> {
        let subject = indices.into_iter().zip(self.shape);
        let subject = subject.fold(0, |subject, (index, values)| subject * values + index);
        Subject {
            figures: self.figures,
            samples,
            first: subject * self.figures.len(),
        }
    }

    /// A row for each subject: the fields of `describe`, then the figures.
    pub(crate) fn rows(
        &self,
        samples: &Deployments,
        describe: impl Fn([usize; N]) -> Row,
    ) -> Vec<Row> {
        let row = |at| self.at(samples, at).add_to(describe(at));
        self.all().map(row).collect()
    }

    /// Measures all subjects in turns: [`Turns::measure`].
    pub(crate) fn measure(
        &self,
        turns: &mut Turns<'_>,
        mut observe: impl FnMut([usize; N]) -> Result<O, Error>,
    ) -> Result<(), Error> {
        let names: Vec<_> = self.figures.iter().map(|figure| figure.name).collect();
        let figures = |subject| Ok(self.figures_of(&observe(self.indices(subject))?));
        turns.measure_figures(self.count(), &names, figures)
    }

    /// Adds the figures of all subjects, which one deployment has once: [`Turns::record`].
    pub(crate) fn record(&self, turns: &mut Turns<'_>, all: &[O]) {
        turns.record(all.iter().flat_map(|one| self.figures_of(one)));
    }
}

#[cfg(test)]
impl<O, const N: usize> Subjects<O, N> {
    /// The slots of a deployment with one round, from an observation of each subject.
    pub(crate) fn observed(&self, all: impl IntoIterator<Item = O>) -> Vec<Vec<f64>> {
        let figures = all.into_iter().flat_map(|one| self.figures_of(&one));
        figures.map(|figure| vec![figure]).collect()
    }
}

/// The sampled figures of a subject.
pub(crate) struct Subject<'a, O: 'static> {
    figures: &'static [Figure<O>],
    samples: &'a Deployments,
    first: usize,
}

impl<'a, O> Subject<'a, O> {
    pub(crate) fn samples(&self) -> &'a Deployments {
        self.samples
    }

    /// The slot of a figure. No slot has the number of an unknown name, so the smoke tests find it:
    /// a claim about it has no figure.
    pub(crate) fn slot(&self, name: &str) -> usize {
        let place = self.figures.iter().position(|figure| figure.name == name);
        debug_assert!(place.is_some(), "no figure `{name}`");
        place.map_or(usize::MAX, |place| self.first + place)
    }

    /// All values of a figure, in no order.
    pub(crate) fn values(&self, name: &str) -> impl Iterator<Item = f64> {
        self.samples.figures(self.slot(name))
    }

    pub(crate) fn median(&self, name: &str) -> Option<Estimate> {
        self.samples.median(self.slot(name))
    }

    /// The ratio of a figure to that of another subject of the same turns.
    pub(crate) fn ratio(&self, reference: &Self, name: &str) -> Option<Estimate> {
        self.samples.ratio(self.slot(name), reference.slot(name))
    }

    /// Adds the figures to a row, in the order of their declaration.
    pub(crate) fn add_to(&self, row: Row) -> Row {
        let places = self.figures.iter().zip(self.first..);
        places.fold(row, |row, (figure, slot)| {
            let (name, samples) = (figure.name, self.samples);
            match figure.column {
                Column::Interval(unit) => row.with_estimate(name, unit, samples.median(slot)),
                Column::Mean(unit) => row.with_estimate(name, unit, samples.mean(slot)),
                Column::Median => row.with(name, samples.median(slot).map(|median| median.value)),
                Column::MeanValue => row.with(name, samples.mean(slot).map(|mean| mean.value)),
                Column::Sum => row.with(name, samples.figures(slot).sum::<f64>().round()),
                Column::Least => row.with(name, samples.figures(slot).reduce(f64::min)),
                Column::Hidden => row,
            }
        })
    }
}
