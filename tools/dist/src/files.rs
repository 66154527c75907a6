//! Small files of a release: checksums, the installer, and the recipes of package managers.

use crate::{archive::VERSION, kit::Kit, target::Target};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tasks::{
    child::Task,
    place::{self, Scratch, program},
};

/// File with the checksums of all others.
pub(crate) const SUMS: &str = "SHA256SUMS";
/// Name of a file, and its text with places for version, address and checksums.
const TEMPLATES: [(&str, &str); 3] = [
    ("install.sh", include_str!("../templates/install.sh")),
    ("comity.rb", include_str!("../templates/comity.rb")),
    ("recipe.yaml", include_str!("../templates/recipe.yaml")),
];

/// Write them for the archives in this folder, which users will find at this address.
pub(crate) fn write(out: &Path, url: &str) -> Result<Vec<String>, String> {
    if url.contains(['\'', '"', '\n', ' ']) || !url.contains("://") {
        return Err(format!("{url:?} is no address: write it as https://HOST/FOLDER"));
    }
    let sums = sums(out)?;
    let mut written = Vec::new();
    for (name, template) in TEMPLATES {
        let file = out.join(name);
        match fill(template, url.trim_end_matches('/'), &sums) {
            Ok(text) => {
                place::write(&file, text)?;
                written.push(name.into());
            }
            // A file of an earlier run would have checksums of other archives.
            Err(lacking) => {
                let _ = fs::remove_file(&file);
                println!("{name} is not written: there is no {lacking}");
            }
        }
    }
    Ok(written)
}

/// Read the recipes as their package managers do: conda's on each platform, and Homebrew's where there is ruby. And the workflows that make
/// releases: for holes, and for actions that are not pinned.
pub(crate) fn check_texts(kit: &Kit, out: &Path) -> Result<(), String> {
    kit.program("zizmor").args(["--offline", "--no-progress", ".github/workflows"]).run()?;
    let recipe = out.join("recipe.yaml");
    let formula = out.join("comity.rb");
    if recipe.is_file() {
        print!("{}", kit.python().args(["tools/dist/recipe.py"]).args([&recipe]).run()?);
    }
    match program("ruby") {
        Some(ruby) if formula.is_file() => Task::new(ruby).args(["-c"]).args([&formula]).run().map(drop),
        _ => Ok(()),
    }
}

/// Checksum and name of each file of the release in the folder; also written beside them.
fn sums(out: &Path) -> Result<Vec<(String, String)>, String> {
    let entries = fs::read_dir(out).map_err(|e| format!("cannot read {}: {e}", out.display()))?;
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let all = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_file());
    let mut names: Vec<String> = all.map(|p| name(&p)).filter(|n| is_released(n)).collect();
    names.sort();
    let task = match program("sha256sum") {
        Some(program) => Task::new(program),
        None => Task::new("shasum").args(["-a", "256"]),
    };
    let text = task.folder(out).args(&names).run()?;
    place::write(out.join(SUMS), &text)?;
    Ok(text.lines().filter_map(|l| l.split_once("  ")).map(|(s, n)| (s.into(), n.into())).collect())
}

/// Returns whether a file is of this version, and not of an earlier one that lies in the same folder.
fn is_released(name: &str) -> bool {
    let ends = Path::new(name).extension().is_some_and(|e| e == "gz" || e == "whl");
    ends && name.contains(&format!("-{VERSION}-"))
}

/// Text with its places filled, or the archive that is lacking.
fn fill(template: &str, url: &str, sums: &[(String, String)]) -> Result<String, String> {
    // A forge has a page for the repository, and none for the folder of a release's files.
    let home = url.split("/releases/").next().unwrap_or(url);
    let mut text = template.replace("@VERSION@", VERSION).replace("@URL@", url).replace("@HOME@", home);
    while let Some((before, rest)) = text.split_once("@SHA256:") {
        let (triple, after) = rest.split_once('@').ok_or("a place without an end")?;
        let archive = format!("comity-{VERSION}-{triple}.tar.gz");
        let (sum, _) = sums.iter().find(|(_, name)| *name == archive).ok_or(archive)?;
        text = format!("{before}{sum}{after}");
    }
    Ok(text)
}

/// Install from the folder as a user does, into a folder that goes away.
pub(crate) fn try_out(out: &Path, target: &Target) -> Result<(), String> {
    let scratch = Scratch::new("installed")?;
    let from = format!("file://{}", out.display());
    let installer = Task::new("sh").args([out.join("install.sh")]).args(["--from", &from, "--prefix"]);
    let said = installer.args([scratch.join("")]).run()?;
    if !said.contains(VERSION) {
        return Err(format!("install.sh for {} says {said:?}", target.triple));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive;

    /// A folder with an archive for this machine, whose command is a script that ends with this code.
    fn released(scratch: &Scratch, code: u8) -> PathBuf {
        let name = format!("comity-{VERSION}-{}", Target::own().unwrap().triple);
        let program = scratch.join(&name).join("bin/comity");
        archive::write(&program, &format!("#!/bin/sh\necho comity {VERSION}\nexit {code}\n")).unwrap();
        Task::new("chmod").args(["755"]).args([&program]).run().unwrap();
        archive::write(&scratch.join(&name).join("share/man/man1/comity.1"), "a page").unwrap();
        let out = scratch.join("out");
        fs::create_dir(&out).unwrap();
        archive::pack(&scratch.join(""), &name, &out).unwrap();
        assert_eq!(write(&out, &format!("file://{}", out.display())).unwrap(), ["install.sh"]);
        out
    }

    fn install(out: &Path, prefix: &Path) -> Result<String, String> {
        Task::new("sh").args([out.join("install.sh")]).args(["--prefix"]).args([prefix]).run()
    }

    #[test]
    fn the_installer_takes_what_has_the_right_checksum_and_nothing_else() {
        let scratch = Scratch::new("install").unwrap();
        let out = released(&scratch, 0);
        let prefix = scratch.join("prefix");
        let said = install(&out, &prefix).unwrap();
        assert!(said.starts_with(&format!("comity {VERSION}\n")) && said.contains("PATH"), "{said}");
        assert!(prefix.join("share/man/man1/comity.1").is_file());

        let sums = out.join(SUMS);
        let other = scratch.join("other");
        let text = fs::read_to_string(&sums).unwrap();
        let wrong = if text.starts_with('0') { "1" } else { "0" };
        fs::write(&sums, format!("{wrong}{}", &text[1..])).unwrap();
        let e = install(&out, &other).unwrap_err();
        assert!(e.contains("checksum") && e.contains("nothing was installed"), "{e}");
        // A right checksum of another file is none.
        fs::write(&sums, text.replace("comity-", "other-")).unwrap();
        assert!(install(&out, &other).unwrap_err().contains("SHA256SUMS has no comity-"));
        fs::remove_file(&sums).unwrap();
        assert!(install(&out, &other).unwrap_err().contains("cannot download"));
        assert!(!other.exists());
    }

    #[test]
    fn a_command_that_cannot_be_written_or_run_takes_no_place() {
        let scratch = Scratch::new("install-broken").unwrap();
        let old = scratch.join("prefix/bin/comity");
        archive::write(&old, "old").unwrap();
        let e = install(&released(&scratch, 3), &scratch.join("prefix")).unwrap_err();
        assert!(e.contains("was not installed") && e.contains("does not run on this machine"), "{e}");
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        assert_eq!(fs::read_dir(scratch.join("prefix/bin")).unwrap().count(), 1);
        // A file is no folder to install into.
        let e = install(&scratch.join("out"), &old).unwrap_err();
        assert!(e.contains("cannot write to") && e.contains("--prefix"), "{e}");
    }

    #[test]
    fn recipes_have_the_checksum_of_each_archive() {
        let triples = crate::target::TARGETS.iter().map(|t| t.triple);
        let sum = |triple: &str| (format!("sum-of-{triple}"), format!("comity-{VERSION}-{triple}.tar.gz"));
        let mut sums: Vec<_> = triples.map(sum).collect();
        for (name, template) in TEMPLATES {
            let text = fill(template, "https://host/c/releases/download/v", &sums).unwrap();
            assert!(!["@URL", "@HOME", "@SHA", "@VER"].iter().any(|place| text.contains(place)), "{name}");
            let home =
                text.lines().find_map(|l| l.trim().strip_prefix("homepage")).unwrap_or("https://host/c");
            assert_eq!(home.trim_matches([':', ' ', '"']), "https://host/c", "{name}");
            assert!(name == "install.sh" || text.contains("sum-of-aarch64-apple-darwin"), "{name}");
        }
        sums.pop();
        let lacking = fill(TEMPLATES[1].1, "https://host/v", &sums);
        assert_eq!(lacking, Err(format!("comity-{VERSION}-aarch64-apple-darwin.tar.gz")));
    }
}
