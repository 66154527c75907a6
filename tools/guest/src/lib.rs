//! `cargo xtask rdma-vm`: commands in a small guest with Debian's kernel, its Soft-RoCE driver and rdma-core's libraries.
//!
//! The kernel of the host needs no RDMA, and nothing is left on it: the guest is QEMU emulating a processor (no KVM), its whole system
//! lies in memory, and the packages that are only unpacked stay in `target/rdma-vm` for the next time. It boots in some 10 s.

mod parts;

use parts::Parts;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tasks::{
    child::Task,
    place::{Scratch, copy, make, program, read, write},
};

/// Programs of the host that are there in the guest too; the shell and the rest are busybox's.
const PROGRAMS: [&str; 8] =
    ["ip", "tc", "rdma", "ibv_devices", "ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong", "setpriv"];

/// Libraries that rdma-core loads at run time.
const LIBRARIES: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"];
const DRIVER: &str = "/etc/libibverbs.d/rxe.driver";

/// Modules, which bring what they need.
const MODULES: [&str; 8] =
    ["crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe", "dummy", "veth", "bridge", "sch_netem"];

/// Seconds that the guest may take to boot and to go down, on a busy host.
const BOOT: u64 = 300;

/// End of a command in the guest.
#[derive(Debug, PartialEq)]
struct Answer {
    /// Its exit code.
    code: i32,
    /// Its output, errors too.
    output: String,
    /// Seconds that it took.
    seconds: f64,
}

/// Choice of a run, from the command line.
#[derive(Debug, PartialEq)]
pub struct Choice {
    /// Programs of the host besides those above: each of these at `/programs/NAME`.
    files: Vec<PathBuf>,
    /// Seconds for each command.
    limit: u64,
    /// The guest's clock counts instructions, a nanosecond each, and leaps over sleep: how busy the host is does not show in its times.
    counts: bool,
    /// Lines of shell, for busybox's.
    commands: Vec<String>,
}

impl Choice {
    /// # Errors
    /// The command line makes no sense; the text says why.
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut choice = Self { files: Vec::new(), limit: 60, counts: false, commands: Vec::new() };
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            match arg {
                "--count" => choice.counts = true,
                "--file" => choice.files.push(args.next().ok_or("--file needs a path")?.into()),
                "--limit" => {
                    let seconds = args.next().and_then(|s| s.parse().ok());
                    choice.limit = seconds.ok_or("--limit needs a number of seconds")?;
                }
                _ if arg.starts_with('-') => return Err(format!("rdma-vm has no option {arg:?}")),
                _ => choice.commands.push(arg.into()),
            }
        }
        if choice.commands.is_empty() { Err("rdma-vm needs a command".into()) } else { Ok(choice) }
    }

    fn run(&self) -> Result<Vec<Answer>, String> {
        if let Some(why) = lacking() {
            return Err(why);
        }
        let parts = parts::fetch()?;
        let scratch = Scratch::within(&parts.folder, "guest")
            .map_err(|e| format!("cannot make a folder in {}: {e}", parts.folder.display()))?;
        let image = scratch.join("initrd");
        let console = scratch.join("console");
        self.image(&parts, &scratch.join("system"), &image)?;
        let all = self.limit * self.commands.len() as u64;
        let ran = qemu(&parts.kernel, &image, &console, self.counts).limit(BOOT + all).echo().run();
        let said = || fs::read_to_string(&console).unwrap_or_default();
        let output = ran.map_err(|e| format!("{e}\nthe guest's kernel said:\n{}", said()))?;
        answers(&output, self.commands.len())
            .map_err(|e| format!("the guest ended early: {e}\nits kernel said:\n{}", said()))
    }

    /// Write the guest's whole system, which is laid out in a folder first: an archive in the format that the kernel unpacks at boot.
    fn image(&self, parts: &Parts, system: &Path, image: &Path) -> Result<(), String> {
        let at = |path: &str| system.join(path.trim_start_matches('/'));
        let file = |path: &str, from: &Path| {
            at(path).parent().map_or(Ok(()), make)?;
            copy(from, &at(path))
        };
        // With the libraries that it is linked with, those where the loader looks for them.
        let program_at = |path: &str, from: &Path| {
            file(path, from)?;
            linked(&Task::new("ldd").args([from]).run()?).try_for_each(|l| file(l, l.as_ref()))
        };
        for folder in ["proc", "sys", "dev", "tmp", "bin", "commands"] {
            make(&at(folder))?;
        }
        file("bin/busybox", &parts.busybox)?;
        for name in PROGRAMS {
            let path = program(name).ok_or_else(|| format!("{name} is not installed"))?;
            program_at(&format!("programs/{name}"), &path)?;
        }
        for path in &self.files {
            let name = path.file_name().ok_or_else(|| format!("{} has no name", path.display()))?;
            program_at(&format!("programs/{}", name.display()), path)?;
        }
        LIBRARIES.iter().try_for_each(|library| program_at(library, library.as_ref()))?;
        file(DRIVER, DRIVER.as_ref())?;
        let version = parts.modules.file_name().unwrap_or_default().display();
        let modules = format!("lib/modules/{version}");
        let list = parts.modules.join("modules.dep");
        file(&format!("{modules}/modules.dep"), &list)?;
        for module in with_needs(&read(&list)?, &MODULES)? {
            file(&format!("{modules}/{module}"), &parts.modules.join(module))?;
        }
        for (i, command) in self.commands.iter().enumerate() {
            write(at(&format!("commands/{i}")), format!("{}{}", real_programs(), command))?;
        }
        write(at("init"), init(self.commands.len(), self.limit))?;
        let pack = format!(
            "chmod 755 init && find . | {} cpio -o -H newc -R 0:0 > {}",
            parts.busybox.display(),
            image.display()
        );
        Task::sh(&pack).folder(system).run().map(drop)
    }
}

/// Boot, run the commands of the command line one after the other, go down. Their output is shown as it comes; then how they ended.
pub fn run(choice: Choice) -> Result<(), String> {
    let mut failed = Vec::new();
    for (command, answer) in choice.commands.iter().zip(choice.run()?) {
        // The lines before it are what it uses.
        let last = command.lines().next_back().unwrap_or_default();
        println!("exit code {} after {:.1} s: {last}", answer.code, answer.seconds);
        if answer.code != 0 {
            failed.push(format!("{last} failed:\n{}", answer.output));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Programs that have to be installed for it, and their packages.
pub const NEEDED: [(&str, &str); 6] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("rdma", "iproute2"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    (LIBRARIES[1], "ibverbs-providers"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("dpkg", "dpkg"),
];

/// Reason why there can be no guest here.
fn lacking() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("the guest is put together from Debian's packages for x86_64".into());
    }
    let missing: Vec<&str> =
        NEEDED.into_iter().filter(|(name, _)| program(name).is_none()).map(|(_, package)| package).collect();
    (!missing.is_empty()).then(|| format!("these packages are missing: {}", missing.join(" ")))
}

/// The files that `ldd` names: `name => /path (0x...)` and `/path (0x...)`.
fn linked(ldd: &str) -> impl Iterator<Item = &str> {
    ldd.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

/// Files of these modules and of all that they need, by the lines `FILE: FILE...` of a `modules.dep`.
fn with_needs<'a>(list: &'a str, names: &[&str]) -> Result<Vec<&'a str>, String> {
    let mut files = Vec::new();
    for name in names {
        let is_it =
            |file: &str| file.rsplit('/').next().is_some_and(|f| f.replace('-', "_") == format!("{name}.ko"));
        let line = list.lines().find_map(|l| l.split_once(':').filter(|(file, _)| is_it(file)));
        let (file, needs) = line.ok_or_else(|| format!("the kernel has no module {name}.ko, or packs it"))?;
        files.extend([file].into_iter().chain(needs.split_whitespace()));
    }
    Ok(files)
}

/// Two serial lines: what the commands print, and what the kernel says.
fn qemu(kernel: &Path, image: &Path, console: &Path, counts: bool) -> Task {
    let task = Task::new("qemu-system-x86_64");
    let accel: &[&str] = match counts {
        true => &["-accel", "tcg", "-icount", "shift=0,sleep=off"],
        false => &["-accel", "tcg,thread=multi"],
    };
    let task = task.args(accel).args(["-cpu", "max", "-smp", "2", "-m", "1536"]);
    let task = task.args(["-nodefaults", "-display", "none", "-monitor", "none", "-no-reboot"]);
    let task = task.args(["-serial", "stdio", "-serial", &format!("file:{}", console.display())]);
    // At boot the kernel waits for a few ticks of the emulated timer, and panics where a busy host brings them too late.
    let task = task.args(["-append", "console=ttyS1 panic=1 loglevel=4 no_timer_check"]);
    task.args(["-kernel".as_ref(), kernel.as_os_str(), "-initrd".as_ref(), image.as_os_str()])
}

fn init(commands: usize, limit: u64) -> String {
    let mut text = String::from(
        "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/programs:/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
stty -opost < /dev/ttyS0
exec < /dev/null > /dev/ttyS0 2>&1
hostname guest
uptime() { cut -d ' ' -f 1 /proc/uptime; }
",
    );
    text += &format!("modprobe -a {}\nip link set lo up\n", MODULES.join(" "));
    for i in 0..commands {
        // What a command left running is ended: all but this shell.
        text += &format!(
            "echo \"@@ {i} begins at $(uptime)\"
timeout -s KILL {limit} sh /commands/{i}
code=$?
kill -9 -1
echo
echo \"@@ {i} ended with $code at $(uptime)\"
"
        );
    }
    text + "sync\npoweroff -f\n"
}

/// The shell would take its own `ip` for the real one.
fn real_programs() -> String {
    PROGRAMS.map(|name| format!("{name}() {{ /programs/{name} \"$@\"; }}\n")).concat()
}

/// Cut what came over the line into what each command said.
fn answers(output: &str, count: usize) -> Result<Vec<Answer>, String> {
    let mut rest = output;
    let number = |text: &str| text.trim().parse::<f64>().ok();
    (0..count)
        .map(|i| {
            let missing = |what: &str| format!("command {i} {what}");
            let begin = format!("@@ {i} begins at ");
            let (_, after) = rest.split_once(&begin).ok_or_else(|| missing("did not begin"))?;
            let (since, after) = after.split_once('\n').ok_or_else(|| missing("did not begin"))?;
            let end = format!("@@ {i} ended with ");
            let (said, after) = after.split_once(&end).ok_or_else(|| missing("did not end"))?;
            let (line, after) = after.split_once('\n').ok_or_else(|| missing("did not end"))?;
            rest = after;
            let (code, at) = line.split_once(" at ").ok_or_else(|| missing("ended in a way of its own"))?;
            let code = code.parse().map_err(|_| missing("has no exit code"))?;
            let seconds = number(at).zip(number(since)).map_or(0.0, |(end, begin)| end - begin);
            Ok(Answer { code, output: said.trim_end().into(), seconds })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_cut_out_of_the_line() {
        let text = "noise\n@@ 0 begins at 3.50\na\nb\n\n@@ 0 ended with 0 at 4.00\n@@ 1 begins at 4.00\n\n@@ 1 ended with 137 at \
                    9.25\n";
        let two = answers(text, 2).unwrap();
        assert_eq!(two[0], Answer { code: 0, output: "a\nb".into(), seconds: 0.5 });
        assert_eq!(two[1], Answer { code: 137, output: String::new(), seconds: 5.25 });
        assert_eq!(answers(text, 3), Err("command 2 did not begin".into()));
        assert_eq!(answers(&text[..40], 1), Err("command 0 did not end".into()));
    }

    #[test]
    fn modules_and_libraries_are_found_in_what_others_say() {
        let list = "net/rxe.ko: net/tunnel.ko net/ib-core.ko\nnet/tunnel.ko:\nnet/ib-core.ko:\n";
        let files = ["net/rxe.ko", "net/tunnel.ko", "net/ib-core.ko", "net/ib-core.ko"];
        assert_eq!(with_needs(list, &["rxe", "ib_core"]).unwrap(), files);
        assert!(with_needs(list, &["siw"]).unwrap_err().contains("siw"));
        let text =
            "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x7f)\n\t/lib64/ld.so.2 (0x7f)\n";
        assert!(linked(text).eq(["/lib/x/libc.so.6", "/lib64/ld.so.2"]));
    }

    #[test]
    fn the_command_line_is_read() {
        let choice = Choice::parse(&["--file", "a", "--limit", "9", "x y", "z"]).unwrap();
        assert_eq!((choice.files, choice.limit, choice.commands.len()), (vec!["a".into()], 9, 2));
        assert!(Choice::parse(&["--count", "x"]).unwrap().counts && !choice.counts);
        for bad in [&["--limit", "x", "y"][..], &["--what"], &["--file"], &[]] {
            assert!(Choice::parse(bad).is_err(), "{bad:?}");
        }
    }
}
