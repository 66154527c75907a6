//! The command line.

use super::training::{Mode, Result, Settings};
use std::{ffi::OsString, path::PathBuf, str::FromStr};

pub(crate) const HELP: &str = "\
Train a small language model on a text, letter by letter; run under `comity launch -n N -- gpt`

  --mode MODE      dp: each rank has the model and a share of the batch (the default)
                   tp: each rank has a part of every layer and the whole batch
                   fsdp: each rank keeps a part of every layer, and has a share of the batch
                   pp: each rank has some of the layers, and micro-batches go through them
                   2d: pairs of ranks share the layers, and the pairs share the batch
  --text FILE      what to learn (default: a page of the book)
  --steps N        (default: 100)
  --batch N        samples a step, over all ranks (default: 32)
  --context N      letters that are seen at once (default: 64)
  --width N        (default: 64)   --layers N  (default: 2)   --heads N  (default: 4)
  --rate X         learning rate (default: 0.003)
  --no-overlap     dp, 2d: send gradients after the backward pass, not while it computes others
  --seed N         of the first weights and the order of samples (default: 1)
  --plot FILE      write the curve of the loss (SVG)
  --save FILE      write the trained weights (safetensors); pp: a folder with a file for each stage
";

pub(crate) struct Options {
    pub(crate) text: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) plot: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/hosts.md").into();
        Self { text, settings: Settings::default(), plot: None }
    }
}

impl Options {
    /// `None` when help was asked for.
    pub(crate) fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Option<Self>> {
        let mut options = Self::default();
        while let Some(flag) = args.next() {
            let flag = flag.to_string_lossy().into_owned();
            if flag == "-h" || flag == "--help" {
                return Ok(None);
            }
            if flag == "--no-overlap" {
                options.settings.overlap = false;
                continue;
            }
            let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value; see --help"));
            let s = &mut options.settings;
            match flag.as_str() {
                "--text" => options.text = value()?.into(),
                "--plot" => options.plot = Some(value()?.into()),
                "--mode" => s.mode = Mode::parse(&value()?.to_string_lossy())?,
                "--steps" => s.steps = number(&flag, value()?)?,
                "--batch" => s.batch = number(&flag, value()?)?,
                "--context" => s.model.context = number(&flag, value()?)?,
                "--width" => s.model.width = number(&flag, value()?)?,
                "--layers" => s.model.layers = number(&flag, value()?)?,
                "--heads" => s.model.heads = number(&flag, value()?)?,
                "--save" => s.save = Some(value()?.into()),
                "--rate" => s.rate = number(&flag, value()?)?,
                "--seed" => s.seed = number(&flag, value()?)?,
                _ => return Err(format!("no option {flag}; see --help").into()),
            }
        }
        Ok(Some(options))
    }
}

fn number<T: FromStr>(flag: &str, value: OsString) -> Result<T> {
    let value = value.to_string_lossy();
    value.parse().map_err(|_| format!("{flag} needs a number, got {value:?}").into())
}
