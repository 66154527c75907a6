//! Use of the host's networks: setters.

use super::Config;
use crate::{Error, Result, transport::InterfaceRules};
use std::net::SocketAddr;

impl Config {
    /// This rank's own addresses to listen on; port 0 stands for any. Default: those of all network interfaces but loopback; loopback where
    /// the store is there. Each pair uses what works: of named addresses all, else the best, or several equal cables.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).addrs(["10.0.0.1:0".parse().unwrap()]);
    /// ```
    pub fn addrs(mut self, addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.settings.addrs = addrs.into_iter().collect();
        self
    }

    /// The network interfaces that may be used, in the form of `COMITY_INTERFACES`: `en,!en0`, `=eth1`, `10.0.0.0/8`, `^docker`.
    ///
    /// # Errors
    /// [`Error::Config`] when an entry is none of these.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).interfaces("en,!en0")?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn interfaces(mut self, rules: &str) -> Result<Self> {
        let wrong = |why| Error::setting("interfaces", rules, format!("interfaces {rules:?} {why}"));
        self.settings.interfaces = InterfaceRules::parse(rules).map_err(wrong)?;
        Ok(self)
    }

    /// The ports to listen on, where no address names one; default: any. A rank takes a free one on each of its addresses.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).ports(7100..=7199);
    /// ```
    pub fn ports(mut self, range: std::ops::RangeInclusive<u16>) -> Self {
        self.settings.ports = Some((*range.start(), *range.end()));
        self
    }

    /// Whether TCP connections of this process use several paths at once, by the kernel's MPTCP; default: they do not. Linux only. The last group
    /// that a process joins decides for all its new connections. Where the other end does not use it, they are plain TCP.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).mptcp(true);
    /// ```
    pub fn mptcp(mut self, mptcp: bool) -> Self {
        self.settings.mptcp = mptcp;
        self
    }

    /// Lets ranks relay between two others that have no way to each other; default: yes. The two encrypt the traffic.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).relay(false);
    /// ```
    pub fn relay(mut self, relay: bool) -> Self {
        self.settings.relay = relay;
        self
    }
}
