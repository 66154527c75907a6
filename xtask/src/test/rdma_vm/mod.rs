//! RDMA over the real stack: rdma-core, the kernel's verbs and Soft-RoCE, in a guest.

use super::{Done, Outcome, requirements};
use crate::vm::{self, Answer, Command, Guest};

/// Cables, switches and their devices.
const NETWORK: &str = include_str!("network.sh");

/// What a case is to come to.
#[derive(Debug)]
enum Expected {
    /// Exit code 0, and these words in the output.
    Words(&'static [&'static str]),
    /// It has to be ended.
    NoEnd,
}

/// Some shell after `NETWORK`, in a guest without cables.
#[derive(Debug)]
struct Case {
    name: &'static str,
    script: String,
    limit: u64,
    expected: Expected,
}

pub(super) fn run() -> Outcome {
    match requirements::programs(&vm::NEEDED)? {
        Done::Passed(_) => {}
        not_run @ Done::NotRun(_) => return Ok(not_run),
    }
    let cases = programs();
    let command = |c: &Case| Command { script: format!("{NETWORK}\nclear\n{}", c.script), limit: c.limit };
    let commands: Vec<Command> = cases.iter().map(command).collect();
    let answers = Guest::default().run(&commands)?;
    for (case, answer) in cases.iter().zip(&answers) {
        verdict(case, answer)?;
        println!("{}: as expected, {:.1} s", case.name, answer.seconds);
    }
    Ok(Done::Passed(format!("{} cases over Soft-RoCE in a guest", cases.len())))
}

/// rdma-core's own programs, which show that the devices and cables of this guest are sound.
fn programs() -> Vec<Case> {
    let cable = "cable left 10.0.1.1 11 right 10.0.1.2 12\n";
    let lossy = |share: &str| {
        ["left", "right"].map(|end| format!("tc qdisc add dev {end} root netem loss {share}\n")).concat()
    };
    let exchange = |kind: &str| {
        format!(
            "timeout 60 /programs/ibv_{kind}_pingpong -d rdma_left -g 1 -n 200 -c > /tmp/{kind} &\nsleep 1\n\
             timeout 60 /programs/ibv_{kind}_pingpong -d rdma_right -g 1 -n 200 -c 127.0.0.1 || exit 1\nwait\ncat /tmp/{kind}\n"
        )
    };
    let case = |name, script, limit, expected| Case { name, script, limit, expected };
    vec![
        case(
            "the devices of a cable",
            format!("{cable}ibv_devices\nibv_devinfo -v"),
            30,
            Expected::Words(&["rdma_left", "rdma_right", "PORT_ACTIVE (4)", "::ffff:10.0.1.2"]),
        ),
        case("ibv_rc_pingpong", format!("{cable}{}", exchange("rc")), 60, Expected::Words(&["200 iters in"])),
        case("ibv_uc_pingpong", format!("{cable}{}", exchange("uc")), 60, Expected::Words(&["200 iters in"])),
        case(
            "ibv_rc_pingpong with 1 % of the packets lost",
            format!("{cable}{}{}tc -s qdisc show dev left", lossy("1%"), exchange("rc")),
            90,
            Expected::Words(&["200 iters in", "netem", "dropped"]),
        ),
        case(
            "ibv_uc_pingpong with 10 % of the packets lost",
            format!("{cable}{}{}", lossy("10%"), exchange("uc")),
            8,
            Expected::NoEnd,
        ),
    ]
}

fn verdict(case: &Case, answer: &Answer) -> Result<(), String> {
    let Answer { code, output, .. } = answer;
    let wrong = |what: String| Err(format!("{}: {what}; it said:\n{output}", case.name));
    match case.expected {
        // 128 + SIGKILL
        Expected::NoEnd if *code == 137 => Ok(()),
        Expected::NoEnd => wrong(format!("it was to run until it is ended, and ended with {code}")),
        Expected::Words(_) if *code != 0 => wrong(format!("exit code {code}")),
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
        let case = |expected| Case { name: "x", script: String::new(), limit: 1, expected };
        let answer = |code, output: &str| Answer { code, output: output.into(), seconds: 1.0 };
        let words = case(Expected::Words(&["a", "b"]));
        assert!(verdict(&words, &answer(0, "b a")).is_ok());
        assert!(verdict(&words, &answer(0, "a")).unwrap_err().contains("\"b\" is missing"));
        assert!(verdict(&words, &answer(1, "a b")).unwrap_err().contains("exit code 1"));
        let endless = case(Expected::NoEnd);
        assert!(verdict(&endless, &answer(137, "")).is_ok() && verdict(&endless, &answer(0, "")).is_err());
    }
}
