//! By what the ranks of a job know one another, and how much of what they say is secret.

use super::bad;
use crate::{Key, Result, named};
use std::net::{IpAddr, SocketAddr};

named! {
    /// Protection that the job key gives (`COMITY_SECURE`).
    ///
    /// ```
    /// use comity::{Config, Protection};
    ///
    /// assert_eq!((Protection::default(), Protection::Data.name()), (Protection::Handshake, "data"));
    /// let config = Config::new(0, 1).secure(Protection::Data); // encrypt everything that leaves the host
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Protection: "protection" {
        /// Proof of the key when a connection opens. Afterwards it is in the clear, with checksums against damage.
        #[default]
        Handshake => "handshake",
        /// The handshake, and everything that goes over TCP: AES-GCM hides it and shows changes. Shared memory never leaves the host and
        /// is as it was.
        Data => "data",
    }
}

/// The user's explicit choice to have no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Insecure {
    /// No: a key is needed.
    #[default]
    No,
    /// Yes, at addresses that the internet does not reach.
    Private,
    /// Yes, at any address.
    Public,
}

impl Insecure {
    /// An error for an address that the internet may reach, where the user did not ask for that too.
    pub fn check_listen(self, who: &str, at: SocketAddr) -> Result<()> {
        if self != Self::Private || !is_public(at.ip()) {
            return Ok(());
        }
        bad(format!(
            "{who} would listen at {at} without a key, and that address is public: anyone could join; give the ranks a key (COMITY_KEY_FILE), name a private address (COMITY_ADDRS, MASTER_ADDR or the hostfile), or say COMITY_INSECURE=public"
        ))
    }
}

/// Source of the key.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// This rank holds it.
    Held(&'a Key),
    /// Rank 0 makes one and tells it over the exchange, unless rank 0 holds one.
    Exchange,
    /// None was wanted.
    Nobody,
}

/// Returns true if hosts elsewhere on the internet may reach this address.
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            // 100.64.0.0/10 is shared by providers and overlay networks, and routed by neither.
            let shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            !(ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified() || shared)
        }
        IpAddr::V6(ip) => ip.segments()[0] & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_are_told_from_private_ones() {
        for (text, public) in [
            ("127.0.0.1", false),
            ("10.1.2.3", false),
            ("172.16.0.1", false),
            ("172.32.0.1", true),
            ("192.168.1.1", false),
            ("169.254.1.1", false),
            ("100.64.0.1", false),
            ("100.128.0.1", true),
            ("8.8.8.8", true),
            ("::1", false),
            ("fe80::1", false),
            ("fd00::1", false),
            ("2a00:1450::1", true),
            ("::ffff:8.8.8.8", true),
            ("::ffff:10.0.0.1", false),
        ] {
            let at = SocketAddr::new(text.parse().unwrap(), 7000);
            assert_eq!(is_public(at.ip()), public, "{text}");
            let refused = Insecure::Private.check_listen("rank 0", at);
            assert_eq!(refused.is_err(), public, "{text}");
            if let Err(e) = refused {
                let e = e.to_string();
                assert!(
                    e.contains(text.trim_start_matches("::ffff:")) && e.contains("COMITY_INSECURE=public"),
                    "{e}"
                );
            }
            Insecure::No.check_listen("rank 0", at).unwrap();
            Insecure::Public.check_listen("rank 0", at).unwrap();
        }
    }
}
