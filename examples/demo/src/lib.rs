//! Data-parallel training on handwritten digits: the samples, the loop, and a network of two layers in plain Rust.
//!
//! Every rank holds the whole network. Of each batch, rank `r` of `n` takes samples `r`, `r + n`, `r + 2n`, ...; the
//! gradients are averaged over the ranks before each step, so the result is that of one rank up to rounding.
//!
//! [`Network`] is the part that a framework may do instead: candle's is in `crates/comity-candle/examples/digits`.

mod data;
mod layers;
mod memory;
mod options;
mod plot;
mod training;

pub use data::{Digits, PIXELS, Random};
pub use layers::Layers;
pub use memory::{memory, mib, percent, thousandths};
pub use options::{Options, Settings};
pub use plot::plot;
pub use training::{Trained, largest_difference, train, train_on_threads};

use comity::Group;
use std::{error::Error, fs, io::Write, path::Path, process::ExitCode, time::Duration};

/// Result of a function here; a failure is told to people.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Sizes of the layers, inputs and outputs: 64 pixels, 128 hidden units, 10 digits.
pub const LAYERS: [(usize, usize); 2] = [(PIXELS, 128), (128, 10)];

/// A network that can be trained.
pub trait Network {
    /// Take one step: the gradient of the mean loss of these samples, times `weight`, averaged over the group. Returns the mean loss.
    ///
    /// # Errors
    /// The group failed.
    fn step(
        &mut self,
        group: &Group,
        digits: &Digits,
        samples: &[usize],
        weight: f32,
        rate: f64,
    ) -> Result<f32>;

    /// The digit that it sees in each of these samples.
    ///
    /// # Errors
    /// A framework's own.
    fn classify(&self, digits: &Digits, samples: &[usize]) -> Result<Vec<u8>>;

    /// All weights and biases, layer by layer.
    ///
    /// # Errors
    /// A framework's own.
    fn weights(&self) -> Result<Vec<f32>>;

    /// Time that its steps have spent in calls to other ranks.
    fn time_in_calls(&self) -> Duration;
}

/// Train the network that `new` makes as the command line says, and print the result.
pub fn run<N: Network>(new: impl FnOnce(&mut Random) -> Result<N>) -> ExitCode {
    match try_run(new) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("digits: {e}");
            ExitCode::FAILURE
        }
    }
}

fn try_run<N: Network>(new: impl FnOnce(&mut Random) -> Result<N>) -> Result<()> {
    let Some(options) = Options::parse(std::env::args_os().skip(1))? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let digits = Digits::read(&options.data)?;
    let group = comity::init()?;
    let before = memory().0;
    let out = train(&group, &digits, &options.settings, new, |line| {
        let mut stdout = std::io::stdout().lock();
        // A reader that went away is no reason to stop training.
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    })?;
    let mine = [memory().1.saturating_sub(before), thousandths(out.share_in_calls)];
    let mut all = vec![0; 2 * group.size()];
    group.all_gather(&mine, &mut all)?;
    if group.rank() == 0 {
        let weights = out.network.weights()?;
        let difference = match &options.compare {
            Some(file) => {
                format!(
                    ", differs from {} by {:.1e}",
                    file.display(),
                    largest_difference(&read(file)?, &weights)
                )
            }
            None => String::new(),
        };
        if let Some(file) = &options.weights {
            let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
            fs::write(file, bytes).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        }
        if let Some(file) = &options.plot {
            fs::write(file, plot(&out.losses, "epochs"))
                .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        }
        let each = |figure: usize| all.iter().skip(figure).step_by(2).copied();
        println!("all that each rank holds at its peak: {} MiB", mib(each(0)));
        println!("time of each rank in calls: {}", percent(each(1)));
        println!("accuracy {:.4}, {:.0} samples/s{difference}", out.accuracy, out.samples_per_s);
    }
    Ok(())
}

/// Weights that an earlier run wrote.
fn read(file: &Path) -> Result<Vec<f32>> {
    let bytes = fs::read(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let (weights, rest) = bytes.as_chunks();
    if !rest.is_empty() {
        return Err(format!("{} was not written by --weights", file.display()).into());
    }
    Ok(weights.iter().map(|w| f32::from_le_bytes(*w)).collect())
}
