//! Tables of the API: for every action, rows with a request and its answer.
//!
//! A row has its request once, in AWS JSON, and is sent in every way that clients use: AWS JSON,
//! and the Query protocol by POST and by GET, at the root and at the queue's own URL. Each way has
//! its own service, so rows are independent. A refusal must have the same code, status, fault and
//! text in all ways, and the request must have changed nothing.

mod attributes;
mod audit;
mod batches;
mod codes;
mod dead_letters;
mod malformed;
mod message_attributes;
mod moves;
mod permissions;
mod purge;
mod queues;
mod receive;
mod send;
mod serialisers;
mod settle;
mod tags;

use lockgate_core::Millis;
use serde_json::{Map, Value, json};

use self::codes::Code;
use super::{
    ACCOUNT, HOST, Shop,
    protocols::{self, Speaks},
    text,
};
use crate::sqs::dispatch::Action;

/// Declares the tables by action, and makes two tests of each.
macro_rules! tables {
    ($($action:literal = $file:ident::$table:ident;)*) => {
        /// Every table, by its action.
        fn all() -> Vec<(&'static str, Vec<Row>)> {
            vec![$(($action, $file::$table()),)*]
        }

        $(mod $table {
            use super::{$file, Way, hold};

            #[tokio::test]
            async fn in_json() {
                hold($action, &$file::$table(), &[Way::Json]).await;
            }

            #[tokio::test]
            async fn in_query() {
                hold($action, &$file::$table(), &Way::QUERY).await;
            }
        })*
    };
}

tables! {
    "AddPermission" = permissions::add_permission;
    "CancelMessageMoveTask" = moves::cancel_message_move_task;
    "ChangeMessageVisibility" = settle::change_message_visibility;
    "ChangeMessageVisibilityBatch" = batches::change_message_visibility_batch;
    "CreateQueue" = queues::create_queue;
    "DeleteMessage" = settle::delete_message;
    "DeleteMessageBatch" = batches::delete_message_batch;
    "DeleteQueue" = queues::delete_queue;
    "GetQueueAttributes" = attributes::get_queue_attributes;
    "GetQueueUrl" = queues::get_queue_url;
    "ListDeadLetterSourceQueues" = dead_letters::list_dead_letter_source_queues;
    "ListMessageMoveTasks" = moves::list_message_move_tasks;
    "ListQueueTags" = tags::list_queue_tags;
    "ListQueues" = queues::list_queues;
    "PurgeQueue" = purge::purge_queue;
    "ReceiveMessage" = receive::receive_message;
    "RemovePermission" = permissions::remove_permission;
    "SendMessage" = send::send_message;
    "SendMessageBatch" = batches::send_message_batch;
    "SetQueueAttributes" = attributes::set_queue_attributes;
    "StartMessageMoveTask" = moves::start_message_move_task;
    "TagQueue" = tags::tag_queue;
    "UntagQueue" = tags::untag_queue;
}

/// A way to send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Json,
    /// A form, posted to `/`.
    Form,
    /// A form, posted to the queue's address instead of naming the queue.
    FormAtQueue,
    /// A URL of `/`.
    Get,
    /// A URL of the queue.
    GetAtQueue,
}

impl Way {
    const QUERY: [Self; 4] = [Self::Form, Self::FormAtQueue, Self::Get, Self::GetAtQueue];
}

/// The longest form that is also sent as a URL.
const ADDRESS_LEN_MAX: usize = 8_000;

/// A step before the request of a row.
enum Step {
    Ask(&'static str, Value),
    Pass(Millis),
}

/// The expected answer.
#[derive(Clone)]
enum Expected {
    /// Success. An object must have these members; `null` is a member that must be absent, and
    /// `"*"` is any value. An empty object must be empty.
    Answer(Value),
    /// Refused, with this text.
    Refusal(&'static Code, String),
}

/// One row: what an action is asked, and what it answers.
struct Row {
    name: String,
    given: Vec<Step>,
    input: Value,
    /// `None`: this protocol cannot express the request.
    in_json: Option<Expected>,
    in_query: Option<Expected>,
    then: Vec<(&'static str, Value, Expected)>,
    /// Whether only the row's request can change anything.
    still: bool,
}

/// Begins a row.
fn row(name: impl Into<String>) -> Row {
    Row {
        name: name.into(),
        given: Vec::new(),
        input: json!({}),
        in_json: None,
        in_query: None,
        then: Vec::new(),
        still: true,
    }
}

/// Texts in later requests and answers may contain `{1/Messages/0/ReceiptHandle}`: the value at
/// that place in the answer to the first request.
impl Row {
    /// Adds a request before, which must succeed.
    fn given(mut self, action: &'static str, input: Value) -> Self {
        self.given.push(Step::Ask(action, input));
        self
    }

    /// Creates a queue before.
    fn queue(self, name: &str) -> Self {
        self.queue_with(name, json!({}))
    }

    fn queue_with(self, name: &str, mut attributes: Value) -> Self {
        if name.ends_with(".fifo") {
            attributes["FifoQueue"] = json!("true");
        }
        self.given(
            "CreateQueue",
            json!({"QueueName": name, "Attributes": attributes}),
        )
    }

    /// Sends a message before.
    fn message(self, queue: &str, body: &str) -> Self {
        let mut input = json!({"QueueUrl": url(queue), "MessageBody": body});
        if queue.ends_with(".fifo") {
            input["MessageGroupId"] = json!("g");
            input["MessageDeduplicationId"] = json!(body);
        }
        self.given("SendMessage", input)
    }

    /// Receives up to ten messages before.
    fn received(self, queue: &str) -> Self {
        let input = json!({"QueueUrl": url(queue), "MaxNumberOfMessages": 10});
        self.given("ReceiveMessage", input)
    }

    /// Advances the clock before.
    fn after(mut self, span: Millis) -> Self {
        self.given.push(Step::Pass(span));
        self
    }

    /// Other changes go on while the row's request is sent.
    fn moving(mut self) -> Self {
        self.still = false;
        self
    }

    /// Sets the request.
    fn asks(mut self, input: Value) -> Self {
        self.input = input;
        self
    }

    fn answers(self, output: Value) -> Self {
        self.expects(Expected::Answer(output))
    }

    /// Expects success. An action that creates the queue `q` answers with its URL, one that changes
    /// it with nothing.
    fn works(self) -> Self {
        let makes = self.input.get("QueueName").is_some();
        let output = if makes {
            json!({"QueueUrl": url("q")})
        } else {
            json!({})
        };
        self.answers(output)
    }

    fn refused(self, code: &'static Code, message: impl Into<String>) -> Self {
        self.expects(Expected::Refusal(code, message.into()))
    }

    fn expects(mut self, expected: Expected) -> Self {
        self.in_json = Some(expected.clone());
        self.in_query = Some(expected);
        self
    }

    /// Forms cannot express this request: they have no types, no empty lists and no `null`.
    fn in_json_only(mut self) -> Self {
        self.in_query = None;
        self
    }

    /// Expects another answer to forms.
    fn but_in_query(mut self, code: &'static Code, message: impl Into<String>) -> Self {
        self.in_query = Some(Expected::Refusal(code, message.into()));
        self
    }

    /// Adds a request afterwards, and its answer.
    fn then(mut self, action: &'static str, input: Value, output: Value) -> Self {
        self.then.push((action, input, Expected::Answer(output)));
        self
    }

    fn then_refused(
        mut self,
        action: &'static str,
        input: Value,
        code: &'static Code,
        message: &str,
    ) -> Self {
        let refusal = Expected::Refusal(code, message.to_owned());
        self.then.push((action, input, refusal));
        self
    }

    /// Checks an attribute of a queue afterwards.
    fn then_attribute(self, queue: &str, name: &str, value: Value) -> Self {
        let input = json!({"QueueUrl": url(queue), "AttributeNames": [name]});
        let attributes = Value::Object(Map::from_iter([(name.to_owned(), value)]));
        self.then(
            "GetQueueAttributes",
            input,
            json!({"Attributes": attributes}),
        )
    }

    fn expected(&self, way: Way) -> Option<&Expected> {
        match way {
            Way::Json => self.in_json.as_ref(),
            _ => self.in_query.as_ref(),
        }
    }

    /// Whether the row expects a refusal.
    fn is_refused(&self) -> bool {
        matches!(
            self.in_json.as_ref().or(self.in_query.as_ref()),
            Some(Expected::Refusal(..))
        )
    }
}

/// The URL of a queue of that name.
fn url(name: &str) -> String {
    format!("http://{HOST}/{ACCOUNT}/{name}")
}

fn arn(name: &str) -> String {
    format!("arn:aws:sqs:us-east-1:{ACCOUNT}:{name}")
}

/// An answer of either protocol.
struct Answered {
    status: u16,
    /// The output; for a refusal in JSON, the whole body.
    output: Value,
    /// Of a refusal: code, fault, text.
    refusal: Option<(String, String, String)>,
}

/// Checks every row of a table in each of these ways.
async fn hold(action: &'static str, rows: &[Row], ways: &[Way]) {
    let mut wrong = Vec::new();
    for row in rows {
        for &way in ways {
            if let Err(found) = holds(action, row, way).await {
                wrong.push(format!(
                    "{}, {way:?}:\n    {}",
                    row.name,
                    found.join("\n    ")
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{action}: what its rows say does not hold {} times.\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

async fn holds(action: &str, row: &Row, way: Way) -> Result<(), Vec<String>> {
    let Some(expected) = row.expected(way) else {
        return Ok(());
    };
    let speaks = if way == Way::Json {
        Speaks::Json
    } else {
        Speaks::Query
    };
    let shop = Shop::speaking(speaks);
    let mut answers = Vec::new();
    for step in &row.given {
        match step {
            Step::Pass(span) => shop.pass(*span),
            Step::Ask(action, input) => {
                answers.push(shop.ok(action, filled(input, &answers)).await);
            }
        }
    }
    let before = shop.everything().await;
    let input = filled(&row.input, &answers);
    let Some(answered) = shop.asked(way, action, &input).await else {
        return Ok(());
    };
    answers.push(answered.output.clone());
    let mut wrong = judged(way, expected, &answered, &answers);
    let unchanged = row.still && matches!(expected, Expected::Refusal(..));
    if unchanged && shop.everything().await != before {
        wrong.push("it was refused, and something has changed".to_owned());
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let way = if way == Way::Json {
        Way::Json
    } else {
        Way::Form
    };
    for (action, input, expected) in &row.then {
        let input = filled(input, &answers);
        let answered = shop.asked(way, action, &input).await.expect("can be asked");
        let found = judged(way, expected, &answered, &answers);
        wrong.extend(
            found
                .into_iter()
                .map(|found| format!("then {action}: {found}")),
        );
        answers.push(answered.output);
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// The differences between an answer and the expected one.
fn judged(way: Way, expected: &Expected, found: &Answered, answers: &[Value]) -> Vec<String> {
    match (expected, &found.refusal) {
        (Expected::Answer(expected), None) => {
            let mut wrong = Vec::new();
            if found.status != 200 {
                wrong.push(format!("the status is {}", found.status));
            }
            compare("", &filled(expected, answers), &found.output, &mut wrong);
            wrong
        }
        (Expected::Refusal(code, message), Some(refusal)) => {
            let mut wrong = Vec::new();
            // AWS words this one error differently in the older protocol.
            let message = if way != Way::Json && *code == &codes::NO_QUEUE {
                codes::NO_QUEUE_TEXT_IN_QUERY.to_owned()
            } else {
                filled_text(message, answers)
            };
            let expected = (code.legacy.to_owned(), code.fault().to_owned(), message);
            if found.status != code.status || *refusal != expected {
                wrong.push(format!(
                    "expected {} {expected:?}\n    found    {} {refusal:?}",
                    code.status, found.status
                ));
            }
            if way == Way::Json && found.output["__type"] != code.kind {
                wrong.push(format!("the type is {}", found.output["__type"]));
            }
            wrong
        }
        (Expected::Answer(_), Some(refusal)) => vec![format!("refused: {refusal:?}")],
        (Expected::Refusal(..), None) => vec![format!("answered: {}", found.output)],
    }
}

/// The differences between a value and its expected members.
fn compare(at: &str, expected: &Value, found: &Value, wrong: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(members), Value::Object(all)) if !members.is_empty() => {
            for (name, member) in members {
                let at = format!("{at}/{name}");
                compare(&at, member, all.get(name).unwrap_or(&Value::Null), wrong);
            }
        }
        (Value::Array(entries), Value::Array(all)) if entries.len() == all.len() => {
            for (number, (entry, found)) in entries.iter().zip(all).enumerate() {
                compare(&format!("{at}/{number}"), entry, found, wrong);
            }
        }
        (Value::String(any), found) if any == "*" && !found.is_null() => {}
        _ if expected == found => {}
        _ => wrong.push(format!(
            "{at}: expected {expected:.300}\n    found    {found:.300}"
        )),
    }
}

/// Fills in the places of a request or an answer that refer to earlier answers.
fn filled(value: &Value, answers: &[Value]) -> Value {
    match value {
        Value::String(text) => filled_text(text, answers).into(),
        Value::Array(values) => values.iter().map(|value| filled(value, answers)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| (name.clone(), filled(value, answers)))
            .collect::<Map<_, _>>()
            .into(),
        value => value.clone(),
    }
}

fn filled_text(text: &str, answers: &[Value]) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, place) = rest.split_at(at);
        filled.push_str(before);
        let is_reference = place[1..].starts_with(|c: char| c.is_ascii_digit());
        if let Some((reference, tail)) = place[1..].split_once('}').filter(|_| is_reference) {
            let (number, pointer) = reference.split_once('/').expect("an answer and a place");
            let answer = &answers[number.parse::<usize>().expect("a number") - 1];
            let found = answer.pointer(&format!("/{pointer}"));
            filled.push_str(
                found
                    .and_then(Value::as_str)
                    .unwrap_or_else(|| panic!("there is no text at {pointer} in {answer}")),
            );
            rest = tail;
        } else {
            filled.push('{');
            rest = &place[1..];
        }
    }
    filled.push_str(rest);
    filled
}

impl Shop {
    /// Sends a request in one of the ways; `None` if that way cannot express it.
    async fn asked(&self, way: Way, action: &str, input: &Value) -> Option<Answered> {
        if way == Way::Json {
            let target = format!("AmazonSQS.{action}");
            let mut answer = self.raw(Some(&target), input.to_string()).await;
            if let Some(guard) = answer.guard.take() {
                guard.keep();
            }
            let refusal = answer.query_error.as_ref().map(|header| {
                let (code, fault) = header.split_once(';').expect("a code and a fault");
                (
                    code.to_owned(),
                    fault.to_owned(),
                    text(&answer.body["message"]),
                )
            });
            return Some(Answered {
                status: answer.status,
                output: answer.body,
                refusal,
            });
        }
        let mut input = input.clone();
        let path = match way {
            Way::FormAtQueue | Way::GetAtQueue => {
                let url = input.as_object_mut()?.remove("QueueUrl")?;
                url.as_str()?
                    .strip_prefix(&format!("http://{HOST}"))?
                    .to_owned()
            }
            _ => "/".to_owned(),
        };
        let form = protocols::form(action, &input).expect("a form can say so");
        let answer = match way {
            Way::Get | Way::GetAtQueue if form.len() > ADDRESS_LEN_MAX => return None,
            Way::Get | Way::GetAtQueue => self.get(&path, &form).await,
            _ => self.form(&path, &form).await,
        };
        Some(if answer.status == 200 {
            Answered {
                status: 200,
                output: protocols::output(action, &answer.body),
                refusal: None,
            }
        } else {
            Answered {
                status: answer.status,
                output: Value::Null,
                refusal: Some(protocols::error_as_written(&answer.body)),
            }
        })
    }

    /// The visible state of all queues.
    async fn everything(&self) -> Vec<Value> {
        let all = self.engine.directory().all();
        let mut seen = Vec::new();
        for queue in &*all {
            let input = json!({"QueueUrl": url(queue.name.as_str()), "AttributeNames": ["All"]});
            for action in ["GetQueueAttributes", "ListQueueTags"] {
                let answered = self.asked(Way::Json, action, &input).await;
                seen.push(answered.expect("can be asked").output);
            }
        }
        seen
    }
}

/// Numbers outside the range of every integer of the service.
fn huge_integers() -> [i64; 3] {
    [i64::MIN, -1, i64::MAX]
}

#[test]
fn every_action_has_a_table_with_what_works_and_what_is_refused() {
    let tables = all();
    let named: Vec<&str> = tables.iter().map(|(action, _)| *action).collect();
    let known: Vec<&str> = Action::ALL.iter().map(|action| action.name()).collect();
    assert_eq!(
        named, known,
        "the tables, and the actions that the service knows"
    );
    for (action, rows) in tables {
        assert!(
            rows.iter().any(Row::is_refused),
            "{action}: nothing is refused"
        );
        assert!(!rows.iter().all(Row::is_refused), "{action}: nothing works");
        let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        names.sort_unstable();
        for pair in names.windows(2) {
            assert_ne!(pair[0], pair[1], "{action}: two rows of one name");
        }
        for row in &rows {
            assert!(
                row.in_json.is_some(),
                "{action}, {}: expects nothing",
                row.name
            );
        }
    }
}

#[test]
fn a_row_is_judged_by_all_that_it_says() {
    let differ = |expected: Value, found: Value| {
        let mut wrong = Vec::new();
        compare("", &expected, &found, &mut wrong);
        !wrong.is_empty()
    };
    let found = json!({"a": "1", "list": [{"x": 1}, {"x": 2}]});
    for right in [
        json!({"a": "1"}),
        json!({"a": "*", "b": null}),
        json!({"list": [{"x": 1}, {"x": 2}]}),
    ] {
        assert!(!differ(right.clone(), found.clone()), "{right}");
    }
    for wrong in [
        json!({}),
        json!({"a": 1}),
        json!({"b": "*"}),
        json!({"a": null}),
        json!({"list": [{"x": 1}]}),
        json!({"list": [{"x": 2}, {"x": 1}]}),
    ] {
        assert!(differ(wrong.clone(), found.clone()), "{wrong}");
    }
    assert!(!differ(json!({}), json!({})));
    let answers = [json!({"A": ["x"]}), json!({"B": "y"})];
    assert_eq!(
        filled_text("{\"k\":{}} {1/A/0}-{2/B}", &answers),
        "{\"k\":{}} x-y"
    );
}
