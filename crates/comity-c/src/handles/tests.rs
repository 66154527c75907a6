use super::*;
use crate::errors::ErrorRecord;
use std::{
    sync::{Arc, atomic::AtomicBool},
    thread,
};

fn error(text: &str) -> Arc<ErrorRecord> {
    CFault::misuse(text.to_owned()).record()
}

fn refusal<H: HandleKind>(handle: *const H) -> String {
    match find(handle) {
        Ok(_) => panic!("a handle"),
        Err(fault) => fault.record().text.to_string_lossy().into_owned(),
    }
}

#[test]
fn what_is_no_handle_is_found_out() {
    let handle = add::<comity_error>(error("x")).unwrap();
    assert_eq!(find(handle).unwrap().text.to_str(), Ok("x"));
    assert!(refusal::<comity_error>(ptr::null()).contains("is NULL"));
    assert!(refusal(handle.cast::<comity_group>()).contains("of another kind"));
    let local = 5u64;
    assert!(refusal((&raw const local).cast::<comity_error>()).contains("no handle"));
    for wild in [1usize, 4, 7, usize::MAX, 1 << 46, (1 << 47) | 4] {
        refusal(ptr::without_provenance::<comity_error>(wild));
    }
    let used = find(handle).unwrap();
    free(handle).unwrap();
    // Its users keep it; nobody new finds it.
    assert_eq!(used.text.to_str(), Ok("x"));
    assert!(refusal(handle).contains("was freed"));
    assert!(free(handle).is_err());
    drop(used);
    let next = add::<comity_error>(error("y")).unwrap();
    assert_ne!(next, handle);
    assert!(refusal(handle).contains("was freed"));
    free(next).unwrap();
}

#[test]
fn threads_that_free_and_look_agree() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let shared = AtomicPtr::new(add::<comity_error>(error("kept")).unwrap());
    let weak = error("kept");
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while !STOP.load(Ordering::Relaxed) {
                    if let Ok(used) = find(shared.load(Ordering::Relaxed).cast_const()) {
                        assert_eq!(used.text.to_bytes(), b"kept");
                    }
                }
            });
        }
        for _ in 0..3_000 {
            let new = add::<comity_error>(weak.clone()).unwrap();
            let old = shared.swap(new, Ordering::Relaxed);
            free(old).unwrap();
            assert!(free(old).is_err());
        }
        STOP.store(true, Ordering::Relaxed);
    });
    free(shared.into_inner()).unwrap();
    // Nothing was dropped twice, and nothing was kept.
    assert_eq!(Arc::strong_count(&weak), 1);
}

/// Returns whether nobody uses the slot of this handle any more, and the object behind it is gone.
fn gone(handle: *mut comity_group) -> bool {
    let slot = slot(index(handle.addr())).unwrap();
    let state = slot.state.load(Ordering::Relaxed);
    state & (USERS | LIVE | LEAVING) == 0
        && state >> GENERATION > (handle.addr() >> (KIND_BITS + SLOT_BITS)) as u64
}

fn lone_group() -> *mut comity_group {
    let mut group = ptr::null_mut();
    crate::group::hand_out(&mut group, comity::Group::single()).unwrap();
    group
}

#[test]
fn a_thread_keeps_the_group_that_it_used_last() {
    let one = lone_group();
    let other = lone_group();
    let users =
        |handle: *mut comity_group| slot(index(handle.addr())).unwrap().state.load(Ordering::Relaxed) & USERS;
    for _ in 0..3 {
        assert_eq!(UsedGroup::find(one).unwrap().open().unwrap().size(), 1);
        assert_eq!(users(one), 1);
    }
    {
        // A call within a call has its own use, and leaves what is kept alone.
        let outer = UsedGroup::find(one).unwrap();
        let inner = UsedGroup::find(other).unwrap();
        let same = UsedGroup::find(one).unwrap();
        assert_eq!((users(one), users(other)), (2, 1));
        drop((inner, same));
        assert_eq!((users(one), users(other)), (1, 0));
        drop(outer);
    }
    drop(UsedGroup::find(other).unwrap());
    assert_eq!((users(one), users(other)), (0, 1));
    // Freed on this thread it is gone at once.
    free(other).unwrap();
    assert!(gone(other));
    assert!(UsedGroup::find(other).is_err());
    free(one).unwrap();
    assert!(gone(one));
}

/// A thread keeps a group that another one frees; then it does `after`, which says whether all was right, and ends.
fn freed_elsewhere(after: fn(*mut comity_group) -> bool) -> *mut comity_group {
    let group = lone_group();
    let shared = AtomicPtr::new(group);
    thread::scope(|s| {
        let keeps = s.spawn(|| {
            drop(UsedGroup::find(shared.load(Ordering::Relaxed)).unwrap());
            thread::park();
            after(shared.load(Ordering::Relaxed))
        });
        while slot(index(group.addr())).unwrap().state.load(Ordering::Relaxed) & USERS == 0 {
            thread::yield_now();
        }
        free(group).unwrap();
        keeps.thread().unpark();
        assert!(keeps.join().unwrap());
    });
    group
}

#[test]
fn what_another_thread_freed_is_not_used_and_goes_with_the_next_call_or_the_thread() {
    let called = freed_elsewhere(|group| !gone(group) && UsedGroup::find(group).is_err() && gone(group));
    assert!(gone(called));
    let ended = freed_elsewhere(|group| !gone(group));
    assert!(gone(ended));
}

#[test]
fn a_group_that_is_called_on_its_own_thread_goes_when_it_is_freed() {
    use crate::{raw::Context, request, types::comity_call};
    static GROUP: AtomicPtr<comity_group> = AtomicPtr::new(ptr::null_mut());
    static SIZE: AtomicU32 = AtomicU32::new(0);
    static GO: AtomicBool = AtomicBool::new(false);
    extern "C" fn call(_: *mut std::ffi::c_void) {
        let group = UsedGroup::find(GROUP.load(Ordering::Relaxed)).unwrap();
        SIZE.store(group.open().unwrap().size() as u32, Ordering::Release);
    }
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let begun = std::time::Instant::now();
        while !holds() {
            assert!(begun.elapsed().as_secs() < 30, "{what}");
            thread::yield_now();
        }
    };
    let group = lone_group();
    GROUP.store(group, Ordering::Relaxed);
    // Work before the request's, so that the callback is there before that has ended.
    let first = find(group).unwrap().open().unwrap().spawn(|_| {
        while !GO.load(Ordering::Acquire) {
            thread::yield_now();
        }
        Ok(())
    });
    let null = ptr::null_mut();
    let op = crate::types::comity_op::COMITY_OP_BARRIER as u32;
    let barrier = comity_call {
        size: size_of::<comity_call>(),
        op,
        dtype: 0,
        reduce: 0,
        rank: 0,
        source: 0,
        tag: 0,
        src: null,
        dst: null,
        count: 0,
        recv_count: 0,
        counts: ptr::null(),
        recv_counts: ptr::null(),
        place: 0,
        reserved: 0,
        stream: null,
        timeout: 0.0,
        wire: 0,
    };
    let request = request::start(&find(group).unwrap(), &barrier).unwrap();
    request::on_end(&request.end, call, Context(null));
    GO.store(true, Ordering::Release);
    first.wait().unwrap();
    until("the callback was not called", &|| SIZE.load(Ordering::Acquire) == 1);
    free(group).unwrap();
    until("its own thread keeps it", &|| gone(group));
}
