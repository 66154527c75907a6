//! Environment of the ranks, and the parts of it that others do not find.
use super::harness::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The environment of each rank.
fn environments(n: usize, flags: &[&str]) -> Vec<BTreeMap<String, String>> {
    let done = script(n, &[&["--tag-output"], flags].concat(), "env").ends(0);
    let mut all = vec![BTreeMap::new(); n];
    for line in done.out.lines() {
        let (rank, rest) = line.strip_prefix('[').and_then(|l| l.split_once("] ")).unwrap();
        if let Some((name, value)) = rest.split_once('=') {
            all[rank.parse::<usize>().unwrap()].insert(name.into(), value.into());
        }
    }
    all
}

/// In a network namespace whose loopback has no address but `::1`. Needs root, or user namespaces.
#[cfg(target_os = "linux")]
#[test]
fn a_host_with_ipv6_only_runs_a_job() {
    let inside = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo";
    if !works(std::process::Command::new("unshare").args(["-rn", "sh", "-c", inside])) {
        return;
    }
    let line = format!(
        "exec unshare -rn sh -c '{inside} && exec $COMITY launch -n 3 -- $COMITY check --quick --ops all_reduce --dtypes f32'"
    );
    start_line(&line, "").finish().ends(0);
}

#[test]
fn every_rank_knows_its_place() {
    let all = environments(3, &[]);
    for (rank, env) in all.iter().enumerate() {
        for name in ["COMITY_RANK", "COMITY_LOCAL_RANK", "RANK", "LOCAL_RANK", "MLX_RANK"] {
            assert_eq!(env[name], rank.to_string(), "{name}");
        }
        for name in ["COMITY_SIZE", "COMITY_LOCAL_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
            assert_eq!(env[name], "3", "{name}");
        }
        for name in
            ["COMITY_STORE", "COMITY_JOB", "COMITY_KEY_FD", "MASTER_ADDR", "MASTER_PORT", "MLX_HOSTFILE"]
        {
            assert_eq!(env[name], all[0][name], "{name}");
        }
        assert!(env["COMITY_STORE"].parse::<std::net::SocketAddr>().unwrap().ip().is_loopback());
        assert_eq!(env["MASTER_ADDR"], "127.0.0.1");
        assert!(env["MASTER_PORT"].parse::<u16>().unwrap() > 0);
        assert!(env["COMITY_KEY_FD"].parse::<i32>().unwrap() >= 3);
        assert!(u64::from_str_radix(&env["COMITY_JOB"], 16).is_ok());
    }
}

#[test]
fn a_rank_that_is_alone_has_nothing_of_mlx() {
    let job = start_with(&["-n", "1", "env"], |c| {
        c.env("MLX_RANK", "7").env("MLX_HOSTFILE", "/old").env("COMITY_RANK", "9").env("KEPT", "yes")
    });
    let done = job.finish();
    lacks(&done.out, &["MLX_"]);
    assert!(done.out.lines().any(|line| line == "COMITY_RANK=0"), "{}", done.out);
    done.shows(&["WORLD_SIZE=1\n", "KEPT=yes\n"]);
}

#[test]
fn variables_of_the_user_arrive() {
    let flags =
        ["--env", "A=1", "--env", "B=x=y z", "--env", "A=2", "--env", "EMPTY=", "--env", "MASTER_PORT=29500"];
    for env in environments(2, &flags) {
        assert_eq!((env["A"].as_str(), env["B"].as_str(), env["EMPTY"].as_str()), ("2", "x=y z", ""));
        assert_eq!(env["MASTER_PORT"], "29500");
    }
}

#[test]
fn ranks_start_where_they_are_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().canonicalize().unwrap();
    let done = run(&["-n", "2", "--cwd", place.to_str().unwrap(), "pwd"]);
    let want = place.display();
    assert_eq!(done.sorted(), [format!("[0] {want}"), format!("[1] {want}")]);
    let file = place.join("tool");
    std::fs::write(&file, "#!/bin/sh\necho from $0\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(run(&["--cwd", place.to_str().unwrap(), "./tool"]).out, "from ./tool\n");
}

#[test]
fn arguments_arrive_as_they_are() {
    let done = run(&["-n1", "--", "printf", "%s|", "a b", "", "$HOME", "--", "-n", "'\"*"]);
    assert_eq!(done.out, "a b||$HOME|--|-n|'\"*|");
    // Also without the two dashes, from the command's name on.
    assert_eq!(run(&["printf", "%s|", "--verbose", "-n", "3"]).out, "--verbose|-n|3|");
}

#[test]
fn mlx_can_read_its_host_file_more_than_once() {
    let done =
        script(3, &[], "for i in 1 2; do cat $MLX_HOSTFILE; echo; done; sh -c 'cat $MLX_HOSTFILE'; echo")
            .ends(0);
    let texts: BTreeSet<&str> = done.out.lines().map(|l| l.split_once("] ").unwrap().1).collect();
    assert_eq!((done.out.lines().count(), texts.len()), (9, 1), "{}", done.out);
    let hosts: Vec<Vec<String>> = serde_json::from_str(texts.first().unwrap()).unwrap();
    let addrs: BTreeSet<std::net::SocketAddr> = hosts.iter().map(|h| h[0].parse().unwrap()).collect();
    assert!(hosts.len() == 3 && hosts.iter().all(|h| h.len() == 1) && addrs.len() == 3, "{hosts:?}");
}

#[test]
fn verbose_tells_what_is_started_and_how_it_ended() {
    let done = run(&["-n", "2", "--verbose", "--env", "A=b", "sh", "-c", "exit 0"]).ends(0);
    for rank in 0..2 {
        done.says(&[&format!("comity launch: rank {rank} (pid "), &format!("COMITY_RANK={rank} ")]);
    }
    assert_eq!(done.err.matches(" A=b ").count(), 2, "{}", done.err);
    assert_eq!(done.err.matches("exited with code 0").count(), 2, "{}", done.err);
}

#[test]
fn nothing_of_the_launcher_is_open_in_the_ranks() {
    let list = "ls -l /proc/self/fd | sed -n 's/.* \\([0-9]*\\) -> \\(.*\\)/\\1 \\2/p'";
    // What the test itself was started with reaches every child.
    let bare = std::process::Command::new("sh").args(["-c", list]).output().unwrap();
    let bare = String::from_utf8(bare.stdout).unwrap();
    let before: BTreeSet<&str> = bare.lines().filter_map(|l| l.split(' ').next()).collect();
    let done = script(2, &[], list);
    let mut handed = 0;
    for line in done.out.lines() {
        let (fd, to) = line.split_once("] ").unwrap().1.split_once(' ').unwrap();
        if ["0", "1", "2"].contains(&fd) {
            assert!(to.starts_with("pipe:"), "{line}");
        } else if !before.contains(fd) {
            assert!(to.starts_with("/memfd:"), "{line}");
            handed += 1;
        }
    }
    // The key, the file of root causes, the host file and the counters of each.
    assert_eq!(handed, 8, "{}", done.out);
}

#[test]
fn a_group_of_four_is_started_fast() {
    // The bound is for the launcher, not for a machine that runs all tests at once: the best of some counts.
    let mut times = (0..40).map(|_| run(&["-n", "4", "true"]).took);
    assert!(times.any(|took| took < patient(Duration::from_millis(150))), "never within 150 ms");
}

#[test]
fn more_ranks_than_the_limit_of_open_files_allows_for() {
    let job = start_line("ulimit -Sn 64; exec $COMITY launch -n 40 -- sh -c 'ulimit -Sn'", "");
    let done = job.finish().ends(0);
    assert_eq!(done.out.lines().filter(|l| l.ends_with("] 64")).count(), 40, "{}", done.out);
}

#[test]
fn a_job_without_a_key_must_be_asked_for() {
    let bench = [COMITY, "bench", "barrier", "--iters", "5"];
    let insecure = run(&[&["-n", "2", "--insecure", "--"], &bench[..]].concat()).ends(0);
    insecure.says(&["--insecure: the job has no key"]);
    let env = &environments(2, &["--insecure"])[1];
    assert_eq!(env["COMITY_INSECURE"], "1");
    assert!(!env.contains_key("COMITY_KEY_FD"));
    // What the shell says was not said to this job; what the rank is told beside its key is a contradiction.
    let inherited = start_with(&[&["-n", "2", "--"], &bench[..]].concat(), |c| c.env("COMITY_INSECURE", "1"));
    assert_eq!(inherited.finish().code, 0);
    let own = format!("COMITY_INSECURE=1 exec {}", bench.join(" "));
    let both = script(2, &[], &own).ends(2);
    both.says(&["a key is given and insecure (COMITY_INSECURE)"]);
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), r#"[["127.0.0.1:5000"],["127.0.0.1:5001"]]"#).unwrap();
    let mut alone = comity();
    alone.args(&bench[1..]).env("MLX_RANK", "1").env("MLX_HOSTFILE", hosts.path());
    let alone = Ended::of(&mut alone).ends(2);
    alone.says(&["MLX's hostfile", "comity launch", "COMITY_KEY_FILE", "COMITY_INSECURE=1", "--insecure"]);
    run(&[&["-n", "2", "--secure", "data", "--env", "COMITY_LINKS=tcp", "--"], &bench[..]].concat()).ends(0);
}
