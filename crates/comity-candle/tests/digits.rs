//! The example's training on ranks that are threads: the result must be that of one rank.

#[path = "../examples/digits/options.rs"]
#[allow(dead_code)]
mod options;
#[path = "../examples/digits/training/mod.rs"]
#[allow(dead_code)]
mod training;

use comity::Group;
use options::Options;
use std::{thread, time::Duration};
use training::{Digits, Settings, Trained, largest_difference, train};

fn on_ranks(n: usize, digits: &Digits, settings: &Settings) -> Vec<Trained> {
    let groups = Group::local(n).unwrap();
    thread::scope(|s| {
        let ranks: Vec<_> = groups
            .into_iter()
            .map(|g| {
                s.spawn(move || {
                    train(&g.with_timeout(Duration::from_secs(60)), digits, settings, |_| ()).unwrap()
                })
            })
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}

#[test]
fn any_number_of_ranks_learns_the_same() {
    // Unoptimised code trains slowly; this is enough.
    let settings = Settings { epochs: 15, ..Settings::default() };
    let digits = Digits::read(&Options::default().data).unwrap();
    let one = on_ranks(1, &digits, &settings).remove(0);
    assert!(one.accuracy >= 0.95, "accuracy {}", one.accuracy);
    for n in scope::Scope::from_env().share(vec![2, 3, 4], 3) {
        let ranks = on_ranks(n, &digits, &settings);
        let far = largest_difference(&one.network.named(), &ranks[0].network.named()).unwrap();
        assert!(far < 1e-5, "{n} ranks end {far:e} from one rank");
        for r in &ranks[1..] {
            assert_eq!(largest_difference(&ranks[0].network.named(), &r.network.named()).unwrap(), 0.0);
        }
    }
}

#[test]
fn every_sample_is_learned_from_or_held_out() {
    let digits = Digits::read(&Options::default().data).unwrap();
    let mut all = [digits.train.clone(), digits.held_out.clone()].concat();
    all.sort_unstable();
    assert_eq!(all, (0..1797).collect::<Vec<_>>());
}

#[test]
fn bad_options_are_named() {
    let parse = |args: &[&str]| Options::parse(args.iter().map(|a| (*a).into())).map(|o| o.is_some());
    assert!(parse(&["--epochs", "3"]).unwrap());
    assert!(!parse(&["--help"]).unwrap());
    for (args, says) in [
        (&["--epochs", "few"][..], "--epochs needs a number, got \"few\""),
        (&["--batch"], "--batch needs a value"),
        (&["--fast"], "no option --fast"),
    ] {
        assert!(parse(args).unwrap_err().to_string().contains(says), "{args:?}");
    }
    let digits = Digits::read(&Options::default().data).unwrap();
    let small = Settings { batch: 1, ..Settings::default() };
    let groups = Group::local(2).unwrap();
    let e = train(&groups[0], &digits, &small, |_| ()).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("--batch 1"), "{e}");
}
