//! Turns numbered parameters into the members of the actions' shapes.
//!
//! A form is read parameter by parameter. The reader keeps only members that the action knows, and
//! no more of them than a request may have, so a form costs no more memory than it has bytes. It
//! parses names as deep as the shapes are, at most three numbers, and ignores what follows.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeSeed, IntoDeserializer, SeqAccess, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
};

use super::form::{Parameter, parameters};
use crate::{
    fault::shortened,
    few::is_raw,
    sqs::{dispatch::Action, error::SqsError, message_attributes::ATTRIBUTES_MAX, text::TEXTS_MAX},
};

/// The type of a parameter.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Integer,
    /// `Name.1`, `Name.2`, ...
    List,
    /// `Name.1.<key>` and `Name.1.<value>`: texts by name.
    Map {
        key: &'static str,
        value: &'static str,
    },
    /// `Name.1.Name` and `Name.1.Value.DataType` and so on: message attributes by name.
    Attributes,
    /// `Name.1.Id` and so on: a batch.
    Entries,
}

/// The member that a parameter's first name means, and its type; `None` if no action knows it.
fn member(action: Action, name: &str) -> Option<(&'static str, Kind)> {
    Some(match name {
        "QueueUrl" => ("QueueUrl", Kind::Text),
        "QueueName" => ("QueueName", Kind::Text),
        "QueueNamePrefix" => ("QueueNamePrefix", Kind::Text),
        "QueueOwnerAWSAccountId" => ("QueueOwnerAWSAccountId", Kind::Text),
        "NextToken" => ("NextToken", Kind::Text),
        "Id" => ("Id", Kind::Text),
        "Label" => ("Label", Kind::Text),
        "MessageBody" => ("MessageBody", Kind::Text),
        "MessageDeduplicationId" => ("MessageDeduplicationId", Kind::Text),
        "MessageGroupId" => ("MessageGroupId", Kind::Text),
        "ReceiptHandle" => ("ReceiptHandle", Kind::Text),
        "ReceiveRequestAttemptId" => ("ReceiveRequestAttemptId", Kind::Text),
        "SourceArn" => ("SourceArn", Kind::Text),
        "DestinationArn" => ("DestinationArn", Kind::Text),
        "TaskHandle" => ("TaskHandle", Kind::Text),
        "MaxResults" => ("MaxResults", Kind::Integer),
        "MaxNumberOfMessages" => ("MaxNumberOfMessages", Kind::Integer),
        "MaxNumberOfMessagesPerSecond" => ("MaxNumberOfMessagesPerSecond", Kind::Integer),
        "DelaySeconds" => ("DelaySeconds", Kind::Integer),
        "VisibilityTimeout" => ("VisibilityTimeout", Kind::Integer),
        "WaitTimeSeconds" => ("WaitTimeSeconds", Kind::Integer),
        "AttributeName" => ("AttributeNames", Kind::List),
        "MessageAttributeName" => ("MessageAttributeNames", Kind::List),
        "MessageSystemAttributeName" => ("MessageSystemAttributeNames", Kind::List),
        "TagKey" => ("TagKeys", Kind::List),
        "AWSAccountId" => ("AWSAccountIds", Kind::List),
        "ActionName" => ("Actions", Kind::List),
        "Attribute" => {
            let (key, value) = ("Name", "Value");
            ("Attributes", Kind::Map { key, value })
        }
        "Tag" => {
            let (key, value) = ("Key", "Value");
            // As in AWS's model.
            let small = action == Action::CreateQueue;
            (
                if small { "tags" } else { "Tags" },
                Kind::Map { key, value },
            )
        }
        "MessageAttribute" => ("MessageAttributes", Kind::Attributes),
        "MessageSystemAttribute" => ("MessageSystemAttributes", Kind::Attributes),
        "SendMessageBatchRequestEntry"
        | "DeleteMessageBatchRequestEntry"
        | "ChangeMessageVisibilityBatchRequestEntry"
            if matches!(
                action,
                Action::SendMessageBatch
                    | Action::DeleteMessageBatch
                    | Action::ChangeMessageVisibilityBatch
            ) =>
        {
            ("Entries", Kind::Entries)
        }
        _ => return None,
    })
}

/// A request's members by name.
#[derive(Debug, Default)]
pub(super) struct Members<'f>(BTreeMap<&'static str, Member<'f>>);

/// The content of a member so far.
#[derive(Debug)]
enum Member<'f> {
    Text(Cow<'f, str>),
    /// With the name of its parameter.
    Integer(String, Cow<'f, str>),
    List(BTreeMap<u64, Cow<'f, str>>),
    Map(BTreeMap<u64, (Cow<'f, str>, Cow<'f, str>)>),
    Attributes(Attributes<'f>),
    /// The unparsed parameters of entries, each with its entry's number.
    Entries(Vec<(u64, &'f [u8])>),
}

/// Message attributes by their numbers, as many as a message may have. Further ones are only
/// counted.
#[derive(Debug, Default)]
struct Attributes<'f> {
    kept: BTreeMap<u64, Attribute<'f>>,
    counted: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Attribute<'f> {
    name: Cow<'f, str>,
    value: BTreeMap<&'static str, Cow<'f, str>>,
    /// Whether there are lists of values. They are refused later by an error that names them.
    string_list: bool,
    binary_list: bool,
}

impl<'f> Members<'f> {
    /// Reads the members in the parameters of `forms`. As on AWS, unknown parameters are ignored:
    /// they may be part of a signature.
    pub(super) fn read(action: Action, forms: [&'f [u8]; 2]) -> Result<Self, SqsError> {
        let mut members = Self::default();
        for parameter in forms.into_iter().flat_map(parameters) {
            let parameter = parameter?;
            let (first, rest) = split(&parameter.name);
            if let Some((name, kind)) = member(action, first) {
                members.add(name, kind, first, rest, &parameter)?;
            }
        }
        for member in members.0.values_mut() {
            if let Member::Entries(parameters) = member {
                // In order of entries; the parameters of an entry keep their order.
                parameters.sort_by_key(|&(number, _)| number);
            }
        }
        Ok(members)
    }

    /// The members of one entry of a batch, from its unparsed parameters.
    fn read_entry(parameters: impl Iterator<Item = &'f [u8]>) -> Result<Self, SqsError> {
        let mut members = Self::default();
        for parameter in parameters {
            let parameter = Parameter::read(parameter)?;
            let (_, numbered) = split(&parameter.name);
            let (_, rest) = number(numbered);
            let (first, rest) = split(rest);
            // An entry has no batch within it, so the members of any action without one will do.
            if let Some((name, kind)) = member(Action::SendMessage, first) {
                members.add(name, kind, first, rest, &parameter)?;
            }
        }
        Ok(members)
    }

    /// Adds a parameter to a member; `rest` is the part of the name behind the first name.
    fn add(
        &mut self,
        member: &'static str,
        kind: Kind,
        first: &str,
        rest: &str,
        parameter: &Parameter<'f>,
    ) -> Result<(), SqsError> {
        let given = self.0.entry(member).or_insert_with(|| kind.empty());
        match given {
            // Some SDKs, such as JavaScript v2 and Go v1, write an empty list or map as its bare
            // name.
            Member::List(_) | Member::Map(_) | Member::Attributes(_) | Member::Entries(_)
                if rest.is_empty() && parameter.is_bare() => {}
            // The last of several values wins.
            Member::Text(text) => *text = parameter.value()?,
            Member::Integer(name, text) => {
                first.clone_into(name);
                *text = parameter.value()?;
            }
            Member::List(texts) => {
                let (number, _) = number(rest);
                check_room(texts.len(), texts.contains_key(&number), first)?;
                texts.insert(number, parameter.value()?);
            }
            Member::Map(pairs) => {
                let (number, field) = number(rest);
                check_room(pairs.len(), pairs.contains_key(&number), first)?;
                let pair = pairs.entry(number).or_default();
                match kind {
                    Kind::Map { key, .. } if field == key => pair.0 = parameter.value()?,
                    Kind::Map { value, .. } if field == value => pair.1 = parameter.value()?,
                    _ => {}
                }
            }
            Member::Attributes(attributes) => attributes.add(rest, parameter)?,
            Member::Entries(parameters) => {
                let (number, _) = number(rest);
                parameters.push((number, parameter.written));
            }
        }
        Ok(())
    }

    /// Sets the queue's URL if no parameter names the queue.
    pub(super) fn default_queue_url(&mut self, url: &'f str) {
        self.0
            .entry("QueueUrl")
            .or_insert_with(|| Member::Text(url.into()));
    }
}

impl Kind {
    fn empty<'f>(self) -> Member<'f> {
        match self {
            Self::Text => Member::Text(Cow::default()),
            Self::Integer => Member::Integer(String::new(), Cow::default()),
            Self::List => Member::List(BTreeMap::new()),
            Self::Map { .. } => Member::Map(BTreeMap::new()),
            Self::Attributes => Member::Attributes(Attributes::default()),
            Self::Entries => Member::Entries(Vec::new()),
        }
    }
}

impl<'f> Attributes<'f> {
    fn add(&mut self, rest: &str, parameter: &Parameter<'f>) -> Result<(), SqsError> {
        let (number, field) = number(rest);
        if self.kept.len() == ATTRIBUTES_MAX && !self.kept.contains_key(&number) {
            self.counted.insert(number);
            return Ok(());
        }
        let attribute = self.kept.entry(number).or_default();
        match split(field) {
            ("Name", "") => attribute.name = parameter.value()?,
            ("Value", field) => match split(field) {
                ("StringListValue" | "BinaryListValue", "") if parameter.is_bare() => {}
                ("StringListValue", _) => attribute.string_list = true,
                ("BinaryListValue", _) => attribute.binary_list = true,
                _ => {
                    let known = ["DataType", "StringValue", "BinaryValue"];
                    if let Some(field) = known.into_iter().find(|&known| known == field) {
                        attribute.value.insert(field, parameter.value()?);
                    }
                }
            },
            _ => {}
        }
        Ok(())
    }
}

/// The bound of a list or map. A number or name that it already has may be given again.
fn check_room(len: usize, known: bool, name: &str) -> Result<(), SqsError> {
    if len < TEXTS_MAX || known {
        return Ok(());
    }
    Err(SqsError::invalid_parameter(format!(
        "The parameter {name} may have at most {TEXTS_MAX} entries."
    )))
}

/// The number at the beginning of a name, and the rest. A name without a number is the first entry:
/// an old way to give a single one.
fn number(name: &str) -> (u64, &str) {
    let (first, rest) = split(name);
    match first.parse() {
        Ok(number) => (number, rest),
        Err(_) => (0, name),
    }
}

/// The parts of a name before and behind its first dot.
fn split(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or((name, ""))
}

/// Why members do not fit the action's shape.
#[derive(Debug)]
pub(super) struct Refused(pub(super) SqsError);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Refused {}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self(SqsError::serialization(shortened(format_args!("{text}"))))
    }
}

/// Parses the members of a request into the action's shape.
pub(super) fn read<'f, T: Deserialize<'f>>(members: Members<'f>) -> Result<T, SqsError> {
    T::deserialize(MapDeserializer::new(members.values())).map_err(|refused: Refused| refused.0)
}

/// Parses an entry of a batch that waited as text.
pub(in crate::sqs) fn read_entry<'a, T: Deserialize<'a>>(form: &[u8]) -> Result<T, SqsError> {
    let members = Members::read_entry(form.split(|&byte| byte == b'&'))?;
    let values = members
        .values()
        .map(|(name, value)| (name, value.into_owned()));
    T::deserialize(MapDeserializer::new(values)).map_err(|refused: Refused| refused.0)
}

/// A value for serde's visitors.
enum Value<'f> {
    Text(Cow<'f, str>),
    /// With the name of its parameter.
    Integer(String, Cow<'f, str>),
    Given(bool),
    List(Vec<Value<'f>>),
    Map(Vec<(Cow<'f, str>, Value<'f>)>),
    /// With the number of further attributes. Their content does not matter: a request with so many
    /// is refused.
    Attributes(Vec<(Cow<'f, str>, Value<'f>)>, usize),
    Entries(Vec<(u64, &'f [u8])>),
}

impl<'f> Members<'f> {
    fn values(self) -> impl Iterator<Item = (&'static str, Value<'f>)> {
        self.0
            .into_iter()
            .map(|(name, member)| (name, member.into_value()))
    }
}

impl<'f> Member<'f> {
    fn into_value(self) -> Value<'f> {
        match self {
            Self::Text(text) => Value::Text(text),
            Self::Integer(name, text) => Value::Integer(name, text),
            Self::List(texts) => Value::List(texts.into_values().map(Value::Text).collect()),
            Self::Map(pairs) => {
                let pairs = pairs.into_values();
                Value::Map(pairs.map(|(key, text)| (key, Value::Text(text))).collect())
            }
            Self::Attributes(Attributes { kept, counted }) => {
                let kept = kept.into_values().map(Attribute::into_value);
                Value::Attributes(kept.collect(), counted.len())
            }
            Self::Entries(parameters) => Value::Entries(parameters),
        }
    }
}

impl<'f> Attribute<'f> {
    fn into_value(self) -> (Cow<'f, str>, Value<'f>) {
        let texts = self.value.into_iter();
        let mut fields: Vec<(Cow<'f, str>, Value<'f>)> = texts
            .map(|(field, text)| (field.into(), Value::Text(text)))
            .collect();
        fields.push(("StringListValues".into(), Value::Given(self.string_list)));
        fields.push(("BinaryListValues".into(), Value::Given(self.binary_list)));
        (self.name, Value::Map(fields))
    }
}

impl Value<'_> {
    /// The same value, without borrows. Entries have no entries within them.
    fn into_owned<'a>(self) -> Value<'a> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let all = |pairs: Vec<(Cow<'_, str>, Value<'_>)>| {
            let owned = |(key, value): (Cow<'_, str>, Value<'_>)| (own(key), value.into_owned());
            pairs.into_iter().map(owned).collect()
        };
        match self {
            Self::Text(text) => Value::Text(own(text)),
            Self::Integer(name, text) => Value::Integer(name, own(text)),
            Self::Given(given) => Value::Given(given),
            Self::List(values) => Value::List(values.into_iter().map(Value::into_owned).collect()),
            Self::Map(pairs) => Value::Map(all(pairs)),
            Self::Attributes(kept, more) => Value::Attributes(all(kept), more),
            Self::Entries(_) => Value::Entries(Vec::new()),
        }
    }
}

impl<'f> IntoDeserializer<'f, Refused> for Value<'f> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self {
            Self::Text(Cow::Borrowed(text)) => visitor.visit_borrowed_str(text),
            Self::Text(Cow::Owned(text)) => visitor.visit_string(text),
            Self::Integer(name, text) => match text.parse() {
                Ok(number) => visitor.visit_i64(number),
                Err(_) => Err(Refused(SqsError::invalid_value(
                    text,
                    &name,
                    "Must be an integer.",
                ))),
            },
            Self::Given(given) => {
                let one = given.then_some(Value::Text("".into()));
                visitor.visit_seq(SeqDeserializer::new(one.into_iter()))
            }
            Self::List(values) => visitor.visit_seq(SeqDeserializer::new(values.into_iter())),
            Self::Map(pairs) => visitor.visit_map(MapDeserializer::new(pairs.into_iter())),
            Self::Attributes(kept, more) => {
                let more = (0..more).map(|_| (Cow::default(), Value::Map(Vec::new())));
                visitor.visit_map(MapDeserializer::new(kept.into_iter().chain(more)))
            }
            Self::Entries(parameters) => visitor.visit_seq(Entries { parameters, at: 0 }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct enum identifier
    }
}

struct Entries<'f> {
    /// In order of entries.
    parameters: Vec<(u64, &'f [u8])>,
    at: usize,
}

impl<'f> SeqAccess<'f> for Entries<'f> {
    type Error = Refused;

    fn next_element_seed<S: DeserializeSeed<'f>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Refused> {
        let rest = &self.parameters[self.at..];
        let Some(&(number, _)) = rest.first() else {
            return Ok(None);
        };
        let len = rest.iter().take_while(|other| other.0 == number).count();
        self.at += len;
        seed.deserialize(Entry(&rest[..len])).map(Some)
    }
}

/// An entry of a batch, from its unparsed parameters.
struct Entry<'e, 'f>(&'e [(u64, &'f [u8])]);

impl<'de> Deserializer<'de> for Entry<'_, 'de> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let parameters = self.0.iter().map(|&(_, written)| written);
        let members = Members::read_entry(parameters).map_err(Refused)?;
        visitor.visit_map(MapDeserializer::new(members.values()))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        if !is_raw(name) {
            return visitor.visit_newtype_struct(self);
        }
        let written: Vec<&[u8]> = self.0.iter().map(|&(_, written)| written).collect();
        visitor.visit_byte_buf(written.join(&b'&'))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct seq tuple tuple_struct map struct enum identifier
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::sqs::shapes::SendMessageInput;

    /// The members in the form of the AWS JSON protocol.
    fn built(action: Action, form: &str) -> Json {
        let members = Members::read(action, [form.as_bytes(), b""]).unwrap();
        read(members).unwrap()
    }

    #[test]
    fn numbered_parameters_become_lists_maps_and_entries() {
        assert_eq!(
            built(
                Action::CreateQueue,
                "QueueName=a&Attribute.2.Name=B&Attribute.2.Value=2&Attribute.1.Name=A&Attribute.1.Value=1\
                 &Tag.1.Key=k&Tag.1.Value=v&Version=2012-11-05&Signature=x"
            ),
            json!({"QueueName": "a", "Attributes": {"A": "1", "B": "2"}, "tags": {"k": "v"}})
        );
        assert_eq!(
            built(
                Action::SendMessageBatch,
                "SendMessageBatchRequestEntry.10.Id=b&SendMessageBatchRequestEntry.9.Id=a\
                 &SendMessageBatchRequestEntry.9.DelaySeconds=5\
                 &SendMessageBatchRequestEntry.10.MessageAttribute.1.Name=n\
                 &SendMessageBatchRequestEntry.10.MessageAttribute.1.Value.DataType=String\
                 &SendMessageBatchRequestEntry.10.MessageAttribute.1.Value.StringValue=s"
            ),
            json!({"Entries": [
                {"Id": "a", "DelaySeconds": 5},
                {"Id": "b", "MessageAttributes": {"n": {"DataType": "String", "StringValue": "s",
                    "StringListValues": [], "BinaryListValues": []}}},
            ]})
        );
        assert_eq!(
            built(
                Action::GetQueueAttributes,
                "AttributeName.1=All&AttributeName.2=X"
            ),
            json!({"AttributeNames": ["All", "X"]})
        );
        assert_eq!(
            built(
                Action::SetQueueAttributes,
                "Attribute.Name=VisibilityTimeout&Attribute.Value=40"
            ),
            json!({"Attributes": {"VisibilityTimeout": "40"}})
        );
        assert_eq!(
            built(Action::GetQueueAttributes, "AttributeName=All"),
            json!({"AttributeNames": ["All"]})
        );
    }

    #[test]
    fn a_number_that_is_none_is_named() {
        let members = Members::read(Action::SendMessage, [b"DelaySeconds=soon", b""]).unwrap();
        let error = read::<SendMessageInput<'_>>(members).unwrap_err();
        assert_eq!(
            error.message,
            "Value soon for parameter DelaySeconds is invalid. Reason: Must be an integer."
        );
    }
}
