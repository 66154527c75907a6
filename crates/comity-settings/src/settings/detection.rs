//! Detection limit: the longest silence before the others give a rank up.

use super::{bad_value, vars::seconds};
use crate::Result;
use std::time::Duration;

/// Below this an ordinary pause of the system is taken for a death.
const SHORTEST: Duration = Duration::from_millis(100);
/// Above this `Off` is meant.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Detection limit: the longest silence before the others give a rank up for dead.
///
/// A rank that is killed is noticed at once, whatever you choose here. The choice is for ranks that fall silent: a rank that is stopped, or
/// whose host lost its network or its power. Each rank sends ten beats within the limit, and at least two a second, whatever its program
/// does. A job survives a pause that is shorter than the limit by the time between two beats. The same holds for a cable that is
/// unplugged: the others ask a silent rank over new connections.
///
/// The ranks agree on the most patient of their choices when they join.
///
/// ```
/// use comity::{Config, Detection};
/// use std::time::Duration;
///
/// assert_eq!(Detection::Normal.limit(), Some(Duration::from_secs(5)));
/// assert_eq!(Detection::Off.limit(), None);
/// let config = Config::new(0, 1).detection(Detection::After(Duration::from_secs(2)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Detection {
    /// After 1 s: for wired hosts that are not overloaded.
    Fast,
    /// After 5 s.
    #[default]
    Normal,
    /// After 30 s: for Wi-Fi, and for computers that doze.
    Patient,
    /// After this; from 0.1 s to a day.
    After(Duration),
    /// Never: for a rank that is stopped in a debugger. A host that vanishes is still noticed, by TCP, after about a minute; on its
    /// own host only a rank that ends is.
    Off,
}

impl Detection {
    /// Returns the longest silence of a rank; `None` is no limit.
    pub fn limit(self) -> Option<Duration> {
        match self {
            Self::Fast => Some(Duration::from_secs(1)),
            Self::Normal => Some(Duration::from_secs(5)),
            Self::Patient => Some(Duration::from_secs(30)),
            Self::After(limit) => Some(limit),
            Self::Off => None,
        }
    }

    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::After(limit) if limit < SHORTEST || limit > LONGEST => bad_value(
                "COMITY_DETECTION",
                format_args!("{limit:?}"),
                format!("detection (COMITY_DETECTION) is {limit:?}; allowed is 0.1 s to a day, or off"),
            ),
            _ => Ok(()),
        }
    }

    /// `COMITY_DETECTION`.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "fast" => Ok(Self::Fast),
            "normal" => Ok(Self::Normal),
            "patient" => Ok(Self::Patient),
            "off" => Ok(Self::Off),
            _ => seconds(text).map(Self::After).ok_or(
                "is none of fast (1 s), normal (5 s), patient (30 s) and off, nor a number of seconds such as 2.5",
            ),
        }
    }
}
