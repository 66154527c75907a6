//! A small language model that learns a text letter by letter: data-parallel, tensor-parallel, fully sharded, as a pipeline, or both of the first two.
//!
//! ```text
//! cargo build --release --package comity-candle --example gpt
//! comity launch -n 4 -- target/release/examples/gpt --mode tp
//! ```
//!
//! Each way learns the same: the loss after every step is that of one rank, up to rounding.

#[path = "../shared/memory.rs"]
mod memory;
mod model;
mod options;
mod stages;
mod text;
mod training;

use memory::mib;
use options::Options;
use std::{io::Write, process::ExitCode};
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
    let mine = [out.weight_bytes as u64, out.memory_peak.saturating_sub(out.memory_before)];
    let mut all = vec![0; 2 * group.size()];
    group.all_gather(&mine, &mut all)?;
    if group.rank() == 0 {
        if let Some(file) = &options.plot {
            std::fs::write(file, demo::plot(&out.losses, "steps"))
                .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        }
        let of = |figure: usize| mib(all.iter().skip(figure).step_by(2).copied());
        println!("weights of each rank: {} MiB; all that it holds at its peak: {} MiB", of(0), of(1));
        println!(
            "loss {:.4}, {:.0} samples/s, {:.0} % of the time in calls: {:.2} of {:.2} ms a step",
            out.losses.last().copied().unwrap_or_default(),
            options.settings.batch as f64 / out.seconds,
            100.0 * out.in_calls / out.seconds,
            1e3 * out.in_calls,
            1e3 * out.seconds,
        );
    }
    Ok(())
}
