//! `comity plan`: what an operation would do, without doing it: steps, bytes and time of each algorithm that could carry it
//! out, and a drawing of one.

use crate::{
    check::dtype_parser,
    size::{Size, bytes},
};
use clap::builder::PossibleValuesParser;
use comity::{DType, LinkCosts};
use comity_plan::{Algorithm, PlanReport, plan_report};
use std::{io::Write, path::PathBuf};

const OPS: [&str; 9] = [
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
];

/// What `comity plan` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
OP is all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter, all_to_all or
barrier. SIZE counts the whole buffer for the first three, one rank's part for the others.
NAME is direct, two-phase, ring, doubling, tree, chain, leader or hierarchy.

The cost model knows shared memory within a host and TCP between hosts, and as many cores as ranks,
or what --costs says; a group chooses by the same model. * marks its choice. To draw a graph:
  comity plan all_reduce --ranks 12 --bytes 64M --hosts 3 --dot | dot -Tsvg > plan.svg")]
pub(crate) struct Args {
    /// The operation
    #[arg(value_name = "OP", value_parser = PossibleValuesParser::new(OPS), hide_possible_values = true)]
    op: String,

    /// How many ranks
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,

    /// Bytes of the buffer, or of one rank's part of it
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    bytes: Size,

    /// Over how many hosts the ranks are dealt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,

    /// The element type, of which there are whole ones
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = dtype_parser(), hide_possible_values = true)]
    dtype: DType,

    /// By costs that were measured: FILE of `comity check --links --json`
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,

    /// Draw this algorithm instead of the one chosen
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Algorithm::ALL.iter().map(|a| a.name())), hide_possible_values = true)]
    algorithm: Option<String>,

    /// Only the graph, in the language of Graphviz
    #[arg(long)]
    dot: bool,
}

/// `comity plan`; the exit code.
pub(crate) fn plan(args: Args) -> u8 {
    match report(&args) {
        Ok(text) => {
            // A reader that went away has seen enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            0
        }
        Err(why) => {
            eprintln!("comity plan: {why}");
            2
        }
    }
}

fn report(args: &Args) -> Result<String, String> {
    let size = args.dtype.size() as u64;
    let whole = usize::try_from(args.bytes.0 / size * size).map_err(|e| format!("--bytes: {e}"))?;
    let costs = args.costs.as_ref().map(|path| {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        LinkCosts::from_json(&text).map_err(|why| format!("{} {why}", path.display()))
    });
    let costs = costs.transpose()?;
    let of = |algorithm| {
        plan_report(
            &args.op,
            args.ranks as usize,
            whole,
            args.hosts as usize,
            algorithm,
            costs.as_ref().map(AsRef::as_ref),
        )
    };
    let chosen = of(None)?;
    let shown = match &args.algorithm {
        Some(name) => of(Some(name))?,
        None => chosen.clone(),
    };
    if args.dot {
        return Ok(shown.dot);
    }
    // An algorithm that cannot carry out the operation is none to compare.
    let all: Vec<_> = Algorithm::ALL.iter().filter_map(|a| of(Some(a.name())).ok()).collect();
    Ok(format!("{}\n{}", table(&all, &chosen), shown.text))
}

fn table(all: &[PlanReport], chosen: &PlanReport) -> String {
    let head = ["rounds", "messages", "sent by one", "sent by all", "between hosts", "memory", "time"];
    let line = |name: String, cells: [String; 7]| {
        let widths = [8, 10, 13, 13, 15, 10, 12];
        let cells: String = cells.iter().zip(widths).map(|(c, w)| format!("{c:>w$}")).collect();
        format!("{name:<12}{cells}\n")
    };
    let mut text = line("algorithm".into(), head.map(String::from));
    for r in all {
        let mark = if r.algorithm == chosen.algorithm { " *" } else { "" };
        let size = |n: usize| bytes(n as u64);
        text += &line(
            format!("{}{mark}", r.algorithm),
            [
                r.rounds.to_string(),
                r.messages.to_string(),
                size(r.sent_most),
                size(r.sent_total),
                size(r.sent_between_hosts),
                size(r.memory),
                time(r.seconds),
            ],
        );
    }
    text
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn told(flags: &[&str]) -> Result<String, String> {
        report(&Cli::try_parse_from([&["plan"], flags].concat()).unwrap().args)
    }

    #[test]
    fn candidates_are_compared_and_one_is_drawn() {
        let text = told(&["all_reduce", "--ranks", "12", "--bytes", "64M", "--hosts", "3"]).unwrap();
        let rows: Vec<_> = text.lines().take_while(|l| !l.is_empty()).collect();
        assert_eq!(rows.len(), 7, "{text}");
        assert_eq!(rows.iter().filter(|r| r.contains(" * ")).count(), 1, "{text}");
        assert!(
            rows.iter().all(|r| r.chars().count() == rows[0].chars().count() && r.len() <= 100),
            "{text}"
        );
        assert!(text.contains("64 MiB, 12 ranks on 3 hosts"), "{text}");
        let ring = told(&["all_reduce", "--algorithm", "ring", "--dot"]).unwrap();
        assert!(ring.starts_with("digraph") && ring.trim_end().ends_with('}'), "{ring}");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let e = told(&["barrier", "--algorithm", "chain"]).unwrap_err();
        assert!(e.contains("chain") && e.contains("barrier"), "{e}");
        assert!(told(&["all_reduce", "--hosts", "9"]).unwrap_err().contains("hosts"));
    }
}
