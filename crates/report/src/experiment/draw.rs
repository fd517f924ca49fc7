//! Draws declared plots from rows, beside the published figures of a paper.

use std::fmt::Write as _;

use myelin_metrics::Row;
use serde_json::Value;

use super::cells::{number, plain};
use super::plot::{Figure, FigurePoint, Kind, Plot};
use crate::Error;
use crate::html::markup::{Key, escape, figure, table};
use crate::html::plot::{
    AxisStyle, Bar, Bound, Curve, Group, MARKS, Name, Point, Scale, Stroke, Width, bars, lines,
    stacked,
};

/// A drawn value, from our rows or from a paper.
struct Datum {
    /// The group of bars, or the place along the horizontal axis.
    along: String,
    x: f64,
    series: String,
    value: f64,
    interval: Option<(f64, f64)>,
}

/// The rows of a panel, and its title.
struct Panel<'a> {
    labels: Vec<String>,
    rows: Vec<&'a Row>,
}

/// A drawing of one panel.
pub(super) struct Drawing {
    pub(super) heading: String,
    pub(super) svg: String,
    pub(super) legend: Vec<Key>,
    pub(super) caption: String,
}

/// The section of a plot. `number` makes its ids unique on the page.
pub(super) fn section(plot: &Plot, number: usize, rows: &[Row]) -> Result<String, Error> {
    let mut out = format!(
        "<section><h3>{}</h3>\n<p>{}</p>\n",
        escape(&plot.title),
        prose(&plot.caption)
    );
    let drawings = drawings(plot, number, rows)?;
    if drawings.is_empty() {
        out.push_str("<p class=\"soft\">Nothing was measured for it here.</p></section>\n");
        return Ok(out);
    }
    let class = match &drawings[..] {
        [beside] if beside.len() == 1 && plot.published.is_none() => "panels one",
        _ => "panels",
    };
    for beside in &drawings {
        let _ = writeln!(out, "<div class=\"{class}\">");
        for one in beside {
            out.push_str(&figure(&one.heading, &one.svg, &one.legend, &one.caption));
        }
        out.push_str("</div>\n");
    }
    if let Some(paper) = &plot.published {
        out.push_str(&sources(plot, paper));
    }
    out.push_str("</section>\n");
    Ok(out)
}

/// The drawings of a plot, in rows: panels with the same first field are in one row, with the
/// paper's. Empty if all subjects were skipped.
pub(super) fn drawings(
    plot: &Plot,
    number: usize,
    rows: &[Row],
) -> Result<Vec<Vec<Drawing>>, Error> {
    let own: Vec<&Row> = rows
        .iter()
        .filter(|row| row.table() == plot.table)
        .collect();
    if own.is_empty() && rows.iter().any(|row| row.table() == "skipped") {
        return Ok(Vec::new());
    }
    check(plot, &own)?;
    let panels = panels_of(plot, &own);
    let mut drawings = Drawings {
        plot,
        series: series_of(plot, &own),
        number,
        made: 0,
        alone: panels.len() == 1 && plot.published.is_none(),
    };
    let rows_of_panels = panels.chunk_by(|one, next| {
        plot.published.is_none() && plot.panels.len() < 2
            || one.labels.first() == next.labels.first()
    });
    let mut all = Vec::new();
    for beside in rows_of_panels {
        let ours = beside.iter().map(|panel| drawings.ours(panel));
        let mut row = ours.collect::<Result<Vec<_>, _>>()?;
        if let Some(paper) = &plot.published {
            row.extend(drawings.papers(paper, beside[0].rows[0])?);
        }
        all.push(row);
    }
    Ok(all)
}

/// Text as markup: words in backticks become code.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(index, part)| match index % 2 {
            0 => escape(part),
            _ => format!("<code>{}</code>", escape(part)),
        })
        .collect()
}

/// Checks that each row of the plot's table has each field that the plot names.
fn check(plot: &Plot, rows: &[&Row]) -> Result<(), Error> {
    let missing = |field: &str| Error::Field {
        plot: plot.title.clone(),
        table: plot.table.clone(),
        field: field.to_owned(),
    };
    if rows.is_empty() {
        return Err(missing("table"));
    }
    let values = plot.values.iter().map(|(field, _)| field);
    let fields = plot.panels.iter().chain(&plot.series).chain([&plot.along]);
    match fields
        .chain(values)
        .find(|field| rows.iter().any(|row| row.get(field).is_none()))
    {
        Some(field) => Err(missing(field)),
        None => Ok(()),
    }
}

/// The plot's series in order of appearance, ours first. All its drawings use the same order.
fn series_of(plot: &Plot, rows: &[&Row]) -> Vec<String> {
    let ours = rows
        .iter()
        .flat_map(|row| data(plot, row))
        .map(|datum| datum.series);
    let points = plot.published.iter().flat_map(|paper| paper.points);
    let mut series: Vec<String> = Vec::new();
    for name in ours.chain(points.map(|point| point.series.to_owned())) {
        if !series.contains(&name) {
            series.push(name);
        }
    }
    series
}

fn panels_of<'a>(plot: &Plot, rows: &[&'a Row]) -> Vec<Panel<'a>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for row in rows {
        let labels: Vec<String> = plot.panels.iter().map(|field| label(row, field)).collect();
        match panels.iter_mut().find(|panel| panel.labels == labels) {
            Some(panel) => panel.rows.push(row),
            None => panels.push(Panel {
                labels,
                rows: vec![row],
            }),
        }
    }
    // Neighbours in a row first, then the order of appearance.
    let firsts: Vec<String> = panels
        .iter()
        .filter_map(|panel| panel.labels.first().cloned())
        .collect();
    panels.sort_by_key(|panel| {
        firsts
            .iter()
            .position(|first| panel.labels.first() == Some(first))
    });
    panels
}

/// A field as a heading: `payload_bytes` 256 is "payload 256 B".
fn label(row: &Row, field: &str) -> String {
    let value = row.get(field).unwrap_or(&Value::Null);
    let text = plain(value);
    if value.is_string() {
        return text;
    }
    let name = |name: &str| name.replace('_', " ");
    match field.rsplit_once('_') {
        Some((what, "bytes")) => format!("{} {text} B", name(what)),
        Some((what, unit @ ("us" | "ns" | "ms" | "s"))) => format!("{} {text} {unit}", name(what)),
        _ => format!("{} {text}", name(field)),
    }
}

/// The drawn values of a row, without those that were not measured.
fn data(plot: &Plot, row: &Row) -> Vec<Datum> {
    let text = |field: &str| row.get(field).map_or_else(String::new, plain);
    let figure = |field: &str| row.get(field).and_then(Value::as_f64);
    let along = text(&plot.along);
    let x = figure(&plot.along);
    let of_value = |(field, name): &(String, String)| {
        let parts = plot.series.iter().map(|field| label(row, field));
        let parts: Vec<String> = parts
            .chain([name.clone()])
            .filter(|part| !part.is_empty())
            .collect();
        Some(Datum {
            along: along.clone(),
            x: x.unwrap_or(f64::NAN),
            series: parts.join(", "),
            value: figure(field)?,
            interval: row.interval(field),
        })
    };
    plot.values.iter().filter_map(of_value).collect()
}

/// The drawings of a plot.
struct Drawings<'a> {
    plot: &'a Plot,
    series: Vec<String>,
    /// Prefix of the drawings' ids.
    number: usize,
    made: usize,
    /// There is one only.
    alone: bool,
}

impl Drawings<'_> {
    fn ours(&mut self, panel: &Panel<'_>) -> Result<Drawing, Error> {
        let data: Vec<Datum> = panel
            .rows
            .iter()
            .flat_map(|row| data(self.plot, row))
            .collect();
        let mut heading = panel.labels.join(", ");
        if self.plot.published.is_some() {
            heading = if heading.is_empty() {
                "Measured here".to_owned()
            } else {
                format!("Measured here: {heading}")
            };
        }
        self.draw(&heading, &self.plot.values_title, &data, false, "")
    }

    /// The paper's drawing for the panels of such a row.
    fn papers(&mut self, paper: &Figure, row: &Row) -> Result<Option<Drawing>, Error> {
        let first = self.plot.panels.first();
        let panel = first
            .and_then(|field| row.get(field))
            .map_or_else(String::new, plain);
        let data: Vec<Datum> = paper
            .points
            .iter()
            .filter(|point| point.panel.is_empty() || point.panel == panel)
            .map(|point| Datum::published(self.plot.kind, point))
            .collect();
        if data.is_empty() {
            return Ok(None);
        }
        let mut heading = paper.source.to_owned();
        if let Some(field) = first {
            let _ = write!(heading, ": {}", label(row, field));
        }
        let caption = format!(
            "{}. As the text states it, not read off the figure.",
            paper.about
        );
        self.draw(&heading, paper.axis, &data, true, &caption)
            .map(Some)
    }

    fn draw(
        &mut self,
        heading: &str,
        axis: &str,
        data: &[Datum],
        published: bool,
        caption: &str,
    ) -> Result<Drawing, Error> {
        let id = format!("plot-{}-{}", self.number, self.made);
        self.made += 1;
        let title = format!("{}: {heading}", self.plot.title);
        let description = describe(data, axis);
        let name = Name {
            id: &id,
            title: &title,
            description: &description,
        };
        let width = if self.alone { Width::Full } else { Width::Part };
        let svg = match self.plot.kind {
            Kind::Bars => bars(name, width, axis, &self.groups(data), self.bound(published))?,
            Kind::Stacked => stacked(name, width, axis, &self.groups(data))?,
            Kind::Lines | Kind::LogLines | Kind::Distribution => {
                self.lines(name, width, axis, data, published)?
            }
        };
        Ok(Drawing {
            heading: heading.to_owned(),
            svg,
            legend: self.legend(data),
            caption: caption.to_owned(),
        })
    }

    fn lines(
        &self,
        name: Name<'_>,
        width: Width,
        axis: &str,
        data: &[Datum],
        published: bool,
    ) -> Result<String, Error> {
        let distribution = self.plot.kind == Kind::Distribution;
        let x = AxisStyle {
            // A paper's delays have the paper's unit.
            title: if distribution && published {
                axis
            } else {
                &self.plot.along_title
            },
            scale: if self.plot.kind == Kind::Lines {
                Scale::Linear
            } else {
                Scale::Log
            },
        };
        let y = AxisStyle {
            title: if distribution {
                &self.plot.values_title
            } else {
                axis
            },
            scale: if distribution {
                Scale::Percent
            } else {
                Scale::Linear
            },
        };
        // Between its points, the paper has no values.
        let stroke = if published {
            Stroke::Marks
        } else {
            Stroke::Marked
        };
        let curves: Vec<Curve> = self
            .series
            .iter()
            .enumerate()
            .map(|(series, name)| Curve {
                series,
                points: data
                    .iter()
                    .filter(|datum| datum.series == *name)
                    .map(|datum| Point {
                        x: datum.x,
                        y: datum.value,
                        interval: datum.interval,
                    })
                    .collect(),
                stroke,
            })
            .collect();
        // A distribution's budget applies to the paper's drawing too, other bounds do not.
        let bound = self.bound(published && !distribution);
        lines(name, width, x, y, &curves, bound)
    }

    /// The declared line. Our bounds do not apply to a paper's figures.
    fn bound(&self, published: bool) -> Option<Bound<'_>> {
        let (name, at) = self.plot.line.as_ref().filter(|_| !published)?;
        Some(Bound {
            name,
            at: *at,
            upright: self.plot.kind == Kind::Distribution,
        })
    }

    fn groups(&self, data: &[Datum]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for datum in data {
            let share = self.plot.kind == Kind::Stacked;
            let bar = Bar {
                series: self.place(&datum.series),
                value: datum.value,
                interval: datum.interval,
                label: if share {
                    format!("{:.0} %", datum.value * 100.0)
                } else {
                    number(datum.value)
                },
            };
            match groups.iter_mut().find(|group| group.name == datum.along) {
                Some(group) => group.bars.push(bar),
                None => groups.push(Group {
                    name: datum.along.clone(),
                    bars: vec![bar],
                }),
            }
        }
        groups
    }

    fn place(&self, series: &str) -> usize {
        let place = self.series.iter().position(|name| name == series);
        place.unwrap_or_default()
    }

    /// The legend of the drawing's series; empty for one series.
    fn legend(&self, data: &[Datum]) -> Vec<Key> {
        if self.series.len() < 2 {
            return Vec::new();
        }
        let marked = !matches!(self.plot.kind, Kind::Bars | Kind::Stacked);
        let shown = |name: &String| data.iter().any(|datum| datum.series == *name);
        let keys = self.series.iter().enumerate();
        keys.filter(|(_, name)| shown(name))
            .map(|(series, name)| Key {
                series,
                mark: marked.then_some(MARKS[series % MARKS.len()]),
                name: name.clone(),
            })
            .collect()
    }
}

impl Datum {
    fn published(kind: Kind, point: &FigurePoint) -> Self {
        let distribution = kind == Kind::Distribution;
        Self {
            along: point.group.to_owned(),
            x: if distribution {
                point.value
            } else {
                point.group.parse().unwrap_or(f64::NAN)
            },
            series: point.series.to_owned(),
            value: if distribution {
                point.share
            } else {
                point.value
            },
            interval: point.range,
        }
    }
}

/// The values in words, for screen readers.
fn describe(data: &[Datum], axis: &str) -> String {
    const MOST: usize = 40;
    let figures = data.iter().take(MOST).map(|datum| {
        let what = [datum.along.as_str(), datum.series.as_str()];
        let what: Vec<&str> = what.into_iter().filter(|part| !part.is_empty()).collect();
        format!("{} {}", what.join(" "), number(datum.value))
    });
    let more = if data.len() > MOST {
        "; and more in the table"
    } else {
        ""
    };
    format!("{axis}: {}{more}.", figures.collect::<Vec<_>>().join("; "))
}

/// The paper's figures, each with its source in the text.
fn sources(plot: &Plot, paper: &Figure) -> String {
    let panelled = !plot.panels.is_empty();
    let distribution = plot.kind == Kind::Distribution;
    let rows: Vec<Vec<String>> = paper
        .points
        .iter()
        .map(|point| {
            let what = [point.group, point.series, point.panel];
            let what: Vec<&str> = what.into_iter().filter(|part| !part.is_empty()).collect();
            let mut figure = number(point.value);
            if let Some((low, high)) = point.range {
                let _ = write!(figure, " ({} to {})", number(low), number(high));
            }
            if distribution {
                let _ = write!(figure, " ({:.0} %)", point.share * 100.0);
            }
            vec![what.join(", "), figure, point.how.to_owned()]
        })
        .collect();
    let of = if panelled { " by panel" } else { "" };
    let caption = format!(
        "{}{of}: only what its text states; nothing is read off a drawing.",
        paper.source
    );
    let head = ["of", paper.axis, "as the text has it"];
    format!(
        "<details><summary>Where the paper's figures come from</summary>\n{}</details>\n",
        table(&caption, &head, &rows)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CALVIN: Figure = Figure {
        name: "calvin-fig-11",
        source: "CALVIN, Fig. 11",
        about: "Round trips",
        axis: "round trip, us",
        points: &[point("256", "FWD", 110.0), point("1400", "XOR", 120.0)],
    };

    const fn point(panel: &'static str, series: &'static str, value: f64) -> FigurePoint {
        FigurePoint {
            panel,
            group: "XDP",
            series,
            value,
            share: 0.0,
            range: None,
            how: "",
        }
    }

    /// A plot as its file has it, with a value of one of its keys replaced.
    fn plot(wrong: Option<(&str, Value)>) -> Plot {
        let mut plot = json!({
            "title": "Round trips",
            "caption": "Through `forward`.",
            "table": "round trips",
            "panels": ["payload_bytes", "mode"],
            "along": "variant",
            "series": ["function"],
            "values": [["rtt_p50_us", ""]],
            "values_title": "round trip, median, us",
        });
        if let Some((key, value)) = wrong {
            plot[key] = value;
        }
        Plot {
            published: Some(CALVIN),
            ..serde_json::from_value(plot).unwrap()
        }
    }

    fn rows() -> Vec<Row> {
        let row = |payload: usize, mode: &str, function: &str| {
            Row::of("round trips")
                .with("variant", "XDP")
                .with("payload_bytes", payload)
                .with("mode", mode)
                .with("function", function)
                .with("rtt_p50_us", 4.25)
                .with("rtt_p50_ci95_low_us", 4.0)
                .with("rtt_p50_ci95_high_us", 4.5)
        };
        let of = |function| {
            [(256, "inline"), (1400, "inline"), (256, "blocking")]
                .map(|(payload, mode)| row(payload, mode, function))
        };
        [of("FWD"), of("ATS")].concat()
    }

    #[test]
    fn drawings_of_a_panel_stand_beside_the_papers() {
        let text = section(&plot(None), 0, &rows()).unwrap();
        let at = |what: &str| {
            text.find(what)
                .unwrap_or_else(|| panic!("{what} in {text}"))
        };
        let order = [
            "Through <code>forward</code>.",
            "<h4>Measured here: payload 256 B, inline</h4>",
            "<h4>Measured here: payload 256 B, blocking</h4>",
            "<h4>CALVIN, Fig. 11: payload 256 B</h4>",
            "<h4>Measured here: payload 1400 B, inline</h4>",
            "<h4>CALVIN, Fig. 11: payload 1400 B</h4>",
            "Where the paper",
        ];
        let places: Vec<usize> = order.iter().map(|what| at(what)).collect();
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!(
            (
                text.matches("<svg").count(),
                text.matches("class=\"panels\"").count()
            ),
            (5, 2)
        );
        // XOR is the paper's alone and has a colour that neither of ours has.
        assert!(text.contains("k2\"></span>XOR") && text.contains("k0\"></span>FWD"));
        assert!(text.contains("4.250") && text.contains("120.0") && !text.contains("NaN"));
    }

    #[test]
    fn every_kind_is_drawn_and_what_was_not_measured_is_left_out() {
        let table = |value: Value| {
            Row::of("t")
                .with("x", 10)
                .with("share", value)
                .with("other", 0.5)
        };
        let rows = [table(0.5.into()), table(Value::Null)];
        for kind in [
            Kind::Bars,
            Kind::Stacked,
            Kind::Lines,
            Kind::LogLines,
            Kind::Distribution,
        ] {
            let plot = Plot {
                title: "T".to_owned(),
                kind,
                table: "t".to_owned(),
                along: "x".to_owned(),
                values: [("share", "a part"), ("other", "another")]
                    .map(|(field, name)| (field.to_owned(), name.to_owned()))
                    .to_vec(),
                values_title: "share".to_owned(),
                line: Some(("half".to_owned(), 0.5)),
                ..Plot::default()
            };
            let text = section(&plot, 3, &rows).unwrap();
            for part in ["a part", "another", "id=\"plot-3-0-t\"", "panels one"] {
                assert!(text.contains(part), "{part} in {kind:?}");
            }
            assert!(!text.contains("NaN"), "{kind:?}");
        }
    }

    #[test]
    fn misspelt_fields_are_errors_and_skipped_subjects_are_not() {
        let rows = rows();
        for wrong in [
            ("along", json!("varaint")),
            ("series", json!(["functoin"])),
            ("panels", json!(["payload"])),
            ("values", json!([["rtt_us", ""]])),
            ("table", json!("round trip")),
        ] {
            let error = section(&plot(Some(wrong)), 0, &rows)
                .unwrap_err()
                .to_string();
            assert!(error.contains("\"Round trips\""), "{error}");
        }
        let skipped = [Row::of("skipped").with("variant", "DPDK")];
        let text = section(&plot(None), 0, &skipped).unwrap();
        assert!(text.contains("Nothing was measured") && !text.contains("<svg"));
    }
}
