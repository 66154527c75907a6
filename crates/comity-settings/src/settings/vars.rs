//! Single variables: read once, noted, and parsed strictly, so that every error names the variable and its value.

use super::{HostPort, MAX_SIZE, bad_value};
use crate::{
    Error, Result,
    address::{self, shown},
    transport::Variables,
};
use std::{cell::RefCell, ffi::OsString, fmt::Display, time::Duration};

/// The environment, and what was read of it.
pub(super) struct Vars<'a> {
    var: &'a dyn Fn(&str) -> Option<OsString>,
    seen: RefCell<Vec<(&'static str, String)>>,
}

impl<'a> Vars<'a> {
    pub(super) fn new(var: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self { var, seen: RefCell::default() }
    }

    /// Every variable that was read and set, in the order of reading.
    pub(super) fn into_seen(self) -> Vec<(&'static str, String)> {
        self.seen.into_inner()
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        (self.var)(name).is_some()
    }

    /// Reads a value as `parse` does, whose error follows the variable and its value.
    pub(super) fn parsed<T, W: AsRef<str>>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, W>,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        parse(&text).map(Some).or_else(|why| wrong(name, &text, why.as_ref()))
    }

    pub(super) fn flag(&self, name: &'static str) -> Result<bool> {
        match self.text(name)?.as_deref() {
            None | Some("0" | "false" | "False") => Ok(false),
            Some("1" | "true" | "True") => Ok(true),
            Some(other) => wrong(name, other, "is neither 1 nor 0 (true, false)"),
        }
    }

    pub(super) fn seconds(&self, name: &'static str) -> Result<Option<Duration>> {
        self.parsed(name, |text| seconds(text).ok_or("is not a number of seconds such as 300 or 2.5"))
    }

    /// Reads one `host:port`, or several with a comma between.
    pub(super) fn host_ports(&self, name: &'static str) -> Result<Option<Vec<HostPort>>> {
        self.parsed(name, |text| address::parse_list(text).map_err(|why| format!("is not host:port: {why}")))
    }

    /// Rank and size; `None` when neither is set.
    pub(super) fn rank_and_size(
        &self,
        rank_is: &'static str,
        size_is: &'static str,
    ) -> Result<Option<(usize, usize)>> {
        let rank = self.number(rank_is, MAX_SIZE - 1)?;
        let size = self.number(size_is, MAX_SIZE)?;
        match (rank, size) {
            (None, None) => Ok(None),
            (Some(r), None) => {
                unfit(rank_is, r, format!(" is set, but {size_is} is not; set both, or neither to run alone"))
            }
            (None, Some(s)) => {
                unfit(size_is, s, format!(" is set, but {rank_is} is not; set both, or neither to run alone"))
            }
            (Some(_), Some(0)) => {
                unfit(size_is, 0, format!(": a job has at least one rank; allowed is 1 to {MAX_SIZE}"))
            }
            (Some(r), Some(s)) if r >= s => {
                unfit(rank_is, r, format!(", but {size_is}={s}; allowed is 0 to {}", s - 1))
            }
            (Some(r), Some(s)) => Ok(Some((r, s))),
        }
    }

    /// Rank and size on this host; launchers other than Comity's own may tell only one of them.
    pub(super) fn local(
        &self,
        rank_is: &'static str,
        size_is: &'static str,
        size: usize,
    ) -> Result<Option<(usize, usize)>> {
        let rank = self.number(rank_is, MAX_SIZE - 1)?;
        let local = self.number(size_is, MAX_SIZE)?;
        let (Some(r), Some(l)) = (rank, local) else { return Ok(None) };
        if l == 0 || l > size {
            return unfit(size_is, l, format!(", in a job of {size} ranks; allowed is 1 to {size}"));
        }
        if r >= l {
            return unfit(rank_is, r, format!(", but {size_is}={l}; allowed is 0 to {}", l - 1));
        }
        Ok(Some((r, l)))
    }

    /// `MASTER_ADDR` and `MASTER_PORT`.
    pub(super) fn master(&self) -> Result<Option<Vec<HostPort>>> {
        self.address("MASTER_ADDR", "MASTER_PORT")
    }

    /// An address of rank 0's host, or several with a comma between, and a port of it.
    pub(super) fn address(
        &self,
        addr_is: &'static str,
        port_is: &'static str,
    ) -> Result<Option<Vec<HostPort>>> {
        let addr = self.text(addr_is)?;
        let port = self.text(port_is)?;
        match (addr, port) {
            (None, None) => Ok(None),
            (Some(a), None) => unfit(
                addr_is,
                a,
                format!(" is set, but {port_is} is not; set it to a free port of that host"),
            ),
            (None, Some(p)) => unfit(
                port_is,
                p,
                format!(" is set, but {addr_is} is not; set it to the address of rank 0's host"),
            ),
            (Some(a), Some(p)) => {
                let Some(port) = address::parse_port(&p).ok().filter(|port| *port != 0) else {
                    return wrong(port_is, &p, "is not a number from 1 to 65535");
                };
                match a.split(',').map(|part| HostPort::new(part.trim(), port)).collect() {
                    Ok(all) => Ok(Some(all)),
                    Err(_) => wrong(addr_is, &a, "is neither a host name nor an address"),
                }
            }
        }
    }
}

/// A number of seconds, as variables have it.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| plain).and_then(|s| Duration::try_from_secs_f64(s).ok())
}

/// The error for a variable whose value does not go with others; `why` follows `NAME=value` at once.
pub(super) fn unfit<T>(name: &str, value: impl Display, why: impl Display) -> Result<T> {
    bad_value(name, &value, format!("{name}={value}{why}"))
}

pub(super) fn wrong<T>(name: &str, value: &str, why: &str) -> Result<T> {
    Err(refusal(name, value, why))
}

pub(super) fn refusal(name: &str, value: &str, why: &str) -> Error {
    Error::setting(name, value, format!("{name}={} {why}", shown(value)))
}

impl Variables for Vars<'_> {
    fn text(&self, name: &'static str) -> Result<Option<String>> {
        let Some(value) = (self.var)(name) else { return Ok(None) };
        let value =
            value.into_string().or_else(|v| wrong(name, &v.to_string_lossy(), "is not valid UTF-8"))?;
        if value.is_empty() {
            return bad_value(name, "", format!("{name} is set but empty; give it a value or unset it"));
        }
        let mut seen = self.seen.borrow_mut();
        if !seen.iter().any(|(n, _)| *n == name) {
            seen.push((name, value.clone()));
        }
        Ok(Some(value))
    }

    fn number(&self, name: &'static str, most: usize) -> Result<Option<usize>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        // parse would take "+1".
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(n) if digits && n <= most => Ok(Some(n)),
            _ => wrong(name, &text, &format!("is not a whole number from 0 to {most}")),
        }
    }

    fn refusal(&self, name: &str, value: &str, why: &str) -> Error {
        refusal(name, value, why)
    }
}
