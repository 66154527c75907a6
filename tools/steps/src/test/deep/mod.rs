//! Everything at full size, in parts that run by themselves. [`page`] has each part as it ended last; one that has passed at this state
//! of the code is not run again.

mod page;

use super::{
    chaos, cluster,
    gate::{
        ADDRESS, ALL_TESTS, ARM, C, CONFORMANCE, FUZZ, IN_SWIFT, LAUNCHERS, LOOM, MIRI, MPI, ON_ARM, RDMA,
        SANITIZERS, SWIFT, THREAD, VERBS,
    },
    hosts, python, ray, rdma_vm,
    requirements::Ask,
    scope::Scope,
    ssh,
    step::{End, Outcome, Step, code, lines, table},
};

/// The soak, where `--hours` says nothing.
pub(super) const SOAK_HOURS: f64 = 2.0;
/// Packages of the public API.
const SEMVER: &str = "release=$(git describe --tags --abbrev=0 --match 'v*') || { echo '=> nothing is released yet'; exit; }
cargo semver-checks --baseline-rev \"$release\" -p comity -p comity-base -p comity-channel -p comity-transport -p comity-settings \
    -p comity-rendezvous -p comity-job -p comity-kernel -p comity-plan -p comity-membership -p comity-candle
echo \"=> nothing breaks users of $release\"";
const DENY: Ask = Ask::Tool(
    "deny",
    "https://github.com/EmbarkStudios/cargo-deny/releases/download/0.20.2/cargo-deny-0.20.2-x86_64-unknown-linux-musl.tar.gz",
);
const SUITES: Ask = Ask::Released("python/suites/requirements.txt");

const fn part(name: &'static str, about: &'static str, run: fn(&Scope) -> Outcome) -> Step {
    // Each command in it has a limit of its own.
    code(name, 0, run, about)
}

const fn plain(name: &'static str, about: &'static str, script: &'static str) -> Step {
    lines(name, 0, script, about).asks(&[Ask::Nextest])
}

pub(super) const PARTS: &[Step] = &[
    plain("tests", "all tests, every matrix whole", ALL_TESTS),
    plain(
        "simulator",
        "100,000 seeds of failing jobs",
        "COMITY_SIM_SEEDS=100000 cargo nextest run --profile long -p comity-membership --lib -E 'test(=simulate::the_promise_is_kept)'",
    ),
    plain(
        "vast",
        "jobs of 4,096 simulated ranks, and the same mistakes found in them",
        "COMITY_SIM_VAST=4096 cargo nextest run --profile long -p comity-membership --lib --no-capture simulate::vast::",
    ),
    plain(
        "hours",
        "10,000 simulated hours of crowded jobs, nobody given up",
        "COMITY_SIM_HOURS=10000 cargo nextest run --profile long -p comity-membership --lib --no-capture simulate::hours_pass_without_a_false_alarm",
    ),
    plain("conformance", "every operation over each link and backend, all rank counts", CONFORMANCE)
        .built()
        .asks(MPI),
    plain(
        "full",
        "every operation, type and size, 4 processes, as released",
        "cargo build --release -p comity-cli
comity=$BUILT/release/comity
$comity launch -n 2 --timeout 1200 -- $comity check --quick --large --ops all_reduce
$comity launch -n 4 --timeout 1200 -- $comity check",
    ),
    plain(
        "load",
        "64 ranks, 1,000 calls in flight; 1,000 groups and 20 s of calls; nothing grows",
        "load() { $COMITY launch -n $1 --timeout 1200 -- \"$BUILT/debug/examples/load\" $2 $3; }
load 64 flight 1000
load 4 groups 1000
load 3 grow 20",
    )
    .built(),
    // All that the gate's step needs is what these bring.
    plain("c", "the C interface: every rank count, link and fault; leaks; JAX", C)
        .built()
        .asks(&[Ask::Linux, Ask::Debian, Ask::Python]),
    plain("swift", "the Swift package", SWIFT).built().asks(IN_SWIFT),
    plain("arm", "Linux on aarch64, emulated: unit tests, larger pages, check, Python with NumPy", ARM)
        .built()
        .asks(ON_ARM),
    plain(
        "candle",
        "candle's examples beside transformers; checkpoints read by others",
        "\"$PYTHON\" python/suites/candle_suite.py \"$BUILT/debug\" \"$BUILT/minilm\"",
    )
    .built()
    .asks(&[Ask::Python]),
    plain(
        "others",
        "burn, candle's own models and the page for other Rust libraries",
        "cargo test --locked --manifest-path tools/others/Cargo.toml --target-dir \"$BUILT/others\"",
    ),
    plain("rdma", "rdma-core's programs on a software device; Comity's links over it", RDMA).built().asks(VERBS),
    part("guest", "the kernel's Soft-RoCE in a QEMU guest, every case", rdma_vm::run)
        .built()
        .asks(rdma_vm::ASKS),
    part("hosts", "two hosts, as network namespaces, IPv4 and IPv6", hosts::check).built().asks(hosts::ASKS),
    part("ssh", "comity launch over ssh: a switch, a triangle, a chain", ssh::check).built().asks(ssh::ASKS),
    part("cluster", "comity cluster and doctor on three hosts, all twelve planted faults", cluster::check)
        .built()
        .asks(cluster::ASKS),
    plain(
        "browser",
        "the page of comity top in headless Chromium",
        "for name in chromium chromium-browser google-chrome chrome; do
    if command -v $name; then export COMITY_TEST_CHROMIUM=$(command -v $name); break; fi
done
cargo nextest run --profile deep -p comity-cli --test live --run-ignored only chromium",
    )
    .asks(&[Ask::Nextest, Ask::Program("chromium", "chromium")]),
    plain("launchers", "under torch's variables, Open MPI and MPICH", LAUNCHERS).built().asks(MPI),
    plain("slurm", "under srun: two nodes of a real Slurm", include_str!("../../../scripts/slurm.sh")).built().asks(&[
        Ask::X86,
        Ask::Root,
        Ask::Program("ip", "iproute2"),
        Ask::Program("apt-get", "apt"),
        // Slurm itself, and what of its libraries a plain Debian lacks.
        Ask::Unpacked(
            "slurm",
            &[
                "slurmctld",
                "slurmd",
                "slurm-client",
                "slurm-wlm-basic-plugins",
                "munge",
                "libmunge2",
                "liblua5.1-0",
                "libhwloc15",
            ],
            "usr/sbin/slurmd-wlm",
        ),
    ]),
    part("python", "the Python package as released, every framework", python::check)
        .built()
        .asks(&[Ask::Python]),
    plain(
        "torch-suite",
        "torch's own tests of a backend, beside gloo",
        "\"$PYTHON\" python/suites/torch_suite.py --ranks 2 3 8",
    )
    .asks(&[SUITES]),
    plain(
        "reconfigure",
        "torch's own tests of groups whose members change, beside gloo",
        "\"$PYTHON\" python/suites/torch_reconfigure.py --source \"$COMITY_TORCH_SOURCE\"",
    )
    .asks(&[Ask::Checkout("COMITY_TORCH_SOURCE", "github.com/pytorch/pytorch"), SUITES]),
    plain(
        "torchft",
        "torchft's manager over Comity, beside gloo: a replica dies and comes back",
        "if [ -n \"${COMITY_TORCHFT_SOURCE-}\" ]; then
    \"$PYTHON\" python/suites/torchft_examples.py --source \"$COMITY_TORCHFT_SOURCE\" --over gloo comity
fi
\"$PYTHON\" python/suites/torchft_suite.py",
    )
    .asks(&[Ask::Released("python/suites/torchft.txt")]),
    plain(
        "strangers",
        "small programs after other systems' reports, beside gloo",
        "\"$PYTHON\" python/suites/strangers.py",
    )
    .asks(&[SUITES]),
    part("shells", "hosts over ssh whose login shells are fish and tcsh", ssh::shells::check)
        .built()
        .asks(ssh::shells::ASKS),
    part("ray", "actors of a real Ray: every operation, two groups, a killed actor", ray::run)
        .built()
        .asks(ray::ASKS),
    plain(
        "mlx-suite",
        "MLX's own distributed tests, beside its ring",
        "\"$PYTHON\" python/suites/mlx_suite.py --source \"$COMITY_MLX_SOURCE\"",
    )
    .asks(&[Ask::Checkout("COMITY_MLX_SOURCE", "github.com/ml-explore/mlx"), SUITES]),
    plain("address", "all tests under AddressSanitizer", ADDRESS).built().asks(SANITIZERS),
    plain("thread", "all tests under ThreadSanitizer", THREAD).built().asks(SANITIZERS),
    plain("miri", "undefined behaviour in pure code", MIRI).asks(&[Ask::Nextest, Ask::Nightly]),
    plain("loom", "all interleavings of the lock-free parts", LOOM),
    plain("fuzz", "decoders on hostile bytes, 10 minutes each", FUZZ).asks(&[Ask::Nightly]),
    part("chaos", "jobs broken at random, for an hour", chaos::hour).built(),
    plain(
        "elastic-chaos",
        "a job that loses ranks and takes in others, for an hour",
        "\"$BUILT/debug/examples/elastic\" chaos --minutes 60 --detection 2 --seed \"$COMITY_TEST_SEED\"",
    )
    .built(),
    part("soak", "eight ranks to a core for 2 hours (--hours), nobody given up", chaos::soak),
    // The fuzz targets are a workspace of their own.
    plain(
        "licences",
        "licences, bans and sources of all dependencies, by cargo-deny",
        "for manifest in Cargo.toml fuzz/Cargo.toml; do
    cargo deny --manifest-path $manifest --config deny.toml check licenses bans sources
done",
    )
    .asks(&[DENY]),
    plain("advisories", "known faults of dependencies, by cargo-deny", "cargo deny check advisories").asks(&[DENY]),
    plain("semver", "what the public API changed since the last release, by cargo-semver-checks", SEMVER).asks(&[Ask::Tool(
        "semver-checks",
        "https://github.com/obi1kenobi/cargo-semver-checks/releases/latest/download/cargo-semver-checks-x86_64-unknown-linux-gnu.tar.gz",
    )]),
    plain(
        "macos",
        "type-check of everything for aarch64-apple-darwin",
        "export CC_aarch64_apple_darwin=true AR_aarch64_apple_darwin=true
cargo check --target aarch64-apple-darwin --target-dir target/macos --workspace --features comity-candle/metal",
    )
    .asks(&[Ask::Target("aarch64-apple-darwin")]),
];

/// These parts, or all; each is written down when it has ended. One that fails does not stop the others.
pub(super) fn run(names: &[&str], hours: f64, again: bool) -> Result<(), String> {
    let scope = Scope::deep(hours);
    let state = page::state()?;
    let mut rows = Vec::new();
    for part in PARTS.iter().filter(|p| names.is_empty() || names.contains(&p.name)) {
        if !again && page::has_passed(part.name, &state)? {
            println!("\n=== {}: passed already at {state}; --again runs it anew", part.name);
            continue;
        }
        let row = part.apart(&scope, true, false);
        page::note(&row, &state)?;
        rows.push(row);
    }
    println!("\n{}\nwritten to {}", table(&rows), page::PAGE);
    let failed = rows.iter().filter(|r| matches!(r.end, End::Failed(_)));
    let failed: Vec<_> = failed.map(|r| r.name.as_str()).collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}; each alone: cargo xtask test --deep NAME", failed.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nightly_workflow_names_parts() {
        let text = tasks::place::read(".github/workflows/nightly.yml").unwrap();
        let (_, rest) = text.split_once("part: [").unwrap();
        let (list, _) = rest.split_once(']').unwrap();
        for name in list.split(',').map(str::trim) {
            assert!(PARTS.iter().any(|p| p.name == name), "nightly.yml names {name}, which is no part");
        }
    }
}
