//! `comity plan`: what an operation would do, without doing it: steps, bytes and time of each algorithm that could carry it
//! out, and a drawing of one.

use crate::{
    say::{CommandError, Exit, say},
    size::{Size, bytes},
};
use clap::builder::PossibleValuesParser;
use comity::{DType, LinkCosts};
use comity_launch::one_of;
use comity_plan::{Algorithm, Kind, LinkClass, PlanReport, PlanRequest, plan_report};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
OP is all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter, all_to_all or
barrier. SIZE counts the whole buffer, as comity bench does.

The cost model knows shared memory within a host and TCP between hosts, and as many cores as ranks,
or what --links, --cores and --costs say; a group chooses by the same model. * marks its choice; the
last three columns say what its time is made of: messages, bytes that move, bytes that are added.
To draw a picture, or a graph:
  comity plan all_reduce --ranks 12 --bytes 64M --hosts 3 --svg > plan.svg
  comity plan all_reduce --ranks 12 --bytes 64M --hosts 3 --dot | dot -Tsvg > graph.svg")]
pub(crate) struct PlanArgs {
    /// The operation
    #[arg(value_name = "OP", value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::name)), hide_possible_values = true)]
    op: String,

    /// Number of ranks
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,

    /// Bytes of the whole buffer
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    bytes: Size,

    /// Over how many hosts the ranks are dealt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,

    /// Cores of each host [default: as many as it has ranks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cores: Option<u32>,

    /// The links, of shm and tcp: tcp alone within hosts too
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = PossibleValuesParser::new(["shm", "tcp"]), default_value = "shm,tcp", hide_possible_values = true)]
    links: Vec<String>,

    /// The element type, of which there are whole ones
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = one_of(DType::ALL.map(DType::name), DType::from_name), hide_possible_values = true)]
    dtype: DType,

    /// By costs that were measured: FILE of `comity check --links --json`
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,

    /// Draw this algorithm instead of the one chosen
    #[arg(long, value_name = "NAME", value_parser = one_of(Algorithm::ALL.iter().map(|a| a.name()), Algorithm::from_name), hide_possible_values = true)]
    algorithm: Option<Algorithm>,

    /// Only the graph, in the language of Graphviz
    #[arg(long)]
    dot: bool,

    /// Only a picture, as SVG: rounds in colours, a column for each rank
    #[arg(long, conflicts_with = "dot")]
    svg: bool,
}

pub(crate) fn plan(args: PlanArgs) -> Exit {
    say(report(&args).map_err(CommandError::usage)?, 0)
}

fn report(args: &PlanArgs) -> Result<String, String> {
    let size = args.dtype.size() as u64;
    let whole = usize::try_from(args.bytes.0 / size * size).map_err(|e| format!("--bytes: {e}"))?;
    let costs = args.costs.as_ref().map(|path| {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        LinkCosts::from_json(&text).map_err(|why| format!("{} {why}", path.display()))
    });
    let costs = costs.transpose()?;
    let shm = args.links.iter().any(|l| l == "shm");
    let of = |algorithm| {
        let mut ask = PlanRequest::new(&args.op, args.ranks as usize, whole);
        (ask.hosts, ask.cores) = (args.hosts as usize, args.cores.map(|c| c as usize));
        ask.algorithm = algorithm;
        ask.costs = costs.as_ref().map(AsRef::as_ref);
        ask.within = if shm { LinkClass::SHM } else { LinkClass::TCP };
        plan_report(&ask)
    };
    let chosen = of(None)?;
    let shown = match args.algorithm {
        Some(algorithm) => of(Some(algorithm))?,
        None => chosen.clone(),
    };
    if args.dot {
        return Ok(shown.dot);
    }
    if args.svg {
        let many = format!("--svg shows up to 64 ranks, and there are {}; --dot draws more", args.ranks);
        return Some(shown.svg).filter(|s| !s.is_empty()).ok_or(many);
    }
    // An algorithm that cannot carry out the operation is none to compare.
    let all: Vec<_> = Algorithm::ALL.iter().filter_map(|a| of(Some(*a)).ok()).collect();
    Ok(format!("{}{}\n{}", table(&all, &chosen), why(&all, &chosen), shown.text))
}

/// Reason for the choice: what the chosen one saves against the next.
fn why(all: &[PlanReport], chosen: &PlanReport) -> String {
    let others = all.iter().filter(|r| r.algorithm != chosen.algorithm);
    let Some(next) = others.min_by(|a, b| a.seconds.total_cmp(&b.seconds)) else {
        return format!("{} is the only one that can.\n", chosen.algorithm);
    };
    let saved = [
        ("messages", next.messages_s - chosen.messages_s),
        ("bytes", next.bytes_s - chosen.bytes_s),
        ("adding", next.adding_s - chosen.adding_s),
    ];
    let most = saved.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, s)| *s > 0.0);
    let than = match most {
        Some((what, s)) => format!("most of that in {what}, {}", time(s)),
        None => "nothing of that in one column".into(),
    };
    let less = time(next.seconds - chosen.seconds);
    format!("{} is expected to take {less} less than {}, {than}.\n", chosen.algorithm, next.algorithm)
}

fn table(all: &[PlanReport], chosen: &PlanReport) -> String {
    let head = [
        "rounds",
        "messages",
        "sent most",
        "sent all",
        "cross-host",
        "memory",
        "time",
        "= msgs",
        "+ bytes",
        "+ adding",
    ];
    let line = |name: String, cells: [String; 10]| {
        let widths = [7, 9, 10, 9, 11, 9, 10, 9, 9, 9];
        let cells: String = cells.iter().zip(widths).map(|(c, w)| format!("{c:>w$}")).collect();
        format!("{name:<18}{cells}\n")
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
                time(r.messages_s),
                time(r.bytes_s),
                time(r.adding_s),
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
        args: PlanArgs,
    }

    fn told(flags: &[&str]) -> Result<String, String> {
        report(&Cli::try_parse_from([&["plan"], flags].concat()).unwrap().args)
    }

    #[test]
    fn candidates_are_compared_and_one_is_drawn() {
        let text = told(&["all_reduce", "--ranks", "12", "--bytes", "64M", "--hosts", "3"]).unwrap();
        let rows: Vec<_> = text.lines().take_while(|l| !l.contains(" is expected to take ")).collect();
        assert_eq!(rows.len(), 8, "{text}");
        assert_eq!(rows.iter().filter(|r| r.contains(" * ")).count(), 1, "{text}");
        assert!(
            rows.iter().all(|r| r.chars().count() == rows[0].chars().count() && r.len() <= 110),
            "{text}"
        );
        assert!(
            text.contains("hierarchy is expected to take ") && text.contains(" less than ring, most of "),
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
