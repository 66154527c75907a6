//! `--compare OLD.json`: each row beside the one of an earlier run, by median time.
use serde_json::Value;
use std::{collections::HashMap, fs, path::Path};

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
}
