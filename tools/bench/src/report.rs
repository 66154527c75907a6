//! Reports on a run: tables, one page with curves, the figure of the README.

use super::{
    cell::{Element, Operation, microseconds, size},
    chart::{self, Axis, Curve, Panel, Picture, Stroke, escaped},
    contender::{CONTENDERS, Contender, Wire},
    launch,
    record::Record,
    summary::{Figures, Series, Summary},
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
        for table in of_series(&all, series) {
            text += &format!("\n{}", table.markdown());
        }
    }
    if let Some(table) = start(&all) {
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
        t += &format!("<li>{}</li>\n", escaped(&line.replace('`', "")));
    }
    t += &format!("</ul>\n<p>{HOW}</p>\n<p>{LIMIT}</p>\n");
    for series in all.series() {
        t += &format!("<h2>{}</h2>\n", escaped(&series.title()));
        let pictures = [Axis::Time, Axis::Rate].map(|axis| chart::svg(&picture(&all, series, axis)));
        pictures.into_iter().flatten().for_each(|svg| t += &svg);
        of_series(&all, series).iter().map(Table::html).for_each(|table| t += &table);
    }
    if let Some(table) = start(&all) {
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

/// A table of texts.
#[derive(Clone, Debug, PartialEq)]
struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn markdown(&self) -> String {
        let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = format!("|---|{}\n", "---:|".repeat(self.head.len() - 1));
        let rows: String = self.rows.iter().map(|r| row(r)).collect();
        format!("**{}**\n\n{}{rule}{rows}", self.title, row(&self.head))
    }

    fn html(&self) -> String {
        let cells = |cells: &[String], tag: &str| -> String {
            cells.iter().map(|c| format!("<{tag}>{}</{tag}>", escaped(c))).collect()
        };
        let rows: String = self.rows.iter().map(|r| format!("<tr>{}</tr>\n", cells(r, "td"))).collect();
        let title = escaped(&self.title);
        let head = cells(&self.head, "th");
        format!("<h3>{title}</h3>\n<table>\n<tr>{head}</tr>\n{rows}</table>\n")
    }
}

/// The tables of a series: times, and what Comity makes of them.
fn of_series(all: &Summary, series: Series) -> Vec<Table> {
    let mut tables = Vec::new();
    for wire in Wire::ALL {
        tables.extend(times(all, series, wire));
        tables.extend(ratios(all, series, wire));
    }
    tables
}

/// Median, least and 99th percentile of each contender on a wire.
fn times(all: &Summary, series: Series, wire: Wire) -> Option<Table> {
    let who = all.who(series, wire);
    if who.is_empty() {
        return None;
    }
    let mut head = vec!["size".to_owned()];
    head.extend(who.iter().map(|c| c.label.to_owned()));
    let row = |bytes: u64| {
        let cell = |c: &&Contender| all.get(series.cell(bytes), c).map_or_else(|| "-".into(), words);
        std::iter::once(size_of(series, bytes)).chain(who.iter().map(cell)).collect()
    };
    Some(Table {
        title: format!("{}: median (min, p99), us", wire.title()),
        head,
        rows: all.sizes(series).into_iter().map(row).collect(),
    })
}

fn size_of(series: Series, bytes: u64) -> String {
    if series.op == Operation::Barrier { "-".into() } else { size(bytes) }
}

fn words(f: &Figures) -> String {
    let rough = if f.rough { "~" } else { "" };
    let of = |us: Option<f64>| us.map_or_else(|| "-".into(), microseconds);
    match (f.min, f.p99) {
        (None, None) => format!("{rough}{}", microseconds(f.median)),
        (min, p99) => format!("{rough}{} ({}, {})", microseconds(f.median), of(min), of(p99)),
    }
}

/// Rivals of a form of Comity on a wire: those on the same wire, and those that have no other.
fn rivals(ours: &Contender) -> Vec<&'static Contender> {
    let fits = |c: &&Contender| {
        // gloo and MLX have nothing else within a host.
        let alike = c.wire == ours.wire || c.is_python() && (c.wire, ours.wire) == (Wire::Tcp, Wire::Memory);
        c.peer().is_some() && alike && (c.is_python() || !ours.is_python())
    };
    CONTENDERS.iter().filter(fits).collect()
}

/// Ratios of each form of Comity: its share of the limit, and how often as fast as each peer it is.
fn ratios(all: &Summary, series: Series, wire: Wire) -> Option<Table> {
    let ours: Vec<_> = all.who(series, wire).into_iter().filter(|c| c.is_ours()).collect();
    let sizes = all.sizes(series);
    let mut columns: Vec<(String, Vec<Option<String>>)> = Vec::new();
    for who in ours {
        let of = |f: &dyn Fn(u64) -> Option<String>| sizes.iter().map(|&b| f(b)).collect::<Vec<_>>();
        let share = |b| all.share(series.cell(b), who).map(|s| format!("{:.0} %", s * 100.0));
        columns.push((format!("{}: share of the limit", who.label), of(&share)));
        for peer in rivals(who) {
            let ratio = |b| all.ratio(series.cell(b), who, peer).map(times_as_fast);
            columns.push((format!("{} to {}", who.label, peer.label), of(&ratio)));
        }
    }
    columns.retain(|(_, cells)| cells.iter().any(Option::is_some));
    if columns.is_empty() {
        return None;
    }
    let head = std::iter::once("size".to_owned()).chain(columns.iter().map(|c| c.0.clone())).collect();
    let row = |(i, bytes): (usize, &u64)| {
        let cell = |c: &(String, Vec<Option<String>>)| c.1[i].clone().unwrap_or_else(|| "-".into());
        std::iter::once(size_of(series, *bytes)).chain(columns.iter().map(cell)).collect()
    };
    Some(Table {
        title: format!("{}: how often as fast (above 1: Comity is faster)", wire.title()),
        head,
        rows: sizes.iter().enumerate().map(row).collect(),
    })
}

fn times_as_fast(ratio: f64) -> String {
    if ratio < 9.995 { format!("{ratio:.2}") } else { format!("{ratio:.0}") }
}

/// Costs of starting, and memory: of a launch with a barrier, and of one with an all_reduce of 64 MiB.
fn start(all: &Summary) -> Option<Table> {
    const LARGE: u64 = 64 << 20;
    let of = |op| all.series().into_iter().find(|s| s.op == op && s.ranks == 2);
    let barrier = of(Operation::Barrier)?;
    let large = of(Operation::AllReduce);
    let mib = |kib: Option<u64>| kib.map_or_else(|| "-".into(), |k| format!("{:.1}", k as f64 / 1024.0));
    let row = |who: &Contender| -> Option<Vec<String>> {
        let f = all.get(barrier.cell(0), who)?;
        let with = large.and_then(|s| all.get(s.cell(LARGE), who)).and_then(|f| f.peak_kib);
        let seconds = f.start_s.map_or_else(|| "-".into(), |s| format!("{s:.2}"));
        let wire = who.wire.title().to_lowercase();
        Some(vec![format!("{} ({wire})", who.label), seconds, mib(f.peak_kib), mib(with)])
    };
    let rows: Vec<_> = CONTENDERS.iter().filter(|c| !c.is_limit()).filter_map(row).collect();
    let head =
        ["", "start to end, s", "memory of a rank after a barrier, MiB", "after an all_reduce of 64 MiB"];
    (!rows.is_empty()).then(|| Table {
        title: "Two ranks: the command without its timed calls, and the most memory that a rank had".into(),
        head: head.map(String::from).into(),
        rows,
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

    #[test]
    fn a_table_has_times_ratios_and_shares() {
        let mut rough = line("gloo", 1 << 20, 100.0);
        rough.disturbed = true;
        let lines = [
            line("limit", 1 << 20, 10.0),
            line("comity", 1 << 20, 20.0),
            line("openmpi", 1 << 20, 30.0),
            line("comity", 8, 0.5),
            line("comity-torch", 1 << 20, 25.0),
            rough,
        ];
        let all = Summary::new(&lines);
        let tables = of_series(&all, all.series()[0]);
        let text: String = tables.iter().map(Table::markdown).collect();
        assert!(text.contains("| 1 MiB | 10.0 (5.00, 20.0) | 20.0 (10.0, 40.0) |"), "{text}");
        assert!(
            text.contains("| 8 B | - | 0.50 (0.25, 1.00) |") && text.contains("~100 (50.0, 200)"),
            "{text}"
        );
        let ratios = tables[1].markdown();
        let head = "| size | Comity: share of the limit | Comity to Open MPI | Comity to gloo (torch) |";
        assert!(ratios.contains(head) && ratios.contains("| 1 MiB | 50 % | 1.50 | 5.00 |"), "{ratios}");
        assert!(ratios.contains("Comity, torch to gloo (torch)") && !ratios.contains("torch to Open MPI"));
        for t in &tables {
            assert!(t.rows.iter().all(|r| r.len() == t.head.len()), "{t:?}");
        }
        assert!(tables[0].html().contains("<td>20.0 (10.0, 40.0)</td>"));
    }

    #[test]
    fn starting_and_memory_have_a_table() {
        let mut one = line("comity", 64 << 20, 9.0);
        let large = one.clone();
        one.cell.op = Operation::Barrier;
        one.cell.bytes = 0;
        let table = start(&Summary::new(&[one, large])).unwrap();
        assert_eq!(table.rows, [["Comity (shared memory)", "0.25", "2.0", "2.0"].map(String::from).to_vec()]);
        assert_eq!(start(&Summary::new(&[])), None);
    }
}
