//! Last work of a process that exits without dropping its groups.
//!
//! It leaves them in good order, so peers that have what they need go on. It compares its calls with theirs, as closing does.

use super::{note::ControlNote, running::ControlPlane};
use crate::{
    status::{Ask, Failure, Header, conclude, is_untold, untold},
    sync::{lock, lock_soon},
    sys,
};
use std::sync::{Arc, Mutex, Once, Weak};

/// Worlds that are open in this process.
static OPEN: Mutex<Vec<Weak<ControlPlane>>> = Mutex::new(Vec::new());

/// Do so for this one.
pub(super) fn at_exit(control: &Arc<ControlPlane>) {
    static ONCE: Once = Once::new();
    let mut open = lock(&OPEN);
    open.retain(|c| c.strong_count() > 0);
    open.push(Arc::downgrade(control));
    drop(open);
    ONCE.call_once(|| {
        // Without it the peers take the exit for a death, which is the lesser evil.
        let _ = sys::at_exit(farewell);
    });
}

extern "C" fn farewell() {
    let Some(open) = lock_soon(&OPEN) else { return };
    for control in open.iter().filter_map(Weak::upgrade) {
        // A forked child shares the connections, but they are not its own.
        if control.pid != std::process::id() {
            continue;
        }
        compare(&control);
        if let Some(mut state) = lock_soon(&control.state)
            && state.stop.is_none()
        {
            state.decide(|m| m.end("", &[]));
        }
    }
    if is_untold() {
        sys::end_with(1);
    }
}

/// Compare what was called in each group that is still open.
fn compare(control: &ControlPlane) {
    let Some(state) = lock_soon(&control.state) else { return };
    let groups = if state.stop.is_none() { state.open() } else { Vec::new() };
    drop(state);
    for (group_id, status, mine, size) in groups {
        // A call that is under way, or a failure, is a reason of its own.
        if status.failure().is_some() || status.is_in_call() {
            continue;
        }
        let group = OpenGroup { control, group_id };
        if let Err(f) = conclude(&status, mine, size, &group)
            && f.is_disagreement()
        {
            untold(&f.sentence());
        }
    }
}

/// A group that is still open.
struct OpenGroup<'a> {
    control: &'a ControlPlane,
    group_id: u64,
}

impl Ask for OpenGroup<'_> {
    fn census(&self, at: u64, ranks: &[usize]) {
        if let Some(mut state) = lock_soon(&self.control.state) {
            state.census(self.group_id, at, ranks);
        }
        self.control.waker.wake();
    }

    fn tell(&self, rank: usize, call: &Header) {
        if let Some(mut state) = lock_soon(&self.control.state) {
            state.decide(|m| m.say(&[rank], ControlNote::Waits { group_id: self.group_id, call: *call }));
        }
        self.control.waker.wake();
    }

    fn abort(&self, failure: &Failure) {
        if let Some(mut state) = lock_soon(&self.control.state) {
            state.decide(|m| m.abort(self.group_id, failure.clone()));
        }
        self.control.waker.wake();
    }
}
