//! The command line.

use super::Result;
use std::{ffi::OsString, path::PathBuf, str::FromStr};

pub(super) const HELP: &str = "\
Train a small network on handwritten digits; run under `comity launch -n N -- digits`

  --data FILE      samples, 64 pixels and a digit a line (default: data/digits.csv of the source)
  --epochs N       passes over the samples (default: 30)
  --batch N        samples a step, over all ranks (default: 128)
  --rate X         learning rate (default: 0.4)
  --seed N         of the first weights and the order of samples (default: 1)
  --weights FILE   save the trained weights
  --compare FILE   say how far the trained weights are from those in FILE
  --plot FILE      write the curve of the loss (SVG)
";

/// Settings of the training, the same on every rank.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Passes over the samples.
    pub epochs: usize,
    /// Samples a step, over all ranks.
    pub batch: usize,
    /// Learning rate.
    pub rate: f64,
    /// Seed of the first weights and of the order of samples.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { epochs: 30, batch: 128, rate: 0.4, seed: 1 }
    }
}

/// The command line, understood.
#[derive(Debug)]
pub struct Options {
    /// File of the samples.
    pub data: PathBuf,
    /// Numbers of the training.
    pub settings: Settings,
    /// File to write the weights to.
    pub weights: Option<PathBuf>,
    /// File of weights to compare with.
    pub compare: Option<PathBuf>,
    /// File to write the curve of the loss to.
    pub plot: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/digits.csv").into();
        Self { data, settings: Settings::default(), weights: None, compare: None, plot: None }
    }
}

impl Options {
    /// `None` when help was asked for.
    ///
    /// # Errors
    /// An option that there is not, or one without its value.
    pub fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Option<Self>> {
        let mut options = Self::default();
        while let Some(flag) = args.next() {
            let flag = flag.to_string_lossy().into_owned();
            if flag == "-h" || flag == "--help" {
                return Ok(None);
            }
            let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value; see --help"));
            match flag.as_str() {
                "--data" => options.data = value()?.into(),
                "--epochs" => options.settings.epochs = number(&flag, value()?)?,
                "--batch" => options.settings.batch = number(&flag, value()?)?,
                "--rate" => options.settings.rate = number(&flag, value()?)?,
                "--seed" => options.settings.seed = number(&flag, value()?)?,
                "--weights" => options.weights = Some(value()?.into()),
                "--compare" => options.compare = Some(value()?.into()),
                "--plot" => options.plot = Some(value()?.into()),
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
