//! Every operation by each algorithm that can carry it out, whichever is the cheapest here.

use super::{
    Check, Options,
    case::CheckRow,
    groups, moves, reduce,
    report::{Line, Report, merge},
};
use comity::{Algorithm, DType, Group, Result, tools};
use comity_plan::Kind;

/// Checks of an operation, with parts of one length.
const fn equal(kind: Kind) -> &'static [Check] {
    match kind {
        Kind::AllReduce => &[reduce::all_reduce, reduce::all_reduce_into],
        Kind::Reduce => &[reduce::reduce],
        Kind::Broadcast => &[moves::broadcast],
        Kind::AllGather => &[moves::all_gather, moves::all_gather_in_place],
        Kind::ReduceScatter => &[reduce::reduce_scatter, reduce::reduce_scatter_in_place],
        Kind::Gather => &[moves::gather],
        Kind::Scatter => &[moves::scatter],
        Kind::AllToAll => &[moves::all_to_all, moves::all_to_all_in_place],
        Kind::Barrier => &[groups::barrier],
    }
}

/// Checks of it with parts of other lengths.
const fn unequal(kind: Kind) -> &'static [Check] {
    match kind {
        Kind::AllGather => &[moves::all_gather_v],
        Kind::ReduceScatter => &[reduce::reduce_scatter_v],
        Kind::AllToAll => &[moves::all_to_all_v],
        _ => &[],
    }
}

/// A row for each of `algorithms` and each operation asked for. Types say little here: where bytes go is the plan's affair.
pub(super) fn run(
    group: &Group,
    options: &Options,
    algorithms: &[Algorithm],
    report: &mut Report,
    each: &mut dyn FnMut(&Line),
) -> Result<()> {
    let few = |d: &DType| options.algorithm.is_some() || matches!(d, DType::F32 | DType::U8);
    let mut dtypes: Vec<_> = options.dtypes.iter().copied().filter(few).collect();
    if dtypes.is_empty() {
        // A row without cases would say "ok" of nothing.
        dtypes.extend(options.dtypes.first());
    }
    let quick = options.quick || options.algorithm.is_none();
    let options = Options { quick, dtypes, ..options.clone() };
    for kind in Kind::ALL.into_iter().filter(|k| options.asks_for(k.name())) {
        for &algorithm in algorithms.iter().filter(|a| a.serves(kind)) {
            // Where somebody else chooses, there is nothing to check.
            if !tools::prefer_algorithm(group, Some(algorithm)) {
                return Ok(());
            }
            let mut row = CheckRow::new(group, &options, format!("{} by {}", kind.name(), algorithm.name()));
            // Those that it does not carry another one would.
            let unequal = if algorithm.carries_unequal_parts(kind) { unequal(kind) } else { &[] };
            equal(kind).iter().chain(unequal).try_for_each(|check| check(&mut row))?;
            let line = merge(row, report)?;
            each(&line);
            report.lines.push(line);
        }
    }
    tools::prefer_algorithm(group, None);
    Ok(())
}
