//! What the compiler does not check: where unsafe code and waits may stand, and how long a file may grow.

mod text;

use super::{Done, Outcome};
use crate::place::root;
use std::{fs, path::Path};
use text::blank;

const MOST_LINES: usize = 700;

/// Unsafe code: a folder ends with `/`.
const UNSAFE: &[(&str, &str)] = &[
    ("crates/comity/src/sys/", "calls into the system"),
    ("crates/comity/src/view/", "borrowed memory of any type"),
    ("crates/comity/src/kernel/", "vector instructions"),
    ("crates/comity/src/link/shm.rs", "memory that two processes map"),
    ("crates/comity/src/link/ring.rs", "memory that two processes map"),
    ("crates/comity/src/link/verbs/", "slots that a device reads and writes"),
    ("crates/comity/src/backend/nccl/", "addresses of device memory that views promise"),
    ("crates/comity/src/cuda.rs", "the same, for memory of this project's own tools"),
    ("crates/comity/src/dtype.rs", "the trait that says which types are plain data"),
    ("crates/comity/src/turn.rs", "a cell in its loom test"),
    ("crates/comity-py/src/raw.rs", "memory that Python vouches for"),
    ("crates/softnccl/src/", "a C interface and memory that its callers vouch for, for tests"),
    ("crates/comity-cli/src/launch/sys.rs", "fork, and signals to process groups"),
    ("crates/softverbs/src/exports/", "a C interface, for tests"),
    ("crates/softverbs/src/abi.rs", "the same: functions in its tables"),
    ("crates/softverbs/src/memory.rs", "memory that a client of it registered"),
    ("crates/softverbs/src/thread.rs", "poll"),
    ("crates/comity-cli/tests/faults/actor.rs", "a test's fork, which keeps sockets open"),
];

/// Where code may wait, the word in that file which ends the wait if the other side never comes, and what it is. Where there is no word, the caller
/// has it.
const WAITS: &[(&str, &str, &str)] = &[
    (
        "crates/comity/src/engine/park.rs",
        "bell_fd",
        "a rank in a call: to the call's deadline, and the bell rings for a failure",
    ),
    ("crates/comity/src/engine/run.rs", "failure", "the same"),
    ("crates/comity/src/engine/blame.rs", "until", "word of whose fault it was, 500 ms at most"),
    (
        "crates/comity/src/backend/company.rs",
        "failure",
        "a library: to the call's deadline, and the bell rings for a failure",
    ),
    ("crates/comity/src/backend/mpi/place.rs", "until", "telling the meeting place: to the join deadline"),
    ("crates/comity/src/backend/mpi/", "Waiting", "MPI, as above"),
    (
        "crates/comity/src/backend/nccl/",
        "until",
        "NCCL, as above; its guard: woken for each call and at the end",
    ),
    ("crates/comity/src/turn.rs", "", "an earlier call of this group, which has a deadline"),
    ("crates/comity/src/group/mod.rs", "", "its turn, as above"),
    (
        "crates/comity/src/group/request.rs",
        "",
        "background work: calls with deadlines, and what the user's closure does",
    ),
    ("crates/comity/src/boot/mesh.rs", "until", "links being made: to the join deadline"),
    ("crates/comity/src/boot/mesh/reach.rs", "until", "the same"),
    (
        "crates/comity/src/link/verbs/hub/attend.rs",
        "until",
        "the thread that attends devices: 50 ms at most; the end of an edge: 500 ms at most",
    ),
    ("crates/comity/src/link/verbs/hub.rs", "", "its own poll, a look that never sleeps"),
    ("crates/comity/src/link/verbs/mod.rs", "", "the same"),
    (
        "crates/comity/src/link/tcp/courier.rs",
        "over",
        "the thread that sends for a link: woken for each parcel, and when it is to stop",
    ),
    ("crates/comity/src/boot/dial.rs", "until", "an answer: to the join deadline"),
    ("crates/comity/src/boot/store/server.rs", "", "the store's thread: woken when it is to stop"),
    (
        "crates/comity/src/boot/control.rs",
        "",
        "the control thread: woken for each event, and when it is to stop",
    ),
    ("crates/comity/src/boot/board/torch.rs", "until", "another try: to the join deadline"),
    (
        "crates/comity/src/boot/board/unix.rs",
        "until",
        "another try: to the join deadline; its thread: woken when it is to stop",
    ),
    ("crates/comity/src/config/place.rs", "until", "the system's resolver: to the join deadline"),
    ("crates/comity/src/cuda.rs", "", "a driver's own work, which no peer has a part in"),
    (
        "crates/comity-py/src/request.rs",
        "watched",
        "background work, as above; a look at Python's signals ten times a second",
    ),
    ("crates/comity-py/src/callbacks.rs", "IDLE", "the next callback: 10 s at most"),
    ("crates/comity/src/sys/", "", "poll itself, with the deadline of its caller"),
];
/// Calls that can sleep, or are made again and again instead.
const WAITING: &[&str] = &[
    "poll",
    "park",
    "park_timeout",
    "sleep",
    "wait",
    "wait_while",
    "wait_timeout",
    "recv_timeout",
    "spin_loop",
    "yield_now",
];

pub(super) fn check() -> Outcome {
    let mut files = Vec::new();
    for folder in ["crates", "xtask"] {
        sources(&root().join(folder), &mut files).map_err(|e| format!("cannot list {folder}: {e}"))?;
    }
    let mut found = Vec::new();
    let mut seen = Vec::new();
    for path in &files {
        let text = fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let name = path.strip_prefix(root()).unwrap_or(path).to_string_lossy().into_owned();
        found.extend(too_long(&name, &text));
        found.extend(misplaced_unsafe(&name, &text));
        found.extend(misplaced_waits(&name, &text));
        seen.push(name);
    }
    for entry in UNSAFE.iter().map(|u| u.0).chain(WAITS.iter().map(|w| w.0)) {
        if !seen.iter().any(|name| within(name, entry)) {
            found.push(format!(
                "{entry} is on a list of xtask/src/test/gates.rs, but is no file; remove it there"
            ));
        }
    }
    if found.is_empty() { Ok(Done::Passed(format!("{} files", files.len()))) } else { Err(found.join("\n")) }
}

fn sources(folder: &Path, files: &mut Vec<std::path::PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                sources(&path, files)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn within(name: &str, entry: &str) -> bool {
    name == entry || entry.ends_with('/') && name.starts_with(entry)
}

fn too_long(name: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let why = format!("{name}: {lines} lines; a file past {MOST_LINES} becomes a folder of parts");
    (lines > MOST_LINES).then_some(why)
}

fn misplaced_unsafe(name: &str, text: &str) -> Vec<String> {
    let code = blank(text);
    let (code, lines): (Vec<&str>, Vec<&str>) = (code.lines().collect(), text.lines().collect());
    let mut found = Vec::new();
    for (i, line) in code.iter().enumerate().filter(|(_, l)| has_word(l, "unsafe")) {
        if !UNSAFE.iter().any(|(entry, _)| within(name, entry)) {
            found.push(format!("{name}:{}: unsafe code outside the places for it: {}", i + 1, line.trim()));
        }
        if !explained(&lines, &code, i) {
            found.push(format!(
                "{name}:{}: unsafe without a SAFETY comment right above: {}",
                i + 1,
                line.trim()
            ));
        }
    }
    found
}

/// Whether the statement at line `at` says why it is sound, on its line or above: `// SAFETY:`, or `# Safety` in the
/// documentation of what callers must uphold.
fn explained(lines: &[&str], code: &[&str], at: usize) -> bool {
    let says = |l: &str| l.contains("SAFETY:") || l.contains("# Safety");
    if says(lines[at]) {
        return true;
    }
    for i in (0..at).rev() {
        if says(lines[i]) && code[i].trim().is_empty() {
            return true;
        }
        let code = code[i].trim();
        let comment = code.is_empty() && !lines[i].trim().is_empty();
        let attribute = code.starts_with("#[");
        // A line that ends neither a statement nor a block belongs to the statement below it.
        let ends = code.is_empty() || code.ends_with([';', '{', '}', ',']);
        if ends && !comment && !attribute {
            return false;
        }
    }
    false
}

fn misplaced_waits(name: &str, text: &str) -> Vec<String> {
    let test = name.contains("/tests/") || name.ends_with("/tests.rs") || name.ends_with("/conformance.rs");
    if test || !["crates/comity/src/", "crates/comity-py/src/"].iter().any(|place| name.starts_with(place)) {
        return Vec::new();
    }
    let code = blank(text);
    let code = without_tests(&code);
    let waits = code.iter().filter(|(_, l)| WAITING.iter().any(|w| calls(l, w)));
    match WAITS.iter().find(|(entry, ..)| within(name, entry)) {
        None => waits
            .map(|(i, l)| format!("{name}:{}: a wait outside the places for it: {}", i + 1, l.trim()))
            .collect(),
        Some((_, word, why)) => waits
            .take(1)
            .filter(|_| !word.is_empty() && !code.iter().any(|(_, l)| has_word(l, word)))
            .map(|(i, _)| format!("{name}:{}: a wait in a file that has no `{word}`: {why}", i + 1))
            .collect(),
    }
}

/// The lines, with their numbers from 0, that are not only for tests.
fn without_tests(code: &str) -> Vec<(usize, &str)> {
    let mut lines = code.lines().enumerate();
    let mut kept = Vec::new();
    while let Some((i, line)) = lines.next() {
        let start = line.trim_start();
        if !["#[cfg(test", "#[cfg(all(test"].iter().any(|t| start.starts_with(t)) {
            kept.push((i, line));
            continue;
        }
        // As the formatter leaves it: an item ends on its line, or with a brace as far in as it begins.
        let close = format!("{}}}", &line[..line.len() - start.len()]);
        let mut begun = false;
        for (_, line) in lines.by_ref() {
            if !begun && line.trim_start().starts_with("#[") {
                continue;
            }
            let on_one_line = !begun && (line.ends_with(';') || line.ends_with(',') || line.ends_with('}'));
            begun = true;
            if on_one_line || line.starts_with(&close) {
                break;
            }
        }
    }
    kept
}

fn calls(line: &str, name: &str) -> bool {
    words(line, name).any(|(before, after)| after.starts_with('(') && !before.trim_end().ends_with("fn"))
}

fn has_word(line: &str, word: &str) -> bool {
    words(line, word).next().is_some()
}

/// What stands before and after each place where `word` stands alone.
fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .map(move |(at, _)| (&line[..at], &line[at + word.len()..]))
        .filter(move |(before, after)| !before.ends_with(part) && !after.starts_with(part))
}

#[cfg(test)]
mod tests;
