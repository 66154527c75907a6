//! Registered memory: the check that a device makes of each work request, and the copies it makes then.
#![allow(unsafe_code, reason = "memory that a client of it registered")]

use crate::abi::{IBV_ACCESS_LOCAL_WRITE, ibv_sge};
use std::{collections::HashMap, ptr, slice};

/// A registered range. Whoever registered it keeps it mapped until it is deregistered, as verbs demand.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) device: usize,
    pub(crate) domain: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) access: i32,
}

/// Memory within one region, checked when it was made and used before the world's lock is given back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    address: u64,
    length: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_key: HashMap<u32, Region>,
    last: u32,
}

impl Regions {
    pub(crate) fn add(&mut self, region: Region) -> u32 {
        // As of hardware: some number with a few low bits to spare, never the same twice.
        self.last = self.last.wrapping_add(0x100);
        self.by_key.insert(self.last, region);
        self.last
    }

    pub(crate) fn remove(&mut self, key: u32) -> Option<Region> {
        self.by_key.remove(&key)
    }

    pub(crate) fn of_device(&self, device: usize) -> usize {
        self.by_key.values().filter(|r| r.device == device).count()
    }

    /// None: some part of the list is not registered in this domain, or not for this use.
    pub(crate) fn segments(&self, list: &[ibv_sge], domain: u32, write: bool) -> Option<Vec<Segment>> {
        let mut segments = Vec::with_capacity(list.len());
        for part in list.iter().filter(|p| p.length > 0) {
            let region = self.by_key.get(&part.lkey)?;
            let end = part.addr.checked_add(u64::from(part.length))?;
            let inside = part.addr >= region.start && end <= region.start + region.length;
            let allowed = !write || region.access & IBV_ACCESS_LOCAL_WRITE != 0;
            if region.domain != domain || !inside || !allowed {
                return None;
            }
            segments.push(Segment { address: part.addr, length: part.length as usize });
        }
        Some(segments)
    }
}

/// Append what the segments hold.
pub(crate) fn gather(segments: &[Segment], to: &mut Vec<u8>) {
    for segment in segments {
        let from: *const u8 = ptr::with_exposed_provenance(segment.address as usize);
        // SAFETY: the segment lies in a registered region, which its owner keeps mapped and does not write to while a
        // work request uses it.
        to.extend_from_slice(unsafe { slice::from_raw_parts(from, segment.length) });
    }
}

/// Inline data: read when the request is posted, from memory that need not be registered.
///
/// # Safety
/// The list names readable memory.
pub(crate) unsafe fn gather_inline(list: &[ibv_sge]) -> Vec<u8> {
    let all = list.iter().filter(|p| p.length > 0);
    let segments: Vec<Segment> =
        all.map(|p| Segment { address: p.addr, length: p.length as usize }).collect();
    let mut bytes = Vec::new();
    gather(&segments, &mut bytes);
    bytes
}

/// Spread bytes over the segments, which have room for them.
pub(crate) fn scatter(segments: &[Segment], mut bytes: &[u8]) {
    for segment in segments {
        let count = segment.length.min(bytes.len());
        let (now, later) = bytes.split_at(count);
        let to: *mut u8 = ptr::with_exposed_provenance_mut(segment.address as usize);
        // SAFETY: as in `gather`, and registered for writing; the owner does not touch it before the completion.
        unsafe { ptr::copy_nonoverlapping(now.as_ptr(), to, count) };
        bytes = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registered_memory_is_touched() {
        let mut regions = Regions::default();
        let mut memory = vec![1u8, 2, 3, 4, 5, 6, 7, 8];
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let key = regions.add(Region { device: 0, domain: 7, start, length: 8, access: 0 });
        let part = |from: u64, length, lkey| ibv_sge { addr: start + from, length, lkey };
        let list = [part(6, 2, key), part(0, 0, 99), part(0, 1, key)];
        let mut bytes = Vec::new();
        gather(&regions.segments(&list, 7, false).unwrap(), &mut bytes);
        assert_eq!(bytes, [7, 8, 1]);
        assert!(regions.segments(&list, 7, true).is_none(), "not registered for writing");
        assert!(regions.segments(&list, 8, false).is_none(), "another domain");
        assert!(regions.segments(&[part(6, 3, key)], 7, false).is_none(), "past the end");
        assert!(regions.segments(&[part(0, 1, key + 1)], 7, false).is_none(), "another key");
        let key =
            regions.add(Region { device: 0, domain: 7, start, length: 8, access: IBV_ACCESS_LOCAL_WRITE });
        scatter(&regions.segments(&[part(1, 2, key), part(7, 1, key)], 7, true).unwrap(), &[9, 9, 9]);
        assert_eq!(memory, [1, 9, 9, 4, 5, 6, 7, 9]);
    }
}
