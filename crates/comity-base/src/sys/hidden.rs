//! Memory for a secret: a page of its own that stays out of core dumps, wiped at the end; and a stack without traces.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::{
    hint::black_box,
    ptr::{self, NonNull},
    sync::{Mutex, PoisonError},
};
use zeroize::Zeroize;

const SIZE: usize = 32;
/// Pages of any size this is at most; a mapping is rounded up to whole ones.
const PAGE: usize = 4096;

/// Wiped pages for the next secrets: copies of a key come and go with every handshake, and a page costs three system calls.
static SPARE: Mutex<Vec<HiddenBytes>> = Mutex::new(Vec::new());

/// 32 bytes that a core dump of this process does not show: at the front of a page that dumps leave out, which is never unmapped.
#[derive(Debug)]
pub struct HiddenBytes(NonNull<[u8; SIZE]>);

// SAFETY: it owns the page as a box owns its content, and hands out references by the borrow rules.
unsafe impl Send for HiddenBytes {}
// SAFETY: as above.
unsafe impl Sync for HiddenBytes {}

impl HiddenBytes {
    /// A spare page, or a new one; all zeros. Where the system gives no page it is other memory, which a dump shows.
    pub(crate) fn new() -> Self {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.or_else(Self::map).unwrap_or_else(|| Self(NonNull::from(Box::leak(Box::default()))))
    }

    fn map() -> Option<Self> {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the system's choice aliases nothing.
        let page = unsafe { mmap_anonymous(ptr::null_mut(), PAGE, flags, MapFlags::PRIVATE) };
        let page = page.ok().and_then(NonNull::new)?;
        // SAFETY: our own page. An old kernel may refuse: then it is in a dump, as on systems that have no such advice.
        #[cfg(target_os = "linux")]
        let _ = unsafe { rustix::mm::madvise(page.as_ptr(), PAGE, rustix::mm::Advice::LinuxDontDump) };
        Some(Self(page.cast()))
    }

    pub(crate) fn bytes(&self) -> &[u8; SIZE] {
        // SAFETY: mapped, initialised to zeros by the system, and ours while `self` lives.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; SIZE] {
        // SAFETY: as in `bytes`, and `self` is borrowed alone.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for HiddenBytes {
    fn drop(&mut self) {
        self.bytes_mut().zeroize();
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(Self(self.0));
    }
}

/// Run `f`, which works with a secret, and overwrite the stack that it has used: a dump shows dead frames too.
pub fn traceless<T>(f: impl FnOnce() -> T) -> T {
    // Its frame, and all below it, lie where `wipe` writes next.
    #[inline(never)]
    fn apart<T>(f: impl FnOnce() -> T) -> T {
        f()
    }
    #[inline(never)]
    fn wipe() {
        // 64 KiB: more than a handshake takes, without optimisation too; threads have 2 MiB. By words: each is a write of its own, and by bytes
        // they were half of what a start took in debug builds.
        let mut stack = [0u64; 8 << 10];
        stack.zeroize();
        black_box(&stack);
    }
    let value = apart(f);
    wipe();
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_it_is_given() {
        let mut a = HiddenBytes::new();
        assert_eq!(a.bytes(), &[0; SIZE]);
        a.bytes_mut().fill(7);
        assert_eq!(a.bytes(), &[7; SIZE]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn dumps_leave_its_page_out() {
        let a = HiddenBytes::new();
        let at = a.bytes().as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut ours = false;
        let flags = maps.lines().find_map(|line| {
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            let bound = |s| usize::from_str_radix(s, 16).ok();
            if let Some((from, to)) = range.and_then(|(a, b)| bound(a).zip(bound(b))) {
                ours = (from..to).contains(&at);
            }
            line.strip_prefix("VmFlags:").filter(|_| ours)
        });
        assert!(flags.unwrap().split(' ').any(|f| f == "dd"), "{flags:?}");
    }
}
