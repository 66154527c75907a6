//! Targets of a release.

use std::path::{Path, PathBuf};
use tasks::place::target;

/// Target of a release: a machine and its system library.
#[derive(Debug, PartialEq)]
pub(crate) struct Target {
    /// Name that rustc has for it.
    pub(crate) triple: &'static str,
    /// The same with the oldest version of the system library, for zig.
    pub(crate) zig: &'static str,
    /// Policy of PyPI that the wheel keeps; empty where macOS's own tag says it.
    pub(crate) policy: &'static str,
    /// Last part of the wheel's name.
    pub(crate) tag: &'static str,
    /// Name that zig's C compiler has for it.
    pub(crate) cc: &'static str,
}

/// All of them, the commonest first.
pub(crate) const TARGETS: [Target; 5] = [
    Target {
        triple: "x86_64-unknown-linux-gnu",
        zig: "x86_64-unknown-linux-gnu.2.28",
        policy: "manylinux_2_28",
        tag: "manylinux_2_28_x86_64",
        cc: "x86_64-linux-gnu.2.28",
    },
    Target {
        triple: "aarch64-unknown-linux-gnu",
        zig: "aarch64-unknown-linux-gnu.2.28",
        policy: "manylinux_2_28",
        tag: "manylinux_2_28_aarch64",
        cc: "aarch64-linux-gnu.2.28",
    },
    Target {
        triple: "x86_64-unknown-linux-musl",
        zig: "x86_64-unknown-linux-musl",
        policy: "musllinux_1_2",
        tag: "musllinux_1_2_x86_64",
        cc: "x86_64-linux-musl",
    },
    Target {
        triple: "aarch64-unknown-linux-musl",
        zig: "aarch64-unknown-linux-musl",
        policy: "musllinux_1_2",
        tag: "musllinux_1_2_aarch64",
        cc: "aarch64-linux-musl",
    },
    Target {
        triple: "aarch64-apple-darwin",
        zig: "aarch64-apple-darwin",
        policy: "",
        tag: "macosx_11_0_arm64",
        cc: "aarch64-macos.11.0",
    },
];

impl Target {
    /// Return the target of this name.
    pub(crate) fn named(name: &str) -> Result<&'static Self, String> {
        TARGETS.iter().find(|t| t.triple == name).ok_or_else(|| {
            let all: Vec<_> = TARGETS.iter().map(|t| t.triple).collect();
            format!("{name:?} is no target of a release; these are: {}", all.join(", "))
        })
    }

    /// Return the target of this machine.
    pub(crate) fn own() -> Result<&'static Self, String> {
        let system = match () {
            () if cfg!(target_os = "macos") => "apple-darwin",
            () if cfg!(target_env = "musl") => "unknown-linux-musl",
            () => "unknown-linux-gnu",
        };
        Self::named(&format!("{}-{system}", std::env::consts::ARCH))
    }

    pub(crate) fn is_macos(&self) -> bool {
        self.policy.is_empty()
    }

    /// Returns true if it is this machine's own.
    pub(crate) fn runs_here(&self) -> bool {
        Self::own() == Ok(self)
    }

    /// Returns true if programs for it start on this machine: its own, and those for musl where musl's loader is beside glibc's.
    pub(crate) fn starts_here(&self) -> bool {
        let arch = self.triple.split('-').next().unwrap_or_default();
        let loader = Path::new("/lib").join(format!("ld-musl-{arch}.so.1"));
        let is_beside = self.is_musl() && arch == std::env::consts::ARCH && loader.exists();
        self.runs_here() || is_beside
    }

    pub(crate) fn is_musl(&self) -> bool {
        self.triple.ends_with("-musl")
    }

    /// File that cargo has built for it.
    pub(crate) fn built(&self, name: &str) -> PathBuf {
        target().join(self.triple).join("dist").join(name)
    }

    /// Name of its library for Python, as cargo builds it.
    pub(crate) fn extension(&self) -> &'static str {
        if self.is_macos() { "lib_core.dylib" } else { "lib_core.so" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_for_this_processor_start_here() {
        assert!(Target::own().unwrap().starts_here());
        let starting: Vec<_> = TARGETS.iter().filter(|t| t.starts_here()).collect();
        assert!(starting.iter().all(|t| t.triple.starts_with(std::env::consts::ARCH)), "{starting:?}");
        assert!(starting.iter().all(|t| t.runs_here() || t.is_musl()), "{starting:?}");
    }

    #[test]
    fn an_unknown_target_names_all_that_are_known() {
        assert_eq!(Target::named("aarch64-apple-darwin").map(Target::is_macos), Ok(true));
        let e = Target::named("sparc").unwrap_err();
        assert!(TARGETS.iter().all(|t| e.contains(t.triple)), "{e}");
    }
}
