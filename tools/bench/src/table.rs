//! Tables of results, for Markdown and for the page.

use super::{
    cell::{Operation, microseconds, size},
    chart::escaped,
    contender::{CONTENDERS, Contender, Wire},
    summary::{Figures, Series, Summary},
};

/// A table of texts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn markdown(&self) -> String {
        let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = format!("|---|{}\n", "---:|".repeat(self.head.len() - 1));
        let rows: String = self.rows.iter().map(|r| row(r)).collect();
        format!("**{}**\n\n{}{rule}{rows}", self.title, row(&self.head))
    }

    pub(crate) fn html(&self) -> String {
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
pub(crate) fn of_series(all: &Summary, series: Series) -> Vec<Table> {
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
pub(crate) fn start(all: &Summary) -> Option<Table> {
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
    use crate::record::tests::line;

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
