//! Computes the MD5 of several texts at once.
//!
//! One MD5 is a chain of 64 steps a block. Each step waits for the one before, so a processor idles
//! through most of it. The texts are independent: side by side, one in each vector lane, ten cost
//! hardly more than one. The program detects the processor's vectors when it runs. The algorithm is
//! RFC 1321.

use std::array;

use fearless_simd::{Level, Simd, dispatch, prelude::*, u32x16};
use md5::{Digest as _, Md5};

/// Texts side by side; enough for a batch.
const LANES: usize = 16;

/// Up to this many texts are as fast one after the other.
const FEW: usize = 2;

const BLOCK_LEN: usize = 64;
const BLOCK_WORDS: usize = 16;

type Block = [u8; BLOCK_LEN];

/// One word of each text.
type Words<S> = u32x16<S>;

/// The state that each text begins with: A, B, C and D.
const BEGINNING: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// The integer part of 2^32 times the sine of 1 to 64, without its sign.
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee, 0xf57c_0faf, 0x4787_c62a, 0xa830_4613,
    0xfd46_9501, 0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be, 0x6b90_1122, 0xfd98_7193,
    0xa679_438e, 0x49b4_0821, 0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa, 0xd62f_105d,
    0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8, 0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed,
    0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a, 0xfffa_3942, 0x8771_f681, 0x6d9d_6122,
    0xfde5_380c, 0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70, 0x289b_7ec6, 0xeaa1_27fa,
    0xd4ef_3085, 0x0488_1d05, 0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665, 0xf429_2244,
    0x432a_ff97, 0xab94_23a7, 0xfc93_a039, 0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1, 0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb,
    0xeb86_d391,
];

/// The MD5 of each text, in order.
pub(crate) fn md5_each(texts: &[&[u8]]) -> Vec<[u8; 16]> {
    if texts.len() <= FEW {
        return texts.iter().map(|text| Md5::digest(text).into()).collect();
    }
    md5_side_by_side(Level::new(), texts)
}

fn md5_side_by_side(level: Level, texts: &[&[u8]]) -> Vec<[u8; 16]> {
    let mut digests = vec![[0; 16]; texts.len()];
    // All lanes run until the longest of them ends, so texts of similar length go together.
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_unstable_by_key(|&at| texts[at].len());
    for places in order.chunks(LANES) {
        dispatch!(level, simd => md5_lanes(simd, texts, places, &mut digests));
    }
    digests
}

/// The MD5 of the texts at these places: at least one, at most as many as there are lanes, in order
/// of their lengths.
#[inline(always)]
fn md5_lanes<S: Simd>(simd: S, texts: &[&[u8]], places: &[usize], digests: &mut [[u8; 16]]) {
    // A spare lane repeats the last text.
    let last = places.len() - 1;
    let padded: [Padded<'_>; LANES] =
        array::from_fn(|lane| Padded::new(texts[places[lane.min(last)]]));
    let mut state = BEGINNING.map(|word| Words::splat(simd, word));
    let mut done = 0;
    for at in 0..padded[last].len() {
        let words = words(simd, padded.each_ref().map(|text| text.block(at)));
        let next = compress(simd, state, &words);
        state = array::from_fn(|word| state[word] + next[word]);
        while done < places.len() && padded[done].len() == at + 1 {
            let (out, _) = digests[places[done]].as_chunks_mut::<4>();
            for (out, word) in out.iter_mut().zip(&state) {
                *out = word.as_slice()[done].to_le_bytes();
            }
            done += 1;
        }
    }
}

/// A text as MD5 reads it: whole blocks, then one or two blocks with the rest, a set bit, zeros,
/// and the length.
struct Padded<'a> {
    whole: &'a [Block],
    end: [Block; 2],
    end_len: usize,
}

impl<'a> Padded<'a> {
    fn new(text: &'a [u8]) -> Self {
        let (whole, rest) = text.as_chunks::<BLOCK_LEN>();
        let mut end = [[0; BLOCK_LEN]; 2];
        end[0][..rest.len()].copy_from_slice(rest);
        end[0][rest.len()] = 0x80;
        let bits = (text.len() as u64).wrapping_mul(8).to_le_bytes();
        let end_len = if rest.len() + 1 + bits.len() <= BLOCK_LEN {
            1
        } else {
            2
        };
        end[end_len - 1][BLOCK_LEN - bits.len()..].copy_from_slice(&bits);
        Self {
            whole,
            end,
            end_len,
        }
    }

    /// The number of blocks.
    fn len(&self) -> usize {
        self.whole.len() + self.end_len
    }

    /// A block; behind the end, any block.
    #[inline(always)]
    fn block(&self, at: usize) -> &Block {
        let in_end = at.saturating_sub(self.whole.len());
        self.whole
            .get(at)
            .unwrap_or_else(|| &self.end[in_end.min(self.end.len() - 1)])
    }
}

/// Transposes the words of a block of each text: the first vector has the first word of each, and
/// so on.
#[inline(always)]
fn words<S: Simd>(simd: S, blocks: [&Block; LANES]) -> [Words<S>; BLOCK_WORDS] {
    let mut rows = blocks.map(|block| {
        let (bytes, _) = block.as_chunks::<4>();
        let words: [u32; BLOCK_WORDS] = array::from_fn(|at| u32::from_le_bytes(bytes[at]));
        Words::from_slice(simd, &words)
    });
    // Each pass interleaves the first half of the rows with the second, word by word, like a riffle
    // shuffle. After log2(lanes) passes, rows are columns.
    for _ in 0..LANES.ilog2() {
        let (first, second) = rows.split_at(LANES / 2);
        let pairs: [_; LANES / 2] = array::from_fn(|at| (first[at], second[at]));
        for (row, (first, second)) in rows.chunks_exact_mut(2).zip(pairs) {
            row[0] = first.zip_low(second);
            row[1] = first.zip_high(second);
        }
    }
    rows
}

/// Mixes the next block into a copy of the state, without adding the old state.
#[inline(always)]
fn compress<S: Simd>(
    simd: S,
    mut now: [Words<S>; 4],
    words: &[Words<S>; BLOCK_WORDS],
) -> [Words<S>; 4] {
    // A round of 16 steps: its first sine, the word that each step takes (a factor and a summand),
    // the rotation of each step, and its mixing function. Written out, because only constants make
    // fast code.
    macro_rules! round {
        ($sine:literal, $times:literal, $plus:literal, $turns:expr, $mix:expr) => {
            round!(@ $sine, $times, $plus, $turns, $mix;
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
        };
        (@ $sine:literal, $times:literal, $plus:literal, $turns:expr, $mix:expr; $($i:literal)*) => {$(
            let sine = Words::splat(simd, SINES[$sine + $i]);
            step(
                &mut now,
                $i % 4,
                words[($i * $times + $plus) % BLOCK_WORDS] + sine,
                $turns[$i % 4],
                $mix,
            );
        )*};
    }
    round!(0, 1, 0, [7, 12, 17, 22], |b, c, d| (b & (c ^ d)) ^ d);
    round!(16, 5, 1, [5, 9, 14, 20], |b, c, d| (d & (b ^ c)) ^ c);
    round!(32, 3, 5, [4, 11, 16, 23], |b, c, d| b ^ c ^ d);
    round!(48, 7, 0, [6, 10, 15, 21], |b, c, d: Words<S>| c ^ (b | !d));
    now
}

/// One step for all lanes. The four words of the state change roles from step to step.
#[inline(always)]
fn step<S: Simd>(
    state: &mut [Words<S>; 4],
    turn: usize,
    summand: Words<S>,
    left: u32,
    mix: impl Fn(Words<S>, Words<S>, Words<S>) -> Words<S>,
) {
    let [a, b, c, d] = [4, 5, 6, 7].map(|part| (part - turn) % 4);
    // First the sum that does not depend on the last step.
    let known = state[a] + summand;
    let sum = mix(state[b], state[c], state[d]) + known;
    let turned = (sum << left) | (sum >> (u32::BITS - left));
    state[a] = turned + state[b];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(texts: &[&[u8]]) {
        let expected: Vec<[u8; 16]> = texts.iter().map(|text| Md5::digest(text).into()).collect();
        let lens: Vec<usize> = texts.iter().map(|text| text.len()).collect();
        assert_eq!(md5_each(texts), expected, "{lens:?}");
        for level in levels() {
            assert_eq!(
                md5_side_by_side(level, texts),
                expected,
                "{level:?} {lens:?}"
            );
        }
    }

    /// All kinds of vectors that this processor has, not only the widest.
    fn levels() -> Vec<Level> {
        let widest = Level::new();
        #[cfg(target_arch = "x86_64")]
        let lesser = [
            widest.as_avx2().map(Simd::level),
            widest.as_sse4_2().map(Simd::level),
            widest.as_sse2().map(Simd::level),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let lesser: [Option<Level>; 0] = [];
        lesser.into_iter().flatten().chain([widest]).collect()
    }

    #[test]
    fn every_number_of_texts_of_every_length_has_the_digests_of_the_definition() {
        let pool: Vec<u8> = (0..3000_u32)
            .map(|at| u8::try_from(at.wrapping_mul(2_654_435_761) >> 24).unwrap())
            .collect();
        check(&[]);
        // Lengths around each border of a block and of the padding, alone and beside longer texts.
        for len in 0..300 {
            check(&[&pool[..len]]);
            check(&[&pool[1..=len], &pool[..200], &pool[..len]]);
        }
        for count in 1..=2 * LANES + FEW {
            let alike: Vec<&[u8]> = (0..count).map(|at| &pool[at..at + 1024]).collect();
            check(&alike);
            // No two alike, and not in order.
            let mixed: Vec<&[u8]> = (0..count)
                .map(|at| &pool[at..at + (at * 997) % 2100])
                .collect();
            check(&mixed);
        }
    }
}
