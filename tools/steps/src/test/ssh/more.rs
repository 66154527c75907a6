//! Flags and faults of jobs over ssh, beside those that end a job.
use super::{ended, ip, net::Net};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    thread::sleep,
    time::{Duration, Instant},
};

/// The first time rank 0 fails; then all is well.
pub(super) fn restarts(net: &Net, comity: &str) -> Result<(), String> {
    let marker = net.folder.join("failed").display().to_string();
    let script = format!("[ $RANK != 0 ] || [ -e {marker} ] || {{ touch {marker}; exit 3; }}; echo well");
    let said = net.launch_with(comity, &["--max-restarts", "2"], &["sh", "-c", &script])?.wait()?;
    let parts = ["restart 1 of 2 in 1 s, because the job ended with code 3", "[0@a] well"];
    all_in(&said, &parts)?;
    match said.contains("restart 2") {
        true => Err(format!("it was started a third time:\n{said}")),
        false => Ok(()),
    }
}

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
    ip(&format!("-n {} link set eth0 down", net.name("c")))?;
    // The launcher misses the host after 3 s of silence.
    sleep(Duration::from_secs(4));
    ip(&format!("-n {} link set eth0 up", net.name("c")))?;
    let said = job.wait()?;
    all_in(&said, &["host c was lost", "; the job goes on, and the host is tried again in 1 s"])
}

pub(super) fn binds(net: &Net, comity: &str) -> Result<(), String> {
    let words = ["sh", "-c", "echo met at $COMITY_STORE"];
    let said = net.launch_with(comity, &["--meet-at", "10.78.0.1"], &words)?.wait()?;
    all_in(&said, &["[2@c] met at 10.78.0.1:"])?;
    let job = net.launch_with(comity, &["--meet-at", "10.78.0.77"], &words)?;
    ended(job, "exit status: 2", &["the ranks cannot meet at 10.78.0.77", "--meet-at chooses another"])
}

/// Under another name the launcher's own program is not looked for there.
fn renamed(net: &Net, comity: &str) -> Result<String, String> {
    let path = net.folder.join("launcher");
    if !path.exists() {
        fs::hard_link(comity, &path)
            .or_else(|_| fs::copy(comity, &path).map(drop))
            .map_err(|e| e.to_string())?;
    }
    Ok(path.display().to_string())
}

/// Stands for a Python that has the package: `-m comity` is what this says.
fn python(net: &Net, name: &str, comity: &str) -> Result<String, String> {
    let script = format!(
        "#!/bin/sh\ncase \"$1 $2\" in\n\"-c import comity\") exit 0;;\n\"-m comity\") shift 2; {comity};;\n*) exec sh \"$@\";;\nesac\n"
    );
    let path = net.write(name, &script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    Ok(path.display().to_string())
}

pub(super) fn falls_back(net: &Net, comity: &str) -> Result<(), String> {
    let python = python(net, "python-with", &format!("exec {comity} \"$@\""))?;
    let script = net.write("said.sh", "echo rank $RANK by $0\n")?.display().to_string();
    let said = net.launch_with(&renamed(net, comity)?, &["--python", &python], &[&script])?.wait()?;
    all_in(&said, &[&format!("[1@b] rank 1 by {script}"), "[2@c] rank 2"])?;
    let job = net.launch_with(
        &renamed(net, comity)?,
        &["--python", "no-such-python", "--no-stage-comity"],
        &[&script],
    )?;
    ended(job, "exit status: 2", &["host b: comity is not installed there", "nothing was run"])
}

pub(super) fn refuses_a_version(net: &Net, comity: &str) -> Result<(), String> {
    let hello = br#"{"protocol":1,"version":"0.0.9","host":"b"}"#;
    let length = u32::try_from(hello.len()).map_err(|e| e.to_string())?.to_le_bytes();
    let frame = [b"\0comity-guard\0h".as_slice(), &length, hello].concat();
    let file = net.folder.join("old-hello");
    fs::write(&file, frame).map_err(|e| e.to_string())?;
    let old = format!(
        "[ $(hostname) = b ] && {{ cat {}; exec cat > /dev/null; }}; exec {comity} \"$@\"",
        file.display()
    );
    let python = python(net, "python-old", &old)?;
    let flags = ["--python", &python, "--no-stage-comity"];
    let job = net.launch_with(&renamed(net, comity)?, &flags, &["-c", "echo ran"])?;
    ended(job, "exit status: 2", &["host b: has comity 0.0.9, and this is ", "nothing was run"])
}

/// Hosts without the program keep a copy of it, and a rank there has a terminal.
pub(super) fn copies_itself(net: &Net, comity: &str) -> Result<(), String> {
    let launcher = renamed(net, comity)?;
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

/// A script that differs is found before anything runs; `--stage` mends it.
pub(super) fn stages(net: &Net, comity: &str) -> Result<(), String> {
    let own = net.folder.join("own");
    let dir = own.display().to_string();
    let tool = own.join("tool");
    fs::write(&tool, "#!/bin/sh\necho staged\n").map_err(|e| e.to_string())?;
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    for host in net.cabling.hosts() {
        let word = if *host == "b" { "other" } else { "same" };
        net.on(host, &format!("cd {dir} && printf '#!/bin/sh\\necho {word}\\n' > tool && chmod 755 tool"))?;
    }
    let job = net.launch(comity, &["./tool"])?;
    let parts = ["'./tool' is not the same on all hosts: ", " on b", "on a, c", "nothing was run"];
    ended(job, "exit status: 2", &parts)?;
    let said = net.launch_with(comity, &["--stage", "tool"], &["./tool"])?.wait()?;
    all_in(&said, &["[0@a] staged", "[1@b] staged", "[2@c] staged"])
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

fn all_in(said: &str, parts: &[&str]) -> Result<(), String> {
    match parts.iter().find(|p| !said.contains(**p)) {
        None => Ok(()),
        Some(part) => Err(format!("{part:?} is not in what it said:\n{said}")),
    }
}
