//! The text format of Prometheus (version 0.0.4).
use super::{JobMetrics, RUNNING};
use comity::tools::Tally;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// The same for all ranks of a launcher.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) job: String,
}

/// Everything, in one piece.
pub(super) fn write(metrics: &JobMetrics) -> String {
    let ranks: Vec<(usize, i32, Tally)> = metrics
        .ranks
        .iter()
        .enumerate()
        .map(|(rank, entry)| (rank, entry.state.load(Ordering::Relaxed), entry.sheet.read()))
        .collect();
    let mut page = Page(String::new());
    page.head("comity_job_info", "gauge", "The job that this launcher keeps; always 1.");
    let version = crate::VERSION;
    let labels = [("job_id", metrics.host.job.as_str()), ("host", &metrics.host.name), ("version", version)];
    page.line("comity_job_info", &labels, 1);
    page.head("comity_job_ranks", "gauge", "Ranks of the job.");
    page.line("comity_job_ranks", &[], ranks.len());

    page.head("comity_rank_up", "gauge", "1 while the process of the rank runs.");
    for (rank, state, _) in &ranks {
        page.rank("comity_rank_up", *rank, u8::from(*state == RUNNING));
    }
    page.head(
        "comity_rank_exit_code",
        "gauge",
        "Exit code of a rank that has ended; 128 + N after signal N.",
    );
    for (rank, state, _) in ranks.iter().filter(|(_, state, _)| *state >= 0) {
        page.rank("comity_rank_exit_code", *rank, state);
    }
    page.tallies(&ranks);
    page.0
}

type Ranks = [(usize, i32, Tally)];

struct Page(String);

// Writing to a string does not fail.
impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if i == 0 { '{' } else { ',' });
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn rank(&mut self, name: &str, rank: usize, value: impl std::fmt::Display) {
        self.line(name, &[("rank", &rank.to_string())], value);
    }

    /// Adds the counters of the ranks' groups.
    fn tallies(&mut self, ranks: &Ranks) {
        self.each("comity_groups_open", "gauge", "Groups that are open in the rank.", ranks, |t| t.groups);
        self.head("comity_calls_total", "counter", "Calls that succeeded, by operation.");
        for (rank, _, tally) in ranks {
            self.ops("comity_calls_total", *rank, tally, |calls, _| calls);
        }
        self.head("comity_sent_bytes_total", "counter", "Payload bytes sent to other ranks, by operation.");
        for (rank, _, tally) in ranks {
            self.ops("comity_sent_bytes_total", *rank, tally, |_, bytes| bytes);
        }
        self.each("comity_call_errors_total", "counter", "Calls that failed.", ranks, |t| t.errors);
        let help = "Time asleep in calls, waiting for other ranks.";
        self.each("comity_waited_seconds_total", "counter", help, ranks, |t| t.parked.as_secs_f64());
        let help = "How often another rank was silent for a fifth of the detection limit.";
        self.each("comity_suspicions_total", "counter", help, ranks, |t| t.suspicions);
        let help = "The longest time for which nothing was heard from one other rank.";
        let longest = |t: &Tally| t.longest_silence.as_secs_f64();
        self.each("comity_longest_silence_seconds", "gauge", help, ranks, longest);
    }

    /// A number of each rank.
    fn each<V: std::fmt::Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        ranks: &Ranks,
        of: impl Fn(&Tally) -> V,
    ) {
        self.head(name, kind, help);
        for (rank, _, tally) in ranks {
            self.rank(name, *rank, of(tally));
        }
    }

    /// The operations that the rank has used.
    fn ops(&mut self, name: &str, rank: usize, tally: &Tally, of: impl Fn(u64, u64) -> u64) {
        let rank = rank.to_string();
        for (op, calls, bytes) in tally.ops.iter().filter(|(_, calls, bytes)| calls + bytes > 0) {
            self.line(name, &[("rank", &rank), ("op", op.name())], of(*calls, *bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, WAITING};
    use super::*;
    use comity::tools::Sheet;
    use std::sync::atomic::{AtomicI32, AtomicU32};

    #[test]
    fn states_and_names_are_written_by_the_rules() {
        let entry = |state| Entry {
            sheet: Sheet::create().unwrap().0,
            state: AtomicI32::new(state),
            pid: AtomicI32::new(0),
            starts: AtomicU32::new(1),
        };
        let metrics = JobMetrics {
            host: Host { name: "a\"b\\c\nd".into(), job: "7f".into() },
            first: 0,
            ranks: vec![entry(RUNNING), entry(137), entry(WAITING)],
        };
        let text = write(&metrics);
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
        has(&format!(r#"comity_job_info{{job_id="7f",host="a\"b\\c\nd",version="{}"}} 1"#, crate::VERSION));
        has("comity_job_ranks 3");
        has(r#"comity_rank_up{rank="0"} 1"#);
        has(r#"comity_rank_up{rank="1"} 0"#);
        has(r#"comity_rank_up{rank="2"} 0"#);
        has(r#"comity_rank_exit_code{rank="1"} 137"#);
        has("# TYPE comity_calls_total counter");
        assert_eq!(text.matches("comity_rank_exit_code{").count(), 1);
        assert!(!text.contains("comity_calls_total{") && text.ends_with('\n'));
    }
}
