//! The example's training in each of its ways, on ranks that are threads: the losses must be those of one rank.

#[path = "../examples/gpt/model.rs"]
mod model;
#[path = "../examples/gpt/norm.rs"]
mod norm;
#[path = "../examples/gpt/options.rs"]
#[allow(dead_code)]
mod options;
#[path = "../examples/gpt/stages.rs"]
mod stages;
#[path = "../examples/gpt/text.rs"]
mod text;
#[path = "../examples/gpt/training.rs"]
#[allow(dead_code)]
mod training;

use candle_core::{D, DType, Device, Tensor, Var};
use comity::Group;
use comity_candle::Weights;
use options::Options;
use std::time::Duration;
use text::Text;
use training::{Mode, Outcome, Settings, train};

fn on_ranks(n: usize, text: &Text, settings: &Settings) -> Vec<Outcome> {
    scope::each(Group::local(n).unwrap(), |g| {
        train(&g.with_timeout(Duration::from_secs(60)), text, settings, |_| ()).unwrap()
    })
}

fn small(mode: Mode) -> Settings {
    let mut settings = Settings { mode, steps: 4, batch: 6, rate: 0.01, ..Settings::default() };
    settings.model = model::Shape { vocabulary: 0, context: 8, width: 12, layers: 2, heads: 4 };
    settings
}

#[test]
fn every_way_of_sharing_the_work_learns_the_same() {
    let text = Text::read(&Options::default().text).unwrap();
    let one = on_ranks(1, &text, &small(Mode::Data)).remove(0);
    assert!(one.losses[3] < one.losses[0], "{:?}", one.losses);
    let ways = vec![
        (Mode::Data, 3),
        (Mode::Tensor, 2),
        (Mode::Tensor, 3),
        (Mode::Tensor, 4),
        (Mode::FullySharded, 1),
        (Mode::FullySharded, 3),
        (Mode::Pipeline, 2),
        (Mode::Pipeline, 4),
        (Mode::Both, 4),
    ];
    for (mode, n) in scope::Scope::from_env().share(ways, 2) {
        let ranks = on_ranks(n, &text, &small(mode));
        for (a, b) in ranks.iter().flat_map(|r| r.losses.iter().zip(&one.losses)) {
            assert!((a - b).abs() < 2e-4, "{mode:?} on {n} ranks: {:?} {:?}", ranks[0].losses, one.losses);
        }
        let held: Vec<usize> = ranks.iter().map(|r| r.weight_bytes).collect();
        match mode {
            Mode::Data => assert!(held.iter().all(|h| *h == one.weight_bytes)),
            // The whole, and what each rank has whole: norms, places, biases.
            _ => assert!(held.iter().sum::<usize>() < one.weight_bytes * 3 / 2 * n.min(2), "{held:?}"),
        }
    }
}

#[test]
fn files_of_stages_are_one_checkpoint() {
    let text = Text::read(&Options::default().text).unwrap();
    let folder = std::env::temp_dir().join(format!("comity-gpt-stages-{}", std::process::id()));
    let saved = |mode: Mode, n: usize, name: &str| {
        let save = Some(folder.join(name));
        on_ranks(n, &text, &Settings { save: save.clone(), ..small(mode) });
        Weights::open(&Group::single(), save, DType::F32, &Device::Cpu).unwrap()
    };
    std::fs::create_dir_all(&folder).unwrap();
    let whole = saved(Mode::Data, 1, "whole.safetensors");
    let stages = saved(Mode::Pipeline, 3, "stages");
    let mut names: Vec<&str> = stages.names().collect();
    names.sort_unstable();
    let mut wanted: Vec<&str> = whole.names().collect();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    for name in names {
        let far = far(&whole.tensor(name).unwrap(), &stages.tensor(name).unwrap());
        assert!(far < 1e-3, "{name}: {far}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

fn far(a: &Tensor, b: &Tensor) -> f32 {
    (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
}

#[test]
fn bad_options_are_named() {
    let parse = |args: &[&str]| Options::parse(args.iter().map(|a| (*a).into())).map(|o| o.is_some());
    assert!(parse(&["--mode", "tp", "--steps", "3"]).unwrap());
    assert!(!parse(&["--help"]).unwrap());
    for (args, says) in [
        (&["--mode", "both"][..], "there are dp, tp, fsdp, pp and 2d"),
        (&["--steps", "few"], "--steps needs a number, got \"few\""),
        (&["--plot"], "--plot needs a value"),
        (&["--fast"], "no option --fast"),
    ] {
        assert!(parse(args).unwrap_err().to_string().contains(says), "{args:?}");
    }
    let text = Text::read(&Options::default().text).unwrap();
    let settings = Settings { batch: 0, ..small(Mode::Data) };
    let e = train(&Group::single(), &text, &settings, |_| ()).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("--batch 0"), "{e}");
}

#[test]
fn the_norm_has_the_gradients_of_single_operations() {
    let variable = |shape: &[usize]| Var::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
    let x = variable(&[2, 3, 5]);
    let weight = variable(&[5]);
    let onward = variable(&[2, 3, 5]);
    let size = (x.sqr().unwrap().mean_keepdim(D::Minus1).unwrap() + 1e-5).unwrap().sqrt().unwrap();
    let want = x.broadcast_div(&size).unwrap().broadcast_mul(&weight).unwrap();
    let found = norm::normal(&x, &weight).unwrap();
    let gradients = |y: &Tensor| (y * onward.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
    assert!(far(&want, &found) < 1e-5);
    let want = gradients(&want);
    let found = gradients(&found);
    for v in [&x, &weight] {
        assert!(far(want.get(v).unwrap(), found.get(v).unwrap()) < 1e-5);
    }
}
