//! Effect of a round on the ends of its messages: the time for which each keeps a rank busy, and the delay of bytes that cross. Imports
//! `pairs`.

use crate::pairs::LinkClass;

/// Pattern of a rank's sends and receives in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Traffic {
    /// A rank only sends, or only takes, or does both with one other.
    OneWay,
    /// A rank sends to several and takes from several. Measured: nearly three times as busy.
    BothWays,
    /// The same, but everyone sends the same bytes to all and nothing is folded: nothing waits for a slower one.
    Same,
}

/// Factor for the busy time of a rank under [`Traffic::BothWays`], over that of one message alone.
const BOTH_WAYS: f64 = 2.8;
/// Further time of [`Traffic::Same`] bytes for each message above [`FEW`], as a part of their time.
const CROWDED: f64 = 0.035;
/// Number of [`Traffic::Same`] messages at once that cost their bytes nothing.
const FEW: f64 = 3.0;

impl Traffic {
    /// The part of a message's time for which each further one keeps a rank of this kind of link busy.
    pub(crate) fn busy(self, class: &LinkClass) -> f64 {
        class.busy
            * match self {
                Self::OneWay => 1.0,
                Self::BothWays => BOTH_WAYS,
                Self::Same => class.same,
            }
    }

    /// Returns the factor for the time of bytes that come from `messages` others at once.
    pub(crate) fn crowd(self, class: &LinkClass, messages: f64) -> f64 {
        match self {
            Self::BothWays if messages > 1.0 => class.crowd,
            Self::OneWay | Self::BothWays => 1.0,
            Self::Same => 1.0 + CROWDED * (messages - FEW).max(0.0),
        }
    }
}
