//! Writes answers and errors as XML.

use crate::sqs::escape_xml;

const NAMESPACE: &str = "http://sns.amazonaws.com/doc/2010-03-31/";

/// The content of an answer.
#[derive(Debug, Default)]
pub(super) struct Xml(String);

impl Xml {
    pub(super) fn open(&mut self, name: &str) {
        self.0.push('<');
        self.0.push_str(name);
        self.0.push('>');
    }

    pub(super) fn close(&mut self, name: &str) {
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
    }

    pub(super) fn leaf(&mut self, name: &str, text: &str) {
        self.open(name);
        escape_xml(text, &mut self.0);
        self.close(name);
    }

    /// Appends what another has.
    pub(super) fn append(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }

    /// A leaf if there is a text.
    pub(super) fn optional(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.leaf(name, text);
        }
    }

    /// The content that is a map of attributes.
    pub(super) fn of_attributes<'t>(
        attributes: impl IntoIterator<Item = (&'t str, impl AsRef<str>)>,
    ) -> Self {
        let mut xml = Self::default();
        xml.open("Attributes");
        for (key, value) in attributes {
            xml.open("entry");
            xml.leaf("key", key);
            xml.leaf("value", value.as_ref());
            xml.close("entry");
        }
        xml.close("Attributes");
        xml
    }
}

/// The answer to an action that succeeded. `None`: it has no content.
pub(super) fn answer(action: &str, content: Option<Xml>, request_id: &str) -> String {
    let mut out = Xml(format!("<{action}Response xmlns=\"{NAMESPACE}\">"));
    if let Some(content) = content {
        out.open(&format!("{action}Result"));
        out.0.push_str(&content.0);
        out.close(&format!("{action}Result"));
    }
    out.open("ResponseMetadata");
    out.leaf("RequestId", request_id);
    out.close("ResponseMetadata");
    out.close(&format!("{action}Response"));
    out.0
}

/// The answer to an action that was refused.
pub(super) fn error(fault: &str, code: &str, message: &str, request_id: &str) -> String {
    let mut out = Xml(format!("<ErrorResponse xmlns=\"{NAMESPACE}\">"));
    out.open("Error");
    out.leaf("Type", fault);
    out.leaf("Code", code);
    out.leaf("Message", message);
    out.close("Error");
    out.leaf("RequestId", request_id);
    out.close("ErrorResponse");
    out.0
}
