//! CRC32C (Castagnoli), which frames and messages carry.
//!
//! ```text
//!   bytes   │ 64 64 64 64 │ 64 64 64 64 │ ..  │ 64 │ 64 │ 13 │
//!             4 registers, each moved on and    one, the  the processor's instruction, for what is left
//!             added to what comes next          same      in that register, and for the last bytes
//! ```
//!
//! A register is moved on by `n` bytes when its halves are multiplied, without carries, by powers of `x` modulo the polynomial
//! ("Fast CRC Computation Using PCLMULQDQ Instruction", Intel, 2009). Bits are reflected: the first of a byte is its lowest.

/// The polynomial without its highest term.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Checksum of the bytes so far.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Returns that of no bytes.
    pub const fn new() -> Self {
        Self(!0)
    }

    /// Counts more bytes in.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = update(self.0, bytes);
    }

    /// Returns the checksum.
    pub const fn value(self) -> u32 {
        !self.0
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the CRC32C of these bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut sum = Crc32c::new();
    sum.update(bytes);
    sum.value()
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn update(state: u32, bytes: &[u8]) -> u32 {
    match special() {
        Some(special) => special(state, bytes),
        None => by_table(state, bytes),
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn update(state: u32, bytes: &[u8]) -> u32 {
    by_table(state, bytes)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
type Update = fn(u32, &[u8]) -> u32;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn special() -> Option<Update> {
    available().next()
}

/// Ways that this processor has, the best first.
#[cfg(target_arch = "x86_64")]
fn available() -> impl Iterator<Item = Update> {
    let narrow = !cfg!(miri) && is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq");
    let wide = narrow && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq");
    // SAFETY: the processor has what each of them needs.
    let wide = wide.then_some((|state, bytes: &[u8]| unsafe { x86_64::wide(state, bytes) }) as Update);
    // SAFETY: the same.
    let narrow = narrow.then_some((|state, bytes: &[u8]| unsafe { x86_64::narrow(state, bytes) }) as Update);
    wide.into_iter().chain(narrow)
}

/// Ways that this processor has, the best first.
#[cfg(target_arch = "aarch64")]
fn available() -> impl Iterator<Item = Update> {
    use std::arch::is_aarch64_feature_detected;
    let has = !cfg!(miri) && is_aarch64_feature_detected!("crc") && is_aarch64_feature_detected!("aes");
    // SAFETY: the processor has what it needs.
    has.then_some((|state, bytes: &[u8]| unsafe { aarch64::narrow(state, bytes) }) as Update).into_iter()
}

/// `x^n` modulo the polynomial.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const fn power(n: usize) -> u64 {
    let mut power = 1 << 31;
    let mut i = 0;
    while i < n {
        power = step(power);
        i += 1;
    }
    power as u64
}

/// Factors of the lower and the upper half of 16 bytes that move them on by so many bytes. A product of reflected numbers is itself
/// moved on by 33 bits.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const fn factors(bytes: usize) -> [u64; 2] {
    [power(8 * bytes + 64 - 33), power(8 * bytes - 33)]
}

/// `x` times a polynomial.
const fn step(p: u32) -> u32 {
    (p >> 1) ^ if p & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// Eight bytes at a time, where the processor has no instruction for it.
fn by_table(mut state: u32, bytes: &[u8]) -> u32 {
    static TABLES: [[u32; 256]; 8] = tables();
    let entry = |ahead: usize, byte: u32| TABLES[ahead][(byte & 0xff) as usize];
    let (words, rest) = bytes.as_chunks::<8>();
    for &[a, b, c, d, e, f, g, h] in words {
        let low = state ^ u32::from_le_bytes([a, b, c, d]);
        let high = u32::from_le_bytes([e, f, g, h]);
        let half = |ahead, x: u32| {
            entry(ahead + 3, x) ^ entry(ahead + 2, x >> 8) ^ entry(ahead + 1, x >> 16) ^ entry(ahead, x >> 24)
        };
        state = half(4, low) ^ half(0, high);
    }
    rest.iter().fold(state, |state, &byte| (state >> 8) ^ entry(0, state ^ u32::from(byte)))
}

/// Remainders of each byte, followed by 0 to 7 zeros.
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut ahead = 0;
        while ahead < 8 {
            let mut bit = 0;
            while bit < 8 {
                value = step(value);
                bit += 1;
            }
            tables[ahead][byte] = value;
            ahead += 1;
        }
        byte += 1;
    }
    tables
}

/// A function that folds in registers of `$bytes` bytes, `$lanes` of them at once. In its scope are of the processor: `load`, `place` of a
/// state in the first bytes, `xor`, `spread` of factors, `fold`, `store`, and `words`, which takes what is short.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! folding {
    ($name:ident, $features:literal, $registers:ident, $bytes:literal, $lanes:literal) => {
        #[target_feature(enable = $features)]
        pub(super) fn $name(state: u32, bytes: &[u8]) -> u32 {
            use $registers::{fold, load, place, spread, store, xor};
            let (blocks, rest) = bytes.as_chunks::<$bytes>();
            let Some((first, blocks)) = blocks.split_first_chunk::<$lanes>() else {
                return words(state, bytes);
            };
            let mut lanes = [place(0); $lanes];
            for (lane, block) in lanes.iter_mut().zip(first) {
                *lane = load(block);
            }
            lanes[0] = xor(lanes[0], place(state));
            let far = spread(const { factors($bytes * $lanes) });
            let (turns, blocks) = blocks.as_chunks::<$lanes>();
            for turn in turns {
                for (lane, block) in lanes.iter_mut().zip(turn) {
                    *lane = fold(*lane, far, load(block));
                }
            }
            let near = spread(const { factors($bytes) });
            let [mut last, others @ ..] = lanes;
            for next in others {
                last = fold(last, near, next);
            }
            for block in blocks {
                last = fold(last, near, load(block));
            }
            words(words(0, &store(last)), rest)
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::factors;
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

    folding!(wide, "avx512f,vpclmulqdq,pclmulqdq,sse4.2", zmm, 64, 4);
    folding!(narrow, "pclmulqdq,sse4.2", xmm, 16, 8);

    #[target_feature(enable = "sse4.2")]
    fn words(state: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut state = words.fold(u64::from(state), |state, word| _mm_crc32_u64(state, word)) as u32;
        for &byte in rest {
            state = _mm_crc32_u8(state, byte);
        }
        state
    }

    mod zmm {
        use std::arch::x86_64::{
            __m512i, _mm_cvtsi32_si128, _mm_set_epi64x, _mm512_broadcast_i32x4, _mm512_clmulepi64_epi128,
            _mm512_loadu_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
            _mm512_zextsi128_si512,
        };

        #[inline]
        #[target_feature(enable = "avx512f")]
        pub(super) fn load(bytes: &[u8; 64]) -> __m512i {
            // SAFETY: 64 bytes are there, and need no alignment.
            unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
        }

        #[inline]
        #[target_feature(enable = "avx512f")]
        pub(super) fn store(x: __m512i) -> [u8; 64] {
            let mut bytes = [0; 64];
            // SAFETY: 64 bytes are there, and need no alignment.
            unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), x) };
            bytes
        }

        #[inline]
        #[target_feature(enable = "avx512f")]
        pub(super) fn place(state: u32) -> __m512i {
            _mm512_zextsi128_si512(_mm_cvtsi32_si128(state.cast_signed()))
        }

        #[inline]
        #[target_feature(enable = "avx512f")]
        pub(super) fn xor(a: __m512i, b: __m512i) -> __m512i {
            _mm512_xor_si512(a, b)
        }

        #[inline]
        #[target_feature(enable = "avx512f")]
        pub(super) fn spread([low, high]: [u64; 2]) -> __m512i {
            _mm512_broadcast_i32x4(_mm_set_epi64x(high.cast_signed(), low.cast_signed()))
        }

        #[inline]
        #[target_feature(enable = "avx512f,vpclmulqdq")]
        pub(super) fn fold(x: __m512i, factors: __m512i, next: __m512i) -> __m512i {
            let low = _mm512_clmulepi64_epi128::<0x00>(x, factors);
            let high = _mm512_clmulepi64_epi128::<0x11>(x, factors);
            // The sum of three.
            _mm512_ternarylogic_epi64::<0x96>(low, high, next)
        }
    }

    mod xmm {
        use std::arch::x86_64::{
            __m128i, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_set_epi64x,
            _mm_storeu_si128, _mm_xor_si128,
        };

        #[inline]
        pub(super) fn load(bytes: &[u8; 16]) -> __m128i {
            // SAFETY: 16 bytes are there, and need no alignment; each x86-64 has the instruction.
            unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
        }

        #[inline]
        pub(super) fn store(x: __m128i) -> [u8; 16] {
            let mut bytes = [0; 16];
            // SAFETY: 16 bytes are there, and need no alignment; each x86-64 has the instruction.
            unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), x) };
            bytes
        }

        #[inline]
        #[target_feature(enable = "sse2")]
        pub(super) fn place(state: u32) -> __m128i {
            _mm_cvtsi32_si128(state.cast_signed())
        }

        #[inline]
        #[target_feature(enable = "sse2")]
        pub(super) fn xor(a: __m128i, b: __m128i) -> __m128i {
            _mm_xor_si128(a, b)
        }

        #[inline]
        #[target_feature(enable = "sse2")]
        pub(super) fn spread([low, high]: [u64; 2]) -> __m128i {
            _mm_set_epi64x(high.cast_signed(), low.cast_signed())
        }

        #[inline]
        #[target_feature(enable = "pclmulqdq")]
        pub(super) fn fold(x: __m128i, factors: __m128i, next: __m128i) -> __m128i {
            let low = _mm_clmulepi64_si128::<0x00>(x, factors);
            let high = _mm_clmulepi64_si128::<0x11>(x, factors);
            _mm_xor_si128(_mm_xor_si128(low, high), next)
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::factors;
    use std::arch::aarch64::{__crc32cb, __crc32cd};

    folding!(narrow, "neon,aes,crc", neon, 16, 8);

    #[target_feature(enable = "crc")]
    fn words(mut state: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            state = __crc32cd(state, u64::from_le_bytes(*word));
        }
        for &byte in rest {
            state = __crc32cb(state, byte);
        }
        state
    }

    mod neon {
        use std::arch::aarch64::{
            poly64x2_t, uint8x16_t, vcombine_u64, vcreate_u64, veorq_u8, vgetq_lane_p64, vld1q_u8,
            vmull_high_p64, vmull_p64, vreinterpretq_p64_u8, vreinterpretq_p64_u64, vreinterpretq_u8_p128,
            vreinterpretq_u8_u64, vst1q_u8,
        };

        #[inline]
        #[target_feature(enable = "neon")]
        pub(super) fn load(bytes: &[u8; 16]) -> uint8x16_t {
            // SAFETY: 16 bytes are there, and need no alignment.
            unsafe { vld1q_u8(bytes.as_ptr()) }
        }

        #[inline]
        #[target_feature(enable = "neon")]
        pub(super) fn store(x: uint8x16_t) -> [u8; 16] {
            let mut bytes = [0; 16];
            // SAFETY: 16 bytes are there, and need no alignment.
            unsafe { vst1q_u8(bytes.as_mut_ptr(), x) };
            bytes
        }

        #[inline]
        #[target_feature(enable = "neon")]
        pub(super) fn place(state: u32) -> uint8x16_t {
            vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(u64::from(state)), vcreate_u64(0)))
        }

        #[inline]
        #[target_feature(enable = "neon")]
        pub(super) fn xor(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            veorq_u8(a, b)
        }

        #[inline]
        #[target_feature(enable = "neon")]
        pub(super) fn spread([low, high]: [u64; 2]) -> poly64x2_t {
            vreinterpretq_p64_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high)))
        }

        #[inline]
        #[target_feature(enable = "neon,aes")]
        pub(super) fn fold(x: uint8x16_t, factors: poly64x2_t, next: uint8x16_t) -> uint8x16_t {
            let x = vreinterpretq_p64_u8(x);
            let low = vmull_p64(vgetq_lane_p64::<0>(x), vgetq_lane_p64::<0>(factors));
            let high = vmull_high_p64(x, factors);
            veorq_u8(veorq_u8(vreinterpretq_u8_p128(low), vreinterpretq_u8_p128(high)), next)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bit at a time, as the definition has it.
    fn by_bits(state: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(state, |state, byte| (0..8).fold(state ^ u32::from(*byte), |p, _| step(p)))
    }

    fn bytes(len: usize) -> Vec<u8> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn known_checksums() {
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46dd_794e);
    }

    #[test]
    fn each_way_gives_the_same_for_each_length_and_alignment() {
        let all = bytes(if cfg!(miri) { 80 } else { 1200 });
        for start in [0, 1, 7] {
            for end in start..all.len() {
                let bytes = &all[start..end];
                let wanted = by_bits(0x1234_5678, bytes);
                assert_eq!(by_table(0x1234_5678, bytes), wanted, "by table, {start}..{end}");
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                for (i, update) in available().enumerate() {
                    assert_eq!(update(0x1234_5678, bytes), wanted, "by {i}, {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn parts_count_as_the_whole() {
        let all = bytes(700);
        for cut in [0, 1, 20, 63, 64, 256, 300, 699, 700] {
            let mut sum = Crc32c::default();
            sum.update(&all[..cut]);
            sum.update(&all[cut..]);
            assert_eq!(sum.value(), !by_bits(!0, &all), "cut at {cut}");
        }
    }
}
