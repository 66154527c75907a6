//! What a row of the table of variables holds. `docs/make/settings.py` reads the titles of topics here.

use std::fmt;

/// What a [`Variable`] is about: the parts of the page of settings, in their order.
///
/// ```
/// assert_eq!(comity::tools::Topic::Limits.to_string(), "Limits of time");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// Which rank this process is, and where.
    Place,
    /// Where ranks meet, and on which addresses they listen.
    Meeting,
    /// Who may join, and what is encrypted.
    Trust,
    /// How long something may take.
    Limits,
    /// What carries bytes between two ranks.
    Links,
    /// What carries out calls, and how.
    Calls,
    /// Where libraries are found.
    Libraries,
    /// What is written down, and where.
    Reports,
    /// What `comity launch` hands to its ranks; nobody else sets these.
    Launcher,
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
    /// What it is about.
    pub topic: Topic,
    /// What it does, in one sentence. Words in backticks are code.
    pub about: &'static str,
    /// What holds where it is not set.
    pub default: &'static str,
    /// A value that it can have.
    pub example: &'static str,
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Place => "This rank",
            Self::Meeting => "How ranks meet",
            Self::Trust => "Keys",
            Self::Limits => "Limits of time",
            Self::Links => "Links",
            Self::Calls => "How calls are carried out",
            Self::Libraries => "Libraries",
            Self::Reports => "What is written down",
            Self::Launcher => "Set by `comity launch`",
        })
    }
}
