//! Ranks that did not come together.

use comity_kernel::named;
use std::fmt;

/// Failure to come together: the reason, and the ranks on whose account.
///
/// ```
/// # use comity::{Error, ErrorKind, JoinCause, JoinError};
/// # let e = Error::from(JoinError::new("rank 3 never came").of([3]).because(JoinCause::Missing));
/// if let ErrorKind::Join(why) = e.kind()
///     && why.cause == JoinCause::Missing
/// {
///     eprintln!("start ranks {:?}, then try again", why.ranks);
/// }
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinError {
    /// The ranks at fault, by their numbers in the job, or in the group that its members make: those that are missing, or the one
    /// that ended, gave up or cannot be reached. Empty where no rank is known to be at fault.
    pub ranks: Vec<usize>,
    /// Reason for which they did not join.
    pub cause: JoinCause,
    /// The address that was tried in vain, as the sentence has it.
    pub address: Option<String>,
    words: String,
}

named! {
    /// Reason that kept ranks from coming together, as a short name for programs.
    ///
    /// ```
    /// use comity::JoinCause;
    ///
    /// assert_eq!(JoinCause::GaveUp.name(), "gave up");
    /// assert!(JoinCause::ALL.contains(&JoinCause::Missing));
    /// ```
    #[non_exhaustive]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum JoinCause: "cause" {
        /// Something else, or it is not known.
        #[default]
        Other => "other",
        /// Nobody has heard of those ranks.
        Missing => "missing",
        /// They are in the job, and did not come in time to the group that its members make.
        Absent => "absent",
        /// They came, and no connection to them can be made.
        Unreachable => "unreachable",
        /// They ended before all had come together.
        Ended => "ended",
        /// They said that they give up.
        GaveUp => "gave up",
        /// Several processes claim one rank, or one was started for another job.
        Claimed => "claimed",
    }
}

impl JoinError {
    /// An error of these words. The other methods say who is at fault, and how.
    ///
    /// ```
    /// use comity::{Error, JoinCause, JoinError};
    ///
    /// let why = JoinError::new("rank 2 cannot be reached").of([2]).because(JoinCause::Unreachable).at("10.0.0.3:7000");
    /// assert_eq!((&why.ranks, why.address.as_deref()), (&vec![2], Some("10.0.0.3:7000")));
    /// assert_eq!(Error::from(why).to_string(), "rank 2 cannot be reached");
    /// ```
    pub fn new(words: impl Into<String>) -> Self {
        Self { ranks: Vec::new(), cause: JoinCause::Other, address: None, words: words.into() }
    }

    /// Say which ranks are at fault.
    #[must_use]
    pub fn of(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.ranks = ranks.into_iter().collect();
        self
    }

    /// Say what became of them.
    #[must_use]
    pub fn because(mut self, cause: JoinCause) -> Self {
        self.cause = cause;
        self
    }

    /// Say which address was tried in vain.
    #[must_use]
    pub fn at(mut self, address: impl fmt::Display) -> Self {
        self.address = Some(address.to_string());
        self
    }

    /// The same about the same ranks, in other words.
    #[doc(hidden)]
    pub fn in_words(&self, words: String) -> Self {
        Self { words, ..self.clone() }
    }

    /// `rank` says this of why it gives up. Whoever is at fault by its words stays so; else it is that rank.
    #[doc(hidden)]
    pub fn said_by(&self, rank: usize, words: String) -> Self {
        let own = self.ranks.is_empty();
        let told = self.in_words(words);
        if own { told.of([rank]).because(JoinCause::GaveUp) } else { told }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for JoinError {}
