//! By what the ranks of a job know one another, and how much of what they say is secret.

use super::{Config, Launcher, Meet, bad, vars::Vars, vars::wrong};
use crate::{Key, Result};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Once,
};

/// Protection that the job key gives (`COMITY_SECURE`).
///
/// ```
/// use comity::{Config, Secure};
///
/// assert_eq!(Secure::default(), Secure::Handshake);
/// let config = Config::new(0, 1).secure(Secure::Data); // encrypt everything that leaves the host
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Secure {
    /// Proof of the key when a connection opens. Afterwards it is in the clear, with checksums against damage.
    #[default]
    Handshake,
    /// The handshake, and everything that goes over TCP: AES-GCM hides it and shows changes. Shared memory never leaves the host and
    /// is as it was.
    Data,
}

impl Secure {
    /// `COMITY_SECURE`.
    pub(super) fn read(vars: &Vars<'_>) -> Result<Option<Self>> {
        let Some(text) = vars.text("COMITY_SECURE")? else { return Ok(None) };
        match text.as_str() {
            "handshake" => Ok(Some(Self::Handshake)),
            "data" => Ok(Some(Self::Data)),
            other => wrong("COMITY_SECURE", other, "is neither handshake nor data"),
        }
    }
}

/// The user's explicit choice to have no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Insecure {
    /// No: a key is needed.
    #[default]
    No,
    /// Yes, at addresses that the internet does not reach.
    Private,
    /// Yes, at any address.
    Public,
}

impl Insecure {
    /// `COMITY_INSECURE`.
    pub(super) fn read(vars: &Vars<'_>) -> Result<Option<Self>> {
        let Some(text) = vars.text("COMITY_INSECURE")? else { return Ok(None) };
        match text.as_str() {
            "0" | "false" | "False" => Ok(Some(Self::No)),
            "1" | "true" | "True" => Ok(Some(Self::Private)),
            "public" => Ok(Some(Self::Public)),
            other => wrong("COMITY_INSECURE", other, "is neither 1 nor 0 (true, false), nor public"),
        }
    }

    /// An error for an address that the internet may reach, where the user did not ask for that too.
    pub(crate) fn check_listen(self, who: &str, at: SocketAddr) -> Result<()> {
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
pub(crate) enum Trust<'a> {
    /// This rank holds it.
    Held(&'a Key),
    /// Rank 0 makes one and tells it over the exchange, unless rank 0 holds one.
    Exchange,
    /// None was wanted.
    Nobody,
}

impl Config {
    /// By what this rank will know the others; an error that says what to do if by nothing.
    pub(crate) fn trust(&self) -> Result<Trust<'_>> {
        match (&self.key, self.insecure, &self.meet) {
            (Some(key), ..) => Ok(Trust::Held(key)),
            (None, Insecure::No, Meet::Exchange(_)) => Ok(Trust::Exchange),
            (None, Insecure::No, _) => bad(self.no_key()),
            (None, ..) => {
                note_once();
                Ok(Trust::Nobody)
            }
        }
    }

    /// [`tools::trust_in_words`](crate::tools::trust_in_words).
    pub(crate) fn trust_in_words(&self) -> &'static str {
        let sealed = self.secure == Secure::Data;
        match (&self.key, self.insecure, &self.meet) {
            _ if self.size == 1 => "none is needed",
            (Some(_), ..) if sealed => "held; TCP is encrypted",
            (Some(_), ..) => "held",
            (None, Insecure::No, Meet::Exchange(_)) if sealed => {
                "rank 0 shares one, unless it holds one; TCP is encrypted"
            }
            (None, Insecure::No, Meet::Exchange(_)) => "rank 0 shares one, unless it holds one",
            (None, Insecure::No, _) => "missing: joining would be refused (COMITY_KEY_FILE, COMITY_INSECURE)",
            (None, ..) => "none is wanted (COMITY_INSECURE): whoever can connect can join",
        }
    }

    fn no_key(&self) -> String {
        let channel = match self.found.launcher {
            Launcher::OpenMpi => "with MASTER_ADDR set, mpirun has no way to hand one over",
            Launcher::Slurm => "srun has no way to hand one over, but srun --mpi=pmi2 has",
            Launcher::Mlx => "MLX's hostfile has no place for one",
            Launcher::Explicit => "the program gave none",
            _ => "there is no launcher to hand one over",
        };
        format!(
            "rank {} of {} has no job key ({channel}): start the job with `comity launch`, or give every rank the same key: COMITY_KEY_FILE names a file of 32 random bytes that only you can read (head -c 32 /dev/urandom > key; chmod 600 key); or say that none is wanted: COMITY_INSECURE=1, or `comity ... --insecure`",
            self.rank, self.size
        )
    }

    /// Checks a configuration's key before anything is opened.
    pub(super) fn check_trust(&self) -> Result<()> {
        if self.insecure == Insecure::No {
            return Ok(());
        }
        if self.key.is_some() {
            return bad("a key is given and insecure (COMITY_INSECURE) is asked for; drop one of them");
        }
        if self.secure == Secure::Data {
            return bad(
                "secure data (COMITY_SECURE=data) needs a key, but insecure (COMITY_INSECURE) is asked for; drop one of them",
            );
        }
        Ok(())
    }
}

fn note_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // It was asked for.
        tracing::info!("no job key: whoever can connect and knows the job's name can join");
    });
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
