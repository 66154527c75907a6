//! A flight record as a file: written whole or not at all, read strictly.
//!
//! `rank-N.group-ID.flight.json` is one object. `calls` has a row for each call, oldest first: operation, type, count,
//! reduction, root, tag, number, begin, end (nanoseconds of `clock_ns`), rank waited for, nanoseconds asleep, state.

use super::{NOBODY, Place, Recorder, culprit};
use crate::{CallInfo, DType, Error, MAX_SIZE, Op, ReduceOp, sys::clock};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    fs, io,
    time::{SystemTime, UNIX_EPOCH},
};

const VERSION: u64 = 1;
const MOST_TEXT: usize = 4096;

/// File that a rank wrote when one of its groups failed: a flight record.
///
/// ```
/// use comity::tools::Flight;
///
/// /// Say in which call each rank of a job was.
/// fn report(folder: &std::path::Path) -> std::io::Result<()> {
///     for file in std::fs::read_dir(folder)? {
///         let name = file?.file_name().into_string().unwrap_or_default();
///         if let Some((rank, _group)) = Flight::of_name(&name) {
///             let path = folder.join(&name);
///             assert!(path.metadata()?.len() <= Flight::MOST_BYTES);
///             match Flight::parse(&name, &std::fs::read(path)?) {
///                 Ok(flight) => {
///                     let last = flight.calls.last();
///                     println!("rank {rank}: {}: {:?}", flight.error, last.map(|c| (c.info, c.state.name())));
///                 }
///                 Err(why) => eprintln!("{name} {why}"),
///             }
///         }
///     }
///     Ok(())
/// }
/// assert_eq!(Flight::of_name("rank-3.group-2a.flight.json"), Some((3, 42)));
/// # report(&std::env::current_dir()?)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// This rank, in the group.
    pub rank: usize,
    /// Ranks of the job by rank of the group.
    pub members: Vec<usize>,
    /// The group's name.
    pub group: u64,
    /// Host of the process.
    pub host: Option<String>,
    /// Its process id.
    pub pid: u32,
    /// When it was written, in nanoseconds since 1970.
    pub written: u64,
    /// Reason of the group's failure, as this rank saw it.
    pub error: String,
    /// Rank in the group that the error blames.
    pub culprit: Option<usize>,
    /// Number of calls in all.
    pub made: u64,
    /// The last of them, oldest first.
    pub calls: Vec<FlightCall>,
}

/// A call of a [`Flight`], or of a rank that still runs.
///
/// ```
/// let in_seconds = |call: &comity::tools::FlightCall| (call.end - call.begin) as f64 / 1e9;
/// # let _ = in_seconds;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightCall {
    /// Arguments of the call.
    pub info: CallInfo,
    /// Nanoseconds since 1970.
    pub begin: u64,
    /// Not before `begin`.
    pub end: u64,
    /// Member that it waited for, by rank in the group.
    pub peer: Option<usize>,
    /// Time asleep, in nanoseconds.
    pub waited: u64,
    /// State of the call.
    pub state: FlightState,
}

/// State of a call.
///
/// ```
/// assert_eq!(comity::tools::FlightState::Begun.name(), "begun");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FlightState {
    /// It never ended.
    Begun,
    /// It succeeded.
    Done,
    /// It returned an error.
    Failed,
}

impl FlightState {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Begun, "begun"), (Self::Done, "done"), (Self::Failed, "failed")];

    /// The state of this number.
    pub(super) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().map(|(s, _)| s).find(|s| *s as u8 == number)
    }

    /// Returns its name: "begun".
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(s, _)| *s == self).map_or("", |(_, n)| n)
    }
}

impl Flight {
    /// The length, in bytes, that no file exceeds.
    pub const MOST_BYTES: u64 = 2 << 20;

    /// The rank of the job and the group that a file's name tells; `None` for a file of another kind.
    pub fn of_name(name: &str) -> Option<(usize, u64)> {
        let (rank, rest) = name.strip_prefix("rank-")?.split_once(".group-")?;
        let group = u64::from_str_radix(rest.strip_suffix(".flight.json")?, 16).ok()?;
        let rank = rank.parse().ok()?;
        (name == file_name(rank, group)).then_some((rank, group))
    }

    /// Read what a file of this name holds.
    ///
    /// # Errors
    /// Its fault, as the rest of a sentence that begins with the file's name.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let Some((world_rank, group)) = Self::of_name(name) else {
            return Err("is not named as a flight record is (rank-N.group-HEX.flight.json)".into());
        };
        if bytes.len() as u64 > Self::MOST_BYTES {
            return Err(format!("is longer than a flight record can be ({} bytes)", Self::MOST_BYTES));
        }
        let all: Value = serde_json::from_slice(bytes).map_err(|e| format!("is no JSON: {e}"))?;
        let version = number(&all, "comity_flight", u64::MAX)?;
        if version != VERSION {
            return Err(format!("has version {version}; this comity reads version {VERSION}"));
        }
        let members: Vec<usize> = list(&all, "members", MAX_SIZE)?
            .iter()
            .map(|m| m.as_u64().filter(|&m| m < MAX_SIZE as u64).map(|m| m as usize))
            .collect::<Option<_>>()
            .ok_or("has a field \"members\" with something else than ranks in it")?;
        let size = members.len() as u64;
        let below = size.checked_sub(1).ok_or("has a field \"members\" that is empty")?;
        let rank = number(&all, "rank", below)? as usize;
        if members.get(rank) != Some(&world_rank) {
            return Err(format!("is named after rank {world_rank}, but was written by another"));
        }
        let clock = number(&all, "clock_ns", u64::MAX)?;
        let written = number(&all, "unix_ns", u64::MAX)?;
        let shift = |t: u64| written.saturating_sub(clock.saturating_sub(t));
        let calls = list(&all, "calls", super::KEPT)?
            .iter()
            .enumerate()
            .map(|(i, row)| {
                call(row, size, shift).ok_or_else(|| format!("has no call in row {i} of \"calls\""))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let made = number(&all, "made", u64::MAX)?;
        if made < calls.len() as u64 {
            return Err(format!("has {} calls, but says that {made} were made", calls.len()));
        }
        Ok(Self {
            rank,
            members,
            group,
            host: if all["host"].is_null() { None } else { Some(text(&all, "host")?) },
            pid: number(&all, "pid", u32::MAX.into())? as u32,
            written,
            error: text(&all, "error")?,
            culprit: if all["culprit"].is_null() {
                None
            } else {
                Some(number(&all, "culprit", below)? as usize)
            },
            made,
            calls,
        })
    }
}

/// Writes what `recorder` holds beside its place, then moves it there.
pub(super) fn write(recorder: &Recorder, place: &Place, group_id: u64, error: &Error) -> io::Result<()> {
    let in_job = place.members.get(place.rank).copied().unwrap_or(place.rank);
    let name = file_name(in_job, group_id);
    let part = place.dir.join(format!(".{name}.{}", std::process::id()));
    // Of 4 bytes at most.
    let words: String = error.to_string().chars().take(MOST_TEXT / 4).collect();
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut out = json!({
        "comity_flight": VERSION,
        "rank": place.rank,
        "members": &place.members[..],
        "host": place.host.as_deref(),
        "pid": std::process::id(),
        "clock_ns": clock::exact(),
        "unix_ns": unix,
        "error": words,
        "culprit": culprit(error),
        "made": recorder.made,
    })
    .to_string();
    // Before the last brace.
    out.pop();
    out.push_str(",\"calls\":[");
    let mut first = true;
    for record in recorder.records() {
        let Some(info) = record.info() else { continue };
        out.push_str(if first { "\n" } else { ",\n" });
        first = false;
        let word = |w: Option<&str>| w.map_or_else(|| "null".to_owned(), |w| format!("\"{w}\""));
        let number = |n: Option<u64>| n.map_or_else(|| "null".to_owned(), |n| n.to_string());
        // Writing to a string does not fail.
        let _ = write!(
            out,
            "[\"{}\",{},{},{},{},{},{},{},{},{},{},\"{}\"]",
            info.op,
            word(info.dtype.map(DType::name)),
            info.count,
            word(info.reduce.map(ReduceOp::name)),
            number(info.root.map(|r| r as u64)),
            number(info.tag.map(u64::from)),
            info.seq,
            record.begin,
            record.end,
            number((record.peer() != NOBODY).then_some(record.peer().into())),
            record.waited,
            record.state().name()
        );
    }
    out.push_str("]}\n");
    let written = fs::write(&part, out).and_then(|()| fs::rename(&part, place.dir.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

fn file_name(rank: usize, group: u64) -> String {
    format!("rank-{rank}.group-{group:x}.flight.json")
}

fn number(of: &Value, field: &str, most: u64) -> Result<u64, String> {
    let n = of[field].as_u64().filter(|&n| n <= most);
    n.ok_or_else(|| format!("has no field \"{field}\" with a whole number from 0 to {most}"))
}

fn text(of: &Value, field: &str) -> Result<String, String> {
    let s = of[field].as_str().filter(|s| s.len() <= MOST_TEXT);
    let s = s.ok_or_else(|| format!("has no field \"{field}\" with a text of at most {MOST_TEXT} bytes"))?;
    // It is shown on terminals.
    Ok(s.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

fn list<'a>(of: &'a Value, field: &str, most: usize) -> Result<&'a Vec<Value>, String> {
    let l = of[field].as_array().filter(|l| l.len() <= most);
    l.ok_or_else(|| format!("has no field \"{field}\" with a list of at most {most}"))
}

/// Parses a row; `None` when it is malformed.
fn call(row: &Value, size: u64, shift: impl Fn(u64) -> u64) -> Option<FlightCall> {
    let row = row.as_array().filter(|r| r.len() == 12)?;
    // The outer option: is it well formed? The inner one: is there one?
    let word = |i: usize| if row[i].is_null() { Some(None) } else { row[i].as_str().map(Some) };
    let number = |i: usize| if row[i].is_null() { Some(None) } else { row[i].as_u64().map(Some) };
    let mut info = CallInfo::new(Op::from_name(word(0)??)?);
    info.dtype = word(1)?.map(|d| DType::from_name(d).ok_or(())).transpose().ok()?;
    info.count = usize::try_from(number(2)??).ok()?;
    info.reduce = word(3)?.map(|r| ReduceOp::from_name(r).ok_or(())).transpose().ok()?;
    info.root = number(4)?.map(|r| if r < size { Ok(r as usize) } else { Err(()) }).transpose().ok()?;
    info.tag = number(5)?.map(u32::try_from).transpose().ok()?;
    info.seq = number(6)??;
    let begin = number(7)??;
    let end = number(8)??;
    let peer = number(9)?.map(|r| if r < size { Ok(r as usize) } else { Err(()) }).transpose().ok()?;
    let state = word(11)??;
    let state = FlightState::ALL.iter().find(|(_, n)| *n == state)?.0;
    let waited = number(10)??;
    (begin <= end).then(|| FlightCall { info, begin: shift(begin), end: shift(end), peer, waited, state })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, lost};
    use super::*;
    use crate::{Peer, stats::Counters};
    use std::path::PathBuf;

    fn me(rank: usize) -> Peer {
        Peer { rank, host: Some("h".into()), pid: None }
    }

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("comity-flight-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let dir = Dir::new("round");
        let mut whole = Recorder::new();
        let c = Counters::default();
        whole.log_to(&dir.0, &me(0), 5);
        let mut r = whole.split(&[4, 2, 0], 1);
        let send = CallInfo::new(Op::Send).with(|c| {
            c.root = Some(2);
            c.tag = Some(7);
        });
        for i in 0..5000 {
            let info = if i % 2 == 0 { call(i) } else { send };
            r.begin(&info, &c);
            r.end(&info, None, &c);
        }
        r.begin(&call(5000), &c);
        r.end(&call(5000), Some(&lost(2)), &c);
        r.write(0xabc, &lost(2));
        let name = "rank-2.group-abc.flight.json";
        let files: Vec<_> = fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(files, [name]);
        let bytes = fs::read(dir.0.join(name)).unwrap();
        let f = Flight::parse(name, &bytes).unwrap();
        assert_eq!((f.rank, &f.members[..], f.group, f.made), (1, &[4, 2, 0][..], 0xabc, 5001));
        assert_eq!((f.calls.len(), f.culprit, f.error.clone()), (4096, Some(2), lost(2).to_string()));
        let last = f.calls.last().unwrap();
        assert_eq!((last.info, last.peer, last.state), (call(5000), Some(2), FlightState::Failed));
        assert_eq!(f.calls[4094].info, send);
        assert!(last.end <= f.written && last.end > f.written - 60_000_000_000);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_no_error() {
        let mut r = Recorder::new();
        r.log_to(std::path::Path::new("/proc/nothing/here"), &me(0), 2);
        r.write(0, &lost(1));
    }

    #[test]
    fn foreign_files_are_refused_in_words() {
        let name = "rank-0.group-0.flight.json";
        let row = r#"["barrier",null,0,null,null,null,1,5,6,1,0,"done"]"#;
        let good = format!(
            r#"{{"comity_flight":1,"rank":0,"members":[0,1],"host":null,"pid":7,"clock_ns":9,"unix_ns":1009,
            "error":"x\u001b[2Jy","culprit":1,"made":1,"calls":[{row}]}}"#
        );
        let f = Flight::parse(name, good.as_bytes()).unwrap();
        assert_eq!((f.calls[0].begin, f.calls[0].end, f.error.as_str()), (1005, 1006, "x [2Jy"));
        let refused = |text: &str, why: &str| {
            let e = Flight::parse(name, text.as_bytes()).unwrap_err();
            assert!(e.contains(why), "{e}");
        };
        refused("garbage", "is no JSON");
        refused("{}", "comity_flight");
        refused(&"[".repeat(100_000), "is no JSON");
        refused(&" ".repeat(3 << 20), "longer");
        for (from, to, why) in [
            ("flight\":1", "flight\":2", "version 2"),
            ("\"rank\":0", "\"rank\":2", "\"rank\""),
            ("\"rank\":0", "\"rank\":1", "named after rank 0"),
            ("[0,1]", "[]", "empty"),
            ("[0,1]", "[0,-1]", "ranks"),
            ("\"made\":1", "\"made\":0", "were made"),
            ("culprit\":1", "culprit\":9", "culprit"),
            ("barrier", "barter", "row 0"),
            ("\"done\"", "\"did\"", "row 0"),
            ("1,5,6,1", "1,6,5,1", "row 0"),
            ("1,5,6,1", "1,5,6,2", "row 0"),
            ("1,5,6,1", "1,5,6", "row 0"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good, "{from}");
            refused(&bad, why);
        }
        let many = good.replace(row, &[row].repeat(4097).join(","));
        refused(&many, "at most 4096");
        assert_eq!(Flight::of_name("rank-01.group-0.flight.json"), None);
        assert_eq!(Flight::of_name("rank-1.out"), None);
    }
}
