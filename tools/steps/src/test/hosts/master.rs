//! `MASTER_ADDR` and `MASTER_PORT` under `comity launch --hostfile`: each rank reaches rank 0 there, also where its host does not. And the port
//! where ranks meet. The hosts have no sshd: a script stands for ssh.

use super::shapes::{CHAIN, Lan, PLAIN, Shape, TRIANGLE};
use std::{ffi::OsString, fs, os::unix::fs::PermissionsExt, path::Path, time::Instant};
use tasks::place::{Scratch, program};

/// Program like torch's store: rank 0 listens at all addresses, sooner or later, and the others connect to the one that they were given.
const PROGRAM: &str = r#"
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert all(at.endswith(":7403") for at in os.environ["COMITY_STORE"].split(",")), os.environ["COMITY_STORE"]
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    time.sleep(0.2)
    server = socket.create_server(("", port))
    ends = [server.accept()[0] for _ in range(size - 1)]
    said = sorted(end.recv(1)[0] for end in ends)
    for end in ends:
        end.sendall(bytes(said))
else:
    end = socket.create_connection((host, port), 10)
    end.settimeout(10)
    end.sendall(bytes([rank]))
    said = list(end.recv(size - 1, socket.MSG_WAITALL))
assert said == list(range(1, size)), said
print("met at rank 0:", said, flush=True)
"#;

const CHAINED: Shape = Shape { name: "chain", cables: CHAIN, ..PLAIN };

/// A shape, and of each host the address by which ssh calls it, where that comes from, and its addresses in the hostfile.
type Case = (&'static Shape, [(&'static str, &'static str, &'static str); 3]);

const CASES: [Case; 2] = [
    (
        &TRIANGLE,
        [
            // The first address of rank 0's host is one that host b does not reach.
            ("10.71.1.1", "10.71.1.1", r#""10.71.3.2", "10.71.1.1""#),
            ("10.71.1.2", "10.71.1.1", r#""10.71.1.2", "10.71.2.1""#),
            ("10.71.3.1", "10.71.3.2", r#""10.71.3.1", "10.71.2.2""#),
        ],
    ),
    (
        &CHAINED,
        [
            ("10.71.1.1", "10.71.1.1", r#""10.71.1.1""#),
            ("10.71.1.2", "10.71.1.1", r#""10.71.1.2", "10.71.2.1""#),
            // By way of host b.
            ("10.71.2.2", "10.71.2.1", r#""10.71.2.2""#),
        ],
    ),
];

pub(super) fn check(comity: &Path) -> Result<Vec<&'static str>, String> {
    let Some(python) = program("python3") else { return Ok(Vec::new()) };
    let scratch = Scratch::new("master").map_err(|e| format!("no scratch folder: {e}"))?;
    let mut ran = Vec::new();
    for (shape, hosts) in CASES {
        let start = Instant::now();
        let lan = Lan::new(shape)?;
        let ssh = scratch.join("ssh");
        let file = scratch.join("hosts.json");
        let write = |path: &Path, text: String| {
            fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
        };
        write(&ssh, script(&lan.names, &hosts))?;
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
        let listed = hosts.map(|(name, _, ips)| format!(r#"{{"ssh": "{name}", "ips": [{ips}]}}"#));
        write(&file, format!(r#"{{"hosts": [{}]}}"#, listed.join(", ")))?;
        let task = lan.within(0).args([comity]).args(["launch", "--no-stage-comity", "--ssh"]).args([&ssh]);
        // The ranks meet at one port of all addresses of the launcher's host.
        let task = task.args(["--meet-at", ":7403", "--hostfile"]).args([&file]).args(["--"]).args([&python]);
        let said = task.args(["-c", PROGRAM]).env("PATH", with_folder_of(comity)).limit(60).run();
        let said = said.map_err(|e| format!("MASTER_ADDR in a {}: {e}", shape.name))?;
        if said.matches("met at rank 0: [1, 2]").count() != hosts.len() {
            return Err(format!("MASTER_ADDR in a {}: not all have met:\n{said}", shape.name));
        }
        println!("MASTER_ADDR in a {}: as expected, {:.1} s", shape.name, start.elapsed().as_secs_f64());
        ran.push(shape.name);
    }
    Ok(ran)
}

/// A script that runs a command in the namespace of a host, as if ssh had come there.
fn script(names: &[String], hosts: &[(&str, &str, &str)]) -> String {
    let place = |(name, (host, from, _)): (&String, &(&str, &str, &str))| {
        format!("*' {host} '*) place={name} from={from} at={host} ;;\n")
    };
    let places: String = names.iter().zip(hosts).map(place).collect();
    // Before the command stands the host's name; `-G` asks for the configuration alone.
    format!(
        "#!/bin/sh\ncase \" $* \" in *' -G '*) exit 0 ;; esac\nfor command; do :; done\ncase \" $* \" in\n{places}esac\n\
         exec ip netns exec \"$place\" env SSH_CONNECTION=\"$from 1 $at 22\" COMITY_HOST=\"$at\" sh -c \"$command\"\n"
    )
}

/// Search path with the folder of `comity`.
fn with_folder_of(comity: &Path) -> OsString {
    let mut path = comity.parent().map(|p| p.as_os_str().to_owned()).unwrap_or_default();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}
