//! Reading what a request brings, so strictly that a misspelt name is an error and every error says
//! where.

use hyper::Method;
use percent_encoding::percent_decode_str;
use serde::{
    Deserialize,
    de::{
        self, DeserializeOwned, IntoDeserializer,
        value::{MapDeserializer, StringDeserializer},
    },
};

use super::problem::{Code, Problem};

/// Reads a JSON body.
pub(super) fn body<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    // An operation that needs nothing needs no body either.
    let body = if body.is_empty() { b"{}" } else { body };
    // Serde would also read a list as an object's values in their order.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::new(
            Code::MalformedRequest,
            "the body must be a JSON object, not a list",
        ));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        if !error.is_data() {
            return Problem::new(
                Code::MalformedRequest,
                format!("the body is no JSON: {error}"),
            );
        }
        let text = without_place(&error.to_string());
        let field = field(&path, &text);
        Problem::invalid(&field, text)
    })?;
    json.end().map_err(|error| {
        Problem::new(
            Code::MalformedRequest,
            format!("the body is no JSON: {error}"),
        )
    })?;
    Ok(value)
}

/// Reads the parameters of an address.
pub(super) fn query<T: DeserializeOwned>(query: Option<&str>) -> Result<T, Problem> {
    let mut pairs: Vec<(String, Parameter)> = Vec::new();
    for pair in query
        .unwrap_or("")
        .split('&')
        .filter(|pair| !pair.is_empty())
    {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(name)?;
        // A signature in the address was checked already.
        if name.starts_with("X-Amz-") {
            continue;
        }
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(Problem::invalid(&name, "the parameter comes twice"));
        }
        pairs.push((name, Parameter(decode(value)?)));
    }
    let pairs = MapDeserializer::<_, de::value::Error>::new(pairs.into_iter());
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let path = error.path().to_string();
        let text = error.into_inner().to_string();
        let field = field(&path, &text);
        Problem::invalid(&field, text)
    })
}

/// State changes need a JSON content type: pages of other sites cannot make a browser send one
/// without asking first, and the question is not answered.
pub(super) fn check_content_type(
    method: &Method,
    content_type: Option<&str>,
) -> Result<(), Problem> {
    if matches!(*method, Method::GET | Method::DELETE) {
        return Ok(());
    }
    let given = content_type.unwrap_or("");
    let essence = given.split(';').next().unwrap_or("").trim();
    let merge_patch =
        *method == Method::PATCH && essence.eq_ignore_ascii_case("application/merge-patch+json");
    if essence.eq_ignore_ascii_case("application/json") || merge_patch {
        return Ok(());
    }
    Err(Problem::new(
        Code::UnsupportedMediaType,
        format!("Content-Type is {given:?}, it must be application/json, also without a body"),
    ))
}

fn decode(text: &str) -> Result<String, Problem> {
    let spaced = text.replace('+', " ");
    match percent_decode_str(&spaced).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Problem::new(
            Code::MalformedRequest,
            format!("the parameter {text:?} is not UTF-8"),
        )),
    }
}

/// The field an error is about: the path, which for an unknown or missing one is that of what it
/// stands in.
fn field(path: &str, text: &str) -> String {
    let named = text
        .strip_prefix("unknown field `")
        .or_else(|| text.strip_prefix("missing field `"))
        .and_then(|rest| rest.split_once('`'))
        .map(|(name, _)| name);
    match (path, named) {
        (".", Some(named)) => named.to_owned(),
        (".", None) => "body".to_owned(),
        (path, Some(named)) if !path.ends_with(named) => format!("{path}.{named}"),
        (path, _) => path.to_owned(),
    }
}

/// Without the line and column, which say less than the field.
fn without_place(text: &str) -> String {
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text.to_owned(),
    }
}

/// A parameter's text, read as what its place wants.
struct Parameter(String);

impl<'de> IntoDeserializer<'de> for Parameter {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty,)*) => {$(
        fn $method<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            match self.0.parse::<$type>() {
                Ok(number) => visitor.$visit(number),
                Err(_) => Err(de::Error::invalid_value(
                    de::Unexpected::Str(&self.0),
                    &concat!("a number (", stringify!($type), ")"),
                )),
            }
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Parameter {
    type Error = de::value::Error;

    numbers! {
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
    }

    fn deserialize_any<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_string(self.0)
    }

    fn deserialize_bool<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match &*self.0 {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            other => Err(de::Error::invalid_value(
                de::Unexpected::Str(other),
                &"true or false",
            )),
        }
    }

    fn deserialize_option<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: de::Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let text: StringDeserializer<Self::Error> = self.0.into_deserializer();
        text.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        InFlight,
    }

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Input {
        #[serde(default)]
        limit: Option<u16>,
        #[serde(default)]
        state: Option<Word>,
        #[serde(default)]
        bodies: bool,
        #[serde(default)]
        inner: Option<Box<Input>>,
    }

    #[test]
    fn parameters_are_read_as_what_they_are_for() {
        let input: Input = query(Some("limit=7&state=in_flight&bodies=true&X-Amz-Date=x")).unwrap();
        assert_eq!(input.limit, Some(7));
        assert_eq!(input.state, Some(Word::InFlight));
        assert!(input.bodies);
        for (text, about) in [
            ("limit=seven", "limit: invalid value: string \"seven\""),
            ("limit=70000", "limit: invalid value"),
            ("state=x", "state: unknown variant `x`"),
            ("bodies=yes", "bodies: "),
            ("limit=1&limit=2", "limit: the parameter comes twice"),
            ("limt=1", "limt: unknown field `limt`"),
        ] {
            let problem = query::<Input>(Some(text)).unwrap_err();
            assert!(problem.detail.starts_with(about), "{text}: {problem:?}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_body_is_named() {
        for (text, about) in [
            (r#"{"inner":{"limit":"x"}}"#, "inner.limit: invalid type"),
            (r#"{"inner":{"limt":1}}"#, "inner.limt: unknown field"),
            (r#"{"limt":1}"#, "limt: unknown field"),
            (r#" []"#, "the body must be a JSON object"),
            (r#""x""#, "body: "),
            (r#"{"limit":1"#, "the body is no JSON"),
            (r#"{} x"#, "the body is no JSON"),
            ("\u{1f}", "the body is no JSON"),
        ] {
            let problem = body::<Input>(text.as_bytes()).unwrap_err();
            assert!(problem.detail.starts_with(about), "{text}: {problem:?}");
        }
        assert!(body::<Input>(b"").is_ok());
    }

    #[test]
    fn only_json_changes_anything() {
        let ok = |method, given| check_content_type(&method, given).is_ok();
        assert!(ok(Method::POST, Some("application/json; charset=utf-8")));
        assert!(ok(Method::PATCH, Some("application/merge-patch+json")));
        assert!(ok(Method::GET, None));
        assert!(ok(Method::DELETE, None));
        for given in [
            None,
            Some("text/plain"),
            Some("application/x-www-form-urlencoded"),
            Some("multipart/form-data"),
            Some("application/jsonx"),
            Some("text/plain; application/json"),
        ] {
            assert!(!ok(Method::POST, given), "{given:?}");
            assert!(!ok(Method::PATCH, given), "{given:?}");
        }
    }
}
