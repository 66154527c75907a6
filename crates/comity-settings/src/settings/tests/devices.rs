//! A matrix of RDMA devices in a variable: its place in an error, and MLX's names for it.

use super::*;

#[test]
fn an_error_in_a_matrix_has_a_line_and_a_column() {
    let name = "COMITY_DEVICES";
    let e = from(&[(name, "[[null,\n 7")]).unwrap_err();
    let ErrorKind::Config(why) = e.kind() else { panic!("{e}") };
    assert_eq!((why.key.as_deref(), why.line, why.column), (Some(name), Some(2), Some(2)), "{why}");
}

#[test]
fn mlx_starts_ranks_for_jaccl_without_a_hostfile() {
    let vars = [
        ("MLX_RANK", "1"),
        ("MLX_JACCL_COORDINATOR", "10.0.0.1:7000"),
        ("MLX_IBV_DEVICES", r#"[[null, "a"], ["b", null]]"#),
        ("MLX_JACCL_RING", "1"),
        ("COMITY_INSECURE", "1"),
    ];
    let c = from(&vars).unwrap();
    assert_eq!((c.rank, c.size, c.evidence.launcher, c.ring), (1, 2, Launcher::Mlx, true));
    assert!(matches!(&c.meeting_point, MeetingPoint::Host(at) if at[0].to_string() == "10.0.0.1:7000"));
    let links = format!("{:?}", c.transports);
    assert!(links.contains(r#"rows: [[[], ["a"]], [["b"], []]]"#), "{links}");
    // JACCL's own names go before MLX's.
    let own = [("JACCL_RANK", "0"), ("JACCL_COORDINATOR", "10.0.0.9:1")];
    let c = from(&[&vars[..], &own[..]].concat()).unwrap();
    assert_eq!((c.rank, c.meeting_point.to_string().contains("10.0.0.9:1")), (0, true));
}
