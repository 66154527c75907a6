//! Flight records that the ranks of a job left in a directory, read together.

#[cfg(test)]
mod sample;
mod trace;
mod words;

pub use trace::trace;
pub use words::report;

use comity::tools::Flight;
use std::{fs::File, io::Read, path::Path};

/// No job has more groups and ranks than this that fail at once.
const MOST_FILES: usize = 100_000;

/// The first lines of the report on a job that has ended, for its launcher.
pub fn first_lines(dir: &Path, most: usize) -> Vec<String> {
    match read(dir) {
        Ok((flights, bad)) => {
            let text = if flights.is_empty() { String::new() } else { report(&flights) };
            bad.into_iter().chain(text.lines().map(String::from)).take(most).collect()
        }
        Err(why) => vec![why],
    }
}

/// Removes the records that an earlier job has left here.
pub fn clear(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)?.flatten() {
        if entry.file_name().to_str().is_some_and(|n| Flight::of_name(n).is_some()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// All records of a directory, by group and rank, and what is wrong with the files that hold none.
pub fn read(dir: &Path) -> Result<(Vec<Flight>, Vec<String>), String> {
    let bad = |e| format!("'{}': {e}", dir.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(bad)? {
        let name = entry.map_err(bad)?.file_name();
        if let Some(name) = name.to_str().filter(|n| Flight::of_name(n).is_some()) {
            names.push(name.to_owned());
        }
        if names.len() > MOST_FILES {
            return Err(format!("'{}' holds more than {MOST_FILES} flight records", dir.display()));
        }
    }
    let mut flights = Vec::new();
    let mut refused = Vec::new();
    names.sort();
    for name in names {
        match load(dir, &name) {
            Ok(flight) => flights.push(flight),
            Err(why) => refused.push(format!("'{}' {why}", dir.join(&name).display())),
        }
    }
    flights.sort_by_key(|f| (f.group, f.rank));
    Ok((flights, refused))
}

fn load(dir: &Path, name: &str) -> Result<Flight, String> {
    let path = dir.join(name);
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(&path).map_err(|e| format!("cannot be read: {e}"))?.is_file() {
        return Err("is not a file".into());
    }
    let file = File::open(path).map_err(|e| format!("cannot be read: {e}"))?;
    let mut bytes = Vec::new();
    file.take(Flight::MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    Flight::parse(name, &bytes)
}
