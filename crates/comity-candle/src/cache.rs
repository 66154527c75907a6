//! Keys and values of the tokens so far, of each request by itself; each rank has those of its heads.

use candle_core::{Device, Result, Tensor};

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
    pub fn append(&mut self, request: usize, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
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
                    Result::Ok(new)
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
pub fn causal_mask(time: usize, before: usize, device: &Device) -> Result<Tensor> {
    let all = before + time;
    let values: Vec<f32> =
        (0..time * all).map(|i| if i % all > before + i / all { f32::NEG_INFINITY } else { 0.0 }).collect();
    Tensor::from_vec(values, (time, all), device)
}
