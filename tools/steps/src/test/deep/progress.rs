//! Pieces of a part that have passed at this state of the code: a file in `target/deep`, so that a run that was cut off goes on.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    time::Duration,
};
use tasks::{
    child::Task,
    place::{root, target},
};

/// State of the code that a run is of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    /// The commit, in ten digits, and whether something is not committed.
    pub(super) commit: String,
    /// Hash of all files but documents and records: those change nothing that is checked.
    mark: u64,
}

impl State {
    pub(super) fn now() -> Result<Self, String> {
        let git = |args: &[&str]| Task::new("git").args(["-C"]).args([root()]).args(args).run();
        let sources = ["--", ".", ":!bench/record", ":!docs", ":!properdocs.yml", ":!*.md", ":!*.svg"];
        let commit = git(&["rev-parse", "--short=10", "HEAD"])?.trim().to_owned();
        let tracked = git(&[&["ls-files", "--stage"][..], &sources].concat())?;
        let changed = git(&[&["diff", "HEAD"][..], &sources].concat())?;
        let mut hasher = DefaultHasher::new();
        (&tracked, &changed).hash(&mut hasher);
        let commit = if changed.is_empty() { commit } else { format!("{commit} and changes") };
        Ok(Self { commit, mark: hasher.finish() })
    }
}

/// The pieces that have passed, in order.
#[derive(Debug)]
pub(super) struct Progress {
    file: PathBuf,
    mark: u64,
    pub(super) pieces: Vec<(Duration, String)>,
}

impl Progress {
    /// Read the pieces of an earlier run of the same code.
    pub(super) fn read(part: &str, state: &State) -> Self {
        let file = target().join("deep").join(part);
        let mut progress = Self { file, mark: state.mark, pieces: Vec::new() };
        let text = fs::read_to_string(&progress.file).unwrap_or_default();
        if let Some(pieces) = parse(&text, state.mark) {
            progress.pieces = pieces;
        }
        progress
    }

    pub(super) fn add(&mut self, took: Duration, note: &str) -> Result<(), String> {
        self.pieces.push((took, note.to_owned()));
        let lines = self.pieces.iter().map(|(took, note)| format!("{}\t{note}\n", took.as_secs_f64()));
        let text = format!("{:x}\n{}", self.mark, lines.collect::<String>());
        let fail = |e| format!("cannot write {}: {e}", self.file.display());
        fs::create_dir_all(self.file.parent().unwrap_or(&self.file)).map_err(fail)?;
        fs::write(&self.file, text).map_err(fail)
    }

    pub(super) fn took(&self) -> Duration {
        self.pieces.iter().map(|(took, _)| *took).sum()
    }

    /// Note on all pieces together.
    pub(super) fn note(&self) -> String {
        let notes: Vec<&str> = self.pieces.iter().map(|(_, note)| note.as_str()).collect();
        sum(&notes).unwrap_or_else(|| notes.join("; "))
    }
}

fn parse(text: &str, mark: u64) -> Option<Vec<(Duration, String)>> {
    let mut lines = text.lines();
    if lines.next()? != format!("{mark:x}") {
        return None;
    }
    let piece = |line: &str| {
        let (took, note) = line.split_once('\t')?;
        Some((Duration::try_from_secs_f64(took.parse().ok()?).ok()?, note.to_owned()))
    };
    lines.map(piece).collect()
}

/// Notes that differ in their numbers alone, added up word by word.
fn sum(notes: &[&str]) -> Option<String> {
    let mut words = notes.iter().map(|n| n.split(' ').collect::<Vec<_>>());
    let mut total: Vec<String> = words.next()?.into_iter().map(str::to_owned).collect();
    for words in words {
        if words.len() != total.len() {
            return None;
        }
        for (sum, word) in total.iter_mut().zip(words) {
            match (sum.parse::<u64>(), word.parse::<u64>()) {
                (Ok(a), Ok(b)) => *sum = a.checked_add(b)?.to_string(),
                _ if sum == word => {}
                _ => return None,
            }
        }
    }
    Some(total.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_for_the_same_code_alone() {
        let text = "ff\n1.5\t3 tests\n2\t4 tests\n";
        let pieces = parse(text, 255).unwrap();
        assert_eq!(pieces[0], (Duration::from_millis(1500), "3 tests".into()));
        assert_eq!(pieces.len(), 2);
        assert_eq!(parse(text, 254), None);
        assert_eq!(parse("ff\nx\t3 tests\n", 255), None);
    }

    #[test]
    fn notes_are_added_up() {
        assert_eq!(sum(&["3 tests, 10 runs", "4 tests, 5 runs"]), Some("7 tests, 15 runs".into()));
        assert_eq!(sum(&["3 tests", "4 runs"]), None);
        assert_eq!(sum(&["18446744073709551615 runs", "1 runs"]), None);
    }
}
