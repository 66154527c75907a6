//! A run: launch after launch, then what is written of it.

use super::{
    BenchChoice,
    contender::Contender,
    launch::carry_out,
    machine,
    plan::{self, Launch, Part},
    record::{self, Line, Record},
    report,
    setup::{self, Ready, short},
    summary::Summary,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tasks::{
    child::is_interrupted,
    place::{make, root},
};

/// Further rounds for contenders that have cells without an undisturbed launch.
const MORE: u32 = 2;

/// Measure and write, or draw what was measured.
///
/// # Errors
/// Comity cannot be built, failed or was wrong, somebody interrupted it, or files cannot be written. A peer that fails is a remark.
pub fn run(choice: &BenchChoice) -> Result<(), String> {
    if let Some(file) = &choice.draw {
        return write(&Record::read(file)?, choice.record);
    }
    let parts = parts(choice)?;
    let cores = machine::cores().len();
    if choice.plan {
        print!("{}", plan::words(&plan::launches(&parts, &choice.against), cores));
        return Ok(());
    }
    let ready = match &choice.built {
        Some(folder) => setup::built_before(folder, &choice.against)?,
        None => setup::prepare(&choice.against)?,
    };
    let mut work = Work::new(choice, &ready)?;
    let mut launches = plan::launches(&parts, &choice.against);
    launches.retain(|l| ready.has(l.who));
    println!("{}", plan::words(&launches, cores));
    work.all(&launches)?;
    for more in 0..MORE {
        let again = work.disturbed(&launches, more);
        work.all(&again)?;
    }
    let broken = work.broken();
    let set = if choice.full { " --full" } else { "" };
    let set = if choice.many { " --many" } else { set };
    let command = format!("cargo xtask bench{set}{}", if choice.built.is_some() { " --built" } else { "" });
    let record = Record {
        date: record::today()?,
        command,
        machine: machine::describe(),
        versions: setup::versions(&ready, &choice.against),
        remarks: work.remarks,
        lines: work.lines,
    };
    write(&record, choice.record)?;
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
}

fn parts(choice: &BenchChoice) -> Result<Vec<Part>, String> {
    let mut parts = match (choice.many, choice.full) {
        (true, _) => plan::many(machine::cores().len()),
        (_, true) => plan::full(),
        _ => plan::sample(),
    };
    if let Some(name) = choice.only.iter().find(|name| !parts.iter().any(|p| p.name == **name)) {
        let names: Vec<_> = parts.iter().map(|p| p.name.as_str()).collect();
        return Err(format!("there is no part {name:?}; there are {}", names.join(", ")));
    }
    parts.retain(|p| choice.only.is_empty() || choice.only.contains(&p.name));
    if let Some(rounds) = choice.rounds {
        parts.iter_mut().for_each(|p| p.rounds = rounds);
    }
    Ok(parts)
}

/// State of a run so far.
struct Work<'a> {
    ready: &'a Ready,
    /// Folder of the files, one for each launch.
    folder: PathBuf,
    /// Nothing is started after that.
    until: Option<Instant>,
    lines: Vec<Line>,
    remarks: Vec<String>,
    /// Launches of Comity that failed.
    failed: Vec<String>,
    count: usize,
}

impl<'a> Work<'a> {
    fn new(choice: &BenchChoice, ready: &'a Ready) -> Result<Self, String> {
        let folder = if choice.full {
            setup::folder().join(format!("full-{}", setup::fingerprint(ready)?))
        } else {
            let folder = setup::folder().join("sample");
            if folder.is_dir() {
                fs::remove_dir_all(&folder).map_err(|e| format!("cannot clear {}: {e}", folder.display()))?;
            }
            folder
        };
        make(&folder)?;
        Ok(Self {
            ready,
            folder,
            until: (!choice.full).then(|| Instant::now() + plan::LIMIT),
            lines: Vec::new(),
            remarks: ready.remarks(),
            failed: Vec::new(),
            count: 0,
        })
    }

    /// Carry these out, up to the end of the time.
    fn all(&mut self, launches: &[Launch<'_>]) -> Result<(), String> {
        let cores = machine::cores().len();
        for (i, launch) in launches.iter().enumerate() {
            if is_interrupted() {
                return Err("interrupted; with --full it goes on from here when started again".into());
            }
            let expected = Duration::from_secs_f64(launch.seconds(cores));
            if self.until.is_some_and(|until| Instant::now() + expected > until) {
                let left = launches.len() - i;
                self.remark(format!("{left} launches were left out when the time was over"));
                return Ok(());
            }
            self.one(launch)?;
        }
        Ok(())
    }

    fn one(&mut self, launch: &Launch<'_>) -> Result<(), String> {
        self.count += 1;
        let file = self.folder.join(format!("{}.jsonl", launch.key()));
        if let Ok(text) = fs::read_to_string(&file) {
            let lines = kept(&text).map_err(|e| format!("{}: {e}; remove it", file.display()))?;
            self.lines.extend(lines);
            return Ok(());
        }
        let begun = Instant::now();
        match carry_out(launch, self.ready) {
            Ok(lines) => {
                println!("{}", progress(self.count, launch, &lines, begun.elapsed()));
                let text: String = lines.iter().map(|l| format!("{}\n", l.to_json())).collect();
                put(&file, &text)?;
                self.lines.extend(lines);
            }
            Err(e) if is_interrupted() => return Err(e),
            Err(e) => {
                let words = format!("{} failed: {}", launch.key(), first_lines(&e));
                if launch.who.is_ours() {
                    self.failed.push(words.clone());
                }
                self.remark(words);
            }
        }
        Ok(())
    }

    fn remark(&mut self, what: String) {
        println!("!!! {what}");
        self.remarks.push(what);
    }

    /// Failures and wrong results of Comity: those of a peer are remarks.
    fn broken(&self) -> Vec<String> {
        let wrong = self.lines.iter().filter(|l| l.who.is_ours() && !l.ok);
        let words = |l: &Line| format!("{}: the result of {} bytes is wrong", l.who.name, l.cell.bytes);
        self.failed.iter().cloned().chain(wrong.map(words)).collect()
    }

    /// A further round for those with a cell that no undisturbed launch has.
    fn disturbed<'l>(&self, launches: &[Launch<'l>], more: u32) -> Vec<Launch<'l>> {
        let all = Summary::new(&self.lines);
        let rough = |part: &Part, who: &Contender| {
            self.lines.iter().any(|l| {
                let here = l.who == who && l.cell.ranks == part.ranks && l.cell.element == part.element;
                here && part.ops.contains(&l.cell.op) && all.get(l.cell, who).is_some_and(|f| f.rough)
            })
        };
        let first = launches.iter().filter(|l| l.round == 0 && rough(l.part, l.who));
        first.map(|l| Launch { round: l.part.rounds + more, ..*l }).collect()
    }
}

fn kept(text: &str) -> Result<Vec<Line>, String> {
    let line = |l: &str| serde_json::from_str(l).map_err(|e| e.to_string()).and_then(|v| Line::from_json(&v));
    text.lines().map(line).collect()
}

/// Whole or not at all, also when this program is ended meanwhile.
fn put(file: &Path, text: &str) -> Result<(), String> {
    let new = file.with_extension("new");
    let fail = |e| format!("cannot write {}: {e}", file.display());
    fs::write(&new, text).and_then(|()| fs::rename(&new, file)).map_err(fail)
}

fn progress(count: usize, launch: &Launch<'_>, lines: &[Line], took: Duration) -> String {
    let disturbed = lines.iter().filter(|l| l.disturbed).count();
    let wrong = lines.iter().filter(|l| !l.ok).count();
    let far = lines.first().map_or("", |l| l.distance.name());
    let mut text = format!(
        "{count:4}  {:32} {:5.1} s  {} cells, {disturbed} disturbed, cores {far}",
        launch.key(),
        took.as_secs_f64(),
        lines.len()
    );
    if wrong > 0 {
        text += &format!(", {wrong} WRONG");
    }
    text
}

/// Enough to see why.
fn first_lines(text: &str) -> String {
    text.lines().take(6).collect::<Vec<_>>().join(" / ")
}

/// The report, beside what was measured, and where the documents have it if that was asked for.
fn write(record: &Record, documents: bool) -> Result<(), String> {
    let figure = report::figure(record);
    let mut texts = vec![
        ("peers.json", record.to_json()),
        ("peers.md", report::markdown(record)),
        ("peers.html", report::page(record)),
    ];
    match &figure {
        Some(svg) => texts.push(("speed.svg", svg.clone())),
        None => println!("no speed.svg: that needs all_reduce of f32 on 2 ranks over both links"),
    }
    let folder = setup::folder().join("report");
    make(&folder)?;
    for (name, text) in &texts {
        put(&folder.join(name), text)?;
        println!("wrote {}", short(&folder.join(name)));
    }
    if documents {
        if figure.is_none() {
            return Err("a run without the README's figure is not recorded".into());
        }
        for (name, text) in &texts {
            let place = if *name == "speed.svg" { "docs/pictures" } else { "bench/record" };
            let file = root().join(place).join(name);
            put(&file, text)?;
            println!("wrote {}", short(&file));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::line;

    #[test]
    fn parts_are_chosen_by_name() {
        let of = |words: &[&str]| parts(&BenchChoice::parse(words).unwrap());
        assert_eq!(of(&[]).unwrap().len(), plan::sample().len());
        let one = of(&["--only", "bf16-2", "--rounds", "7"]).unwrap();
        assert_eq!((one.len(), one[0].rounds), (1, 7));
        assert!(of(&["--only", "all"]).unwrap_err().contains("all_reduce-2"));
    }

    #[test]
    fn what_was_disturbed_gets_further_rounds_and_what_is_there_is_kept() {
        let ready = Ready::default();
        let scratch = tasks::place::Scratch::new("bench-run").unwrap();
        let mut bad = line("gloo", 8, 1.0);
        bad.disturbed = true;
        let mut work = Work {
            ready: &ready,
            folder: scratch.join(""),
            until: None,
            lines: vec![bad, line("comity", 8, 1.0)],
            remarks: vec![],
            failed: vec![],
            count: 0,
        };
        let parts = plan::sample();
        let launches = plan::launches(&parts, &[crate::contender::Peer::Gloo]);
        let again = work.disturbed(&launches, 1);
        assert_eq!((again.len(), again[0].who.name, again[0].round), (1, "gloo", parts[0].rounds + 1));
        // A launch whose file is there starts nothing: there is nothing to start here.
        put(
            &scratch.join(&format!("{}.jsonl", again[0].key())),
            &format!("{}\n", line("gloo", 8, 2.0).to_json()),
        )
        .unwrap();
        work.all(&again).unwrap();
        assert!(work.disturbed(&launches, 1).is_empty() && work.lines.len() == 3);
    }

    #[test]
    fn a_wrong_result_of_comity_alone_fails_the_run() {
        let ready = Ready::default();
        let wrong = |who| Line { ok: false, ..line(who, 8, 1.0) };
        let broken = |line| {
            let until = None;
            let folder = PathBuf::new();
            let remarks = vec![];
            let failed = vec![];
            Work { ready: &ready, folder, until, lines: vec![line], remarks, failed, count: 0 }.broken()
        };
        assert_eq!(broken(wrong("comity")), ["comity: the result of 8 bytes is wrong"]);
        assert!(broken(wrong("gloo")).is_empty() && broken(line("comity", 8, 1.0)).is_empty());
    }
}
