//! Files of which each rank reads its part, and checkpoints that all ranks write.

use super::{near, noise, on_ranks, try_on_ranks, variable};
use candle_core::{
    DType, Device, Module, Tensor,
    quantized::{GgmlDType, QTensor, gguf_file},
};
use candle_nn::Linear;
use comity_candle::{
    Error, Heads, Parameter, Segments, Sharding, ShardingCause, ShardingType, Weights, load_checkpoint,
    save_checkpoint, shard_linear,
};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("comity-candle-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn model() -> HashMap<String, Tensor> {
    [
        ("a.up.weight".to_string(), noise((10, 4), 1)),
        ("a.up.bias".to_string(), noise(10, 2)),
        ("a.down.weight".to_string(), noise((3, 10), 3)),
        ("a.down.bias".to_string(), noise(3, 4)),
        ("tokens.weight".to_string(), noise((7, 4), 5).to_dtype(DType::BF16).unwrap()),
    ]
    .into()
}

fn open(g: &comity::Group, file: &Path) -> comity_candle::Result<Weights> {
    Weights::open(g, [file], DType::F32, &Device::Cpu)
}

#[test]
fn each_rank_reads_its_bytes_of_safetensors() {
    let folder = Folder::new("safetensors");
    let file = folder.0.join("model.safetensors");
    let all = model();
    candle_core::safetensors::save(&all, &file).unwrap();
    let all = &all;
    let x = noise((2, 4), 9);
    for n in 1..=4 {
        on_ranks(n, |g| {
            let weights = Weights::open(g, [&folder.0], DType::F32, &Device::Cpu)?;
            let rule = Sharding::weighted((1..=n).map(|w| w as f64).collect::<Vec<_>>());
            for (name, axis) in
                [("a.up.weight", 0), ("a.up.weight", 1), ("a.down.weight", 1), ("a.up.bias", 0)]
            {
                let (part, partition) = weights.part(name, axis, &rule)?;
                near(&part, &partition.take(&all[name], axis, g.rank())?, 0.0);
            }
            let fused = Sharding::balanced().segments(Segments::Indices(vec![4]));
            let (part, partition) = weights.part("a.down.weight", 1, &fused)?;
            near(&part, &partition.take(&all["a.down.weight"], 1, g.rank())?, 0.0);

            let before = weights.bytes_read();
            let a = weights.pp("a");
            let up = a.linear("up", ShardingType::AllToSharded, &rule)?;
            let down = a.linear("down", ShardingType::ShardedToAll, &rule)?;
            let mine = rule.partition(10, n)?.sizes()[g.rank()] as u64;
            assert_eq!(weights.bytes_read() - before, mine * 4 * (4 + 1 + 3) + 3 * 4);
            let whole = |name: &str| {
                Linear::new(
                    all[&format!("a.{name}.weight")].clone(),
                    Some(all[&format!("a.{name}.bias")].clone()),
                )
            };
            let want = whole("down").forward(&whole("up").forward(&x)?.relu()?)?;
            near(&down.forward(&up.forward(&x)?.relu()?)?, &want, 1e-5);
            let tokens = weights.embedding("tokens", &rule)?;
            let ids = Tensor::new(&[6u32, 0], &Device::Cpu)?;
            near(&tokens.forward(&ids)?, &all["tokens.weight"].index_select(&ids, 0)?, 0.0);
            Ok(())
        });
    }
}

#[test]
fn parts_longer_than_what_is_read_at_a_time_are_whole() {
    let folder = Folder::new("pieces");
    let file = folder.0.join("model.safetensors");
    let x = noise((700, 1001), 1);
    candle_core::safetensors::save(&[("x", x.clone())].into(), &file).unwrap();
    on_ranks(2, |g| {
        for (dtype, far) in [(DType::F32, 0.0), (DType::BF16, 1e-2), (DType::F64, 0.0)] {
            let weights = Weights::open(g, [&file], dtype, &Device::Cpu)?;
            for axis in [0, 1] {
                let (part, partition) = weights.part("x", axis, &Sharding::weighted([2.0, 1.0]))?;
                assert_eq!(part.dtype(), dtype);
                near(&part.to_dtype(DType::F32)?, &partition.take(&x, axis, g.rank())?, far);
            }
        }
        Ok(())
    });
}

#[test]
fn a_file_that_was_cut_off_is_named() {
    let folder = Folder::new("cut");
    let file = folder.0.join("model.safetensors");
    candle_core::safetensors::save(&model(), &file).unwrap();
    let len = fs::metadata(&file).unwrap().len();
    fs::File::options().write(true).open(&file).unwrap().set_len(len - 1).unwrap();
    for r in try_on_ranks(2, |g| open(g, &file)) {
        let Err(Error::File { path, source }) = r else { panic!("no error") };
        assert_eq!(path, file);
        assert_eq!(
            source.to_string(),
            format!("the file has {} bytes and its header says {len}; it was cut off", len - 1)
        );
    }
}

#[test]
fn each_rank_reads_its_blocks_of_gguf() {
    let folder = Folder::new("gguf");
    let file = folder.0.join("model.gguf");
    let quantize =
        |shape: (usize, usize), seed| QTensor::quantize(&noise(shape, seed), GgmlDType::Q8_0).unwrap();
    let q = quantize((128, 64), 1);
    let k = quantize((32, 64), 2);
    let v = quantize((32, 64), 3);
    let o = quantize((64, 128), 4);
    let bias = QTensor::quantize(&noise(128, 5), GgmlDType::F32).unwrap();
    let tensors = [("q.weight", &q), ("k.weight", &k), ("v.weight", &v), ("o.weight", &o), ("q.bias", &bias)];
    let count = gguf_file::Value::U32(4);
    gguf_file::write(&mut fs::File::create(&file).unwrap(), &[("heads", &count)], &tensors).unwrap();
    let x = noise((1, 3, 64), 9);
    let far = 1e-2;
    let attention = |g: &comity::Group| -> comity_candle::Result<Tensor> {
        let weights = open(g, &file)?;
        assert_eq!(weights.metadata("heads").unwrap().to_u32()?, 4);
        // 4 heads of queries for one of keys, which all ranks read.
        let heads = Heads::new(4, 1, 32, g.size())?;
        let attention = weights.attention(["q", "k", "v", "o"], &heads)?;
        let (q, k, v) = attention.project(&x)?;
        attention.attend(&q, &k, &v, None)
    };
    let want = attention(&comity::Group::single()).unwrap();
    let o = o.dequantize(&Device::Cpu).unwrap();
    for n in 2..=4 {
        on_ranks(n, |g| {
            near(&attention(g)?, &want, far);
            let (part, partition) = open(g, &file)?.quantized_part("o.weight", 1, &Sharding::balanced())?;
            near(&part.dequantize(&Device::Cpu)?, &partition.take(&o, 1, g.rank())?, 0.0);
            Ok(())
        });
    }
    let e = on_ranks(3, |g| {
        Ok(open(g, &file)?.linear("o", ShardingType::ShardedToAll, &Sharding::even()).map(|_| ()))
    });
    let e = e[0].as_ref().unwrap_err().to_string();
    assert!(
        e.starts_with("o.weight: the axis 1 of 128") && e.contains("whole units of 32; 96 and 192 can"),
        "{e}"
    );
}

#[test]
fn a_missing_tensor_is_named_with_its_neighbours() {
    let folder = Folder::new("missing");
    let file = folder.0.join("model.safetensors");
    candle_core::safetensors::save(&model(), &file).unwrap();
    on_ranks(2, |g| {
        let a = open(g, &file)?.pp("a");
        let Err(Error::Sharding(e)) = a.linear("upp", ShardingType::AllToSharded, &Sharding::even()) else {
            panic!("no error")
        };
        assert_eq!(e.layer, "a.upp.weight");
        assert!(e.to_string().contains("there is no such tensor; there are "), "{e}");
        Ok(())
    });
}

#[test]
fn ranks_with_different_files_are_told() {
    let folder = Folder::new("different");
    let file = |rank: usize| folder.0.join(format!("{rank}.safetensors"));
    for rank in 0..3 {
        let mut all = model();
        if rank == 1 {
            // The last number of one tensor.
            let x = Tensor::cat(&[noise(2, 4), noise(1, 50)], 0).unwrap();
            all.insert("a.down.bias".into(), x);
        }
        candle_core::safetensors::save(&all, file(rank)).unwrap();
    }
    for r in try_on_ranks(3, |g| open(g, &file(g.rank()))) {
        let Err(Error::Sharding(e)) = r else { panic!("no error") };
        assert_eq!(e.cause, ShardingCause::Files { differing: vec![1] }, "{e}");
    }
    fs::write(file(2), b"not a model at all").unwrap();
    let results = try_on_ranks(3, |g| open(g, &file(g.rank())));
    assert!(matches!(&results[2], Err(Error::File { path, .. }) if *path == file(2)), "{:?}", results[2]);
    let Err(Error::Sharding(e)) = &results[0] else { panic!("no error") };
    assert_eq!(e.cause, ShardingCause::Unreadable { ranks: vec![2] });
}

/// A pair of layers as parameters, with variables.
fn pair(g: &comity::Group, seed: u64) -> comity_candle::Result<Vec<Parameter>> {
    let v = |x: Tensor| variable(&x).into_inner();
    let up = Linear::new(v(noise((10, 4), seed)), Some(v(noise(10, seed + 1).to_dtype(DType::BF16)?)));
    let down = Linear::new(v(noise((3, 10), seed + 2)), Some(v(noise(3, seed + 3))));
    let up = shard_linear(g, &up, ShardingType::AllToSharded, &Sharding::balanced())?;
    let down = shard_linear(g, &down, ShardingType::ShardedToAll, &Sharding::balanced())?;
    Ok([up.parameters("up"), down.parameters("down")].concat())
}

#[test]
fn a_checkpoint_is_one_file_for_any_number_of_ranks() {
    let folder = Folder::new("checkpoint");
    let file = folder.0.join("step 1.safetensors");
    for n in [1, 3] {
        on_ranks(n, |g| save_checkpoint(g, &file, &pair(g, 1)?));
        let whole = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
        for p in pair(&comity::Group::single(), 1).unwrap() {
            near(&whole[&p.name], &p.tensor, 0.0);
            assert_eq!(whole[&p.name].dtype(), p.tensor.dtype());
        }
        for m in [1, 2, 4] {
            on_ranks(m, |g| {
                let into = pair(g, 70)?;
                let want = pair(g, 1)?;
                load_checkpoint(g, &file, &into)?;
                into.iter().zip(&want).for_each(|(a, b)| near(&a.tensor, &b.tensor, 0.0));
                Ok(())
            });
        }
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "something is left");
}

#[test]
fn a_checkpoint_is_whole_or_absent() {
    let folder = Folder::new("absent");
    let file = folder.0.join("model.safetensors");
    on_ranks(3, |g| save_checkpoint(g, &file, &pair(g, 1)?));
    let before = fs::read(&file).unwrap();
    // A rank that fails in the midst of writing, and one that is gone.
    let results = try_on_ranks(3, |g| {
        let mut parameters = pair(g, 5)?;
        if g.rank() == 2 {
            parameters[0].tensor = parameters[0].tensor.narrow(0, 0, 1)?;
        }
        save_checkpoint(g, &file, &parameters)
    });
    assert!(matches!(results[2], Err(Error::File { .. })), "{:?}", results[2]);
    let Err(Error::Sharding(e)) = &results[0] else { panic!("{:?}", results[0]) };
    assert_eq!(e.cause, ShardingCause::Unwritable { ranks: vec![2] });
    let results = try_on_ranks(3, |g| match g.rank() {
        2 => {
            g.abort("killed");
            Ok(())
        }
        _ => save_checkpoint(g, &file, &pair(g, 5)?),
    });
    assert!(results[..2].iter().all(Result::is_err), "{results:?}");
    assert_eq!(fs::read(&file).unwrap(), before);
    // Ranks that do not agree.
    for r in try_on_ranks(3, |g| save_checkpoint(g, &file, &pair(g, 5)?[g.rank() / 2..])) {
        let Err(Error::Sharding(e)) = r else { panic!("no error") };
        assert_eq!(e.cause, ShardingCause::Parameters { differing: vec![2] });
    }
    // A folder that is not there.
    let nowhere = folder.0.join("no/model.safetensors");
    let results = try_on_ranks(2, |g| save_checkpoint(g, &nowhere, &pair(g, 5)?));
    assert!(matches!(results[0], Err(Error::File { .. })), "{:?}", results[0]);
    let Err(Error::Sharding(e)) = &results[1] else { panic!("no error") };
    assert_eq!(e.cause, ShardingCause::Unwritable { ranks: vec![0] });
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "something is left");
}

#[test]
fn parameters_that_do_not_fit_a_checkpoint_are_named() {
    let folder = Folder::new("misfit");
    let file = folder.0.join("model.safetensors");
    candle_core::safetensors::save(&model(), &file).unwrap();
    on_ranks(2, |g| {
        let load = |name: &str, x: Tensor| {
            let p = Parameter::whole(name, x);
            match load_checkpoint(g, &file, &[p]) {
                Err(Error::Sharding(e)) => (e.layer, e.cause),
                other => panic!("{other:?}"),
            }
        };
        let v = |x: Tensor| variable(&x).into_inner();
        let (layer, cause) = load("a.up.bias", v(noise(9, 1)));
        assert_eq!(
            (layer.as_str(), cause),
            ("a.up.bias", ShardingCause::Shape { expected: vec![9], got: vec![10] })
        );
        let (_, cause) = load("a.up.bias", v(noise(10, 1).to_dtype(DType::BF16)?));
        assert_eq!(cause, ShardingCause::DType { expected: "BF16".into(), got: "F32".into() });
        let (_, cause) = load("a.up.bias", noise(10, 1));
        assert!(matches!(cause, ShardingCause::DType { .. }));
        let (_, cause) = load("a.bias", v(noise(10, 1)));
        assert!(matches!(cause, ShardingCause::Missing { .. }));
        Ok(())
    });
}
