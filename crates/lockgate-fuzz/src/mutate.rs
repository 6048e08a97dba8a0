//! New inputs from old ones.

use lockgate_sim::SeededRandom;

use crate::Target;

/// Changes the input that `data` begins with, `size` bytes of it, into another of at most `max` bytes,
/// and says how many. `native` is libFuzzer's own mutation, with its dictionary and what it saw
/// compared.
///
/// Half of the time that one is used. The other half repeats and nests: a mistake that shows at a
/// thousand levels is out of reach for one that adds them one by one.
pub fn mutate(
    target: &Target,
    data: &mut [u8],
    size: usize,
    max: usize,
    seed: u32,
    mut native: impl FnMut(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut random = SeededRandom::new(seed.into());
    let is_native = random.chance(50);
    let size = if is_native {
        native(data, size, max)
    } else {
        size
    };
    if is_native && target.repair.is_none() {
        return size;
    }
    let mut input = data[..size.min(data.len())].to_vec();
    if !is_native {
        for _ in 0..=random.below(2) {
            change(target, &mut input, max, &mut random);
        }
    }
    // Sometimes it must be seen that wrong ones are found out.
    if let Some(repair) = target.repair
        && random.chance(90)
    {
        repair(&mut input, &mut random);
    }
    input.truncate(max.min(data.len()));
    data[..input.len()].copy_from_slice(&input);
    input.len()
}

fn change(target: &Target, input: &mut Vec<u8>, max: usize, random: &mut SeededRandom) {
    let words: Vec<&str> = target.words().collect();
    match random.below(8) {
        // A stretch again and again.
        0 | 1 => {
            let (from, to) = stretch(input, random);
            let piece = input[from..to].to_vec();
            insert(input, to, &piece.repeat(times(piece.len(), max, random)));
        }
        // A word, or a few behind each other, again and again.
        2 | 3 if !words.is_empty() => {
            let mut piece = Vec::new();
            for _ in 0..=random.below(3) {
                piece.extend_from_slice(words[random.index(words.len())].as_bytes());
            }
            let at = place(input, random);
            insert(input, at, &piece.repeat(times(piece.len(), max, random)));
        }
        // Something within something within something.
        4 | 5 if !target.pairs.is_empty() => {
            let (open, close) = target.pairs[random.index(target.pairs.len())];
            let (from, to) = stretch(input, random);
            let count = times(open.len() + close.len(), max, random);
            insert(input, to, &close.as_bytes().repeat(count));
            insert(input, from, &open.as_bytes().repeat(count));
        }
        // A word for a stretch.
        6 if !words.is_empty() => {
            let (from, to) = stretch(input, random);
            let word = words[random.index(words.len())];
            input.splice(from..to, word.bytes());
        }
        // A stretch less.
        _ => {
            let (from, to) = stretch(input, random);
            input.drain(from..to);
        }
    }
}

/// How often something is repeated: often once, sometimes as often as there is room for it.
fn times(len: usize, max: usize, random: &mut SeededRandom) -> usize {
    let room = (max / len.max(1)).max(1);
    let wanted = 1usize << random.below(14);
    wanted.min(room)
}

fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    input.splice(at..at, piece.iter().copied());
}

/// Where a part begins, or anywhere.
fn place(input: &[u8], random: &mut SeededRandom) -> usize {
    let anywhere = random.index(input.len() + 1);
    if random.chance(50) {
        return anywhere;
    }
    let next = input[anywhere..].iter().position(|&byte| is_end(byte));
    next.map_or(anywhere, |ahead| anywhere + ahead + 1)
}

fn stretch(input: &[u8], random: &mut SeededRandom) -> (usize, usize) {
    let (one, other) = (place(input, random), place(input, random));
    (one.min(other), one.max(other))
}

/// Whether a part of most grammars ends here.
fn is_end(byte: u8) -> bool {
    matches!(
        byte,
        b'&' | b'\n' | b'.' | b',' | b'=' | b':' | b'{' | b'}' | b'[' | b']' | b' ' | b';' | b'/'
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TARGETS;

    #[test]
    fn no_change_is_longer_than_allowed() {
        for target in TARGETS {
            let mut seeds = target.seeds();
            seeds.push(Vec::new());
            for (at, seed) in seeds.iter().enumerate() {
                for number in 0..200 {
                    let max = 1 + at * 300 + number as usize;
                    let mut data = seed.clone();
                    data.resize(max.max(seed.len()), 0);
                    let size = mutate(
                        target,
                        &mut data,
                        seed.len(),
                        max,
                        number,
                        |_, size, max| size.min(max),
                    );
                    assert!(size <= max, "{}: {size} of {max}", target.name);
                }
            }
        }
    }
}
