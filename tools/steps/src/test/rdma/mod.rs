//! RDMA without a device for it: rdma-core's own programs, and Comity's links, on the software device.

use super::{
    jobs::{fails, free_port, has, timed},
    requirements::Ask,
    scope::Scope,
    step::{Outcome, passed},
};
use crate::softverbs;
use std::{
    ffi::OsStr,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};
use tasks::{
    child::Task,
    place::{Scratch, root},
};

pub(super) const ASKS: &[Ask] = &[
    Ask::Linux,
    Ask::Nextest,
    Ask::Program("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    Ask::Program("ibv_rc_pingpong", "ibverbs-utils"),
];
/// Expected end of each case of `conform.c`.
const CONFORM: &str = include_str!("conform.txt");
/// Message of these tools on a port that is not free.
const TAKEN: &str = "Couldn't listen to port";

const DEVICES: &str = "left=127.0.0.21,right=127.0.0.22";
/// A device for each of three ranks, for Comity's own tests.
pub(super) const SOFT: &str = "soft=127.0.0.1*3";

pub(super) fn run(scope: &Scope) -> Outcome {
    let scratch = Scratch::new("rdma")?;
    let device = Device { folder: scratch.join("lib") };
    softverbs::lay_out_built(&device.folder)?;
    device.is_shown()?;
    let exchanges = device.exchanges()?;
    let refused = device.task("ibv_rc_pingpong", &["-g", "1"]).env("SOFTVERBS_MODE", "apple").run();
    fails(refused, &["Couldn't create QP"])?;
    let conform = conform(&scratch)?;
    timed("the cases of conform.c", || conforms(&device.task(&conform, &["left", "right"]).run()?))?;
    let links = device.carries_links(scope)?;
    Ok(format!("{exchanges} ping-pongs by rdma-core's programs, {links} tests of links"))
}

/// The software device, laid out in a folder.
struct Device {
    folder: PathBuf,
}

impl Device {
    fn task(&self, tool: impl AsRef<OsStr>, args: &[&str]) -> Task {
        let task = Task::new(tool).args(args).env("LD_LIBRARY_PATH", &self.folder);
        task.env("SOFTVERBS_DEVICES", DEVICES).limit(30)
    }

    fn is_shown(&self) -> Result<(), String> {
        has(&self.task("ibv_devices", &[]).run()?, &["left", "right"])?;
        let words = ["hca_id:\tleft", "hca_id:\tright", "PORT_ACTIVE (4)", "::ffff:127.0.0.22"];
        has(&self.task("ibv_devinfo", &["-v"]).run()?, &words)
    }

    /// Comity's own links, and jobs over them.
    fn carries_links(&self, scope: &Scope) -> Result<u64, String> {
        let words = ["nextest", "run", "--workspace", "--profile", "gate", "--run-ignored", "all"];
        let part = scope.part(4);
        let task =
            Task::cargo().args(words).args(["--test-threads", "2"]).args((!part.is_empty()).then_some(part));
        let task = task.args(["-E", "kind(lib) & test(/^verbs::/) | binary(rdma)"]);
        let task = task.env("COMITY_VERBS", self.folder.join("libibverbs.so.1"));
        Ok(passed(&task.env("SOFTVERBS_DEVICES", SOFT).limit(1200).run()?))
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
        let server = end("left", &[]).start()?;
        // The server is not listening at once, and only its client may try.
        while let Err(e) = end("right", &["127.0.0.1"]).run() {
            if !e.contains("Couldn't connect") || start.elapsed() > Duration::from_secs(10) {
                return Err(format!("{e}\n{}", server.wait().err().unwrap_or_default()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        println!("{tool} {} ({mode}): {}", way.join(" "), server.wait()?.lines().last().unwrap_or_default());
        Ok(())
    }
}

/// The cases, compiled against the real header and linked with the real library, for whichever is there when it runs.
pub(super) fn conform(scratch: &Scratch) -> Result<PathBuf, String> {
    let program = scratch.join("conform");
    let source = root().join("tools/steps/src/test/rdma/conform.c");
    let task = Task::new("cc").args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, &source]);
    task.arg("-libverbs").run()?;
    Ok(program)
}

/// Check that the cases ended as they do on any provider.
pub(super) fn conforms(said: &str) -> Result<(), String> {
    let lines = |text: &str| -> String {
        text.lines().map(str::trim_end).filter(|l| !l.is_empty()).map(|l| format!("{l}\n")).collect()
    };
    match lines(said) == lines(CONFORM) {
        true => Ok(()),
        false => Err(format!("the cases ended otherwise:\n{said}\nand not:\n{CONFORM}")),
    }
}
