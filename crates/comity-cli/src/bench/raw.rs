//! The samples of each rank as lines of JSON, for tools that put several libraries side by side.

use super::{measure::Samples, op::BenchOp};
use comity::{Error, Result};
use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    path::Path,
};

/// File of one rank.
pub(super) struct RawFile {
    file: File,
    path: String,
}

impl RawFile {
    /// `tag` is a directory and the beginning of the file's name.
    pub(super) fn create(tag: &Path, rank: usize) -> io::Result<Self> {
        if let Some(dir) = tag.parent().filter(|d| !d.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir)?;
        }
        let mut path = OsString::from(tag);
        path.push(format!(".r{rank}.jsonl"));
        Ok(Self { file: File::create(&path)?, path: path.to_string_lossy().into_owned() })
    }

    pub(super) fn write(&mut self, op: BenchOp, bytes: u64, n: usize, s: &Samples) -> Result<()> {
        let op = op.name();
        let times: Vec<_> = s.times.iter().map(|t| format!("{t:.0}")).collect();
        let calls = s.calls;
        let batch = s.batch;
        let wall = s.wall_ns;
        let line = format!(
            "{{\"op\":\"{op}\",\"bytes\":{bytes},\"n\":{n},\"ok\":{},\"iters\":{calls},\"batch\":{batch},\
             \"busy_s\":{:.2},\"wall_ns\":{wall},\"user_s\":{:.6},\"sys_s\":{:.6},\"peak_kib\":{},\"times_ns\":[{}]}}\n",
            s.wrong == 0,
            s.busy_s,
            s.user_s,
            s.sys_s,
            s.peak_kib,
            times.join(",")
        );
        self.file.write_all(line.as_bytes()).map_err(|e| Error::os(format!("writing {}", self.path), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_every_field() {
        let dir = tempfile::tempdir().unwrap();
        let tag = dir.path().join("new/tag");
        let samples = Samples {
            wrong: 0,
            calls: 4,
            batch: 2,
            times: vec![10.4, 12.6],
            wall_ns: 46,
            user_s: 0.25,
            sys_s: 0.0,
            busy_s: 0.5,
            peak_kib: 2048,
        };
        RawFile::create(&tag, 1).unwrap().write(BenchOp::Broadcast, 64, 2, &samples).unwrap();
        let text = std::fs::read_to_string(dir.path().join("new/tag.r1.jsonl")).unwrap();
        let want = "{\"op\":\"broadcast\",\"bytes\":64,\"n\":2,\"ok\":true,\"iters\":4,\"batch\":2,\"busy_s\":0.50,\
                    \"wall_ns\":46,\"user_s\":0.250000,\"sys_s\":0.000000,\"peak_kib\":2048,\"times_ns\":[10,13]}\n";
        assert_eq!(text, want);
    }
}
