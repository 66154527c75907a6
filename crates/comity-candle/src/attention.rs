//! Attention whose heads are divided among the ranks, and the keys and values of the tokens so far, of each request by itself.

use crate::{
    Error, Parameter, Partition, Result, ShardedLinear, Sharding, ShardingCause, ShardingError,
    ShardingType::{self, AllToSharded, ShardedToAll},
    linear::LinearPart,
    ops,
};
use candle_core::{D, Device, Module, Tensor};
use candle_nn::{Linear, VarBuilder};
use comity::Group;
use std::ops::Range;

/// Numbers of heads of an attention, and which of them each rank has.
///
/// Ranks share the heads of keys and values, with the queries that belong to each. When there are more ranks than those, they share the
/// queries' heads instead, and every rank has the weights of all keys and values.
///
/// ```
/// use comity_candle::Heads;
///
/// // 6 heads of queries on 2 of keys and values, 3 ranks: rank 1 has queries 2 and 3, which use both keys.
/// let heads = Heads::new(6, 2, 64, 3)?;
/// assert_eq!((heads.queries(1), heads.keys(1)), (2..4, 0..2));
/// assert!(Heads::new(6, 2, 64, 7).is_err());
/// # Ok::<(), comity_candle::ShardingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Heads {
    all: usize,
    all_keys: usize,
    width: usize,
    queries: Vec<Range<usize>>,
}

impl Heads {
    /// So many heads of queries, each for one of `keys` heads of keys and values, `width` elements each, on so many ranks.
    ///
    /// # Errors
    /// [`ShardingError`] when the queries are no multiple of the keys, or there are more ranks than queries.
    pub fn new(queries: usize, keys: usize, width: usize, ranks: usize) -> Result<Self, ShardingError> {
        Self::with(queries, keys, width, ranks, Sharding::balanced())
    }

    /// The same as [`new`](Self::new), shared by another rule than balanced shares, such as by weights. Its unit is so many heads, which stay
    /// together where a quantization block is longer than a head.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn with(
        queries: usize,
        keys: usize,
        width: usize,
        ranks: usize,
        sharding: Sharding,
    ) -> Result<Self, ShardingError> {
        if keys == 0 || !queries.is_multiple_of(keys) {
            let cause = ShardingCause::Indivisible { size: queries, unit: keys.max(1), even: false };
            return Err(ShardingError::new("attention", "heads", ranks, cause));
        }
        let replicated = keys < ranks;
        let unit = if replicated { 1 } else { queries / keys };
        let partition = sharding.clone().whole_blocks(unit).partition(queries, ranks);
        let partition = partition.map_err(|e| e.at("attention", "heads"))?;
        let queries_of = (0..ranks).map(|r| partition.of(r)[0].clone()).collect();
        Ok(Self { all: queries, all_keys: keys, width, queries: queries_of })
    }

    /// A rank's heads of queries.
    ///
    /// # Panics
    /// For a rank outside the group.
    pub fn queries(&self, rank: usize) -> Range<usize> {
        self.queries[rank].clone()
    }

    /// The heads of keys and values that a rank's queries use.
    ///
    /// # Panics
    /// For a rank outside the group.
    pub fn keys(&self, rank: usize) -> Range<usize> {
        let mine = self.queries(rank);
        let each = self.all / self.all_keys;
        mine.start / each..(mine.end - 1) / each + 1
    }

    /// The elements of each head.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns true if every rank has the weights of all keys and values, since there are more ranks than those.
    pub fn replicates_keys(&self) -> bool {
        self.all_keys < self.queries.len()
    }

    /// The rows of queries that each rank has.
    pub(crate) fn query_partition(&self) -> Partition {
        self.rows(self.all, |rank| self.queries(rank))
    }

    /// The rows of keys that each rank uses: two ranks may use the same.
    pub(crate) fn key_partition(&self) -> Partition {
        self.rows(self.all_keys, |rank| self.keys(rank))
    }

    fn rows(&self, heads: usize, of: impl Fn(usize) -> Range<usize>) -> Partition {
        let ranges =
            (0..self.queries.len()).map(|rank| of(rank).start * self.width..of(rank).end * self.width);
        Partition::overlapping(heads * self.width, ranges)
    }
}

/// Weights of keys or of values: divided as the queries are, or whole on every rank.
#[derive(Clone, Debug)]
enum KeyLayer {
    Divided(ShardedLinear),
    Whole(Linear),
}

/// Multi-head attention, with grouped queries, whose heads are divided among the ranks.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use comity_candle::{Heads, ShardedAttention};
///
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let heads = Heads::new(4, 2, 8, group.size())?;
/// let attention = ShardedAttention::new(&group, 32, &heads, vb)?;
///
/// let x = Tensor::ones((1, 5, 32), DType::F32, &Device::Cpu)?; // batch x time x width, the same on every rank
/// let (q, k, v) = attention.project(&x)?; // this rank's heads; turn q and k by their positions here
/// let y = attention.attend(&q, &k, &v, None)?; // the same on every rank again
/// assert_eq!(y.dims(), [1, 5, 32]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShardedAttention {
    group: Group,
    heads: Heads,
    queries: ShardedLinear,
    keys: KeyLayer,
    values: KeyLayer,
    out: ShardedLinear,
}

/// Whole layers of an attention, such as a file's.
#[derive(Clone, Debug)]
pub struct AttentionLayers<'a> {
    /// Queries.
    pub q: &'a Linear,
    /// Keys.
    pub k: &'a Linear,
    /// Values.
    pub v: &'a Linear,
    /// Output.
    pub o: &'a Linear,
}

impl ShardedAttention {
    /// A new attention out of a [`VarBuilder`] over variables, without biases: `q_proj`, `k_proj`, `v_proj`, `o_proj`.
    ///
    /// If every rank has all keys and values, start with [`broadcast_variables`](crate::broadcast_variables).
    ///
    /// # Errors
    /// [`Error::Sharding`] when the heads were not made for this number of ranks.
    pub fn new(group: &Group, width: usize, heads: &Heads, vb: VarBuilder) -> Result<Self> {
        fits(group, heads, &vb.prefix())?;
        let inner_keys = heads.all_keys * heads.width;
        let part = |vb: VarBuilder, direction, partition| {
            LinearPart::fresh(group, direction, width, partition, false, &vb)
        };
        let whole = |vb: VarBuilder| Ok(candle_nn::linear_no_bias(width, inner_keys, vb)?);
        Self::made(
            group,
            heads,
            ["q_proj", "k_proj", "v_proj", "o_proj"].map(|name| vb.pp(name)),
            part,
            whole,
        )
    }

    /// This rank's part of an attention that every rank has whole. Where parameters are variables, those of the part are too.
    ///
    /// # Errors
    /// [`Error::Sharding`] when the heads do not fit the layers or the number of ranks.
    pub fn from_layers(group: &Group, layers: &AttentionLayers<'_>, heads: &Heads) -> Result<Self> {
        fits(group, heads, "ShardedAttention")?;
        let part =
            |linear: &Linear, direction, partition| LinearPart::of_whole(group, direction, linear, partition);
        let AttentionLayers { q, k, v, o } = *layers;
        Self::made(group, heads, [q, k, v, o], part, |linear| Ok(linear.clone()))
    }

    /// An attention of layers of which `part` makes this rank's, and `whole` those of keys that every rank has.
    fn made<T>(
        group: &Group,
        heads: &Heads,
        [q, k, v, o]: [T; 4],
        part: impl Fn(T, ShardingType, Partition) -> Result<LinearPart>,
        whole: impl Fn(T) -> Result<Linear>,
    ) -> Result<Self> {
        let keys = |layer: T| -> Result<KeyLayer> {
            Ok(match heads.replicates_keys() {
                true => KeyLayer::Whole(whole(layer)?),
                false => KeyLayer::Divided(part(layer, AllToSharded, heads.key_partition())?.into()),
            })
        };
        Ok(Self {
            group: group.clone(),
            heads: heads.clone(),
            queries: part(q, AllToSharded, heads.query_partition())?.into(),
            keys: keys(k)?,
            values: keys(v)?,
            out: part(o, ShardedToAll, heads.query_partition())?.into(),
        })
    }

    /// An attention of layers that are divided already: queries, keys, values, output. Each rank has the keys that its queries use,
    /// of which ranks may share some; shared ones are not to be trained.
    pub(crate) fn from_sharded(
        group: &Group,
        heads: &Heads,
        [q, k, v, o]: [ShardedLinear; 4],
    ) -> Result<Self> {
        fits(group, heads, "ShardedAttention")?;
        Ok(Self {
            group: group.clone(),
            heads: heads.clone(),
            queries: q,
            keys: KeyLayer::Divided(k),
            values: KeyLayer::Divided(v),
            out: o,
        })
    }

    /// The heads, and which each rank has.
    pub fn heads(&self) -> &Heads {
        &self.heads
    }

    /// Queries, keys and values of this rank's heads: batch x heads x time x width of a head.
    ///
    /// # Errors
    /// Candle's.
    pub fn project(&self, x: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        let mine = self.heads.keys(self.group.rank());
        // Once for all three.
        let x = &ops::sum_gradients(&self.group, x)?;
        let q = self.split(&self.queries.forward_part(x)?)?;
        let of_keys = |layer: &KeyLayer| -> Result<Tensor> {
            let y = match layer {
                KeyLayer::Divided(layer) => layer.forward_part(x)?,
                KeyLayer::Whole(layer) => {
                    // Each rank uses some of the rows, and two may use the same: the gradients of both count.
                    let width = self.heads.width;
                    let rows = |x: &Tensor| -> Result<Tensor> {
                        let x = ops::sum_gradients(&self.group, x)?;
                        Ok(x.narrow(0, mine.start * width, mine.len() * width)?)
                    };
                    let bias = layer.bias().map(&rows).transpose()?;
                    Linear::new(rows(layer.weight())?, bias).forward(x)?
                }
            };
            self.split(&y)
        };
        Ok((q, of_keys(&self.keys)?, of_keys(&self.values)?))
    }

    fn split(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, time, all) = x.dims3()?;
        let width = self.heads.width;
        Ok(x.reshape((batch, time, all / width, width))?.transpose(1, 2)?.contiguous()?)
    }

    /// The attention of this rank's heads, and the layer after them, whose output is the same on every rank.
    ///
    /// `mask` is added to the scores: 0, or minus infinity for what must not be seen; its shape spreads to batch x heads x time x
    /// time of the keys. Keys and values may be longer in time than queries, as a cache makes them.
    ///
    /// # Errors
    /// [`Error::Group`] as [`Group::all_reduce`]; candle's.
    pub fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        Ok(self.out.forward(&self.mix(q, k, v, mask)?)?)
    }

    /// Attention as by [`attend`](Self::attend), where each sequence of the batch goes on from its own keys and values in `cache`, which takes the new
    /// ones. Each sees what came before it.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{VarBuilder, VarMap};
    /// # use comity_candle::{Heads, KvCache, ShardedAttention};
    /// # let group = comity::Group::single();
    /// # let vars = VarMap::new();
    /// # let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    /// # let attention = ShardedAttention::new(&group, 32, &Heads::new(4, 2, 8, group.size())?, vb)?;
    /// let mut cache = KvCache::new(2); // two requests
    /// for (request, length) in [(0, 5), (1, 3)] {
    ///     let prompt = Tensor::ones((1, length, 32), DType::F32, &Device::Cpu)?;
    ///     let (q, k, v) = attention.project(&prompt)?;
    ///     attention.attend_cached(&q, &k, &v, &mut cache, &[request])?;
    /// }
    /// let tokens = Tensor::ones((2, 1, 32), DType::F32, &Device::Cpu)?; // one more token of each
    /// let (q, k, v) = attention.project(&tokens)?;
    /// let y = attention.attend_cached(&q, &k, &v, &mut cache, &[0, 1])?;
    /// assert_eq!((y.dims(), cache.len(0), cache.len(1)), (&[2, 1, 32][..], 6, 4));
    /// # Ok::<(), comity_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`attend`](Self::attend).
    pub fn attend_cached(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        cache: &mut KvCache,
        requests: &[usize],
    ) -> Result<Tensor> {
        let mut rows = Vec::with_capacity(requests.len());
        for (i, &request) in requests.iter().enumerate() {
            let of = |x: &Tensor| x.narrow(0, i, 1);
            let before = cache.len(request);
            let (keys, values) = cache.append(request, &of(k)?, &of(v)?)?;
            let time = q.dim(2)?;
            let mask = if time > 1 { Some(causal_mask(time, before, q.device())?) } else { None };
            rows.push(self.mix(&of(q)?, &keys, &values, mask.as_ref())?);
        }
        // One sum over the ranks for the whole batch.
        Ok(self.out.forward(&Tensor::cat(&rows, 0)?)?)
    }

    /// The attention of this rank's heads, side by side.
    fn mix(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (batch, heads, time, width) = q.dims4()?;
        let k = self.for_queries(k)?;
        let v = self.for_queries(v)?;
        let scores = (q.contiguous()?.matmul(&k.t()?.contiguous()?)? / (width as f64).sqrt())?;
        let scores = match mask {
            Some(mask) => scores.broadcast_add(&mask.to_dtype(scores.dtype())?)?,
            None => scores,
        };
        let y = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
        Ok(y.transpose(1, 2)?.contiguous()?.reshape((batch, time, heads * width))?)
    }

    /// The keys or values of each of this rank's queries.
    fn for_queries(&self, x: &Tensor) -> Result<Tensor> {
        let rank = self.group.rank();
        let queries = self.heads.queries(rank);
        let keys = self.heads.keys(rank);
        let each = self.heads.all / self.heads.all_keys;
        if each == 1 {
            return Ok(x.contiguous()?);
        }
        let at: Vec<u32> = queries.map(|q| (q / each - keys.start) as u32).collect();
        let count = at.len();
        Ok(x.contiguous()?.index_select(&Tensor::from_vec(at, count, x.device())?, 1)?)
    }

    /// The parameters, under the names that they have in a model.
    pub fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let of = |layer: &KeyLayer, name: &str| match layer {
            KeyLayer::Divided(layer) => layer.parameters(&format!("{prefix}.{name}")),
            KeyLayer::Whole(layer) => {
                let weight = Parameter::whole(format!("{prefix}.{name}.weight"), layer.weight().clone());
                let bias = layer.bias().map(|b| Parameter::whole(format!("{prefix}.{name}.bias"), b.clone()));
                [weight].into_iter().chain(bias).collect()
            }
        };
        [
            self.queries.parameters(&format!("{prefix}.q_proj")),
            of(&self.keys, "k_proj"),
            of(&self.values, "v_proj"),
            self.out.parameters(&format!("{prefix}.o_proj")),
        ]
        .concat()
    }
}

fn fits(group: &Group, heads: &Heads, layer: &str) -> Result<(), Error> {
    if heads.queries.len() == group.size() {
        return Ok(());
    }
    let cause = ShardingCause::Ranks { made_for: heads.queries.len() };
    Err(ShardingError::new(layer, "division of heads", group.size(), cause).into())
}

/// Keys and values of one layer, for several requests of different lengths.
///
/// A rank's memory is its share of the heads: with `k` heads of keys on `n` ranks, `k / n` of the whole, or one head where there are fewer
/// than ranks.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use comity_candle::KvCache;
///
/// let mut cache = KvCache::new(2);
/// let new = Tensor::ones((1, 4, 3, 8), DType::F32, &Device::Cpu)?; // 4 heads, 3 tokens
/// let (keys, _) = cache.append(1, &new, &new)?;
/// assert_eq!((keys.dims(), cache.len(0), cache.len(1)), (&[1, 4, 3, 8][..], 0, 3));
/// cache.clear(1); // the request has ended; another takes its place
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct KvCache {
    requests: Vec<Option<GrownCache>>,
}

/// Memory for some more tokens than there are.
#[derive(Debug)]
struct GrownCache {
    keys: Tensor,
    values: Tensor,
    len: usize,
}

impl KvCache {
    /// An empty cache for so many requests.
    pub fn new(requests: usize) -> Self {
        Self { requests: (0..requests).map(|_| None).collect() }
    }

    /// The number of tokens of a request.
    pub fn len(&self, request: usize) -> usize {
        self.requests.get(request).and_then(Option::as_ref).map_or(0, |r| r.len)
    }

    /// Returns true if no request has tokens.
    pub fn is_empty(&self) -> bool {
        self.requests.iter().all(Option::is_none)
    }

    /// Forget the tokens of a request.
    pub fn clear(&mut self, request: usize) {
        if let Some(place) = self.requests.get_mut(request) {
            *place = None;
        }
    }

    /// Add the keys and values of new tokens of a request, 1 x heads x time x width; return all of them.
    ///
    /// # Errors
    /// Candle's, when the shapes do not go together.
    pub fn append(
        &mut self,
        request: usize,
        k: &Tensor,
        v: &Tensor,
    ) -> candle_core::Result<(Tensor, Tensor)> {
        if request >= self.requests.len() {
            self.requests.resize_with(request + 1, || None);
        }
        let added = k.dim(2)?;
        let k = k.detach().contiguous()?;
        let v = v.detach().contiguous()?;
        let place = &mut self.requests[request];
        let mut held = match place.take() {
            Some(held) if held.len + added <= held.keys.dim(2)? => held,
            other => {
                // Room for as many again, so that growing costs little for each token.
                let (len, room) = other.as_ref().map_or((0, added), |h| (h.len, 2 * (h.len + added)));
                let grow = |old: Option<&Tensor>, like: &Tensor| {
                    let (batch, heads, _, width) = like.dims4()?;
                    let new = Tensor::zeros((batch, heads, room, width), like.dtype(), like.device())?;
                    if let Some(old) = old {
                        new.slice_set(&old.narrow(2, 0, len)?.contiguous()?, 2, 0)?;
                    }
                    candle_core::Result::Ok(new)
                };
                let keys = grow(other.as_ref().map(|h| &h.keys), &k)?;
                GrownCache { keys, values: grow(other.as_ref().map(|h| &h.values), &v)?, len }
            }
        };
        held.keys.slice_set(&k, 2, held.len)?;
        held.values.slice_set(&v, 2, held.len)?;
        held.len += added;
        let all = (held.keys.narrow(2, 0, held.len)?, held.values.narrow(2, 0, held.len)?);
        *place = Some(held);
        Ok(all)
    }
}

/// Mask by which each of `time` new tokens sees itself, those before it, and `before` earlier ones: time x (before + time), 0 or minus
/// infinity.
///
/// ```
/// let mask = comity_candle::causal_mask(2, 1, &candle_core::Device::Cpu)?;
/// assert_eq!(mask.to_vec2::<f32>()?, [[0.0, 0.0, f32::NEG_INFINITY], [0.0, 0.0, 0.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Candle's.
pub fn causal_mask(time: usize, before: usize, device: &Device) -> candle_core::Result<Tensor> {
    let all = before + time;
    let values: Vec<f32> =
        (0..time * all).map(|i| if i % all > before + i / all { f32::NEG_INFINITY } else { 0.0 }).collect();
    Tensor::from_vec(values, (time, all), device)
}
