//! A Debian of its own under `target/`, whose release has Swift: made once, from this machine's mirror.
//!
//! Commands run in it with a mount namespace of their own, so that no mount is left behind, however they end. The repository lies there
//! under the same path as here.

use std::{fs, path::PathBuf};
use tasks::{
    child::Task,
    place::{make_anew, root, target},
};

/// Debian 13 is the first release with Swift.
const RELEASE: &str = "trixie";
const PACKAGES: [&str; 2] = ["swiftlang", "libc6-dev"];
/// Mounts, then the command, in the root folder and the working folder that come first.
const ENTER: &str = r#"
new=$1; shift
mount -t proc proc "$new/proc" && mount --rbind /dev "$new/dev" || exit 1
while [ "$1" != -- ]; do
    mkdir -p "$new$1" && mount --bind "$1" "$new$1" || exit 1
    shift
done
shift
exec chroot "$new" "$@"
"#;

/// Symbols of each library, then their pages. Debian's compiler names its platform otherwise than Swift's own does.
const DOCUMENT: &str = r#"
set -e
platform=$(swiftc -print-target-info | sed -n 's/.*"triple": "\(.*\)",/\1/p')
built=$1; out=$2; shift 2
rm -rf "$out"
for library; do
    mkdir -p "$out/$library"
    swift symbolgraph-extract -module-name "$library" -I "$built/debug/Modules" -I swift/Sources/CComity/include -target "$platform" \
        -output-dir "$out/$library" -minimum-access-level public
    /usr/libexec/swift/bin/docc convert swift/Sources/"$library"/*.docc --additional-symbol-graph-dir "$out/$library" \
        --output-path "$out/$library.doccarchive" --warnings-as-errors
done
"#;

/// The Debian, ready.
#[derive(Debug)]
pub(super) struct Debian(PathBuf);

/// Folder in which libcomity is installed for it.
pub(super) fn prefix() -> PathBuf {
    target().join("swift-prefix")
}

/// Folder into which Swift builds.
pub(super) fn scratch() -> PathBuf {
    target().join("swift-build")
}

impl Debian {
    /// The one under `target/`, which is made if it is not there.
    pub(super) fn kept() -> Result<Self, String> {
        let done = Self(target().join("swift-root"));
        if done.0.is_dir() {
            return Ok(done);
        }
        // Elsewhere first, so that what is cut short is never taken for the whole.
        let fresh = Self(target().join("swift-root.new"));
        make_anew(&fresh.0)?;
        println!("making a Debian with Swift, once: 3 GB");
        let proxy = proxy()?;
        let task = Task::new("debootstrap").args(["--variant=minbase", RELEASE]).args([&fresh.0]);
        proxied(task.args([mirror()?]), &proxy).limit(600).run()?;
        // What is cut short is made anew, so nothing has to reach the disk in order.
        let install =
            ["-o", "Acquire::Retries=5", "-o", "Dpkg::Options::=--force-unsafe-io", "install", "-y"];
        let task = fresh.enter(&[], &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        let task = task.args(install).args(["--no-install-recommends"]).args(PACKAGES);
        proxied(task, &proxy).limit(900).run()?;
        let task = fresh.enter(&[], &["apt-get", "clean"]);
        task.run()?;
        fs::rename(&fresh.0, &done.0).map_err(|e| format!("cannot rename {}: {e}", fresh.0.display()))?;
        Ok(done)
    }

    /// A command in it, in the repository. Programs find the installed libcomity.
    pub(super) fn task(&self, words: &[&str]) -> Task {
        let mut places = vec![root().to_path_buf()];
        if !target().starts_with(root()) {
            places.push(target());
        }
        let variables = [
            "HOME=/root".to_owned(),
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            format!("LD_LIBRARY_PATH={}", prefix().join("lib").display()),
        ];
        let task = self.enter(&places, &["env", "-C"]).args([root()]).args(variables);
        task.args(words)
    }

    /// A command of Swift's package manager.
    pub(super) fn swift(&self, words: &[&str]) -> Task {
        self.task(&["swift"]).args(words).args(["--scratch-path"]).args([scratch()])
    }

    /// Pages of documentation, without a warning.
    pub(super) fn document(&self, libraries: &[&str]) -> Result<(), String> {
        let task = self.task(&["sh", "-c", DOCUMENT, "document"]);
        let task = task.args([scratch(), target().join("swift-pages")]);
        task.args(libraries).limit(120).run().map(drop)
    }

    /// A command as root in it, where these folders are too.
    fn enter(&self, places: &[PathBuf], words: &[&str]) -> Task {
        let task =
            Task::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", ENTER, "enter"]);
        task.args([&self.0]).args(places).args(["--"]).args(words)
    }
}

/// This machine's mirror of Debian, as apt knows it.
fn mirror() -> Result<String, String> {
    let known = || {
        let format = "$(LABEL) $(REPO_URI)";
        let out =
            Task::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]).run()?;
        Ok::<_, String>(of_debian(&out))
    };
    if let Some(mirror) = known()? {
        return Ok(mirror);
    }
    // The label of a mirror is known when its lists are there.
    Task::new("apt-get").args(["-o", "Acquire::Retries=5", "update"]).limit(300).run()?;
    known()?.ok_or_else(|| "apt knows no mirror of Debian".into())
}

/// The first address whose label is Debian's.
fn of_debian(targets: &str) -> Option<String> {
    targets.lines().find_map(|line| line.strip_prefix("Debian ")).map(str::to_owned)
}

/// The proxy that apt uses, which debootstrap asks the environment for.
fn proxy() -> Result<Option<String>, String> {
    let out = Task::new("apt-config").args(["shell", "proxy", "Acquire::http::Proxy"]).run()?;
    Ok(value_of(&out))
}

/// The value in a line of shell, `proxy='http://...'`.
fn value_of(line: &str) -> Option<String> {
    let value = line.trim().strip_prefix("proxy='")?.strip_suffix('\'')?;
    (!value.is_empty()).then(|| value.to_owned())
}

fn proxied(task: Task, proxy: &Option<String>) -> Task {
    match proxy {
        Some(proxy) => task.env("http_proxy", proxy),
        None => task,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_and_the_proxy_are_read_as_apt_says_them() {
        let targets =
            "Debian-Security http://a/security/\nDebian http://a/debian/\nDebian http://b/debian/\n";
        assert_eq!(of_debian(targets).as_deref(), Some("http://a/debian/"));
        assert_eq!(of_debian("Other http://a/\n"), None);
        assert_eq!(value_of("proxy='http://a:3142/'\n").as_deref(), Some("http://a:3142/"));
        assert_eq!((value_of(""), value_of("proxy=''")), (None, None));
    }
}
