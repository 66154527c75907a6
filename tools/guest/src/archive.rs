//! The guest's whole system: an archive in the format that the kernel unpacks at boot (cpio, "newc").

use std::{
    collections::BTreeMap,
    fs, io,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};
use tasks::child::Task;

#[derive(Debug)]
enum Entry {
    Folder,
    File(PathBuf, u32),
    Text(String, u32),
}

/// By path without the slash in front, so that folders come before what is in them.
#[derive(Debug, Default)]
pub(super) struct Archive {
    entries: BTreeMap<String, Entry>,
}

impl Archive {
    pub(super) fn folder(&mut self, path: &str) {
        self.entries.insert(path.trim_start_matches('/').into(), Entry::Folder);
    }

    fn above(&mut self, path: &str) -> String {
        let path = path.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            self.entries.entry(path[..at].into()).or_insert(Entry::Folder);
        }
        path.into()
    }

    pub(super) fn text(&mut self, path: &str, text: &str, mode: u32) {
        let path = self.above(path);
        self.entries.insert(path, Entry::Text(text.into(), mode));
    }

    pub(super) fn file(&mut self, path: &str, from: &Path, mode: u32) -> Result<(), String> {
        if !from.is_file() {
            return Err(format!("{} is no file", from.display()));
        }
        let path = self.above(path);
        self.entries.insert(path, Entry::File(from.into(), mode));
        Ok(())
    }

    /// A program or library with the libraries that it is linked with, those where the loader looks for them.
    pub(super) fn program(&mut self, path: &str, from: &Path) -> Result<(), String> {
        self.file(path, from, 0o755)?;
        for library in linked(&Task::new("ldd").args([from]).run()?) {
            self.file(library, Path::new(library), 0o755)?;
        }
        Ok(())
    }

    pub(super) fn write(&self, to: &Path) -> Result<(), String> {
        self.write_all(to).map_err(|e| format!("cannot write {}: {e}", to.display()))
    }

    fn write_all(&self, to: &Path) -> io::Result<()> {
        let mut out = BufWriter::new(fs::File::create(to)?);
        for (i, (path, entry)) in self.entries.iter().enumerate() {
            match entry {
                Entry::Folder => put(&mut out, i, path, 0o040_755, &[])?,
                Entry::File(from, mode) => put(&mut out, i, path, 0o100_000 | mode, &fs::read(from)?)?,
                Entry::Text(text, mode) => put(&mut out, i, path, 0o100_000 | mode, text.as_bytes())?,
            }
        }
        put(&mut out, 0, "TRAILER!!!", 0, &[])?;
        out.flush()
    }
}

/// Write an entry: 13 numbers of 8 hexadecimal digits, the name, the data, each padded to 4 bytes.
fn put(out: &mut impl Write, number: usize, path: &str, mode: u32, data: &[u8]) -> io::Result<()> {
    let size = u32::try_from(data.len()).map_err(io::Error::other)?;
    let name = path.len() as u32 + 1;
    let numbers = [number as u32 + 1, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0];
    write!(out, "070701")?;
    numbers.iter().try_for_each(|n| write!(out, "{n:08x}"))?;
    write!(out, "{path}\0")?;
    let padding = |length: usize| &[0; 3][..length.wrapping_neg() % 4];
    out.write_all(padding(110 + name as usize))?;
    out.write_all(data)?;
    out.write_all(padding(data.len()))
}

/// The files that `ldd` names: `name => /path (0x...)` and `/path (0x...)`.
fn linked(ldd: &str) -> impl Iterator<Item = &str> {
    ldd.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_folders_come_first() {
        let mut archive = Archive::default();
        archive.text("/a/b/c", "hello", 0o755);
        archive.folder("proc");
        let order: Vec<&String> = archive.entries.keys().collect();
        assert_eq!(order, ["a", "a/b", "a/b/c", "proc"]);
        let mut out = Vec::new();
        put(&mut out, 4, "a/b/c", 0o100_755, b"hello").unwrap();
        assert_eq!(out.len() % 4, 0);
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("0707010000000500") && text.contains("81ed") && text.contains("a/b/c\0hello")
        );
    }

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let text =
            "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x7f)\n\t/lib64/ld.so.2 (0x7f)\n";
        assert!(linked(text).eq(["/lib/x/libc.so.6", "/lib64/ld.so.2"]));
        assert_eq!(linked("\tstatically linked\n").count(), 0);
    }
}
