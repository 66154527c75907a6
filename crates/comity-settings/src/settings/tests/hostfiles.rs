//! Hostfiles, good and bad.

use super::*;
use crate::settings::mlx_hostfile::Hostfile;

fn parse(text: &str) -> Result<Hostfile> {
    Hostfile::parse("hosts.json", text.as_bytes())
}

#[test]
fn good_hostfiles() {
    for (text, counts) in [
        (r#"[["10.0.0.1:5000"],["10.0.0.2:5000"]]"#, &[1, 1][..]),
        (r#"["10.0.0.1:5000","10.0.0.2:5000"]"#, &[1, 1]),
        (r#"[["a:1","a:2"],"b:1",["[::1]:5000"]]"#, &[2, 1, 1]),
        ("\n[ [\"a_b-c.d:65535\"] ]\n", &[1]),
        (r#"[["a:1"],["0.0.0.0:1"],["198.51.100.1:0"]]"#, &[1, 1, 0]),
        (r#"[["[fe80::1%4]:7"]]"#, &[1]),
        ("\u{feff}[[\"a:1\"],[\"b:1\"]]", &[1, 1]),
    ] {
        let file = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(file.ranks.iter().map(Vec::len).collect::<Vec<_>>(), counts, "{text}");
    }
}

#[test]
fn a_file_of_its_own_per_rank() {
    // As rank 0, 1 and 2 of 4 would get it.
    let zero = parse(r#"["0.0.0.0:5000","10.0.0.2:5001","198.51.100.1:0","10.0.0.4:5003"]"#).unwrap();
    let one = parse(r#"["10.0.0.1:5000","0.0.0.0:5001","10.0.0.3:5002","198.51.100.1:0"]"#).unwrap();
    let two = parse(r#"["198.51.100.1:0","10.0.0.2:5001","0.0.0.0:5002","10.0.0.4:5003"]"#).unwrap();
    zero.check("MLX_RANK", 0, None, true).unwrap();
    one.check("MLX_RANK", 1, None, true).unwrap();
    let e = two.check("MLX_RANK", 2, None, true).unwrap_err().to_string();
    assert!(e.contains("entry 0") && e.contains("COMITY_STORE"), "{e}");
    two.check("MLX_RANK", 2, None, false).unwrap();
    assert!(zero.job() == one.job() && one.job() == two.job());
    for (file, rank, part) in [(&zero, 1, "entry 0 (rank 0)"), (&zero, 2, "rank's own"), (&one, 9, "0 to 3")]
    {
        let e = file.check("MLX_RANK", rank, None, true).unwrap_err().to_string();
        assert!(e.contains(part), "{e}");
    }
}

/// Hostfiles, and what the error says. Words in braces stand for large ones.
const BAD: &[(&str, &[&str])] = &[
    ("", &["empty"]),
    (" \n", &["empty"]),
    ("x", &["not JSON", "line 1 column 1"]),
    ("[[\"a:1\"],\n[\"b:1\"", &["not JSON", "line 2"]),
    ("[[\"a:1\"]] trailing", &["not JSON", "column 11"]),
    ("[['a:1']]", &["not JSON"]),
    ("[[\"a:1\",]]", &["not JSON", "column 9"]),
    ("{deep}", &["not JSON", "recursion"]),
    ("{huge}", &["larger"]),
    ("null", &["found null", "expected"]),
    ("true", &["found true"]),
    ("7", &["found 7"]),
    ("\"a:1\"", &["found \"a:1\""]),
    ("{}", &["found an object"]),
    (r#"{"hosts": []}"#, &["found an object"]),
    ("[]", &["no rank"]),
    ("[null]", &["entry 0", "null"]),
    ("[[\"a:1\"], 5]", &["entry 1", "found 5"]),
    ("[[\"a:1\"], {}]", &["entry 1", "an object"]),
    ("[[]]", &["entry 0", "is empty"]),
    ("[[\"a:1\"], []]", &["entry 1", "is empty"]),
    ("[[\"a:1\", null]]", &["entry 0", "address 1", "null"]),
    ("[[\"a:1\", 5000]]", &["entry 0", "address 1", "5000"]),
    ("[[[\"a:1\"]]]", &["entry 0", "address 0", "a list"]),
    ("{wide}", &["entry 0", "65 addresses", "64"]),
    ("{name}", &["entry 0", "neither a host name"]),
    ("[\"a:1\", \"\"]", &["entry 1", "\"\"", "port is missing"]),
    ("[\"a:1\", \"b\"]", &["entry 1", "\"b\""]),
    ("[\"a:1\", \"b:\"]", &["entry 1", "\"b:\""]),
    ("[\"a:1\", \":5\"]", &["entry 1", "host is missing"]),
    ("[\"a:1\", \"b:0\"]", &["entry 1", "b:0", "port 0"]),
    ("[\"a:1\", \"b:65536\"]", &["entry 1", "65536"]),
    ("[\"a:1\", \"b:-1\"]", &["entry 1", "-1"]),
    ("[\"a:1\", \"b:+1\"]", &["entry 1", "+1"]),
    ("[\"a:1\", \"b: 1\"]", &["entry 1"]),
    ("[\"a:1\", \"b:one\"]", &["entry 1", "\"one\""]),
    ("[\"a:1\", \"b:5000.\"]", &["entry 1"]),
    ("[\"a:1\", \"::1:5000\"]", &["entry 1", "brackets"]),
    ("[\"a:1\", \"[::1]\"]", &["entry 1"]),
    ("[\"a:1\", \"[::1:5000\"]", &["entry 1"]),
    ("[\"a:1\", \"[10.0.0.1]:5000\"]", &["entry 1", "IPv6"]),
    ("[\"a:1\", \"10.0.0.300:5000\"]", &["entry 1", "IPv4"]),
    ("[\"a:1\", \"10.0.1:5000\"]", &["entry 1", "IPv4"]),
    ("[\"a:1\", \"a b:5000\"]", &["entry 1"]),
    ("[\"a:1\", \"ssh://a:5000\"]", &["entry 1"]),
    ("[\"a:1\", \"-a:5000\"]", &["entry 1"]),
    ("[\"a:1\", \"\\u0000:5000\"]", &["entry 1"]),
    ("[\"a:1\", \"a:1\"]", &["entry 1", "a:1", "entry 0"]),
    ("[\"a:1\", \"A:1\"]", &["entry 1", "entry 0"]),
    ("[[\"a:1\",\"a:1\"]]", &["entry 0", "a:1"]),
    ("[\"[::1]:1\", \"[0:0:0:0:0:0:0:1]:1\"]", &["entry 1", "entry 0"]),
    ("[\"a:1\", \"b:99999999999999999999\"]", &["entry 1"]),
    ("{closed}", &["not JSON", "recursion"]),
    ("{many}", &["65537 ranks"]),
    ("[1e999999]", &["not JSON"]),
    ("[[\"\\ud800:1\"]]", &["not JSON"]),
    ("// hosts\n[[\"a:1\"]]", &["not JSON"]),
    ("a:5000\nb:5000\n", &["not JSON", "line 1"]),
];

/// Not `host:port`.
const NO_ADDRESS: [&str; 20] = [
    " ",
    "a:5x",
    "a:5 ",
    " a:5",
    "a:0x5",
    "a:5e3",
    "a:\u{662}",
    "-oX:5",
    "--help:5",
    "-:5",
    ".a:5",
    "$(id):5",
    "`id`:5",
    "a;id:5",
    "a|b:5",
    "../a:5",
    "user@a:5",
    "[::g]:5",
    "[]:5",
    "a\u{1b}\n:5",
];

#[test]
fn what_is_no_address_no_text_or_cut_off_is_told_where_it_stands() {
    let refusal = |bytes: &[u8]| Hostfile::parse("hosts.json", bytes).unwrap_err().to_string();
    let entry_one = |value: &str| refusal(format!("[\"a:1\", [\"b:1\", {value}]]").as_bytes());
    for address in NO_ADDRESS {
        let told = entry_one(&serde_json::to_string(address).unwrap());
        assert!(told.contains("entry 1 (rank 1), address 1"), "{told}");
    }
    for value in ["true", "0", "-1", "5000.5", "1e300", "{}", r#"{"host": "a"}"#] {
        let told = [entry_one(value), refusal(format!("[\"a:1\", {value}]").as_bytes())];
        assert!(told[0].contains("entry 1 (rank 1), address 1") && told[0].contains("host:port"), "{told:?}");
        assert!(told[1].contains("entry 1 (rank 1)") && told[1].contains("host:port"), "{told:?}");
        let told = refusal(value.as_bytes());
        assert!(told.contains("one entry per rank"), "{told}");
    }
    for at in 1..HOSTS.len() {
        let mut odd = HOSTS.to_vec();
        odd[at] = 0xff;
        for told in [refusal(&HOSTS[..at]), refusal(&odd)] {
            assert!(told.contains("not JSON"), "{at}: {told}");
        }
    }
}

#[test]
fn bad_hostfiles_name_file_entry_and_value() {
    let deep = "[".repeat(100_000);
    let huge = format!("[[\"a:1\"]]{}", " ".repeat(1 << 20));
    let wide = format!("[[{}]]", vec!["\"a:1\""; 65].join(","));
    let name = format!("[[\"{}:1\"]]", "x".repeat(254));
    let closed = ["[".repeat(300), "]".repeat(300)].concat();
    let many = format!("[{}]", vec!["0"; 65_537].join(","));
    let large = [
        ("{deep}", &deep),
        ("{huge}", &huge),
        ("{wide}", &wide),
        ("{name}", &name),
        ("{closed}", &closed),
        ("{many}", &many),
    ];
    for (text, shown) in BAD {
        let text = large.iter().find(|(word, _)| word == text).map_or(*text, |(_, whole)| &whole[..]);
        let e = match at_once(|| parse(text)) {
            Err(e) => {
                let ErrorKind::Config(e) = e.kind() else { panic!("{text}: {e}") };
                assert!(e.file.as_ref().is_some_and(|f| f.ends_with("hosts.json")), "{e}");
                let place = e.line.zip(e.column).map(|(line, column)| format!("line {line} column {column}"));
                assert!(place.is_some() == e.to_string().contains("not JSON"), "{e}");
                assert!(place.is_none_or(|at| e.to_string().contains(&at)), "{e}");
                e.to_string()
            }
            Ok(read) => panic!("{text}: {read:?}"),
        };
        assert!(e.contains("hosts.json") && e.len() < 400, "{e}");
        for part in *shown {
            assert!(e.contains(part), "{text}: {e}");
        }
    }
}

proptest! {
    #[test]
    fn hostfiles_never_panic(text in proptest::collection::vec(any::<u8>(), 0..200), rank in any::<usize>()) {
        if let Ok(file) = Hostfile::parse("f", &text) {
            let _ = file.check("rank", rank, None, true);
        }
    }

    #[test]
    fn json_never_panics(text in "[\\[\\]{}\",:a0-9 .]{0,60}", rank in 0usize..4) {
        if let Ok(file) = Hostfile::parse("f", text.as_bytes()) {
            let _ = file.check("rank", rank, Some(2), true);
        }
    }
}
