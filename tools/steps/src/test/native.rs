//! C that a dependency brings (AWS-LC, for AES-GCM) takes longer to compile than all of Comity, and is the same in every build.
//! So builds with flags of their own, for sanitizers, fuzzing and loom, link the objects of the ordinary build.
//!
//! Cargo has a way for that: a table of its configuration stands in for the build script of a crate that `links` something.
//! (<https://doc.rust-lang.org/cargo/reference/build-scripts.html#overriding-build-scripts>)

use super::nightly;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tasks::{
    child::Task,
    place::{built, target},
};

/// The crate, whose name with its version is also what it links.
const CRATE: &str = "aws-lc-sys";

/// A command of cargo that compiles for this machine, with what the ordinary build has compiled of C; that build is made if there
/// is none.
pub(super) fn shared(cargo: Task) -> Result<Task, String> {
    // A subcommand comes first, and `--config` may stand anywhere.
    Ok(cargo.args(["--config"]).args([config()?]))
}

/// The same for the nightly compiler's cargo, whose first word has to be `+nightly`.
pub(super) fn shared_args() -> Result<[String; 2], String> {
    Ok(["--config".into(), config()?.display().to_string()])
}

fn config() -> Result<PathBuf, String> {
    let said = match said(&built("debug", "build")) {
        Some(said) => said,
        None => {
            tasks::build_tests()?;
            said(&built("debug", "build")).ok_or_else(|| format!("{CRATE} has compiled nothing"))?
        }
    };
    let version = version().ok_or_else(|| format!("Cargo.lock has no {CRATE}"))?;
    let links = format!("{}_{}", CRATE.trim_end_matches("-sys"), version).replace(['-', '.'], "_");
    let text = table(&nightly::host()?, &links, &said);
    let file = target().join("native.toml");
    // Not written anew for nothing: another cargo may be reading it.
    if fs::read_to_string(&file).ok().as_ref() != Some(&text) {
        fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    }
    Ok(file)
}

/// Last output of the build script of the ordinary build.
fn said(folder: &Path) -> Option<String> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let ours = entries.filter(|e| e.file_name().to_string_lossy().starts_with(&format!("{CRATE}-")));
    let mut found: Vec<_> = ours.map(|e| e.path().join("output")).filter(|p| p.is_file()).collect();
    found.sort_by_key(|p| fs::metadata(p).and_then(|m| m.modified()).ok());
    let said = fs::read_to_string(found.pop()?).ok()?;
    said.contains("cargo:rustc-link-lib=").then_some(said)
}

fn version() -> Option<String> {
    let lock = fs::read_to_string(tasks::place::root().join("Cargo.lock")).ok()?;
    let (_, rest) = lock.split_once(&format!("name = \"{CRATE}\"\nversion = \""))?;
    Some(rest.split_once('"')?.0.into())
}

/// The lines that a build script told cargo, as a table that stands in for it.
fn table(host: &str, links: &str, said: &str) -> String {
    let mut text = format!("[target.{host}.{links}]\n");
    for what in ["rustc-link-search", "rustc-link-lib", "rustc-cfg"] {
        let start = format!("cargo:{what}=");
        let values: Vec<String> = said.lines().filter_map(|l| l.strip_prefix(&start)).map(quoted).collect();
        if !values.is_empty() {
            text += &format!("{what} = [{}]\n", values.join(", "));
        }
    }
    for line in said.lines().filter_map(|l| l.strip_prefix("cargo:")) {
        let Some((key, value)) = line.split_once('=') else { continue };
        if key.starts_with("rustc-") || key.starts_with("rerun-if-") || key == "warning" || value.is_empty() {
            continue;
        }
        text += &format!("{key} = {}\n", quoted(value));
    }
    text
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_said_becomes_a_table() {
        let said = "noise\ncargo:rerun-if-changed=x\ncargo:warning=w\ncargo:rustc-cfg=universal\ncargo:root=/a \"b\"\n\
            cargo:rustc-link-search=native=/o\ncargo:rustc-link-lib=static=z_crypto\ncargo:system_libs=\n";
        assert_eq!(
            table("h", "z_1", said),
            "[target.h.z_1]\nrustc-link-search = [\"native=/o\"]\nrustc-link-lib = [\"static=z_crypto\"]\nrustc-cfg = [\"universal\"]\n\
             root = \"/a \\\"b\\\"\"\n"
        );
    }

    #[test]
    fn the_crate_is_locked() {
        assert!(version().is_some_and(|v| v.split('.').count() == 3));
    }
}
