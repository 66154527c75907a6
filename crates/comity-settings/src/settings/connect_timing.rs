//! When ranks make the links that carry data.

use super::vars::{Vars, wrong};
use crate::Result;

/// When ranks make the links that carry data (`COMITY_CONNECT`).
///
/// ```
/// use comity::{Config, ConnectTiming};
///
/// assert_eq!(ConnectTiming::default(), ConnectTiming::Needed);
/// let config = Config::new(0, 1).connect_when(ConnectTiming::All); // no call waits for a link
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectTiming {
    /// The first call that needs a link makes it.
    #[default]
    Needed,
    /// A group makes all its links when it opens: every pair of ranks has one, and no call waits for one.
    All,
}

impl ConnectTiming {
    pub(super) fn read(vars: &Vars<'_>) -> Result<Option<Self>> {
        Ok(match vars.text("COMITY_CONNECT")? {
            None => None,
            Some(text) => Some(match text.as_str() {
                "needed" => Self::Needed,
                "all" => Self::All,
                _ => return wrong("COMITY_CONNECT", &text, "is neither needed nor all"),
            }),
        })
    }
}
