//! This program itself, for hosts that have no `comity` of its version: they keep a copy of it in the user's cache.
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Output of a host that looks for this program and has none, before its system and its processor; a zero byte ends it.
const LACKS: &[u8] = b"\0comity-lacks ";

/// The program that runs here.
#[derive(Clone, Debug)]
pub(super) struct OwnProgram {
    path: PathBuf,
    pub(super) size: u64,
    /// The name of its copies' folder: another build has another one.
    pub(super) folder: String,
}

impl OwnProgram {
    /// None where an interpreter runs it: that alone is no program.
    pub(super) fn here() -> Option<Self> {
        let path = std::env::current_exe().ok()?;
        let name = path.file_name()?.to_str()?;
        let meta = std::fs::metadata(&path).ok().filter(|_| !name.starts_with("python"))?;
        let size = meta.size();
        let at = meta.mtime();
        let folder = format!("{}-{size:x}-{at:x}-{:x}", crate::VERSION, meta.mtime_nsec());
        Some(Self { path, size, folder })
    }

    pub(super) fn open(&self) -> std::io::Result<File> {
        File::open(&self.path)
    }
}

/// The system and the processor of a host that lacks this program, if it says so in these bytes.
pub(super) fn lacking(said: &[u8]) -> Option<String> {
    let at = said.windows(LACKS.len()).position(|w| w == LACKS)? + LACKS.len();
    let rest = said.get(at..)?;
    let end = rest.iter().take(100).position(|b| *b == 0)?;
    Some(String::from_utf8_lossy(&rest[..end]).chars().filter(|c| !c.is_control()).collect())
}

/// Returns whether programs of this machine run on such a system, as `uname -s` and `uname -m` name it.
pub(super) fn runs_on(system: &str) -> bool {
    let own = match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Darwin",
        other => other,
    };
    let processors: &[&str] = match std::env::consts::ARCH {
        "aarch64" => &["aarch64", "arm64"],
        "x86_64" => &["x86_64", "amd64"],
        _ => &[],
    };
    system.split_once(' ').is_some_and(|(name, kind)| name == own && processors.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_says_what_it_is() {
        assert_eq!(lacking(b"motd\n\0comity-lacks Linux x86_64\0"), Some("Linux x86_64".into()));
        assert_eq!(lacking(b"\0comity-lacks Linux x86"), None);
        assert_eq!(lacking(b"comity-lacks \0"), None);
        assert!(!runs_on("Plan9 mips") && !runs_on("Linux") && !runs_on(""));
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        assert!(runs_on("Linux x86_64") && !runs_on("Linux aarch64") && !runs_on("Darwin x86_64"));
    }
}
