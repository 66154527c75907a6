//! The program that this process runs, which starts itself for some jobs.
use std::{ffi::OsString, io, path::PathBuf, sync::OnceLock};

/// The interpreter that this command runs in, where it is a Python package's.
static INTERPRETER: OnceLock<PathBuf> = OnceLock::new();

/// This command is run by this Python interpreter, which knows it as the module `comity`.
pub fn is_run_by(interpreter: PathBuf) {
    let _ = INTERPRETER.set(interpreter);
}

/// The interpreter that this command runs in, if it does.
pub fn interpreter() -> Option<OsString> {
    INTERPRETER.get().map(|python| python.into())
}

/// The program and its first arguments that start this command once more.
pub fn own_words() -> io::Result<Vec<OsString>> {
    Ok(match INTERPRETER.get() {
        Some(python) => vec![python.into(), "-m".into(), "comity".into()],
        None => vec![std::env::current_exe()?.into()],
    })
}
