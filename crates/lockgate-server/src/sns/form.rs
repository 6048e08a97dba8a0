//! Reads the parameters of a request.
//!
//! A form is flat: lists and maps are numbered parameters, `Tags.member.1.Key` and `Attributes.entry.1.value`.

use std::{borrow::Cow, collections::BTreeMap};

use super::error::SnsError;
use crate::sqs::form_parameters;

/// The most parameters of a request. The largest are batches of ten messages with ten attributes each.
const PARAMETERS_MAX: usize = 2_000;

/// The parameters of a request by name. Of several with one name, the last.
#[derive(Debug, Default)]
pub(super) struct Form<'f>(BTreeMap<Cow<'f, str>, Cow<'f, str>>);

/// The parameters of an entry of a list or a map, by what is behind its number.
#[derive(Debug, Default)]
pub(super) struct Entry<'e>(BTreeMap<&'e str, &'e str>);

impl<'f> Form<'f> {
    pub(super) fn read(forms: [&'f [u8]; 2]) -> Result<Self, SnsError> {
        let mut form = Self::default();
        for parameter in forms.into_iter().flat_map(form_parameters) {
            let parameter = parameter?;
            let value = parameter.value()?;
            form.0.insert(parameter.name, value);
            if form.0.len() > PARAMETERS_MAX {
                return Err(SnsError::parameter(format!(
                    "Invalid parameter: a request may have {PARAMETERS_MAX} parameters"
                )));
            }
        }
        Ok(form)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| &**value)
    }

    /// A parameter that must be there and not empty.
    pub(super) fn required(&self, name: &str) -> Result<&str, SnsError> {
        let value = self.get(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| SnsError::missing(name))
    }

    /// The entries of a list or a map whose parameters begin with `prefix`, a dot and a number, in the order of the numbers.
    pub(super) fn entries(&self, prefix: &str) -> Vec<Entry<'_>> {
        let all = self.0.iter();
        entries(all.map(|(name, value)| (&**name, &**value)), prefix)
    }

    /// The texts of a list.
    pub(super) fn texts(&self, prefix: &str) -> Vec<&str> {
        let entries = self.entries(prefix).into_iter();
        entries
            .filter_map(|entry| entry.0.get("").copied())
            .collect()
    }

    /// A map of texts, whose entries have a key and a value under these names. Of several with one key, the last.
    pub(super) fn map(&self, prefix: &str, [key, value]: [&str; 2]) -> BTreeMap<&str, &str> {
        let entries = self.entries(prefix).into_iter();
        let pairs = entries.filter_map(|entry| {
            let value = entry.0.get(value).copied().unwrap_or("");
            Some((*entry.0.get(key)?, value))
        });
        pairs.collect()
    }
}

impl<'e> Entry<'e> {
    pub(super) fn get(&self, name: &str) -> Option<&'e str> {
        self.0.get(name).copied()
    }

    /// The entries of a list or a map within it.
    pub(super) fn entries(&self, prefix: &str) -> Vec<Entry<'e>> {
        entries(self.0.iter().map(|(name, value)| (*name, *value)), prefix)
    }
}

fn entries<'e>(
    parameters: impl Iterator<Item = (&'e str, &'e str)>,
    prefix: &str,
) -> Vec<Entry<'e>> {
    let mut entries: BTreeMap<u64, Entry<'e>> = BTreeMap::new();
    for (name, value) in parameters {
        let numbered = name.strip_prefix(prefix);
        let Some(numbered) = numbered.and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        let (number, rest) = numbered.split_once('.').unwrap_or((numbered, ""));
        if let Ok(number) = number.parse() {
            entries.entry(number).or_default().0.insert(rest, value);
        }
    }
    entries.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_parameters_become_lists_and_maps() {
        let body = b"TagKeys.member.10=b&TagKeys.member.9=a&TagKeys.member.x=c&TagKeys.memberx.1=d\
            &Attributes.entry.1.key=A&Attributes.entry.1.value=1%2B&Attributes.entry.2.key=B\
            &List.member.1.Id=i&List.member.1.Map.entry.2.Name=n&List.member.1.Map.entry.2.Value.DataType=t";
        let form = Form::read([b"Name=n", body]).unwrap();
        assert_eq!(form.get("Name"), Some("n"));
        assert_eq!(form.texts("TagKeys.member"), ["a", "b"]);
        let map = form.map("Attributes.entry", ["key", "value"]);
        assert_eq!(map, BTreeMap::from([("A", "1+"), ("B", "")]));
        let list = form.entries("List.member");
        assert_eq!(list[0].get("Id"), Some("i"));
        let within = list[0].entries("Map.entry");
        assert_eq!(within[0].get("Name"), Some("n"));
        assert_eq!(within[0].get("Value.DataType"), Some("t"));
    }

    #[test]
    fn a_form_of_many_parameters_is_refused() {
        let body: Vec<String> = (0..=PARAMETERS_MAX).map(|at| format!("p{at}=")).collect();
        let error = Form::read([b"", body.join("&").as_bytes()]).unwrap_err();
        assert!(error.message.contains("2000 parameters"), "{error}");
        assert!(Form::read([b"", body[1..].join("&").as_bytes()]).is_ok());
    }
}
