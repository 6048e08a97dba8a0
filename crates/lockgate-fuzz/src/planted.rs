//! Decoders with a mistake on purpose: the fuzzer must find each.

/// A level for each `Entry.1.` in front of a name: a stack is used up by a few hundred.
pub(crate) fn recursion(bytes: &[u8]) -> Result<(), String> {
    let levels = bytes.split(|&byte| byte == b'&').map(levels).max();
    match levels {
        Some(levels) if levels > 0 => Ok(()),
        _ => Err("nothing in it is nested".to_owned()),
    }
}

fn levels(name: &[u8]) -> usize {
    let Some(rest) = name.strip_prefix(b"Entry.1.") else {
        return 0;
    };
    // A little of each level is kept until all below it are done.
    let kept = std::hint::black_box([1usize; 32]);
    levels(rest) + kept[rest.len() % 32]
}

/// A length is believed before its bytes are there.
pub(crate) fn allocation(bytes: &[u8]) -> Result<(), String> {
    let rest = bytes.strip_prefix(b"LEN ").ok_or("there is no length")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let len: usize = String::from_utf8_lossy(&rest[..digits.min(7)])
        .parse()
        .map_err(|_| "the length is no number")?;
    let mut content = std::hint::black_box(Vec::with_capacity(len));
    content.extend_from_slice(&rest[digits..]);
    if content.len() < len {
        return Err("it ends too early".to_owned());
    }
    Ok(())
}

/// A panic behind a checksum.
pub(crate) fn checksum(bytes: &[u8]) -> Result<(), String> {
    let (sum, content) = bytes.split_at_checked(4).ok_or("there is no checksum")?;
    if sum != crc32c::crc32c(content).to_le_bytes() {
        return Err("the checksum does not fit".to_owned());
    }
    assert!(
        !content.ends_with(b"&LEN "),
        "an end that nobody thought of"
    );
    Ok(())
}
