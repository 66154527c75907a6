//! A row of the table, as text and as JSON; beside the one of an earlier run (`--compare OLD.json`); and the samples of each rank as lines of
//! JSON, for tools that put several libraries side by side.

use super::{BenchArgs, measure::Samples, op::BenchOp};
use comity::{Error, Group, ReduceOp, Result};
use comity_cluster::escaped;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    fmt::{self, Write as _},
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

/// Row of one operation at one size: measurements of all ranks.
pub(super) struct BenchRow<'a> {
    args: &'a BenchArgs,
    op: BenchOp,
    bytes: u64,
    count: usize,
    ranks: usize,
    pub(super) wrong: u64,
    calls: usize,
    batch: usize,
    /// Microseconds of a call.
    min: f64,
    median: f64,
    p99: f64,
    /// Processor seconds of all ranks.
    cpu_s: f64,
}

impl<'a> BenchRow<'a> {
    pub(super) fn of(
        mut samples: Samples,
        args: &'a BenchArgs,
        group: &Group,
        op: BenchOp,
        count: usize,
        bytes: u64,
    ) -> Result<Self> {
        group.all_reduce(&mut samples.times, ReduceOp::Max)?;
        let mut sums = [samples.user_s + samples.sys_s, samples.wrong as f64];
        group.all_reduce(&mut sums, ReduceOp::Sum)?;
        samples.times.sort_by(f64::total_cmp);
        let len = samples.times.len() as f64;
        let at = |part: f64| samples.times.get((len * part) as usize).map_or(0.0, |t| t / 1e3);
        Ok(Self {
            args,
            op,
            bytes,
            count,
            ranks: group.size(),
            wrong: sums[1] as u64,
            calls: samples.calls,
            batch: samples.batch,
            min: at(0.0),
            median: at(0.5),
            p99: at(0.99),
            cpu_s: sums[0],
        })
    }

    /// Lines above the rows of an operation.
    pub(super) fn head(op: BenchOp, args: &BenchArgs) -> String {
        let of = if op == BenchOp::Barrier { String::new() } else { format!(" {}", args.dtype) };
        let by = if op.reduces() { format!(" {}", args.op) } else { String::new() };
        let about = if op.about().is_empty() { String::new() } else { format!(" ({})", op.about()) };
        let names = ["bytes", "count", "min", "median", "p99", "algbw", "busbw", "CPU", "#wrong"];
        let units = ["", "(elements)", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "(s/GB)", ""];
        let [names, units] = [names, units].map(|all| aligned(all.map(String::from)));
        format!("#\n# {}{of}{by}{about}\n{names}\n{}", op.name(), units.trim_end())
    }

    /// Bytes by median time, in GB/s.
    fn algbw(&self) -> f64 {
        if self.median > 0.0 { self.bytes as f64 / self.median / 1e3 } else { 0.0 }
    }

    fn busbw(&self) -> f64 {
        self.algbw() * self.op.bus(self.ranks)
    }

    /// Nothing where no bytes are moved.
    fn cpu_per_gb(&self) -> Option<f64> {
        let gigabytes = self.calls as f64 * self.bytes as f64 / 1e9;
        (gigabytes > 0.0).then(|| self.cpu_s / gigabytes)
    }

    /// JSON object of the row with everything, also of the group, so that lines can be distinguished wherever they end up.
    pub(super) fn to_json(&self, world: &Value) -> Value {
        json!({
            "op": self.op.name(), "bytes": self.bytes, "count": self.count, "dtype": self.args.dtype.name(),
            "redop": self.op.reduces().then(|| self.args.op.name()), "calls": self.calls, "batch": self.batch,
            "min_us": self.min, "median_us": self.median, "p99_us": self.p99, "algbw_GBps": self.algbw(),
            "busbw_GBps": self.busbw(), "cpu_s_per_GB": self.cpu_per_gb(), "wrong": self.wrong, "world": world,
        })
    }
}

impl fmt::Display for BenchRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&aligned([
            self.bytes.to_string(),
            self.count.to_string(),
            digits(self.min),
            digits(self.median),
            digits(self.p99),
            digits(self.algbw()),
            digits(self.busbw()),
            self.cpu_per_gb().map_or_else(|| "-".into(), digits),
            self.wrong.to_string(),
        ]))
    }
}

fn aligned(cells: [String; 9]) -> String {
    let widths = [13, 12, 11, 11, 11, 9, 9, 9, 8];
    cells.iter().zip(widths).map(|(c, w)| format!("{c:>w$}")).collect()
}

fn digits(x: f64) -> String {
    match x {
        x if x >= 1000.0 => format!("{x:.0}"),
        x if x >= 100.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

/// Less than this is noise on most machines.
const NOISE: f64 = 0.05;
/// An earlier run is never larger.
const LONGEST: u64 = 256 << 20;

/// Median times in microseconds of an earlier run.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    rows: HashMap<String, f64>,
    colours: bool,
}

/// Key of a row: rows with the same one are comparable.
fn key(row: &Value) -> String {
    ["op", "bytes", "dtype", "redop"].map(|k| row[k].to_string()).join(" ")
        + " "
        + &row["world"]["ranks"].to_string()
}

impl Earlier {
    /// Reads what `comity bench --json` printed.
    pub(super) fn read(path: &Path, colours: bool) -> Result<Self, String> {
        let bad = |why: String| format!("--compare {}: {why}", path.display());
        let meta = fs::metadata(path).map_err(|e| bad(e.to_string()))?;
        if !meta.is_file() || meta.len() > LONGEST {
            return Err(bad("this is no file that `comity bench --json` prints".into()));
        }
        let text = fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        let mut rows = HashMap::new();
        for (n, line) in text.lines().enumerate() {
            // A launcher's tag may stand before the object, and lines of others between.
            let Some(at) = line.find('{') else { continue };
            let row: Value =
                serde_json::from_str(&line[at..]).map_err(|e| bad(format!("line {}: {e}", n + 1)))?;
            if let Some(median) = row["median_us"].as_f64().filter(|m| *m > 0.0) {
                rows.insert(key(&row), median);
            }
        }
        if rows.is_empty() {
            return Err(bad("it has no row of `comity bench --json`".into()));
        }
        Ok(Self { rows, colours })
    }

    /// Earlier median time over this row's: above 1, this one is faster.
    pub(super) fn ratio(&self, row: &Value) -> Option<f64> {
        let old = self.rows.get(&key(row))?;
        let new = row["median_us"].as_f64()?;
        (new > 0.0).then(|| old / new)
    }

    /// Text that is added to a row of the table.
    pub(super) fn words(&self, row: &Value) -> String {
        let Some(ratio) = self.ratio(row) else { return "   (not in the earlier run)".into() };
        let (word, colour) = match ratio {
            r if r > 1.0 + NOISE => ("faster", "\x1b[32m"),
            r if r < 1.0 - NOISE => ("slower", "\x1b[31m"),
            _ => ("alike", ""),
        };
        let text = format!("   {ratio:.2}x {word}");
        match self.colours && !colour.is_empty() {
            true => format!("{colour}{text}\x1b[0m"),
            false => text,
        }
    }
}

/// File of one rank.
pub(super) struct RawFile {
    file: File,
    path: String,
}

impl RawFile {
    /// `tag` is a directory and the beginning of the file's name.
    pub(super) fn create(tag: &Path, rank: usize) -> io::Result<Self> {
        if let Some(dir) = tag.parent().filter(|d| !d.as_os_str().is_empty()) {
            fs::create_dir_all(dir)?;
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

/// The columns of `--csv`, named as `--json` names them.
pub(super) const COLUMNS: &str =
    "op,bytes,count,dtype,redop,ranks,calls,min_us,median_us,p99_us,algbw_GBps,busbw_GBps,cpu_s_per_GB,wrong";

/// A row of comma-separated values; none of them needs quotes.
pub(super) fn csv(row: &Value) -> String {
    let cell = |name: &str| match if name == "ranks" { &row["world"]["ranks"] } else { &row[name] } {
        Value::Null => String::new(),
        Value::String(s) => s.clone(),
        n => n.to_string(),
    };
    COLUMNS.split(',').map(cell).collect::<Vec<_>>().join(",")
}

const COLOURS: [&str; 6] = ["#1f6fb4", "#c4560a", "#2a7d3c", "#8a4bb0", "#b3252f", "#0b7c86"];
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
/// Width of the labels beside the curves.
const LEFT: f64 = 84.0;

/// Times and bandwidths of all rows, on one page that needs nothing else.
pub(super) fn html(rows: &[Value], title: &str) -> String {
    let title = escaped(title);
    let mut t = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>comity bench</title><style>\n\
         body {{ font: 15px/1.4 system-ui, sans-serif; max-width: 1000px; margin: 1rem auto; padding: 0 1rem; color: #1b1f24; background: #fff; }}\n\
         table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }} td, th {{ text-align: right; padding: .15rem .7rem .15rem 0; }}\n\
         th {{ color: #667; font-weight: 500; border-bottom: 1px solid #d5d9e0; }} svg {{ width: 100%; max-width: 720px; height: auto; }}\n\
         svg text {{ font-size: 11px; fill: #444; }}\n</style></head><body>\n<h1>comity bench</h1><p>{title}</p>\n"
    );
    t += "<h2>Median time of a call</h2>\n";
    t += &chart(rows, "median_us", "us");
    t += "<h2>Bandwidth of each link (busbw)</h2>\n";
    t += &chart(rows, "busbw_GBps", "GB/s");
    t += "<h2>All rows</h2>\n<table><tr>";
    COLUMNS.split(',').for_each(|c| t += &format!("<th>{c}</th>"));
    t += "</tr>\n";
    for row in rows {
        let cells = csv(row);
        t += "<tr>";
        for cell in cells.split(',') {
            let short = match cell.parse::<f64>() {
                Ok(n) if cell.contains('.') => format!("{n:.2}"),
                _ => escaped(cell),
            };
            t += &format!("<td>{short}</td>");
        }
        t += "</tr>\n";
    }
    t + "</table>\n</body></html>\n"
}

/// Curves over bytes, both axes logarithmic; a legend below, so that no label lies over a curve.
fn chart(rows: &[Value], name: &str, unit: &str) -> String {
    let mut curves: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        let (Some(op), Some(x), Some(y)) = (row["op"].as_str(), row["bytes"].as_f64(), row[name].as_f64())
        else {
            continue;
        };
        if x > 0.0 && y > 0.0 {
            curves.entry(op).or_default().push((x.log2(), y.log10()));
        }
    }
    let all = || curves.values().flatten();
    if all().count() == 0 {
        return "<p>nothing that could be drawn</p>\n".into();
    }
    let range = |of: fn(&(f64, f64)) -> f64| {
        let (low, high) = all().map(of).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        (low.floor(), high.ceil().max(low.floor() + 1.0))
    };
    let ((x0, x1), (y0, y1)) = (range(|p| p.0), range(|p| p.1));
    let place = |(x, y): (f64, f64)| {
        (LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - 20.0), 10.0 + (y1 - y) / (y1 - y0) * (HEIGHT - 50.0))
    };
    let legend = HEIGHT + 18.0 * curves.len() as f64;
    let mut t = format!("<svg viewBox=\"0 0 {WIDTH} {legend}\" role=\"img\">\n");
    // Writing to a string does not fail.
    for power in y0 as i32..=y1 as i32 {
        let (_, y) = place((x0, power.into()));
        let _ = writeln!(
            t,
            "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#e3e6ea\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{} {unit}</text>",
            WIDTH - 20.0,
            LEFT - 6.0,
            y + 4.0,
            10f64.powi(power)
        );
    }
    let step = (((x1 - x0) / 8.0).ceil() as usize).max(1);
    for power in (x0 as i32..=x1 as i32).step_by(step) {
        let (x, _) = place((power.into(), y0));
        let label = crate::size::bytes(1u64 << power.clamp(0, 62));
        let _ =
            writeln!(t, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", HEIGHT - 22.0);
    }
    for (i, (op, points)) in curves.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let line: Vec<String> =
            points.iter().map(|p| place(*p)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let y = HEIGHT + 18.0 * i as f64;
        let _ = writeln!(
            t,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/><path d=\"M{LEFT} {y}h24\" stroke=\"{colour}\" stroke-width=\"3\"/><text x=\"{}\" y=\"{}\">{}</text>",
            line.join(" "),
            LEFT + 32.0,
            y + 4.0,
            escaped(op)
        );
    }
    t + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_are_found_again_whatever_stands_around_them() {
        let row = |bytes: u64, median: f64| json!({"op": "all_reduce", "bytes": bytes, "dtype": "f32", "redop": "sum", "median_us": median, "world": {"ranks": 2}});
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), format!("comity launch: words\n[0] {}\n{}\n", row(8, 10.0), row(16, 10.0)))
            .unwrap();
        let plain = Earlier::read(file.path(), false).unwrap();
        assert_eq!(plain.words(&row(8, 5.0)), "   2.00x faster");
        assert_eq!(plain.words(&row(16, 20.0)), "   0.50x slower");
        assert_eq!(plain.words(&row(8, 10.2)), "   0.98x alike");
        assert!(plain.words(&row(32, 1.0)).contains("not in the earlier run"));
        let colours = Earlier::read(file.path(), true).unwrap();
        assert_eq!(colours.words(&row(8, 5.0)), "\x1b[32m   2.00x faster\x1b[0m");
        fs::write(file.path(), "nothing\n").unwrap();
        assert!(Earlier::read(file.path(), false).unwrap_err().contains("no row"));
        assert!(Earlier::read(Path::new("/dev/null"), false).unwrap_err().contains("no file"));
    }

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
        let text = fs::read_to_string(dir.path().join("new/tag.r1.jsonl")).unwrap();
        let want = "{\"op\":\"broadcast\",\"bytes\":64,\"n\":2,\"ok\":true,\"iters\":4,\"batch\":2,\"busy_s\":0.50,\
                    \"wall_ns\":46,\"user_s\":0.250000,\"sys_s\":0.000000,\"peak_kib\":2048,\"times_ns\":[10,13]}\n";
        assert_eq!(text, want);
    }

    #[test]
    fn rows_become_cells_and_curves() {
        let row = |bytes: u64, us: f64| json!({"op": "all_reduce", "bytes": bytes, "redop": null, "median_us": us, "busbw_GBps": 1.5, "world": {"ranks": 2}});
        let rows = [row(8, 2.5), row(1 << 20, 900.0)];
        assert_eq!(csv(&rows[0]), "all_reduce,8,,,,2,,,2.5,,,1.5,,");
        let page = html(&rows, "2 ranks <b>");
        assert!(page.contains("2 ranks &lt;b&gt;") && page.matches("<polyline").count() == 2, "{page}");
        assert!(!page.contains("http") && !page.contains("NaN") && !page.contains("inf"), "{page}");
        assert!(html(&[], "").contains("nothing that could be drawn"));
    }
}
