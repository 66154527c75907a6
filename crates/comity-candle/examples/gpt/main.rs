//! A small language model that learns a text letter by letter: data-parallel, tensor-parallel, fully sharded, as a pipeline, or both of the first two.
//!
//! ```text
//! cargo build --release --package comity-candle --example gpt
//! comity launch -n 4 -- target/release/examples/gpt --mode tp
//! ```
//!
//! Each way learns the same: the loss after every step is that of one rank, up to rounding. Built with `--features cuda` and started with `--backend nccl`, the first two and
//! the last compute on a GPU for each rank.

mod model;
mod norm;
mod options;
mod stages;
mod text;
mod training;

use demo::{mib, percent, thousandths};
use options::Options;
use std::{io::Write, process::ExitCode};
use training::{Mode, Result};

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
    let share = thousandths(out.in_calls / out.seconds);
    let mine = [out.weight_bytes as u64, out.memory_peak.saturating_sub(out.memory_before), share];
    let mut all = vec![0; 3 * group.size()];
    group.all_gather(&mine, &mut all)?;
    if group.rank() == 0 {
        if let Some(file) = &options.plot {
            std::fs::write(file, demo::plot(&out.losses, "steps"))
                .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        }
        let each = |figure: usize| all.iter().skip(figure).step_by(3).copied();
        let of = |figure: usize| mib(each(figure));
        println!("weights of each rank: {} MiB; all that it holds at its peak: {} MiB", of(0), of(1));
        println!(
            "loss {:.4}, {:.0} samples/s, {:.2} ms a step; time of each rank in calls: {}",
            out.losses.last().copied().unwrap_or_default(),
            options.settings.batch as f64 / out.seconds,
            1e3 * out.seconds,
            percent(each(2)),
        );
        if options.settings.mode == Mode::Data {
            println!("{:.2} ms a step in calls when the last rank has come to them", 1e3 * out.last_in_calls);
        }
    }
    Ok(())
}
