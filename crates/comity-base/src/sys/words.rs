//! Numbers that several processes see at once.

use super::Mapping;
use std::{
    io,
    ops::Deref,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::AtomicU64,
};

/// A shared mapping of atomic numbers, all 0 at first.
#[derive(Debug)]
pub(crate) struct Words {
    map: Mapping,
    count: usize,
}

impl Words {
    /// `count` numbers, and a descriptor to hand to another process.
    pub(crate) fn create(count: usize) -> io::Result<(Self, OwnedFd)> {
        let (map, fd) = Mapping::create(count * size_of::<AtomicU64>())?;
        Ok((Self { map, count }, fd))
    }

    /// Attaches to the numbers behind a descriptor that another process made.
    pub(crate) fn attach(fd: &impl AsFd, count: usize) -> io::Result<Self> {
        Ok(Self { map: Mapping::attach(fd, count * size_of::<AtomicU64>())?, count })
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page aligned, has this length, lives as long as the borrow, and any bits are a number.
        // This process touches it only through here, so only atomically; what other processes do there is out of reach
        // of the language, and can do no more than change the numbers.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn both_ends_see_the_same_numbers() {
        let (a, fd) = Words::create(1024).unwrap();
        let b = Words::attach(&fd, 1024).unwrap();
        a[1023].store(7, Ordering::Relaxed);
        assert_eq!(b[1023].load(Ordering::Relaxed), 7);
        assert!(a.iter().take(1023).all(|w| w.load(Ordering::Relaxed) == 0));
        assert!(Words::attach(&fd, 1 << 20).is_err());
    }
}
