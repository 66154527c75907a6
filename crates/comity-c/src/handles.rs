//! Table of the objects behind handles: C holds a token, which is no address, so that a handle that was freed, of another kind, or no handle at all
//! is found out instead of followed.
//!
//! ```text
//!   token, 47 bits   generation (24) | slot (20) | kind (3)
//!   state of a slot  generation (24) | - | leaving | live | users (32)
//! ```
//! Kinds are 1 to 4, so an address of anything aligned to 8 bytes is no token. A slot's generation grows each time that it is given
//! back, and a slot whose generation is at its end is never used again; so no token is ever given out twice.
//!
//! A function that uses an object counts as its user, with one addition and one subtraction. Freeing a handle ends its life at once; the object
//! goes with its last user. There are no locks, so a forked child finds the table usable.
//!
//! The group that a thread used last stays in its use between calls, so the next call finds it without an atomic addition.
//!
//! ```text
//!   first call of a thread   find: one user more           kept here
//!   each later one           same token, still live?       no atomic addition
//!   another group, the end of the thread                   one user less
//! ```
//! Two such additions take as long as a fifth of a small call in a group of one. Freeing a handle ends its life at once as ever, and
//! closes the group. Its memory goes when the threads that used it last have called again or have ended.

use crate::{errors::CFault, group::GroupHandle, request::is_in_callback};
use comity::Error;
use std::{
    cell::{Cell, UnsafeCell},
    mem,
    ops::Deref,
    ptr,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

const KIND_BITS: u32 = 3;
const SLOT_BITS: u32 = 20;
const SLOTS_OF_CHUNK: usize = 256;
const CHUNKS: usize = (1 << SLOT_BITS) / SLOTS_OF_CHUNK;

const USERS: u64 = 0xffff_ffff;
const LIVE: u64 = 1 << 32;
const LEAVING: u64 = 1 << 33;
const GENERATION: u32 = 40;
const LAST_GENERATION: u64 = (1 << 24) - 1;

const _: () = assert!(usize::BITS == 64, "a token needs 47 bits");

/// A type of handle in C, and what is behind it.
pub(crate) trait HandleKind: Sized {
    /// Behind it.
    type Inside: Send + Sync + 'static;
    /// 1 to 4.
    const KIND: usize;
    /// Name in C.
    const NAME: &'static str;
    fn wrap(inside: Self::Inside) -> Object;
    fn of(object: &Object) -> Option<&Self::Inside>;
}

/// Makes the types of handles, and the one that can hold what is behind any of them.
macro_rules! handles {
    ($($(#[$about:meta])* $name:ident = $kind:literal: $variant:ident($inside:ty);)*) => {
        pub(crate) enum Object {
            $($variant(Box<$inside>),)*
        }

        $(impl HandleKind for $name {
            type Inside = $inside;
            const KIND: usize = $kind;
            const NAME: &'static str = stringify!($name);
            fn wrap(inside: $inside) -> Object {
                Object::$variant(Box::new(inside))
            }
            #[inline]
            fn of(object: &Object) -> Option<&$inside> {
                match object {
                    Object::$variant(inside) => Some(inside),
                    _ => None,
                }
            }
        })*
    };
}

handles! {
    comity_group = 1: Group(GroupHandle);
    comity_request = 2: Request(crate::request::RequestHandle);
    comity_config = 3: Config(crate::config::ConfigHandle);
    comity_error = 4: Error(std::sync::Arc<crate::errors::ErrorRecord>);
}

/// Ranks that call collectives together. Free it with comity_group_free().
#[derive(Debug)]
pub struct comity_group {
    _private: (),
}

/// Call under way in the background. Free it with comity_request_free().
#[derive(Debug)]
pub struct comity_request {
    _private: (),
}

/// Settings of a process before it meets the others. Free it with comity_config_free().
#[derive(Debug)]
pub struct comity_config {
    _private: (),
}

/// Error that was taken from its thread. Free it with comity_error_free().
#[derive(Debug)]
pub struct comity_error {
    _private: (),
}

struct Slot {
    state: AtomicU64,
    /// In the list of free slots: the next one's number plus 1, or 0.
    next: AtomicU32,
    object: UnsafeCell<Option<Object>>,
}

// SAFETY: `object` is written only by the one thread that took the slot from the free list, or that turned the state of a slot without
// users from LEAVING to free. It is read only by users of a LIVE slot. `Object` itself is `Send + Sync`, as `HandleKind::Inside` is.
unsafe impl Sync for Slot {}

type Chunk = [Slot; SLOTS_OF_CHUNK];

static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
/// The first free slot's number plus 1, below a count of changes that keeps a slow thread from taking an old list for the present one.
static FREE: AtomicU64 = AtomicU64::new(0);
/// Slots that were ever used.
static USED: AtomicU32 = AtomicU32::new(0);

fn index(token: usize) -> u32 {
    (token >> KIND_BITS) as u32 & ((1 << SLOT_BITS) - 1)
}

fn slot(index: u32) -> Option<&'static Slot> {
    let chunk = index as usize / SLOTS_OF_CHUNK;
    let at = index as usize % SLOTS_OF_CHUNK;
    let chunk = TABLE.get(chunk)?.load(Ordering::Acquire);
    // SAFETY: null, or a chunk that `made` has put there and that is never freed.
    unsafe { chunk.as_ref() }.map(|c| &c[at])
}

/// The slot, with its chunk made if this is the first of it.
fn made(index: u32) -> Option<&'static Slot> {
    if let Some(slot) = slot(index) {
        return Some(slot);
    }
    let place = TABLE.get(index as usize / SLOTS_OF_CHUNK)?;
    let fresh = || Slot {
        state: AtomicU64::new(1 << GENERATION),
        next: AtomicU32::new(0),
        object: UnsafeCell::new(None),
    };
    let chunk: Box<Chunk> = Box::new(std::array::from_fn(|_| fresh()));
    let chunk = Box::into_raw(chunk);
    let put = place.compare_exchange(ptr::null_mut(), chunk, Ordering::AcqRel, Ordering::Acquire);
    if put.is_err() {
        // SAFETY: made above, and nobody else has seen it.
        drop(unsafe { Box::from_raw(chunk) });
    }
    slot(index)
}

fn take_free() -> Option<(u32, &'static Slot)> {
    let mut head = FREE.load(Ordering::Acquire);
    while let Some(index) = (head as u32).checked_sub(1) {
        let slot = slot(index)?;
        let new = ((head >> 32).wrapping_add(1) << 32) | u64::from(slot.next.load(Ordering::Relaxed));
        match FREE.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some((index, slot)),
            Err(now) => head = now,
        }
    }
    let most = 1u32 << SLOT_BITS;
    let index = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1));
    let index = index.ok()?;
    made(index).map(|slot| (index, slot))
}

fn give_back(index: u32, slot: &Slot) {
    let mut head = FREE.load(Ordering::Acquire);
    loop {
        slot.next.store(head as u32, Ordering::Relaxed);
        let new = ((head >> 32).wrapping_add(1) << 32) | u64::from(index + 1);
        match FREE.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

pub(crate) fn add<H: HandleKind>(inside: H::Inside) -> Result<*mut H, CFault> {
    let (index, slot) = take_free().ok_or_else(|| {
        let why = "this process holds a million of them; free those that are not needed";
        Error::os("making a handle", std::io::Error::other(why))
    })?;
    // SAFETY: the slot is not live and was on no list but ours, so nobody else reads or writes its object.
    unsafe { *slot.object.get() = Some(H::wrap(inside)) };
    let state = slot.state.fetch_or(LIVE, Ordering::Release);
    let token = (state >> GENERATION) << (KIND_BITS + SLOT_BITS) | u64::from(index) << KIND_BITS;
    Ok(ptr::without_provenance_mut(token as usize | H::KIND))
}

/// An object that stays while this does.
pub(crate) struct HeldHandle<H: HandleKind> {
    slot: &'static Slot,
    index: u32,
    inside: *const H::Inside,
}

impl<H: HandleKind> Deref for HeldHandle<H> {
    type Target = H::Inside;

    #[inline]
    fn deref(&self) -> &H::Inside {
        // SAFETY: `find` gives none away before it has put the address there. The slot was live when this became a user of it, and its
        // object stays until it has none.
        unsafe { &*self.inside }
    }
}

impl<H: HandleKind> Drop for HeldHandle<H> {
    #[inline]
    fn drop(&mut self) {
        leave(self.slot, self.index);
    }
}

/// Takes one user away; the last one of a handle that was freed takes the object away.
#[inline]
fn leave(slot: &'static Slot, index: u32) {
    let state = slot.state.fetch_sub(1, Ordering::AcqRel) - 1;
    if state & (LEAVING | USERS) == LEAVING {
        clear(slot, index, state);
    }
}

#[cold]
fn clear(slot: &'static Slot, index: u32, state: u64) {
    // Whoever looks at an old handle counts as a user for a moment, and then comes by here too: one of them gets it.
    if slot.state.compare_exchange(state, state & !LEAVING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    // SAFETY: no longer live or leaving, without users, and on no list: nobody else reads or writes it.
    let object = unsafe { (*slot.object.get()).take() };
    if state >> GENERATION < LAST_GENERATION {
        slot.state.fetch_add(1 << GENERATION, Ordering::AcqRel);
        give_back(index, slot);
    }
    // Last: it may take a while.
    drop(object);
}

/// Finds the object behind a handle, and counts as its user.
#[inline]
pub(crate) fn find<H: HandleKind>(handle: *const H) -> Result<HeldHandle<H>, CFault> {
    let token = handle.addr();
    let index = index(token);
    let generation = (token >> (KIND_BITS + SLOT_BITS)) as u64;
    if token & ((1 << KIND_BITS) - 1) != H::KIND || generation == 0 {
        return Err(no_handle::<H>(token));
    }
    let Some(slot) = slot(index) else { return Err(no_handle::<H>(token)) };
    let state = slot.state.fetch_add(1, Ordering::Acquire);
    // From here on it counts as a user, and no longer when it is dropped.
    let mut used = HeldHandle { slot, index, inside: ptr::null() };
    if state & LIVE == 0 || state >> GENERATION != generation {
        return Err(no_handle::<H>(token));
    }
    // SAFETY: live, with this as a user: nobody writes it.
    let object = unsafe { &*slot.object.get() };
    match object.as_ref().and_then(H::of) {
        Some(inside) => {
            used.inside = inside;
            Ok(used)
        }
        None => Err(no_handle::<H>(token)),
    }
}

#[cold]
fn no_handle<H: HandleKind>(token: usize) -> CFault {
    let name = H::NAME;
    if token == 0 {
        return CFault::misuse(format!("the {name} is NULL"));
    }
    match token & ((1 << KIND_BITS) - 1) {
        kind if kind == H::KIND => CFault::misuse(format!("this {name} was freed, or never was one")),
        1..=4 => CFault::misuse(format!("this is a handle of another kind, or none; a {name} was expected")),
        _ => CFault::misuse(format!("this is no handle; a {name} was expected")),
    }
}

/// End a handle's life. What is behind it goes when its last user has.
pub(crate) fn free<H: HandleKind>(handle: *mut H) -> Result<(), CFault> {
    let used = find(handle)?;
    let generation = (handle.addr() >> (KIND_BITS + SLOT_BITS)) as u64;
    let ended = used.slot.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |s| {
        (s & LIVE != 0 && s >> GENERATION == generation).then_some(s & !LIVE | LEAVING)
    });
    forget(handle.addr());
    // Another thread may have freed it meanwhile.
    ended.map(drop).map_err(|_| no_handle::<H>(handle.addr()))
}

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
fn forget(token: usize) {
    // Where the thread is ending it keeps nothing any more.
    let _ = LAST_GROUP.try_with(|last| {
        if last.token.get() == token && !last.in_call.get() {
            last.forget();
        }
    });
}

#[cfg(test)]
mod tests;
