//! Tags of topics.

use std::collections::BTreeMap;

use super::{
    Call, Service, arns,
    error::{Code, SnsError},
    form::Form,
    xml::Xml,
};
use crate::{
    auth::Verb,
    queue::tags::{TAGS_MAX, check_key, check_key_length, check_value},
};

/// The tags of a request, checked.
pub(super) fn of_form(form: &Form<'_>) -> Result<BTreeMap<String, String>, SnsError> {
    let entries = form.entries("Tags.member");
    let mut tags = BTreeMap::new();
    for entry in entries {
        let (key, value) = (entry.get("Key"), entry.get("Value"));
        let key = key.ok_or_else(|| SnsError::missing("Key"))?;
        let value = value.unwrap_or("");
        check_key(key).map_err(invalid)?;
        check_value(value).map_err(invalid)?;
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(SnsError::parameter(
                "Invalid parameter: Duplicated keys are not allowed.",
            ));
        }
    }
    match tags.len() > TAGS_MAX {
        true => Err(too_many()),
        false => Ok(tags),
    }
}

fn invalid(error: crate::queue::Invalid) -> SnsError {
    SnsError::invalid("Tags", Some(format_args!("{}", error.message)))
}

fn too_many() -> SnsError {
    SnsError::new(
        Code::TagLimitExceeded,
        format!("Could not complete request: tag quota of per resource exceeded ({TAGS_MAX})"),
    )
}

/// AWS's code for a topic that is not there, where a request is about tags.
fn of_resource(error: SnsError) -> SnsError {
    match error == SnsError::no_topic() {
        true => SnsError::new(Code::ResourceNotFound, "Resource does not exist"),
        false => error,
    }
}

impl Service {
    pub(super) async fn tag_resource(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let name = self.topic_named(form, "ResourceArn").map_err(of_resource)?;
        let added = of_form(form)?;
        if added.is_empty() {
            return Err(SnsError::missing("Tags"));
        }
        let changed = self.change_notes(call, &name, |notes| {
            notes.tags.extend(added);
            match notes.tags.len() > TAGS_MAX {
                true => Err(too_many()),
                false => Ok(()),
            }
        });
        changed.await.map_err(of_resource)?;
        Ok(Xml::default())
    }

    pub(super) async fn untag_resource(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let name = self.topic_named(form, "ResourceArn").map_err(of_resource)?;
        let keys = form.texts("TagKeys.member");
        if keys.is_empty() {
            return Err(SnsError::missing("TagKeys"));
        }
        for key in &keys {
            check_key_length(key).map_err(invalid)?;
        }
        let changed = self.change_notes(call, &name, |notes| {
            notes.tags.retain(|key, _| !keys.contains(&&**key));
            Ok(())
        });
        changed.await.map_err(of_resource)?;
        Ok(Xml::default())
    }

    pub(super) async fn list_tags(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let arn = form.required("ResourceArn")?;
        let name = arns::topic_in_arn(&self.config, arn, "ResourceArn").map_err(of_resource)?;
        let topic = self.topic(call, Verb::Read, &name).await;
        let topic = topic.map_err(of_resource)?;
        let mut xml = Xml::default();
        xml.open("Tags");
        for (key, value) in &topic.notes.tags {
            xml.open("member");
            xml.leaf("Key", key);
            xml.leaf("Value", value);
            xml.close("member");
        }
        xml.close("Tags");
        Ok(xml)
    }
}
