//! Smaller inputs that break a target too.

/// Takes parts away from `input`, large ones first, as long as what is left still `breaks`; that says
/// `None` when it is time to end.
pub(super) fn minimize(
    mut input: Vec<u8>,
    mut breaks: impl FnMut(&[u8]) -> Option<bool>,
) -> Vec<u8> {
    let mut part = input.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        let mut shrunk = false;
        while at < input.len() {
            let mut less = input.clone();
            less.drain(at..(at + part).min(input.len()));
            match breaks(&less) {
                None => return input,
                Some(true) => {
                    input = less;
                    shrunk = true;
                }
                Some(false) => at += part,
            }
        }
        if !shrunk || part > 1 {
            part /= 2;
        }
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_is_left() {
        let input = b"aaaaaaaaXbbbbbbbbbbbbbYccccc".to_vec();
        let left = minimize(input, |input| {
            Some(input.contains(&b'X') && input.contains(&b'Y'))
        });
        assert_eq!(left, b"XY");
        assert_eq!(minimize(b"abc".to_vec(), |_| None), b"abc");
    }
}
