//! Jobs over ssh that need real hosts, beside those that end a job.
use super::net::Net;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    thread::sleep,
    time::{Duration, Instant},
};

/// The cable of a host is cut and mended: the others go on, and the host's rank is started again.
pub(super) fn comes_back(net: &Net, comity: &str) -> Result<(), String> {
    let marker = net.folder.join("back").display().to_string();
    let script = format!(
        "[ -z \"$COMITY_JOIN\" ] || {{ touch {marker}; sleep 100; }}; while [ ! -e {marker} ]; do sleep 0.1; done"
    );
    let job = net.launch_with(comity, &["--elastic", "1"], &["sh", "-c", &script])?;
    let until = Instant::now() + Duration::from_secs(20);
    while net.ranks_of("c")?.is_empty() {
        if Instant::now() > until {
            return Err("no rank runs after 20 s".into());
        }
        sleep(Duration::from_millis(50));
    }
    net.hosts.ip("c", "link set eth0 down")?;
    // The launcher misses the host after 3 s of silence.
    sleep(Duration::from_secs(4));
    net.hosts.ip("c", "link set eth0 up")?;
    let said = job.wait()?;
    all_in(&said, &["host c was lost", "; the job goes on, and the host is tried again in 1 s"])
}

/// Hosts without the program keep a copy of it, and a rank there has a terminal.
pub(super) fn copies_itself(net: &Net, comity: &str) -> Result<(), String> {
    // Under another name the launcher's own program is not looked for there.
    let path = net.folder.join("launcher");
    fs::copy(comity, &path).map_err(|e| e.to_string())?;
    let launcher = path.display().to_string();
    let flags = ["--python", "sh", "--tty", "2"];
    let script = "[ $RANK = 2 ] || exit 0; test -t 0 && test -t 1 && echo $TERM on $(tty)";
    let said = net.launch_with(&launcher, &flags, &["-c", script])?.wait()?;
    all_in(&said, &["host a: has no comity", "host c: has no comity", " on /dev/pts/"])?;
    let said = net.launch_with(&launcher, &flags, &["-c", script])?.wait()?;
    match said.contains("gets a copy") {
        true => Err(format!("it was copied a second time:\n{said}")),
        false => Ok(()),
    }
}

pub(super) fn copies_a_key(net: &Net, comity: &str) -> Result<(), String> {
    let key = net.folder.join("own").join("job.key").display().to_string();
    net.desk(&[comity, "key", "new", &key]).run()?;
    let config = format!("--ssh-arg={}", net.folder.join("config").display());
    net.desk(&[comity, "key", "copy", "a", "c", "--file", &key, "--ssh-arg=-F", &config]).run()?;
    let sum = |said: String| said.split_whitespace().next().unwrap_or_default().to_owned();
    let here = sum(net.desk(&["sha256sum", &key]).run()?);
    for host in ["a", "c"] {
        let there = net.on(host, &format!("stat -c %a {key} && sha256sum {key}"))?;
        all_in(&there, &["600", &here])?;
    }
    match net.on("b", &format!("cat {key}")) {
        Ok(_) => Err("host b has a key that it was not given".into()),
        Err(_) => Ok(()),
    }
}

/// The selftest's rows of these hosts pass, and its report does not name them.
pub(super) fn tests_itself(net: &Net, comity: &str) -> Result<(), String> {
    let path = |file: &str| net.folder.join(file).display().to_string();
    // It takes ssh as its user has set it up.
    fs::create_dir(path("bin")).map_err(|e| e.to_string())?;
    let ssh =
        net.write("bin/ssh", &format!("#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n", path("config")))?;
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    let old = std::env::var("PATH").unwrap_or_default();
    let words = [comity, "selftest", "--only", "hosts, ", "--hosts", "a,b", "--report", &path("report")];
    let said = net.desk(&words).env("PATH", format!("{}:{old}", path("bin"))).limit(300).run()?;
    all_in(&said, &["# 2 passed, 0 failed, 0 not there"])?;
    let report = fs::read_to_string(path("report")).map_err(|e| e.to_string())?;
    all_in(&report, &["hosts, doctor", "hosts, a rank on each"])?;
    match report.contains("10.78.0.") {
        true => Err(format!("the report has an address:\n{report}")),
        false => Ok(()),
    }
}

fn all_in(said: &str, parts: &[&str]) -> Result<(), String> {
    match parts.iter().find(|p| !said.contains(**p)) {
        None => Ok(()),
        Some(part) => Err(format!("{part:?} is not in what it said:\n{said}")),
    }
}
