//! Warnings of the library, as Python's `logging` takes them: the logger "comity".

use crate::callbacks::run_soon;
use pyo3::prelude::*;
use std::sync::Once;

/// From the first call on, each warning goes to the logger. Without a handler Python writes it to standard error.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A thread that warns may hold a lock that the holder of the interpreter waits for: another thread tells it.
        comity::tools::on_warning(|words| {
            let words = words.to_owned();
            run_soon(move |py| {
                if let Err(e) = warn(py, &words) {
                    e.write_unraisable(py, None);
                }
            });
        });
    });
}

fn warn(py: Python<'_>, words: &str) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("comity",))?;
    // Not a format: words may have a percent sign.
    logger.call_method1("warning", ("%s", words)).map(drop)
}
