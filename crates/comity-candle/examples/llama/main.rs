//! A Llama on any number of ranks: tensor-parallel, in stages, or both; any checkpoint on disk, safetensors or GGUF.
//!
//! ```text
//! cargo build --release --package comity-candle --example llama
//! comity launch -n 2 -- target/release/examples/llama --model FOLDER --prompt "Once upon a time"
//! ```
//!
//! Built with `--features cuda` and started with `--backend nccl` it computes on a GPU for each rank.

mod config;
mod generate;
mod model;

use candle_core::DType;
use demo::{mib, percent, thousandths};
use generate::{Settings, generate};
use std::{
    error::Error,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};
use tokenizers::Tokenizer;

pub(crate) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const HELP: &str = "\
Go on from a text with a Llama; run under `comity launch -n N -- llama`

  --model PATH         a folder with safetensors and config.json, or a file: safetensors or GGUF
  --prompt TEXT        the text to go on from; again for another request of the batch. Needs tokenizer.json beside the model
  --ids N,N,...        the same as numbers of tokens, without a tokenizer
  --tokens N           new tokens of each request, at most (default: 32)
  --pipeline N         stages that the blocks are divided into; the ranks of a stage share its layers (default: 1)
  --temperature X      0 takes the likeliest token (default: 0)
  --top N              choose among so many (default: 40)
  --seed N             of the choice (default: 1)
  --dtype TYPE         f32 or bf16 (default: f32)
";

#[derive(Default)]
struct Options {
    model: PathBuf,
    texts: Vec<String>,
    ids: Vec<Vec<u32>>,
    settings: Settings,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("llama: {e}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>> {
    let mut options = Options::default();
    while let Some(flag) = args.next() {
        if flag == "-h" || flag == "--help" {
            return Ok(None);
        }
        let value = args.next().ok_or_else(|| format!("{flag} needs a value; see --help"))?;
        let bad = |_| format!("{flag} needs a number, got {value:?}");
        let s = &mut options.settings;
        match flag.as_str() {
            "--model" => options.model = value.into(),
            "--prompt" => options.texts.push(value),
            "--ids" => {
                let ids = value.split(',').map(|t| t.trim().parse().map_err(bad));
                options.ids.push(ids.collect::<Result<_, _>>()?);
            }
            "--tokens" => s.tokens = value.parse().map_err(bad)?,
            "--pipeline" => s.pipeline = value.parse().map_err(bad)?,
            "--temperature" => {
                s.temperature = value.parse().map_err(|_| format!("{flag} needs a number, got {value:?}"))?;
            }
            "--top" => s.top = value.parse().map_err(bad)?,
            "--seed" => s.seed = value.parse().map_err(bad)?,
            "--dtype" => {
                s.dtype = match value.as_str() {
                    "f32" => DType::F32,
                    "bf16" => DType::BF16,
                    _ => return Err(format!("--dtype is f32 or bf16, not {value:?}").into()),
                }
            }
            _ => return Err(format!("no option {flag}; see --help").into()),
        }
    }
    if options.model.as_os_str().is_empty() {
        return Err("name a model with --model PATH; see --help".into());
    }
    Ok(Some(options))
}

fn tokenizer(model: &Path) -> Result<Tokenizer> {
    let folder = if model.is_dir() { model } else { model.parent().unwrap_or_else(|| Path::new(".")) };
    let file = folder.join("tokenizer.json");
    Tokenizer::from_file(&file).map_err(|e| format!("cannot read {}: {e}; give --ids", file.display()).into())
}

fn run() -> Result<()> {
    let Some(options) = parse(std::env::args().skip(1))? else {
        print!("{HELP}");
        return Ok(());
    };
    let tokenizer = if options.texts.is_empty() { None } else { Some(tokenizer(&options.model)?) };
    let mut prompts = options.ids;
    for (text, tokenizer) in options.texts.iter().zip(tokenizer.iter().cycle()) {
        prompts.push(tokenizer.encode(text.as_str(), true)?.get_ids().to_vec());
    }
    let group = comity::init()?;
    let device = comity_candle::device(&group)?;
    let first = group.rank() == 0;
    let alone = prompts.len() == 1;
    let mut seen = Vec::new();
    let mut shown = 0;
    let out = generate(&group, &device, &options.model, &prompts, &options.settings, |_, token| {
        if first && alone {
            // Several tokens may be one letter: what is new of the text so far.
            seen.push(token);
            let text = match &tokenizer {
                Some(t) => t.decode(&seen, true).unwrap_or_default(),
                None => seen.iter().map(|t| format!("{t} ")).collect(),
            };
            let mut stdout = std::io::stdout().lock();
            let _ = write!(stdout, "{}", text.get(shown..).unwrap_or_default()).and_then(|()| stdout.flush());
            shown = text.len();
        }
    })?;
    let [before, loaded, peak] = out.memory;
    let share = thousandths(out.share_in_calls);
    let mine = [out.bytes_read, loaded.saturating_sub(before), peak.saturating_sub(before), share];
    let mut all = vec![0; 4 * group.size()];
    group.all_gather(&mine, &mut all)?;
    if first {
        println!();
        if !alone {
            for (i, tokens) in out.tokens.iter().enumerate() {
                let text = tokenizer.as_ref().and_then(|t| t.decode(tokens, true).ok());
                println!("request {i}: {}", text.unwrap_or_else(|| format!("{tokens:?}")));
            }
        }
        let each = |figure: usize| all.iter().skip(figure).step_by(4).copied();
        let of = |figure: usize| mib(each(figure));
        println!(
            "weights of each rank: {} MiB; all that it holds, loaded: {} MiB, at its peak: {} MiB",
            of(0),
            of(1),
            of(2)
        );
        println!(
            "{:.1} tokens/s after {:.1} tokens/s of the prompts; time of each rank in calls: {}",
            out.tokens_per_s,
            out.prompt_tokens_per_s,
            percent(each(3))
        );
    }
    Ok(())
}
