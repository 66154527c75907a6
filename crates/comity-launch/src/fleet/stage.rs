//! `--stage`: files of the launcher's host that other hosts get where they lack them or have other content.
//!
//! The host launcher asks for the pieces that it wants, one at a time, so neither side holds more than one. What has come whole takes
//! the place of the old file at once, or not at all.
//!
//! Hosts that have no `comity` of this version keep a copy of this program in the user's cache.
use crate::fleet::all_or_wrong;
use crate::host::output::Outputs;
use crate::machine::Problem;
use crate::protocol::{FleetOrder, HostEvent, HostPart, StagedFile};
use crate::upstream::FarLauncher;
use aws_lc_rs::digest::{Context, SHA256};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// Bytes that a host launcher asks for at once.
const PIECE: u64 = 1 << 20;

/// The SHA-256 of a file.
pub(crate) fn digest(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut sum = Context::new(&SHA256);
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => sum.update(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(sum.finish().as_ref().iter().map(|b| format!("{b:02x}")).collect())
}

/// The files as they are here; or everything that is wrong with them.
pub(crate) fn files(names: &[PathBuf]) -> Result<Vec<StagedFile>, Vec<String>> {
    let one = |path: &PathBuf| -> Result<StagedFile, String> {
        let fail = |e: String| format!("--stage {}: {e}", path.display());
        let meta = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?;
        if !meta.is_file() {
            return Err(fail("is no file; name the files one by one".into()));
        }
        let name = path.to_str().ok_or_else(|| fail("its name is no UTF-8".into()))?.to_owned();
        let digest = digest(path).map_err(|e| fail(e.to_string()))?;
        Ok(StagedFile { name, digest, mode: meta.permissions().mode() & 0o777 })
    };
    all_or_wrong(names.iter().map(one))
}

/// A piece of a file for a host launcher; nothing at its end.
pub(crate) fn piece(file: &StagedFile, at: u64) -> io::Result<Vec<u8>> {
    let mut from = File::open(&file.name)?;
    from.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    from.take(PIECE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// On the other host: gets what it lacks. False if the launcher is gone.
pub(crate) fn fetch(
    part: &HostPart,
    dir: &Path,
    orders: &mut FarLauncher,
    output: &Outputs,
) -> Result<bool, Problem> {
    for (index, file) in part.stage.iter().enumerate() {
        let path = dir.join(&file.name);
        if digest(&path).is_ok_and(|d| d == file.digest) {
            continue;
        }
        let fail = |e: io::Error| Problem::usage(format!("--stage '{}': {e}", path.display()));
        let Some(new) = receive(index, file, &path, orders, output).map_err(fail)? else { return Ok(false) };
        new.persist(&path).map_err(|e| fail(e.error))?;
    }
    Ok(true)
}

/// The file as it has come, beside its place; it goes away with this value.
fn receive(
    index: usize,
    file: &StagedFile,
    place: &Path,
    orders: &mut FarLauncher,
    output: &Outputs,
) -> io::Result<Option<NamedTempFile>> {
    let dir = place.parent().unwrap_or(place);
    std::fs::create_dir_all(dir)?;
    // Opened and written by itself: `tempfile` would add to an error the path of this file, which says nothing to the user.
    let open = |path: &Path| File::options().write(true).create_new(true).mode(0o600).open(path);
    let mut to = Builder::new().prefix(".comity-").make_in(dir, open)?;
    let mut at = 0;
    loop {
        output.event(&HostEvent::Wants { file: index as u32, at });
        let Some(FleetOrder::Piece(bytes)) = orders.wait(output) else { return Ok(None) };
        if bytes.is_empty() {
            break;
        }
        at += bytes.len() as u64;
        to.as_file_mut().write_all(&bytes)?;
    }
    to.as_file().set_permissions(std::fs::Permissions::from_mode(file.mode))?;
    match digest(to.path())? == file.digest {
        true => Ok(Some(to)),
        false => Err(io::Error::other("it changed while it was copied")),
    }
}

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

    pub(super) fn open(&self) -> io::Result<File> {
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
    fn files_are_known_by_their_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.py");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(
            digest(&path).unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let all = files(std::slice::from_ref(&path)).unwrap();
        assert_eq!((piece(&all[0], 1).unwrap(), piece(&all[0], 3).unwrap()), (b"bc".to_vec(), Vec::new()));
        let wrong = files(&[dir.path().into(), "/nowhere/x".into()]).unwrap_err();
        assert!(wrong[0].contains("is no file") && wrong[1].contains("/nowhere/x"), "{wrong:?}");
    }

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
