//! The book as a site, packed: pages that a browser reads from a server or from files.

use crate::{
    command::{VERSION, pack},
    kit::environment,
};
use std::{fs, path::Path};
use tasks::{
    child::Task,
    place::{Scratch, built},
};

const REQUIREMENTS: &str = "docs/requirements.txt";

/// Build it, where a broken link or heading is an error, and pack it.
pub(crate) fn archive(out: &Path) -> Result<(), String> {
    // The folder in which the tests build it too.
    let venv = built("book", "python");
    environment(&venv, &built("book", "installed.txt"), REQUIREMENTS)?;
    Task::new(venv.join("bin/properdocs")).args(["build", "--strict", "--quiet"]).run()?;
    let name = format!("comity-{VERSION}-book");
    let scratch = Scratch::within(out, "book")?;
    let site = built("book", "site");
    if !site.join("search/search_index.json").is_file() {
        return Err(format!("{} has no index for the search", site.display()));
    }
    fs::rename(&site, scratch.join(&name)).map_err(|e| format!("cannot move {}: {e}", site.display()))?;
    let file = pack(&scratch.join(""), &name, out)?;
    println!("{}", file.display());
    Ok(())
}
