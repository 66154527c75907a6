//! `--hosts` and `--hostfile` with a stand-in for ssh, which runs here what it is to run there; the step `ssh` has the real one.
use super::harness::*;
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Hosts of a stand-in for ssh: `-G` says where a host is; else the words behind the host's name run, in a home of the host's own.
pub(crate) struct Hosts {
    dir: tempfile::TempDir,
    pub(crate) ssh: String,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ssh = dir.path().join("ssh");
        let script = format!(
            "for w in \"$@\"; do [ \"$w\" = -G ] && {{ echo hostname 127.0.0.1; exit 0; }}; done\n\
             while [ \"$1\" != -- ]; do shift; done\nmkdir -p {0}/home/$2; cd {0}/home/$2\n\
             export HOME=$PWD PATH=$PWD/bin:$PATH SSH_CONNECTION=\"127.0.0.1 1 127.0.0.1 22\" NAMED=$2\nunset XDG_CACHE_HOME\nexec sh -c \"$3\"",
            dir.path().display()
        );
        write_program(&ssh, &script);
        Self { ssh: ssh.display().to_string(), dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn word(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Name of a file with this text.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.word(name)
    }

    /// Name of another stand-in, which does this before each run on `$host`.
    pub(crate) fn behind(&self, first: &str) -> String {
        let ssh = &self.ssh;
        let lines = format!(
            "for w in \"$@\"; do [ \"$w\" = -G ] && exec {ssh} \"$@\"; [ \"$before\" != -- ] || host=$w; before=$w; done\n\
             {first}\nexec {ssh} \"$@\""
        );
        write_program(&self.path("behind"), &lines);
        self.word("behind")
    }

    pub(crate) fn start_with(
        &self,
        words: &[&str],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Job {
        start_with(&[&["--ssh", &self.ssh], words].concat(), change)
    }

    pub(crate) fn start(&self, words: &[&str]) -> Job {
        self.start_with(words, |command| command)
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ended {
        self.start(words).finish()
    }
}

const SAY: [&str; 4] = ["--", "sh", "-c", "echo $NAMED $LOCAL_RANK $LOCAL_WORLD_SIZE"];

#[test]
fn a_hostfile_may_name_a_host_for_each_rank_as_mlx_does() {
    let hosts = Hosts::new();
    let mlx = hosts.file("mlx.json", r#"[{"ssh": "a"}, {"ssh": "b"}, {"ssh": "a"}, {"ssh": "a"}]"#);
    let done = hosts.run(&[&["--hostfile", &mlx][..], &SAY].concat()).ends(0);
    assert_eq!(done.sorted(), ["[0@a] a 0 3", "[1@b] b 0 1", "[2@a] a 1 3", "[3@a] a 2 3"]);
    let lines = hosts.file("lines", "a\na\nb slots=1\n");
    let done = hosts.run(&[&["--hostfile", &lines][..], &SAY].concat()).ends(0);
    assert_eq!(done.sorted(), ["[0@a] a 0 2", "[1@a] a 1 2", "[2@b] b 0 1"]);
    // On the command line it is a slip.
    hosts.run(&[&["--hosts", "a,a"][..], &SAY].concat()).ends(2).says(&["named twice"]);
}

#[test]
fn files_are_staged_and_what_differs_is_found_by_content() {
    let hosts = Hosts::new();
    for (host, text) in [("a", "print(1)"), ("b", "print(2)")] {
        // Plays the interpreter.
        write_program(&hosts.path(&format!("home/{host}/python")), "cat \"$1\"");
        hosts.file(&format!("home/{host}/train.py"), text);
    }
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("train.py"), "print(3)").unwrap();
    std::fs::create_dir(here.path().join("gone")).unwrap();
    // From a directory that the hosts do not have, so the ranks start at home.
    let launch = |words: &[&str]| {
        let words = [&["--hosts", "a,b"], words].concat();
        hosts.start_with(&words, |command| command.current_dir(here.path())).finish()
    };
    let train = |flags: &[&str]| launch(&[&["--cwd", "."], flags, &["--", "./python", "train.py"]].concat());
    let done = train(&[]).ends(2);
    assert_eq!(done.out, "");
    done.says(&["'train.py' is not the same on all hosts: ", " on a; ", "--stage train.py"]);
    assert_eq!(train(&["--mixed-programs"]).ends(0).sorted(), ["[0@a] print(1)", "[1@b] print(2)"]);
    assert_eq!(train(&["--stage", "train.py"]).ends(0).sorted(), ["[0@a] print(3)", "[1@b] print(3)"]);
    let left = std::fs::read_dir(hosts.path("home/a")).unwrap().count();
    assert_eq!(left, 2, "no other file is left");
    let done = launch(&["--stage", "gone", "--stage", "nowhere", "--", "true"]).ends(2);
    done.says(&["--stage gone: is no file", "nowhere"]);
}

#[test]
fn a_large_file_is_staged_piece_by_piece() {
    let hosts = Hosts::new();
    let here = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..5_000_001u32).map(|i| (i * 7) as u8).collect();
    write_program(&here.path().join("tool"), "");
    std::fs::write(here.path().join("tool"), &bytes).unwrap();
    let words = ["--hosts", "a,b", "--cwd", ".", "--stage", "tool", "--", "sh", "-c", "test -x tool"];
    hosts.start_with(&words, |command| command.current_dir(here.path())).finish().ends(0);
    for host in ["a", "b"] {
        assert!(std::fs::read(hosts.path(&format!("home/{host}/tool"))).unwrap() == bytes, "{host}");
    }
}

#[test]
fn one_rank_gets_standard_input_and_programs_read_events() {
    let hosts = Hosts::new();
    let ssh = &hosts.ssh;
    let events = hosts.word("events");
    let line = format!(
        "printf 'word\\n' | \"$COMITY\" launch --ssh {ssh} --hosts a,b --stdin-rank 1 --json-events {events} -- sh -c \
         'printf \"$RANK? \"; read x; echo \"$x.\"; [ $RANK = 0 ] || exit 3'"
    );
    let done = start_line(&line, "sh").finish().ends(3);
    // What rank 1 writes passes as it comes, without a tag; rank 0's line may come between.
    let other = "[0@a] 0? .\n";
    assert!(
        done.out.contains(other) && done.out.replace(other, "").starts_with("1? word.\n"),
        "{}",
        done.out
    );
    let text = std::fs::read_to_string(&events).unwrap();
    let all: Vec<_> = text.lines().map(read_json).collect();
    let count = |event: &str| all.iter().filter(|e| e["event"] == event).count();
    assert_eq!(
        ["host", "started", "line", "exit", "failure", "end"].map(count),
        [2, 2, 2, 2, 1, 1],
        "{text}"
    );
    let end = all.iter().find(|e| e["event"] == "exit" && e["rank"] == 1).unwrap();
    assert_eq!((&end["code"], &end["host"]), (&3.into(), &"b".into()));
    done.says(&["how the ranks ended: 0 exited with code 0; 1 exited with code 3"]);
}

/// Under another name the launcher's own program is not looked for there.
#[test]
fn hosts_that_lack_the_program_get_a_copy_and_keep_it() {
    let hosts = Hosts::new();
    let launcher = hosts.word("launcher");
    std::fs::copy(COMITY, &launcher).unwrap();
    let launch = |words: &str| {
        let ssh = &hosts.ssh;
        let line = format!("{launcher} launch --ssh {ssh} --python sh {words} -- -c 'echo $NAMED $(umask)'");
        start_line(&line, "sh").finish()
    };
    let mask = Command::new("sh").args(["-c", "umask"]).output().unwrap();
    let mask = String::from_utf8(mask.stdout).unwrap();
    let wanted =
        [("[0@a] a", &mask), ("[1@b] b", &mask)].map(|(rank, mask)| format!("{rank} {}", mask.trim()));
    write_program(&hosts.path("home/b/bin/comity"), "echo comity 0.0.9");
    let done = launch("--hosts a,b").ends(0);
    assert_eq!(done.sorted(), wanted);
    for host in ["a", "b"] {
        done.says(&[&format!("host {host}: has no comity ")]);
        let cache = hosts.path(&format!("home/{host}/.cache/comity"));
        let kept = std::fs::read_dir(cache).unwrap().next().unwrap().unwrap().path();
        let files: Vec<_> = std::fs::read_dir(&kept).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(files, ["comity"], "{}", kept.display());
    }
    let again = launch("--hosts a,b").ends(0);
    lacks(&again.err, &["gets a copy"]);
    assert_eq!(again.sorted(), wanted);
    launch("--hosts a --no-stage-comity").ends(2).says(&["host a: comity is not installed there"]);
    let uname = "[ $1 = -s ] && echo Plan9 || echo mips";
    write_program(&hosts.path("home/c/bin/uname"), uname);
    std::fs::create_dir_all(hosts.path("home/d")).unwrap();
    hosts.file("home/d/.cache", "no folder");
    let refused = launch("--hosts a,c,d").ends(2);
    assert_eq!(refused.out, "");
    refused.says(&["host c: comity is not installed there", "it is Plan9 mips"]);
    refused.says(&["host d: this program could not be copied there"]);
}

/// A Python with the package stands for the command, and another version in it is refused.
#[test]
fn a_python_package_stands_for_the_command_unless_it_is_of_another_version() {
    let hosts = Hosts::new();
    let launcher = hosts.word("launcher");
    std::fs::copy(COMITY, &launcher).unwrap();
    let hello = br#"{"protocol":1,"version":"0.0.9","host":"b"}"#;
    let length = u32::try_from(hello.len()).unwrap().to_le_bytes();
    let old = hosts.word("hello");
    std::fs::write(&old, [b"\0comity-guard\0h".as_slice(), &length, hello].concat()).unwrap();
    let script = format!(
        "case \"$1 $2\" in\n\"-c import comity\") exit 0;;\n\"-m comity\") shift 2\n\
         [ $NAMED != b ] || {{ cat {old}; exec cat > /dev/null; }}; exec {COMITY} \"$@\";;\nesac\nexec sh \"$@\""
    );
    write_program(&hosts.path("python"), &script);
    let launch = |names: &str| {
        let flags = format!("--python {} --no-stage-comity --hosts {names}", hosts.word("python"));
        let line = format!("{launcher} launch --ssh {} {flags} -- -c 'echo ran'", hosts.ssh);
        start_line(&line, "sh").finish()
    };
    assert_eq!(launch("a,c").ends(0).sorted(), ["[0@a] ran", "[1@c] ran"]);
    let done = launch("a,b").ends(2);
    assert_eq!(done.out, "");
    done.says(&["host b: has comity 0.0.9, and this is ", "nothing was run"]);
}

#[test]
fn ctrl_z_while_a_host_gets_its_copy_leaves_that_whole() {
    let hosts = Hosts::new();
    let launcher = hosts.path("launcher");
    std::fs::copy(COMITY, &launcher).unwrap();
    // It takes the copy when it is told to.
    let head = ": > asked; until [ -e go ]; do sleep 0.02; done\nPATH=${PATH#*:} exec head \"$@\"";
    write_program(&hosts.path("home/a/bin/head"), head);
    let words = ["--python", "sh", "--hosts", "a", "--", "-c", "echo $NAMED"];
    let job = hosts.start_with(&words, |command| {
        let mut renamed = Command::new(&launcher);
        renamed.args(command.get_args()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        renamed.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        own_group(&mut renamed);
        *command = renamed;
        command
    });
    wait_for("the copy to begin", || hosts.path("home/a/asked").exists().then_some(()));
    job.stop();
    job.signal(Signal::CONT);
    hosts.file("home/a/go", "");
    assert_eq!(job.finish().ends(0).sorted(), ["a"]);
    let kept = std::fs::read_dir(hosts.path("home/a/.cache/comity")).unwrap().next().unwrap().unwrap().path();
    let same = std::fs::read(kept.join("comity")).unwrap() == std::fs::read(&launcher).unwrap();
    assert!(same, "what is kept is not this program");
}

#[test]
fn a_dry_run_says_what_each_host_would_run_and_runs_nothing() {
    let hosts = Hosts::new();
    let words = ["--hosts", "a,me@b:2", "--env", "A=x y", "--cwd", "/data", "--python", "py", "--dry-run"];
    let done = hosts.run(&[&words[..], &["--", "train.py", "--lr", "3"]].concat()).ends(0);
    assert_eq!(done.err, "");
    done.shows(&["a: rank 0: \"py\" \"train.py\" \"--lr\" \"3\" in \"/data\" with A=\"x y\""]);
    done.shows(&["b: ranks 1 to 2: \"py\"", "\"me@b\" (a script"]);
    assert!(!hosts.path("home").exists() && done.out.lines().all(|l| l.len() < 250), "{}", done.out);
    hosts.run(&[&words[..], &["--verbose", "--", "true"]].concat()).shows(&["comity-is-not-here"]);
}

/// Every flag of mlx.launch has its meaning.
#[test]
fn flags_of_mlx_are_taken() {
    let hosts = Hosts::new();
    let mlx = hosts.file(
        "mlx.json",
        r#"{"backend": "jaccl-ring", "envs": ["A=1"], "hosts": [{"ssh": "a", "ips": ["127.0.0.1"]}, {"ssh": "b", "ips": ["127.0.0.1"]}]}"#,
    );
    let say = "echo $RANK $A $B ${COMITY_BACKEND:-none} ${MLX_JACCL_RING:-none} $(cat $MLX_HOSTFILE)";
    let words = ["--hostfile", &mlx, "--backend", "ring", "--env", "B=2", "--connections-per-ip", "2"];
    let words = [&words[..], &["-p", "40000", "--verbose", "--", "sh", "-c", say]].concat();
    let done = hosts.run(&words).ends(0);
    let ring = r#"[["127.0.0.1:40000","127.0.0.1:40001"],["127.0.0.1:40002","127.0.0.1:40003"]]"#;
    let wanted = [0, 1].map(|r| format!("[{r}@{}] {r} 1 2 none none {ring}", ["a", "b"][r]));
    assert_eq!(done.sorted(), wanted);
    let say = "echo $RANK $COMITY_BACKEND $MLX_JACCL_RING";
    let done = hosts.run(&["--hostfile", &mlx, "--repeat-hosts", "2", "--", "sh", "-c", say]);
    assert_eq!(done.sorted()[3], "[3@b] 3 jaccl 1", "{} {}", done.out, done.err);
    // Without hosts, too.
    let done = run(&["--backend", "jaccl-ring", "--", "sh", "-c", say]);
    assert_eq!(done.out, "0 jaccl 1\n", "{}", done.err);
    let nccl = ["--hosts", "127.0.0.1", "--backend", "nccl", "--nccl-port", "40100", "-n", "2"];
    let say = "echo $RANK $NCCL_PORT $MLX_WORLD_SIZE";
    let done = hosts.run(&[&nccl[..], &["--", "sh", "-c", say]].concat());
    assert_eq!(done.sorted(), ["[0] 0 40100 2", "[1] 1 40100 2"], "{}", done.err);
    let done = run(&["--print-python", "--python", "/opt/py"]);
    assert_eq!(done.out, "/opt/py\n");
    // Where one does nothing it says so.
    for (flags, says) in [
        (&["--mpi-arg", "-v"][..], "--mpi-arg is for --backend mpi"),
        (&["--connections-per-ip", "2"], "--connections-per-ip is for ranks on other hosts"),
        (&["--hosts", "localhost", "--nccl-port", "99"], "--nccl-port is for --backend nccl"),
        (
            &["--hosts", "localhost", "--backend", "jaccl", "--starting-port", "9000"],
            "--starting-port is for MLX's ring",
        ),
    ] {
        run(&[flags, &["--", "true"]].concat()).ends(0).says(&[says]);
    }
}

#[test]
fn a_name_that_no_host_has_is_bad_input() {
    let done = run(&["--hosts", "no..such,nor..this", "--", "true"]).ends(2);
    done.says(&["host no..such: no host has this name", "host nor..this: no host has this name"]);
}
