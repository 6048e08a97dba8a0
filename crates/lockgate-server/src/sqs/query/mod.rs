//! The Query protocol: form parameters in, XML out, or JSON for who accepts it. SDKs of 2023 and before
//! speak it, and people with `curl`.
//!
//! A form is flat: lists and maps are numbered parameters. `input` builds from it the JSON that the
//! other protocol would have carried, so that both are read into the same shapes; `output` writes a
//! shape as AWS's XML, `json` as the JSON of this protocol. Nothing in a request is XML, so there is no
//! XML parser to attack.

mod form;
mod input;
mod json;
mod output;

use hyper::{
    HeaderMap, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Request, Response,
    aws_json::say_when,
    dispatch::{Action, Protocol},
    error::{Blame, ErrorCode, SqsError},
    names,
};

const CONTENT_TYPE_XML: HeaderValue = HeaderValue::from_static("text/xml");
const CONTENT_TYPE_JSON: HeaderValue = HeaderValue::from_static("application/json");
const CONTENT_TYPE_FORM: &str = "application/x-www-form-urlencoded";

/// How answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Xml,
    Json,
}

impl Format {
    /// The one that the header `Accept` names first; XML if it names neither.
    pub(crate) fn accepted(accept: Option<&str>) -> Self {
        let named = |part: &str| match part.split(';').next().unwrap_or("").trim() {
            kind if kind.eq_ignore_ascii_case("application/json") => Some(Self::Json),
            kind if kind.eq_ignore_ascii_case("application/xml")
                || kind.eq_ignore_ascii_case("text/xml") =>
            {
                Some(Self::Xml)
            }
            _ => None,
        };
        accept
            .and_then(|accept| accept.split(',').find_map(named))
            .unwrap_or(Self::Xml)
    }

    fn content_type(self) -> HeaderValue {
        match self {
            Self::Xml => CONTENT_TYPE_XML,
            Self::Json => CONTENT_TYPE_JSON,
        }
    }
}

/// Whether a request with such headers is one of this protocol: its body is a form, or it has no
/// target and is not JSON by its type.
pub(crate) fn speaks(content_type: Option<&str>, has_target: bool) -> bool {
    match content_type {
        None => !has_target,
        Some(kind) => is_form(kind) || !has_target && !kind.to_ascii_lowercase().contains("json"),
    }
}

/// Whether a body of that type is a form.
fn is_form(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or("").trim();
    kind.eq_ignore_ascii_case(CONTENT_TYPE_FORM)
}

/// The parameters of an address, for tests of what may be signed; `None` if they are refused.
#[cfg(test)]
pub(crate) fn parameters(query: &str) -> Option<Vec<(String, String)>> {
    form::parse(query.as_bytes()).ok()
}

/// One request in this protocol.
pub(super) struct Query<'r> {
    request_id: &'r str,
    format: Format,
    action: Result<Action, SqsError>,
    input: Result<Value, SqsError>,
    /// Whether it names no action at all.
    nothing_asked: bool,
}

impl<'r> Query<'r> {
    /// Whether a request is one of this protocol.
    pub(super) fn is_meant(request: &Request) -> bool {
        speaks(request.content_type.as_deref(), request.target.is_some())
    }

    /// Reads the parameters of URL and body.
    pub(super) fn new(request: &Request, request_id: &'r str) -> Self {
        let form_type = request.content_type.as_deref().is_none_or(is_form);
        let body: &[u8] = if form_type { &request.body } else { &[] };
        let format = Format::accepted(request.accept.as_deref());
        let query = request.query.as_deref().unwrap_or("");
        let parameters = form::parse(query.as_bytes()).and_then(|mut parameters| {
            parameters.extend(form::parse(body)?);
            Ok(parameters)
        });
        let parameters = match parameters {
            Ok(parameters) => parameters,
            Err(error) => {
                return Self {
                    request_id,
                    format,
                    action: Err(error.clone()),
                    input: Err(error),
                    nothing_asked: false,
                };
            }
        };
        let named = parameters.iter().find(|(name, _)| name == "Action");
        let on_queue = names::is_queue_path(&request.path);
        let action = match named {
            None => Err(SqsError::new(
                ErrorCode::UnknownOperation,
                "The request names no action.",
            )),
            Some((_, name)) => Action::from_name(name)
                // What is not about a queue is not asked of one.
                .filter(|action| {
                    !on_queue || !matches!(action, Action::CreateQueue | Action::ListQueues)
                })
                .ok_or_else(|| {
                    SqsError::new(
                        ErrorCode::UnknownOperation,
                        format!("The action {name:.100} is not valid for this endpoint."),
                    )
                }),
        };
        let nothing_asked = named.is_none();
        let input = action.clone().and_then(|action| {
            let mut input = input::build(action, &parameters)?;
            if request.path != "/" {
                // The older form: the queue is named by the URL that is asked.
                input
                    .entry("QueueUrl")
                    .or_insert_with(|| request.path.clone().into());
            }
            Ok(Value::Object(input))
        });
        Self {
            request_id,
            // AWS has no JSON for a request that asks nothing.
            format: if nothing_asked { Format::Xml } else { format },
            action,
            input,
            nothing_asked,
        }
    }
}

impl Protocol for Query<'_> {
    fn action(&self) -> Result<Action, SqsError> {
        self.action.clone()
    }

    fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, SqsError> {
        let input = self.input.as_ref().map_err(Clone::clone)?;
        T::deserialize(input).map_err(|error| SqsError::serialization(error.to_string()))
    }

    fn write(&self, output: &impl Serialize, capacity: usize) -> Result<Vec<u8>, SqsError> {
        let action = self.action.clone()?;
        let output = serde_json::to_value(output)
            .map_err(|error| SqsError::new(ErrorCode::InternalFailure, error.to_string()))?;
        Ok(match self.format {
            Format::Xml => output::answer(action, &output, self.request_id, capacity).into(),
            Format::Json => json::answer(action, output, self.request_id),
        })
    }

    fn error(&self, error: &SqsError) -> Response {
        if self.nothing_asked {
            return respond(
                StatusCode::NOT_FOUND,
                "<UnknownOperationException/>\n".into(),
            );
        }
        error_response(error, self.format, self.request_id)
    }

    fn content_type(&self) -> HeaderValue {
        self.format.content_type()
    }
}

/// An error as this protocol writes it.
pub(super) fn error_response(error: &SqsError, format: Format, request_id: &str) -> Response {
    let row = error.code.row();
    let code = (row.status(), row.legacy, row.blame);
    let mut response = refusal(code, wording(error), format, request_id);
    say_when(error, &mut response);
    response
}

/// An error of that status, code and fault as this protocol writes it.
pub(super) fn refusal(
    (status, code, blame): (StatusCode, &str, Blame),
    message: &str,
    format: Format,
    request_id: &str,
) -> Response {
    let blame = blame.as_str();
    let body = match format {
        Format::Xml => output::error(blame, code, message, request_id),
        Format::Json => json::error(blame, code, message, request_id),
    };
    let mut response = respond(status, body);
    let headers = &mut response.headers;
    headers.insert(CONTENT_TYPE, format.content_type());
    response
}

/// The one text that AWS words otherwise here.
fn wording(error: &SqsError) -> &str {
    if error.code == ErrorCode::QueueDoesNotExist {
        "The specified queue does not exist for this wsdl version."
    } else {
        &error.message
    }
}

fn respond(status: StatusCode, body: String) -> Response {
    Response {
        status,
        headers: HeaderMap::with_capacity(4),
        body: body.into(),
        action: None,
        on_sent: None,
    }
}
