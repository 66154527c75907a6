//! The language model of `crates/comity-candle/examples/gpt` as processes, in each of its ways: the loss must be that of one rank.

use super::{Done, Outcome, scope::Scope};
use tasks::{child::Task, place::built};

/// Ways of sharing the work, and numbers of ranks. The first is what the others are compared with.
const RUNS: [(&str, usize); 9] =
    [("dp", 1), ("dp", 3), ("tp", 2), ("tp", 3), ("tp", 4), ("fsdp", 3), ("pp", 3), ("2d", 2), ("2d", 4)];
/// Twenty steps apart by rounding only.
const LARGEST_DIFFERENCE: f64 = 2e-3;
/// Seconds for each.
const LIMIT: u64 = 600;

pub(crate) fn check(_: &Scope) -> Outcome {
    tasks::build_tests()?;
    let comity = built("debug", "comity");
    let gpt = built("debug", "examples/gpt");
    let mut one = None;
    let mut largest = 0f64;
    for (mode, n) in RUNS {
        let limit = LIMIT.to_string();
        let out = Task::new(&comity)
            .args(["launch", "-n", &n.to_string(), "--timeout", &limit, "--"])
            .args([gpt.as_os_str()])
            .args(["--mode", mode, "--steps", "20", "--batch", "12", "--context", "16", "--width", "32"])
            .limit(LIMIT + 30)
            .echo()
            .run()?;
        let loss = last_loss(&out).ok_or_else(|| format!("{mode} on {n} ranks ended without a loss"))?;
        let want = *one.get_or_insert(loss);
        if (loss - want).abs() > LARGEST_DIFFERENCE {
            return Err(format!("{mode} on {n} ranks ends at a loss of {loss}, one rank at {want}"));
        }
        largest = largest.max((loss - want).abs());
    }
    Ok(Done::Passed(format!("{} runs, losses within {largest:.1e} of one rank's", RUNS.len())))
}

/// The number after `loss ` in the last line that has one, after a rank's tag or not.
fn last_loss(output: &str) -> Option<f64> {
    output.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once("loss ")?;
        rest.split([',', ' ']).next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::last_loss;

    #[test]
    fn the_last_loss_is_found() {
        let out =
            "[0] step   10  loss 3.5000  7 samples/s\n[0] loss 3.2500, 8 samples/s, 27 % of the time\n\n";
        assert_eq!(last_loss(out), Some(3.25));
        assert_eq!(last_loss("nothing"), None);
    }
}
