//! The page of `comity top` as Chromium shows it. Run by the deep check `browser`, which finds a Chromium.
use super::{
    Job,
    common::{Ended, patient, wait_for},
    page_of,
};
use std::{
    process::{Command, Stdio},
    time::Duration,
};

/// The page after its first pictures, as Chromium has it then.
fn shown(url: &str) -> String {
    let chromium = std::env::var("COMITY_TEST_CHROMIUM").expect("COMITY_TEST_CHROMIUM names a Chromium");
    let profile = tempfile::tempdir().unwrap();
    // It may hang.
    let mut command = Command::new("timeout");
    command.arg(patient(Duration::from_secs(60)).as_secs().to_string()).arg(chromium);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", profile.path().display())).arg(url);
    Ended::of(command.stdin(Stdio::null())).out
}

/// Until the page of a job of four that plays `role` has all of this.
fn page_has(role: &str, parts: &[&str]) -> String {
    let job = Job::start(role, &["-n", "4"]);
    let (mut top, url) = page_of(&job);
    let page = wait_for(&parts.join(", "), || {
        let page = shown(&url);
        parts.iter().all(|p| page.contains(p)).then_some(page)
    });
    top.kill().unwrap();
    top.wait().unwrap();
    job.end(143);
    // Four ranks, each with its number, and every pair's link.
    assert_eq!((page.matches("<circle").count(), page.matches("class=\"inside\"").count()), (4, 4), "{page}");
    assert!(page.matches(" over shm: ").count() == 6, "{page}");
    page
}

#[test]
#[ignore = "needs COMITY_TEST_CHROMIUM"]
fn chromium_shows_a_healthy_job() {
    let page = page_has("go", &["nothing to report", "bit/s"]);
    assert!(!page.contains("stroke-dasharray="), "{page}");
}

#[test]
#[ignore = "needs COMITY_TEST_CHROMIUM"]
fn chromium_shows_a_slow_rank() {
    let parts =
        ["slowest: rank 2 waits", "<tr class=\"slow\"><td class=\"n\">2</td>", "fill=\"var(--slow)\""];
    page_has("slow", &parts);
}

#[test]
#[ignore = "needs COMITY_TEST_CHROMIUM"]
fn chromium_shows_a_job_that_hangs() {
    let parts = ["ranks 0, 2, 3 wait for rank 1", "<tr class=\"hung\"><td class=\"n\">1</td>"];
    let page = page_has("hang", &parts);
    // An arrow from each of those who wait.
    assert_eq!(page.matches("stroke-dasharray=").count(), 3, "{page}");
}
