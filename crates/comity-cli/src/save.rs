//! Files that are there whole or not at all: written beside their place, brought to the disk, and put in place at the end.
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// Mode of a file: readable for all that the user's mask lets, or for the user alone.
pub(crate) const FOR_ALL: u32 = 0o666;
pub(crate) const FOR_USER: u32 = 0o600;

/// Puts the text in the place of what is there, if anything is.
pub(crate) fn replace(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let Some(place) = place_of(path)? else {
        // A terminal, a pipe or a device has no place beside it.
        return File::options().write(true).open(path)?.write_all(text);
    };
    let new = beside(&place, text, mode)?;
    if let Ok(old) = place.metadata() {
        new.as_file().set_permissions(old.permissions())?;
    }
    new.persist(&place)?;
    sync_folder(&place);
    Ok(())
}

/// Makes a file that must not be there yet.
pub(crate) fn create(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    beside(path, text, mode)?.persist_noclobber(path)?;
    sync_folder(path);
    Ok(())
}

/// Checks that a file can be put there; it writes a little beside it and removes that.
pub(crate) fn can_be_put(path: &Path) -> io::Result<()> {
    match place_of(path)? {
        Some(place) => beside(&place, b"\n", FOR_USER).map(drop),
        None => File::options().write(true).open(path).map(drop),
    }
}

/// The ordinary file that is meant, behind symbolic links; nothing for what is no ordinary file.
fn place_of(path: &Path) -> io::Result<Option<PathBuf>> {
    match path.metadata() {
        Ok(meta) if meta.is_file() => path.canonicalize().map(Some),
        Ok(meta) if meta.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(None),
        Err(e) if e.kind() == ErrorKind::NotFound => match path.read_link() {
            // One that leads nowhere yet.
            Ok(to) => Ok(Some(folder(path).join(to))),
            Err(_) => Ok(Some(path.to_owned())),
        },
        Err(e) => Err(e),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// The name outlasts a power cut, too. Not every file system can do that, and the file is whole without it.
fn sync_folder(path: &Path) {
    let _ = File::open(folder(path)).and_then(|f| f.sync_all());
}

/// A file beside another, which goes away with this value.
fn beside(place: &Path, text: &[u8], mode: u32) -> io::Result<NamedTempFile> {
    // Opened and written by itself: `tempfile` would add to an error the path of this file, which says nothing to the user.
    let open = |path: &Path| File::options().write(true).create_new(true).mode(mode).open(path);
    let mut new = Builder::new().prefix(".comity-").make_in(folder(place), open)?;
    new.as_file_mut().write_all(text)?;
    new.as_file().sync_all()?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(dir: &Path) -> Vec<OsString> {
        let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        all.sort();
        all
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_who_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        let link = dir.path().join("b");
        replace(&file, b"one", FOR_USER).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        symlink("a", &link).unwrap();
        let before = File::open(&file).unwrap();
        replace(&link, b"two", FOR_ALL).unwrap();
        assert!(link.read_link().is_ok(), "a symbolic link stays one");
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        // Who has the old one open reads that, whole: it was not truncated.
        assert_eq!(io::read_to_string(before).unwrap(), "one");
        assert_eq!(names(dir.path()), ["a", "b"]);
        symlink("c", dir.path().join("d")).unwrap();
        replace(&dir.path().join("d"), b"three", FOR_ALL).unwrap();
        assert_eq!(names(dir.path()), ["a", "b", "c", "d"]);
    }

    #[test]
    fn what_must_not_be_there_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        create(&file, b"one", FOR_USER).unwrap();
        assert_eq!(create(&file, b"two", FOR_USER).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!((std::fs::read(&file).unwrap(), names(dir.path()).len()), (b"one".to_vec(), 1));
    }

    #[test]
    fn what_cannot_be_written_is_known_before_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        can_be_put(&dir.path().join("a")).unwrap();
        assert_eq!(names(dir.path()).len(), 0);
        let told = can_be_put(&dir.path().join("no/a")).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::NotFound);
        assert!(!told.to_string().contains(".comity"), "{told}");
        assert!(can_be_put(dir.path()).is_err());
        let device = Path::new("/dev/null");
        can_be_put(device).unwrap();
        replace(device, b"x", FOR_ALL).unwrap();
        assert!(!device.metadata().unwrap().is_file());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told() {
        let told = replace(Path::new("/dev/full"), b"x", FOR_ALL).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::StorageFull);
    }
}
