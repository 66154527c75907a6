//! The words after `cargo xtask dist`.

use crate::target::{TARGETS, Target};
use std::path::PathBuf;

/// Choice of a release, from the command line.
#[derive(Debug)]
pub struct DistChoice {
    pub(crate) targets: Vec<&'static Target>,
    /// Folder for the files.
    pub(crate) out: Option<PathBuf>,
    /// Address at which users will find them; else they are where they lie.
    pub(crate) url: Option<String>,
    pub(crate) work: Work,
}

/// Work that is asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum Work {
    /// Make and check the files of the targets.
    Make,
    /// Make nothing: write checksums, installer and recipes for the files that lie in the folder.
    Gather,
    /// Pack the book as a site.
    Book,
    /// Package the crates that are published.
    Crates,
    /// Compile the crates that are published with the oldest compiler that they promise.
    Oldest,
    /// Count the bytes of this program or library.
    Sizes(PathBuf),
}

impl DistChoice {
    /// Read the words strictly: a word that means nothing is an error.
    ///
    /// # Errors
    /// The arguments make no sense; the text says why.
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut choice = Self { targets: Vec::new(), out: None, url: None, work: Work::Make };
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            let mut value =
                |noun: &str| args.next().copied().ok_or_else(|| format!("{arg} needs {noun} after it"));
            match arg {
                "--all" => choice.targets = TARGETS.iter().collect(),
                "--target" => choice.targets.push(Target::named(value("a target")?)?),
                "--out" => choice.out = Some(value("a folder")?.into()),
                "--url" => choice.url = Some(value("an address")?.into()),
                "--gather" => choice.work = Work::Gather,
                "--book" => choice.work = Work::Book,
                "--crates" => choice.work = Work::Crates,
                "--msrv" => choice.work = Work::Oldest,
                "--sizes" => choice.work = Work::Sizes(value("a program")?.into()),
                other => return Err(format!("dist does not know {other:?}")),
            }
        }
        if choice.targets.is_empty() {
            choice.targets.push(Target::own()?);
        }
        // The archives of other targets take their pages for `man` from that of this machine's.
        choice.targets.sort_by_key(|target| !target.runs_here());
        Ok(choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_strictly() {
        let all = DistChoice::parse(&["--all", "--url", "https://host/v"]).unwrap();
        assert_eq!((all.targets.len(), all.url.as_deref()), (TARGETS.len(), Some("https://host/v")));
        assert!(all.targets[0].runs_here());
        assert_eq!(DistChoice::parse(&[]).unwrap().targets, [Target::own().unwrap()]);
        assert_eq!(DistChoice::parse(&["--sizes", "x"]).unwrap().work, Work::Sizes("x".into()));
        assert_eq!(DistChoice::parse(&["--out"]).unwrap_err(), "--out needs a folder after it");
        assert!(DistChoice::parse(&["--al"]).unwrap_err().contains("--al"));
    }
}
