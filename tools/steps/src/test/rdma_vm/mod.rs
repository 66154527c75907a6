//! RDMA over the real stack: rdma-core, the kernel's verbs and Soft-RoCE, in a guest.

mod cases;

use super::{
    jobs::{self, has},
    scope::Scope,
    step::Outcome,
};
use guest::{Answer, Command, Guest};
use std::path::PathBuf;
use tasks::{
    child::Task,
    place::{Scratch, root},
};

/// Cables, switches and their devices.
const NETWORK: &str = include_str!("network.sh");

/// Some shell after `NETWORK`, in a guest without cables.
#[derive(Debug)]
struct Case {
    name: String,
    script: String,
    limit: u64,
    /// Words of a case that ends with exit code 0; none where it is `conform.c`.
    words: &'static [&'static str],
}

/// Number of hands, of which a gate's run takes one, and always the first case, without which the rest says nothing.
const HANDS: u64 = 3;

pub(super) fn run(scope: &Scope) -> Outcome {
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
        return Err(format!("no case has {only:?} in its name").into());
    }
    let command = |c: &Case| Command { script: format!("{NETWORK}\nclear\n{}", c.script), limit: c.limit };
    let commands: Vec<Command> = cases.iter().map(command).collect();
    let scratch = Scratch::new("rdma-vm")?;
    let guest = Guest { files: vec![conform(&scratch)?, comity(&scratch)?], counts: false };
    let answers = guest.run(&commands)?;
    for (case, answer) in cases.iter().zip(&answers) {
        verdict(case, answer).map_err(|e| format!("{}: {e}", case.name))?;
        println!("{}: as expected, {:.1} s", case.name, answer.seconds);
    }
    let far = if scope.deep { ", one of them over TCP with 50 ms and loss" } else { "" };
    Ok(format!("{} cases in a guest with Soft-RoCE{far}", cases.len()))
}

/// The program without what only debuggers read: the guest has it in memory.
fn comity(scratch: &Scratch) -> Result<PathBuf, String> {
    let small = scratch.join("comity");
    Task::new("strip").args(["--strip-debug", "-o"]).arg(&small).arg(jobs::comity()).run()?;
    Ok(small)
}

/// The cases that the software device is tested with too, compiled against the real header, for whichever library is there when it runs.
fn conform(scratch: &Scratch) -> Result<PathBuf, String> {
    let program = scratch.join("conform");
    let source = root().join("tools/steps/src/test/rdma/conform.c");
    let task = Task::new("cc").args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, &source]);
    task.arg("-libverbs").run()?;
    Ok(program)
}

/// Check that they ended as they do on any provider.
fn conforms(said: &str) -> Result<(), String> {
    const WANTED: &str = include_str!("../rdma/conform.txt");
    let lines = |text: &str| -> Vec<String> {
        text.lines().map(|l| l.trim_end().to_owned()).filter(|l| !l.is_empty()).collect()
    };
    match lines(said) == lines(WANTED) {
        true => Ok(()),
        false => Err(format!("the cases ended otherwise:\n{said}\nand not:\n{WANTED}")),
    }
}

fn verdict(case: &Case, answer: &Answer) -> Result<(), String> {
    match (answer.code, case.words) {
        (0, []) => conforms(&answer.output),
        (0, words) => has(&answer.output, words),
        (code, _) => Err(format!("exit code {code}; it said:\n{}", answer.output)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_need_the_code_and_the_words() {
        let case = Case { name: "x".into(), script: String::new(), limit: 1, words: &["a", "b"] };
        let ends = |code, output: &str| verdict(&case, &Answer { code, output: output.into(), seconds: 1.0 });
        assert!(ends(0, "b a").is_ok());
        assert!(ends(0, "a").unwrap_err().contains("\"b\" is not in"));
        assert!(ends(1, "a b").unwrap_err().contains("exit code 1"));
    }
}
