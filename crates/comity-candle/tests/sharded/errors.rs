//! Bad inputs: typed errors that name layer, dimension, ranks and what would work.

use super::{noise, on_ranks, try_on_ranks};
use candle_core::{DType, Module, Tensor};
use candle_nn::Linear;
use comity::Group;
use comity_candle::{
    AllToShardedLinear, AttentionLayers, Error, Heads, Parameter, Result, Segments, ShardedAttention,
    ShardedToAllLinear, Sharding, ShardingCause, ShardingError, all_sum, reduce_scatter, save_checkpoint,
    shard_in_place,
};

fn sharding_error<T>(r: Result<T>) -> ShardingError {
    match r {
        Err(Error::Sharding(e)) => *e,
        Err(e) => panic!("another error: {e}"),
        Ok(_) => panic!("no error"),
    }
}

#[test]
fn sizes_that_do_not_divide_are_named_with_those_that_do() {
    on_ranks(4, |g| {
        let layer = Linear::new(noise((10, 3), 1), None);
        let e = sharding_error(AllToShardedLinear::from_linear(g, &layer, &Sharding::even()));
        assert_eq!((e.layer.as_str(), e.dimension.as_str(), e.ranks), ("AllToShardedLinear", "output", 4));
        assert_eq!(
            e.to_string(),
            "AllToShardedLinear: the output of 10 cannot be shared equally by 4 ranks; 8 and 12 can, \
             and Sharding::balanced() shares any size"
        );
        let e = sharding_error(ShardedToAllLinear::from_linear(g, &layer, &Sharding::balanced()));
        assert_eq!(
            e.to_string(),
            "ShardedToAllLinear: the input of 3 cannot be shared by 4 ranks: there are 3; run on up to 3 ranks"
        );
        let e = sharding_error(reduce_scatter(g, &noise((4, 6), 1), 1));
        assert_eq!((e.layer.as_str(), e.dimension.as_str()), ("reduce_scatter", "axis 1"));
        Ok(())
    });
}

#[test]
fn more_ranks_than_heads_are_refused() {
    let e = Heads::new(2, 1, 8, 3).unwrap_err();
    assert_eq!(e.cause, ShardingCause::TooManyRanks { units: 2, unit: 1 });
    assert_eq!(
        e.to_string(),
        "attention: the heads of 2 cannot be shared by 3 ranks: there are 2; run on up to 2 ranks"
    );
    assert!(matches!(Heads::new(6, 4, 8, 1).unwrap_err().cause, ShardingCause::Indivisible { .. }));
}

#[test]
fn mistakes_show_on_one_rank() {
    let g = &Group::single();
    let layer = Linear::new(noise((10, 4), 1), None);
    let three = Sharding::balanced().segments(Segments::Count(3));
    let e = sharding_error(AllToShardedLinear::from_linear(g, &layer, &three));
    assert_eq!(e.cause, ShardingCause::Segments { segments: Segments::Count(3), size: 10 });
    let scalar = || [("loss.scale".to_string(), noise((), 1))].into();
    let e = sharding_error(shard_in_place(g, &mut scalar(), |_, _| Some((0, Sharding::balanced()))));
    assert_eq!((e.layer.as_str(), e.cause), ("loss.scale", ShardingCause::Scalar));
}

#[test]
fn an_input_of_another_width_is_named_through_candle() {
    on_ranks(2, |g| {
        let layer = Linear::new(noise((3, 8), 1), None);
        let layer = ShardedToAllLinear::from_linear(g, &layer, &Sharding::balanced())?;
        let forward = || -> Result<Tensor> { Ok(layer.forward(&noise((2, 8), 2))?) };
        let e = sharding_error(forward());
        assert_eq!(e.cause, ShardingCause::Shape { expected: vec![2, 4], got: vec![2, 8] });
        assert_eq!((e.layer.as_str(), e.dimension.as_str()), ("ShardedToAllLinear", "input"));
        Ok(())
    });
}

#[test]
fn ranks_with_other_types_or_shapes_are_told() {
    for (of_rank_1, says) in [
        (noise((2, 3), 1).to_dtype(DType::BF16).unwrap(), ["f32[6]", "bf16[6]"]),
        (noise((2, 4), 1), ["f32[6]", "f32[8]"]),
    ] {
        let results = try_on_ranks(2, |g| {
            let x = if g.rank() == 1 { of_rank_1.clone() } else { noise((2, 3), 1) };
            all_sum(g, &x)
        });
        for r in results {
            let Err(Error::Group(e)) = r else { panic!("no error") };
            let e = e.to_string();
            assert!(e.contains("rank 1") && says.iter().all(|s| e.contains(s)), "{e}");
        }
    }
}

#[test]
fn a_rank_that_leaves_in_a_backward_pass_is_named() {
    let results = try_on_ranks(3, |g| {
        let w = super::variable(&noise(4, 1));
        let y = comity_candle::sum_gradients(g, &w)?;
        let loss = all_sum(g, &y.sum_all()?)?;
        if g.rank() == 1 {
            g.abort("out of memory");
            return Ok(());
        }
        loss.backward()?;
        Ok(())
    });
    for rank in [0, 2] {
        let Err(Error::Group(e)) = &results[rank] else { panic!("{:?}", results[rank]) };
        assert!(e.is_fatal() && e.to_string().contains("rank 1"), "{e}");
    }
}

#[test]
fn inputs_that_a_layer_cannot_take_are_named() {
    on_ranks(2, |g| {
        let whole = Linear::new(noise((6, 4), 1), None);
        let up = AllToShardedLinear::from_linear(g, &whole, &Sharding::balanced())?;
        let down = ShardedToAllLinear::from_linear(g, &whole, &Sharding::balanced())?;
        let forward = |layer: &dyn Module, x: Tensor| -> Result<Tensor> { Ok(layer.forward(&x)?) };
        let e = sharding_error(forward(&up, noise((3, 5), 2)));
        assert_eq!(e.cause, ShardingCause::Shape { expected: vec![3, 4], got: vec![3, 5] });
        assert_eq!((&*e.layer, &*e.dimension, e.ranks), ("AllToShardedLinear", "input", 2));
        let e = sharding_error(up.forward_both(&up, &noise((3, 5), 2)));
        assert_eq!(e.cause, ShardingCause::Shape { expected: vec![3, 4], got: vec![3, 5] });
        let other = |width| noise((3, width), 2).to_dtype(DType::BF16).unwrap();
        for e in [sharding_error(forward(&up, other(4))), sharding_error(forward(&down, other(2)))] {
            assert_eq!(e.cause, ShardingCause::DType { expected: "f32".into(), got: "bf16".into() });
            assert!(e.to_string().ends_with("Linear: the input is bf16, and f32 is needed"), "{e}");
        }
        Ok(())
    });
}

#[test]
fn axes_that_are_not_there_and_heads_for_other_ranks_are_named() {
    on_ranks(2, |g| {
        let mut all = [("norm.weight".to_string(), noise(4, 1))].into();
        let e = sharding_error(shard_in_place(g, &mut all, |_, _| Some((1, Sharding::balanced()))));
        assert_eq!(e.to_string(), "norm.weight: there is no axis 1 in a tensor of shape [4]; count from 0");
        let layer = Linear::new(noise((4, 4), 1), None);
        let layers = AttentionLayers { q: &layer, k: &layer, v: &layer, o: &layer };
        let e = sharding_error(ShardedAttention::from_layers(g, &layers, &Heads::new(4, 4, 1, 4)?));
        assert_eq!(e.to_string(), "ShardedAttention: the division of heads is for 4 ranks, and there are 2");
        Ok(())
    });
}

#[test]
fn a_name_that_two_parameters_have_is_told_before_anything_is_written() {
    on_ranks(2, |g| {
        let file = std::env::temp_dir().join(format!("comity-candle-twice-{}", std::process::id()));
        let twice = [1, 2].map(|seed| Parameter::whole("w", noise(3, seed)));
        let e = sharding_error(save_checkpoint(g, &file, &twice));
        assert_eq!((&*e.layer, e.cause), ("w", ShardingCause::Twice));
        assert!(!file.exists());
        Ok(())
    });
}
