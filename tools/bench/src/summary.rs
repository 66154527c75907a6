//! Many lines become one number a cell: disturbed ones are dropped, medians are taken over the rounds.

use super::{
    cell::{Cell, Element, Operation},
    contender::{CONTENDERS, Contender, Wire},
    record::{Distance, Line},
};
use std::collections::BTreeMap;

/// Figures of a contender in a cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Microseconds: the median of the launches' medians, the least of all calls, the median of the launches' 99th percentiles.
    pub(crate) median: f64,
    pub(crate) min: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) cpu_per_gb: Option<f64>,
    pub(crate) peak_kib: Option<u64>,
    pub(crate) start_s: Option<f64>,
    /// Launches that count.
    pub(crate) launches: usize,
    /// No launch was undisturbed with the cores as far apart as they mostly were.
    pub(crate) rough: bool,
}

/// Series of a table: an operation on a type and on some ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Series {
    pub(crate) ranks: usize,
    pub(crate) element: Element,
    pub(crate) op: Operation,
}

/// All cells.
#[derive(Debug)]
pub(crate) struct Summary {
    cells: BTreeMap<(Cell, &'static str), Figures>,
    /// Distance of the cores from each other in most launches.
    pub(crate) distance: Distance,
    /// Wrong results, which count nowhere.
    pub(crate) wrong: Vec<String>,
}

impl Summary {
    pub(crate) fn new(lines: &[Line]) -> Self {
        let distance = usual(lines);
        let mut all: BTreeMap<_, Vec<&Line>> = BTreeMap::new();
        for line in lines.iter().filter(|l| l.ok) {
            all.entry((line.cell, line.who.name)).or_default().push(line);
        }
        let wrong = lines.iter().filter(|l| !l.ok);
        Self {
            cells: all.into_iter().map(|(key, lines)| (key, figures(&lines, distance))).collect(),
            distance,
            wrong: wrong.map(|l| format!("{}: {} gave a wrong result", l.cell, l.who.name)).collect(),
        }
    }

    pub(crate) fn get(&self, cell: Cell, who: &Contender) -> Option<&Figures> {
        self.cells.get(&(cell, who.name))
    }

    /// Operations, types and ranks, those that matter most first.
    pub(crate) fn series(&self) -> Vec<Series> {
        let of = |(c, _): &(Cell, &str)| Series { ranks: c.ranks, element: c.element, op: c.op };
        let mut all: Vec<Series> = self.cells.keys().map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The sizes of a series.
    pub(crate) fn sizes(&self, series: Series) -> Vec<u64> {
        let of = |c: &&Cell| c.op == series.op && c.element == series.element && c.ranks == series.ranks;
        let mut all: Vec<u64> = self.cells.keys().map(|(c, _)| c).filter(of).map(|c| c.bytes).collect();
        all.dedup();
        all
    }

    /// Contenders that have a number somewhere in a series, on a wire.
    pub(crate) fn who(&self, series: Series, wire: Wire) -> Vec<&'static Contender> {
        let there = |c: &&Contender| {
            c.wire == wire && self.sizes(series).iter().any(|&b| self.get(series.cell(b), c).is_some())
        };
        CONTENDERS.iter().filter(there).collect()
    }

    /// Speed of `ours` over that of `theirs`.
    pub(crate) fn ratio(&self, cell: Cell, ours: &Contender, theirs: &Contender) -> Option<f64> {
        let ours = self.get(cell, ours)?;
        let theirs = self.get(cell, theirs)?;
        (ours.median > 0.0).then(|| theirs.median / ours.median)
    }

    /// The part of what the machine allows that `ours` reaches, 1 at best.
    pub(crate) fn share(&self, cell: Cell, ours: &Contender) -> Option<f64> {
        let limit = CONTENDERS.iter().find(|c| c.is_limit() && c.wire == ours.wire)?;
        self.ratio(cell, ours, limit)
    }
}

impl Series {
    pub(crate) const fn cell(self, bytes: u64) -> Cell {
        Cell { op: self.op, element: self.element, ranks: self.ranks, bytes }
    }

    pub(crate) fn title(self) -> String {
        let op = self.op.name();
        let element = self.element.name();
        let ranks = self.ranks;
        match self.op {
            Operation::Barrier => format!("{op}, {ranks} ranks"),
            _ => format!("{op} of {element}, {ranks} ranks ({})", self.op.about()),
        }
    }
}

/// Distance of the cores in most of them.
fn usual(lines: &[Line]) -> Distance {
    let count = |d: Distance| lines.iter().filter(|l| l.distance == d).count();
    match (count(Distance::Near), count(Distance::Far)) {
        (0, 0) => Distance::Mixed,
        (near, far) if near >= far => Distance::Near,
        _ => Distance::Far,
    }
}

/// Lines of a cell that count, and whether they are rough.
fn counted<'a>(lines: &[&'a Line], distance: Distance) -> (Vec<&'a Line>, bool) {
    let kept = |f: &dyn Fn(&Line) -> bool| lines.iter().copied().filter(|l| f(l)).collect::<Vec<_>>();
    let best = kept(&|l| !l.disturbed && l.distance == distance);
    if !best.is_empty() {
        return (best, false);
    }
    let quiet = kept(&|l| !l.disturbed);
    (if quiet.is_empty() { lines.to_vec() } else { quiet }, true)
}

fn figures(lines: &[&Line], distance: Distance) -> Figures {
    let (lines, rough) = counted(lines, distance);
    let all = |of: fn(&Line) -> Option<f64>| lines.iter().filter_map(|l| of(l)).collect::<Vec<f64>>();
    Figures {
        median: median(all(|l| Some(l.median))).unwrap_or(0.0),
        min: all(|l| l.min).into_iter().reduce(f64::min),
        p99: median(all(|l| l.p99)),
        cpu_per_gb: median(all(|l| l.cpu_per_gb)),
        peak_kib: lines.iter().filter_map(|l| l.peak_kib).max(),
        start_s: median(all(|l| l.start_s)),
        launches: lines.len(),
        rough,
    }
}

/// Median; of an even number the mean of the two in the middle.
pub(crate) fn median(mut of: Vec<f64>) -> Option<f64> {
    of.sort_by(f64::total_cmp);
    let high = of.get(of.len() / 2)?;
    let low = of.get((of.len() - 1) / 2)?;
    Some((high + low) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::line;

    #[test]
    fn disturbed_and_far_launches_are_dropped_while_others_are_there() {
        let mut lines: Vec<Line> =
            [10.0, 12.0, 90.0, 80.0].into_iter().map(|us| line("comity", 8, us)).collect();
        lines[2].disturbed = true;
        lines[3].distance = Distance::Far;
        let all = Summary::new(&lines);
        let cell = lines[0].cell;
        let f = all.get(cell, lines[0].who).unwrap();
        assert_eq!((f.median, f.min, f.launches, f.rough), (11.0, Some(5.0), 2, false));
        assert_eq!(all.distance, Distance::Near);
        // Without a quiet one near: a quiet one far; else whatever there is.
        let f = Summary::new(&[lines[2].clone(), lines[3].clone(), line("mpich", 8, 1.0)]);
        let f = f.get(cell, lines[0].who).unwrap();
        assert_eq!((f.median, f.launches, f.rough), (80.0, 1, true));
        let f = Summary::new(&lines[2..3]);
        assert!(f.get(cell, lines[0].who).unwrap().rough);
    }

    #[test]
    fn ratios_and_shares_are_of_medians() {
        let lines = [
            line("limit", 1024, 5.0),
            line("comity", 1024, 10.0),
            line("comity-tcp", 1024, 40.0),
            line("openmpi", 1024, 25.0),
            line("comity", 8, 1.0),
        ];
        let all = Summary::new(&lines);
        let cell = lines[0].cell;
        let c = |n| Contender::from_name(n).unwrap();
        assert_eq!(all.ratio(cell, c("comity"), c("openmpi")), Some(2.5));
        assert_eq!(all.share(cell, c("comity")), Some(0.5));
        assert_eq!((all.share(cell, c("comity-tcp")), all.ratio(cell, c("comity"), c("mlx"))), (None, None));
        let series = all.series();
        assert_eq!((series.len(), all.sizes(series[0])), (1, vec![8, 1024]));
        let names: Vec<_> = all.who(series[0], Wire::Memory).iter().map(|c| c.name).collect();
        assert_eq!(names, ["limit", "comity", "openmpi"]);
    }

    #[test]
    fn wrong_results_count_nowhere() {
        let mut bad = line("gloo", 8, 1.0);
        bad.ok = false;
        let all = Summary::new(&[bad]);
        assert!(
            all.series().is_empty() && all.wrong == ["all_reduce f32 2 ranks 8 B: gloo gave a wrong result"]
        );
    }
}
