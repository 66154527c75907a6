//! The check on groups of threads and of processes, and what it says when something is wrong.

mod common;

use comity::{DType, Group, Result};
use comity_check::{Options, Report, run};
use comity_plan::Kind;
use common::{COMITY, run_comity};
use std::time::Duration;

fn on_threads(n: usize, options: &Options) -> Vec<Result<Report>> {
    scope::each(Group::local(n).unwrap(), |g| run(&g.with_timeout(Duration::from_secs(30)), options))
}

#[test]
fn every_group_of_threads_is_right() {
    let whole = scope::Scope::from_env().share(vec![1, 2, 3, 4, 5, 8], 6);
    for n in [1, 2, 3, 4, 5, 8] {
        let is_whole = whole.contains(&n);
        let dtypes = if is_whole { DType::ALL.to_vec() } else { vec![DType::I64] };
        for report in on_threads(n, &Options { quick: true, dtypes, ..Options::default() }) {
            let report = report.unwrap();
            assert!(report.is_right(), "{n} ranks: {}", report.first.unwrap().text);
            let by_algorithm: usize = Kind::ALL.iter().map(|k| k.algorithms().count()).sum();
            let lines = if n > 1 { 27 + by_algorithm } else { 27 };
            assert!(
                report.cases() > if is_whole { 1000 } else { 100 } && report.lines.len() == lines,
                "{n} ranks"
            );
        }
    }
}

#[test]
fn a_rank_with_other_data_is_found_out() {
    let reports = scope::each(Group::local(3).unwrap(), |g| {
        // Rank 2 gives what the others do not expect.
        let seed = u64::from(g.rank() == 2);
        let ops = vec!["all_reduce".into(), "broadcast".into()];
        run(&g, &Options { quick: true, seed, ops, ..Options::default() }).unwrap()
    });
    for report in &reports {
        assert!(!report.is_right());
        let first = report.first.as_ref().unwrap();
        assert_eq!(first, reports[0].first.as_ref().unwrap(), "all ranks tell the same");
        let text = first.text.as_str();
        assert!(
            text.starts_with("all_reduce bool[1] sum, rank 0, index 0: got ") || first.rank < 3,
            "{text}"
        );
        assert!(text.starts_with("all_reduce ") && text.contains(", index "), "{text}");
        assert!(text.contains(&format!(", rank {}, ", first.rank)), "{text}");
        let values = text.split_once(": got ").and_then(|(_, values)| values.split_once(", expected "));
        assert!(values.is_some_and(|(got, expected)| got != expected), "{text}");
        let wrong: Vec<_> =
            report.lines.iter().filter(|l| l.wrong > 0).map(|l| (l.method.as_str(), l.ranks)).collect();
        let each_wire = ("all_reduce on each wire", 3);
        assert_eq!(wrong[..4], [("all_reduce", 3), ("all_reduce_into", 3), each_wire, ("broadcast", 3)]);
        assert_eq!(report.lines.len(), wrong.len(), "by each algorithm as well");
    }
}

#[test]
fn processes_are_checked_under_the_launcher() {
    let check = ["check", "--quick", "--dtypes", "f32,u8", "--ops", "broadcast,barrier"];
    let text = run_comity(&[&["launch", "-n", "3", "--", COMITY], &check[..]].concat()).ends(0).out;
    assert!(text.starts_with("[0] # comity") && text.trim_end().ends_with("all ok"), "{text}");
    let by_algorithm = Kind::Broadcast.algorithms().count() + Kind::Barrier.algorithms().count();
    assert_eq!(text.lines().filter(|l| l.ends_with("  ok")).count(), 2 + by_algorithm, "{text}");
    assert!(text.contains("broadcast by double-tree "), "{text}");
    assert!(text.lines().all(|l| l.starts_with("[0] ") && l.len() <= 104), "{text}");
}

#[test]
fn a_wrong_result_is_told_with_exit_code_1() {
    let script = format!("exec {COMITY} check --quick --ops broadcast --dtypes u32 --seed $COMITY_RANK");
    let ended = run_comity(&["launch", "-n", "2", "--", "sh", "-c", &script]).ends(1);
    let first = "comity check: first difference: broadcast u32[1] root 1, rank 0, index 0: got ";
    ended.shows(&["WRONG: ", " on 2 ranks"]).says(&[first, ", expected "]);
}

#[test]
fn help_fits_the_page() {
    for command in ["check", "bench", "info", "plan"] {
        let ended = run_comity(&[command, "--help"]).ends(0);
        ended.shows(&["Usage: comity"]);
        for line in ended.out.lines() {
            assert!(line.chars().count() <= 100, "{command}: {line}");
        }
    }
}
