//! Parses the parameters of forms and URLs.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use crate::sqs::error::SqsError;

/// A parameter with its name decoded. The value is decoded when it is read.
#[derive(Clone, Debug)]
pub(crate) struct Parameter<'f> {
    pub(crate) name: Cow<'f, str>,
    /// The whole parameter, not decoded.
    pub(super) written: &'f [u8],
}

impl<'f> Parameter<'f> {
    /// Parses a parameter that is not empty. A name that is no UTF-8 is an error.
    pub(super) fn read(written: &'f [u8]) -> Result<Self, SqsError> {
        let (name, _) = parts(written);
        let name = decode(name, name)?;
        Ok(Self { name, written })
    }

    /// Whether it has no value.
    pub(super) fn is_bare(&self) -> bool {
        parts(self.written).1.is_empty()
    }

    /// The decoded value. Bytes that are no UTF-8 are an error: they could not be returned
    /// unchanged.
    pub(crate) fn value(&self) -> Result<Cow<'f, str>, SqsError> {
        let (name, value) = parts(self.written);
        decode(value, name)
    }
}

/// The parameters of a form, in order, parsed one at a time.
pub(crate) fn parameters(
    form: &[u8],
) -> impl Iterator<Item = Result<Parameter<'_>, SqsError>> + Clone {
    form.split(|&byte| byte == b'&')
        .filter(|written| !written.is_empty())
        .map(Parameter::read)
}

fn parts(written: &[u8]) -> (&[u8], &[u8]) {
    match written.iter().position(|&byte| byte == b'=') {
        Some(at) => (&written[..at], &written[at + 1..]),
        None => (written, &[]),
    }
}

fn decode<'f>(bytes: &'f [u8], of: &[u8]) -> Result<Cow<'f, str>, SqsError> {
    let escaped = |&byte: &u8| matches!(byte, b'%' | b'+');
    let decoded = if bytes.iter().any(escaped) {
        unescaped(bytes).map(Cow::Owned)
    } else {
        str::from_utf8(bytes).ok().map(Cow::Borrowed)
    };
    decoded.ok_or_else(|| {
        let name = of.get(..100).unwrap_or(of);
        SqsError::invalid_parameter(format!(
            "The parameter {} is not UTF-8.",
            String::from_utf8_lossy(name)
        ))
    })
}

fn unescaped(bytes: &[u8]) -> Option<String> {
    let decoded = percent_decode(bytes).count();
    let mut text = Vec::with_capacity(decoded);
    let mut from = 0;
    // A literal plus is a space; `%2B` is a plus.
    while let Some(len) = bytes[from..].iter().position(|&byte| byte == b'+') {
        text.extend(percent_decode(&bytes[from..from + len]));
        text.push(b' ');
        from += len + 1;
    }
    text.extend(percent_decode(&bytes[from..]));
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_as_browsers_and_sdks_write_them() {
        let form =
            b"Action=SendMessage&MessageBody=a+b%2Bc%3D%26%C3%A4&Empty=&Bare&&x=1=2&a%2Eb=%2b++";
        let pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = parameters(form)
            .map(|parameter| {
                let parameter = parameter.unwrap();
                let value = parameter.value().unwrap();
                (parameter.name, value)
            })
            .collect();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(n, v)| (&**n, &**v)).collect();
        assert_eq!(
            pairs,
            [
                ("Action", "SendMessage"),
                ("MessageBody", "a b+c=&\u{e4}"),
                ("Empty", ""),
                ("Bare", ""),
                ("x", "1=2"),
                ("a.b", "+  "),
            ]
        );
        assert!(parameters(b"&&").next().is_none());
    }

    #[test]
    fn what_is_no_text_is_refused_by_name() {
        for form in [
            &b"MessageBody=%ff"[..],
            b"MessageBody=\xff",
            b"MessageBody=+\xff",
        ] {
            let parameter = Parameter::read(form).unwrap();
            let error = parameter.value().unwrap_err();
            assert!(error.message.contains("MessageBody"), "{error}");
        }
        let error = Parameter::read(b"%ff=x").unwrap_err();
        assert_eq!(error.message, "The parameter %ff is not UTF-8.");
    }
}
