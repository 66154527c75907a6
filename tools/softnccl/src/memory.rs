//! Memory that the devices know: what was allocated here, and what was page-locked.

use crate::lock;
use std::{
    alloc::{Layout, alloc, dealloc},
    collections::BTreeMap,
    sync::Mutex,
};

const ALIGN: usize = 256;

/// Lengths by address.
static KNOWN: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len.max(1), ALIGN).ok()
}

/// `len` bytes, none of them zero: who relies on what was not written sees it.
pub(crate) fn take(len: usize) -> Option<usize> {
    let layout = layout(len)?;
    // SAFETY: the layout is not empty.
    let at = unsafe { alloc(layout) };
    if at.is_null() {
        return None;
    }
    // SAFETY: just allocated with that length.
    unsafe { at.write_bytes(0xa5, layout.size()) };
    lock(&KNOWN).insert(at.expose_provenance(), layout.size());
    Some(at.expose_provenance())
}

/// Give memory back; false if it was not known.
pub(crate) fn give(at: usize) -> bool {
    let Some(len) = lock(&KNOWN).remove(&at) else { return false };
    if let Some(layout) = layout(len) {
        // SAFETY: allocated in `take` with this layout, and known only once.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(at), layout) };
    }
    true
}

/// Return whether a device may touch all of it.
pub(crate) fn is_known(at: usize, len: usize) -> bool {
    let known = lock(&KNOWN);
    len == 0 || known.range(..=at).next_back().is_some_and(|(start, size)| at + len <= start + size)
}

/// Bytes to read.
///
/// # Safety
/// The caller of the library keeps them as they are until the stream has come past the work that reads them.
pub(crate) unsafe fn read<'a>(at: usize, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as promised; the range was found to be known when the work was given.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), len) }
}

/// Bytes to write.
///
/// # Safety
/// Like [`read`], and nobody else looks at them meanwhile.
pub(crate) unsafe fn write<'a>(at: usize, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: as promised; the range was found to be known when the work was given.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(at), len) }
}
