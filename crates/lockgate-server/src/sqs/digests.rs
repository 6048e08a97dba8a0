//! The MD5 of several texts at once.
//!
//! One MD5 is a chain of 64 steps a block, each of which waits for the one before, so a processor
//! idles through most of it. Texts know nothing of each other: taken side by side, lane by lane, five
//! cost little more than one. Lanes are plain arrays, which the compiler turns into vector
//! instructions that every processor of the platform has. The algorithm is RFC 1321's.

/// Texts side by side: four in one vector, and one beside it in the plain registers. More need more
/// registers than there are, and are slower. Ten texts, which is a batch, are twice five.
const LANES_MAX: usize = 5;

const BLOCK_LEN: usize = 64;

type Block = [u8; BLOCK_LEN];

/// One word of the state of each of `N` texts.
type Lanes<const N: usize> = [u32; N];

/// The state of `N` texts: A, B, C and D.
type State<const N: usize> = [Lanes<N>; 4];

const BEGINNING: State<1> = [[0x6745_2301], [0xefcd_ab89], [0x98ba_dcfe], [0x1032_5476]];

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
    let mut digests = vec![[0; 16]; texts.len()];
    // Lanes go together as far as the shortest of them, so those of a length belong together.
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_unstable_by_key(|&at| texts[at].len());
    let (whole, rest) = order.as_chunks::<LANES_MAX>();
    for lanes in whole {
        md5_lanes(texts, *lanes, &mut digests);
    }
    match *rest {
        [a, b, c, d] => md5_lanes(texts, [a, b, c, d], &mut digests),
        [a, b, c] => md5_lanes(texts, [a, b, c], &mut digests),
        [a, b] => md5_lanes(texts, [a, b], &mut digests),
        [a] => md5_lanes(texts, [a], &mut digests),
        _ => {}
    }
    digests
}

/// The MD5 of the texts at these places.
fn md5_lanes<const N: usize>(texts: &[&[u8]], places: [usize; N], digests: &mut [[u8; 16]]) {
    let padded = places.map(|place| Padded::new(texts[place]));
    let together = padded.iter().map(Padded::len).min().unwrap_or(0);
    let mut state: State<N> = BEGINNING.map(|[word]| [word; N]);
    for at in 0..together {
        compress(&mut state, padded.each_ref().map(|text| text.block(at)));
    }
    for (lane, (text, place)) in padded.iter().zip(places).enumerate() {
        let mut own: State<1> = state.map(|word| [word[lane]]);
        for at in together..text.len() {
            compress(&mut own, [text.block(at)]);
        }
        let (words, _) = digests[place].as_chunks_mut::<4>();
        for (bytes, [word]) in words.iter_mut().zip(own) {
            *bytes = word.to_le_bytes();
        }
    }
}

/// A text as MD5 reads it: whole blocks, then one or two with what is left of it, a bit, zeros, and
/// its length.
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

    /// How many blocks.
    fn len(&self) -> usize {
        self.whole.len() + self.end_len
    }

    fn block(&self, at: usize) -> &Block {
        self.whole
            .get(at)
            .unwrap_or_else(|| &self.end[at - self.whole.len()])
    }
}

/// Takes the next block of each text.
#[inline]
fn compress<const N: usize>(state: &mut State<N>, blocks: [&Block; N]) {
    let mut words = [[0; N]; 16];
    for (lane, block) in blocks.iter().enumerate() {
        let (bytes, _) = block.as_chunks::<4>();
        for (word, bytes) in words.iter_mut().zip(bytes) {
            word[lane] = u32::from_le_bytes(*bytes);
        }
    }
    let mut now = *state;
    // A round of 16 steps: its first sine, which word each step takes (a factor and a summand), how
    // far its steps turn, and how it mixes. Written out, because only constants make fast code.
    macro_rules! round {
        ($sine:literal, $times:literal, $plus:literal, $turns:expr, $mix:expr) => {
            round!(@ $sine, $times, $plus, $turns, $mix;
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
        };
        (@ $sine:literal, $times:literal, $plus:literal, $turns:expr, $mix:expr; $($i:literal)*) => {$(
            step(
                &mut now,
                $i % 4,
                &words[($i * $times + $plus) % 16],
                SINES[$sine + $i],
                $turns[$i % 4],
                $mix,
            );
        )*};
    }
    round!(0, 1, 0, [7, 12, 17, 22], |b, c, d| (b & (c ^ d)) ^ d);
    round!(16, 5, 1, [5, 9, 14, 20], |b, c, d| (d & (b ^ c)) ^ c);
    round!(32, 3, 5, [4, 11, 16, 23], |b, c, d| b ^ c ^ d);
    round!(48, 7, 0, [6, 10, 15, 21], |b: u32, c: u32, d: u32| c
        ^ (b | !d));
    for (word, now) in state.iter_mut().zip(now) {
        for (lane, now) in word.iter_mut().zip(now) {
            *lane = lane.wrapping_add(now);
        }
    }
}

/// One step for all lanes. The four words of the state swap their parts from step to step.
#[inline(always)]
fn step<const N: usize>(
    state: &mut State<N>,
    turn: usize,
    word: &Lanes<N>,
    sine: u32,
    left: u32,
    mix: impl Fn(u32, u32, u32) -> u32,
) {
    let [a, b, c, d] = [4, 5, 6, 7].map(|part| (part - turn) % 4);
    // Lane after lane within each operation: this is what becomes one instruction.
    let mut mixed = [0; N];
    for lane in 0..N {
        mixed[lane] = mix(state[b][lane], state[c][lane], state[d][lane]);
    }
    let mut sum = [0; N];
    for lane in 0..N {
        let known = state[a][lane].wrapping_add(word[lane]).wrapping_add(sine);
        sum[lane] = mixed[lane].wrapping_add(known);
    }
    let mut turned = [0; N];
    for lane in 0..N {
        turned[lane] = sum[lane].rotate_left(left).wrapping_add(state[b][lane]);
    }
    state[a] = turned;
}

#[cfg(test)]
mod tests {
    use md5::{Digest as _, Md5};

    use super::*;

    fn check(texts: &[&[u8]]) {
        let expected: Vec<[u8; 16]> = texts.iter().map(|text| Md5::digest(text).into()).collect();
        let lens: Vec<usize> = texts.iter().map(|text| text.len()).collect();
        assert_eq!(md5_each(texts), expected, "{lens:?}");
    }

    #[test]
    fn every_number_of_texts_of_every_length_has_the_digests_of_the_definition() {
        let pool: Vec<u8> = (0..3000_u32)
            .map(|at| u8::try_from(at.wrapping_mul(2_654_435_761) >> 24).unwrap())
            .collect();
        check(&[]);
        // Around each border of a block and of the padding, alone and beside longer ones.
        for len in 0..300 {
            check(&[&pool[..len]]);
            check(&[&pool[1..=len], &pool[..200], &pool[..len]]);
        }
        for count in 1..=11 {
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
