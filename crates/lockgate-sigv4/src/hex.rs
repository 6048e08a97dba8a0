//! Bytes as lower-case hexadecimal digits, and back.

/// Returns the digits of the bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = vec![0; bytes.len() * 2];
    write_hex(bytes, &mut digits);
    String::from_utf8(digits).expect("hexadecimal digits are ASCII")
}

/// Writes two digits for each byte, as far as there is room.
pub fn write_hex(bytes: &[u8], digits: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

/// Returns the bytes of exactly as many lower-case digits as they have.
pub(crate) fn from_hex<const LEN: usize>(digits: &str) -> Option<[u8; LEN]> {
    let digits = digits.as_bytes();
    let mut bytes = [0; LEN];
    if digits.len() != LEN * 2 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_name_bytes() {
        assert_eq!(hex(&[0x00, 0x1f, 0xa9, 0xff]), "001fa9ff");
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex::<256>(&hex(&all)).unwrap()[..], all);
        for wrong in [
            "001fa9f",
            "001fa9ff0",
            "001fa9ff00",
            "001FA9FF",
            "001fa9fg",
            "001fé9f",
        ] {
            assert_eq!(from_hex::<4>(wrong), None, "{wrong}");
        }
    }
}
