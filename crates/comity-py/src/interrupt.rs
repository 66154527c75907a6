//! Python's signal handlers run while a call waits, and may end it: Ctrl-C.

use pyo3::prelude::*;
use std::{
    cell::{Cell, RefCell},
    sync::{Arc, Mutex, PoisonError},
};

/// Reason to give up what another thread waits in, once there is one.
#[derive(Debug, Default)]
pub(crate) struct JoinInterrupt(Mutex<Option<String>>);

impl JoinInterrupt {
    pub(crate) fn set(&self, words: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
    }

    fn words(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Run `f` on this thread, whose waits ask for this wish.
    pub(crate) fn heed<R>(self: Arc<Self>, f: impl FnOnce() -> R) -> R {
        HEEDED.replace(Some(self));
        comity::interrupt_with(Some(|| HEEDED.with_borrow(Clone::clone)?.words()));
        let out = f();
        comity::interrupt_with(None);
        out
    }
}

/// Return whether this thread, which joins, is to give up: a signal handler raised in the thread that waits for it.
#[pyfunction]
pub(crate) fn is_given_up() -> bool {
    HEEDED.with_borrow(|wish| wish.as_ref().is_some_and(|wish| wish.words().is_some()))
}

thread_local! {
    static HEEDED: RefCell<Option<Arc<JoinInterrupt>>> = const { RefCell::new(None) };
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Let calls that this thread waits in look for signals.
pub(crate) fn arm() {
    if !ARMED.replace(true) {
        comity::interrupt_with(Some(ask));
    }
}

/// Exception that a signal handler raised during the last call, if any.
pub(crate) fn taken() -> Option<PyErr> {
    RAISED.take()
}

/// Description of an exception from a signal handler for the other ranks.
pub(crate) fn words(py: Python<'_>, e: &PyErr) -> String {
    let class = e.get_type(py).name().map_or_else(|_| "a signal".into(), |n| n.to_string());
    format!("its program was interrupted by a signal ({class})")
}

fn ask() -> Option<String> {
    let asked = Python::try_attach(|py| {
        let e = py.check_signals().err()?;
        let words = words(py, &e);
        RAISED.replace(Some(e));
        Some(words)
    });
    // None: the interpreter ends, and nobody will see what this call brings.
    asked.unwrap_or_else(|| Some("its interpreter ended".into()))
}
