//! The Query protocol: form parameters in, XML out, or JSON for clients that accept it. SDKs until
//! 2023 and people with `curl` use it.
//!
//! A form is flat: lists and maps are numbered parameters. `input` reads from it the members of the
//! AWS JSON protocol, so that both protocols share the same shapes. `output` writes a shape as
//! AWS's XML, `json` as the JSON of this protocol. No request contains XML, so there is no XML
//! parser to attack.

mod form;
mod input;
mod json;
mod output;

pub(crate) use form::parameters as form_parameters;
pub(super) use input::read_entry;
pub(crate) use output::escape as escape_xml;

use std::borrow::Cow;

use hyper::{
    HeaderMap, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde::{Deserialize, Serialize};

use super::{
    Request,
    aws_json::say_when,
    dispatch::{Action, Protocol},
    error::{Blame, ErrorCode, SqsError},
    names,
};
use crate::{
    answer::{TextLen, json_len, xml_len},
    http::response::Response,
};

const CONTENT_TYPE_XML: HeaderValue = HeaderValue::from_static("text/xml");
const CONTENT_TYPE_JSON: HeaderValue = HeaderValue::from_static("application/json");
const CONTENT_TYPE_FORM: &str = "application/x-www-form-urlencoded";

/// The format of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Xml,
    Json,
}

impl Format {
    /// The format that the header `Accept` names first; XML if it names none of them.
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

/// Whether a request with such headers uses this protocol: its body is a form, or it has no target
/// and its type is not JSON.
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

/// The parameters of a URL, for tests of what may be signed; `None` if they are refused.
#[cfg(test)]
pub(crate) fn parameters(query: &str) -> Option<Vec<(String, String)>> {
    form::parameters(query.as_bytes())
        .map(|parameter| {
            let parameter = parameter?;
            let value = parameter.value()?.into_owned();
            Ok((parameter.name.into_owned(), value))
        })
        .collect::<Result<_, SqsError>>()
        .ok()
}

/// One request in this protocol.
pub(super) struct Query<'r> {
    request_id: &'r str,
    format: Format,
    action: Result<Action, SqsError>,
    /// The parameters of URL and body.
    forms: [&'r [u8]; 2],
    /// The older form: the request's own URL names the queue.
    queue_url: Option<&'r str>,
    /// Whether the request names no action.
    nothing_asked: bool,
}

impl<'r> Query<'r> {
    /// Whether a request is one of this protocol.
    pub(super) fn is_meant(request: &Request) -> bool {
        speaks(request.content_type.as_deref(), request.target.is_some())
    }

    /// Finds the action in the parameters of URL and body.
    pub(super) fn new(request: &'r Request, request_id: &'r str) -> Self {
        let form_type = request.content_type.as_deref().is_none_or(is_form);
        let body: &[u8] = if form_type { &request.body } else { &[] };
        let query = request.query.as_deref().unwrap_or("");
        let forms = [query.as_bytes(), body];
        let on_queue = names::is_queue_path(&request.path);
        let queue_url = (request.path != "/").then_some(&*request.path);
        let named = action_name(forms);
        // AWS has no JSON form for a request that names no action.
        let nothing_asked = matches!(named, Ok(None));
        let format = if nothing_asked {
            Format::Xml
        } else {
            Format::accepted(request.accept.as_deref())
        };
        let action = named.and_then(|named| {
            let Some(name) = named else {
                return Err(SqsError::new(
                    ErrorCode::UnknownOperation,
                    "The request names no action.",
                ));
            };
            Action::from_name(&name)
                // A queue's URL does not take actions that are not about a queue.
                .filter(|action| {
                    !on_queue || !matches!(action, Action::CreateQueue | Action::ListQueues)
                })
                .ok_or_else(|| {
                    SqsError::new(
                        ErrorCode::UnknownOperation,
                        format!("The action {name:.100} is not valid for this endpoint."),
                    )
                })
        });
        Self {
            request_id,
            format,
            action,
            forms,
            queue_url,
            nothing_asked,
        }
    }
}

/// The first action that the parameters name. All parameters must be UTF-8, known or not.
fn action_name<'f>(forms: [&'f [u8]; 2]) -> Result<Option<Cow<'f, str>>, SqsError> {
    let mut named = None;
    for parameter in forms.into_iter().flat_map(form::parameters) {
        let parameter = parameter?;
        let value = parameter.value()?;
        if parameter.name == "Action" && named.is_none() {
            named = Some(value);
        }
    }
    Ok(named)
}

/// Parses a form into an action's input: this protocol's decoder.
pub(super) fn read<'f, T: Deserialize<'f>>(
    action: Action,
    forms: [&'f [u8]; 2],
    queue_url: Option<&'f str>,
) -> Result<T, SqsError> {
    let mut members = input::Members::read(action, forms)?;
    if let Some(url) = queue_url {
        members.default_queue_url(url);
    }
    input::read(members)
}

impl Protocol for Query<'_> {
    fn action(&self) -> Result<Action, SqsError> {
        self.action.clone()
    }

    fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, SqsError> {
        read(self.action.clone()?, self.forms, self.queue_url)
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

    fn text_len(&self) -> TextLen {
        match self.format {
            Format::Xml => xml_len,
            Format::Json => json_len,
        }
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

/// An error in this protocol's format.
pub(super) fn error_response(error: &SqsError, format: Format, request_id: &str) -> Response {
    let row = error.code.row();
    let code = (row.status(), row.legacy, row.blame);
    let mut response = refusal(code, wording(error), format, request_id);
    say_when(error, &mut response);
    response
}

/// An error with this status, code and fault in this protocol's format.
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

/// AWS words this one error differently in this protocol.
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
