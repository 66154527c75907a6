//! The header is what cbindgen makes of this crate.

use std::{env, fs, path::Path};

/// Compare a committed file with what it should be; with `WRITE_C_HEADER=1`, write it.
pub(crate) fn compare(name: &str, new: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if env::var_os("WRITE_C_HEADER").is_some() {
        fs::write(&path, new).unwrap();
        return;
    }
    let old = fs::read_to_string(&path).unwrap_or_default();
    let differs = old.lines().zip(new.lines()).find(|(a, b)| a != b);
    assert!(
        old == new,
        "{name} is not current (first: {differs:?}); write it with WRITE_C_HEADER=1 cargo test -p comity-c, and see abi.txt for what a change asks"
    );
}

/// The header as cbindgen makes it, without blanks at the ends of lines.
pub(crate) fn generated() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    // File by file, in the order in which a reader wants them: asking cargo for the crate's metadata would need all dependencies.
    for file in ["types", "handles", "errors", "group", "ops", "request", "config"] {
        builder = builder.with_src(root.join(format!("src/{file}.rs")));
    }
    let mut out = Vec::new();
    builder.generate().unwrap().write(&mut out);
    let text = String::from_utf8(out).unwrap();
    text.lines().map(|l| l.trim_end().to_owned() + "\n").collect()
}

#[test]
fn it_is_current() {
    let text = generated();
    assert!(text.lines().filter(|l| l.starts_with("#define")).all(|l| l == "#define COMITY_H"));
    compare("include/comity.h", &text);
}
