//! An embedding and the loss over a divided vocabulary, against candle's.

use super::{near, noise, on_ranks, variable};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Embedding, Linear, loss};
use comity_candle::{ShardedEmbedding, Sharding, sharded_cross_entropy};

#[test]
fn a_tied_embedding_learns_the_same_on_any_number_of_ranks() {
    for (n, dtype, far) in
        [1, 2, 3, 4].into_iter().flat_map(|n| [(n, DType::F32, 1e-5), (n, DType::BF16, 0.05)])
    {
        let rows = variable(&noise((11, 6), 1).to_dtype(dtype).unwrap());
        let ids = Tensor::new(&[[0u32, 10, 3, 3], [5, 4, 9, 1]], &Device::Cpu).unwrap();
        let targets = Tensor::new(&[[10u32, 3, 3, 7], [4, 9, 1, 0]], &Device::Cpu).unwrap();
        let x = Embedding::new(rows.as_tensor().clone(), 6).forward(&ids).unwrap();
        let scores = Linear::new(rows.as_tensor().clone(), None).forward(&x).unwrap();
        let flat = scores.reshape((8, 11)).unwrap().to_dtype(DType::F32).unwrap();
        let want = loss::cross_entropy(&flat, &targets.flatten_all().unwrap()).unwrap();
        let all = want.backward().unwrap();
        let rows = &rows;
        on_ranks(n, |g| {
            let whole = Embedding::new(rows.as_tensor().clone(), 6);
            let tokens = ShardedEmbedding::from_embedding(g, &whole, &Sharding::balanced())?;
            let y = tokens.forward(&ids)?;
            near(&y, &x, 0.0);
            let scores = tokens.as_linear(&y)?;
            let loss = sharded_cross_entropy(g, &scores, &targets, tokens.vocabulary())?;
            near(&loss, &want, far);
            let p = &tokens.parameters("tokens")[0];
            let mine = tokens.vocabulary().take(all.get(rows).unwrap(), 0, g.rank())?;
            near(loss.backward()?.get(&p.tensor).unwrap(), &mine, far);
            Ok(())
        });
    }
}

#[test]
fn a_token_outside_the_vocabulary_is_named() {
    on_ranks(2, |g| {
        let whole = Embedding::new(noise((5, 2), 1), 2);
        let tokens = ShardedEmbedding::from_embedding(g, &whole, &Sharding::balanced())?;
        let e = tokens.forward(&Tensor::new(&[1u32, 5], &Device::Cpu)?).unwrap_err();
        assert!(e.to_string().contains("token 5 is outside a vocabulary of 5"), "{e}");
        Ok(())
    });
}
