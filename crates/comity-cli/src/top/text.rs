//! A picture of a job as text, for `--once`, pipes and logs; and the place of each rank, the end of its flight recorder.
use super::picture::{Picture, RankMark, busiest};
use crate::live::{CallView, JobView, RankState, RankView};
use std::fmt::Write;

/// Bits a second, as networks are sold.
pub(crate) fn rate(bits: Option<f64>) -> String {
    let Some(bits) = bits else { return "-".into() };
    for (unit, size) in [("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)] {
        if bits >= size {
            return format!("{:.*} {unit}", usize::from(bits < 100.0 * size), bits / size);
        }
    }
    format!("{bits:.0} bit/s")
}

/// Bytes, which are counted in powers of two.
pub(crate) fn payload(bytes: u64) -> String {
    let units = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// A short time.
pub(crate) fn age(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".into(),
        Some(s) if s < 0.001 => format!("{:.0} us", s * 1e6),
        Some(s) if s < 1.0 => format!("{:.0} ms", s * 1e3),
        Some(s) if s < 100.0 => format!("{s:.1} s"),
        Some(s) if s < 6000.0 => format!("{:.0} min", s / 60.0),
        Some(s) => format!("{:.1} h", s / 3600.0),
    }
}

pub(crate) fn share(of: Option<f64>) -> String {
    of.map_or_else(|| "-".into(), |s| format!("{:.0} %", s * 100.0))
}

pub(crate) const HEADS: [&str; 11] =
    ["rank", "host", "pid", "state", "call", "age", "waits for", "waiting", "out", "in", "calls"];

pub(crate) fn cells(picture: &Picture) -> Vec<[String; 11]> {
    let row = |r: &super::picture::Row| {
        [
            r.rank.to_string(),
            r.host.clone(),
            r.pid.to_string(),
            r.state.clone(),
            r.call.clone(),
            age(r.age),
            r.waits_for.map_or_else(|| "-".into(), |w| w.to_string()),
            share(r.waiting),
            rate(r.out),
            rate(r.inward),
            if r.errors > 0 { format!("{} + {} failed", r.calls, r.errors) } else { r.calls.to_string() },
        ]
    };
    picture.rows.iter().map(row).collect()
}

/// The mark as a word of one length, for those who see no colours.
pub(crate) fn word(mark: RankMark) -> &'static str {
    match mark {
        RankMark::Fine => "",
        RankMark::Waits => "waits",
        RankMark::Slow => "SLOW",
        RankMark::Hung => "HUNG",
        RankMark::Failed => "FAILED",
    }
}

fn colour(mark: RankMark) -> &'static str {
    match mark {
        RankMark::Fine => "",
        RankMark::Waits => "\x1b[2m",
        RankMark::Slow => "\x1b[33m",
        RankMark::Hung | RankMark::Failed => "\x1b[1;31m",
    }
}

/// The whole picture.
pub(crate) fn text(picture: &Picture, colours: bool) -> String {
    let paint = |mark: RankMark, line: &str| match colours && !colour(mark).is_empty() {
        true => format!("{}{line}\x1b[0m\n", colour(mark)),
        false => format!("{line}\n"),
    };
    let mut out = format!("{}, up {}\n{}\n\n", picture.title, age(Some(picture.up)), picture.command);
    for finding in &picture.findings {
        out += &paint(finding.mark, &format!("! {}", finding.text));
    }
    if !picture.findings.is_empty() {
        out.push('\n');
    }
    let rows = cells(picture);
    let width =
        |i: usize| rows.iter().map(|r| r[i].chars().count()).chain([HEADS[i].len()]).max().unwrap_or(0);
    let widths: [usize; 11] = std::array::from_fn(width);
    let is_left = |i: usize| matches!(i, 1 | 3 | 4);
    let line = |cells: &[String; 11]| {
        let mut line = String::new();
        for (i, cell) in cells.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = match is_left(i) {
                true => write!(line, "{cell:<w$}  ", w = widths[i]),
                false => write!(line, "{cell:>w$}  ", w = widths[i]),
            };
        }
        line
    };
    out += line(&HEADS.map(String::from)).trim_end();
    out.push('\n');
    for (row, cells) in picture.rows.iter().zip(&rows) {
        out += &paint(row.mark, format!("{}{}", line(cells), word(row.mark)).trim_end());
    }
    if !picture.lines.is_empty() {
        let _ = writeln!(out, "\n{:<9}{:<7}{:>14}{:>14}{:>12}", "link", "over", "there", "back", "bytes");
        for l in &picture.lines {
            let name = format!("{}-{}", l.a, l.b);
            let total = payload(l.total);
            let _ =
                writeln!(out, "{name:<9}{:<7}{:>14}{:>14}{total:>12}", l.kind, rate(l.there), rate(l.back));
        }
        if picture.more_lines > 0 {
            let _ = writeln!(out, "and {} more links", picture.more_lines);
        }
    }
    out
}

/// All ranks; those that stand alike in one paragraph.
pub(super) fn stacks(job: &JobView) -> String {
    let mut out =
        format!("job {} (launcher pid {} on {}), {} ranks\n", job.job_id, job.launcher, job.host, job.size);
    let mut alike: Vec<(String, Vec<&RankView>)> = Vec::new();
    for rank in &job.ranks {
        let does = does(rank);
        match alike.iter_mut().find(|(d, _)| *d == does) {
            Some((_, ranks)) => ranks.push(rank),
            None => alike.push((does, vec![rank])),
        }
    }
    // Where few are stands first: there the reason is.
    alike.sort_by_key(|(_, ranks)| ranks.len());
    for (does, ranks) in &alike {
        let names: Vec<String> = ranks.iter().map(|r| r.rank.to_string()).collect();
        let s = if ranks.len() == 1 { "" } else { "s" };
        // Writing to a string does not fail.
        let _ = writeln!(out, "\nrank{s} {}: {does}", names.join(", "));
        for rank in ranks.iter().take(16) {
            write_rank(&mut out, rank);
        }
        if ranks.len() > 16 {
            let _ = writeln!(out, "  and {} more alike", ranks.len() - 16);
        }
    }
    if let Some(missing) = job.missing() {
        let _ = writeln!(out, "\n{missing}");
    }
    for host in &job.silent {
        let _ = writeln!(out, "\n{}", job.silence(host));
    }
    out
}

/// Text by which ranks are grouped: the same call, the same state.
fn does(rank: &RankView) -> String {
    match (rank.state, busiest(rank)) {
        (RankState::Waiting, _) => "not started".into(),
        (RankState::Ended(0), _) => "ended".into(),
        (RankState::Ended(code), _) => format!("failed with code {code}"),
        (state, busy) => {
            let stopped = if state == RankState::Stopped { "stopped, " } else { "" };
            match busy {
                Some((_, c)) if c.state == "begun" => format!("{stopped}in {}", c.text),
                Some((_, c)) => format!("{stopped}in no call; the last was {}", c.text),
                None if rank.calls > 0 => format!("{stopped}in no call; its groups are closed"),
                None if rank.groups.is_empty() => {
                    format!("{stopped}before its first group: it prepares, or waits in init for other ranks")
                }
                None => format!("{stopped}before its first call, in a group that is there"),
            }
        }
    }
}

fn write_rank(out: &mut String, rank: &RankView) {
    let _ = writeln!(out, "  rank {} (pid {}, host {})", rank.rank, rank.pid, rank.host);
    let now = |ns: u64| age(Some(ns as f64 / 1e9));
    for group in &rank.groups {
        if group.id != "0" || rank.groups.len() > 1 {
            let _ = writeln!(
                out,
                "    group {} (rank {} of {}), {} calls",
                group.id, group.rank, group.size, group.made
            );
        }
        let on = group.waits_for.map(|r| format!(", waits for rank {r}")).unwrap_or_default();
        let asleep = if group.asleep_ns > 0 { ", asleep" } else { "" };
        for call in group.calls.iter().rev() {
            let CallView { text, began_ns, ended_ns, .. } = call;
            let _ = match call.state.as_str() {
                "begun" => writeln!(out, "    now     {text}, for {}{on}{asleep}", now(*began_ns)),
                state => writeln!(out, "    {state:<7} {text}, {} ago", now(*ended_ns)),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::picture::{Finding, LinkLine, Row};
    use super::*;
    use crate::live::{GroupView, job};

    #[test]
    fn numbers_have_units() {
        let all = [0, 1023, 1 << 20, 1_110_441_984, u64::MAX].map(payload);
        assert_eq!(all, ["0 B", "1023 B", "1.0 MiB", "1.0 GiB", "16384.0 PiB"]);
        let rates = [None, Some(0.0), Some(1500.0), Some(25.04e9), Some(250e9)].map(rate);
        assert_eq!(rates, ["-", "0 bit/s", "1.5 kbit/s", "25.0 Gbit/s", "250 Gbit/s"]);
        let ages = [Some(0.0000105), Some(0.25), Some(12.34), Some(300.0), Some(7200.0)].map(age);
        assert_eq!(ages, ["10 us", "250 ms", "12.3 s", "5 min", "2.0 h"]);
    }

    #[test]
    fn columns_stand_below_their_heads_and_colours_are_asked_for() {
        let row = |rank, mark| Row { rank, mark, call: "all_reduce #7".into(), ..Row::default() };
        let p = Picture {
            rows: vec![row(0, RankMark::Fine), row(11, RankMark::Hung)],
            lines: vec![LinkLine {
                a: 0,
                b: 11,
                kind: "tcp".into(),
                there: Some(1e9),
                back: None,
                total: 2048,
            }],
            findings: vec![Finding { mark: RankMark::Hung, text: "it hangs".into() }],
            ..Picture::default()
        };
        let plain = text(&p, false);
        assert!(plain.contains("! it hangs\n") && !plain.contains('\x1b'), "{plain}");
        let at =
            |line: &str, word: &str| plain.lines().find(|l| l.contains(line)).unwrap().find(word).unwrap();
        assert_eq!(at("rank  host", "call"), at("HUNG", "all_reduce"));
        assert!(plain.contains("0-11     tcp        1.0 Gbit/s             -     2.0 KiB"), "{plain}");
        assert!(text(&p, true).contains("\x1b[1;31m! it hangs\x1b[0m"));
    }

    #[test]
    fn ranks_before_their_first_call_have_met_or_not() {
        let rank = |rank, groups| RankView { rank, state: RankState::Running, groups, ..RankView::default() };
        let met = || vec![GroupView { id: "0".into(), size: 3, ..GroupView::default() }];
        let ranks = vec![rank(0, Vec::new()), rank(1, met()), rank(2, met())];
        let text = stacks(&JobView { ranks, ..job("7f", "h", 3) });
        assert!(text.contains("\nrank 0: before its first group: it prepares, or waits in init"), "{text}");
        assert!(text.contains("\nranks 1, 2: before its first call, in a group that is there"), "{text}");
    }

    #[test]
    fn ranks_that_stand_alike_are_told_together_and_the_odd_one_first() {
        let call = |state: &str, text: &str| CallView {
            text: text.into(),
            state: state.into(),
            began_ns: 5_000_000_000,
            ended_ns: 4_000_000_000,
            ..CallView::default()
        };
        let rank = |rank, calls, waits_for| RankView {
            rank,
            state: RankState::Running,
            groups: vec![GroupView { id: "0".into(), calls, waits_for, ..GroupView::default() }],
            ..RankView::default()
        };
        let waits = || vec![call("done", "barrier #1"), call("begun", "all_reduce #2")];
        let ranks = vec![
            rank(0, waits(), Some(1)),
            rank(1, vec![call("done", "barrier #1")], None),
            rank(2, waits(), Some(1)),
        ];
        let text = stacks(&JobView { ranks, ..job("7f", "h", 3) });
        let odd = text.find("rank 1: in no call; the last was barrier #1");
        let rest = text.find("ranks 0, 2: in all_reduce #2");
        assert!(odd.zip(rest).is_some_and(|(a, b)| a < b), "{text}");
        assert!(
            text.contains(
                "    now     all_reduce #2, for 5.0 s, waits for rank 1\n    done    barrier #1, 4.0 s ago\n"
            ),
            "{text}"
        );
    }
}
