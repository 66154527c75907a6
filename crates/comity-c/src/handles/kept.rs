//! The group that a thread used last stays in its use between calls, so the next call finds it without an atomic addition.
//!
//! ```text
//!   first call of a thread   find: one user more           kept here
//!   each later one           same token, still live?       no atomic addition
//!   another group, the end of the thread                   one user less
//! ```
//! Two such additions take as long as a fifth of a small call in a group of one. Freeing a handle ends its life at once as ever, and
//! closes the group. Its memory goes when the threads that used it last have called again or have ended.

use super::{HeldHandle, LIVE, Slot, comity_group, find, index, leave, slot};
use crate::{errors::CFault, group::GroupHandle, request::is_in_callback};
use std::{cell::Cell, mem, ops::Deref, ptr, sync::atomic::Ordering};

struct LastGroup {
    token: Cell<usize>,
    /// None where no group is kept.
    slot: Cell<Option<&'static Slot>>,
    inside: Cell<*const GroupHandle>,
    /// True while a call has it: what is called meanwhile on this thread must not put another in its place.
    in_call: Cell<bool>,
}

thread_local! {
    static LAST_GROUP: LastGroup = const {
        LastGroup {
            token: Cell::new(0),
            slot: Cell::new(None),
            inside: Cell::new(ptr::null()),
            in_call: Cell::new(false),
        }
    };
}

impl LastGroup {
    /// Returns whether this handle's group is kept, no call has it, and it was not freed.
    #[inline]
    fn has(&self, token: usize) -> bool {
        // This thread is a user of the slot, so its generation stays. A free that comes after this look finds a user here.
        let live = |slot: &Slot| slot.state.load(Ordering::Relaxed) & LIVE != 0;
        self.token.get() == token && !self.in_call.get() && self.slot.get().is_some_and(live)
    }

    fn keep(&self, token: usize, used: HeldHandle<comity_group>) {
        self.forget();
        self.inside.set(used.inside);
        self.slot.set(Some(used.slot));
        self.token.set(token);
        // Its use ends in `forget`.
        mem::forget(used);
    }

    fn forget(&self) {
        if let Some(slot) = self.slot.take() {
            leave(slot, index(self.token.get()));
        }
    }
}

impl Drop for LastGroup {
    fn drop(&mut self) {
        self.forget();
    }
}

/// A group that stays while this does.
pub(crate) struct UsedGroup {
    inside: *const GroupHandle,
    /// Group that this thread keeps, if it is this one. Null: this is a user of its own, of the slot in the token.
    last: *const LastGroup,
    token: usize,
}

impl UsedGroup {
    #[inline]
    pub(crate) fn find(handle: *const comity_group) -> Result<Self, CFault> {
        let kept = LAST_GROUP.try_with(|last| {
            let has = last.has(handle.addr());
            has.then(|| Self::of(last))
        });
        match kept {
            Ok(Some(group)) => Ok(group),
            _ => Self::find_anew(handle),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_anew(handle: *const comity_group) -> Result<Self, CFault> {
        // If it is the one that is kept, it was freed.
        forget(handle.addr());
        let used = find(handle)?;
        let kept = LAST_GROUP.try_with(move |last| {
            // A group's own thread ends with the group, and would keep it for ever.
            if last.in_call.get() || is_in_callback() {
                return Err(used);
            }
            last.keep(handle.addr(), used);
            Ok(Self::of(last))
        });
        match kept {
            Ok(Ok(kept)) => Ok(kept),
            Ok(Err(used)) => Ok(Self::own(handle, used)),
            // The thread is ending and keeps nothing any more.
            Err(_) => find(handle).map(|used| Self::own(handle, used)),
        }
    }

    fn own(handle: *const comity_group, used: HeldHandle<comity_group>) -> Self {
        let own = Self { inside: used.inside, last: ptr::null(), token: handle.addr() };
        // Its use ends when `own` is dropped.
        mem::forget(used);
        own
    }

    #[inline]
    fn of(last: &LastGroup) -> Self {
        last.in_call.set(true);
        Self { inside: last.inside.get(), last, token: last.token.get() }
    }
}

impl Deref for UsedGroup {
    type Target = GroupHandle;

    #[inline]
    fn deref(&self) -> &GroupHandle {
        // SAFETY: the slot has a user on account of this or of what the thread keeps, which `in_call` keeps from being forgotten. The
        // object stays while its slot has one.
        unsafe { &*self.inside }
    }
}

impl Drop for UsedGroup {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: null, or of this thread, since a pointer keeps this from being sent to another; it stays until the thread ends, which no
        // call outlives.
        if let Some(last) = unsafe { self.last.as_ref() } {
            last.in_call.set(false);
        } else if let Some(slot) = slot(index(self.token)) {
            leave(slot, index(self.token));
        }
    }
}

/// The handle was freed: this thread need not keep its group.
pub(super) fn forget(token: usize) {
    // Where the thread is ending it keeps nothing any more.
    let _ = LAST_GROUP.try_with(|last| {
        if last.token.get() == token && !last.in_call.get() {
            last.forget();
        }
    });
}
