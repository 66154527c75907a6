//! The job key: 32 bytes that every rank of a job holds and nobody else does.

use crate::{
    ConfigError, Error, Result,
    sys::{self, HiddenBytes},
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

/// A secret of 32 bytes that every rank of a job holds and nobody else.
///
/// It never prints, is left out of core dumps (on Linux), and is wiped with its last clone. 32 bytes of zeros stand for no key and are refused.
///
/// ```
/// use comity::{Config, Key};
///
/// let key = Key::random()?;
/// assert_eq!(format!("{key:?}"), "Key(..)");
/// let same = Key::from(*key.bytes()); // brought to another rank in a way that only the ranks can read
/// let config = Config::new(1, 2).rendezvous("10.0.0.1:7000")?.key(same);
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone)]
pub struct Key(Arc<HiddenBytes>);

impl Key {
    /// A new key from the system's random source.
    ///
    /// # Errors
    /// [`ErrorKind::Os`](crate::ErrorKind::Os) when the system has no random bytes.
    pub fn random() -> Result<Self> {
        let mut key = HiddenBytes::new();
        getrandom::fill(key.bytes_mut()).map_err(|e| Error::os("making a job key", e))?;
        Ok(Self(Arc::new(key)))
    }

    /// The key in an inherited file descriptor: the first 32 bytes of the (unnamed) file behind it.
    ///
    /// The descriptor stays open and its position does not matter, so the key can be read again.
    ///
    /// ```
    /// use std::{fs::File, os::fd::AsRawFd};
    ///
    /// let path = std::env::temp_dir().join(format!("comity-doc-fd-{}", std::process::id()));
    /// std::fs::write(&path, [7; 32])?;
    /// let file = File::open(&path)?;
    /// std::fs::remove_file(&path)?; // from here on only the descriptor leads to it
    /// let key = comity::Key::from_fd(file.as_raw_fd())?;
    /// assert_eq!(key.bytes(), &[7; 32]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) when the descriptor is not open, is no file, or holds fewer than 32 bytes or only zeros.
    pub fn from_fd(fd: RawFd) -> Result<Self> {
        let file = sys::inherited(fd)
            .map_err(|e| Error::config(format!("the job key's descriptor {fd} cannot be used: {e}")))?;
        let file = File::from(file);
        let kind = file.metadata().map_err(|e| Error::os(format!("looking at descriptor {fd}"), e))?;
        if !kind.is_file() {
            return Err(Error::config(format!(
                "the job key's descriptor {fd} is not a file; a memfd or an unlinked file is needed, because the key is read more than once"
            )));
        }
        let mut key = HiddenBytes::new();
        file.read_exact_at(key.bytes_mut(), 0).map_err(|e| {
            Error::config(format!("the job key's descriptor {fd} does not hold 32 bytes: {e}"))
        })?;
        Self(Arc::new(key)).unless_zeros(&format!("the job key's descriptor {fd}"), None)
    }

    /// The key in a file of exactly 32 bytes, or of 64 hexadecimal digits.
    ///
    /// A file that others than its owner can read or write is refused. So is one of another user, who could know the key or change
    /// it; root's are taken. This holds for root, too: it does not take a key from a user.
    ///
    /// ```
    /// use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt};
    ///
    /// let path = std::env::temp_dir().join(format!("comity-doc-key-{}", std::process::id()));
    /// let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    /// file.write_all("5a".repeat(32).as_bytes())?;
    /// let key = comity::Key::from_file(&path);
    /// std::fs::remove_file(&path)?;
    /// assert_eq!(key?.bytes(), &[0x5a; 32]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) with the file, when it cannot be read, is refused, or does not hold a key.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let shown = path.display();
        let wrong = |why: String| Error::from(ConfigError::new(why).with_file(path));
        // Never block on a FIFO, and judge the file that was opened, not the name.
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| wrong(format!("the key file {shown} cannot be opened: {e}")))?;
        let file = File::from(file);
        let about =
            file.metadata().map_err(|e| wrong(format!("the key file {shown} cannot be read: {e}")))?;
        if !about.is_file() {
            return Err(wrong(format!("the key file {shown} is not a regular file")));
        }
        let mode = about.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(wrong(format!(
                "the key file {shown} is open to others (mode {mode:04o}); only its owner may read it: chmod 600 {shown}"
            )));
        }
        let me = rustix::process::geteuid().as_raw();
        if !is_trusted(about.uid(), me) {
            return Err(wrong(format!(
                "the key file {shown} belongs to user {}, and this process runs as user {me}: its owner could know the key or change it; \
                 run as that user, or make a copy of your own: install -m 600 {shown} COPY",
                about.uid()
            )));
        }
        let mut text = Zeroizing::new(Vec::with_capacity(128));
        file.take(128)
            .read_to_end(&mut text)
            .map_err(|e| wrong(format!("the key file {shown} cannot be read: {e}")))?;
        if let Ok(raw) = <&[u8; 32]>::try_from(text.as_slice()) {
            return Self::copied(raw).unless_zeros(&format!("the key file {shown}"), Some(path));
        }
        let key = std::str::from_utf8(&text).ok().and_then(|t| Self::digits(t.trim())).ok_or_else(|| {
            wrong(format!(
                "the key file {shown} holds {} bytes; a key is 32 bytes, or 64 hexadecimal digits",
                about.len()
            ))
        })?;
        key.unless_zeros(&format!("the key file {shown}"), Some(path))
    }

    /// Zeros stand for no key: they would let anybody in who tries them.
    fn unless_zeros(self, what: &str, file: Option<&Path>) -> Result<Self> {
        if self.is_zeros() {
            let why = ConfigError::new(format!(
                "{what} holds only zeros, which is no secret; make a key with: head -c 32 /dev/urandom > FILE; chmod 600 FILE"
            ));
            return Err(match file {
                Some(file) => why.with_file(file),
                None => why,
            }
            .into());
        }
        Ok(self)
    }

    /// The key written as 64 hexadecimal digits.
    ///
    /// ```
    /// let key = comity::Key::from_hex(&"5a".repeat(32))?;
    /// assert_eq!(key.bytes(), &[0x5a; 32]);
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for any other text, and for zeros. It does not repeat the text.
    pub fn from_hex(text: &str) -> Result<Self> {
        let key = Self::digits(text).ok_or_else(|| Error::config("a key is 64 hexadecimal digits"))?;
        key.unless_zeros("this key", None)
    }

    fn digits(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut key = HiddenBytes::new();
        for (byte, pair) in key.bytes_mut().iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(Arc::new(key)))
    }

    /// Returns the key of a job without one.
    #[doc(hidden)]
    pub fn zeros() -> Self {
        Self(Arc::new(HiddenBytes::new()))
    }

    #[doc(hidden)]
    pub fn is_zeros(&self) -> bool {
        self.bytes() == &[0; 32]
    }

    fn copied(bytes: &[u8; 32]) -> Self {
        let mut key = HiddenBytes::new();
        key.bytes_mut().copy_from_slice(bytes);
        Self(Arc::new(key))
    }

    /// The secret itself, 32 bytes, to hand it on. Do not print or store it where others can read.
    pub fn bytes(&self) -> &[u8; 32] {
        self.0.bytes()
    }
}

/// Returns true if a process of user `me` may trust a key file of user `owner`: its own, or root's, who can do anything anyway.
fn is_trusted(owner: u32, me: u32) -> bool {
    owner == me || owner == 0
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
            ("zeros", vec![0; 32], 0o600, "holds only zeros"),
            ("nought", vec![b'0'; 64], 0o600, "holds only zeros"),
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
    fn a_key_of_another_user_is_refused() {
        for (owner, me, trusted) in [(7, 7, true), (0, 7, true), (7, 0, false), (7, 8, false), (0, 0, true)] {
            assert_eq!(is_trusted(owner, me), trusted, "{owner} {me}");
        }
        let path = file("theirs", &[7; 32], 0o600);
        // Only root can give a file away.
        if std::os::unix::fs::chown(&path, Some(4711), None).is_ok() {
            let e = Key::from_file(&path).unwrap_err().to_string();
            assert!(e.contains("belongs to user 4711") && e.contains(path.to_str().unwrap()), "{e}");
        }
        fs::remove_file(&path).unwrap();
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
