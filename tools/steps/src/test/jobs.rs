//! Jobs of the command on this machine, and what they say.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::{
    child::Task,
    place::{Scratch, built, write},
};

/// Seconds that a job of a short check may take: ten times as long as the slowest, 8 ranks on 2 cores.
pub(super) const QUICK: u64 = 600;

/// The command, as the step `build` has left it.
pub(super) fn comity() -> PathBuf {
    built("debug", "comity")
}

/// The same as a word of a script.
pub(super) fn comity_word() -> String {
    comity().display().to_string()
}

/// Do it, and say how long it took.
pub(super) fn timed<T>(what: &str, run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let start = Instant::now();
    let done = run().map_err(|e| format!("{what}: {e}"))?;
    println!("{what}: right, {:.1} s", start.elapsed().as_secs_f64());
    Ok(done)
}

/// The text has all of these words.
pub(super) fn has(said: &str, words: &[&str]) -> Result<(), String> {
    match words.iter().find(|word| !said.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("{word:?} is not in what it said:\n{said}")),
    }
}

/// The text has not this word.
pub(super) fn lacks(said: &str, word: &str) -> Result<(), String> {
    if said.contains(word) { Err(format!("{word:?} is in what it said:\n{said}")) } else { Ok(()) }
}

/// The job fails, and says all of these words.
pub(super) fn fails(ended: Result<String, String>, words: &[&str]) -> Result<String, String> {
    match ended {
        Ok(said) => Err(format!("it did not fail:\n{said}")),
        Err(said) => has(&said, words).map(|()| said),
    }
}

/// Look again and again until there is something.
pub(super) fn until<T>(
    what: &str,
    seconds: u64,
    mut look: impl FnMut() -> Result<Option<T>, String>,
) -> Result<T, String> {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        match look()? {
            Some(found) => return Ok(found),
            None if Instant::now() > end => return Err(format!("{what} is not there after {seconds} s")),
            None => sleep(Duration::from_millis(50)),
        }
    }
}

/// Start ranks, wait for all; what those said that failed is the error.
pub(super) fn together(ranks: impl Iterator<Item = Task>) -> Result<Vec<String>, String> {
    let running = ranks.map(Task::start).collect::<Result<Vec<_>, _>>()?;
    // What each that failed said: the first need not be the one that knows why.
    let (said, failed): (Vec<_>, Vec<_>) = running.into_iter().map(|r| r.wait()).partition(Result::is_ok);
    let why: Vec<String> = failed.into_iter().filter_map(Result::err).collect();
    if why.is_empty() { Ok(said.into_iter().flatten().collect()) } else { Err(why.join("\n")) }
}

/// A file with a job key that only its owner can read, for launchers that cannot hand one over.
pub(super) fn job_key() -> Result<(Scratch, PathBuf), String> {
    let scratch = Scratch::new("key")?;
    let path = scratch.join("key");
    Task::new(comity()).args(["key", "new"]).arg(&path).run()?;
    Ok((scratch, path))
}

/// Write a script that can be run.
pub(super) fn script(path: &Path, text: &str) -> Result<String, String> {
    write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    Ok(path.display().to_string())
}
