//! Checkpoints of which each rank reads only its part: safetensors and GGUF.
//!
//! ```text
//! file    | header | up.weight: rows 0..k | rows k.. | down.weight: columns 0..k of each row, columns k.. | ...
//! rank 0             #####################                          ###
//! rank 1                                   ##########                    ###
//! ```

mod source;

pub(crate) use source::Area;
use source::{ElementKind, Source, TensorPlace};

use crate::{
    Error, Heads, Partition, Result, ShardedAttention, ShardedEmbedding, ShardedLinear, Sharding,
    ShardingCause, ShardingError, ShardingType, linear::LinearPart, quantized::QuantizedPart,
};
use candle_core::{
    DType, Device, Tensor, WithDType,
    quantized::{QStorage, QTensor, gguf_file},
};
use candle_nn::VarBuilder;
use comity::Group;
use half::{bf16, f16};
use std::{
    borrow::Cow,
    collections::HashMap,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

/// A checkpoint's files, opened on every rank of a group.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use comity_candle::{ShardingType, Sharding, Weights};
///
/// # let folder = std::env::temp_dir().join(format!("comity-candle-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let file = folder.join("model.safetensors");
/// # let weight = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?;
/// # candle_core::safetensors::save(&[("layers.0.up.weight", weight)].into(), &file)?;
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let weights = Weights::open(&group, [&file], DType::F32, &Device::Cpu)?;
/// let layer = weights.pp("layers").pp(0);
/// let up = layer.linear("up", ShardingType::AllToSharded, &Sharding::balanced())?;
/// let y = up.forward(&Tensor::ones((1, 4), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [1, 8 / group.size()]);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Weights {
    group: Group,
    source: Arc<Source>,
    dtype: DType,
    device: Device,
    prefix: String,
}

impl Weights {
    /// Open files, or the safetensors files of a folder, on every rank; each reads their headers and checks with the others that all
    /// have the same ones. Tensors are read later, and become `dtype` on `device`.
    ///
    /// The ranks compare each file's size, its header and a few bytes from the start, the middle and the end of every tensor.
    ///
    /// # Errors
    /// [`Error::File`] on the rank that cannot read a file; [`Error::Sharding`] that names the ranks whose files differ or are not
    /// there; [`Error::Group`].
    pub fn open<P: AsRef<Path>>(
        group: &Group,
        paths: impl IntoIterator<Item = P>,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let paths: Vec<P> = paths.into_iter().collect();
        let opened = Source::open(paths.iter().map(AsRef::as_ref));
        let sum = opened.as_ref().map_or(0, |s| s.checksum.max(1));
        let mut sums = vec![0u64; group.size()];
        group.all_gather(&[sum], &mut sums)?;
        let source = Arc::new(opened?);
        let ranks = |which: &dyn Fn(u64) -> bool| {
            sums.iter().enumerate().filter(|(_, s)| which(**s)).map(|(r, _)| r).collect::<Vec<_>>()
        };
        let fail = |cause| Err(ShardingError::new("file", group.size(), cause).into());
        let absent = ranks(&|s| s == 0);
        if !absent.is_empty() {
            return fail(ShardingCause::Unreadable { ranks: absent });
        }
        // The file that most ranks have is taken for the right one.
        let votes = |s: &u64| sums.iter().filter(|other| *other == s).count();
        let most = sums.iter().rev().max_by_key(|s| votes(s)).copied().unwrap_or_default();
        let differing = ranks(&|s| s != most);
        if !differing.is_empty() {
            return fail(ShardingCause::Files { differing });
        }
        Ok(Self { group: group.clone(), source, dtype, device: device.clone(), prefix: String::new() })
    }

    /// The tensors whose names begin with `name` and a dot.
    pub fn pp(&self, name: impl ToString) -> Self {
        Self { prefix: self.full(&name.to_string()), ..self.clone() }
    }

    /// The group whose ranks have a part each.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The device that tensors are made on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The same files, divided among the ranks of another group that this rank is in, such as one made by
    /// [`split`](Group::split).
    #[must_use]
    pub fn for_group(&self, group: &Group) -> Self {
        Self { group: group.clone(), ..self.clone() }
    }

    /// Elements that a quantized tensor has in a block, or 1: what lies between two layers is divided in such units.
    ///
    /// # Errors
    /// [`Error::Sharding`] when there is no tensor of this name.
    pub fn block_size(&self, name: &str) -> Result<usize> {
        Ok(match self.place(name)?.kind {
            ElementKind::Blocks(kind) => kind.block_size(),
            ElementKind::Plain(_) => 1,
        })
    }

    /// The names of all tensors in the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.source.places.keys().map(String::as_str)
    }

    /// The shape of a tensor, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.source.places.get(&self.full(name)).map(|p| p.shape.as_slice())
    }

    /// Metadata of a GGUF file about its model.
    pub fn metadata(&self, name: &str) -> Option<&gguf_file::Value> {
        self.source.metadata.get(name)
    }

    /// Bytes of tensors that this rank has read.
    pub fn bytes_read(&self) -> u64 {
        self.source.read.load(Ordering::Relaxed)
    }

    /// Read tensors as this type from now on, which a tensor must have in the file.
    pub(crate) fn set_dtype(&mut self, name: &str, dtype: DType) -> Result<()> {
        self.dtype = dtype;
        let found = self.place(name)?.kind.to_string();
        let expected = safetensors::Dtype::from(dtype).to_string();
        if found == expected {
            return Ok(());
        }
        let cause = ShardingCause::DType { expected, got: found };
        Err(ShardingError::new("tensor", self.group.size(), cause).at(&self.full(name), "tensor").into())
    }

    /// A whole tensor.
    ///
    /// # Errors
    /// [`Error::Sharding`] with similar names when there is none; [`Error::File`] when it cannot be read.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let place = self.place(name)?;
        match place.kind {
            ElementKind::Plain(_) => self.plain(place, &Area::whole(&place.shape)),
            ElementKind::Blocks(_) => {
                let whole = self.quantized(name)?;
                Ok(whole.dequantize(&self.device)?.to_dtype(self.dtype)?)
            }
        }
    }

    /// This rank's part of a tensor along an axis, and how the axis is divided.
    ///
    /// # Errors
    /// Those of [`tensor`](Self::tensor); [`Error::Sharding`] when `sharding` does not fit the axis.
    pub fn part(&self, name: &str, axis: usize, sharding: &Sharding) -> Result<(Tensor, Partition)> {
        let partition = self.partition(name, axis, sharding)?;
        Ok((self.part_of(name, axis, &partition)?, partition))
    }

    /// This rank's part of a tensor along an axis that is divided so already.
    pub(crate) fn part_of(&self, name: &str, axis: usize, partition: &Partition) -> Result<Tensor> {
        let place = self.place(name)?;
        match place.kind {
            ElementKind::Plain(_) => self.plain(place, &self.area(name, place, axis, partition)?),
            ElementKind::Blocks(_) => {
                let part = self.blocks_of(name, axis, partition)?;
                Ok(part.dequantize(&self.device)?.to_dtype(self.dtype)?)
            }
        }
    }

    fn partition(&self, name: &str, axis: usize, sharding: &Sharding) -> Result<Partition> {
        let place = self.place(name)?;
        let dimension = format!("axis {axis}");
        let fail = |e: ShardingError| Error::from(e.at(&self.full(name), &dimension));
        let Some(&size) = place.shape.get(axis) else {
            let cause = match place.shape.len() {
                0 => ShardingCause::Scalar,
                _ => ShardingCause::Axis { got: place.shape.clone() },
            };
            return Err(fail(ShardingError::new("", self.group.size(), cause)));
        };
        let last = axis + 1 == place.shape.len();
        let sharding = match place.kind {
            ElementKind::Blocks(kind) if last => sharding.clone().whole_blocks(kind.block_size()),
            _ => sharding.clone(),
        };
        sharding.partition(size, self.group.size()).map_err(fail)
    }

    /// Area of this rank's part within a tensor.
    fn area(&self, name: &str, place: &TensorPlace, axis: usize, partition: &Partition) -> Result<Area> {
        if place.shape.get(axis) != Some(&partition.size()) {
            let mut expected = place.shape.clone();
            expected.iter_mut().skip(axis).take(1).for_each(|d| *d = partition.size());
            let cause = ShardingCause::Shape { expected, got: place.shape.clone() };
            let e = ShardingError::new("", self.group.size(), cause);
            return Err(e.at(&self.full(name), &format!("axis {axis}")).into());
        }
        Ok(Area::part(&place.shape, axis, partition.of(self.group.rank())))
    }

    fn plain(&self, place: &TensorPlace, area: &Area) -> Result<Tensor> {
        let ElementKind::Plain(dtype) = place.kind else { return Err(candle_core::Error::UnwrapNone.into()) };
        let dtype = DType::try_from(dtype)?;
        match self.dtype {
            DType::BF16 => self.elements::<bf16>(place, area, dtype),
            DType::F16 => self.elements::<f16>(place, area, dtype),
            DType::F32 => self.elements::<f32>(place, area, dtype),
            DType::F64 => self.elements::<f64>(place, area, dtype),
            DType::I64 => self.elements::<i64>(place, area, dtype),
            DType::U32 => self.elements::<u32>(place, area, dtype),
            DType::U8 => self.elements::<u8>(place, area, dtype),
            other => {
                let bytes = self.source.read(place, area, dtype.size_in_bytes(), 1)?;
                let x = Tensor::from_raw_buffer(&bytes, dtype, &area.shape, &self.device)?;
                Ok(x.to_dtype(other)?)
            }
        }
    }

    /// A tensor of elements that are converted piece by piece from their type in the file.
    fn elements<T: WithDType>(&self, place: &TensorPlace, area: &Area, dtype: DType) -> Result<Tensor> {
        let mut all: Vec<T> = Vec::with_capacity(area.shape.iter().product());
        let size = dtype.size_in_bytes();
        self.source.read_pieces(place, area, size, 1, |bytes| {
            let piece = Tensor::from_raw_buffer(bytes, dtype, &[bytes.len() / size], &Device::Cpu)?;
            all.extend(piece.to_dtype(T::DTYPE)?.to_vec1::<T>()?);
            Ok(())
        })?;
        Ok(Tensor::from_vec(all, area.shape.clone(), &self.device)?)
    }

    /// A whole quantized tensor.
    ///
    /// # Errors
    /// Those of [`tensor`](Self::tensor); [`Error::Sharding`] when it is not quantized.
    pub fn quantized(&self, name: &str) -> Result<QTensor> {
        let place = self.place(name)?;
        self.blocks(name, place, &Area::whole(&place.shape))
    }

    /// This rank's part of a quantized tensor, and how the axis is divided: along the last axis, in whole blocks.
    ///
    /// # Errors
    /// Those of [`quantized`](Self::quantized) and [`part`](Self::part).
    pub fn quantized_part(
        &self,
        name: &str,
        axis: usize,
        sharding: &Sharding,
    ) -> Result<(QTensor, Partition)> {
        let partition = self.partition(name, axis, sharding)?;
        Ok((self.blocks_of(name, axis, &partition)?, partition))
    }

    fn blocks_of(&self, name: &str, axis: usize, partition: &Partition) -> Result<QTensor> {
        let place = self.place(name)?;
        self.blocks(name, place, &self.area(name, place, axis, partition)?)
    }

    fn blocks(&self, name: &str, place: &TensorPlace, area: &Area) -> Result<QTensor> {
        let ElementKind::Blocks(kind) = place.kind else {
            let cause =
                ShardingCause::DType { expected: "a quantized type".into(), got: place.kind.to_string() };
            return Err(ShardingError::new("tensor", self.group.size(), cause)
                .at(&self.full(name), "tensor")
                .into());
        };
        if !area.is_aligned(kind.block_size()) {
            let cause = ShardingCause::Indivisible {
                size: area.shape.last().copied().unwrap_or_default(),
                unit: kind.block_size(),
                even: false,
            };
            let e = ShardingError::new("input", self.group.size(), cause);
            return Err(e.at(&self.full(name), "part of the input").into());
        }
        let bytes = self.source.read(place, area, kind.type_size(), kind.block_size())?;
        let storage = QStorage::from_data(Cow::Owned(bytes), &self.device, kind)?;
        Ok(QTensor::new(storage, area.shape.clone())?)
    }

    /// This rank's part of the linear layer `name`: its weight, quantized or not, and its bias where the file has one.
    ///
    /// # Errors
    /// Those of [`part`](Self::part).
    pub fn linear(&self, name: &str, direction: ShardingType, sharding: &Sharding) -> Result<ShardedLinear> {
        let axis = usize::from(direction == ShardingType::ShardedToAll);
        let weight = format!("{name}.weight");
        let partition = self.partition(&weight, axis, sharding)?;
        self.linear_of(name, direction, partition)
    }

    fn linear_of(&self, name: &str, direction: ShardingType, partition: Partition) -> Result<ShardedLinear> {
        let g = &self.group;
        let layer = self.full(name);
        let weight = format!("{name}.weight");
        let bias = format!("{name}.bias");
        let quantized = matches!(self.place(&weight)?.kind, ElementKind::Blocks(_));
        let bias = match (self.shape(&bias), direction) {
            (None, _) => None,
            (Some(_), ShardingType::AllToSharded) => Some(self.part_of(&bias, 0, &partition)?),
            (Some(_), ShardingType::ShardedToAll) => Some(self.tensor(&bias)?),
        };
        let axis = usize::from(direction == ShardingType::ShardedToAll);
        if quantized {
            let w = self.blocks_of(&weight, axis, &partition)?;
            return Ok(QuantizedPart::new(g, direction, &layer, w, bias, partition)?.into());
        }
        let w = self.part_of(&weight, axis, &partition)?;
        Ok(LinearPart::from_tensors(g, direction, &layer, w, bias, partition)?.into())
    }

    /// This rank's part of the embedding `name`.
    ///
    /// # Errors
    /// Those of [`part`](Self::part).
    pub fn embedding(&self, name: &str, sharding: &Sharding) -> Result<ShardedEmbedding> {
        let (rows, vocabulary) = self.part(&format!("{name}.weight"), 0, sharding)?;
        ShardedEmbedding::from_parts(&self.group, &self.full(name), rows, vocabulary)
    }

    /// This rank's heads of an attention, whose layers have these names: queries, keys, values, output. Where ranks share a head of
    /// keys, each reads it.
    ///
    /// # Errors
    /// Those of [`part`](Self::part), and when the layers have other sizes than the heads.
    pub fn attention(&self, [q, k, v, o]: [&str; 4], heads: &Heads) -> Result<ShardedAttention> {
        use ShardingType::{AllToSharded, ShardedToAll};
        let keys = |name: &str| self.linear_of(name, AllToSharded, heads.key_partition());
        let queries = |name: &str, direction| self.linear_of(name, direction, heads.query_partition());
        let layers = [queries(q, AllToSharded)?, keys(k)?, keys(v)?, queries(o, ShardedToAll)?];
        ShardedAttention::from_sharded(&self.group, heads, layers)
    }

    /// Every whole tensor under this prefix that `wanted` takes, as a [`VarBuilder`] of candle's, for what is not divided.
    ///
    /// # Errors
    /// Those of [`tensor`](Self::tensor).
    pub fn whole(&self, wanted: impl Fn(&str) -> bool) -> Result<VarBuilder<'static>> {
        let mut tensors = HashMap::new();
        let prefix = if self.prefix.is_empty() { String::new() } else { format!("{}.", self.prefix) };
        for name in self.names().filter_map(|n| n.strip_prefix(&prefix)).filter(|n| wanted(n)) {
            tensors.insert(name.to_string(), self.tensor(name)?);
        }
        Ok(VarBuilder::from_tensors(tensors, self.dtype, &self.device))
    }

    fn full(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    fn place(&self, name: &str) -> Result<&TensorPlace> {
        let name = self.full(name);
        self.source.places.get(&name).ok_or_else(|| {
            // Names of the same layer, or of the same kind in another one.
            let (layer, kind) = name.rsplit_once('.').unwrap_or((&name, &name));
            let mut similar: Vec<String> = self
                .names()
                .filter(|n| n.starts_with(layer) || n.rsplit('.').next() == Some(kind))
                .map(String::from)
                .collect();
            similar.sort_by_key(|n| (!n.starts_with(layer), n.len()));
            similar.truncate(3);
            let e = ShardingError::new("tensor", self.group.size(), ShardingCause::Missing { similar });
            e.at(&name, "tensor").into()
        })
    }
}
