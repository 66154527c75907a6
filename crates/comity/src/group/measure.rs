//! Cost of messages on each pair's link: measured, agreed on, and written down.

use super::Group;
use crate::{ConfigError, Error, LinkCosts, Result, settings::Costs, status::World};
use comity_plan::Cost;
use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Up to so many ranks one pair at a time is measured; above, a rank is in one pair at a time.
const ONE_BY_ONE: usize = 16;
/// Approximate bounds of the time for a direction of a pair: the least and the most.
const SLOT: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(150));
const MOST_ECHOES: u32 = 200;
const PUSHES: (usize, usize) = (4 << 10, 16 << 20);
/// A file of costs is no longer than this.
const MOST_TEXT: usize = 64 << 20;
/// Names the group that ranks measure in before there is any other.
const GROUP_ID: u64 = u64::MAX - 0x636f;

/// Requests of the measuring rank to the other.
const ECHO: u64 = 0;
const TAKE: u64 = 1;
const DONE: u64 = 2;

/// Measurement of a group's links by its ranks, which all call it.
pub(super) struct LinkMeasurement<'a>(pub(super) &'a Group);

impl LinkMeasurement<'_> {
    /// Measure every link in both directions, in about `budget`.
    pub(super) fn run(&self, budget: Duration) -> Result<LinkCosts> {
        let group = self.0;
        let me = group.rank();
        let n = group.size();
        let turns = turns(n);
        let slot = (budget / (2 * turns.len().max(1)) as u32).clamp(SLOT.0, SLOT.1);
        let mut own = vec![0.0; 2 * n];
        for turn in &turns {
            let pair = turn.iter().find(|p| p.0 == me || p.1 == me);
            for (from, to) in pair.into_iter().flat_map(|&(a, b)| [(a, b), (b, a)]) {
                if me == from {
                    let cost = self.ask(to, slot)?;
                    own[2 * to] = cost.alpha;
                    own[2 * to + 1] = cost.beta;
                } else {
                    self.answer(from)?;
                }
            }
            group.barrier()?;
        }
        let mut all = vec![0.0; 2 * n * n];
        group.all_gather(&own, &mut all)?;
        let pairs = all.chunks_exact(2).map(|c| Cost { alpha: c[0], beta: c[1] }).collect();
        LinkCosts::new(n, pairs).ok_or_else(|| {
            let why = io::Error::other("a rank measured a time that is no number");
            Error::os("measuring links", why)
        })
    }

    /// This rank's side of one direction.
    fn ask(&self, to: usize, slot: Duration) -> Result<Cost> {
        let echo = || -> Result<f64> {
            let start = Instant::now();
            let mut back = [0u64; 2];
            self.0.send(&[ECHO, 0], to, 0)?;
            self.0.recv(&mut back, to, 0)?;
            Ok(start.elapsed().as_secs_f64())
        };
        // The first ones make things warm, and the third says how many there is time for.
        echo()?;
        echo()?;
        let mut times = vec![echo()?];
        let rounds = (slot.as_secs_f64() / 2.0 / times[0].max(1e-9)).min(f64::from(MOST_ECHOES)) as u32;
        for _ in 0..rounds {
            times.push(echo()?);
        }
        times.sort_by(f64::total_cmp);
        let alpha = times[times.len() / 2] / 2.0;
        let push = |bytes: &[u8]| -> Result<f64> {
            let start = Instant::now();
            let mut back = [0u64; 2];
            self.0.send(&[TAKE, bytes.len() as u64], to, 0)?;
            self.0.send(bytes, to, 0)?;
            self.0.recv(&mut back, to, 0)?;
            Ok(start.elapsed().as_secs_f64())
        };
        let mut len = PUSHES.0;
        let mut bytes = Vec::new();
        let beta = loop {
            bytes.resize(len, 0u8);
            let took = push(&bytes)?;
            if took >= slot.as_secs_f64() / 6.0 || len >= PUSHES.1 {
                // The first of a size also pays for the memory, and any may have met something else.
                let mut took = took;
                let until = Instant::now() + slot / 2;
                while Instant::now() < until {
                    took = took.min(push(&bytes)?);
                }
                // Without the command's way there, and the answer's back.
                break (took - 2.0 * alpha).max(took / 10.0) / len as f64;
            }
            len *= 4;
        };
        self.0.send(&[DONE, 0], to, 0)?;
        Ok(Cost { alpha, beta })
    }

    /// The other rank's side.
    fn answer(&self, from: usize) -> Result<()> {
        let mut bytes = Vec::new();
        loop {
            let mut word = [0u64; 2];
            self.0.recv(&mut word, from, 0)?;
            match word {
                [ECHO, _] => {}
                [TAKE, len] => {
                    bytes.resize((len as usize).min(PUSHES.1), 0u8);
                    self.0.recv(&mut bytes, from, 0)?;
                }
                _ => return Ok(()),
            }
            self.0.send(&word, from, 0)?;
        }
    }
}

/// Pairs that are measured at the same time, turn by turn; every pair once.
fn turns(n: usize) -> Vec<Vec<(usize, usize)>> {
    // A round-robin tournament: one stands still, the others go round. The last is nobody where their number is odd.
    let even = n.next_multiple_of(2);
    let mut rounds = Vec::new();
    for round in 0..even.saturating_sub(1) {
        let seat = |i: usize| if i == 0 { 0 } else { 1 + (i - 1 + round) % (even - 1) };
        let pairs = (0..even / 2).map(|i| (seat(i), seat(even - 1 - i))).map(|(a, b)| (a.min(b), a.max(b)));
        rounds.push(pairs.filter(|p| p.1 < n).collect::<Vec<_>>());
    }
    if n <= ONE_BY_ONE { rounds.into_iter().flatten().map(|p| vec![p]).collect() } else { rounds }
}

/// Agree on the costs of a world before its first group is made; every rank calls this, or none. Rank 0's choice holds.
pub(super) fn learn(world: &Arc<dyn World>, costs: &Costs, limit: Duration) -> Result<()> {
    let group = Group::open(GROUP_ID, Arc::clone(world), Arc::default(), limit, limit)?;
    let mut own = match costs {
        Costs::File(path) if group.rank() == 0 => read(path),
        _ => Ok(String::new()),
    };
    let mut len = [own.as_ref().map_or(u64::MAX, |text| text.len() as u64)];
    group.broadcast(&mut len, 0)?;
    let known = match len[0] {
        u64::MAX => {
            own?;
            return Err(Error::config("rank 0 could not use its COMITY_COSTS; its own error says why"));
        }
        0 => group.measure_links(BUDGET)?,
        len => {
            let mut text = own.as_mut().map(std::mem::take).unwrap_or_default().into_bytes();
            text.resize((len as usize).min(MOST_TEXT), 0);
            group.broadcast(&mut text, 0)?;
            LinkCosts::from_json(&String::from_utf8_lossy(&text))
                .ok()
                .filter(|c| c.size() == group.size())
                .ok_or_else(|| {
                    let n = group.size();
                    let text = "COMITY_COSTS on rank 0 are of another job: not of";
                    Error::config(format!("{text} {n} ranks"))
                })?
        }
    };
    // Nobody closes this group before all have opened it.
    group.barrier()?;
    world.learn(known);
    Ok(())
}

/// Time limit of the measurements before the first group is there.
const BUDGET: Duration = Duration::from_secs(2);

/// A file of costs that is sound.
fn read(path: &Path) -> Result<String> {
    let bad = |why: String| {
        let words = format!("COMITY_COSTS={} {why}", path.display());
        let value = path.display().to_string();
        Error::from(ConfigError::new(words).with_file(path).with_key("COMITY_COSTS").with_value(value))
    };
    let text = std::fs::read_to_string(path).map_err(|e| bad(format!("cannot be read: {e}")))?;
    if text.len() > MOST_TEXT {
        return Err(bad(format!("is longer than {MOST_TEXT} bytes")));
    }
    match LinkCosts::from_json(&text) {
        Ok(_) => Ok(text),
        Err(why) => {
            let e = bad(why.to_string());
            Err(why.place(e))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::each;
    use std::collections::BTreeSet;

    #[test]
    fn every_pair_has_one_turn_and_no_rank_two_in_one() {
        for n in [1, 2, 3, 4, 7, 16, 17, 32, 33] {
            let turns = turns(n);
            let all: Vec<_> = turns.iter().flatten().copied().collect();
            assert_eq!(all.len(), n * (n - 1) / 2, "{n}");
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{n}");
            for turn in turns {
                let ranks: BTreeSet<_> = turn.iter().flat_map(|p| [p.0, p.1]).collect();
                assert_eq!(ranks.len(), 2 * turn.len(), "{n}");
            }
        }
    }

    #[test]
    fn all_ranks_measure_the_same() {
        let all = each(Group::local(3).unwrap(), |g| g.measure_links(Duration::from_millis(60)).unwrap());
        assert!(all.iter().all(|c| *c == all[0]));
        for (a, b) in [(0, 1), (1, 0), (1, 2), (2, 0)] {
            let latency = all[0].latency(a, b);
            let bandwidth = all[0].bandwidth(a, b);
            assert!(latency > 0.0 && latency < 10.0, "{latency}");
            assert!(bandwidth > 1.0 && bandwidth.is_finite(), "{bandwidth}");
        }
        let again = LinkCosts::from_json(&all[0].to_json()).unwrap();
        let close = |x: f64, y: f64| (x / y - 1.0).abs() < 1e-9;
        assert!(close(again.latency(2, 1), all[0].latency(2, 1)));
        assert!(close(again.bandwidth(2, 1), all[0].bandwidth(2, 1)));
    }

    #[test]
    fn texts_without_all_numbers_are_refused() {
        for (text, why) in [
            ("[", "JSON"),
            ("{}", "ranks"),
            (r#"{"ranks": 2, "latency_s": [[null, 1], [0, null]]}"#, "bytes_per_s[0][1]"),
            (
                r#"{"ranks": 2, "latency_s": [[null, 1], [0, null]], "bytes_per_s": [[0, 1], [1, 0]]}"#,
                "latency_s[1][0]",
            ),
            (r#"{"ranks": 1000000000000}"#, "ranks"),
        ] {
            let e = LinkCosts::from_json(text).unwrap_err();
            assert!(e.to_string().contains(why), "{text}: {e}");
        }
        let path = std::env::temp_dir().join(format!("comity-costs-{}.json", std::process::id()));
        std::fs::write(&path, "{\n\"ranks\" 2}").unwrap();
        let e = read(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        let crate::ErrorKind::Config(why) = e.kind() else { panic!("{e}") };
        assert_eq!((why.file.as_ref(), why.line, why.column), (Some(&path), Some(2), Some(9)), "{why}");
    }
}
