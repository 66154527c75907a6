//! The example's training.

#[path = "../../examples/gpt/model.rs"]
mod model;
#[path = "../../examples/gpt/norm.rs"]
mod norm;
#[path = "../../examples/gpt/options.rs"]
#[allow(dead_code)]
mod options;
#[path = "../../examples/gpt/stages.rs"]
mod stages;
#[path = "../../examples/gpt/text.rs"]
mod text;
#[path = "../../examples/gpt/training.rs"]
#[allow(dead_code)]
mod training;

use candle_core::{DType, Device};
use comity::Group;
use comity_candle::Weights;
use options::Options;
use text::Text;
use training::{Mode, Settings, train};

#[test]
fn gpt_learns_the_same_as_one_rank() {
    let group = super::ranks();
    let text = Text::read(&Options::default().text).unwrap();
    let file = std::env::temp_dir().join(format!("comity-gpt-cuda-{}", std::os::unix::process::parent_id()));
    let mut settings = Settings { steps: 6, batch: 6, rate: 0.01, ..Settings::default() };
    settings.model = model::Shape { vocabulary: 0, context: 8, width: 32, layers: 2, heads: 4 };
    let want = train(&Group::single(), &text, &settings, |_| ()).unwrap().losses;
    assert!(want[5] < want[0], "{want:?}");
    for mode in [Mode::Tensor, Mode::Data, Mode::Both] {
        let save = (mode == Mode::Tensor).then(|| file.clone());
        let found = train(&group, &text, &Settings { mode, save, ..settings.clone() }, |_| ()).unwrap();
        for (a, b) in found.losses.iter().zip(&want) {
            assert!((a - b).abs() < 1e-3, "{mode:?}: {:?} {want:?}", found.losses);
        }
    }
    // The file that all ranks wrote from their GPUs.
    if group.rank() == 0 {
        let weights = Weights::open(&Group::single(), [&file], DType::F32, &Device::Cpu).unwrap();
        assert_eq!(weights.tensor("blocks.0.up.weight").unwrap().dims(), [64, 32]);
        std::fs::remove_file(&file).unwrap();
    }
    println!("rank {}: the losses of one rank, {want:?}", group.rank());
}
