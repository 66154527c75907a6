//! The device matrix: which RDMA devices lead from each rank to each other one, in the form of MLX's `MLX_IBV_DEVICES`.
//!
//! `[[null, "rdma_en5"], ["rdma_en4", null]]`: row `i` is rank `i`'s, cell `j` what leads from it to rank `j`: a name, a list of names
//! for several cables, or `null` (`""`, `[]`) where the pair goes another way. A file, or the JSON itself.

use crate::{ConfigError, MAX_SIZE, address::shown};
use serde_json::Value;
use std::{fs, io::Read};

/// A matrix of 1,000 ranks with long names is smaller.
const MOST_BYTES: u64 = 64 << 20;
/// The most cables of one pair.
const MOST_CABLES: usize = 16;
/// Longest device name that the library allows, in bytes.
const MOST_NAME: usize = 63;

/// A matrix that makes sense by itself. By rank, then by peer: names of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) rows: Vec<Vec<Vec<String>>>,
}

impl Matrix {
    /// From the path of a file, or from the JSON itself.
    pub(crate) fn read(text: &str) -> Result<Self, ConfigError> {
        if text.trim_start().starts_with('[') {
            return Self::parse(text.as_bytes());
        }
        let cannot =
            |e: &dyn std::fmt::Display| ConfigError::new(format!("cannot be read: {e}")).with_file(text);
        let meta = fs::metadata(text).map_err(|e| cannot(&e))?;
        if !meta.is_file() {
            return Err(cannot(&"it is not a regular file"));
        }
        let mut bytes = Vec::new();
        let file = fs::File::open(text).map_err(|e| cannot(&e))?;
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| cannot(&e))?;
        Self::parse(&bytes).map_err(|why| why.with_file(text))
    }

    fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        if bytes.len() as u64 > MOST_BYTES {
            return Err(ConfigError::new(format!("is larger than {MOST_BYTES} bytes")));
        }
        let json = serde_json::from_slice(bytes)
            .map_err(|e| ConfigError::new(format!("is not JSON: {e}")).at(e.line(), e.column()))?;
        Self::of(&json).map_err(ConfigError::new)
    }

    fn of(json: &Value) -> Result<Self, String> {
        let form = "is no matrix such as [[null, \"rdma_en5\"], [\"rdma_en4\", null]]";
        let Value::Array(rows) = json else { return Err(form.into()) };
        let n = rows.len();
        if n == 0 || n > MAX_SIZE {
            return Err(format!("has {n} rows; allowed is one for each of 1 to {MAX_SIZE} ranks"));
        }
        let row = |(rank, row): (usize, &Value)| {
            let Value::Array(cells) = row else { return Err(format!("row {rank}: {form}")) };
            if cells.len() != n {
                return Err(format!(
                    "row {rank} has {} cells, but there are {n} rows; they must be equal",
                    cells.len()
                ));
            }
            let cell = |(peer, c): (usize, &Value)| {
                let names = names(c).map_err(|why| format!("row {rank}, cell {peer} {why}"))?;
                match peer == rank && !names.is_empty() {
                    true => {
                        Err(format!("row {rank}, cell {peer} is this rank's way to itself; it must be null"))
                    }
                    false => Ok(names),
                }
            };
            cells.iter().enumerate().map(cell).collect()
        };
        Ok(Self { rows: rows.iter().enumerate().map(row).collect::<Result<_, _>>()? })
    }
}

fn names(cell: &Value) -> Result<Vec<String>, String> {
    let list = match cell {
        Value::Null => &[],
        Value::String(s) if s.is_empty() => &[],
        Value::String(_) => std::slice::from_ref(cell),
        Value::Array(list) => list.as_slice(),
        _ => return Err("is neither a device's name, nor a list of names, nor null".into()),
    };
    if list.len() > MOST_CABLES {
        return Err(format!("names {} devices; allowed are {MOST_CABLES}", list.len()));
    }
    let mut names: Vec<String> = Vec::with_capacity(list.len());
    for item in list {
        match item {
            Value::String(s) if s.is_empty() || s.len() > MOST_NAME || s.chars().any(char::is_control) => {
                return Err(format!(
                    "names {}, which is not a name of 1 to {MOST_NAME} printable bytes",
                    shown(s)
                ));
            }
            Value::String(s) if names.contains(s) => return Err(format!("names {} twice", shown(s))),
            Value::String(s) => names.push(s.clone()),
            _ => return Err("holds what is not a device's name".into()),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lists_and_holes_are_read() {
        let m =
            Matrix::read(r#"[[null, "a", ["b", "c"]], ["d", null, ""], [["e", "f"], [], null]]"#).unwrap();
        assert_eq!(m.rows[0], [vec![], vec!["a".to_owned()], vec!["b".into(), "c".into()]]);
        assert_eq!((m.rows[1][2].len(), m.rows[2][1].len()), (0, 0));
        let path = std::env::temp_dir().join(format!("comity-matrix-{}", std::process::id()));
        fs::write(&path, r#"[[null, "a"], ["b", null]]"#).unwrap();
        let read = Matrix::read(path.to_str().unwrap());
        fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap().rows[1][0], ["b"]);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, words) in [
            ("[", "not JSON"),
            ("[]", "0 rows"),
            ("[1]", "row 0"),
            ("[[null, \"a\"]]", "row 0 has 2 cells"),
            ("[[\"a\"]]", "way to itself"),
            ("[[null, 3], [null, null]]", "row 0, cell 1"),
            ("[[null, [\"a\", \"a\"]], [null, null]]", "twice"),
            ("[[null, [7]], [null, null]]", "row 0, cell 1"),
            ("[[null, \"a\\nb\"], [null, null]]", "printable"),
            ("/nowhere/at/all", "cannot be read"),
            ("/", "regular file"),
        ] {
            let why = Matrix::read(text).unwrap_err();
            assert!(why.to_string().contains(words), "{text}: {why}");
            // What is wrong with the form has a place.
            assert_eq!(why.line.is_some(), words == "not JSON", "{text}: {why:?}");
        }
    }
}
