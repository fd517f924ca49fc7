//! The tables of pages.

use std::fmt::Write as _;

use myelin_bench::{Claim, Experiment, Report, Row, Verdict, experiments as all_experiments};
use myelin_report::experiment::{cell, day, number, plain, source_lines, verdict};

use crate::page::Envelopes;

/// Columns of a line outside tables, and letters of a cell, at most.
const COLUMNS: usize = 100;
const CELL: usize = 200;
/// Tables with more claims show ranges.
const LONG_TABLE: usize = 16;

/// The path of an envelope within the repository.
pub(crate) fn file(name: &str) -> String {
    format!("docs/results/{name}.json")
}

/// A table of the claims, with their source.
pub(crate) fn claims<'a>(page: &str, report: &'a Report<Row>) -> String {
    let mut out = source(page, report);
    let experiment = all_experiments()
        .iter()
        .find(|one| one.name == report.experiment);
    if let Some(differs) = experiment
        .map(|one| one.differs)
        .filter(|text| !text.is_empty())
    {
        let text = format!("**Unlike the paper**: {differs}.");
        out += &list(&[wrapped(&text, "")]);
    }
    let mut sources: Vec<&str> = Vec::new();
    let mut paper = |claim: &'a Claim| {
        let Some(source) = &claim.source else {
            return plain(&claim.paper);
        };
        let known = sources.iter().position(|known| known == source);
        let place = known.unwrap_or(sources.len());
        if known.is_none() {
            sources.push(source);
        }
        format!("{} ({})", plain(&claim.paper), place + 1)
    };
    let has_paper = report.claims.iter().any(|claim| !claim.paper.is_null());
    if !report.claims.is_empty() {
        let (head, rule) = if has_paper {
            (" paper |", "---|")
        } else {
            ("", "")
        };
        let is_simulated = experiment.is_some_and(Experiment::is_simulated);
        let figure = if is_simulated {
            "simulated"
        } else {
            "measured"
        };
        let _ = writeln!(
            out,
            "\n| claim | bound |{head} {figure} [95 % interval] | verdict |\n\
             |---|---|{rule}---|---|"
        );
    }
    for group in groups(&report.claims) {
        let mut cells = vec![group.label(), plain(&group.claims[0].bound)];
        if has_paper {
            let mut papers: Vec<String> = group.claims.iter().copied().map(&mut paper).collect();
            if group.is_range {
                papers.dedup();
            }
            cells.push(joined(papers));
        }
        cells.extend([group.measured(), group.verdict()]);
        out += &line(&cells);
    }
    let sources = sources.into_iter().enumerate();
    let sources =
        sources.map(|(place, source)| wrapped(&format!("{}. {source}", place + 1), "   "));
    out + &list(&sources.collect::<Vec<_>>()) + &list(&notes(report))
}

/// Why claims are undecided and subjects are missing. Reasons that differ in figures only share a
/// line.
fn notes(report: &Report<Row>) -> Vec<String> {
    let claims = report.claims.iter();
    let undecided = claims.filter(|claim| claim.verdict() == Some(Verdict::Undecided));
    let reasons = undecided.filter_map(|claim| claim.undecided.as_deref());
    let skipped = report.rows.iter().filter(|row| row.table() == "skipped");
    let skipped = skipped.map(|row| {
        let fields: Vec<String> = row.fields().map(|(_, value)| plain(value)).collect();
        format!("Not available there: {}", fields.join(": "))
    });
    let mut all: Vec<String> = reasons
        .map(|reason| format!("Undecided: {reason}"))
        .chain(skipped)
        .collect();
    let key = |text: &str| text.replace(|c: char| c.is_ascii_digit() || c == '.', "");
    let mut notes = Vec::new();
    while let Some(note) = all.first().cloned() {
        let before = all.len();
        all.retain(|other| key(other) != key(&note));
        let similar = match before - all.len() {
            1 => String::new(),
            count => format!(" ({count} such)"),
        };
        let note = note.trim().trim_end_matches('.');
        notes.push(wrapped(&format!("* {note}{similar}."), "  "));
    }
    notes
}

/// Paragraphs or items without a gap, with an empty line before them.
fn list(items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    format!("\n{}\n", items.join("\n"))
}

/// From which run the results are, and how to repeat it.
fn source(page: &str, report: &Report<Row>) -> String {
    let settings = &report.environment.settings;
    let setting = |name: &str| settings.get(name).map_or("unknown", String::as_str);
    let share = |name: &str| match setting(name).parse::<f64>() {
        Ok(share) => format!("{:.1} %", share * 100.0),
        Err(_) => setting(name).to_owned(),
    };
    let commit = match settings.get("revision") {
        Some(revision) => format!("commit {revision}"),
        None => format!("version {}", report.environment.version),
    };
    let not = if setting("quiet") == "yes" {
        ""
    } else {
        "not "
    };
    let name = &report.experiment;
    let [command, machine] = source_lines(report);
    let text = format!(
        "Generated from [{name}.json]({}): {} run, {commit}, {machine}; the machine was {not}quiet \
         (steal {}, other processes {}). `{}` repeats it. Verdict: {}.",
        relative(page, &file(name)),
        setting("effort"),
        share("steal_share"),
        share("other_processes_share"),
        // Lines do not break within the command.
        command.replace(' ', "\u{a0}"),
        verdict(report),
    );
    wrapped(&text, "").replace('\u{a0}', " ") + "\n"
}

/// Claims of one line.
struct Group<'a> {
    claims: Vec<&'a Claim>,
    /// Shows the range of the claims instead of each.
    is_range: bool,
}

impl Group<'_> {
    /// The parts of a name, each with the different ones of all claims.
    fn parts(&self) -> Vec<Vec<&str>> {
        let mut all: Vec<Vec<&str>> = vec![Vec::new(); parts(self.claims[0]).count()];
        for claim in &self.claims {
            for (known, part) in all.iter_mut().zip(parts(claim)) {
                if !known.contains(&part) {
                    known.push(part);
                }
            }
        }
        all
    }

    fn label(&self) -> String {
        let mut rest = self.claims[0].id.as_str();
        let mut label = String::new();
        for part in self.parts() {
            // The part and the separator behind it.
            rest = &rest[part[0].len()..];
            let (separator, after) = rest.split_at(rest.len().min(2));
            label += &(part.join("; ") + separator);
            rest = after;
        }
        label
    }

    fn measured(&self) -> String {
        if !self.is_range || self.claims.len() == 1 {
            let cells: Vec<String> = self.claims.iter().copied().map(measured).collect();
            return cells.join("; ");
        }
        let figures = || self.claims.iter().filter_map(|claim| claim.figure());
        let least = figures().fold(f64::INFINITY, f64::min);
        let most = figures().fold(f64::NEG_INFINITY, f64::max);
        format!("{} to {}", number(least), number(most))
    }

    fn verdict(&self) -> String {
        let verdict = joined(self.claims.iter().copied().map(judged).collect());
        match self.claims.len() {
            count if self.is_range && count > 1 => format!("{verdict} ({count} claims)"),
            _ => verdict,
        }
    }

    /// Whether a claim belongs to this line: claims that differ in one part of their name only,
    /// or a range of claims with the same verdict.
    fn accepts(&self, claim: &Claim) -> bool {
        let first = self.claims[0];
        if first.bound != claim.bound
            || first.paper.is_null() != claim.paper.is_null()
            || parts(first).count() != parts(claim).count()
        {
            return false;
        }
        let with = Group {
            claims: self.claims.iter().copied().chain([claim]).collect(),
            is_range: self.is_range,
        };
        let parts_with = with.parts();
        let is_same = if self.is_range {
            first.verdict() == claim.verdict() && parts_with[0].len() == 1
        } else {
            parts_with.len() > 1 && parts_with.iter().filter(|part| part.len() > 1).count() == 1
        };
        is_same && with.label().len().max(with.measured().len()) <= CELL
    }
}

/// The parts of a claim's name, between separators of two letters.
fn parts(claim: &Claim) -> impl Iterator<Item = &str> {
    claim.id.split(", ").flat_map(|part| part.split(": "))
}

/// Groups claims that share a line. In a long table, claims that hold or have no bound become
/// ranges.
fn groups(claims: &[Claim]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for claim in claims {
        let is_decisive = matches!(claim.verdict(), Some(Verdict::False | Verdict::Undecided));
        let is_range = claims.len() > LONG_TABLE && !is_decisive && claim.figure().is_some();
        let mut known = groups.iter_mut().rev();
        match known.find(|group| group.is_range == is_range && group.accepts(claim)) {
            Some(group) => group.claims.push(claim),
            None => groups.push(Group {
                claims: vec![claim],
                is_range,
            }),
        }
    }
    groups
}

/// The cells of a group's claims, once if all are the same.
fn joined(mut cells: Vec<String>) -> String {
    if cells.iter().all(|cell| *cell == cells[0]) {
        cells.truncate(1);
    }
    cells.join("; ")
}

fn measured(claim: &Claim) -> String {
    if claim.measured.get("deployments").is_none() {
        return plain(&claim.measured);
    }
    let figure = claim.figure().map_or_else(|| "-".to_owned(), number);
    match claim.interval() {
        Some((low, high)) => format!("{figure} [{}, {}]", number(low), number(high)),
        None => figure,
    }
}

fn judged(claim: &Claim) -> String {
    let verdict = match claim.verdict() {
        None => "-",
        Some(Verdict::Holds) => "holds",
        Some(Verdict::False) => "**false**",
        Some(Verdict::Undecided) => "undecided",
    };
    verdict.to_owned()
}

/// A table of rows.
pub(crate) fn rows(rows: &[&Row], columns: &[String]) -> String {
    let head: Vec<String> = columns
        .iter()
        .map(|column| column.replace('_', " "))
        .collect();
    let mut out = format!("{}|{}\n", line(&head), "---|".repeat(columns.len()));
    for row in rows {
        let cells: Vec<String> = columns.iter().map(|column| cell(row, column)).collect();
        out += &line(&cells);
    }
    out
}

/// A table of all experiments.
pub(crate) fn experiments(page: &str, envelopes: &Envelopes) -> String {
    let mut out = "| experiment | holds | false | undecided | run | date |\n\
                   |---|---|---|---|---|---|\n"
        .to_owned();
    for (name, report) in envelopes {
        let target = relative(page, &format!("docs/experiments/{name}.md"));
        let has_ended_early = report.ended_early.is_some();
        let count = |verdict| {
            let claims = report.claims.iter();
            let count = claims
                .filter(|claim| claim.verdict() == Some(verdict))
                .count();
            match (count, verdict) {
                _ if has_ended_early => "-".to_owned(),
                (0, _) => "0".to_owned(),
                (_, Verdict::False) => format!("[**{count}**]({target}#claims)"),
                _ => format!("[{count}]({target}#claims)"),
            }
        };
        let effort = report.environment.settings.get("effort");
        let mut run = effort.map_or("unknown", String::as_str).to_owned();
        if has_ended_early {
            let _ = write!(run, ", [ended early]({target}#claims)");
        }
        out += &line(&[
            format!("[{name}]({target})"),
            count(Verdict::Holds),
            count(Verdict::False),
            count(Verdict::Undecided),
            run,
            day(report),
        ]);
    }
    out
}

/// Three digits, for text.
pub(crate) fn short(figure: f64) -> String {
    if figure == 0.0 {
        return "0".to_owned();
    }
    let digits = 2 - figure.abs().log10().floor() as i32;
    format!("{figure:.*}", digits.max(0) as usize)
}

fn line(cells: &[String]) -> String {
    let cells = cells.iter().map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// Wraps text. Lines after the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let options = textwrap::Options::new(COLUMNS)
        .subsequent_indent(indent)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}

/// A link from a page to a file, both by their paths within the repository.
fn relative(page: &str, file: &str) -> String {
    let (page, file): (Vec<_>, Vec<_>) = (page.split('/').collect(), file.split('/').collect());
    let folders = &page[..page.len() - 1];
    let pairs = folders.iter().zip(&file);
    let common = pairs.take_while(|(one, other)| one == other).count();
    "../".repeat(folders.len() - common) + &file[common..].join("/")
}
