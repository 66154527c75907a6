//! The file of a host's numbers: read with every doubt, written in one piece.

use crate::{ConfigError, sys::here};
use comity_plan::{Algorithm, Cost, HostLink, Kind, LinkClass, RatioRow, RatioTable, TunedCosts};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Its form; a file of another is of another version.
const FORMAT: u64 = 1;
/// A file is no longer than this.
const LONGEST: u64 = 1 << 20;
/// The version of Comity whose numbers these are: another may have other algorithms, or quicker ones.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Measurements of a host by `comity bench --tune`.
///
/// ```
/// use comity::tools::TunedFile;
/// use comity_plan::{LinkClass, RatioTable, TunedCosts};
///
/// // No ratios: the formulas hold as they are.
/// let table = || RatioTable::new(vec![2], vec![8], vec![]);
/// let tables = [table().unwrap(), table().unwrap()];
/// let costs = TunedCosts::new([LinkClass::SHM, LinkClass::TCP], 1e-10, tables).unwrap();
/// let file = TunedFile::here(costs, 8, "2026-11-25T02:00:00Z".into());
/// assert_eq!(TunedFile::from_json(&file.to_json())?.host, file.host);
///
/// let path = std::env::temp_dir().join(format!("costs-example-{}.json", std::process::id()));
/// file.save(&path)?;
/// assert_eq!(TunedFile::load(&path)?.map(|f| f.cores), Some(8));
/// std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TunedFile {
    /// The numbers.
    pub costs: TunedCosts,
    /// The version of Comity that measured.
    pub version: String,
    /// The name of the host.
    pub host: String,
    /// Model of its processor.
    pub processor: String,
    /// Cores that ranks could use.
    pub cores: usize,
    /// When, as in RFC 3339.
    pub date: String,
}

impl TunedFile {
    /// These numbers, of this host and version.
    pub fn here(costs: TunedCosts, cores: usize, date: String) -> Self {
        let (host, processor) = (here::host_name(), here::processor());
        Self { costs, version: VERSION.into(), host, processor, cores, date }
    }

    /// Writes the text that [`from_json`](Self::from_json) reads.
    pub fn to_json(&self) -> String {
        let link = |link: HostLink| {
            let (class, table) = (self.costs.class(link), self.costs.table(link));
            let row = |r: &RatioRow| {
                let ratios: Vec<f64> = r.ratios().collect();
                let by_ranks: Vec<_> = ratios.chunks(table.bytes().len()).collect();
                json!({ "op": r.kind.name(), "algorithm": r.algorithm.name(), "measured_over_predicted": by_ranks })
            };
            json!({
                "latency_s": class.cost.alpha, "bytes_per_s": 1.0 / class.cost.beta, "busy": class.busy,
                "crowd": class.crowd, "same": class.same, "ranks": table.ranks(), "bytes": table.bytes(),
                "ratios": table.rows().iter().map(row).collect::<Vec<_>>(),
            })
        };
        json!({
            "comity_costs": FORMAT, "version": self.version, "host": self.host, "processor": self.processor,
            "cores": self.cores, "date": self.date, "added_bytes_per_s": 1.0 / self.costs.gamma(),
            "links": { "shm": link(HostLink::Shm), "tcp": link(HostLink::Tcp) },
        })
        .to_string()
    }

    /// The numbers of a text that [`to_json`](Self::to_json) made.
    ///
    /// # Errors
    /// The fault of the text, as the rest of a sentence.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| ConfigError::new(format!("is not JSON: {e}")).at(e.line(), e.column()))?;
        let word = |name: &str| {
            let text = value[name].as_str().filter(|s| s.len() <= 255 && !s.chars().any(char::is_control));
            text.map(str::to_owned).ok_or_else(|| ConfigError::new(format!("has no \"{name}\"")))
        };
        let version = word("version")?;
        if value["comity_costs"] != FORMAT || version != VERSION {
            return Err(ConfigError::new(format!("is of Comity {version}, and this is {VERSION}")));
        }
        let (host, processor, date) = (word("host")?, word("processor")?, word("date")?);
        let cores = value["cores"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let gamma = 1.0 / number(&value, "added_bytes_per_s")?;
        let [shm, tcp] = HostLink::ALL.map(|link| of_link(&value["links"][link.name()], link.name()));
        let (shm, tcp) = (shm?, tcp?);
        let costs = TunedCosts::new([shm.0, tcp.0], gamma, [shm.1, tcp.1]);
        let costs = costs.ok_or_else(|| ConfigError::new("holds numbers that are out of range"))?;
        Ok(Self { costs, version, host, processor, cores, date })
    }

    /// The numbers in a file, if there is one and it is of this host and version, and nobody else can have written it.
    ///
    /// # Errors
    /// Why a file that is there is not used, as a sentence that names it.
    pub fn load(path: &Path) -> Result<Option<Self>, ConfigError> {
        let bad = |why: ConfigError| {
            let place = (why.line, why.column);
            let mut e = ConfigError::new(format!("the costs file {} {why}", path.display())).with_file(path);
            (e.line, e.column) = place;
            e
        };
        let Some(text) = read(path).map_err(|why| bad(ConfigError::new(why)))? else { return Ok(None) };
        let file = Self::from_json(&text).map_err(bad)?;
        let (host, processor) = (here::host_name(), here::processor());
        if file.host != host {
            return Err(bad(ConfigError::new(format!("was measured on {}, and this is {host}", file.host))));
        }
        if file.processor != processor {
            let words =
                format!("was measured on another processor ({:?}, not {processor:?})", file.processor);
            return Err(bad(ConfigError::new(words)));
        }
        Ok(Some(file))
    }

    /// Write it, whole or not at all, for this user to read. Its folder is made.
    ///
    /// # Errors
    /// The system's error.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let (mut file, new) = beside(path)?;
        let text = self.to_json() + "\n";
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.and_then(|()| std::fs::rename(&new, path)).inspect_err(|_| {
            let _ = std::fs::remove_file(&new);
        })
    }

    /// Checks that [`save`](Self::save) can write there: before measuring for minutes. Its folder is made.
    ///
    /// ```
    /// let path = std::env::temp_dir().join("costs-example.json");
    /// comity::tools::TunedFile::check_place(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// The system's error.
    pub fn check_place(path: &Path) -> io::Result<()> {
        let (_, new) = beside(path)?;
        std::fs::remove_file(new)
    }
}

/// A new file beside this one, and its name. A file that a process of this number left is gone.
fn beside(path: &Path) -> io::Result<(File, PathBuf)> {
    if let Some(dir) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    let _ = std::fs::remove_file(&new);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
    Ok((file, new))
}

/// The text of a file that this user alone can write; `None` where there is none, and where its folder is closed to this user, who cannot
/// have written one there.
fn read(path: &Path) -> Result<Option<String>, String> {
    // Never block on a FIFO, and judge the file that was opened, not the name.
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let fd = match fd {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(rustix::io::Errno::ACCESS) if rustix::fs::stat(path).is_err() => return Ok(None),
        other => other.map_err(|e| format!("cannot be opened: {}", io::Error::from(e)))?,
    };
    let file = File::from(fd);
    let about = file.metadata().map_err(|e| format!("cannot be read: {e}"))?;
    if !about.is_file() {
        return Err("is not a regular file".into());
    }
    is_safe(about.uid(), about.mode() & 0o777, rustix::process::geteuid().as_raw())?;
    let mut text = String::new();
    let n = file.take(LONGEST + 1).read_to_string(&mut text).map_err(|e| format!("cannot be read: {e}"))?;
    if n as u64 > LONGEST {
        return Err(format!("is longer than {LONGEST} bytes"));
    }
    Ok(Some(text))
}

/// Checks that nobody but this user can have written a file of this owner and mode: others could choose how its jobs move data.
fn is_safe(owner: u32, mode: u32, me: u32) -> Result<(), String> {
    if owner != me {
        return Err(format!("belongs to user {owner}, and this process runs as user {me}"));
    }
    if mode & 0o022 != 0 {
        return Err(format!("can be written by others (mode {mode:04o}); chmod 600 makes it yours alone"));
    }
    Ok(())
}

/// A number above 0.
fn number(value: &Value, name: &str) -> Result<f64, ConfigError> {
    let number = value[name].as_f64().filter(|x| x.is_finite() && *x > 0.0);
    number.ok_or_else(|| ConfigError::new(format!("has no number above 0 at \"{name}\"")))
}

/// The numbers of a kind of link.
fn of_link(value: &Value, name: &str) -> Result<(LinkClass, RatioTable), ConfigError> {
    let missing = |what: &str| ConfigError::new(format!("has no sound \"{what}\" of {name}"));
    let cost = Cost { alpha: number(value, "latency_s")?, beta: 1.0 / number(value, "bytes_per_s")? };
    let [busy, crowd, same] = ["busy", "crowd", "same"].map(|part| number(value, part));
    let class = LinkClass { cost, busy: busy?, crowd: crowd?, same: same? };
    let list = |part: &str| {
        let all = value[part].as_array().filter(|a| a.len() <= 64).map(|a| a.iter().map(Value::as_u64));
        all.and_then(Iterator::collect::<Option<Vec<u64>>>).ok_or_else(|| missing(part))
    };
    let ranks = list("ranks")?.into_iter().map(|n| u32::try_from(n).map_err(|_| missing("ranks")));
    let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
    let rows = value["ratios"].as_array().ok_or_else(|| missing("ratios"))?;
    let rows = rows.iter().map(|r| row(r).ok_or_else(|| missing("ratios"))).collect::<Result<_, _>>()?;
    let table = RatioTable::new(ranks, list("bytes")?, rows).ok_or_else(|| missing("ratios"))?;
    Ok((class, table))
}

fn row(value: &Value) -> Option<RatioRow> {
    let kind = Kind::from_name(value["op"].as_str()?)?;
    let algorithm = Algorithm::from_name(value["algorithm"].as_str()?)?;
    let all = value["measured_over_predicted"].as_array()?;
    let numbers = all.iter().map(|by| by.as_array()).collect::<Option<Vec<_>>>()?;
    let ratio = |v: &Value| v.as_f64().filter(|x| x.is_finite() && *x > 0.0);
    let ratios = numbers.into_iter().flatten().map(ratio).collect::<Option<Vec<_>>>()?;
    Some(RatioRow::new(kind, algorithm, ratios))
}

#[cfg(test)]
mod tests;
