//! The drawings of pages are well-formed and complete for any figures.

use myelin_report::html::document;
use myelin_report::html::markup::{Key, figure, table};
use myelin_report::html::plot::{
    AxisStyle, Bar, Bound, Curve, Group, MARKS, Name, Point, Scale, Stroke, Width, bars, lines,
    stacked,
};

const NAME: Name<'_> = Name {
    id: "plot",
    title: "A title <&>",
    description: "Its content.",
};

fn bar(series: usize, value: f64, interval: Option<(f64, f64)>) -> Bar {
    Bar {
        series,
        value,
        interval,
        label: format!("{value:.2}"),
    }
}

fn group(name: &str, bars: Vec<Bar>) -> Group {
    Group {
        name: name.to_owned(),
        bars,
    }
}

fn point(x: f64, y: f64, interval: Option<(f64, f64)>) -> Point {
    Point { x, y, interval }
}

fn axis(title: &str, scale: Scale) -> AxisStyle<'_> {
    AxisStyle { title, scale }
}

/// Checks the properties of every drawing. Returns its texts and the widths of its rectangles.
fn check_svg(svg: &str) -> (Vec<String>, Vec<f64>) {
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let document = roxmltree::Document::parse(svg).unwrap();
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "svg");
    let child = |name: &str| root.children().find(|n| n.tag_name().name() == name);
    assert_eq!(child("title").unwrap().text(), Some(NAME.title));
    assert_eq!(child("desc").unwrap().text(), Some(NAME.description));
    let named = |name: &'static str| {
        root.descendants()
            .filter(move |n| n.tag_name().name() == name)
    };
    let texts = named("text")
        .map(|n| n.text().unwrap_or_default().trim().to_owned())
        .collect();
    let widths = named("rect")
        .filter_map(|n| n.attribute("width")?.parse().ok())
        .collect();
    (texts, widths)
}

#[test]
fn bars_show_groups_figures_intervals_and_the_bound() {
    let groups = [
        group(
            "XDP compact",
            vec![bar(0, 2.0, Some((1.8, 2.2))), bar(1, 4.0, Some((3.0, 4.5)))],
        ),
        group("AF_XDP", vec![bar(0, 1.0, None)]),
    ];
    let bound = Bound {
        name: "bound 3 us",
        at: 3.0,
        upright: true,
    };
    for width in [Width::Full, Width::Part] {
        let svg = bars(NAME, width, "round trip, us", &groups, Some(bound)).unwrap();
        let (texts, widths) = check_svg(&svg);
        for text in [
            "XDP compact",
            "AF_XDP",
            "2.00",
            "4.00",
            "round trip, us",
            "bound 3 us",
            "0",
        ] {
            assert!(texts.iter().any(|t| t == text), "{text} in {texts:?}");
        }
        // The lengths are proportional to the figures, 2 : 4 : 1, to a pixel.
        assert_eq!(widths.len(), 3);
        assert!(
            (widths[1] / widths[0] - 2.0).abs() < 0.03
                && (widths[0] / widths[2] - 2.0).abs() < 0.03,
            "{widths:?}"
        );
        // Each interval is a line with two ends; the axis and the bound are lines too.
        let with_intervals = svg.matches("<polyline").count();
        let mut bare = groups.clone();
        for bar in bare.iter_mut().flat_map(|group| &mut group.bars) {
            bar.interval = None;
        }
        let svg = bars(NAME, width, "round trip, us", &bare, Some(bound)).unwrap();
        assert!(
            with_intervals - svg.matches("<polyline").count() >= 6,
            "{with_intervals}"
        );
    }
}

#[test]
fn stacked_parts_add_up_to_the_whole_bar() {
    let parts = |values: [f64; 3]| {
        values
            .iter()
            .enumerate()
            .map(|(i, v)| bar(i, *v, None))
            .collect()
    };
    let groups = [
        group("ours", parts([0.5, 0.25, 0.25])),
        group("paper", parts([0.252, 0.252, 0.496])),
    ];
    let svg = stacked(NAME, Width::Part, "share of the time", &groups).unwrap();
    let (texts, widths) = check_svg(&svg);
    for text in ["ours", "paper", "share of the time", "0.50", "100 %"] {
        assert!(texts.iter().any(|t| t == text), "{text} in {texts:?}");
    }
    let (ours, paper): (f64, f64) = (widths[..3].iter().sum(), widths[3..].iter().sum());
    assert!(
        (ours - paper).abs() <= 3.0 && (widths[0] / ours - 0.5).abs() < 0.01,
        "{widths:?}"
    );
}

#[test]
fn lines_mark_only_measured_points() {
    let curve = |series, stroke| Curve {
        series,
        points: vec![point(1.0, 3.0, Some((2.9, 3.1))), point(32.0, 4.0, None)],
        stroke,
    };
    let draw = |curves: &[Curve]| {
        let x = axis("functions", Scale::Log);
        lines(
            NAME,
            Width::Part,
            x,
            axis("round trip, us", Scale::Linear),
            curves,
            None,
        )
        .unwrap()
    };
    let (texts, _) = check_svg(&draw(&[curve(0, Stroke::Marked)]));
    for text in ["functions", "round trip, us", "10", "0", "4"] {
        assert!(texts.iter().any(|t| t == text), "{text} in {texts:?}");
    }
    let count = |stroke, part: &str| draw(&[curve(0, stroke)]).matches(part).count();
    assert_eq!(count(Stroke::Line, "<circle"), 0);
    assert_eq!(count(Stroke::Marked, "<circle"), 2);
    assert_eq!(
        count(Stroke::Marked, "#0072B2") - count(Stroke::Marks, "#0072B2"),
        1,
        "marks alone have no line"
    );
    // Every series has its own mark.
    let all: Vec<Curve> = (0..MARKS.len())
        .map(|series| curve(series, Stroke::Marks))
        .collect();
    let svg = draw(&all);
    check_svg(&svg);
    assert_eq!(
        (
            svg.matches("<circle").count(),
            svg.matches("<polygon").count()
        ),
        (2, 8)
    );
}

#[test]
fn a_distribution_ranges_from_0_to_100_percent_and_shows_its_bound() {
    let curves = [Curve {
        series: 0,
        points: vec![
            point(4.0, 0.01, None),
            point(6.0, 0.5, None),
            point(400.0, 0.999, None),
        ],
        stroke: Stroke::Marked,
    }];
    let bound = Bound {
        name: "350 us",
        at: 350.0,
        upright: true,
    };
    let x = axis("round trip, us", Scale::Log);
    let svg = lines(
        NAME,
        Width::Part,
        x,
        axis("", Scale::Percent),
        &curves,
        Some(bound),
    )
    .unwrap();
    let (texts, _) = check_svg(&svg);
    for text in ["0 %", "100 %", "350 us", "10", "round trip, us"] {
        assert!(texts.iter().any(|t| t == text), "{text} in {texts:?}");
    }
}

#[test]
fn figures_that_are_not_finite_give_a_drawing() {
    for value in [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -3.0,
        1e300,
        1e-300,
    ] {
        let odd = |interval| {
            let label = "odd".to_owned();
            let odd_bar = Bar {
                label,
                ..bar(0, value, interval)
            };
            vec![odd_bar, bar(7, 1.0, None)]
        };
        let groups = [
            group("", odd(Some((value, value)))),
            group(&"x".repeat(300), odd(None)),
            group("<&>", Vec::new()),
        ];
        let check_odd = |svg: String| check_svg(&svg);
        check_odd(bars(NAME, Width::Part, "a", &groups, None).unwrap());
        check_odd(stacked(NAME, Width::Full, "", &groups).unwrap());
        let points = vec![
            point(value, 1.0, None),
            point(1.0, value, Some((value, 2.0))),
        ];
        let curves = [Curve {
            series: 9,
            points,
            stroke: Stroke::Marked,
        }];
        for scale in [Scale::Linear, Scale::Log, Scale::Percent] {
            let bound = Bound {
                name: "b",
                at: 1.0,
                upright: scale == Scale::Log,
            };
            check_odd(
                lines(
                    NAME,
                    Width::Full,
                    axis("x", scale),
                    axis("y", scale),
                    &curves,
                    Some(bound),
                )
                .unwrap(),
            );
        }
    }
    for svg in [
        bars(NAME, Width::Full, "a", &[], None).unwrap(),
        stacked(NAME, Width::Full, "a", &[]).unwrap(),
        lines(
            NAME,
            Width::Full,
            axis("x", Scale::Log),
            axis("y", Scale::Linear),
            &[],
            None,
        )
        .unwrap(),
    ] {
        check_svg(&svg);
    }
}

#[test]
fn a_document_of_figures_and_tables_is_well_formed() {
    let svg = bars(
        NAME,
        Width::Part,
        "a",
        &[group("g", vec![bar(0, 1.0, None)])],
        None,
    )
    .unwrap();
    let keys = [Some('●'), None].map(|mark| Key {
        series: 7,
        mark,
        name: "a <series>".to_owned(),
    });
    let main = figure("Payload 256 B", &svg, &keys, "What it shows.")
        + &table("T", &["a"], &[vec!["1".to_owned()]]);
    let page = document("A & B", true, "<p>head</p>\n", &main);
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..roxmltree::ParsingOptions::default()
    };
    let parsed = roxmltree::Document::parse_with_options(&page, options).unwrap();
    let text: String = parsed.descendants().filter_map(|n| n.text()).collect();
    for part in [
        "A & B",
        "Payload 256 B",
        "a <series>",
        "●",
        "What it shows.",
    ] {
        assert!(text.contains(part), "{part}");
    }
}
