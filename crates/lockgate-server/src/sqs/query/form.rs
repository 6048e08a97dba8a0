//! Parameters as forms and URLs carry them.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use crate::sqs::error::SqsError;

/// Names and values, in order. Bytes that are no text are an error: they could not be given back as
/// they came.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<(String, String)>, SqsError> {
    bytes
        .split(|&byte| byte == b'&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let at = pair.iter().position(|&byte| byte == b'=');
            let (name, value) = match at {
                Some(at) => (&pair[..at], &pair[at + 1..]),
                None => (pair, &[][..]),
            };
            Ok((decode(name, name)?, decode(value, name)?))
        })
        .collect()
}

fn decode(bytes: &[u8], of: &[u8]) -> Result<String, SqsError> {
    let spaced: Cow<'_, [u8]> = if bytes.contains(&b'+') {
        let space = |&byte: &u8| if byte == b'+' { b' ' } else { byte };
        bytes.iter().map(space).collect()
    } else {
        bytes.into()
    };
    match percent_decode(&spaced).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(SqsError::invalid_parameter(format!(
            "The parameter {:.100} is not UTF-8.",
            String::from_utf8_lossy(of)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_as_browsers_and_sdks_write_them() {
        let pairs = parse(b"Action=SendMessage&MessageBody=a+b%2Bc%3D%26%C3%A4&Empty=&Bare&&x=1=2")
            .unwrap();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(n, v)| (&**n, &**v)).collect();
        assert_eq!(
            pairs,
            [
                ("Action", "SendMessage"),
                ("MessageBody", "a b+c=&\u{e4}"),
                ("Empty", ""),
                ("Bare", ""),
                ("x", "1=2"),
            ]
        );
        assert!(parse(b"").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_text_is_refused_by_name() {
        let error = parse(b"a=1&MessageBody=%ff").unwrap_err();
        assert!(error.message.contains("MessageBody"), "{error}");
    }
}
