//! The library, found at run time: seventeen functions that every provider has, and five that some lack.

use super::{
    Device,
    abi::{
        ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid, ibv_mr, ibv_pd,
        ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    },
};
use crate::sys::library::{SymbolScope, functions, load_first, named};
use rustix::io::Errno;
use std::{
    ffi::{CStr, OsString, c_char, c_int, c_uint, c_void},
    fmt, io,
    sync::OnceLock,
};

/// Names it in place of those below.
const VARIABLE: &str = "COMITY_VERBS";
const NAMES: [&str; 2] = if cfg!(target_os = "macos") {
    ["/usr/lib/librdma.dylib", "librdma.dylib"]
} else {
    ["libibverbs.so.1", "libibverbs.so"]
};

functions! {
    pub(super) struct VerbsFunctions {
        get_device_list "ibv_get_device_list" (*mut c_int) -> *mut *mut ibv_device;
        free_device_list "ibv_free_device_list" (*mut *mut ibv_device);
        get_device_name "ibv_get_device_name" (*mut ibv_device) -> *const c_char;
        open_device "ibv_open_device" (*mut ibv_device) -> *mut ibv_context;
        close_device "ibv_close_device" (*mut ibv_context) -> c_int;
        query_device "ibv_query_device" (*mut ibv_context, *mut ibv_device_attr) -> c_int;
        query_port "ibv_query_port" (*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        query_gid "ibv_query_gid" (*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        alloc_pd "ibv_alloc_pd" (*mut ibv_context) -> *mut ibv_pd;
        dealloc_pd "ibv_dealloc_pd" (*mut ibv_pd) -> c_int;
        reg_mr "ibv_reg_mr" (*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        dereg_mr "ibv_dereg_mr" (*mut ibv_mr) -> c_int;
        create_cq "ibv_create_cq" (*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        destroy_cq "ibv_destroy_cq" (*mut ibv_cq) -> c_int;
        create_qp "ibv_create_qp" (*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        destroy_qp "ibv_destroy_qp" (*mut ibv_qp) -> c_int;
        modify_qp "ibv_modify_qp" (*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    }
    optional {
        create_comp_channel "ibv_create_comp_channel" (*mut ibv_context) -> *mut ibv_comp_channel;
        destroy_comp_channel "ibv_destroy_comp_channel" (*mut ibv_comp_channel) -> c_int;
        get_cq_event "ibv_get_cq_event" (*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ack_cq_events "ibv_ack_cq_events" (*mut ibv_cq, c_uint);
        wc_status_str "ibv_wc_status_str" (u32) -> *const c_char;
    }
}

/// The library. There is one for the process.
#[derive(Debug)]
pub struct Verbs {
    pub(super) call: VerbsFunctions,
    /// Under which name it was found.
    name: String,
}

impl Verbs {
    /// Load it, once for the process. The error says which names were tried.
    pub fn find() -> Result<&'static Self, &'static str> {
        static FOUND: OnceLock<Result<Verbs, String>> = OnceLock::new();
        let found = FOUND.get_or_init(|| Self::open(named(VARIABLE)));
        found.as_ref().map_err(String::as_str)
    }

    fn open(named: Option<OsString>) -> Result<Self, String> {
        let names = named.map_or_else(|| NAMES.map(OsString::from).to_vec(), |n| vec![n]);
        let mut tried = Vec::new();
        for name in names {
            let shown = name.to_string_lossy().into_owned();
            // SAFETY: loading it runs its constructors, which is what a program linked to it would do.
            let (lib, _) = match unsafe { load_first(std::slice::from_ref(&name), SymbolScope::Own) } {
                Ok(found) => found,
                Err(why) => {
                    tried.extend(why);
                    continue;
                }
            };
            // SAFETY: these are the header's signatures, the same since version 1.1 of the interface.
            match unsafe { VerbsFunctions::load(lib) } {
                Ok(call) => return Ok(Self { call, name: shown }),
                Err(symbol) => tried.push(format!("{shown} (it has no {symbol})")),
            }
        }
        Err(format!(
            "no library with RDMA verbs can be loaded: {}; {VARIABLE} names another",
            tried.join(", ")
        ))
    }

    /// Under which name it was found.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The devices that it lists, in its order.
    pub fn devices(&self) -> Vec<String> {
        self.with_devices(|list| list.iter().map(|(name, _)| name.clone()).collect())
    }

    /// Each device with its address as errors show it, or why it cannot be used, in words.
    pub fn survey(&self) -> Vec<(String, Result<String, String>)> {
        let look = |name: String| {
            let at = Device::look(&name).map(|at| at.to_string()).map_err(|t| t.to_string());
            (name, at)
        };
        self.devices().into_iter().map(look).collect()
    }

    /// Returns the result of `use_them` on the devices, which are lent until it returns.
    pub(super) fn with_devices<T>(&self, use_them: impl FnOnce(&[(String, *mut ibv_device)]) -> T) -> T {
        let mut n = 0;
        // SAFETY: `n` outlives the call.
        let list = unsafe { (self.call.get_device_list)(&mut n) };
        if list.is_null() {
            return use_them(&[]);
        }
        let devices: Vec<_> = (0..usize::try_from(n).unwrap_or(0))
            .map(|i| {
                // SAFETY: the list has `n` entries, and a device's name lives as long as the list.
                unsafe {
                    let device = *list.add(i);
                    let name = (self.call.get_device_name)(device);
                    (CStr::from_ptr(name).to_string_lossy().into_owned(), device)
                }
            })
            .collect();
        let out = use_them(&devices);
        // SAFETY: the library made it, and no entry is used after this; an opened device stays open.
        unsafe { (self.call.free_device_list)(list) };
        out
    }

    /// The status of a completion in the library's words.
    pub(super) fn status(&self, status: u32) -> String {
        let words = self.call.wc_status_str.map(|f| {
            // SAFETY: it returns a constant text for any number.
            unsafe { f(status) }
        });
        match words.filter(|w| !w.is_null()) {
            // SAFETY: a constant text, checked not to be null.
            Some(words) => unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned(),
            None => "no words for it".into(),
        }
    }
}

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
