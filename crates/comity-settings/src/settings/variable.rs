//! A row of the table of variables. `docs/make/settings.py` reads the titles of topics here.

use crate::named;

named! {
    /// Topic of a [`Variable`]: the parts of the page of settings, in their order.
    ///
    /// ```
    /// assert_eq!(comity::tools::Topic::Limits.to_string(), "Limits of time");
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Topic: "topic" {
        /// Rank of this process, and its host.
        Place => "This rank",
        /// Meeting point of the ranks, and the addresses that they listen on.
        Meeting => "How ranks meet",
        /// Keys and encryption.
        Trust => "Keys",
        /// Time limits.
        Limits => "Limits of time",
        /// Links between two ranks.
        Links => "Links",
        /// Backends and algorithms of calls.
        Calls => "How calls are carried out",
        /// Paths of libraries.
        Libraries => "Libraries",
        /// Logs and records, and their places.
        Reports => "What is written down",
        /// Variables that `comity launch` sets for its ranks, and a launcher of your own may.
        Launcher => "Set by `comity launch`",
        /// Variables for tests and measurements; they may change or go.
        Internal => "For tests and measurements",
    }
}

/// A variable of the environment that Comity reads. [`VARIABLES`](super::VARIABLES) lists them.
///
/// ```
/// let in_a_line = |v: &comity::tools::Variable| format!("{}={}  {} (default: {})", v.name, v.example, v.about, v.default);
/// # let _ = in_a_line;
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Variable {
    /// Its name: `COMITY_TIMEOUT`.
    pub name: &'static str,
    /// Topic that it belongs to.
    pub topic: Topic,
    /// Effect of the variable, in one sentence. Words in backticks are code.
    pub about: &'static str,
    /// Default where it is not set.
    pub default: &'static str,
    /// A value that it can have.
    pub example: &'static str,
}
