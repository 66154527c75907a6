//! Dependencies of the workspace, and changes of its public API: `cargo-deny` and `cargo-semver-checks`.
//!
//! Licences, bans and sources need no network. Advisories need their database, which is fetched from GitHub.

use super::{Done, Outcome, cargo, missing, requirements::cargo_tool, scope::Scope};
use tasks::child::Task;

const DENY: &str = "https://github.com/EmbarkStudios/cargo-deny/releases/download/0.20.2/cargo-deny-0.20.2-x86_64-unknown-linux-musl.tar.gz";
const SEMVER: &str = "https://github.com/obi1kenobi/cargo-semver-checks/releases/latest/download/cargo-semver-checks-x86_64-unknown-linux-gnu.tar.gz";
/// Libraries that a program may depend on, and the one whose public items the first re-exports.
const PUBLIC: [&str; 11] = [
    "comity",
    "comity-base",
    "comity-channel",
    "comity-transport",
    "comity-settings",
    "comity-rendezvous",
    "comity-job",
    "comity-kernel",
    "comity-plan",
    "comity-membership",
    "comity-candle",
];

/// Licences, bans and sources.
pub(super) fn licences(_: &Scope) -> Outcome {
    let deny = match cargo_tool("deny", DENY) {
        Ok(version) => version,
        Err(why) => return missing(why),
    };
    // The fuzz targets are a workspace of their own.
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let deny = Task::cargo().args(["deny", "--manifest-path", manifest, "--config", "deny.toml"]);
        deny.args(["check", "licenses", "bans", "sources"]).limit(300).echo().run()?;
    }
    Ok(Done::Passed(format!("licences, bans and sources, by {deny}")))
}

/// Known faults of dependencies.
pub(super) fn advisories(_: &Scope) -> Outcome {
    let deny = match cargo_tool("deny", DENY) {
        Ok(version) => version,
        Err(why) => return missing(why),
    };
    // Not shown while it comes: what is shown is not in the error, and the words say whether there was a database.
    match Task::cargo().args(["deny", "check", "advisories"]).limit(300).run() {
        Ok(said) => {
            println!("{said}");
            Ok(Done::Passed(format!("none, by {deny}")))
        }
        Err(why) if no_database(&why) => {
            println!("{why}");
            missing(
                "known faults and yanked versions were NOT checked: the database (github.com/rustsec/advisory-db) cannot be fetched"
                    .into(),
            )
        }
        Err(why) => Err(why),
    }
}

fn no_database(why: &str) -> bool {
    why.contains("failed to fetch advisory database")
}

/// Changes of the public API since the last release. Before the first one: since what the origin has, and without a verdict.
pub(super) fn semver(_: &Scope) -> Outcome {
    let tool = match cargo_tool("semver-checks", SEMVER) {
        Ok(version) => version,
        Err(why) => return missing(why),
    };
    let git = |args: &[&str]| Task::new("git").args(args).run().map(|out| out.trim().to_owned());
    let release = git(&["describe", "--tags", "--abbrev=0", "--match", "v*"]).ok();
    let baseline = match &release {
        Some(tag) => tag.clone(),
        None => git(&["merge-base", "HEAD", "origin/main"])
            .map_err(|e| format!("there is neither a release nor origin/main to compare with: {e}"))?,
    };
    let check =
        Task::cargo().args(["semver-checks", "--baseline-rev", &baseline]).args(cargo::named(&PUBLIC));
    // Not shown while it comes: what is shown is not in the error, of which the verdict is made.
    match (check.limit(3600).run(), release) {
        (Ok(said), _) => {
            println!("{said}");
            Ok(Done::Passed(format!("nothing breaks users of {baseline}, by {tool}")))
        }
        (Err(why), Some(_)) => Err(why),
        (Err(why), None) => {
            let broken = why.lines().filter(|l| l.starts_with("--- failure")).count();
            if broken == 0 {
                return Err(why);
            }
            println!("{why}");
            Ok(Done::Passed(format!(
                "{broken} kinds of breaking change since {baseline}; nothing is released"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_database_that_cannot_be_fetched_is_told_from_advisories() {
        let offline = "2026-11-24 03:29:15 [ERROR] failed to fetch advisory database https://github.com/RustSec/advisory-db with cli: failed to clone: ...";
        assert!(super::no_database(offline));
        assert!(!super::no_database("error[vulnerability]: a fault\nadvisories FAILED"));
    }
}
