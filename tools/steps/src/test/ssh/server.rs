//! An sshd, of the system or unpacked.
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};
use tasks::{child::Task, place::target};

/// Packages that are unpacked where they are not installed.
const PACKAGES: [&str; 2] = ["openssh-server", "libwrap0"];

pub(super) fn unpacked() -> PathBuf {
    target().join("sshd")
}

/// The installed server, or the one of Debian's packages, unpacked: installing it would start it on this machine.
pub(super) fn sshd() -> Result<PathBuf, String> {
    let installed = PathBuf::from("/usr/sbin/sshd");
    let own = unpacked().join("usr/sbin/sshd");
    if installed.exists() || own.exists() {
        return Ok(if installed.exists() { installed } else { own });
    }
    fs::create_dir_all(unpacked()).map_err(|e| e.to_string())?;
    // apt-get gives up root's rights for the download.
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(unpacked(), open).map_err(|e| e.to_string())?;
    println!("unpacking {}", PACKAGES.join(" and "));
    Task::new("apt-get").args(["download"]).args(PACKAGES).folder(&unpacked()).limit(120).run()?;
    let script = "for package in *.deb; do dpkg-deb -x $package .; done";
    Task::new("sh").args(["-c", script]).folder(&unpacked()).run()?;
    if own.exists() { Ok(own) } else { Err("the package brought no usr/sbin/sshd".into()) }
}
