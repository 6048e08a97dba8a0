//! From a request to an action and back.

use hyper::{
    HeaderMap, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};

use super::{
    Call, Service, VERSION,
    error::{Code, SnsError},
    form::Form,
    xml::{self, Xml},
};
use crate::{
    auth::AuthError,
    http::{printable::Printable, response::Response},
    sqs::{self, Request},
};

/// Whether an action changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Reads,
    Changes,
}

/// Declares the actions: the enum, their names, and what they do.
macro_rules! actions {
    ($($action:ident = $effect:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Action {
            $($action,)*
        }

        impl Action {
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$action,)*];

            fn from_name(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($action) => Some(Self::$action),)*
                    _ => None,
                }
            }

            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$action => stringify!($action),)*
                }
            }

            const fn effect(self) -> Effect {
                match self {
                    $(Self::$action => Effect::$effect,)*
                }
            }
        }
    };
}

actions! {
    AddPermission = Changes,
    ConfirmSubscription = Changes,
    CreateTopic = Changes,
    DeleteTopic = Changes,
    GetSubscriptionAttributes = Reads,
    GetTopicAttributes = Reads,
    ListSubscriptions = Reads,
    ListSubscriptionsByTopic = Reads,
    ListTagsForResource = Reads,
    ListTopics = Reads,
    Publish = Changes,
    PublishBatch = Changes,
    RemovePermission = Changes,
    SetSubscriptionAttributes = Changes,
    SetTopicAttributes = Changes,
    Subscribe = Changes,
    TagResource = Changes,
    Unsubscribe = Changes,
    UntagResource = Changes,
}

/// AWS's actions for what Lockgate does not do, by what they are about.
const OTHERS: [(&str, &[&str]); 3] = [
    (
        "phones and their messages",
        &[
            "CheckIfPhoneNumberIsOptedOut",
            "CreateSMSSandboxPhoneNumber",
            "DeleteSMSSandboxPhoneNumber",
            "GetSMSAttributes",
            "GetSMSSandboxAccountStatus",
            "ListOriginationNumbers",
            "ListPhoneNumbersOptedOut",
            "ListSMSSandboxPhoneNumbers",
            "OptInPhoneNumber",
            "SetSMSAttributes",
            "VerifySMSSandboxPhoneNumber",
        ],
    ),
    (
        "apps on phones",
        &[
            "CreatePlatformApplication",
            "CreatePlatformEndpoint",
            "DeleteEndpoint",
            "DeletePlatformApplication",
            "GetEndpointAttributes",
            "GetPlatformApplicationAttributes",
            "ListEndpointsByPlatformApplication",
            "ListPlatformApplications",
            "SetEndpointAttributes",
            "SetPlatformApplicationAttributes",
        ],
    ),
    (
        "the protection of data",
        &["GetDataProtectionPolicy", "PutDataProtectionPolicy"],
    ),
];

/// What AWS's action is about that Lockgate does not do.
fn not_done(action: &str) -> Option<&'static str> {
    let mut others = OTHERS.iter();
    let found = others.find(|(_, actions)| actions.contains(&action));
    found.map(|(about, _)| *about)
}

/// Whether the action with that name changes nothing.
pub(crate) fn only_reads(action: &str) -> bool {
    Action::from_name(action).is_none_or(|action| action.effect() == Effect::Reads)
}

/// Whether a request is one for topics, and not for queues: a form of this API's version; or one without a version whose
/// action only this API has. Clients of AWS always name the version.
pub(crate) fn is_meant(request: &Request) -> bool {
    if request.path != "/"
        || !sqs::speaks_query(request.content_type.as_deref(), request.target.is_some())
    {
        return false;
    }
    let (mut version, mut action) = (None, None);
    for parameter in forms(request).into_iter().flat_map(sqs::form_parameters) {
        // What cannot be read is refused later.
        let Ok(parameter) = parameter else {
            return false;
        };
        match &*parameter.name {
            "Version" => version = parameter.value().ok(),
            "Action" => action = parameter.value().ok(),
            _ => {}
        }
    }
    match (version, action) {
        (Some(version), _) => version == VERSION,
        (None, Some(action)) => {
            !sqs::is_action(&action)
                && (Action::from_name(&action).is_some() || not_done(&action).is_some())
        }
        (None, None) => false,
    }
}

fn forms(request: &Request) -> [&[u8]; 2] {
    let query = request.query.as_deref().unwrap_or("");
    [query.as_bytes(), &request.body]
}

impl Service {
    /// Answers one request, whose id is `id`.
    pub(crate) async fn handle(&self, request: &Request, id: &str) -> Response {
        let form = Form::read(forms(request));
        let action = form.as_ref().map_err(SnsError::clone).and_then(action);
        let asked = action.as_ref().ok().map(|action| action.name());
        let outcome = match (action, &form) {
            (Ok(action), _) if request.by_link && action.effect() == Effect::Changes => {
                let refused = sqs::SqsError::by_link(action.name());
                Err(SnsError::new(Code::AuthorizationError, refused.message))
            }
            (Ok(action), Ok(form)) => self.perform(action, &Call::of(request), form).await,
            (Err(error), _) => Err(error),
            (_, Err(error)) => Err(error.clone()),
        };
        let (status, body) = match outcome {
            Ok(content) => {
                let action = asked.unwrap_or_default();
                (StatusCode::OK, xml::answer(action, content, id))
            }
            Err(error) => {
                tracing::debug!(
                    action = asked,
                    holder = %Printable(request.holder.as_str()),
                    code = error.code.name(),
                    error = %Printable(&error.message),
                    "refused a request of SNS"
                );
                let fault = match error.is_servers() {
                    true => "Receiver",
                    false => "Sender",
                };
                let body = xml::error(fault, error.code.name(), &error.message, id);
                (error.code.status(), body)
            }
        };
        let mut response = respond(status, body, id);
        response.action = asked;
        response
    }

    async fn perform(
        &self,
        action: Action,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Option<Xml>, SnsError> {
        match action {
            Action::CreateTopic => self.create_topic(call, form).await.map(Some),
            Action::DeleteTopic => self.delete_topic(call, form).await.map(|()| None),
            Action::ListTopics => self.list_topics(call, form).await.map(Some),
            Action::GetTopicAttributes => self.get_topic_attributes(call, form).await.map(Some),
            Action::SetTopicAttributes => {
                let set = self.set_topic_attributes(call, form);
                set.await.map(|()| None)
            }
            Action::Subscribe => self.subscribe(call, form).await.map(Some),
            Action::Unsubscribe => self.unsubscribe(call, form).await.map(|()| None),
            Action::ConfirmSubscription => Err(SnsError::invalid(
                "Token",
                Some(format_args!(
                    "Subscriptions of queues need no confirmation, and Lockgate has no others"
                )),
            )),
            Action::ListSubscriptions => self.list_subscriptions(call, form).await.map(Some),
            Action::ListSubscriptionsByTopic => {
                let listed = self.list_subscriptions_by_topic(call, form);
                listed.await.map(Some)
            }
            Action::GetSubscriptionAttributes => {
                let attributes = self.get_subscription_attributes(call, form);
                attributes.await.map(Some)
            }
            Action::SetSubscriptionAttributes => {
                let set = self.set_subscription_attributes(call, form);
                set.await.map(|()| None)
            }
            Action::Publish => self.publish(call, form).await.map(Some),
            Action::PublishBatch => self.publish_batch(call, form).await.map(Some),
            Action::TagResource => self.tag_resource(call, form).await.map(Some),
            Action::UntagResource => self.untag_resource(call, form).await.map(Some),
            Action::ListTagsForResource => self.list_tags(call, form).await.map(Some),
            Action::AddPermission => self.add_permission(call, form).await.map(|()| None),
            Action::RemovePermission => self.remove_permission(call, form).await.map(|()| None),
        }
    }
}

fn action(form: &Form<'_>) -> Result<Action, SnsError> {
    let refused = |message| Err(SnsError::new(Code::InvalidAction, message));
    let Some(name) = form.get("Action") else {
        return refused("The request names no action.".to_owned());
    };
    match (Action::from_name(name), not_done(name)) {
        (Some(action), _) => Ok(action),
        (None, Some(about)) => refused(format!(
            "{name} is about {about}, which Lockgate does not have: its topics lead to queues."
        )),
        (None, None) => refused(format!(
            "The action {name:.100} is not valid for this endpoint."
        )),
    }
}

/// The answer to a request of SNS that is signed for another service.
pub(crate) fn unauthenticated(error: &AuthError, id: &str) -> Response {
    let code = "SignatureDoesNotMatch";
    let body = xml::error("Sender", code, &error.to_string(), id);
    respond(StatusCode::FORBIDDEN, body, id)
}

fn respond(status: StatusCode, body: String, id: &str) -> Response {
    let mut headers = HeaderMap::with_capacity(4);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/xml"));
    if let Ok(id) = HeaderValue::try_from(id) {
        headers.insert("x-amzn-requestid", id);
    }
    Response {
        status,
        headers,
        body: body.into(),
        action: None,
        on_sent: None,
    }
}
