//! RDMA without a device for it: rdma-core's own programs, and Comity's links, on the software device.

use super::{Done, Outcome, cargo, launchers::free_port, missing, scope::Scope};
use crate::softverbs;
use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use tasks::{
    child::{Running, Task},
    place::{Scratch, program, root},
};

const HEADER: &str = "/usr/include/infiniband/verbs.h";
/// Expected end of each case of `conform.c`.
const CONFORM: &str = include_str!("conform.txt");
const TOOLS: [&str; 4] = ["ibv_devices", "ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong"];
/// Message of these tools on a port that is not free.
const TAKEN: &str = "Couldn't listen to port";

const DEVICES: &str = "left=127.0.0.21,right=127.0.0.22";
/// A device for each of three ranks, for Comity's own tests.
pub(super) const SOFT: &str = "soft=127.0.0.1*3";

pub(super) fn run(scope: &Scope) -> Outcome {
    if let Some(tool) = TOOLS.into_iter().find(|t| program(t).is_none()) {
        return missing(format!("{tool} is not installed"));
    }
    if !Path::new(HEADER).is_file() {
        return missing(format!("{HEADER} is not there"));
    }
    let scratch = Scratch::new("rdma").map_err(|e| format!("cannot make a folder: {e}"))?;
    let folder = scratch.join("lib");
    softverbs::lay_out_built(&folder)?;
    let device = Device { folder };
    device.is_shown()?;
    let exchanges = device.exchanges()?;
    device.refuses_rc_as_apple()?;
    let conform = conform(&scratch)?;
    let said = device.task(&conform.to_string_lossy(), &["left", "right"]).run()?;
    conforms(&said)?;
    println!("the cases of conform.c end as over Soft-RoCE");
    let links = device.carries_links(scope)?;
    Ok(Done::Passed(format!("{exchanges} ping-pongs by rdma-core's programs, {links} tests of links")))
}

/// The software device, laid out in a folder.
struct Device {
    folder: PathBuf,
}

impl Device {
    fn task(&self, tool: &str, args: &[&str]) -> Task {
        let task = Task::new(tool).args(args).env("LD_LIBRARY_PATH", &self.folder);
        task.env("SOFTVERBS_DEVICES", DEVICES).limit(30)
    }

    fn is_shown(&self) -> Result<(), String> {
        let list = self.task("ibv_devices", &[]).run()?;
        let info = self.task("ibv_devinfo", &["-v"]).run()?;
        let list = ["left", "right"].map(|name| (&list, name));
        let info = ["hca_id:\tleft", "hca_id:\tright", "PORT_ACTIVE (4)", "::ffff:127.0.0.22"]
            .map(|words| (&info, words));
        match list.into_iter().chain(info).find(|(text, words)| !text.contains(words)) {
            Some((text, words)) => {
                Err(format!("{words:?} is not in what rdma-core's programs show:\n{text}"))
            }
            None => Ok(()),
        }
    }

    /// Comity's own links, and jobs over them.
    fn carries_links(&self, scope: &Scope) -> Result<u64, String> {
        let words = ["nextest", "run", "--workspace", "--profile", "gate", "--run-ignored", "all"];
        let task = Task::cargo().args(words).args(["--test-threads", "2"]);
        let task = scope.part(task, 4).args(["-E", "kind(lib) & test(/^verbs::/) | binary(rdma)"]);
        let task = task.env("COMITY_VERBS", self.folder.join("libibverbs.so.1"));
        cargo::nextest_count(&task.env("SOFTVERBS_DEVICES", SOFT).limit(1200).run()?)
    }

    /// Both programs: addressed by LID and by GID, polling and sleeping, small, large and checked byte by byte.
    fn exchanges(&self) -> Result<usize, String> {
        let ways: [&[&str]; 5] = [
            &["-n", "300"],
            &["-g", "1", "-n", "300"],
            &["-e"],
            &["-c"],
            &["-s", "1048576", "-n", "40", "-c"],
        ];
        let mut count = 0;
        for tool in ["ibv_rc_pingpong", "ibv_uc_pingpong"] {
            for way in ways {
                self.exchange(tool, way, "ib")?;
                count += 1;
            }
        }
        // One frame of 4 KiB, and an odd number of them.
        for way in
            [&["-g", "1", "-n", "300"][..], &["-g", "1", "-s", "12288", "-r", "300", "-n", "100", "-c"]]
        {
            self.exchange("ibv_uc_pingpong", way, "apple")?;
            count += 1;
        }
        Ok(count)
    }

    fn exchange(&self, tool: &str, way: &[&str], mode: &str) -> Result<(), String> {
        // The port can be taken between the look and its use, by the software device too.
        let mut tries = 3;
        loop {
            match self.exchange_at(free_port()?, tool, way, mode) {
                Err(e) if tries > 1 && e.contains(TAKEN) => tries -= 1,
                done => return done,
            }
        }
    }

    fn exchange_at(&self, port: u16, tool: &str, way: &[&str], mode: &str) -> Result<(), String> {
        let start = Instant::now();
        let port = port.to_string();
        let end = |device: &str, more: &[&str]| {
            let args = [&["-d", device, "-p", &port][..], way, more].concat();
            self.task(tool, &args).env("SOFTVERBS_MODE", mode)
        };
        let server: Running = end("left", &[]).start()?;
        // The server is not listening at once, and only its client may try.
        while let Err(e) = end("right", &["127.0.0.1"]).run() {
            if !e.contains("Couldn't connect") || start.elapsed() > Duration::from_secs(10) {
                let why = server.wait().err().unwrap_or_default();
                return Err(format!("{e}\n{why}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        let output = server.wait()?;
        let took = start.elapsed().as_secs_f64();
        println!(
            "{tool} {} ({mode}): {} {took:.1} s",
            way.join(" "),
            output.lines().last().unwrap_or_default()
        );
        Ok(())
    }

    fn refuses_rc_as_apple(&self) -> Result<(), String> {
        match self.task("ibv_rc_pingpong", &["-g", "1"]).env("SOFTVERBS_MODE", "apple").run() {
            Err(e) if e.contains("Couldn't create QP") => Ok(()),
            Err(e) => Err(format!("RC in apple mode failed in another way: {e}")),
            Ok(_) => Err("RC worked in apple mode".into()),
        }
    }
}

/// The cases, compiled against the real header and linked with the real library, for whichever is there when it runs.
pub(super) fn conform(scratch: &Scratch) -> Result<PathBuf, String> {
    let program = scratch.join("conform");
    let source = root().join("tools/steps/src/test/rdma/conform.c");
    let task = Task::new("cc").args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, &source]);
    task.args(["-libverbs"]).limit(120).run()?;
    Ok(program)
}

/// Check that the cases ended as they do on any provider.
pub(super) fn conforms(said: &str) -> Result<(), String> {
    let lines =
        |text: &str| text.lines().map(str::trim_end).filter(|l| !l.is_empty()).map(str::to_owned).collect();
    let (want, said): (Vec<String>, Vec<String>) = (lines(CONFORM), lines(said));
    match want.iter().zip(&said).find(|(want, said)| want != said) {
        Some((want, said)) => Err(format!("a case ended otherwise:\n{said}\nand not:\n{want}")),
        None if want.len() == said.len() => Ok(()),
        None => Err(format!("{} cases were wanted:\n{}", want.len(), said.join("\n"))),
    }
}
