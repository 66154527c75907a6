//! Project tasks: `cargo xtask demo | test`.

mod child;
mod demo;
mod place;
mod test;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask demo                 build, then train a small network on 1, 2 and 4 ranks of this machine
cargo xtask test                 install what the tests need and run all of them
cargo xtask test --list          name the steps
cargo xtask test --only NAME     run this step alone (repeatable)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let Err(e) = child::catch_signals() {
        eprintln!("xtask: cannot catch signals: {e}");
        return ExitCode::FAILURE;
    }
    let result = match args[..] {
        ["demo"] => demo::run(demo::Profile::Release).map(drop),
        ["test", ref rest @ ..] => match test::Choice::parse(rest) {
            Ok(choice) => test::run(&choice),
            Err(e) => return usage(&e),
        },
        ["-h" | "--help" | "help"] => {
            print!("{HELP}");
            Ok(())
        }
        [] => return usage("say which task"),
        [first, ..] => return usage(&format!("{first:?} and what follows it is no task")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
    }
}

fn usage(what: &str) -> ExitCode {
    eprint!("xtask: {what}\n\n{HELP}");
    ExitCode::from(2)
}
