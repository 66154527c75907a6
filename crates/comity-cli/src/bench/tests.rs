use super::*;
use clap::Parser;
use std::thread;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: BenchArgs,
}

/// Lines that rank 0 prints on `n` ranks.
fn lines(n: usize, flags: &[&str]) -> Vec<String> {
    let args = Cli::try_parse_from([&["bench"], flags].concat()).unwrap().args;
    let groups = Group::local(n).unwrap();
    thread::scope(|s| {
        let ranks: Vec<_> = groups
            .into_iter()
            .map(|g| {
                let args = &args;
                s.spawn(move || {
                    let mut lines = Vec::new();
                    assert_eq!(
                        table(&g, None, (args, &Earlier::default()), (None, &mut Vec::new()), |line| {
                            lines.push(line)
                        }),
                        Ok(0)
                    );
                    lines
                })
            })
            .collect();
        let mut all: Vec<_> = ranks.into_iter().map(|r| r.join().unwrap()).collect();
        all.swap_remove(0)
    })
}

#[test]
fn every_operation_is_right_and_takes_time() {
    for n in [1, 2, 3] {
        let flags = ["all", "--json", "--iters", "6", "--sizes", "8,10000:40000", "--factor", "4"];
        let lines = lines(n, &flags);
        assert_eq!(lines.len(), 3 * 10 + 1, "{lines:#?}");
        for line in lines {
            let row: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(row["wrong"], 0, "{line}");
            let us = |k: &str| row[k].as_f64().unwrap();
            assert!(us("min_us") <= us("median_us") && us("median_us") <= us("p99_us"), "{line}");
            assert!(row["calls"].as_u64().unwrap() >= 6 && row["world"]["ranks"] == n, "{line}");
        }
    }
}

#[test]
fn calls_on_a_wire_are_right_within_its_bounds() {
    for wire in Wire::ALL {
        let ops = ["all_reduce", "all_gather", "reduce_scatter"];
        let flags = ["--wire", wire.name(), "--json", "--iters", "2", "--sizes", "8,40000"];
        let lines = lines(3, &[&ops[..], &flags].concat());
        assert_eq!(lines.len(), 6, "{lines:#?}");
        for line in lines {
            let row: Value = serde_json::from_str(&line).unwrap();
            assert!(row["wrong"] == 0 && row["world"]["wire"] == wire.name(), "{line}");
        }
    }
    let off = |most, got: f32| op::differ(&[got, 1.0], ReduceOp::Sum, most, &|_| 1.0f32);
    assert_eq!([off(0.0, 1.01), off(0.1, 1.01), off(0.1, 1.2), off(0.1, f32::NAN)], [1, 0, 1, 1]);
}

#[test]
fn the_table_is_aligned_and_fits() {
    let said = lines(2, &["all_reduce", "barrier", "--budget", "0.001", "--sizes", "8:64"]);
    let lines: Vec<_> = said.iter().flat_map(|l| l.lines()).collect();
    assert!(lines.iter().all(|l| l.len() <= 100), "{lines:#?}");
    let rows: Vec<_> = lines.iter().filter(|l| l.ends_with(" 0") && !l.starts_with('#')).collect();
    assert_eq!(rows.len(), 5);
    assert!(rows.iter().all(|l| l.len() == rows[0].len()), "{lines:#?}");
    assert!(lines[0].contains("2 ranks") && lines.iter().any(|l| l.starts_with("# all_reduce f32 sum")));
}

#[test]
fn rows_come_as_values_with_commas() {
    let lines = lines(2, &["all_reduce", "--csv", "--iters", "5", "--sizes", "8:32"]);
    assert_eq!((lines.len(), lines[0].as_str()), (4, row::COLUMNS));
    assert!(lines[1].starts_with("all_reduce,8,2,f32,sum,2,") && lines[1].ends_with(",0"), "{lines:?}");
    assert!(lines.iter().all(|l| l.split(',').count() == 14), "{lines:?}");
}

#[test]
fn buffers_come_in_whole_parts() {
    assert_eq!(elements(BenchOp::AllGather, 8, DType::F32, 4, false), Ok((4, 16)));
    assert_eq!(elements(BenchOp::AllGather, 8, DType::F32, 4, true), Ok((0, 0)));
    assert_eq!(elements(BenchOp::AllReduce, 9, DType::F32, 4, false), Ok((2, 8)));
    assert_eq!(elements(BenchOp::Barrier, 1 << 30, DType::F32, 4, false), Ok((0, 0)));
}
