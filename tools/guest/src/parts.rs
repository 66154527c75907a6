//! Debian's kernel and its static busybox: downloaded and unpacked once, never installed.

use std::{
    fs,
    path::{Path, PathBuf},
};
use tasks::{child::Task, place::target};

#[derive(Debug)]
pub(super) struct Parts {
    /// Folder of all of it.
    pub(super) folder: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) modules: PathBuf,
    pub(super) busybox: PathBuf,
}

pub(super) fn fetch() -> Result<Parts, String> {
    let folder = target().join("rdma-vm");
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    let kernel = unpacked(&folder, "kernel", kernel_package)?;
    let busybox = unpacked(&folder, "busybox", || Ok("busybox-static".into()))?;
    let busybox = busybox.join("bin/busybox");
    let modules = within(&kernel.join("lib/modules"), "")?;
    if !modules.join("modules.dep").exists() {
        // The package has no list of what each module needs.
        let version = modules.file_name().unwrap_or_default();
        Task::new(&busybox).args(["depmod", "-b"]).args([kernel.as_os_str(), version]).run()?;
    }
    Ok(Parts { kernel: within(&kernel.join("boot"), "vmlinuz-")?, modules, busybox, folder })
}

/// The folder of an unpacked package, which is there already or is made now.
fn unpacked(
    folder: &Path,
    name: &str,
    package: impl Fn() -> Result<String, String>,
) -> Result<PathBuf, String> {
    let done = folder.join(name);
    if done.is_dir() {
        return Ok(done);
    }
    // Elsewhere first, so that what is cut short is never taken for the whole.
    let fresh = folder.join(format!("{name}.new"));
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(|e| format!("cannot remove {}: {e}", fresh.display()))?;
    }
    fs::create_dir_all(&fresh).map_err(|e| format!("cannot make {}: {e}", fresh.display()))?;
    let download = |package: &str| {
        println!("downloading {package}");
        // This user may write there, the one that apt would change to may not.
        let args = ["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=5", "download", package];
        Task::new("apt-get").folder(&fresh).args(args).limit(300).run()
    };
    let got = match package().and_then(|p| download(&p)) {
        Ok(_) => Ok(()),
        // The lists may be old, or not there.
        Err(_) => {
            Task::new("apt-get").args(["-o", "Acquire::Retries=5", "update"]).limit(300).run()?;
            package().and_then(|p| download(&p)).map(drop)
        }
    };
    got?;
    let archive = within(&fresh, "")?;
    let unpack = Task::new("dpkg").args(["-x".as_ref(), archive.as_os_str(), fresh.as_os_str()]).limit(300);
    unpack.run()?;
    fs::remove_file(&archive).map_err(|e| format!("cannot remove {}: {e}", archive.display()))?;
    fs::rename(&fresh, &done).map_err(|e| format!("cannot rename {}: {e}", fresh.display()))?;
    Ok(done)
}

/// The package that `linux-image-amd64` stands for.
fn kernel_package() -> Result<String, String> {
    let text = Task::new("apt-cache").args(["depends", "linux-image-amd64"]).run()?;
    let named = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    named.map(str::to_owned).ok_or_else(|| format!("apt knows no kernel: {text}"))
}

/// The entry of a folder whose name begins like this.
fn within(folder: &Path, begins: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
    let mut paths = entries.flatten().map(|e| e.path());
    let found = paths.find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(begins)));
    found.ok_or_else(|| format!("{} holds nothing that begins with {begins:?}", folder.display()))
}
