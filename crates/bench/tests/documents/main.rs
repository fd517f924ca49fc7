//! The pages have the results of the envelopes in `docs/results`, and no other measured figures.
//!
//! `page.rs` describes the markers of pages. After a new measurement,
//! `WRITE_DOCS=1 cargo test -p myelin-bench --test documents` writes the generated parts of pages
//! and the SVG files in `docs/experiments/figures`.

mod named_figures;
mod page;
mod tables;
mod unit;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use myelin_bench::{experiments, open_envelope, render_figures};

use crate::named_figures::check_figures;
use crate::page::{Envelopes, Page, regex};

const RESULTS: &str = "docs/results";
pub(crate) const PAGES: &str = "docs/experiments";
/// Its figures are not measured: keys, limits, and costs that the planner assumes.
const REFERENCE: &str = "docs/reference";
const FIGURES: &str = "docs/experiments/figures";
const REMEDY: &str = "`WRITE_DOCS=1 cargo test -p myelin-bench --test documents` writes it";

#[test]
fn pages_have_the_results_of_the_envelopes() {
    let mut faults = Vec::new();
    let envelopes = read_envelopes(&mut faults);
    for experiment in experiments() {
        let file = format!("{RESULTS}/{}.json", experiment.name);
        if !root().join(&file).exists() {
            faults.push(format!(
                "{file}: missing; `sudo myelin bench {} --quick --results {RESULTS}` makes it",
                experiment.name
            ));
        }
        let page = format!("{PAGES}/{}.md", experiment.name);
        let text = fs::read_to_string(root().join(&page)).unwrap_or_default();
        let marker = format!("<!-- results: {} claims -->", experiment.name);
        if !text.contains(&marker) {
            faults.push(format!("{page}:1: no claims; add `{marker}`"));
        }
    }
    let mut pages = files("docs", "md");
    pages.push("README.md".to_owned());
    for page in pages {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        match Page::new(&page, &text, &envelopes).generate() {
            Err(found) => faults.extend(found),
            Ok(generated) => write_or_compare(&page, &generated, &mut faults),
        }
        if !page.starts_with(REFERENCE) {
            faults.extend(check_figures(&page, &text, &envelopes));
        }
    }
    update_figures(&envelopes, &mut faults);
    assert!(
        faults.is_empty(),
        "{} faults\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// Draws the plots that pages show, and no others.
fn update_figures(envelopes: &Envelopes, faults: &mut Vec<String>) {
    let mut drawn = BTreeMap::new();
    for (name, report) in envelopes {
        match render_figures(report) {
            Ok(files) => drawn.extend(files.into_iter().map(|file| (file.name, file.text))),
            Err(error) => faults.push(format!("{RESULTS}/{name}.json: {error}; measure again")),
        }
    }
    let mut shown = BTreeSet::new();
    for page in files(PAGES, "md") {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        for link in regex!(r"\]\(figures/([^)]*)").captures_iter(&text) {
            let name = link[1].to_owned();
            if !drawn.contains_key(&name) {
                let own = page[PAGES.len() + 1..]
                    .trim_end_matches("md")
                    .replace('.', "-");
                let names = drawn.keys().map(String::as_str);
                let names: Vec<_> = names.filter(|name| name.starts_with(&own)).collect();
                faults.push(format!(
                    "{page}:{}: no envelope has the plot {name}; there are {}",
                    text[..link.get_match().start()].matches('\n').count() + 1,
                    names.join(", ")
                ));
            }
            shown.insert(name);
        }
    }
    for (name, text) in drawn.iter().filter(|(name, _)| shown.contains(*name)) {
        write_or_compare(&format!("{FIGURES}/{name}"), text, faults);
    }
    for file in fs::read_dir(root().join(FIGURES)).into_iter().flatten() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        match (shown.contains(&name), is_writing()) {
            (true, _) => {}
            (false, true) => fs::remove_file(file.path()).unwrap(),
            (false, false) => faults.push(format!("{FIGURES}/{name}: no page shows it; remove it")),
        }
    }
}

/// Writes a file, or reports its first line that differs.
fn write_or_compare(file: &str, text: &str, faults: &mut Vec<String>) {
    let path = root().join(file);
    let current = fs::read_to_string(&path).unwrap_or_default();
    if current == text {
        return;
    }
    if is_writing() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        return fs::write(path, text).unwrap();
    }
    let pairs = current.lines().zip(text.lines());
    let same = pairs.take_while(|(one, other)| one == other).count();
    faults.push(format!(
        "{file}:{}: differs from its envelope; {REMEDY}",
        same + 1
    ));
}

fn read_envelopes(faults: &mut Vec<String>) -> Envelopes {
    let mut envelopes = Envelopes::new();
    for file in files(RESULTS, "json") {
        let text = fs::read_to_string(root().join(&file)).unwrap();
        let name = Path::new(&file).file_stem().unwrap().to_str().unwrap();
        match open_envelope(&text) {
            Err(error) => faults.push(format!("{file}: {error}")),
            Ok(report) if report.experiment != name => {
                faults.push(format!("{file}: it is of {}; rename it", report.experiment));
            }
            Ok(report) => {
                envelopes.insert(name.to_owned(), report);
            }
        }
    }
    envelopes
}

/// The files in a directory and below, by their paths within the repository, sorted.
fn files(directory: &str, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(directory)).into_iter().flatten() {
        let entry = entry.unwrap();
        let path = format!("{directory}/{}", entry.file_name().into_string().unwrap());
        if entry.path().is_dir() {
            found.extend(files(&path, extension));
        } else if Path::new(&path)
            .extension()
            .is_some_and(|one| one == extension)
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn is_writing() -> bool {
    std::env::var_os("WRITE_DOCS").is_some()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
