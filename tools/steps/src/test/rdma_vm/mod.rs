//! RDMA over the real stack: rdma-core, the kernel's verbs and Soft-RoCE, in a guest.

mod cases;

use super::{Done, Outcome, processes, rdma, requirements, scope::Scope};
use guest::{Answer, Command, Guest};
use std::path::PathBuf;
use tasks::{child::Task, place::Scratch};

/// Cables, switches and their devices.
const NETWORK: &str = include_str!("network.sh");

/// Expected end of a case.
#[derive(Debug)]
enum Expected {
    /// Exit code 0, and these words in the output.
    Words(&'static [&'static str]),
    /// Output of `conform.c` on any provider.
    Conformance,
}

/// Some shell after `NETWORK`, in a guest without cables.
#[derive(Debug)]
struct Case {
    name: String,
    script: String,
    limit: u64,
    expected: Expected,
}

/// Number of hands, of which a gate's run takes one, and always the first case, without which the rest says nothing.
const HANDS: u64 = 3;

pub(super) fn run(scope: &Scope) -> Outcome {
    match requirements::programs(&guest::NEEDED)? {
        Done::Passed(_) => {}
        not_run @ Done::NotRun(_) => return Ok(not_run),
    }
    let only = std::env::var("RDMA_VM_ONLY").unwrap_or_default();
    let mut cases = cases::all();
    // It waits more than it works: two minutes.
    if scope.deep || !only.is_empty() {
        cases.push(cases::far());
    }
    if only.is_empty() {
        let rest = cases.split_off(1);
        cases.extend(scope.share(rest, HANDS));
    } else {
        cases.retain(|c| c.name.contains(&only));
    }
    if cases.is_empty() {
        return Err(format!("no case has {only:?} in its name"));
    }
    let command = |c: &Case| Command { script: format!("{NETWORK}\nclear\n{}", c.script), limit: c.limit };
    let commands: Vec<Command> = cases.iter().map(command).collect();
    let scratch = Scratch::new("rdma-vm").map_err(|e| format!("cannot make a folder: {e}"))?;
    let guest = Guest { files: vec![rdma::conform(&scratch)?, comity(&scratch)?], counts: false };
    let answers = guest.run(&commands)?;
    for (case, answer) in cases.iter().zip(&answers) {
        verdict(case, answer)?;
        println!("{}: as expected, {:.1} s", case.name, answer.seconds);
    }
    let far = if scope.deep { ", one of them over TCP with 50 ms and loss" } else { "" };
    Ok(Done::Passed(format!("{} cases in a guest with Soft-RoCE{far}", cases.len())))
}

/// The program without what only debuggers read: the guest has it in memory.
fn comity(scratch: &Scratch) -> Result<PathBuf, String> {
    let built = processes::comity()?;
    let small = scratch.join("comity");
    Task::new("strip").args(["--strip-debug", "-o"]).args([&small, &built]).run()?;
    Ok(small)
}

fn verdict(case: &Case, answer: &Answer) -> Result<(), String> {
    let Answer { code, output, .. } = answer;
    let wrong = |what: String| Err(format!("{}: {what}; it said:\n{output}", case.name));
    match case.expected {
        _ if *code != 0 => wrong(format!("exit code {code}")),
        Expected::Conformance => rdma::conforms(output).map_err(|e| format!("{}: {e}", case.name)),
        Expected::Words(words) => match words.iter().find(|w| !output.contains(**w)) {
            Some(word) => wrong(format!("{word:?} is missing")),
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_need_the_code_and_the_words() {
        let case = |expected| Case { name: "x".into(), script: String::new(), limit: 1, expected };
        let answer = |code, output: &str| Answer { code, output: output.into(), seconds: 1.0 };
        let words = case(Expected::Words(&["a", "b"]));
        assert!(verdict(&words, &answer(0, "b a")).is_ok());
        assert!(verdict(&words, &answer(0, "a")).unwrap_err().contains("\"b\" is missing"));
        assert!(verdict(&words, &answer(1, "a b")).unwrap_err().contains("exit code 1"));
    }
}
