//! The model: letters and places, blocks of attention and a gated product, scores. Its layers are those of `comity_candle`; on a group of one
//! they are whole.

use super::norm::normal;
use candle_core::{Module, Tensor};
use candle_nn::{Init, VarBuilder};
use comity::Group;
use comity_candle::{
    AllToShardedLinear, Heads, Parameter, Result, ShardedAttention, ShardedEmbedding, ShardedToAllLinear,
    Sharding, causal_mask, sharded_cross_entropy,
};

#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
    pub(crate) width: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
}

/// Letters and their places, as vectors.
pub(crate) struct Start {
    letters: ShardedEmbedding,
    places: Tensor,
}

impl Start {
    pub(crate) fn new(group: &Group, shape: &Shape, vb: VarBuilder) -> Result<Self> {
        let even = Sharding::balanced();
        let letters = ShardedEmbedding::new(group, shape.vocabulary, shape.width, &even, vb.pp("letters"))?;
        let init = Init::Randn { mean: 0.0, stdev: 0.1 };
        let places = vb.get_with_hints((shape.context, shape.width), "places", init)?;
        Ok(Self { letters, places })
    }

    pub(crate) fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let time = ids.dim(1)?;
        Ok(self.letters.forward(ids)?.broadcast_add(&self.places.narrow(0, 0, time)?)?)
    }

    pub(crate) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let places = Parameter::whole(format!("{prefix}.places"), self.places.clone());
        [self.letters.parameters(&format!("{prefix}.letters")), vec![places]].concat()
    }
}

/// Attention, then a gated product, each added to its input.
pub(crate) struct Block {
    attention: ShardedAttention,
    up: AllToShardedLinear,
    gate: AllToShardedLinear,
    down: ShardedToAllLinear,
    norms: [Tensor; 2],
}

impl Block {
    pub(crate) fn new(group: &Group, shape: &Shape, vb: VarBuilder) -> Result<Self> {
        let width = shape.width;
        let inner = 2 * shape.width;
        let share = Sharding::balanced();
        let heads = Heads::new(shape.heads, shape.heads, width / shape.heads.max(1), group.size())?;
        let norm = |name| vb.get_with_hints(width, name, Init::Const(1.0));
        Ok(Self {
            attention: ShardedAttention::new(group, width, &heads, vb.pp("attention"))?,
            up: AllToShardedLinear::new(group, width, inner, true, &share, vb.pp("up"))?,
            gate: AllToShardedLinear::new(group, width, inner, true, &share, vb.pp("gate"))?,
            down: ShardedToAllLinear::new(group, inner, width, true, &share, vb.pp("down"))?,
            norms: [norm("norm1")?, norm("norm2")?],
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (q, k, v) = self.attention.project(&normal(x, &self.norms[0])?)?;
        let mask = causal_mask(x.dim(1)?, 0, x.device())?;
        let x = (self.attention.attend(&q, &k, &v, Some(&mask))? + x)?;
        let h = normal(&x, &self.norms[1])?;
        let (gate, up) = self.gate.forward_both(&self.up, &h)?;
        let h = (gate.silu()? * up)?;
        Ok((self.down.forward(&h)? + x)?)
    }

    pub(crate) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let mut all = self.attention.parameters(&format!("{prefix}.attention"));
        all.extend(self.up.parameters(&format!("{prefix}.up")));
        all.extend(self.gate.parameters(&format!("{prefix}.gate")));
        all.extend(self.down.parameters(&format!("{prefix}.down")));
        for (i, norm) in self.norms.iter().enumerate() {
            all.push(Parameter::whole(format!("{prefix}.norm{}", i + 1), norm.clone()));
        }
        all
    }
}

/// Scores of the next letter, and the loss.
pub(crate) struct End {
    group: Group,
    norm: Tensor,
    scores: AllToShardedLinear,
}

impl End {
    pub(crate) fn new(group: &Group, shape: &Shape, vb: VarBuilder) -> Result<Self> {
        let share = Sharding::balanced();
        let scores =
            AllToShardedLinear::new(group, shape.width, shape.vocabulary, false, &share, vb.pp("scores"))?;
        let norm = vb.get_with_hints(shape.width, "norm", Init::Const(1.0))?;
        Ok(Self { group: group.clone(), norm, scores })
    }

    pub(crate) fn loss(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let scores = self.scores.forward(&normal(x, &self.norm)?)?;
        sharded_cross_entropy(&self.group, &scores, targets, self.scores.outputs())
    }

    pub(crate) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let norm = Parameter::whole(format!("{prefix}.norm"), self.norm.clone());
        [self.scores.parameters(&format!("{prefix}.scores")), vec![norm]].concat()
    }
}

/// All of it.
pub(crate) struct Model {
    start: Start,
    blocks: Vec<Block>,
    end: End,
}

impl Model {
    pub(crate) fn new(group: &Group, shape: &Shape, vb: VarBuilder) -> Result<Self> {
        let block = |i: usize| Block::new(group, shape, vb.pp("blocks").pp(i));
        Ok(Self {
            start: Start::new(group, shape, vb.pp("start"))?,
            blocks: (0..shape.layers).map(block).collect::<Result<_>>()?,
            end: End::new(group, shape, vb.pp("end"))?,
        })
    }

    pub(crate) fn loss(&self, ids: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let mut x = self.start.forward(ids)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.end.loss(&x, targets)
    }

    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let mut all = self.start.parameters("start");
        for (i, block) in self.blocks.iter().enumerate() {
            all.extend(block.parameters(&format!("blocks.{i}")));
        }
        all.extend(self.end.parameters("end"));
        all
    }
}
