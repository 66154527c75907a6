//! When ranks make the links that carry data.

use crate::named;

named! {
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
    pub enum ConnectTiming: "time" {
        /// The first call that needs a link makes it.
        #[default]
        Needed => "needed",
        /// A group makes all its links when it opens: every pair of ranks has one, and no call waits for one.
        All => "all",
    }
}
