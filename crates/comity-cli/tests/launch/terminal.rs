//! Differences on a terminal: colours, and lines that are written over. `script` (bsdutils) brings one.
use super::harness::*;

fn on_a_terminal(before: &str, words: &str) -> String {
    let line = format!("{before} TERM=xterm script -qec \"$COMITY launch {words}\" /dev/null");
    start_line(&line, "sh").finish().ends(0).out
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
    holds(&said, &["\r\x1b[K[0] 10%", "\r\x1b[K[1] 50%", "[0] 100%\r\n", "[1] done\r\n"]);
    let done = run(&["-n", "2", "--", "sh", &name]);
    assert_eq!(done.sorted(), ["[0] 100%", "[0] done", "[1] 100%", "[1] done"]);
}

/// Keys that a rank gets one by one, on a terminal: what it shows is its own, Ctrl-C is its own, and Ctrl-] ends the job.
#[test]
fn keys_go_to_the_rank_that_has_a_terminal_and_one_ends_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rank.sh");
    // Each leaves a file in this folder when it has come so far, and the keys wait for it.
    let script = "[ $RANK = 0 ] || exec sleep 50; cd \"$1\"; trap 'echo caught; : > caught' INT; echo ready; : > ready; \
         while :; do read a && echo got $a && : > got; done";
    std::fs::write(&file, script).unwrap();
    let until = |file: &str| format!("until [ -e $1/{file} ]; do sleep 0.02; done");
    let keys = format!(
        "{}; printf 'x\\r'; {}; printf '\\003'; {}; printf '\\035'; {}",
        until("ready"),
        until("got"),
        until("caught"),
        until("ended")
    );
    let line = format!(
        "( {keys} ) | {{ TERM=xterm script -qec \"$COMITY launch -n 2 --tty 0 -- sh {} $1\" /dev/null; : > $1/ended; }}",
        file.display()
    );
    let done = start_line(&line, dir.path().to_str().unwrap()).finish();
    done.shows(&["ready", "got x", "caught"]);
    assert!(done.out.contains("SIGINT") || done.out.contains("130"), "{:?}", done.out);
}
