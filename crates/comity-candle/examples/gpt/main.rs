//! A small language model that learns a text letter by letter: data-parallel, tensor-parallel, fully sharded, as a pipeline, or both of the first two.
//!
//! ```text
//! cargo build --release --package comity-candle --example gpt
//! comity launch -n 4 -- target/release/examples/gpt --mode tp
//! ```
//!
//! Each way learns the same: the loss after every step is that of one rank, up to rounding.

mod model;
mod options;
mod stages;
mod text;
mod training;

use options::Options;
use std::{fmt::Write as _, io::Write as _, process::ExitCode};
use training::Result;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gpt: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let Some(options) = Options::parse(std::env::args_os().skip(1))? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let text = text::Text::read(&options.text)?;
    let group = comity::init()?;
    let out = training::train(&group, &text, &options.settings, |line| {
        if group.rank() == 0 {
            let mut stdout = std::io::stdout().lock();
            // A reader that went away is no reason to stop training.
            let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
        }
    })?;
    let mut weights = vec![0u64; group.size()];
    group.all_gather(&[out.weight_bytes as u64], &mut weights)?;
    if group.rank() == 0 {
        if let Some(file) = &options.plot {
            std::fs::write(file, plot(&out.losses))
                .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        }
        let kib: Vec<String> = weights.iter().map(|b| (b >> 10).to_string()).collect();
        println!(
            "loss {:.4}, {:.0} samples/s, {:.0} % of the time in calls, weights of each rank: {} KiB",
            out.losses.last().copied().unwrap_or_default(),
            out.samples_per_s,
            100.0 * out.share_in_calls,
            kib.join(", ")
        );
    }
    Ok(())
}

/// The losses as a curve, in SVG.
fn plot(losses: &[f64]) -> String {
    const WIDTH: f64 = 640.0;
    const HEIGHT: f64 = 320.0;
    let top = losses.iter().copied().fold(1e-9, f64::max);
    let mut points = String::new();
    for (i, loss) in losses.iter().enumerate() {
        let x = WIDTH * i as f64 / (losses.len().max(2) - 1) as f64;
        let _ = write!(points, "{x:.1},{:.1} ", HEIGHT * (1.0 - loss / top));
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-40 -20 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <polyline fill=\"none\" stroke=\"#1f6feb\" points=\"{points}\"/>\n\
         <line x2=\"{WIDTH}\" y1=\"{HEIGHT}\" y2=\"{HEIGHT}\" stroke=\"gray\"/>\n\
         <line y2=\"{HEIGHT}\" stroke=\"gray\"/>\n\
         <text x=\"-34\" y=\"8\">{top:.2}</text><text x=\"-12\" y=\"{HEIGHT}\">0</text>\n\
         <text x=\"{:.0}\" y=\"{:.0}\">loss after each of {} steps</text>\n</svg>\n",
        WIDTH + 60.0,
        HEIGHT + 60.0,
        WIDTH / 2.0 - 70.0,
        HEIGHT + 24.0,
        losses.len()
    )
}
