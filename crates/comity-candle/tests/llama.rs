//! The example's Llama on ranks that are threads: small random checkpoints, the same tokens on every number of ranks.

#[path = "checkpoints/llama.rs"]
mod checkpoint;
#[path = "../examples/llama/config.rs"]
mod config;
#[path = "../examples/llama/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "../examples/llama/model.rs"]
mod model;

use candle_core::{DType, Device};
use checkpoint::{folder, gguf, safetensors};
use comity::Group;
use comity_candle::Weights;
use generate::{Outcome, Settings, generate};
use std::{fs, path::Path, time::Duration};

pub(crate) type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn on_ranks(n: usize, model: &Path, prompts: &[Vec<u32>], settings: &Settings) -> Vec<Result<Outcome>> {
    scope::each(Group::local(n).unwrap(), |g| {
        let g = g.with_timeout(Duration::from_secs(30));
        generate(&g, &Device::Cpu, model, prompts, settings, |_, _| ())
    })
}

fn tokens(n: usize, model: &Path, prompts: &[Vec<u32>], settings: &Settings) -> Vec<Vec<u32>> {
    let mut all: Vec<_> =
        on_ranks(n, model, prompts, settings).into_iter().map(|r| r.unwrap().tokens).collect();
    let first = all.remove(0);
    assert!(all.iter().all(|a| *a == first), "ranks differ");
    first
}

fn prompts() -> Vec<Vec<u32>> {
    vec![vec![1, 17, 3, 42, 8], vec![30, 2]]
}

#[test]
fn any_number_of_ranks_says_the_same() {
    let settings = Settings { tokens: 5, temperature: 1.0, ..Settings::default() };
    for (keys, tied) in [(2, true), (3, false)] {
        let folder = folder(&format!("tokens-{keys}"));
        safetensors(&folder.0, keys, tied);
        let want = tokens(1, &folder.0, &prompts(), &settings);
        assert!(want[0].len() == 5 && want[0].iter().any(|t| *t != want[0][0]), "{want:?}");
        let cases = vec![(2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2)];
        for (n, pipeline) in scope::Scope::from_env().share(cases, 2) {
            let settings = Settings { pipeline, ..settings.clone() };
            assert_eq!(tokens(n, &folder.0, &prompts(), &settings), want, "{n} ranks, {pipeline} stages");
        }
    }
}

/// Nothing as large as a tensor may stand beside it while it is read: what is freed again stays with the process.
#[cfg(target_os = "linux")]
#[test]
fn weights_are_read_without_a_copy_beside_them() {
    const SIZE: u64 = 64 << 20;
    let folder = folder("memory");
    let file = folder.0.join("model.safetensors");
    let header =
        format!(r#"{{"x":{{"dtype":"F32","shape":[{}, 1024],"data_offsets":[0,{SIZE}]}}}}"#, SIZE >> 12);
    let start = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    fs::write(&file, &start).unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_len(start.len() as u64 + SIZE).unwrap();
    let weights = Weights::open(&Group::single(), [&file], DType::F32, &Device::Cpu).unwrap();
    let before = demo::memory().0;
    let x = weights.tensor("x").unwrap();
    let more = demo::memory().1.saturating_sub(before);
    assert_eq!(x.elem_count() as u64 * 4, SIZE);
    assert!(before > 0 && more < SIZE + SIZE / 8, "{more} bytes for a tensor of {SIZE}");
}

#[test]
fn positions_turn_as_the_file_says() {
    let folder = folder("rope");
    safetensors(&folder.0, 2, false);
    let file = folder.0.join("config.json");
    let text = fs::read_to_string(&file).unwrap();
    let read = |more: &str| {
        fs::write(&file, text.replacen('{', &format!("{{{more}, "), 1)).unwrap();
        let weights = Weights::open(&Group::single(), [&folder.0], DType::F32, &Device::Cpu).unwrap();
        config::Config::read(&folder.0, &weights)
    };
    assert_eq!(read(r#""rope_theta": 500000.0"#).unwrap().rope_base, 500_000.0);
    let new = r#""rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}"#;
    assert_eq!(read(new).unwrap().rope_base, 20_000.0);
    let e = read(r#""rope_scaling": {"rope_type": "llama3", "factor": 8.0}"#).unwrap_err().to_string();
    assert!(e.contains("config.json: positions of the type \"llama3\" are not supported"), "{e}");
}

#[test]
fn a_cache_says_what_reading_all_again_says() {
    let folder = folder("cache");
    safetensors(&folder.0, 2, false);
    let settings = Settings { tokens: 4, ..Settings::default() };
    let want = tokens(2, &folder.0, &prompts(), &settings);
    for (prompt, want) in prompts().into_iter().zip(want) {
        let mut all = prompt;
        for token in want {
            let one = Settings { tokens: 1, ..settings.clone() };
            assert_eq!(tokens(1, &folder.0, &[all.clone()], &one), [[token]]);
            all.push(token);
        }
    }
}

#[test]
fn quantized_blocks_are_shared_whole() {
    let folder = folder("gguf");
    let file = folder.0.join("model.gguf");
    gguf(&file, 1);
    let settings = Settings { tokens: 4, ..Settings::default() };
    let want = tokens(1, &file, &prompts(), &settings);
    // Two heads of 16 fill a block of 32: three ranks at most.
    for (n, pipeline) in scope::Scope::from_env().share(vec![(2, 1), (3, 1), (4, 2)], 2) {
        let settings = Settings { pipeline, ..settings.clone() };
        assert_eq!(tokens(n, &file, &prompts(), &settings), want, "{n} ranks, {pipeline} stages");
    }
    let e = on_ranks(4, &file, &prompts(), &settings).remove(0).err().unwrap().to_string();
    assert!(e.contains("the heads of 6 cannot be shared by 4 ranks") && e.contains("up to 3 ranks"), "{e}");
    let e = on_ranks(3, &file, &prompts(), &Settings { pipeline: 2, ..settings }).remove(0).err().unwrap();
    assert_eq!(e.to_string(), "--pipeline 2 does not divide 3 ranks");
}
