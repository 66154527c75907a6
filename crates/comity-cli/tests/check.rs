//! The check on groups of threads and of processes, and what it says when something is wrong.

use comity::{Group, Result};
use comity_cli::check::{Options, Report, run};
use std::{process::Command, thread, time::Duration};

fn on_threads(n: usize, options: &Options) -> Vec<Result<Report>> {
    let groups = Group::local(n).unwrap();
    thread::scope(|s| {
        let ranks: Vec<_> = groups
            .into_iter()
            .map(|g| s.spawn(move || run(&g.timeout(Duration::from_secs(30)), options)))
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}

#[test]
fn every_group_of_threads_is_right() {
    let options = Options { quick: true, ..Options::default() };
    for n in [1, 2, 3, 4, 5, 8] {
        for report in on_threads(n, &options) {
            let report = report.unwrap();
            assert!(report.is_right(), "{n} ranks: {}", report.first.unwrap());
            assert!(report.cases() > 1000 && report.lines.len() == 23);
        }
    }
}

fn comity() -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_comity"));
    // What this test runs under is not what it is about.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["COMITY_", "MLX_", "OMPI_", "PMI_", "SLURM_"].iter().any(|p| text.starts_with(p)) {
            c.env_remove(&name);
        }
    }
    c.env_remove("RANK").env_remove("WORLD_SIZE");
    c
}
