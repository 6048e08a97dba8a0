//! The AWS JSON 1.0 protocol, which every AWS SDK has spoken to SQS since the end of 2023.

use std::{borrow::Cow, cell::Cell};

use bytes::Bytes;
use hyper::{
    HeaderMap, StatusCode,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use serde::{Deserialize, Serialize};

use super::{
    Request,
    dispatch::{Action, Protocol},
    error::{Blame, ErrorCode, SqsError},
    text::Object,
};
use crate::{
    answer::{TextLen, json_len},
    fault::{Fault, Found, Typed, Wanted},
    http::response::Response,
};

/// The prefix of every action's target.
const TARGET_PREFIX: &str = "AmazonSQS.";
const CONTENT_TYPE_JSON: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");

/// One request in this protocol.
pub(super) struct AwsJson<'r> {
    target: Option<&'r str>,
    body: &'r Bytes,
}

impl<'r> AwsJson<'r> {
    pub(super) fn new(request: &'r Request) -> Self {
        Self {
            target: request.target.as_deref(),
            body: &request.body,
        }
    }
}

impl Protocol for AwsJson<'_> {
    fn action(&self) -> Result<Action, SqsError> {
        let Some(target) = self.target else {
            return Err(SqsError::new(
                ErrorCode::UnknownOperation,
                "The request names no action: set X-Amz-Target to AmazonSQS.<Action>.",
            ));
        };
        target
            .strip_prefix(TARGET_PREFIX)
            .and_then(Action::from_name)
            .ok_or_else(|| {
                SqsError::new(
                    ErrorCode::UnknownOperation,
                    format!("The action {target:.100} is not valid for this endpoint."),
                )
            })
    }

    /// An empty body counts as an empty object.
    fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, SqsError> {
        let body: &[u8] = if self.body.is_empty() {
            b"{}"
        } else {
            self.body
        };
        read(body)
    }

    /// Actions with an empty answer have an empty object.
    fn write(&self, output: &impl Serialize, capacity: usize) -> Result<Vec<u8>, SqsError> {
        let mut body = Vec::with_capacity(capacity);
        serde_json::to_writer(&mut body, output)
            .map_err(|error| SqsError::new(ErrorCode::InternalFailure, error.to_string()))?;
        Ok(body)
    }

    fn text_len(&self) -> TextLen {
        json_len
    }

    fn error(&self, error: &SqsError) -> Response {
        error_response(error)
    }

    fn content_type(&self) -> HeaderValue {
        CONTENT_TYPE_JSON
    }
}

/// An error in this protocol's format.
pub(super) fn error_response(error: &SqsError) -> Response {
    let row = error.code.row();
    let kind = format!("{}#{}", row.namespace.as_str(), row.name);
    let mut response = respond(row.status(), &kind, row.legacy, row.blame, &error.message);
    response.headers.insert(CONTENT_TYPE, CONTENT_TYPE_JSON);
    say_when(error, &mut response);
    response
}

/// Adds headers that say when to try again, if a retry can succeed.
pub(super) fn say_when(error: &SqsError, response: &mut Response) {
    if error.code == ErrorCode::ServiceUnavailable {
        // Seconds for HTTP clients, milliseconds for AWS SDKs.
        let headers = &mut response.headers;
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        headers.insert("x-amz-retry-after", HeaderValue::from_static("1000"));
    }
}

/// Parses a body, or an entry of one that waited as text: this protocol's decoder.
pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, SqsError> {
    match serde_json::from_slice::<Object<T>>(body) {
        Ok(object) => Ok(object.0),
        Err(error) => {
            let message = error.to_string();
            Err(SqsError::serialization(match words::<T>(body) {
                Some(words) => format!("{words} ({message})"),
                None => message,
            }))
        }
    }
}

/// AWS's words for a body with a text or a number of the wrong type. Parses the body a second time
/// to find the types.
fn words<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Option<String> {
    let (fault, inner) = (Cell::new(None), Cell::new(None));
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = Object::<T>::deserialize(Typed::new(&mut json, &fault, &inner));
    let Err(Fault::Type { found, wanted, .. }) = read else {
        return None;
    };
    let wanted = match wanted {
        Wanted::Text => "a String",
        Wanted::Integer => "an Integer",
        Wanted::Other => return None,
    };
    let found = match found {
        Found::Object => return Some("Start of structure or map found where not expected.".into()),
        Found::List => return Some("Start of list found where not expected".into()),
        Found::Text => "STRING_VALUE",
        Found::Number | Found::Float if wanted == "a String" => "NUMBER_VALUE",
        Found::Truth(true) => "TRUE_VALUE",
        Found::Truth(false) => "FALSE_VALUE",
        _ => return None,
    };
    Some(format!("{found} can not be converted to {wanted}"))
}

/// The body of an error.
#[derive(Serialize)]
struct ErrorBody<'a> {
    #[serde(rename = "__type")]
    kind: Cow<'a, str>,
    message: &'a str,
}

/// An error with this status, code and fault.
pub(super) fn refusal((status, code, blame): (StatusCode, &str, Blame), message: &str) -> Response {
    let kind = format!("com.amazon.coral.service#{code}");
    let mut response = respond(status, &kind, code, blame, message);
    response.headers.insert(CONTENT_TYPE, CONTENT_TYPE_JSON);
    response
}

fn respond(status: StatusCode, kind: &str, legacy: &str, blame: Blame, message: &str) -> Response {
    let mut headers = HeaderMap::with_capacity(5);
    // SDKs read the legacy code from this header and show it as the error's code; without it, error
    // handling written for SQS breaks.
    if let Ok(value) = HeaderValue::try_from(format!("{legacy};{}", blame.as_str())) {
        headers.insert("x-amzn-query-error", value);
    }
    let body = ErrorBody {
        kind: kind.into(),
        message,
    };
    Response {
        status,
        headers,
        body: serde_json::to_vec(&body).unwrap_or_default().into(),
        action: None,
        on_sent: None,
    }
}
