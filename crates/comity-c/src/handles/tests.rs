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
