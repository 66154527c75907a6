//! The same training on 1, 2 and 4 ranks, and how far the results are apart.

use crate::{
    child::Task,
    place::{Scratch, built, root},
};
use std::path::Path;

const PACKAGES: [&str; 2] = ["comity-cli", "demo"];
/// The profile of cargo, with which `pip install .` compiles too.
const QUICK: &str = "quick";
const RANKS: [usize; 3] = [1, 2, 4];
/// The weights may differ from those of one rank by rounding only.
const LARGEST_DIFFERENCE: f64 = 1e-5;
const LEAST_ACCURACY: f64 = 0.95;

/// Build of the demo.
#[derive(Clone, Copy, Debug)]
pub enum Profile {
    /// Build as the tests need it, which have built it already.
    Tests,
    /// A build for a newcomer, within minutes.
    Demo,
}

/// Build, train, compare; the result in a few words.
///
/// # Errors
/// It cannot be built, a run failed, or the results are apart.
pub fn run(profile: Profile) -> Result<String, String> {
    println!("building the command and the program ...");
    let folder = match profile {
        Profile::Tests => crate::build_tests().map(|()| "debug")?,
        Profile::Demo => {
            let parts = PACKAGES.iter().flat_map(|package| ["-p", package]);
            let programs = ["comity", "demo-digits", "demo-hello"].iter().flat_map(|bin| ["--bin", bin]);
            let build = Task::cargo().args(["build", "--profile", QUICK]).args(parts).args(programs);
            build.limit(3600).echo().run()?;
            QUICK
        }
    };

    let comity = built(folder, "comity");
    let digits = built(folder, "demo-digits");
    let scratch = Scratch::new("demo")?;
    let weights = scratch.join("one-rank.weights");
    let mut rows = Vec::new();
    for n in RANKS {
        println!("\ntraining on {n} rank{}:", if n == 1 { "" } else { "s" });
        let task = Task::new(&comity).args(["launch", "-n", &n.to_string(), "--timeout", "300", "--"]);
        let keep = if n == 1 { "--weights" } else { "--compare" };
        let out =
            task.args([digits.as_os_str(), keep.as_ref(), weights.as_os_str()]).limit(330).echo().run()?;
        rows.push((
            n,
            Outcome::find(&out).ok_or_else(|| format!("the run on {n} ranks ended without a result"))?,
        ));
    }

    println!("\nranks  accuracy  samples/s  largest difference of the weights from one rank's");
    for (n, o) in &rows {
        let far = o.difference.map_or_else(|| "-".into(), |d| format!("{d:.1e}"));
        println!("{n:5}  {:8.4}  {:9.0}  {far}", o.accuracy, o.samples_per_s);
    }
    println!("\nto run it yourself:\n  {}", typed(&comity, &digits));
    judge(&rows)
}

fn typed(comity: &Path, digits: &Path) -> String {
    let here = |p: &Path| p.strip_prefix(root()).unwrap_or(p).display().to_string();
    format!("{} launch -n 4 -- {}", here(comity), here(digits))
}

fn judge(rows: &[(usize, Outcome)]) -> Result<String, String> {
    let mut largest = 0f64;
    for (n, o) in rows {
        if o.accuracy < LEAST_ACCURACY {
            return Err(format!("{n} ranks reached an accuracy of {}, below {LEAST_ACCURACY}", o.accuracy));
        }
        match o.difference {
            Some(d) if d < LARGEST_DIFFERENCE => largest = largest.max(d),
            None if *n == 1 => {}
            d => {
                let d = d.map_or_else(|| "an unknown distance".into(), |d| format!("{d:e}"));
                return Err(format!(
                    "the weights of {n} ranks are {d} from those of one rank; allowed is less than {LARGEST_DIFFERENCE:e}"
                ));
            }
        }
    }
    Ok(format!("weights within {largest:.1e} of one rank's"))
}

/// Numbers of the last line that the program prints.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    accuracy: f64,
    samples_per_s: f64,
    difference: Option<f64>,
}

impl Outcome {
    /// Look for `accuracy A, S samples/s` and perhaps `, differs from FILE by D`, after a rank's tag or not.
    fn find(output: &str) -> Option<Self> {
        output.lines().rev().find_map(|line| {
            let (_, rest) = line.split_once("accuracy ")?;
            let (accuracy, rest) = rest.split_once(", ")?;
            let (samples_per_s, rest) = rest.split_once(" samples/s")?;
            let difference = rest.rsplit_once(" by ").map(|(_, d)| d.trim().parse());
            Some(Self {
                accuracy: accuracy.parse().ok()?,
                samples_per_s: samples_per_s.parse().ok()?,
                difference: difference.transpose().ok()?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_last_line_is_understood() {
        let out = "[0] epoch   1  loss 2.0  accuracy 0.5000  900 samples/s\n[0] accuracy 0.9750, 31000 samples/s, differs from /a by b/c by 4.1e-7\n";
        let o = Outcome::find(out).unwrap();
        assert_eq!(o, Outcome { accuracy: 0.975, samples_per_s: 31000.0, difference: Some(4.1e-7) });
        assert_eq!(Outcome::find("accuracy 0.9750, 31000 samples/s").unwrap().difference, None);
        assert_eq!(Outcome::find("epoch   1  loss 2.0  accuracy 0.5000  900 samples/s"), None);
    }

    /// A newcomer waits for what the demo compiles: no framework, and no more crates than now.
    #[test]
    fn the_demo_compiles_little() {
        let tree = ["tree", "--offline", "--prefix", "none", "--edges", "normal,build"];
        let out =
            Task::cargo().args(tree).args(["-p", "comity-cli", "-p", "demo", "-p", "xtask"]).run().unwrap();
        let names: BTreeSet<&str> = out.lines().filter_map(|l| l.split(' ').next()).collect();
        assert!(names.contains("comity") && names.contains("demo"), "{names:?}");
        assert!(!names.contains("candle-core") && names.len() <= 170, "{}: {names:?}", names.len());
        let own = Task::cargo().args(tree).args(["-p", "xtask"]).run().unwrap();
        assert!(own.lines().count() < 20, "{own}");
    }

    /// Whoever has typed `pip install .` has compiled the demo but for its programs, and the other way round.
    #[test]
    fn the_demo_compiles_what_python_has_compiled() {
        let units = |packages: &[&str]| -> BTreeSet<String> {
            let tree = ["tree", "--offline", "--prefix", "none", "--edges", "normal,build"];
            let task = Task::cargo().args(tree).args(["--format", "{p} {f}"]);
            let out = task.args(packages.iter().flat_map(|package| ["-p", package])).run().unwrap();
            let lines = out.lines().map(|l| l.trim_end_matches(" (*)").trim());
            // Cargo may also say that it waits for another one.
            let units = lines.filter(|l| l.contains(" v") && !l.starts_with("demo "));
            units.map(str::to_owned).collect()
        };
        let python = units(&["comity-py"]);
        let more: Vec<_> = units(&PACKAGES).into_iter().filter(|unit| !python.contains(unit)).collect();
        assert!(more.is_empty() && python.len() > 100, "other features, so compiled once more: {more:?}");
        let settings = std::fs::read_to_string(root().join("pyproject.toml")).unwrap();
        assert!(settings.contains(&format!("\nprofile = \"{QUICK}\"\n")), "{settings}");
    }

    #[test]
    fn far_or_bad_weights_fail() {
        let row = |n, accuracy, difference| (n, Outcome { accuracy, samples_per_s: 1.0, difference });
        assert!(judge(&[row(1, 0.97, None), row(2, 0.97, Some(3e-7))]).is_ok());
        assert!(judge(&[row(2, 0.97, Some(1e-5))]).unwrap_err().contains("2 ranks are 1e-5"));
        assert!(judge(&[row(2, 0.97, Some(f64::INFINITY))]).is_err());
        assert!(judge(&[row(4, 0.97, None)]).is_err());
        assert!(judge(&[row(1, 0.9, None)]).unwrap_err().contains("accuracy of 0.9"));
    }
}
