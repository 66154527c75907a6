//! Places of things: the workspace, files that cargo built, programs, a folder that goes away.

use crate::child::Task;
use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

/// The workspace's root.
pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own)
}

/// File that cargo built in a profile's folder (`debug`, `release`), under the workspace's root where it can be.
pub fn built(profile: &str, name: &str) -> PathBuf {
    target().join(profile).join(name)
}

/// The folder of what cargo built, and of what is worth keeping beside it.
pub fn target() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(target)
}

/// This program. It may have been built anew since it started, which leaves the system with no name for the old one.
pub fn own() -> Result<PathBuf, String> {
    let own = env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    match own.to_string_lossy().strip_suffix(" (deleted)") {
        Some(name) if !own.exists() => Ok(name.into()),
        _ => Ok(own),
    }
}

/// Content of `/etc/passwd` for an sshd of a test: the users of this machine and sshd's own, and root at home in this folder, where no
/// script of a login is.
///
/// # Errors
/// The users cannot be read.
pub fn users_of_sshd(home: &Path) -> Result<String, String> {
    let moved = r#"$1 == "root" { $6 = home } $1 != "sshd"; END { print "sshd:x:109:65534::/run/sshd:/usr/sbin/nologin" }"#;
    let home = format!("home={}", home.display());
    Task::new("awk").args(["-F:", "-v", "OFS=:", "-v", &home, moved, "/etc/passwd"]).run()
}

/// The program of this name on PATH.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Text of a file of the workspace, or elsewhere by its whole path.
///
/// # Errors
/// It cannot be read.
pub fn read(path: impl AsRef<Path>) -> Result<String, String> {
    let path = root().join(path);
    fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// Write a file, in the same way.
///
/// # Errors
/// It cannot be written.
pub fn write(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> Result<(), String> {
    let path = root().join(path);
    fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Copy a file.
///
/// # Errors
/// It cannot be copied.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to)
        .map(drop)
        .map_err(|e| format!("cannot copy {} to {}: {e}", from.display(), to.display()))
}

/// Make a folder, and those that it is in.
///
/// # Errors
/// It cannot be made.
pub fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))
}

/// A folder of this process that is removed with what is in it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// In the system's folder for such.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(what: &str) -> Result<Self, String> {
        Self::within(&env::temp_dir(), what)
    }

    /// In this folder.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn within(folder: &Path, what: &str) -> Result<Self, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("comity-{what}-{}-{count}", std::process::id()));
        fs::create_dir(&path).map_err(|e| format!("cannot make {}: {e}", path.display()))?;
        Ok(Self(path))
    }

    /// The path of something in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The same as text, for settings and scripts.
    pub fn text(&self, name: &str) -> String {
        self.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            eprintln!("xtask: cannot remove {}: {e}", self.0.display());
        }
    }
}
