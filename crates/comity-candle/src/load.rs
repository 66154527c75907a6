//! Checkpoints of which each rank reads only its part: safetensors and GGUF.
//!
//! ```text
//! file    | header | up.weight: rows 0..k | rows k.. | down.weight: columns 0..k of each row, columns k.. | ...
//! rank 0             #####################                          ###
//! rank 1                                   ##########                    ###
//! ```

use crate::{
    Error, Heads, Partition, Result, ShardedAttention, ShardedEmbedding, ShardedLinear, Sharding,
    ShardingCause, ShardingError, ShardingType,
    linear::LinearPart,
    parameter::{FNV, fnv},
    quantized::QuantizedPart,
};
use candle_core::{
    DType, Device, Tensor, WithDType,
    quantized::{GgmlDType, QStorage, QTensor, gguf_file},
};
use candle_nn::VarBuilder;
use comity::Group;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata};
use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, BufReader},
    iter,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
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
        let fail = |cause| Err(ShardingError::new("", "file", group.size(), cause).into());
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
        let expected = Dtype::from(dtype).to_string();
        if found == expected {
            return Ok(());
        }
        let cause = ShardingCause::DType { expected, got: found };
        Err(self.wrong(name, "tensor", cause))
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
        let last = axis + 1 == place.shape.len();
        let sharding = match place.kind {
            ElementKind::Blocks(kind) if last => sharding.clone().whole_blocks(kind.block_size()),
            _ => sharding.clone(),
        };
        Ok(sharding.partition_axis(&self.full(name), &place.shape, axis, self.group.size())?)
    }

    fn area(&self, name: &str, place: &TensorPlace, axis: usize, partition: &Partition) -> Result<Area> {
        if place.shape.get(axis) != Some(&partition.size()) {
            let mut expected = place.shape.clone();
            expected.iter_mut().skip(axis).take(1).for_each(|d| *d = partition.size());
            let cause = ShardingCause::Shape { expected, got: place.shape.clone() };
            return Err(self.wrong(name, &format!("axis {axis}"), cause));
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
            return Err(self.wrong(name, "tensor", cause));
        };
        if !area.is_aligned(kind.block_size()) {
            let cause = ShardingCause::Indivisible {
                size: area.shape.last().copied().unwrap_or_default(),
                unit: kind.block_size(),
                even: false,
            };
            return Err(self.wrong(name, "part of the input", cause));
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
        Ok(LinearPart::new(g, direction, &layer, w, bias, partition)?.into())
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

    fn wrong(&self, name: &str, dimension: &str, cause: ShardingCause) -> Error {
        ShardingError::new(&self.full(name), dimension, self.group.size(), cause).into()
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
            ShardingError::new(&name, "tensor", self.group.size(), ShardingCause::Missing { similar }).into()
        })
    }
}

/// No header is longer, as the safetensors crate has it too.
const LONGEST_HEADER: u64 = 100 << 20;
/// Bytes that are read at a time: whole elements of every type, and so few that an allocator keeps little of them.
const PIECE: usize = 64 << 10;
/// Bytes that are compared at each of three places of a tensor.
const SAMPLE: u64 = 64;

/// Files with named tensors.
#[derive(Debug)]
struct Source {
    files: Vec<(PathBuf, File)>,
    places: HashMap<String, TensorPlace>,
    metadata: HashMap<String, gguf_file::Value>,
    checksum: u64,
    read: AtomicU64,
}

#[derive(Debug)]
struct TensorPlace {
    file: usize,
    offset: u64,
    shape: Vec<usize>,
    kind: ElementKind,
}

#[derive(Clone, Copy, Debug)]
enum ElementKind {
    Plain(Dtype),
    Blocks(GgmlDType),
}

impl fmt::Display for ElementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(kind) => kind.fmt(f),
            Self::Blocks(kind) => write!(f, "{kind:?}"),
        }
    }
}

/// A part of a tensor along one axis: `outer` times, `ranges` of `length` pieces of `inner` elements.
#[derive(Debug)]
pub(crate) struct Area {
    outer: usize,
    length: usize,
    inner: usize,
    ranges: Vec<Range<usize>>,
    pub(crate) shape: Vec<usize>,
}

impl Area {
    /// All of a tensor.
    pub(crate) fn whole(shape: &[usize]) -> Self {
        let all = shape.iter().product();
        Self { outer: 1, length: all, inner: 1, ranges: iter::once(0..all).collect(), shape: shape.to_vec() }
    }

    /// Ranges of an axis, which the shape has.
    pub(crate) fn part(shape: &[usize], axis: usize, ranges: &[Range<usize>]) -> Self {
        let mut part = shape.to_vec();
        part[axis] = ranges.iter().map(Range::len).sum();
        let outer = shape[..axis].iter().product();
        let inner = shape[axis + 1..].iter().product();
        Self { outer, length: shape[axis], inner, ranges: ranges.to_vec(), shape: part }
    }

    /// Returns true if all runs begin and end with a block of so many elements.
    pub(crate) fn is_aligned(&self, block: usize) -> bool {
        let whole = |n: usize| (n * self.inner).is_multiple_of(block);
        whole(self.length) && self.ranges.iter().all(|r| whole(r.start) && whole(r.end))
    }

    /// The area's runs of bytes within the tensor, in order. Blocks of `block` elements have `size` bytes.
    pub(crate) fn runs(&self, size: usize, block: usize) -> impl Iterator<Item = Range<u64>> {
        let bytes = move |elements: usize| (elements / block * size) as u64;
        (0..self.outer).flat_map(move |i| {
            self.ranges.iter().map(move |r| {
                let at = i * self.length;
                bytes((at + r.start) * self.inner)..bytes((at + r.end) * self.inner)
            })
        })
    }
}

impl Source {
    fn open<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<Self> {
        let mut source = Self {
            files: Vec::new(),
            places: HashMap::new(),
            metadata: HashMap::new(),
            checksum: FNV,
            read: AtomicU64::new(0),
        };
        for path in paths {
            let failed = |e| Error::File { path: path.into(), source: e };
            if path.is_dir() {
                for file in in_folder(path).map_err(failed)? {
                    source.add(&file).map_err(|e| Error::File { path: file, source: e })?;
                }
            } else {
                source.add(path).map_err(failed)?;
            }
        }
        Ok(source)
    }

    fn add(&mut self, path: &Path) -> io::Result<()> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0)?;
        let begin = self.files.len();
        let start = if magic.starts_with(b"GGUF") {
            self.add_gguf(&file)?
        } else {
            self.add_safetensors(&file, len, magic)?
        };
        if start > LONGEST_HEADER {
            return Err(invalid(format!("a header of {start} bytes is too long")));
        }
        let mut header = vec![0; start as usize];
        file.read_exact_at(&mut header, 0)?;
        self.checksum = fnv(self.checksum, &len.to_le_bytes());
        self.checksum = fnv(self.checksum, &header);
        self.sample(&file, len, start, begin)?;
        self.files.push((path.into(), file));
        Ok(())
    }

    /// Add a safetensors file; where its data starts.
    fn add_safetensors(&mut self, file: &File, len: u64, magic: [u8; 8]) -> io::Result<u64> {
        let header = u64::from_le_bytes(magic);
        if header > LONGEST_HEADER || header + 8 > len {
            return Err(invalid("neither a safetensors nor a GGUF file".into()));
        }
        let mut text = vec![0; header as usize];
        file.read_exact_at(&mut text, 8)?;
        let metadata: Metadata = serde_json::from_slice(&text).map_err(io::Error::other)?;
        let start = header + 8;
        if start + metadata.data_len() as u64 != len {
            let says = start + metadata.data_len() as u64;
            return Err(invalid(format!(
                "the file has {len} bytes and its header says {says}; it was cut off"
            )));
        }
        let file = self.files.len();
        for (name, info) in metadata.tensors() {
            let offset = start + info.data_offsets.0 as u64;
            let place =
                TensorPlace { file, offset, shape: info.shape.clone(), kind: ElementKind::Plain(info.dtype) };
            self.places.insert(name, place);
        }
        Ok(start)
    }

    /// Add a GGUF file; where its data starts.
    fn add_gguf(&mut self, file: &File) -> io::Result<u64> {
        let content = gguf_file::Content::read(&mut BufReader::new(file)).map_err(io::Error::other)?;
        let start = content.tensor_data_offset;
        let index = self.files.len();
        for (name, info) in content.tensor_infos {
            let kind = match info.ggml_dtype {
                GgmlDType::F32 => ElementKind::Plain(Dtype::F32),
                GgmlDType::F16 => ElementKind::Plain(Dtype::F16),
                GgmlDType::BF16 => ElementKind::Plain(Dtype::BF16),
                kind => ElementKind::Blocks(kind),
            };
            let offset = start.saturating_add(info.offset);
            self.places
                .insert(name, TensorPlace { file: index, offset, shape: info.shape.dims().to_vec(), kind });
        }
        self.metadata.extend(content.metadata);
        Ok(start)
    }

    /// Mix in bytes of each tensor that begins in the file that is added.
    fn sample(&mut self, file: &File, len: u64, start: u64, index: usize) -> io::Result<()> {
        let mut offsets: Vec<u64> =
            self.places.values().filter(|p| p.file == index).map(|p| p.offset).collect();
        offsets.sort_unstable();
        offsets.push(len);
        let mut bytes = Vec::new();
        for ends in offsets.windows(2).filter(|e| e[0] >= start && e[1] > e[0]) {
            let size = ends[1] - ends[0];
            for at in [0, size / 2, size.saturating_sub(SAMPLE)] {
                bytes.resize(SAMPLE.min(size - at) as usize, 0);
                file.read_exact_at(&mut bytes, ends[0] + at)?;
                self.checksum = fnv(self.checksum, &bytes);
            }
        }
        Ok(())
    }

    /// The bytes of a part of a tensor, whose blocks of `block` elements have `size` bytes.
    fn read(&self, place: &TensorPlace, area: &Area, size: usize, block: usize) -> Result<Vec<u8>> {
        let total: u64 = area.runs(size, block).map(|r| r.end - r.start).sum();
        let mut bytes = Vec::with_capacity(total as usize);
        self.read_pieces(place, area, size, block, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// The same bytes in pieces of whole elements, so that nothing as large as the tensor stands beside it.
    fn read_pieces(
        &self,
        place: &TensorPlace,
        area: &Area,
        size: usize,
        block: usize,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (path, file) = &self.files[place.file];
        let mut piece = Vec::with_capacity(PIECE);
        for run in area.runs(size, block) {
            let mut at = run.start;
            while at < run.end {
                let held = piece.len();
                let len = (PIECE - held).min((run.end - at) as usize);
                piece.resize(held + len, 0);
                file.read_exact_at(&mut piece[held..], place.offset + at)
                    .map_err(|e| Error::File { path: path.clone(), source: e })?;
                self.read.fetch_add(len as u64, Ordering::Relaxed);
                at += len as u64;
                if piece.len() == PIECE {
                    take(&piece)?;
                    piece.clear();
                }
            }
        }
        if piece.is_empty() { Ok(()) } else { take(&piece) }
    }
}

/// The safetensors files of a folder, by name.
fn in_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the folder has no safetensors files"));
    }
    files.sort();
    Ok(files)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
