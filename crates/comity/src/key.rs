//! The job key: 32 bytes that every rank of a job holds and nobody else does.

use crate::{
    Error, Result,
    sys::{self, Hidden},
};
use rustix::fs::{Mode, OFlags};
use std::{
    fmt,
    fs::File,
    io::Read,
    os::{fd::RawFd, unix::fs::FileExt, unix::fs::MetadataExt},
    path::Path,
    sync::Arc,
};
use zeroize::Zeroizing;

/// A secret that every rank of a job holds. It never prints, is left out of core dumps (on Linux), and is wiped with its last clone.
#[derive(Clone)]
pub struct Key(Arc<Hidden>);

impl Key {
    /// A new key from the system's random source.
    pub fn random() -> Result<Self> {
        let mut key = Hidden::new();
        getrandom::fill(key.bytes_mut()).map_err(|e| Error::os("making a job key", e))?;
        Ok(Self(Arc::new(key)))
    }

    /// The key in an inherited file descriptor: the first 32 bytes of the (unnamed) file behind it.
    ///
    /// The descriptor stays open and its position does not matter, so the key can be read again.
    pub fn from_fd(fd: RawFd) -> Result<Self> {
        let file = sys::inherited(fd)
            .map_err(|e| Error::Config(format!("the job key's descriptor {fd} cannot be used: {e}")))?;
        let file = File::from(file);
        let kind = file.metadata().map_err(|e| Error::os(format!("looking at descriptor {fd}"), e))?;
        if !kind.is_file() {
            return Err(Error::Config(format!(
                "the job key's descriptor {fd} is not a file; a memfd or an unlinked file is needed, because the key is read more than once"
            )));
        }
        let mut key = Hidden::new();
        file.read_exact_at(key.bytes_mut(), 0).map_err(|e| {
            Error::Config(format!("the job key's descriptor {fd} does not hold 32 bytes: {e}"))
        })?;
        Ok(Self(Arc::new(key)))
    }

    /// The key in a file of exactly 32 bytes, or of 64 hexadecimal digits.
    ///
    /// A file that others than its owner can read or write is refused.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let shown = path.display();
        // Never block on a FIFO, and judge the file that was opened, not the name.
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::Config(format!("the key file {shown} cannot be opened: {e}")))?;
        let file = File::from(file);
        let about = file
            .metadata()
            .map_err(|e| Error::Config(format!("the key file {shown} cannot be read: {e}")))?;
        if !about.is_file() {
            return Err(Error::Config(format!("the key file {shown} is not a regular file")));
        }
        let mode = about.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(Error::Config(format!(
                "the key file {shown} is open to others (mode {mode:04o}); only its owner may read it: chmod 600 {shown}"
            )));
        }
        let mut text = Zeroizing::new(Vec::with_capacity(128));
        file.take(128)
            .read_to_end(&mut text)
            .map_err(|e| Error::Config(format!("the key file {shown} cannot be read: {e}")))?;
        if let Ok(raw) = <&[u8; 32]>::try_from(text.as_slice()) {
            return Ok(Self::copied(raw));
        }
        std::str::from_utf8(&text).ok().and_then(|t| Self::from_hex(t.trim()).ok()).ok_or_else(|| {
            Error::Config(format!(
                "the key file {shown} holds {} bytes; a key is 32 bytes, or 64 hexadecimal digits",
                about.len()
            ))
        })
    }

    /// The key written as 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self> {
        let bad = || Error::Config("a key is 64 hexadecimal digits".into());
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut key = Hidden::new();
        for (byte, pair) in key.bytes_mut().iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(Self(Arc::new(key)))
    }

    /// What stands for a key where none is wanted.
    pub(crate) fn zeros() -> Self {
        Self(Arc::new(Hidden::new()))
    }

    pub(crate) fn is_zeros(&self) -> bool {
        self.bytes() == &[0; 32]
    }

    fn copied(bytes: &[u8; 32]) -> Self {
        let mut key = Hidden::new();
        key.bytes_mut().copy_from_slice(bytes);
        Self(Arc::new(key))
    }

    /// The secret itself, for the handshake and for handing it on.
    pub fn bytes(&self) -> &[u8; 32] {
        self.0.bytes()
    }
}

impl From<[u8; 32]> for Key {
    fn from(bytes: [u8; 32]) -> Self {
        Self::copied(&Zeroizing::new(bytes))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write, os::fd::AsRawFd, os::unix::fs::PermissionsExt};

    fn file(name: &str, content: &[u8], mode: u32) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("comity-key-{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn debug_and_errors_show_nothing() {
        let key = Key::from_hex(&"5a".repeat(32)).unwrap();
        assert_eq!(format!("{key:?}"), "Key(..)");
        let e = Key::from_hex(&"5g".repeat(32)).unwrap_err().to_string();
        assert!(!e.contains("5g"), "{e}");
    }

    #[test]
    fn random_keys_differ() {
        assert_ne!(Key::random().unwrap().bytes(), Key::random().unwrap().bytes());
    }

    #[test]
    fn file_forms() {
        for (name, content) in [
            ("raw", vec![7; 32]),
            ("hex", "07".repeat(32).into_bytes()),
            ("line", format!("{}\n", "07".repeat(32)).into_bytes()),
        ] {
            let path = file(name, &content, 0o600);
            let key = Key::from_file(&path);
            fs::remove_file(&path).unwrap();
            assert_eq!(key.unwrap().bytes(), &[7; 32], "{name}");
        }
    }

    #[test]
    fn file_refusals_name_the_path_and_the_cure() {
        for (name, content, mode, part) in [
            ("group", vec![7; 32], 0o640, "chmod 600"),
            ("world", vec![7; 32], 0o604, "chmod 600"),
            ("writable", vec![7; 32], 0o620, "mode 0620"),
            ("short", vec![7; 31], 0o600, "31 bytes"),
            ("empty", vec![], 0o600, "0 bytes"),
            ("long", vec![b'7'; 100_000], 0o600, "100000 bytes"),
            ("words", b"secret".to_vec(), 0o600, "64 hexadecimal"),
        ] {
            let path = file(name, &content, mode);
            let e = Key::from_file(&path).unwrap_err().to_string();
            fs::remove_file(&path).unwrap();
            assert!(e.contains(part) && e.contains(path.to_str().unwrap()), "{e}");
        }
        let e = Key::from_file("/nowhere/key").unwrap_err().to_string();
        assert!(e.contains("/nowhere/key"), "{e}");
        let e = Key::from_file(std::env::temp_dir()).unwrap_err().to_string();
        assert!(e.contains("not a regular file"), "{e}");
    }

    #[test]
    fn descriptor_can_be_read_twice() {
        let path = file("fd", &[9; 32], 0o600);
        let mut f = File::options().read(true).write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        f.write_all(&[9; 32]).unwrap();
        for _ in 0..2 {
            assert_eq!(Key::from_fd(f.as_raw_fd()).unwrap().bytes(), &[9; 32]);
        }
    }

    #[test]
    fn descriptor_refusals() {
        let (pipe, _end) = std::io::pipe().unwrap();
        let e = Key::from_fd(pipe.as_raw_fd()).unwrap_err().to_string();
        assert!(e.contains("is not a file"), "{e}");
        for fd in [-1, i32::MIN, 1_000_000] {
            assert!(Key::from_fd(fd).unwrap_err().to_string().contains(&fd.to_string()));
        }
    }
}
