//! The costs by which plans are chosen, as `comity info` tells them.

use crate::settings::Costs;
use std::path::PathBuf;

/// Source of the costs by which plans are chosen: for `comity info`.
///
/// ```
/// let note = comity::tools::costs_note(&comity::Config::from_env()?);
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
