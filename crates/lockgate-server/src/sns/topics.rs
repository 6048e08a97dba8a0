//! Makes, lists and deletes topics, and reads and changes their attributes.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use lockgate_core::ExchangeName;
use lockgate_engine::EngineError;
use lockgate_machine::{
    CreateExchange, DeleteExchange, ExchangeDescription, ExchangeError, ExchangeKind,
    ExchangeNotes, ExchangesPage, ListExchanges, Query, Rejection, Unroutable, UpdateExchange,
};

use super::{
    Call, Service, arns,
    error::SnsError,
    form::Form,
    tags,
    topic_attributes::{self, CONTENT_DEDUPLICATION, FIFO_TOPIC},
    xml::Xml,
};
use crate::auth::Verb;

/// How many topics a page lists at most.
pub(super) const PAGE_MAX: usize = 100;

impl Service {
    /// Makes a topic. Does nothing if it exists with the same attributes and tags.
    pub(super) async fn create_topic(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let name = form.required("Name")?;
        let mut given = form.map("Attributes.entry", ["key", "value"]);
        let fifo = match given.remove(FIFO_TOPIC) {
            Some(value) => topic_attributes::flag(FIFO_TOPIC, value)?,
            None => false,
        };
        let name = arns::topic_name(name, fifo)?;
        call.check_openly(Verb::Manage, &name)?;
        if form
            .get("DataProtectionPolicy")
            .is_some_and(|policy| !policy.is_empty())
        {
            return Err(SnsError::invalid(
                "DataProtectionPolicy",
                Some(format_args!("Lockgate does not look into messages")),
            ));
        }
        let mut notes = ExchangeNotes {
            annotations: BTreeMap::new(),
            tags: tags::of_form(form)?,
        };
        for (attribute, value) in &given {
            topic_attributes::set(&mut notes.annotations, &name, attribute, value)?;
        }
        if let Some(existing) = self.exchange(&name).await? {
            return self.same_topic(&existing, &given, &notes);
        }
        let create = CreateExchange {
            name: name.clone(),
            kind: ExchangeKind::Fanout,
            unroutable: Unroutable::Drop,
            notes: notes.clone(),
        };
        match self.engine.submit(create).await {
            Ok(created) if created.existed => self.same_topic(&created.description, &given, &notes),
            Ok(_) => Ok(self.topic_made(&name)),
            // Another caller has made it since.
            Err(EngineError::Rejected(Rejection::Exchange(ExchangeError::Conflict { .. }))) => {
                let existing = self.exchange(&name).await?;
                let existing = existing.ok_or_else(SnsError::no_topic)?;
                self.same_topic(&existing, &given, &notes)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn topic_made(&self, name: &ExchangeName) -> Xml {
        let mut xml = Xml::default();
        xml.leaf("TopicArn", &arns::topic_arn(&self.config, name));
        xml
    }

    /// The answer for a topic that exists, if what was asked for is as it is.
    fn same_topic(
        &self,
        existing: &ExchangeDescription,
        given: &BTreeMap<&str, &str>,
        wanted: &ExchangeNotes,
    ) -> Result<Xml, SnsError> {
        if existing.kind != ExchangeKind::Fanout {
            return Err(SnsError::invalid(
                "Topic Name",
                Some(format_args!(
                    "There is an exchange of that name, of kind {}",
                    existing.kind
                )),
            ));
        }
        let (is, asked) = (&existing.notes.annotations, &wanted.annotations);
        let differs =
            |name: &&str| topic_attributes::value(is, name) != topic_attributes::value(asked, name);
        if given.keys().any(differs) {
            let reason = format_args!("Topic already exists with different attributes");
            return Err(SnsError::invalid("Attributes", Some(reason)));
        }
        if !wanted.tags.is_empty() && wanted.tags != existing.notes.tags {
            let reason = format_args!("Topic already exists with different tags");
            return Err(SnsError::invalid("Tags", Some(reason)));
        }
        Ok(self.topic_made(&existing.name))
    }

    /// Deletes a topic with its subscriptions. One that is not there is deleted already.
    pub(super) async fn delete_topic(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<(), SnsError> {
        let name = self.topic_named(form, "TopicArn")?;
        call.check_openly(Verb::Purge, &name)?;
        let is_topic = |topic: &ExchangeDescription| topic.kind == ExchangeKind::Fanout;
        if !self.exchange(&name).await?.as_ref().is_some_and(is_topic) {
            return Ok(());
        }
        let delete = DeleteExchange {
            exchange: name,
            force: false,
        };
        match self.engine.submit(delete).await {
            Ok(())
            | Err(EngineError::Rejected(Rejection::Exchange(ExchangeError::NotFound { .. }))) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn list_topics(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let after = form.get("NextToken").map(topic_of_token).transpose()?;
        let mut page = self.topics(call, after, PAGE_MAX).await?;
        let next = page.split_off(page.len().min(PAGE_MAX));
        let mut xml = Xml::default();
        xml.open("Topics");
        for topic in &page {
            xml.open("member");
            xml.leaf("TopicArn", &arns::topic_arn(&self.config, &topic.name));
            xml.close("member");
        }
        xml.close("Topics");
        if let (false, Some(last)) = (next.is_empty(), page.last()) {
            xml.leaf("NextToken", &token(last.name.as_str()));
        }
        Ok(xml)
    }

    /// The topics behind one that the caller may read: more than `enough`, or all.
    pub(super) async fn topics(
        &self,
        call: &Call<'_>,
        after: Option<ExchangeName>,
        enough: usize,
    ) -> Result<Vec<ExchangeDescription>, SnsError> {
        let mut list = ListExchanges {
            prefix: String::new(),
            after,
            limit: Query::LIMIT_MAX,
        };
        let mut topics = Vec::new();
        loop {
            let ExchangesPage { exchanges, next } = self.engine.query(list.clone()).await?;
            topics.extend(exchanges.into_iter().filter(|exchange| {
                exchange.kind == ExchangeKind::Fanout && call.may(Verb::Read, &exchange.name)
            }));
            list.after = next;
            if list.after.is_none() || topics.len() > enough {
                return Ok(topics);
            }
        }
    }

    pub(super) async fn get_topic_attributes(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let name = self.topic_named(form, "TopicArn")?;
        let topic = self.topic(call, Verb::Read, &name).await?;
        let arn = arns::topic_arn(&self.config, &name);
        let attributes = topic_attributes::all(&topic, &arn, &self.config.account);
        Ok(Xml::of_attributes(attributes))
    }

    pub(super) async fn set_topic_attributes(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<(), SnsError> {
        let name = self.topic_named(form, "TopicArn")?;
        let attribute = form.required("AttributeName")?;
        let value = form.get("AttributeValue").unwrap_or("");
        self.change_notes(call, &name, |notes| {
            topic_attributes::set(&mut notes.annotations, &name, attribute, value)
        })
        .await
    }

    /// Changes what a topic carries.
    pub(super) async fn change_notes(
        &self,
        call: &Call<'_>,
        name: &ExchangeName,
        change: impl FnOnce(&mut ExchangeNotes) -> Result<(), SnsError>,
    ) -> Result<(), SnsError> {
        let _alone = self.changes.lock().await;
        let topic = self.topic(call, Verb::Manage, name).await?;
        let mut notes = (*topic.notes).clone();
        change(&mut notes)?;
        if notes == *topic.notes {
            return Ok(());
        }
        let update = UpdateExchange {
            exchange: name.clone(),
            unroutable: None,
            notes: Some(notes),
        };
        Ok(self.engine.submit(update).await?)
    }

    /// The topic that a parameter names, whether or not it is there.
    pub(super) fn topic_named(
        &self,
        form: &Form<'_>,
        parameter: &str,
    ) -> Result<ExchangeName, SnsError> {
        arns::topic_in_arn(&self.config, form.required(parameter)?, parameter)
    }
}

/// Whether the bodies of a topic's messages are their unique ids where they have none.
pub(super) fn deduplicates_content(topic: &ExchangeDescription) -> bool {
    let annotations = &topic.notes.annotations;
    topic_attributes::value(annotations, CONTENT_DEDUPLICATION) == Some("true")
}

/// A token that stands for a place in a list.
pub(super) fn token(place: &str) -> String {
    URL_SAFE_NO_PAD.encode(place)
}

/// The place that a token stands for.
pub(super) fn place(token: &str) -> Result<String, SnsError> {
    let place = URL_SAFE_NO_PAD.decode(token).ok();
    let place = place.and_then(|place| String::from_utf8(place).ok());
    place.ok_or_else(|| SnsError::invalid("NextToken", None))
}

fn topic_of_token(token: &str) -> Result<ExchangeName, SnsError> {
    ExchangeName::new(&place(token)?).map_err(|_| SnsError::invalid("NextToken", None))
}
