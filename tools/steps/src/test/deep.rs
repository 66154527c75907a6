//! Everything at full size, in parts that run by themselves. A dated page has a line for each part, as it ended last; one that has passed
//! at this state of the code is not run again.

use super::{
    scope::Scope,
    step::{End, Row, STEPS, Step, Way, in_a_line, table},
};
use std::thread;
use tasks::{
    child::Task,
    place::{read, root, write},
};

const PAGE: &str = "bench/record/deep.md";

const HEAD: &str = "\
# Deep checks

`cargo xtask test --deep [PART...]` writes this page: each part as it ended last. `cargo xtask test --list` says what the parts are.

| part | result | seconds | commit | date | machine |
|---|---|---:|---|---|---|
";

/// All parts that there are.
fn parts() -> impl Iterator<Item = &'static Step> {
    STEPS.iter().filter(|step| step.is_deep)
}

/// These parts, or all; each is written down when it has ended. One that fails does not stop the others.
pub(super) fn run(names: &[&str], scope: &Scope, again: bool) -> Result<(), String> {
    let state = state()?;
    let mut rows = Vec::new();
    for part in parts().filter(|p| names.is_empty() || names.contains(&p.name)) {
        if !again && has_passed(part.name, &state)? {
            println!("\n=== {}: passed already at {state}; --again runs it anew", part.name);
            continue;
        }
        let row = part.run(scope, Way::Shown);
        note(&row, &state)?;
        rows.push(row);
    }
    println!("\n{}\nwritten to {}", table(&rows), PAGE);
    let failed = rows.iter().filter(|r| matches!(r.end, End::Failed(_)));
    let failed: Vec<_> = failed.map(|r| r.name.as_str()).collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}; each alone: cargo xtask test --deep NAME", failed.join(", ")))
    }
}

/// The last commit that changed more than documents and records, and whether something is not committed.
fn state() -> Result<String, String> {
    let git = |args: &[&str]| {
        let sources = ["--", ".", ":!bench/record", ":!docs", ":!properdocs.yml", ":!*.md", ":!*.svg"];
        Task::new("git").args(args).args(sources).run()
    };
    let commit = git(&["log", "-1", "--abbrev=10", "--format=%h"])?.trim().to_owned();
    let is_changed = !git(&["status", "--porcelain"])?.is_empty();
    Ok(if is_changed { format!("{commit} and changes") } else { commit })
}

/// Return whether the page says that a part has passed at this state.
fn has_passed(part: &str, state: &str) -> Result<bool, String> {
    Ok(passed_in(&read(PAGE)?, part, state))
}

fn passed_in(page: &str, part: &str, state: &str) -> bool {
    let start = format!("| {part} | passed: ");
    page.lines().any(|line| line.starts_with(&start) && line.contains(&format!(" | {state} | ")))
        && !state.ends_with("changes")
}

/// Put a part's line in the place of its last.
fn note(row: &Row, state: &str) -> Result<(), String> {
    let date = Task::new("date").args(["-u", "+%Y-%m-%d %H:%M"]).run()?;
    write(PAGE, replaced(&read(PAGE)?, &line(row, state, date.trim(), &machine())))
}

fn line(row: &Row, commit: &str, date: &str, machine: &str) -> String {
    let result = match &row.end {
        End::Passed(note) => format!("passed: {note}"),
        End::NotRun(why) => format!("**not run**: {why}"),
        // Where the checkout lies is nobody's affair.
        End::Failed(why) => {
            let first = in_a_line(why);
            format!("**failed**: {}", first.replace(&format!("{}/", root().display()), ""))
        }
    };
    let result = result.replace('|', "/");
    format!("| {} | {result} | {:.0} | {commit} | {date} | {machine} |", row.name, row.took.as_secs_f64())
}

/// The page with this line in it, parts in their order.
fn replaced(old: &str, line: &str) -> String {
    let part = |line: &str| line.strip_prefix("| ")?.split_once(" |").map(|(name, _)| name.to_owned());
    let mut lines: Vec<(usize, &str)> = Vec::new();
    for line in old.lines().chain([line]) {
        let Some(at) = part(line).and_then(|name| parts().position(|p| p.name == name)) else {
            continue;
        };
        lines.retain(|(i, _)| *i != at);
        lines.push((at, line));
    }
    lines.sort_unstable();
    lines.into_iter().fold(HEAD.to_owned(), |page, (_, line)| page + line + "\n")
}

/// Cores and their maker's name for them.
fn machine() -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let info = read("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    format!("{cores} cores, {}", model.map_or(std::env::consts::ARCH, |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_part_has_one_line_and_its_place() {
        let row = |name: &str, end| Row { name: name.into(), took: Duration::from_secs(3), end };
        let passed = |name: &str, note: &str| line(&row(name, End::Passed(note.into())), "abc", "day", "m");
        let page = replaced("", &passed("soak", "old"));
        let page = replaced(&page, &passed("tests", "9 | 8"));
        let page = replaced(&page, &passed("soak", "new"));
        let here = root().display();
        let failed =
            line(&row("load", End::Failed(format!("{here}/it broke\nlong story"))), "abc", "day", "m");
        let page = replaced(&page, &failed);
        let lines: Vec<_> = page.lines().skip(6).collect();
        assert_eq!(
            lines,
            [
                "| tests | passed: 9 / 8 | 3 | abc | day | m |",
                "| load | **failed**: it broke | 3 | abc | day | m |",
                "| soak | passed: new | 3 | abc | day | m |"
            ]
        );
        assert!(passed_in(&page, "soak", "abc") && !passed_in(&page, "load", "abc"));
        assert!(!passed_in(&page, "soak", "ab") && !passed_in(&page, "soak", "abc and changes"));
    }

    #[test]
    fn the_nightly_workflow_names_parts() {
        let text = read(".github/workflows/nightly.yml").unwrap();
        let (_, rest) = text.split_once("part: [").unwrap();
        let (list, _) = rest.split_once(']').unwrap();
        for name in list.split(',').map(str::trim) {
            assert!(parts().any(|p| p.name == name), "nightly.yml names {name}, which is no part");
        }
    }
}
