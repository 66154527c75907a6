//! Choice of the costs that hold for this process, and their file.

use super::{TunedFile, tuned::VERSION};
use crate::{BackendKind, Config, config::Costs, sys::here::host_name};
use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// Costs that plans are chosen by: for `comity info`.
///
/// ```
/// let note = comity::tools::costs_note(&comity::Config::from_env()?);
/// println!("{} costs: {}", note.used, note.why);
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostsNote {
    /// `usual`, `tuned`, `measured` or `pairs`.
    pub used: &'static str,
    /// The file that they are from, or would be.
    pub file: Option<PathBuf>,
    /// When they were measured.
    pub date: Option<String>,
    /// In words.
    pub why: String,
}

/// Returns the path of this host's and version's costs, below the user's folder of configurations.
///
/// ```
/// let place = comity::tools::costs_place("/home/me/.config".as_ref());
/// assert!(place.starts_with("/home/me/.config/comity"));
/// ```
pub fn costs_place(config_home: &Path) -> PathBuf {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let host: String = host_name().chars().map(|c| if plain(c) { c } else { '_' }).collect();
    config_home.join("comity").join(format!("costs-{}-{host}.json", VERSION))
}

/// Returns rank 0's announcement to the others when they meet: the costs of the file that is found, as bytes; empty on another rank, and where
/// there is no file. If a file is there and cannot be used, the user is told, and the usual costs hold.
pub(crate) fn tuned_bytes(config: &Config) -> Vec<u8> {
    let Costs::Found(home) = &config.costs else { return Vec::new() };
    // MPI has plans of its own.
    if config.rank != 0 || config.backend == BackendKind::Mpi {
        return Vec::new();
    }
    match TunedFile::load(&costs_place(home)) {
        Ok(file) => file.map_or_else(Vec::new, |f| f.costs.to_bytes()),
        Err(why) => {
            tracing::warn!(%why, "the usual costs hold");
            // A pipe whose reader has gone is no reason to fail.
            let _ = writeln!(
                std::io::stderr(),
                "comity: {why}; it is not used, and the usual costs hold: run `comity bench --tune` on this host, or set COMITY_COSTS=off"
            );
            Vec::new()
        }
    }
}

impl Config {
    /// [`tools::costs_note`](crate::tools::costs_note).
    pub(crate) fn costs_note(&self) -> CostsNote {
        let note = |used, file: Option<&Path>, date, why: &str| CostsNote {
            used,
            file: file.map(Into::into),
            date,
            why: why.into(),
        };
        match &self.costs {
            Costs::Usual => note("usual", None, None, "what links of each kind usually cost"),
            Costs::Measure => note("measured", None, None, "measured when the ranks have met (COMITY_COSTS)"),
            Costs::File(path) => note("pairs", Some(path), None, "of each pair of ranks (COMITY_COSTS)"),
            Costs::Found(_) if self.rank != 0 => {
                note("usual", None, None, "those of rank 0 hold for all ranks")
            }
            Costs::Found(home) => found(costs_place(home)),
        }
    }
}

/// Describes the file at this place.
fn found(place: PathBuf) -> CostsNote {
    let (used, date, why) = match TunedFile::load(&place) {
        Ok(Some(file)) => {
            let words = format!("measured on this host with {} cores, {}", file.cores, file.date);
            ("tuned", Some(file.date), words)
        }
        Ok(None) => {
            ("usual", None, "what links of each kind usually cost (`comity bench --tune` measures)".into())
        }
        Err(why) => ("usual", None, format!("what links of each kind usually cost: {why}")),
    };
    CostsNote { used, file: Some(place), date, why }
}
