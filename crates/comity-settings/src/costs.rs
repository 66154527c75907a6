//! Cost of messages between each two ranks, and its text.

use crate::{ConfigError, settings::Costs};
use comity_plan::{Cost, PairCosts};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Cost of messages between each two ranks of a group, in seconds and in bytes per second; all ranks have the same numbers.
///
/// [`Group::measure_links`](../comity/struct.Group.html#method.measure_links) measures them, [`from_json`](Self::from_json) reads them from a file's text.
///
/// ```
/// use comity::LinkCosts;
///
/// let text = r#"{"ranks": 2, "latency_s": [[null, 1e-5], [2e-5, null]], "bytes_per_s": [[null, 1e9], [2e9, null]]}"#;
/// let costs = LinkCosts::from_json(text)?;
/// assert_eq!(costs.size(), 2);
/// let seconds = costs.latency(0, 1) + 1e6 / costs.bandwidth(0, 1); // 1 MB from rank 0 to rank 1
/// assert!((seconds - 0.00101).abs() < 1e-9);
/// assert_eq!(LinkCosts::from_json(&costs.to_json())?, costs);
/// # Ok::<(), comity::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LinkCosts(PairCosts);

impl LinkCosts {
    /// By sender, then receiver; `None` unless there is a sound number for every pair.
    pub fn new(size: usize, pairs: Vec<Cost>) -> Option<Self> {
        PairCosts::new(size, pairs).map(Self)
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.0.size()
    }

    /// Seconds that a small message takes from rank `from` to rank `to`; 0 for a rank to itself.
    ///
    /// # Panics
    /// For a rank that is not there.
    pub fn latency(&self, from: usize, to: usize) -> f64 {
        self.0.latency(from, to)
    }

    /// Bytes per second of large messages from rank `from` to rank `to`; infinite for a rank to itself.
    ///
    /// # Panics
    /// For a rank that is not there.
    pub fn bandwidth(&self, from: usize, to: usize) -> f64 {
        self.0.bandwidth(from, to)
    }

    /// The same numbers as text that [`from_json`](Self::from_json) reads.
    pub fn to_json(&self) -> String {
        let n = self.size();
        let rows = |f: &dyn Fn(usize, usize) -> f64| -> Vec<Vec<Value>> {
            let cell = |a: usize, b: usize| if a == b { Value::Null } else { json!(f(a, b)) };
            (0..n).map(|a| (0..n).map(|b| cell(a, b)).collect()).collect()
        };
        let latency = rows(&|a, b| self.latency(a, b));
        let bandwidth = rows(&|a, b| self.bandwidth(a, b));
        json!({ "ranks": n, "latency_s": latency, "bytes_per_s": bandwidth }).to_string()
    }

    /// Read what `comity check --links --json` or a person wrote: seconds and bytes per second, by sender, then receiver.
    ///
    /// ```
    /// let text = r#"{"ranks": 2, "latency_s": [[null, 1e-5], [1e-5, null]], "bytes_per_s": [[null, 1e9], [2e9, null]]}"#;
    /// let costs = comity::LinkCosts::from_json(text)?;
    /// assert_eq!((costs.size(), costs.latency(0, 1)), (2, 1e-5));
    /// # Ok::<(), comity::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// A [`ConfigError`] when the text is no such table. Its words are the rest of a sentence ("is not JSON: ..."); where the form is wrong it has
    /// line and column.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| ConfigError::new(format!("is not JSON: {e}")).at(e.line(), e.column()))?;
        let n = value["ranks"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        if !(1..=crate::MAX_SIZE).contains(&n) {
            let words = format!("has no number of \"ranks\" from 1 to {}", crate::MAX_SIZE);
            return Err(ConfigError::new(words));
        }
        let cell = |name: &str, a: usize, b: usize| -> Result<f64, ConfigError> {
            let number = value[name][a][b].as_f64().filter(|x| x.is_finite() && *x > 0.0);
            number.ok_or_else(|| ConfigError::new(format!("has no number above 0 at {name}[{a}][{b}]")))
        };
        let mut pairs = Vec::new();
        for (a, b) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))) {
            pairs.push(if a == b {
                Cost { alpha: 0.0, beta: 0.0 }
            } else {
                Cost { alpha: cell("latency_s", a, b)?, beta: 1.0 / cell("bytes_per_s", a, b)? }
            });
        }
        Self::new(n, pairs).ok_or_else(|| ConfigError::new("holds numbers that are out of range"))
    }
}

impl AsRef<PairCosts> for LinkCosts {
    /// Returns the costs as plans see them.
    fn as_ref(&self) -> &PairCosts {
        &self.0
    }
}

/// Source of the costs by which plans are chosen: for `comity info`.
///
/// ```
/// let config = comity::Config::from_env()?;
/// let note = comity::tools::CostsNote::of(&comity::tools::settings(&config).costs);
/// println!("{} costs: {}", note.used, note.why);
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostsNote {
    /// `usual`, `measured` or `pairs`.
    pub used: &'static str,
    /// The file that they are from.
    pub file: Option<PathBuf>,
    /// In words.
    pub why: &'static str,
}

impl CostsNote {
    /// Returns the source that settings name.
    pub fn of(costs: &Costs) -> Self {
        let (used, file, why) = match costs {
            Costs::Usual => ("usual", None, "what links of each kind usually cost"),
            Costs::Measure => ("measured", None, "measured when the ranks have met (COMITY_COSTS)"),
            Costs::File(path) => ("pairs", Some(path.clone()), "of each pair of ranks (COMITY_COSTS)"),
        };
        Self { used, file, why }
    }
}
