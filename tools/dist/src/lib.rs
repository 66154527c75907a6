//! Makes what a release holds, and checks it: for each target a wheel, an archive of the command and one of libcomity.
//!
//! ```text
//!   kit ── wheel    maturin and zig build extension, command and libcomity; auditwheel, twine, abi3audit; installed where there is no Rust
//!       ── archive  program, pages for man, completions; libcomity, header, pkg-config, CMake; the book
//!       ── files    SHA256SUMS, install.sh, Homebrew's formula, conda's recipe
//! ```

mod archive;
mod artefact;
mod choice;
mod crates;
mod files;
mod kit;
mod sizes;
mod target;
mod wheel;
#[cfg(test)]
mod workflows;

pub use choice::DistChoice;

use artefact::{Artefact, Kind, Row, brief, table};
use choice::Work;
use kit::Kit;
use std::{
    fs,
    path::{Path, PathBuf},
};
use target::Target;
use tasks::place::{self, target as folder};

/// Table of what was made, beside it.
const TABLE: &str = "artefacts.md";

/// Make the release.
///
/// # Errors
/// A sentence for each artefact that could not be made, or fails a check.
pub fn run(choice: &DistChoice) -> Result<(), String> {
    match &choice.work {
        Work::Make => {}
        Work::Gather => return gather(choice),
        Work::Book => return archive::book(&folder_of(choice)?),
        Work::Crates => return crates::package(),
        Work::Oldest => return crates::compile_with_oldest(),
        Work::Sizes(file) => {
            print!("{}", sizes::of(file)?);
            return Ok(());
        }
    }
    let out = folder_of(choice)?;
    let kit = Kit::prepare()?;
    let mut rows = Vec::new();
    for target in &choice.targets {
        println!("\nbuilding for {}", target.triple);
        rows.extend(make(&kit, target, &out));
    }
    for why in rows.iter().filter_map(|row| row.outcome.as_ref().err()) {
        eprintln!("{why}\n");
    }
    let written = write_files(choice, &kit, &out)?;
    let own = Target::own()?;
    // The installer takes the archive of this machine's target.
    let ran = |row: &Row| {
        row.kind == Kind::Command && row.target == own.triple && row.outcome.as_ref().is_ok_and(|a| a.ran)
    };
    if rows.iter().any(ran) {
        files::try_out(&out, own)?;
    }
    let text = table(&rows);
    place::write(out.join(TABLE), &text)?;
    println!("\n{text}\nbeside them in {}: {written}", out.display());
    let failed: Vec<String> = rows.iter().filter_map(failure).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Folder for the files.
fn folder_of(choice: &DistChoice) -> Result<PathBuf, String> {
    let out = choice.out.clone().unwrap_or_else(|| folder().join("dist-out"));
    place::make(&out)?;
    fs::canonicalize(&out).map_err(|e| format!("{}: {e}", out.display()))
}

/// Write the small files, for files that were made on several machines.
fn gather(choice: &DistChoice) -> Result<(), String> {
    let out = folder_of(choice)?;
    println!("{}", write_files(choice, &Kit::prepare()?, &out)?);
    Ok(())
}

fn write_files(choice: &DistChoice, kit: &Kit, out: &Path) -> Result<String, String> {
    let url = choice.url.clone().unwrap_or_else(|| format!("file://{}", out.display()));
    let written = [vec![files::SUMS.to_owned()], files::write(out, &url)?].concat();
    files::check_texts(kit, out)?;
    Ok(written.join(", "))
}

fn failure(row: &Row) -> Option<String> {
    let why = row.outcome.as_ref().err()?;
    Some(format!("{} for {}: {}", row.kind, row.target, brief(why)))
}

/// All of a target. If one fails, the others are made all the same.
fn make(kit: &Kit, target: &'static Target, out: &Path) -> Vec<Row> {
    let wheel = kit::add(target).and_then(|()| wheel::build(kit, target, out));
    let built = wheel.as_ref().map(drop).map_err(|why| format!("its build failed: {why}"));
    let row = |kind, outcome: Result<Artefact, String>| Row { target: target.triple, kind, outcome };
    Kind::ALL
        .map(|kind| match kind {
            Kind::Wheel => row(kind, wheel.clone().and_then(|file| wheel::check(kit, target, file))),
            Kind::Command => row(kind, built.clone().and_then(|()| archive::command(target, out))),
            Kind::Library => row(kind, built.clone().and_then(|()| archive::library(kit, target, out))),
        })
        .into()
}
