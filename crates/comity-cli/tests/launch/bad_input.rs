//! Mistakes of a user that do not end the command with code 2, which the test `refusals` has.
use super::harness::*;

#[test]
fn flags_of_mlx_do_nothing_and_say_so() {
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
fn a_file_that_is_no_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tool");
    std::fs::write(&file, b"\x7fELF nonsense").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let done = run(&["-n", "2", file.to_str().unwrap()]);
    assert_ne!(done.code, 0);
    // Both fail; which one is first is chance.
    assert!(done.last().contains(" exited with code "), "{}", done.err);
}
