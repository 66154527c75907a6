//! A Debian of its own under `target/`, whose release has Swift: made once, from this machine's mirror.
//!
//! Commands run in it with a mount namespace of their own, so that no mount is left behind, however they end. The repository lies there
//! under the same path as here.

use std::{fs, path::PathBuf};
use tasks::{
    child::Task,
    place::{make_anew, root, target},
};

/// Makes it in this folder, by the lines that enter it. Debian 13 is the first release with Swift.
const MAKE: &str = r#"
set -e
new=$1; enter=$2
# The mirror and the proxy that apt uses. The label of a mirror is known when its lists are there.
mirror() { apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian //p' | head -n 1; }
[ -n "$(mirror)" ] || apt-get -o Acquire::Retries=5 update
[ -n "$(mirror)" ] || { echo 'apt knows no mirror of Debian'; exit 1; }
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "$proxy" ] || export http_proxy="$proxy"
debootstrap --variant=minbase trixie "$new" "$(mirror)"
into() { unshare --mount --propagation private sh -c "$enter" enter "$new" -- "$@"; }
# What is cut short is made anew, so nothing has to reach the disk in order.
into env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=5 -o Dpkg::Options::=--force-unsafe-io install -y \
    --no-install-recommends swiftlang libc6-dev
into apt-get clean
"#;
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
        Task::new("sh").args(["-c", MAKE, "make"]).arg(&fresh.0).arg(ENTER).limit(1800).run()?;
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
