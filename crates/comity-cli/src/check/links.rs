//! `comity check --links`: how long a message takes between each two ranks, and how many bytes a second their link moves.

use crate::{
    here,
    say::{Exit, say},
};
use comity::{Group, LinkCosts};
use std::{fmt::Write as _, time::Duration};

/// Time for measuring, about; a slow link takes longer.
const BUDGET: Duration = Duration::from_secs(8);
/// Groups above this are told by their slowest pairs: a table would be wider than a page.
const WIDE: usize = 12;
const SLOWEST: usize = 10;

/// Measure, and have rank 0 say it.
pub(super) fn run(group: &Group, json: bool) -> Exit {
    let costs = group.measure_links(BUDGET)?;
    if group.rank() != 0 {
        return Ok(0);
    }
    let text = match json {
        true => costs.to_json(),
        false => {
            format!("# comity {} check --links: {}\n{}", here::VERSION, here::world(group), table(&costs))
        }
    };
    say(format!("{}\n", text.trim_end()), 0)
}

fn table(costs: &LinkCosts) -> String {
    let latency = |a, b| costs.latency(a, b) * 1e6;
    let bandwidth = |a, b| costs.bandwidth(a, b) / 1e9;
    let mut text = String::new();
    for (what, of, worst) in [
        ("latency in us", &latency as &dyn Fn(usize, usize) -> f64, 1.0),
        ("bandwidth in GB/s", &bandwidth, -1.0),
    ] {
        let _ = if costs.size() <= WIDE {
            writeln!(text, "{what}, from row to column\n{}", matrix(costs.size(), of))
        } else {
            writeln!(text, "{what}\n{}", extremes(costs.size(), of, worst))
        };
    }
    text
}

fn number(x: f64) -> String {
    match x {
        x if x < 10.0 => format!("{x:.2}"),
        x if x < 100.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

fn matrix(n: usize, of: &dyn Fn(usize, usize) -> f64) -> String {
    let mut text = format!("{:>5}", "");
    (0..n).for_each(|b| text += &format!("{b:>8}"));
    for a in 0..n {
        text += &format!("\n{a:>5}");
        for b in 0..n {
            text += &format!("{:>8}", if a == b { "-".into() } else { number(of(a, b)) });
        }
    }
    text
}

/// The median and the worst.
fn extremes(n: usize, of: &dyn Fn(usize, usize) -> f64, worst: f64) -> String {
    let ends = (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b);
    let mut all: Vec<_> = ends.map(|(a, b)| (of(a, b), a, b)).collect();
    all.sort_by(|x, y| (y.0 * worst).total_cmp(&(x.0 * worst)));
    let mut text = format!("  median {} of {} links; the slowest:", number(all[all.len() / 2].0), all.len());
    for (x, a, b) in all.iter().take(SLOWEST) {
        let _ = write!(text, "\n  {:>8}  from {a} to {b}", number(*x));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(n: usize) -> LinkCosts {
        let row = |slow: f64, usual: f64| {
            let cell = |a: usize, b: usize| if (a, b) == (1, 2) { slow } else { usual };
            (0..n).map(|a| (0..n).map(|b| cell(a, b)).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let json =
            serde_json::json!({ "ranks": n, "latency_s": row(0.25, 2e-6), "bytes_per_s": row(5e6, 12.5e9) });
        LinkCosts::from_json(&json.to_string()).unwrap()
    }

    #[test]
    fn small_groups_have_a_table_and_large_ones_their_slowest() {
        let text = table(&costs(3));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "latency in us, from row to column");
        assert_eq!(lines[3], "    1    2.00       -  250000");
        assert_eq!(lines[8], "    1    12.5       -    0.01");
        let text = table(&costs(20));
        assert!(text.contains("median 2.00 of 380 links; the slowest:\n    250000  from 1 to 2\n"), "{text}");
        assert!(text.contains("median 12.5 of 380 links; the slowest:\n      0.01  from 1 to 2\n"), "{text}");
        assert!(text.lines().all(|l| l.len() <= 100));
    }
}
