//! Processes that a test starts: each runs the test of the same name in a role.

use std::{
    env,
    fmt::Display,
    io::{BufRead, BufReader, Read, Write, stdin},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

const ROLE: &str = "COMITY_TEST_ROLE";
/// Prefix of an actor's words, among those of the test harness.
const SAYS: &str = "actor: ";

/// A child that runs a test in a role, and does not outlive this.
#[derive(Debug)]
pub struct Actor {
    /// Its process.
    pub child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Actor {
    /// Start this program's test of that name, in a module that `module_path!()` gives.
    #[must_use]
    pub fn start(module: &str, test: &str, role: impl Display) -> Self {
        Self::run(&mut Command::new(env::current_exe().expect("this program")), module, test, role)
    }

    /// The same by a command that takes the arguments of this program.
    ///
    /// # Panics
    /// If there is no such command.
    #[must_use]
    pub fn run(command: &mut Command, module: &str, test: &str, role: impl Display) -> Self {
        let name =
            module.split_once("::").map_or_else(|| test.into(), |(_, module)| format!("{module}::{test}"));
        command.args(["--exact", &name, "--nocapture", "--test-threads=1"]).env(ROLE, role.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
        let stdin = child.stdin.take().expect("its input");
        let stdout = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, stdin, stdout }
    }

    /// The rest of the line that it says next; nothing if it ends.
    pub fn hear_any(&mut self) -> Option<String> {
        let mut lines = self.stdout.by_ref().lines().map_while(Result::ok);
        lines.find_map(|line| Some(line.split_once(SAYS)?.1.trim().to_owned()))
    }

    /// The rest of the line that it says next.
    ///
    /// # Panics
    /// If it ends.
    pub fn hear(&mut self) -> String {
        self.hear_any().expect("the actor ended")
    }

    /// Let it go on from [`await_word`].
    pub fn tell(&mut self) {
        self.stdin.write_all(b"go on\n").expect("the actor ended");
    }

    /// Kill it, and wait for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The role of this process, if it is an actor.
#[must_use]
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Words of an actor to its test.
pub fn say(words: impl Display) {
    println!("{SAYS}{words}");
}

/// Wait until the test lets this actor go on.
///
/// # Panics
/// If the test ends.
pub fn await_word() {
    assert!(stdin().read_line(&mut String::new()).is_ok_and(|n| n > 0), "the test ended");
}
