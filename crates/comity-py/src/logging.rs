//! Warnings of the library, as Python's `logging` takes them: the logger "comity".

use crate::{callbacks::run_soon, interpreter};
use pyo3::{prelude::*, types::PyTuple};
use std::{
    io::{self, Write},
    sync::Once,
};

/// From the first call on, each warning goes to the logger. Without a handler Python writes it to standard error, and so does this module
/// once the interpreter ends.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A thread that warns may hold a lock that the holder of the interpreter waits for: another thread tells it.
        comity::tools::on_warning(|words| {
            let line = words.to_owned();
            let is_told = run_soon(move |py| {
                if let Err(e) = warn(py, &line) {
                    e.write_unraisable(py, None);
                }
            });
            if !is_told {
                // Nobody may read it.
                let _ = writeln!(io::stderr(), "comity: {words}");
            }
        });
    });
}

fn warn(py: Python<'_>, words: &str) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("comity",))?;
    // Not a format: words may have a percent sign.
    interpreter::call(&logger.getattr("warning")?, &PyTuple::new(py, ["%s", words])?).map(drop)
}
