//! Bad hostfiles: each is a good one with one thing wrong, whose place is known.
use super::Case;
use super::dice;
use scope::Rng;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Not `host:port`.
const NO_ADDRESS: [&str; 40] = [
    "",
    ":",
    " ",
    "a",
    "a:",
    ":5000",
    "a:0",
    "a:-1",
    "a:+5000",
    "a:65536",
    "a:99999999999999999999",
    "a:5000x",
    "a: 5000",
    "a:5000 ",
    " a:5000",
    "a b:5000",
    "a:0x10",
    "a:5e3",
    "a:\u{662}",
    "-oProxyCommand=id:5000",
    "--help:5000",
    "-:5000",
    ".a:5000",
    "$(id):5000",
    "`id`:5000",
    "a;id:5000",
    "a|b:5000",
    "a/b:5000",
    "../a:5000",
    "user@a:5000",
    "http://a:5000",
    "::1:5000",
    "[::1:5000",
    "[::1]5000",
    "[::g]:5000",
    "[]:5000",
    "256.1.1.1:5000",
    "10.0.1:5000",
    "a\u{0}b:5000",
    "a\u{1b}[2J\n:5000",
];

/// In the place of an address or an entry.
fn no_text() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(5000.5),
        json!(1e300),
        json!({}),
        json!({"host": "a"}),
    ]
}

/// Ranks with addresses, none used twice.
fn good(dice: &mut Rng) -> Vec<Vec<Value>> {
    let ranks = 2 + dice.below(6);
    let of = |r: usize, i: usize| match (r + i) % 3 {
        0 => json!(format!("10.{r}.{i}.1:5000")),
        1 => json!(format!("host-{r}.example:{}", 6000 + i)),
        _ => json!(format!("[fd00::{r}:{i}]:5000")),
    };
    (0..ranks).map(|r| (0..1 + dice.below(3)).map(|i| of(r, i)).collect()).collect()
}

/// A bad file, and the text that its refusal must contain.
fn one(kind: usize, dice: &mut Rng) -> (Vec<u8>, Vec<String>) {
    let mut hosts = good(dice);
    let r = dice.below(hosts.len());
    let a = dice.below(hosts[r].len());
    let here = format!("entry {r} (rank {r})");
    let there = format!("{here}, address {a}");
    let text = |v: &Value| v.to_string().into_bytes();
    match kind % 10 {
        0 => {
            hosts[r][a] = json!(dice.pick(&NO_ADDRESS));
            (text(&json!(hosts)), vec![there])
        }
        1 => {
            hosts[r][a] = dice.pick(&no_text()).clone();
            (text(&json!(hosts)), vec![there, "host:port".into()])
        }
        2 => {
            let mut all = json!(hosts);
            all[r] = dice.pick(&no_text()).clone();
            (text(&all), vec![here, "host:port".into()])
        }
        3 => {
            let mut all = text(&json!(hosts));
            // The closing bracket at the least.
            all.truncate(1 + dice.below(all.len() - 1));
            (all, vec!["not JSON".into(), "line 1".into()])
        }
        4 => {
            let mut all = text(&json!(hosts));
            let at = 1 + dice.below(all.len() - 2);
            all[at] = 0x80 | dice.below(128) as u8;
            (all, vec!["not JSON".into()])
        }
        5 => twice(hosts, r, a),
        6 => {
            hosts[r] = Vec::new();
            (text(&json!(hosts)), vec![here, "empty".into()])
        }
        7 => {
            // A rank of its own knows that its own address is free to choose, not another's.
            let other = 1 + dice.below(hosts.len() - 1);
            hosts[other] = vec![json!(*dice.pick(&["0.0.0.0:5000", "[::]:5000"]))];
            (text(&json!(hosts)), vec![format!("entry {other} (rank {other})")])
        }
        8 => {
            let mut all = text(&json!(hosts));
            all.extend_from_slice(dice.pick(&["x", "]", ",", "[]", "\0", "//", "{"]).as_bytes());
            (all, vec!["not JSON".into()])
        }
        _ => {
            let top = [no_text(), vec![json!("a:5000"), json!([])]].concat();
            (text(dice.pick(&top)), vec!["one entry per rank".into()])
        }
    }
}

/// An address that two ranks have.
fn twice(mut hosts: Vec<Vec<Value>>, r: usize, a: usize) -> (Vec<u8>, Vec<String>) {
    let other = (r + 1) % hosts.len();
    let again = hosts[r][a].clone();
    hosts[other].push(again);
    let last = r.max(other);
    let says = vec![format!("entry {last} (rank {last})"), "also in entry".into()];
    (json!(hosts).to_string().into_bytes(), says)
}

/// A file, its bytes, and what must be said of it.
type Bad = (String, Vec<u8>, Vec<String>);

/// 170 made from the seed, and those below.
pub(crate) fn all(dir: &Path) -> Vec<Case> {
    let mut dice = dice(1);
    let mut made: Vec<Bad> = (0..170)
        .map(|i| {
            let (bytes, says) = one(i, &mut dice);
            (format!("hosts-{i}.json"), bytes, says)
        })
        .collect();
    made.extend(by_hand());
    let mut cases: Vec<Case> = made
        .into_iter()
        .map(|(name, bytes, says)| {
            std::fs::write(dir.join(&name), bytes).unwrap();
            let mut case = named(name.as_ref()).says(&["hostfile"]);
            if !name.contains('\n') {
                case = case.says(&[&name]);
            }
            case.says.extend(says);
            case
        })
        .collect();
    cases.extend(no_texts(dir));
    cases
}

/// Files that no die makes.
fn by_hand() -> Vec<Bad> {
    let mut made = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>, says: &[&str]| {
        made.push((name.into(), bytes, says.iter().map(|s| (*s).to_owned()).collect()));
    };
    let many = |item: &str, n: usize| format!("[{}]", vec![item; n].join(",")).into_bytes();
    add("empty.json", Vec::new(), &["empty"]);
    add("blank.json", b" \n\t\r\n".to_vec(), &["empty"]);
    add("deep.json", b"[".repeat(100_000), &["not JSON"]);
    add("deep-right.json", [b"[".repeat(300), b"]".repeat(300)].concat(), &["not JSON"]);
    add("deep-object.json", b"{\"a\":".repeat(50_000), &["not JSON"]);
    add("ranks.json", many("0", 65_537), &["65537 ranks"]);
    add("addresses.json", format!("[{}]", json!(vec!["a:1"; 65])).into_bytes(), &["entry 0", "65 addresses"]);
    add(
        "long-host.json",
        format!("[[\"{}:1\"]]", "a".repeat(254)).into_bytes(),
        &["entry 0 (rank 0), address 0"],
    );
    add(
        "long-text.json",
        format!("[[\"{}\"]]", "a".repeat(1 << 19)).into_bytes(),
        &["entry 0 (rank 0), address 0"],
    );
    add("number.json", vec![b'1'; 100_000], &["not JSON"]);
    add("exponent.json", b"[1e999999]".to_vec(), &["not JSON"]);
    add("large.json", vec![b' '; (1 << 20) + 1], &["larger than"]);
    add("utf16.json", "[[\"a:1\"]]".encode_utf16().flat_map(u16::to_le_bytes).collect(), &["not JSON"]);
    add("surrogate.json", br#"[["\ud800:1"]]"#.to_vec(), &["not JSON"]);
    add("mark.json", b"\xef\xbb\xbf[[\"a:1\"]".to_vec(), &["not JSON"]);
    add("comment.json", b"// hosts\n[[\"a:1\"]]".to_vec(), &["not JSON"]);
    add("lines.json", b"a:5000\nb:5000\n".to_vec(), &["not JSON", "line 1"]);
    add("toml.json", b"hosts = [\"a:5000\"]\n".to_vec(), &["not JSON"]);
    add("own.json", br#"[["198.51.100.1:0"],["b:1"]]"#.to_vec(), &["entry 0", "placeholder"]);
    add("path\u{1b}[31m\n.json", b"{}".to_vec(), &["one entry per rank"]);
    made
}

/// Files that cannot be read, or hold no text.
fn no_texts(dir: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    // 100 MB that nobody may read to their end.
    std::fs::File::create(dir.join("huge.json")).unwrap().set_len(100 << 20).unwrap();
    cases.push(named("huge.json".as_ref()).says(&["huge.json", "larger than"]));
    std::fs::create_dir(dir.join("folder.json")).unwrap();
    cases.push(named("folder.json".as_ref()).says(&["folder.json", "not a regular file"]));
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.join("fifo.json"), rustix::fs::Mode::RUSR).unwrap();
    cases.push(named("fifo.json".as_ref()).says(&["fifo.json", "not a regular file"]));
    cases.push(named("/dev/zero".as_ref()).says(&["/dev/zero", "not a regular file"]));
    cases.push(named("missing.json".as_ref()).says(&["missing.json", "cannot be read"]));
    cases.push(named("".as_ref()).says(&["MLX_HOSTFILE", "empty"]));
    cases.push(named(OsStr::from_bytes(b"\xff.json")).says(&["MLX_HOSTFILE", "UTF-8"]));
    std::fs::write(dir.join("right.json"), r#"[["a:1"],["b:1"]]"#).unwrap();
    let right = |rank: &str| Case::new(&["info"]).env("MLX_RANK", rank).env("MLX_HOSTFILE", "right.json");
    cases.push(right("2").says(&["MLX_RANK=2", "right.json", "0 to 1"]));
    cases.push(right("-1").says(&["MLX_RANK", "\"-1\""]));
    cases.push(right("0").env("COMITY_RANK", "0").env("COMITY_SIZE", "3").says(&[
        "right.json",
        "2 ranks",
        "size is 3",
    ]));
    cases
}

fn named(file: &OsStr) -> Case {
    Case::new(&["info"]).env("MLX_RANK", "0").env("MLX_HOSTFILE", file)
}
