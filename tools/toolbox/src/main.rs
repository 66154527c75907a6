//! Project tasks: `cargo xtask check | test | bench | c-install | chaos | dist | softverbs | rdma-vm`. `xtask` itself has the demo.

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask demo                 build, then train a small network on 1, 2 and 4 ranks of this machine
cargo xtask check [--since COMMIT]  formatting, gates, clippy and tests of what changed
cargo xtask test                 the gate: install what the tests need and run them; 25 minutes
    --only NAME                  this step alone (repeatable)
    --seed N                     the share that N chooses, not the commit
    --list                       name the steps and parts
cargo xtask test --deep [PART...]   everything at full size, written to bench/record/deep.md; goes on where it was cut off
    --again                      also what has passed at this state of the code
cargo xtask bench                time Comity beside gloo, MLX, Open MPI and MPICH: tables, a page, a figure; 20 minutes
    --against LIST               these alone, of gloo,mlx,openmpi,mpich; or none
    --full                       every operation, size and type on 2, 4 and 8 ranks: hours; goes on where it was cut off
    --many                       all_reduce on 2, 4, 8, 16 and 28 ranks, as far as there are cores
    --built FOLDER               build and install nothing: comity, mpi-openmpi and mpi-mpich lie there
    --plan                       say what would run, and how long
    --only PART --rounds N       this part alone (repeatable), so many rounds
    --record                     write to bench/record and docs/pictures too
    --draw FILE                  measure nothing: write what this peers.json holds
cargo xtask c-install --prefix DIR  build and install libcomity for C: library, headers, pkg-config, CMake, Swift's module map
    --debug                      of the build that the tests use
cargo xtask chaos                break running jobs at random and check what every rank is told
    --minutes M  --seed S        how long (5), and which faults (a new seed)
    --release                    what is built with optimisation
    --only FAULT                 these faults alone (repeatable)
    --trials N                   at most so many in each lane
    --trial FAULT:SEED           one trial, over and over: what a failure prints
    --soak MINUTES               no faults: eight ranks to a core, nobody is given up
    --detection S                the limit of that run (5); shorter is stricter
cargo xtask dist                 make and check what a release holds: wheel, command, libcomity, checksums, installer
    --target TRIPLE              for this target (repeatable), not for this machine's
    --all                        for every target of a release
    --out DIR                    where they go (target/dist-out)
    --url URL                    where users will find them: for install.sh, Homebrew and conda
    --gather                     make nothing: checksums, installer and recipes for the files in DIR
    --book                       make nothing else: the book as a site, packed
    --crates                     make nothing: package the crates that are published, in their order
    --msrv                       make nothing: compile those crates with the oldest compiler that they promise
    --sizes FILE                 make nothing: count the bytes of a program by crate
cargo xtask softverbs FOLDER     build the software RDMA device and lay it out there as libibverbs.so.1
cargo xtask rdma-vm COMMAND...   run shell commands in a QEMU guest with rdma-core and Debian's Soft-RoCE driver
    --file PATH                  a program that is to be there too (repeatable)
    --limit SECONDS              for each command (60)
    --count                      its clock counts instructions: times on a busy host are those on an idle one
";

/// Reason why a task did not end well.
enum TaskError {
    /// The words are no task; what is wrong with them.
    Usage(String),
    /// It failed, and how.
    Failed(String),
}

/// Run what the command line has chosen.
fn chosen<T>(choice: Result<T, String>, run: impl FnOnce(T) -> Result<(), String>) -> Result<(), TaskError> {
    run(choice.map_err(TaskError::Usage)?).map_err(TaskError::Failed)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let Err(e) = tasks::child::catch_signals() {
        eprintln!("xtask: cannot catch signals: {e}");
        return ExitCode::FAILURE;
    }
    let result: Result<(), TaskError> = match args[..] {
        ["test", ref rest @ ..] => chosen(steps::StepChoice::parse(rest), |choice| steps::test(&choice)),
        ["check", ref rest @ ..] => steps::check(rest).map_err(TaskError::Failed),
        ["bench", ref rest @ ..] => chosen(bench::BenchChoice::parse(rest), |choice| bench::run(&choice)),
        // A part of bench, which starts it.
        ["bench-limit", ref rest @ ..] => bench::limit(rest).map_err(TaskError::Failed),
        ["c-install", ref rest @ ..] => steps::c_install(rest).map_err(TaskError::Failed),
        // A part of test, which starts it.
        ["step", ref rest @ ..] => steps::step(rest).map_err(TaskError::Failed),
        ["chaos", ref rest @ ..] => {
            chosen(chaos::Choice::parse(rest), |choice| chaos::run(&choice).map(|note| println!("{note}")))
        }
        ["dist", ref rest @ ..] => chosen(dist::DistChoice::parse(rest), |choice| dist::run(&choice)),
        ["softverbs", folder] => steps::softverbs(folder.as_ref()).map_err(TaskError::Failed),
        ["rdma-vm", ref rest @ ..] => chosen(guest::Choice::parse(rest), guest::run),
        // A part of chaos, which starts it.
        ["chaos-lane", ref rest @ ..] => chaos::lane(rest).map_err(TaskError::Failed),
        ["-h" | "--help" | "help"] => {
            print!("{HELP}");
            Ok(())
        }
        [] => Err(TaskError::Usage("say which task".into())),
        // `xtask` itself has the demo, and nothing else begins with its name.
        ["demo", ..] => Err(TaskError::Usage("demo takes no flags: cargo xtask demo".into())),
        [first, ..] => Err(TaskError::Usage(format!("{first:?} is no task"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(TaskError::Failed(e)) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
        Err(TaskError::Usage(e)) => usage(&e),
    }
}

fn usage(what: &str) -> ExitCode {
    // Last, so that it is not lost above the tasks.
    eprintln!("{HELP}\nxtask: {what}");
    ExitCode::from(2)
}
