//! C that a dependency brings (AWS-LC, for AES-GCM) takes longer to compile than all of Comity, and is the same in every build.
//! So builds with flags of their own, for sanitizers, fuzzing and loom, link the objects of the ordinary build.
//!
//! Cargo has a way for that: a table of its configuration stands in for the build script of a crate that `links` something.
//! (<https://doc.rust-lang.org/cargo/reference/build-scripts.html#overriding-build-scripts>)

use std::fs;
use tasks::{
    child::Task,
    place::{built, read, target, write},
};

/// The crate, whose name with its version is also what it links.
const CRATE: &str = "aws-lc-sys";

/// The machine that the compilers make programs for when nothing else is said.
pub(super) fn host() -> Result<String, String> {
    let text = Task::new("rustc").args(["-vV"]).run()?;
    let host = text.lines().find_map(|l| l.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("rustc -vV names no host:\n{text}"))
}

/// A configuration of cargo for builds that link what the ordinary build has compiled of C; that build is made if there is none.
pub(super) fn config() -> Result<String, String> {
    let said = said().map_or_else(
        || {
            tasks::build_tests()?;
            said().ok_or_else(|| format!("{CRATE} has compiled nothing"))
        },
        Ok,
    )?;
    let version = version().ok_or_else(|| format!("Cargo.lock has no {CRATE}"))?;
    let links = format!("{}_{}", CRATE.trim_end_matches("-sys"), version).replace(['-', '.'], "_");
    let text = table(&host()?, &links, &said);
    let file = target().join("native.toml");
    // Not written anew for nothing: another cargo may be reading it.
    if fs::read_to_string(&file).ok().as_ref() != Some(&text) {
        write(&file, text)?;
    }
    Ok(file.display().to_string())
}

/// Last output of the build script of the ordinary build.
fn said() -> Option<String> {
    let entries = fs::read_dir(built("debug", "build")).ok()?.flatten();
    let ours = entries.filter(|e| e.file_name().to_string_lossy().starts_with(&format!("{CRATE}-")));
    let outputs = ours.map(|e| e.path().join("output"));
    let newest = outputs.filter_map(|p| Some((fs::metadata(&p).ok()?.modified().ok()?, p))).max()?;
    fs::read_to_string(newest.1).ok().filter(|said| said.contains("cargo:rustc-link-lib="))
}

fn version() -> Option<String> {
    let lock = read("Cargo.lock").ok()?;
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
