//! The AWS JSON 1.0 protocol, which every AWS SDK has spoken to SQS since the end of 2023.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::{
    HeaderMap, StatusCode,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use serde::{Deserialize, Serialize};

use super::{
    Request, Response,
    dispatch::{Action, Protocol},
    error::{Blame, ErrorCode, SqsError},
    text::Object,
};

/// What the target of every action starts with.
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

    /// An empty body is an empty object.
    fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, SqsError> {
        let body: &[u8] = if self.body.is_empty() {
            b"{}"
        } else {
            self.body
        };
        serde_json::from_slice::<Object<T>>(body)
            .map(|object| object.0)
            .map_err(|error| SqsError::serialization(worded(error.to_string())))
    }

    /// Actions that answer with nothing have an empty object.
    fn write(&self, output: &impl Serialize, capacity: usize) -> Result<Vec<u8>, SqsError> {
        let mut body = Vec::with_capacity(capacity);
        serde_json::to_writer(&mut body, output)
            .map_err(|error| SqsError::new(ErrorCode::InternalFailure, error.to_string()))?;
        Ok(body)
    }

    fn error(&self, error: &SqsError) -> Response {
        error_response(error)
    }

    fn content_type(&self) -> HeaderValue {
        CONTENT_TYPE_JSON
    }
}

/// An error as this protocol writes it.
pub(super) fn error_response(error: &SqsError) -> Response {
    let row = error.code.row();
    let kind = format!("{}#{}", row.namespace.as_str(), row.name);
    let mut response = respond(row.status(), &kind, row.legacy, row.blame, &error.message);
    response.headers.insert(CONTENT_TYPE, CONTENT_TYPE_JSON);
    say_when(error, &mut response);
    response
}

/// Says when to try again, if that is worth it.
pub(super) fn say_when(error: &SqsError, response: &mut Response) {
    if error.code == ErrorCode::ServiceUnavailable {
        // Seconds for whoever knows HTTP, milliseconds for AWS SDKs.
        let headers = &mut response.headers;
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        headers.insert("x-amz-retry-after", HeaderValue::from_static("1000"));
    }
}

/// What is wrong with a body: AWS's words for it where it has a text or a number of the wrong type, and
/// what was expected and where.
fn worded(message: String) -> String {
    let words = message
        .strip_prefix("invalid type: ")
        .and_then(|message| message.rsplit_once(", expected "))
        .and_then(|(found, expected)| {
            let wanted = match expected.split_once(" at ")?.0 {
                "a string" => "a String",
                "i64" => "an Integer",
                _ => return None,
            };
            let found = match found.split(' ').next()? {
                "map" => return Some("Start of structure or map found where not expected.".into()),
                "sequence" => return Some("Start of list found where not expected".into()),
                "string" => "STRING_VALUE",
                "integer" | "floating" if wanted == "a String" => "NUMBER_VALUE",
                "boolean" if found.contains("true") => "TRUE_VALUE",
                "boolean" => "FALSE_VALUE",
                _ => return None,
            };
            Some(Cow::from(format!(
                "{found} can not be converted to {wanted}"
            )))
        });
    match words {
        Some(words) => format!("{words} ({message})"),
        None => message,
    }
}

/// The body of an error.
#[derive(Serialize)]
struct ErrorBody<'a> {
    #[serde(rename = "__type")]
    kind: Cow<'a, str>,
    message: &'a str,
}

/// An error of that status, code and fault.
pub(super) fn refusal((status, code, blame): (StatusCode, &str, Blame), message: &str) -> Response {
    let kind = format!("com.amazon.coral.service#{code}");
    let mut response = respond(status, &kind, code, blame, message);
    response.headers.insert(CONTENT_TYPE, CONTENT_TYPE_JSON);
    response
}

fn respond(status: StatusCode, kind: &str, legacy: &str, blame: Blame, message: &str) -> Response {
    let mut headers = HeaderMap::with_capacity(5);
    // SDKs show the legacy code as the error's code and take it from here; without it, error
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
