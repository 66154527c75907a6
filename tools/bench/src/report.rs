//! Reports on a run: tables, one page with curves, the figure of the README.

use super::{
    cell::{Element, Operation},
    chart::{self, Axis, Curve, Panel, Picture, Stroke},
    contender::{CONTENDERS, Contender, Wire},
    launch,
    record::Record,
    summary::{Series, Summary},
    table::{self, Table},
};

/// Below this the time of a call says more than its bytes per second.
const RATE_FROM: u64 = 4 << 10;

const HOW: &str = "A sample is one call, or the mean of a batch where calls are short; calls are made back to back, and a call takes as \
long as on the rank where it took longest. One call of each cell is checked before the clock runs. Programs took turns, in several \
rounds; a cell is the median of the rounds' medians. Launches in which others used more than 0.12 cores are dropped, and those in \
which the cores were not as far apart as in most of them; ~ marks cells that have no other launch. With more ranks than cores, times \
say who yields the processor.";
const LIMIT: &str = "The limit over shared memory is what threads need whose buffers all can see, each byte read and written as often as \
the operation needs. The limit over TCP is what bare sockets need to move the bytes; nothing is added up there. Within a host gloo and \
MLX have nothing but TCP: beside shared memory, too, it is their TCP that stands.";

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Comity beside other libraries</title><style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1040px; margin: 1rem auto; padding: 0 1rem; color: #1b1f24; background: #fff; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
td, th { text-align: right; padding: .15rem .8rem .15rem 0; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
th { color: #556; font-weight: 500; border-bottom: 1px solid #d5d9e0; } svg { width: 100%; height: auto; margin: .5rem 0; }
h2 { margin-top: 2.5rem; border-top: 1px solid #d5d9e0; padding-top: 1rem; } h3 { font-size: 14px; margin-bottom: .3rem; }
</style></head><body>
<h1>Comity beside other libraries</h1>
<ul>
";

/// The series of the README's figure.
const FIGURE: Series = Series { ranks: 2, element: Element::F32, op: Operation::AllReduce };

/// Everything as Markdown.
pub(crate) fn markdown(record: &Record) -> String {
    let all = Summary::new(&record.lines);
    let mut text = format!("# Comity beside other libraries, {}\n\n", record.date);
    for line in facts(record, &all) {
        text += &format!("- {line}\n");
    }
    text += &format!("\n{HOW}\n\n{LIMIT}\n");
    for series in all.series() {
        text += &format!("\n## {}\n", series.title());
        for table in table::of_series(&all, series) {
            text += &format!("\n{}", table.markdown());
        }
    }
    if let Some(table) = table::start(&all) {
        text += &format!("\n## Start and memory\n\n{}", table.markdown());
    }
    text
}

/// Place, time and content of the run, and what was left out.
fn facts(record: &Record, all: &Summary) -> Vec<String> {
    let m = &record.machine;
    let mut facts = vec![
        format!("Made by `{}`, {}.", record.command, record.date),
        format!("{}; cores mostly {}.", record.place(), all.distance.name()),
        format!(
            "Memory {} GiB, Linux {}, congestion control {}.",
            m["memory_GiB"],
            m["kernel"].as_str().unwrap_or("unknown"),
            m["congestion_control"].as_str().unwrap_or("unknown")
        ),
        format!("Versions: {}.", record.versions()),
    ];
    facts.extend(all.wrong.iter().map(|w| format!("WRONG RESULT, left out: {w}.")));
    facts.extend(record.remarks.iter().cloned());
    facts
}

/// Everything on one page that needs nothing else.
pub(crate) fn page(record: &Record) -> String {
    let all = Summary::new(&record.lines);
    let mut t = HEAD.to_owned();
    for line in facts(record, &all) {
        t += &format!("<li>{}</li>\n", chart::escaped(&line.replace('`', "")));
    }
    t += &format!("</ul>\n<p>{HOW}</p>\n<p>{LIMIT}</p>\n");
    for series in all.series() {
        t += &format!("<h2>{}</h2>\n", chart::escaped(&series.title()));
        let pictures = [Axis::Time, Axis::Rate].map(|axis| chart::svg(&picture(&all, series, axis)));
        pictures.into_iter().flatten().for_each(|svg| t += &svg);
        table::of_series(&all, series).iter().map(Table::html).for_each(|table| t += &table);
    }
    if let Some(table) = table::start(&all) {
        t += &format!("<h2>Start and memory</h2>\n{}", table.html());
    }
    t + &commands(&all) + "</body></html>\n"
}

fn commands(all: &Summary) -> String {
    let there = |c: &&Contender| all.series().iter().any(|&s| all.who(s, c.wire).contains(c));
    let row =
        |c: &Contender| vec![format!("{} ({})", c.label, c.wire.title().to_lowercase()), launch::typed(c)];
    let rows: Vec<_> = CONTENDERS.iter().filter(there).map(row).collect();
    if rows.is_empty() {
        return "<p>Nothing was measured.</p>\n".into();
    }
    let title = "How each was started, on N ranks".into();
    Table { title, head: vec!["".into(), "command".into()], rows }.html()
}

/// A panel for each wire that has curves.
fn picture(all: &Summary, series: Series, axis: Axis) -> Picture {
    let panels = Wire::ALL.into_iter().map(|wire| Panel {
        title: format!("{}, {} ranks", wire.title(), series.ranks),
        curves: curves(all, series, wire, axis, |_| true),
    });
    let what = match axis {
        Axis::Time => "time of a call (lower is faster; both axes are logarithmic)",
        Axis::Rate => "bytes of the buffer by the median time (higher is faster)",
    };
    Picture {
        title: format!("{} of {}, {what}", series.op.name(), series.element.name()),
        panels: panels.filter(|p| !p.curves.is_empty()).collect(),
        axis,
        notes: Vec::new(),
    }
}

fn curves(
    all: &Summary,
    series: Series,
    wire: Wire,
    axis: Axis,
    wanted: impl Fn(&Contender) -> bool,
) -> Vec<Curve> {
    let sizes: Vec<u64> = all.sizes(series).into_iter().filter(|&b| b > 0).collect();
    let of = |c: &&'static Contender| {
        let point = |&bytes: &u64| {
            let f = all.get(series.cell(bytes), c).filter(|f| f.median > 0.0)?;
            match axis {
                Axis::Time => Some((bytes, f.median)),
                Axis::Rate => (bytes >= RATE_FROM).then_some((bytes, bytes as f64 / f.median / 1e3)),
            }
        };
        let stroke = match c.name {
            _ if c.is_limit() => Stroke::Dashed,
            _ if c.is_ours() && !c.is_python() => Stroke::Wide,
            _ => Stroke::Thin,
        };
        let points: Vec<_> = sizes.iter().filter_map(point).collect();
        Curve { label: c.label.into(), colour: c.colour, stroke, points }
    };
    let who = all.who(series, wire);
    let curves = who.iter().filter(|c| wanted(c)).map(of);
    curves.filter(|c| c.points.len() > 1).collect()
}

/// The figure of the README: all_reduce on two ranks. None where a run has too little for it.
pub(crate) fn figure(record: &Record) -> Option<String> {
    let all = Summary::new(&record.lines);
    let panel = |wire: Wire| Panel {
        title: format!("{}, 2 ranks", wire.title()),
        // Comity through Python would be two more curves in a small picture.
        curves: curves(&all, FIGURE, wire, Axis::Time, |c| !(c.is_ours() && c.is_python())),
    };
    chart::svg(&Picture {
        title: "all_reduce of float32, time of a call (lower is faster; both axes are logarithmic)".into(),
        panels: vec![panel(Wire::Memory), panel(Wire::Tcp)],
        axis: Axis::Time,
        notes: vec![
            format!("{}, {}; all programs took turns in one run; medians.", record.place(), record.date),
            format!("{}. Method and all numbers: bench/record/peers.md", record.command),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{line, record};
    use std::fs;
    use tasks::place::root;

    fn some() -> Record {
        let names = ["limit", "comity", "comity-numpy", "openmpi", "limit-tcp", "comity-tcp", "gloo", "mlx"];
        let lines = names.iter().enumerate().flat_map(|(i, who)| {
            [(8, 0.5), (1 << 20, 90.0), (64 << 20, 9000.0)]
                .map(|(bytes, us)| line(who, bytes, us * (1.0 + i as f64)))
        });
        record(lines.collect())
    }

    #[test]
    fn the_page_has_curves_tables_and_nothing_from_elsewhere() {
        let page = page(&some());
        // Time and rate, two panels each.
        assert_eq!((page.matches("<svg").count(), page.matches("<polyline").count()), (2, 16));
        assert!(page.contains("mpich does not take part") && page.contains("limit of the machine"));
        for bad in ["NaN", "inf ", "<script", "src=", "href="] {
            assert!(!page.contains(bad), "{bad}");
        }
        let empty = super::page(&record(Vec::new()));
        assert!(empty.contains("Nothing was measured") && !empty.contains("<svg"));
    }

    #[test]
    fn the_tables_say_where_and_when() {
        let text = markdown(&some());
        for words in
            ["One virtual machine with 2 cores (X); cores mostly near", "torch 2.15", "share of the limit"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn the_figure_has_both_panels_or_is_not_made() {
        let text = figure(&some()).unwrap();
        assert_eq!(text.matches("<polyline").count(), 7);
        assert!(text.contains("2026-11-24; all programs took turns"));
        let mut half = some();
        half.lines.retain(|l| l.who.wire == Wire::Memory);
        assert_eq!(figure(&half), None);
    }

    /// Compares the committed documents with those that this code writes.
    #[test]
    fn the_documents_are_current() {
        let record = Record::read(&root().join("bench/record/peers.json")).unwrap();
        for (file, wanted) in [
            ("bench/record/peers.md", markdown(&record)),
            ("bench/record/peers.html", page(&record)),
            ("docs/pictures/speed.svg", figure(&record).unwrap()),
        ] {
            let there = fs::read_to_string(root().join(file)).unwrap();
            assert!(
                there == wanted,
                "{file} is not current: cargo xtask bench --draw bench/record/peers.json --record"
            );
        }
    }
}
