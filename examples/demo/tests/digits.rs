//! The training on ranks that are threads: the result must be that of one rank.

use comity::Group;
use demo::{Digits, Layers, Network, Options, Settings, largest_difference, train, train_on_threads};

#[test]
fn any_number_of_ranks_learns_the_same() {
    let settings = Settings { epochs: 15, ..Settings::default() };
    let digits = Digits::read(&Options::default().data).unwrap();
    let on = |ranks| train_on_threads(ranks, &digits, &settings, Layers::new).unwrap();
    let one = on(1).remove(0);
    assert!(one.accuracy >= 0.95, "accuracy {}", one.accuracy);
    assert_eq!(one.losses.len(), settings.epochs);
    assert!(one.losses[14] < one.losses[0] / 2.0, "{:?}", one.losses);
    for n in [2, 3, 4] {
        let trained = on(n);
        for rank in &trained {
            assert!(rank.share_in_calls > 0.0 && rank.share_in_calls < 1.0, "{}", rank.share_in_calls);
            assert!(rank.losses.iter().zip(&one.losses).all(|(a, b)| (a - b).abs() < 1e-4));
        }
        let ranks: Vec<_> = trained.iter().map(|r| r.network.weights().unwrap()).collect();
        let far = largest_difference(&one.network.weights().unwrap(), &ranks[0]);
        assert!(far < 1e-5, "{n} ranks end {far:e} from one rank");
        assert!(ranks[1..].iter().all(|r| r == &ranks[0]), "{n} ranks");
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
    let e = train(&groups[0], &digits, &small, Layers::new, |_| ()).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("--batch 1"), "{e}");
}

#[test]
fn weights_that_differ_are_far_apart() {
    assert_eq!(largest_difference(&[1.0, 2.0], &[1.5, 2.0]), 0.5);
    assert_eq!(largest_difference(&[1.0], &[f32::NAN]), f32::INFINITY);
    assert_eq!(largest_difference(&[1.0], &[1.0, 2.0]), f32::INFINITY);
}
