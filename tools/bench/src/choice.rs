//! The words after `cargo xtask bench`.

use super::contender::Peer;
use std::path::PathBuf;

/// Choice of a run, from the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchChoice {
    pub(crate) against: Vec<Peer>,
    /// Every operation, size, type and number of ranks; goes on where it was cut off.
    pub(crate) full: bool,
    /// all_reduce on 2, 4, 8, ... ranks, as many as there are cores.
    pub(crate) many: bool,
    /// Nothing is built or installed: the programs lie in this folder.
    pub(crate) built: Option<PathBuf>,
    /// Only say what would run.
    pub(crate) plan: bool,
    /// These parts alone; all where there are none.
    pub(crate) only: Vec<String>,
    pub(crate) rounds: Option<u32>,
    /// Write the results to where the documents have them.
    pub(crate) record: bool,
    /// Measure nothing: draw what this file holds.
    pub(crate) draw: Option<PathBuf>,
}

impl BenchChoice {
    /// Read the words strictly: a word that means nothing is an error, as is one said twice.
    ///
    /// # Errors
    /// The arguments make no sense; the text says why.
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut choice = Self {
            against: Peer::ALL.to_vec(),
            full: false,
            many: false,
            built: None,
            plan: false,
            only: Vec::new(),
            rounds: None,
            record: false,
            draw: None,
        };
        let mut seen = Vec::new();
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            if seen.contains(&arg) && arg != "--only" {
                return Err(format!("{arg} stands twice"));
            }
            seen.push(arg);
            let mut value =
                |what: &str| args.next().copied().ok_or_else(|| format!("{arg} needs {what} after it"));
            match arg {
                "--against" => choice.against = peers(value("names of libraries")?)?,
                "--full" => choice.full = true,
                "--many" => choice.many = true,
                "--built" => choice.built = Some(value("a folder with the programs")?.into()),
                "--plan" => choice.plan = true,
                "--record" => choice.record = true,
                "--only" => choice.only.push(value("the name of a part; --plan lists them")?.into()),
                "--rounds" => choice.rounds = Some(rounds(value("a number")?)?),
                "--draw" => choice.draw = Some(value("a file that this program wrote")?.into()),
                other => return Err(format!("bench does not know {other:?}")),
            }
        }
        if choice.many && (choice.full || choice.record) {
            return Err(
                "--many has parts of its own, so it takes neither --full nor --record beside it".into()
            );
        }
        if choice.draw.is_some() && seen.iter().any(|s| !matches!(*s, "--draw" | "--record")) {
            return Err("--draw measures nothing, so it takes --record beside it alone".into());
        }
        Ok(choice)
    }
}

fn peers(list: &str) -> Result<Vec<Peer>, String> {
    if list == "none" {
        return Ok(Vec::new());
    }
    let mut peers = Vec::new();
    for name in list.split(',') {
        let peer = Peer::from_name(name).ok_or_else(|| {
            let known = Peer::ALL.map(Peer::name).join(", ");
            format!("--against takes {known} with a comma between, or none; {name:?} is none of them")
        })?;
        if peers.contains(&peer) {
            return Err(format!("--against names {name} twice"));
        }
        peers.push(peer);
    }
    Ok(peers)
}

fn rounds(text: &str) -> Result<u32, String> {
    let ok = text.parse().ok().filter(|n| (1..=100).contains(n));
    ok.ok_or_else(|| format!("--rounds takes a whole number from 1 to 100, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_peers_are_asked_for_unless_some_are_named() {
        assert_eq!(BenchChoice::parse(&[]).unwrap().against, Peer::ALL);
        let named = BenchChoice::parse(&["--against", "mlx,gloo", "--full"]).unwrap();
        assert_eq!((named.against, named.full), (vec![Peer::Mlx, Peer::Gloo], true));
        assert_eq!(BenchChoice::parse(&["--against", "none"]).unwrap().against, []);
        let some = BenchChoice::parse(&["--only", "a", "--only", "b", "--rounds", "2"]).unwrap();
        assert_eq!((some.only, some.rounds), (vec!["a".into(), "b".into()], Some(2)));
        let there = BenchChoice::parse(&["--many", "--built", "x"]).unwrap();
        assert_eq!((there.many, there.built), (true, Some("x".into())));
    }

    #[test]
    fn what_means_nothing_is_an_error() {
        for (bad, why) in [
            (&["--against"][..], "needs names"),
            (&["--against", ""], "none of them"),
            (&["--against", "gloo,"], "none of them"),
            (&["--against", "none,gloo"], "none of them"),
            (&["--against", "gloo,gloo"], "twice"),
            (&["--against", "nccl"], "gloo, mlx, openmpi, mpich"),
            (&["--full", "--full"], "twice"),
            (&["--rounds", "0"], "from 1 to 100"),
            (&["--draw", "x", "--full"], "measures nothing"),
            (&["--many", "--full"], "parts of its own"),
            (&["--built"], "needs a folder"),
            (&["fast"], "does not know"),
        ] {
            let e = BenchChoice::parse(bad).unwrap_err();
            assert!(e.contains(why), "{bad:?}: {e}");
        }
    }
}
