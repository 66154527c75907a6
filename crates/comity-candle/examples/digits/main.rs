//! Data-parallel training: a small network learns handwritten digits, on any number of ranks.
//!
//! ```text
//! cargo build --release --package comity-candle --example digits
//! comity launch -n 4 -- target/release/examples/digits
//! ```
//!
//! Every rank holds the whole network. Of each batch, rank `r` of `n` takes samples `r`, `r + n`, `r + 2n`, ...; the
//! gradients are averaged over the ranks before each step, so the result is that of one rank up to rounding.

mod options;
mod training;

use options::Options;
use std::{io::Write, path::Path, process::ExitCode};
use training::{Digits, Network, Result, largest_difference, train};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("digits: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let Some(options) = Options::parse(std::env::args_os().skip(1))? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let digits = Digits::read(&options.data)?;
    let group = comity::init()?;
    let out = train(&group, &digits, &options.settings, |line| {
        let mut stdout = std::io::stdout().lock();
        // A reader that went away is no reason to stop training.
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    })?;
    if group.rank() == 0 {
        let difference = match &options.compare {
            Some(file) => {
                format!(", differs from {} by {:.1e}", file.display(), difference(file, &out.network)?)
            }
            None => String::new(),
        };
        if let Some(file) = &options.weights {
            candle_core::safetensors::save(&out.network.named(), file)
                .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        }
        println!("accuracy {:.4}, {:.0} samples/s{difference}", out.accuracy, out.samples_per_s);
    }
    Ok(())
}

/// The largest difference between the network's weights and those saved in `file`.
fn difference(file: &Path, network: &Network) -> Result<f32> {
    let saved = candle_core::safetensors::load(file, &candle_core::Device::Cpu)
        .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    largest_difference(&saved, &network.named()).map_err(|e| format!("{}: {e}", file.display()).into())
}
