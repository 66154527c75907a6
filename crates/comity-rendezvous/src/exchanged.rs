//! Text that rank 0 posts on an exchange: the addresses of its store, and the key by which the ranks know one another.
//!
//! `10.0.0.1:5000,[fd00::1]:5000/key-HEX` where rank 0 has made the job's key; `/held` where it holds one that every rank must have of its
//! own; `/open` where none is wanted. Nothing here is ever part of an error: it may be the key.

use crate::{Error, Key, Result, exchange::MAX_EXCHANGE_TEXT, settings::Trust};
use std::{fmt::Write, net::SocketAddr};
use zeroize::Zeroizing;

const KEY: &str = "key-";
const HELD: &str = "held";
const OPEN: &str = "open";

/// Rank 0's text, and the key that it stands for. Makes a key where rank 0 has none and wants one.
pub(super) fn compose(at: &[SocketAddr], trust: Trust<'_>, key: &Key) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(MAX_EXCHANGE_TEXT));
    for (i, at) in at.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{at}", if i == 0 { "" } else { "," });
    }
    text.push('/');
    match trust {
        Trust::Held(_) => text.push_str(HELD),
        Trust::Nobody => text.push_str(OPEN),
        Trust::Exchange => {
            text.push_str(KEY);
            for byte in key.bytes() {
                let _ = write!(text, "{byte:02x}");
            }
        }
    }
    text
}

/// Reads the text on another rank: the store's addresses, and the key.
pub(super) fn read(text: &str, trust: Trust<'_>, rank: usize) -> Result<(Vec<SocketAddr>, Key)> {
    let nonsense = || Error::join("the exchange holds what no rank 0 of this version of Comity gives");
    let (at, word) = text.rsplit_once('/').ok_or_else(nonsense)?;
    let at: Vec<SocketAddr> =
        at.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| nonsense())?;
    let differ = |zero: &str, other: &str| {
        Error::config(format!(
            "rank 0 {zero}, but rank {rank} {other}; give all ranks the same COMITY_KEY_FILE, or none of them, and COMITY_INSECURE to all or none"
        ))
    };
    let ours = match trust {
        Trust::Held(_) => "has a key of its own (COMITY_KEY_FILE)",
        Trust::Exchange => "has none and was not told to do without one (COMITY_INSECURE)",
        Trust::Nobody => "wants none (COMITY_INSECURE)",
    };
    match (word, trust) {
        (HELD, Trust::Held(key)) => Ok((at, key.clone())),
        (OPEN, Trust::Nobody) => Ok((at, Key::zeros())),
        (HELD, _) => Err(differ("has a key of its own (COMITY_KEY_FILE)", ours)),
        (OPEN, _) => Err(differ("wants no key (COMITY_INSECURE)", ours)),
        (word, trust) => {
            let hex = word.strip_prefix(KEY).ok_or_else(nonsense)?;
            let key = Key::from_hex(hex).map_err(|_| nonsense())?;
            match trust {
                Trust::Exchange => Ok((at, key)),
                _ => Err(differ("has made a key for the job", ours)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comity_base::ErrorKind;

    #[test]
    fn all_ranks_agree_or_are_told_what_differs() {
        let long = "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535".parse().unwrap();
        let at: Vec<SocketAddr> = vec!["[::1]:5000".parse().unwrap(), long, long, long, long, long];
        let own = Key::from([7; 32]);
        let trusts = [Trust::Held(&own), Trust::Exchange, Trust::Nobody];
        for (i, zero) in trusts.into_iter().enumerate() {
            let key = match zero {
                Trust::Held(key) => key.clone(),
                Trust::Exchange => Key::from([9; 32]),
                Trust::Nobody => Key::zeros(),
            };
            let text = compose(&at, zero, &key);
            assert!(text.len() <= MAX_EXCHANGE_TEXT);
            for (j, other) in trusts.into_iter().enumerate() {
                match read(&text, other, 3) {
                    Ok((there, got)) => {
                        assert!(i == j && there == at && got.bytes() == key.bytes());
                    }
                    Err(e) => {
                        assert!(matches!(e.kind(), ErrorKind::Config(_)), "{e}");
                        let e = e.to_string();
                        assert!(i != j && e.contains("rank 0") && e.contains("rank 3"), "{e}");
                        assert!(!e.contains("0909"), "{e}");
                    }
                }
            }
        }
    }

    #[test]
    fn nonsense_is_not_shown() {
        for text in
            ["", "127.0.0.1:1", "127.0.0.1:1/", "127.0.0.1:1/key-5a5a", "x/held", "127.0.0.1:1/key-", "5a/5a"]
        {
            let e = read(text, Trust::Exchange, 1).unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::Join(words) if !words.to_string().contains("5a")), "{e}");
        }
    }
}
