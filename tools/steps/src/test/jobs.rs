//! Jobs of the command on this machine, and what they say.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};
use tasks::place::{built, write};

/// The command, as the step `build` has left it.
pub(super) fn comity() -> String {
    built("debug", "comity").display().to_string()
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

/// Write a script that can be run.
pub(super) fn script(path: &Path, text: &str) -> Result<String, String> {
    write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    Ok(path.display().to_string())
}
