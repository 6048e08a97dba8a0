//! Bytes as lower-case hexadecimal digits, and back.

/// The digits of the bytes.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of exactly as many lower-case digits as they have.
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
