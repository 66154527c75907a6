//! Failed step, its error, and the command that mends it.

use rustix::io::Errno;
use std::{fmt, io};

/// Step on a device that can fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceStep {
    /// Registering so many bytes of memory.
    Register(usize),
    /// Connecting a queue pair to the one at this address.
    Connect(String),
    /// Another step, with the function's name.
    Other(String),
}

impl<T: Into<String>> From<T> for DeviceStep {
    fn from(words: T) -> Self {
        Self::Other(words.into())
    }
}

impl fmt::Display for DeviceStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(len) => write!(f, "ibv_reg_mr of {} MiB", len >> 20),
            Self::Connect(at) => write!(f, "ibv_modify_qp to RTR with {at}"),
            Self::Other(words) => f.write_str(words),
        }
    }
}

/// A step that failed on a device, as errors show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceError {
    /// The device's name.
    pub(crate) device: String,
    /// Its address, or the one that was looked for.
    pub(crate) address: String,
    pub step: DeviceStep,
    /// The system's number, 0 where there is none.
    pub code: i32,
}

impl DeviceError {
    /// Some providers return numbers negated.
    pub fn new(device: &str, address: &str, step: impl Into<DeviceStep>, code: i32) -> Self {
        let device = device.to_owned();
        let address = address.to_owned();
        Self { device, address, step: step.into(), code: code.saturating_abs() }
    }

    /// After a call that leaves its number in `errno`.
    pub(super) fn last(device: &str, address: &str, step: impl Into<DeviceStep>) -> Self {
        let code = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self::new(device, address, step, code)
    }

    /// Returns the remedy, if the error number tells.
    fn mend(&self) -> Option<String> {
        let name = &self.device;
        let port = name.strip_prefix("rdma_").unwrap_or("enN");
        let mac = cfg!(target_os = "macos");
        let is = |number: Errno| self.code == number.raw_os_error();
        let is_connecting = matches!(self.step, DeviceStep::Connect(_));
        Some(match () {
            () if mac && is(Errno::INVAL) && is_connecting => format!(
                "give the port an IPv4 address outside of the Thunderbolt bridge: `ifconfig {port}` shows it"
            ),
            () if mac && self.code == 60 => {
                format!("no path to the peer's address: `ifconfig {port}` on both ends")
            }
            () if mac && (is(Errno::BUSY) || self.code == 96) && is_connecting => {
                "what an earlier process left is freed by a restart of this host".to_owned()
            }
            () if mac && is(Errno::BUSY) => {
                format!("the device has 10 queue pairs: end other jobs that use {name}")
            }
            () if is(Errno::NOMEM) && matches!(self.step, DeviceStep::Register(_)) => {
                "`ulimit -l unlimited`, or end other jobs that use the device".to_owned()
            }
            () if is(Errno::NOMEM) || is(Errno::BUSY) => format!("end other jobs that use {name}"),
            () if is(Errno::ACCESS) || is(Errno::PERM) => {
                "this user may not open /dev/infiniband/uverbs*: `ls -l /dev/infiniband`".to_owned()
            }
            () if is(Errno::NODEV) => format!("is the port up? `ibv_devinfo -d {name}`"),
            () if is(Errno::INVAL) && is_connecting => {
                format!("do both ends have an address of one network on the port? `ibv_devinfo -v -d {name}`")
            }
            () => return None,
        })
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.device)?;
        if !self.address.is_empty() {
            write!(f, " ({})", self.address)?;
        }
        write!(f, ": {}", self.step)?;
        if self.code != 0 {
            // With its number in the words.
            write!(f, ": {}", io::Error::from_raw_os_error(self.code))?;
        }
        match self.mend() {
            Some(mend) => write!(f, "; {mend}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_address_step_number_and_remedy_are_named() {
        let t = DeviceError::new("soft0", "10.0.0.1", DeviceStep::Register(64 << 20), -12);
        let words = t.to_string();
        for part in ["soft0 (10.0.0.1)", "ibv_reg_mr", "(os error 12)", "ulimit -l"] {
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(DeviceError::new("soft0", "", "it has no port", 0).to_string(), "soft0: it has no port");
    }
}
