//! Parses requests. The parser is strict: a misspelt name is an error, and every error names its
//! place.

use std::{borrow::Cow, cell::Cell};

use hyper::Method;
use percent_encoding::percent_decode_str;
use serde::{
    Deserialize,
    de::{
        self, DeserializeOwned, IgnoredAny, IntoDeserializer,
        value::{MapDeserializer, StringDeserializer},
    },
};

use super::problem::{Code, Problem};
use crate::{
    fault::{Fault, Typed},
    few::Raw,
};

/// Parameters of a URL; no operation takes as many.
const PARAMETERS_MAX: usize = 16;

/// Parses a JSON body into an input: this API's decoder.
pub(super) fn body<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    // An operation without required fields needs no body.
    let body = if body.is_empty() { b"{}" } else { body };
    // By default serde would also read a list as an object's values in order.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::new(
            Code::MalformedRequest,
            "the body must be a JSON object, not a list",
        ));
    }
    let (fault, inner) = (Cell::new(None), Cell::new(None));
    let mut json = serde_json::Deserializer::from_slice(body);
    let typed = Typed::new(&mut json, &fault, &inner);
    let value = serde_path_to_error::deserialize(typed).map_err(|error| match inner.take() {
        // The decoder of JSON takes a value that names no choice for an error of its own.
        Some(_) if serde_json::from_slice::<IgnoredAny>(body).is_ok() => {
            let text = "it has another form than this field takes; docs/api.md shows the form";
            Problem::invalid(&error.path().to_string(), text)
        }
        Some(error) => no_json(&error),
        None => problem(&error),
    })?;
    json.end().map_err(|error| no_json(&error))?;
    Ok(value)
}

/// Parses an entry of a list that waited as text.
pub(super) fn entry<'a, T: Deserialize<'a>>(raw: Raw<'a>) -> Result<T, Problem> {
    match raw {
        Raw::Json(text) => body(text.as_bytes()),
        Raw::Form(_) => Err(Problem::new(Code::MalformedRequest, "the body is no JSON")),
    }
}

fn no_json(error: &serde_json::Error) -> Problem {
    Problem::new(
        Code::MalformedRequest,
        format!("the body is no JSON: {error}"),
    )
}

/// What is wrong with a value, and its path. An unknown or missing field has the path of its
/// object.
fn problem(error: &serde_path_to_error::Error<Fault>) -> Problem {
    let path = error.path().to_string();
    let named = match error.inner() {
        Fault::UnknownField { name, .. } => Some(&**name),
        Fault::MissingField { name, .. } => Some(*name),
        _ => None,
    };
    let field = match (&*path, named) {
        (".", Some(named)) => named.to_owned(),
        (".", None) => "body".to_owned(),
        (path, Some(named)) if !path.ends_with(named) => format!("{path}.{named}"),
        (path, _) => path.to_owned(),
    };
    Problem::invalid(&field, plain(&error.inner().to_string()))
}

/// The decoder's words without the names of this program's types.
fn plain(text: &str) -> String {
    let Some((found, wanted)) = text.rsplit_once(", expected ") else {
        return text.to_owned();
    };
    let found = match found {
        "invalid type: sequence" => "invalid type: list",
        "invalid type: map" => "invalid type: object",
        found => found,
    };
    let wanted = match wanted {
        "a map" => "an object",
        "a sequence" => "a list",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
        wanted if wanted.starts_with("struct ") => "an object",
        wanted => wanted,
    };
    format!("{found}, expected {wanted}")
}

/// Parses the parameters of a URL.
pub(super) fn query<T: DeserializeOwned>(query: Option<&str>) -> Result<T, Problem> {
    let mut pairs: Vec<(String, Parameter)> = Vec::new();
    for pair in query
        .unwrap_or("")
        .split('&')
        .filter(|pair| !pair.is_empty())
    {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(name)?;
        // The signature in the URL was checked before.
        if name.starts_with("X-Amz-") {
            continue;
        }
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(Problem::invalid(&name, "the parameter comes twice"));
        }
        if pairs.len() == PARAMETERS_MAX {
            return Err(Problem::new(
                Code::MalformedRequest,
                format!("the address has more than {PARAMETERS_MAX} parameters"),
            ));
        }
        pairs.push((name, Parameter(decode(value)?)));
    }
    let pairs = MapDeserializer::<_, Fault>::new(pairs.into_iter());
    serde_path_to_error::deserialize(pairs).map_err(|error| problem(&error))
}

/// Changes need a JSON content type. A page of another site cannot make a browser send one without
/// a preflight request, and the server does not answer those.
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
    match percent_decode(&spaced) {
        Ok(text) => Ok(text.into_owned()),
        Err(what) => Err(Problem::new(
            Code::MalformedRequest,
            format!("the parameter {text:?} {what}"),
        )),
    }
}

/// Decodes a part of an address, or says what is wrong with it.
pub(super) fn percent_decode(text: &str) -> Result<Cow<'_, str>, &'static str> {
    // The decoder takes a % without two digits for itself.
    let mut behind = text.split('%').skip(1).map(str::as_bytes);
    if behind.any(|rest| rest.len() < 2 || !rest[..2].iter().all(u8::is_ascii_hexdigit)) {
        return Err("has a % without two hexadecimal digits behind it (a % itself is %25)");
    }
    let text = percent_decode_str(text).decode_utf8();
    text.map_err(|_| "is not UTF-8")
}

/// The text of a parameter, to be parsed into the type of its field.
struct Parameter(String);

impl<'de> IntoDeserializer<'de, Fault> for Parameter {
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
                    &visitor,
                )),
            }
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Parameter {
    type Error = Fault;

    numbers! {
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
        i8 i16 i32 i64 i128 u8 u16 u32 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shapes::Within;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        InFlight,
    }

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Input {
        #[serde(default)]
        limit: Option<Within<1, 1000>>,
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
        assert_eq!(input.limit.map(Within::get), Some(7));
        assert_eq!(input.state, Some(Word::InFlight));
        assert!(input.bodies);
        for (text, about) in [
            (
                "limit=seven",
                "limit: invalid value: string \"seven\", expected a whole number from 1 to 1000",
            ),
            ("limit=70000", "limit: 70000 is not from 1 to 1000"),
            (
                "limit=-1",
                "limit: invalid value: string \"-1\", expected a whole",
            ),
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
            (
                r#"{"inner":{"limit":"x"}}"#,
                "inner.limit: invalid type: string \"x\", expected a whole number from 1 to 1000",
            ),
            (r#"{"inner":{"limt":1}}"#, "inner.limt: unknown field"),
            (r#"{"limt":1}"#, "limt: unknown field"),
            (
                r#"{"inner":{"inner":{"limit":-1}}}"#,
                "inner.inner.limit: -1 is not from 1 to 1000",
            ),
            (r#" []"#, "the body must be a JSON object"),
            (r#"{"inner":[7]}"#, "inner: invalid type: list"),
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
    fn many_parameters_are_refused_before_they_cost_anything() {
        let many: String = (0..5_000).map(|n| format!("p{n}&")).collect();
        let problem = query::<Input>(Some(&many)).unwrap_err();
        assert_eq!(problem.detail, "the address has more than 16 parameters");
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
