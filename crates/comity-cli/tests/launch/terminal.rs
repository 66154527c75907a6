//! What is different on a terminal: colours, and lines that are written over. `script` (bsdutils) brings one.
use super::harness::*;

fn on_a_terminal(before: &str, words: &str) -> String {
    let done =
        start_line(&format!("{before} TERM=xterm script -qec \"$COMITY launch {words}\" /dev/null"), "sh")
            .finish();
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    done.out
}

#[test]
fn tags_have_colours_on_a_terminal_unless_they_are_not_wanted() {
    let words = "-n 2 -- sh -c 'echo x'";
    let said = on_a_terminal("NO_COLOR=", words);
    assert!(said.contains("\x1b[36m[0]\x1b[0m x") && said.contains("\x1b[33m[1]\x1b[0m x"), "{said:?}");
    let said = on_a_terminal("NO_COLOR=1", words);
    assert!(said.contains("[0] x") && !said.contains('\x1b'), "{said:?}");
    let done = script(2, &[], "echo x");
    assert!(!done.out.contains('\x1b'), "{}", done.out);
}

#[test]
fn progress_is_written_over_on_a_terminal_and_elsewhere_its_end_is_shown() {
    let progress = r"for i in 10 50 100; do printf '\r%s%%' $i; sleep 0.3; done; echo; echo done";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), progress).unwrap();
    let name = file.path().display().to_string();
    let said = on_a_terminal("NO_COLOR=1", &format!("-n 2 -- sh {name}"));
    for part in ["\r\x1b[K[0] 10%", "\r\x1b[K[1] 50%", "[0] 100%\r\n", "[1] done\r\n"] {
        assert!(said.contains(part), "{part:?} in {said:?}");
    }
    let done = run(&["-n", "2", "--", "sh", &name]);
    assert_eq!(done.sorted(), ["[0] 100%", "[0] done", "[1] 100%", "[1] done"]);
}
