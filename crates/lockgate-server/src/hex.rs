//! Bytes as lower-case hexadecimal digits.

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut digits = vec![0; bytes.len() * 2];
    write_hex(bytes, &mut digits);
    String::from_utf8(digits).expect("hexadecimal digits are ASCII")
}

/// Writes two digits for each byte.
pub(crate) fn write_hex(bytes: &[u8], digits: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_bytes() {
        assert_eq!(hex(&[0x00, 0x1f, 0xa9, 0xff]), "001fa9ff");
    }
}
