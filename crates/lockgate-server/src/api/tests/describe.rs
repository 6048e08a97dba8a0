//! Makes the description of the API: operations from their table, fields from their types, examples
//! from real answers.

use std::collections::BTreeSet;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    super::{
        problem::{Code, Problem},
        route::{Operation, PREFIX},
        shapes::*,
    },
    examples::{self, Example},
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/openapi.json");

/// The parts of an operation's description that the table of operations lacks.
struct Described {
    tag: &'static str,
    /// The verb the caller needs.
    verb: &'static str,
    parameters: Option<Schema>,
    body: Option<Schema>,
    answers: Vec<(u16, &'static str, Schema)>,
    /// Codes besides those that every operation can have.
    codes: &'static [Code],
}

struct Generators {
    inputs: SchemaGenerator,
    outputs: SchemaGenerator,
}

impl Generators {
    fn new() -> Self {
        let generator = |settings: SchemaSettings| {
            settings
                .with(|settings| {
                    settings.meta_schema = None;
                    settings.definitions_path = "/components/schemas".into();
                })
                .into_generator()
        };
        Self {
            inputs: generator(SchemaSettings::draft2020_12().for_deserialize()),
            outputs: generator(SchemaSettings::draft2020_12().for_serialize()),
        }
    }

    fn input<T: JsonSchema>(&mut self) -> Option<Schema> {
        Some(self.inputs.subschema_for::<T>())
    }

    fn ok<T: JsonSchema>(&mut self) -> Vec<(u16, &'static str, Schema)> {
        vec![(200, "Done.", self.outputs.subschema_for::<T>())]
    }

    /// All schemas, by name.
    fn schemas(mut self) -> Map<String, Value> {
        let mut schemas = self.outputs.take_definitions(true);
        for (name, schema) in self.inputs.take_definitions(true) {
            let before = schemas.insert(name.clone(), schema.clone());
            assert!(
                before.is_none_or(|before| before == schema),
                "{name} is one thing on the way in and another on the way out"
            );
        }
        schemas
    }
}

fn described(operation: Operation, to: &mut Generators) -> Described {
    let queue = |verb, answers| Described {
        tag: "queues",
        verb,
        parameters: None,
        body: None,
        answers,
        codes: &[Code::QueueNotFound],
    };
    let ledger = |verb, answers| Described {
        tag: "ledgers",
        codes: &[Code::LedgerNotFound],
        ..queue(verb, answers)
    };
    let exchange = |verb, answers| Described {
        tag: "exchanges",
        codes: &[Code::ExchangeNotFound],
        ..queue(verb, answers)
    };
    let schedule = |verb, answers| Described {
        tag: "schedules",
        codes: &[Code::ScheduleNotFound, Code::ScheduleChanged],
        ..queue(verb, answers)
    };
    let record = |verb, answers| Described {
        tag: "records",
        codes: &[Code::RecordConflict, Code::RecordHeld, Code::LeaseStale],
        ..queue(verb, answers)
    };
    match operation {
        Operation::GetServer => Described {
            tag: "server",
            verb: "",
            codes: &[],
            ..queue("", to.ok::<ServerInfo>())
        },
        Operation::ListQueues => Described {
            parameters: to.input::<ListQueues>(),
            codes: &[Code::InvalidPage],
            ..queue("read", to.ok::<Queues>())
        },
        Operation::CreateQueue => Described {
            body: to.input::<CreateQueue>(),
            answers: vec![
                (
                    200,
                    "It was there already.",
                    to.outputs.subschema_for::<Queue>(),
                ),
                (201, "It was made.", to.outputs.subschema_for::<Queue>()),
            ],
            codes: &[Code::QueueExists],
            ..queue("manage", vec![])
        },
        Operation::GetQueue => queue("read", to.ok::<Queue>()),
        Operation::GetSending => queue("send", to.ok::<Sending>()),
        Operation::ChangeQueue => Described {
            body: to.input::<ChangeQueue>(),
            ..queue("manage", to.ok::<Queue>())
        },
        Operation::DeleteQueue => queue("purge", to.ok::<Nothing>()),
        Operation::PurgeQueue => queue("purge", to.ok::<Purged>()),
        Operation::PauseQueue | Operation::ResumeQueue => queue("manage", to.ok::<Queue>()),
        Operation::HoldQueue => Described {
            body: to.input::<Hold>(),
            ..queue("manage", to.ok::<Held>())
        },
        Operation::HoldNoKey => Described {
            codes: &[Code::QueueNotFound, Code::KeyRequired],
            tag: "keys",
            body: to.input::<Hold>(),
            ..queue("manage", to.ok::<Held>())
        },
        Operation::HoldKey => Described {
            tag: "keys",
            body: to.input::<Hold>(),
            ..queue("manage", to.ok::<Held>())
        },
        Operation::ListKeys => Described {
            tag: "keys",
            parameters: to.input::<ListKeys>(),
            codes: &[Code::QueueNotFound, Code::QueueNotKeyed, Code::InvalidPage],
            ..queue("read", to.ok::<Keys>())
        },
        Operation::ExplainKey => Described {
            tag: "keys",
            codes: &[Code::QueueNotFound],
            ..queue("read", to.ok::<KeyExplanation>())
        },
        Operation::ExplainNoKey => Described {
            tag: "keys",
            codes: &[Code::QueueNotFound, Code::KeyRequired],
            ..queue("read", to.ok::<KeyExplanation>())
        },
        Operation::ParkKey => Described {
            tag: "keys",
            codes: &[Code::QueueNotFound, Code::QueueNotKeyed],
            ..queue("manage", to.ok::<KeyExplanation>())
        },
        Operation::ResumeKey => Described {
            tag: "keys",
            codes: &[Code::QueueNotFound, Code::KeyNotFound, Code::QueueNotKeyed],
            ..queue("manage", to.ok::<KeyExplanation>())
        },
        Operation::DropKey => Described {
            tag: "keys",
            codes: &[Code::QueueNotFound, Code::KeyNotFound],
            ..queue("purge", to.ok::<MessagesDropped>())
        },
        Operation::ListKeyStates => Described {
            tag: "keys",
            parameters: to.input::<ListKeyStates>(),
            codes: &[Code::QueueNotFound, Code::QueueNotKeyed, Code::InvalidPage],
            ..queue("receive", to.ok::<KeyStates>())
        },
        Operation::GetKeyState => Described {
            tag: "keys",
            codes: &[
                Code::QueueNotFound,
                Code::QueueNotKeyed,
                Code::StateNotFound,
            ],
            ..queue("receive", to.ok::<KeyState>())
        },
        Operation::PutKeyState => Described {
            tag: "keys",
            body: to.input::<PutKeyState>(),
            codes: &[
                Code::QueueNotFound,
                Code::QueueNotKeyed,
                Code::StateConflict,
                Code::QueueFull,
                Code::DiskFull,
            ],
            ..queue("manage", to.ok::<KeyStateWritten>())
        },
        Operation::DropKeyState => Described {
            tag: "keys",
            parameters: to.input::<DropKeyState>(),
            codes: &[
                Code::QueueNotFound,
                Code::QueueNotKeyed,
                Code::StateConflict,
            ],
            ..queue("manage", to.ok::<Nothing>())
        },
        Operation::SendMessages => Described {
            tag: "messages",
            body: to.input::<SendMessages<'_>>(),
            ..queue("send", to.ok::<SendResults>())
        },
        Operation::PeekMessages => Described {
            tag: "messages",
            parameters: to.input::<ListMessages>(),
            codes: &[Code::QueueNotFound, Code::KeyNotFound, Code::InvalidPage],
            ..queue("receive", to.ok::<PeekedMessages>())
        },
        Operation::PeekMessage => Described {
            tag: "messages",
            codes: &[Code::QueueNotFound, Code::MessageNotFound],
            ..queue("receive", to.ok::<PeekedMessage>())
        },
        Operation::CancelMessage => Described {
            tag: "messages",
            codes: &[
                Code::QueueNotFound,
                Code::MessageNotFound,
                Code::MessageInFlight,
            ],
            ..queue("receive", to.ok::<Nothing>())
        },
        Operation::RescheduleMessage => Described {
            tag: "messages",
            body: to.input::<Reschedule>(),
            codes: &[
                Code::QueueNotFound,
                Code::MessageNotFound,
                Code::MessageInFlight,
            ],
            ..queue("receive", to.ok::<Rescheduled>())
        },
        Operation::ReceiveMessages => Described {
            tag: "messages",
            body: to.input::<ReceiveMessages>(),
            codes: &[Code::QueueNotFound, Code::InFlightFull],
            ..queue("receive", to.ok::<ReceivedMessages>())
        },
        Operation::SettleMessages => Described {
            tag: "messages",
            body: to.input::<SettleMessages<'_>>(),
            ..queue("receive", to.ok::<SettleResults>())
        },
        Operation::ListProducers => Described {
            tag: "producers",
            parameters: to.input::<ListProducers>(),
            codes: &[Code::QueueNotFound, Code::InvalidPage],
            ..queue("read", to.ok::<Producers>())
        },
        Operation::OpenProducer => Described {
            tag: "producers",
            codes: &[Code::QueueNotFound, Code::ProducersFull, Code::DiskFull],
            ..queue("send", to.ok::<ProducerOpened>())
        },
        Operation::ForgetProducer => Described {
            tag: "producers",
            codes: &[Code::QueueNotFound, Code::ProducerNotFound],
            ..queue("manage", to.ok::<Nothing>())
        },
        Operation::ListDeadLetterSources => Described {
            tag: "dead letters",
            parameters: to.input::<ListDeadLetterSources>(),
            codes: &[Code::QueueNotFound, Code::InvalidPage],
            ..queue("read", to.ok::<DeadLetterSources>())
        },
        Operation::ListDeadLetters => Described {
            tag: "dead letters",
            parameters: to.input::<ListDeadLetters>(),
            codes: &[Code::QueueNotFound, Code::InvalidPage],
            ..queue("receive", to.ok::<PeekedMessages>())
        },
        Operation::RedriveDeadLetters => Described {
            tag: "dead letters",
            body: to.input::<Redrive>(),
            ..queue(
                "receive, and send on the queues they go to",
                to.ok::<Redriven>(),
            )
        },
        Operation::Transact => Described {
            tag: "transactions",
            body: to.input::<Transaction<'_>>(),
            codes: &[
                Code::QueueNotFound,
                Code::InvalidReceipt,
                Code::LeaseStale,
                Code::QueueNotKeyed,
                Code::StateConflict,
                Code::KeyRequired,
                Code::KeyNotTaken,
                Code::GroupNotTaken,
                Code::UniqueIdRequired,
                Code::MessageTooLarge,
                Code::QueueFull,
                Code::UniqueIdsFull,
                Code::SentBefore,
                Code::ProducerFenced,
                Code::ProducerUnknown,
                Code::ProducersFull,
                Code::DiskFull,
                Code::ExchangeNotFound,
                Code::Unroutable,
                Code::InvalidCopyKey,
                Code::RouteTooLarge,
            ],
            ..queue("receive and send", to.ok::<Transacted>())
        },
        Operation::ListRecords => Described {
            parameters: to.input::<ListRecords>(),
            codes: &[Code::InvalidPage],
            ..record("read", to.ok::<Records>())
        },
        Operation::GetRecord => Described {
            parameters: to.input::<WatchRecord>(),
            codes: &[Code::RecordNotFound],
            ..record("read", to.ok::<RecordView>())
        },
        Operation::PutRecord => Described {
            body: to.input::<PutRecord>(),
            codes: &[
                Code::RecordConflict,
                Code::RecordHeld,
                Code::LeaseStale,
                Code::RecordsFull,
            ],
            ..record("manage", to.ok::<RecordWritten>())
        },
        Operation::DeleteRecord => Described {
            parameters: to.input::<DeleteRecord>(),
            ..record("manage", to.ok::<Nothing>())
        },
        Operation::LeaseRecord => Described {
            body: to.input::<LeaseRecord>(),
            codes: &[Code::RecordHeld, Code::RecordsFull],
            ..record("manage", to.ok::<RecordView>())
        },
        Operation::ExtendRecord => Described {
            body: to.input::<ExtendRecord>(),
            codes: &[Code::LeaseStale],
            ..record("manage", to.ok::<Nothing>())
        },
        Operation::ReleaseRecord => Described {
            body: to.input::<ReleaseRecord>(),
            codes: &[Code::LeaseStale],
            ..record("manage", to.ok::<Nothing>())
        },
        Operation::ListLedgers => Described {
            parameters: to.input::<ListLedgers>(),
            codes: &[Code::InvalidPage],
            ..ledger("read", to.ok::<Ledgers>())
        },
        Operation::CreateLedger => Described {
            body: to.input::<CreateLedger>(),
            answers: vec![
                (
                    200,
                    "It was there already.",
                    to.outputs.subschema_for::<LedgerView>(),
                ),
                (
                    201,
                    "It was made.",
                    to.outputs.subschema_for::<LedgerView>(),
                ),
            ],
            codes: &[Code::LedgerExists],
            ..ledger("manage", vec![])
        },
        Operation::GetLedger => ledger("read", to.ok::<LedgerView>()),
        Operation::DeleteLedger => ledger("purge", to.ok::<Nothing>()),
        Operation::AppendEvents => Described {
            body: to.input::<AppendEvents<'_>>(),
            codes: &[
                Code::LedgerNotFound,
                Code::LedgerMoved,
                Code::LedgerDeposed,
                Code::LedgerSealed,
                Code::LedgerFull,
                Code::InvalidReceipt,
                Code::LeaseStale,
                Code::DiskFull,
            ],
            ..ledger(
                "send, and receive on the queues of settled messages",
                to.ok::<Appended>(),
            )
        },
        Operation::ReadEvents => Described {
            parameters: to.input::<ReadEvents>(),
            codes: &[
                Code::LedgerNotFound,
                Code::LedgerBeyond,
                Code::LedgerTrimmed,
                Code::LedgerDamaged,
            ],
            ..ledger("read", to.ok::<EventPage>())
        },
        Operation::FindEvent => Described {
            codes: &[Code::LedgerNotFound, Code::EventNotFound],
            ..ledger("read", to.ok::<EventFound>())
        },
        Operation::ListReaders => ledger("read", to.ok::<LedgerReaders>()),
        Operation::MoveReader => Described {
            body: to.input::<MoveReader>(),
            codes: &[
                Code::LedgerNotFound,
                Code::LedgerBeyond,
                Code::ReaderMoved,
                Code::LedgerFull,
            ],
            ..ledger("receive", to.ok::<ReaderMoved>())
        },
        Operation::ForgetReader => ledger("receive", to.ok::<ReaderMoved>()),
        Operation::SealLedger => Described {
            body: to.input::<SealLedger>(),
            codes: &[Code::LedgerNotFound, Code::LedgerDeposed],
            ..ledger("manage", to.ok::<LedgerHeadView>())
        },
        Operation::TrimLedger => Described {
            body: to.input::<TrimLedger>(),
            codes: &[Code::LedgerNotFound, Code::LedgerBeyond],
            ..ledger("purge", to.ok::<LedgerHeadView>())
        },
        Operation::ListExchanges => Described {
            parameters: to.input::<ListExchanges>(),
            codes: &[Code::InvalidPage],
            ..exchange("read", to.ok::<Exchanges>())
        },
        Operation::CreateExchange => Described {
            body: to.input::<CreateExchange>(),
            answers: vec![
                (
                    200,
                    "It was there already.",
                    to.outputs.subschema_for::<ExchangeView>(),
                ),
                (
                    201,
                    "It was made.",
                    to.outputs.subschema_for::<ExchangeView>(),
                ),
            ],
            codes: &[Code::ExchangeExists, Code::ExchangeNotFound],
            ..exchange("manage, and send on its alternate", vec![])
        },
        Operation::GetExchange => exchange("read", to.ok::<ExchangeView>()),
        Operation::ChangeExchange => Described {
            body: to.input::<ChangeExchange>(),
            codes: &[Code::ExchangeNotFound, Code::ExchangeCycle],
            ..exchange("manage, and send on its alternate", to.ok::<ExchangeView>())
        },
        Operation::DeleteExchange => Described {
            parameters: to.input::<DeleteExchange>(),
            codes: &[Code::ExchangeNotFound, Code::ExchangeUsed],
            ..exchange("purge", to.ok::<Nothing>())
        },
        Operation::ListBindings => Described {
            parameters: to.input::<ListBindings>(),
            codes: &[Code::ExchangeNotFound, Code::InvalidPage],
            ..exchange("read", to.ok::<Bindings>())
        },
        Operation::Bind => Described {
            body: to.input::<Bind<'_>>(),
            codes: &[
                Code::ExchangeNotFound,
                Code::QueueNotFound,
                Code::PatternNotTaken,
                Code::ExchangeCycle,
            ],
            ..exchange(
                "manage, and send on the queue or the exchange to which it leads",
                to.ok::<Bound>(),
            )
        },
        Operation::Unbind => Described {
            body: to.input::<Unbind>(),
            ..exchange("manage", to.ok::<Unbound>())
        },
        Operation::PublishMessages => Described {
            body: to.input::<PublishMessages<'_>>(),
            ..exchange("send", to.ok::<PublishResults>())
        },
        Operation::ExplainRoute => Described {
            body: to.input::<ExplainRoute>(),
            codes: &[Code::ExchangeNotFound, Code::RouteTooLarge],
            ..exchange("read", to.ok::<RouteExplanation>())
        },
        Operation::ListSchedules => Described {
            parameters: to.input::<ListSchedules>(),
            codes: &[Code::InvalidPage],
            ..schedule("read on its queue or exchange", to.ok::<Schedules>())
        },
        Operation::PutSchedule => Described {
            body: to.input::<PutSchedule>(),
            answers: vec![
                (
                    200,
                    "It was there already.",
                    to.outputs.subschema_for::<SchedulePut>(),
                ),
                (
                    201,
                    "It was made.",
                    to.outputs.subschema_for::<SchedulePut>(),
                ),
            ],
            codes: &[
                Code::ScheduleChanged,
                Code::QueueNotFound,
                Code::ExchangeNotFound,
                Code::KeyRequired,
                Code::KeyNotTaken,
                Code::GroupNotTaken,
                Code::MessageTooLarge,
            ],
            ..schedule("manage and send on its queue or exchange", vec![])
        },
        Operation::GetSchedule => Described {
            codes: &[Code::ScheduleNotFound],
            ..schedule("read on its queue or exchange", to.ok::<ScheduleView>())
        },
        Operation::DeleteSchedule => Described {
            parameters: to.input::<DeleteSchedule>(),
            ..schedule("manage on its queue or exchange", to.ok::<Nothing>())
        },
        Operation::RunSchedule => Described {
            body: to.input::<OfGeneration>(),
            codes: &[
                Code::ScheduleNotFound,
                Code::ScheduleChanged,
                Code::ScheduleUnsettled,
                Code::QueueFull,
            ],
            ..schedule("send on its queue or exchange", to.ok::<ScheduleRun>())
        },
        Operation::PauseSchedule | Operation::ResumeSchedule => Described {
            body: to.input::<OfGeneration>(),
            ..schedule("manage on its queue or exchange", to.ok::<ScheduleView>())
        },
        Operation::MoveSchedule => Described {
            body: to.input::<MoveSchedule>(),
            ..schedule("manage on its queue or exchange", to.ok::<ScheduleView>())
        },
    }
}

/// The complete description.
pub(super) fn document(examples: &[Example]) -> Value {
    let mut generators = Generators::new();
    let problem = generators.outputs.subschema_for::<Problem>();
    let mut paths = Map::new();
    for &operation in Operation::ALL {
        let described = described(operation, &mut generators);
        let path = format!("{PREFIX}{}", operation.path());
        let method = operation.method().as_str().to_ascii_lowercase();
        paths.entry(path).or_insert_with(|| json!({}))[method] =
            describe(operation, &described, &generators, examples);
    }
    paths.insert(
        format!("{PREFIX}/openapi.json"),
        json!({"get": {
            "operationId": "GetDescription",
            "tags": ["server"],
            "summary": "Describe the API.",
            "description": "This document. It needs no signature.",
            "security": [{}],
            "responses": {"200": {
                "description": "Done.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            }},
        }}),
    );
    paths.insert(
        format!("{PREFIX}/backup"),
        json!({"get": {
            "operationId": "GetBackup",
            "tags": ["server"],
            "summary": "Take a backup of everything.",
            "description": "Streamed while it is taken; `lockgate restore` makes a data folder of \
                it. Needs `Content-Type: application/json` where requests are not signed. Verbs: all, \
                on all queues, and read on all records, ledgers and exchanges.",
            "responses": {
                "200": {
                    "description": "The backup.",
                    "content": {"application/octet-stream": {}},
                },
                "default": {"description": "There is none; the body is an error of the SQS API."},
            },
        }}),
    );
    let follow = generators.input::<FollowEvents>();
    let of_follow = Described {
        tag: "ledgers",
        verb: "read",
        parameters: follow,
        body: None,
        answers: vec![],
        codes: &[],
    };
    let path = "/ledgers/{ledger}/follow";
    paths.insert(
        format!("{PREFIX}{path}"),
        json!({"get": {
            "operationId": "FollowEvents",
            "tags": ["ledgers"],
            "summary": "Follow a ledger: events as they come, one JSON line each.",
            "description": "Each line is an event, or `{\"head\": ...}` where none has come for `heartbeat_ms`, so \
                that a lost end of the stream is seen. It ends when the client ends it, with the last line \
                `{\"problem\": ...}` when something fails, with a `head` that is `sealed` at the end of a sealed ledger, \
                and without a last line when the server stops: then follow again behind the last event. A client that \
                does not read is cut off. Verb: read.",
            "parameters": parameters(path, &of_follow, &generators),
            "responses": {
                "200": {
                    "description": "Events.",
                    "content": {"application/x-ndjson": {}},
                },
                "default": {"$ref": "#/components/responses/Problem"},
            },
        }}),
    );
    let mut schemas = generators.schemas();
    tidy(&mut schemas);
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Lockgate",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "The admin API of a Lockgate server: what the Amazon SQS API, which the \
                same server speaks, cannot say. Lengths of time are whole milliseconds, sizes are \
                bytes, instants are RFC 3339 texts in UTC. Fields may be added to answers; fields \
                that a request may not have are refused. Requests that change something need \
                `Content-Type: application/json`, also without a body. A request with the header \
                `x-lockgate-fence: ELECTION:EPOCH` (percent-encoded) changes nothing but leases that it receives, with the code `deposed`, \
                if the server has seen a higher epoch of that election in such a request; an access key \
                needs `manage` on the record `fence/ELECTION`.",
        },
        "servers": [{"url": "http://127.0.0.1:9324"}],
        "security": [{}, {"sigv4": []}],
        "tags": [
            {"name": "server"}, {"name": "queues"}, {"name": "keys"}, {"name": "messages"},
            {"name": "transactions"}, {"name": "producers"}, {"name": "dead letters"}, {"name": "records"},
            {"name": "ledgers"}, {"name": "exchanges"}, {"name": "schedules"},
        ],
        "paths": paths,
        "components": {
            "securitySchemes": {"sigv4": {
                "type": "apiKey",
                "name": "Authorization",
                "in": "header",
                "description": "AWS Signature Version 4 with the service name `sqs`, where the \
                    server has access keys. Otherwise no request needs a signature.",
            }},
            "schemas": schemas,
            "responses": {"Problem": {
                "description": "It was not done; `code` says why, and `field` where the fault is.",
                "content": {"application/problem+json": {"schema": problem}},
            }},
        },
    });
    rename(&mut document);
    document
}

fn describe(
    operation: Operation,
    described: &Described,
    generators: &Generators,
    examples: &[Example],
) -> Value {
    let (name, words) = operation.words();
    let text = |lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|line| line.trim()).collect();
        lines.join(" ")
    };
    let (summary, rest) = words.split_first().expect("every operation is described");
    let mut description = text(rest).trim().to_owned();
    if !described.verb.is_empty() {
        description.push_str(&format!("\n\nVerb: {}.", described.verb));
    }
    let these = || {
        examples
            .iter()
            .filter(|example| example.operation == operation)
    };
    let mut responses = Map::new();
    for (status, words, schema) in &described.answers {
        let mut content = json!({"schema": schema});
        let examples: Map<_, _> = these()
            .filter(|example| example.status == *status)
            .map(|example| (example.name.to_owned(), json!({"value": example.answer})))
            .collect();
        if !examples.is_empty() {
            content["examples"] = examples.into();
        }
        responses.insert(
            status.to_string(),
            json!({"description": words, "content": {"application/json": content}}),
        );
    }
    let mut codes: Vec<&Code> = described.codes.iter().collect();
    codes.sort_by_key(|code| (code.status(), code.name()));
    for same in codes.chunk_by(|one, other| one.status() == other.status()) {
        let names: Vec<_> = same
            .iter()
            .map(|code| format!("`{}`", code.name()))
            .collect();
        let mut content = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
        let examples: Map<_, _> = these()
            .filter(|example| example.status == same[0].status())
            .map(|example| (example.name.to_owned(), json!({"value": example.answer})))
            .collect();
        if !examples.is_empty() {
            content["examples"] = examples.into();
        }
        responses.insert(
            same[0].status().to_string(),
            json!({
                "description": format!("Not done: {}.", names.join(", ")),
                "content": {"application/problem+json": content},
            }),
        );
    }
    responses.insert(
        "default".into(),
        json!({"$ref": "#/components/responses/Problem"}),
    );
    let mut described_operation = json!({
        "operationId": name,
        "tags": [described.tag],
        "summary": summary.trim(),
        "description": description.trim(),
        "responses": responses,
    });
    let parameters = parameters(operation.path(), described, generators);
    if !parameters.is_empty() {
        described_operation["parameters"] = parameters.into();
    }
    if let Some(schema) = &described.body {
        let mut content = json!({"schema": schema});
        let examples: Map<_, _> = these()
            .filter(|example| !example.body.is_null())
            .map(|example| (example.name.to_owned(), json!({"value": example.body})))
            .collect();
        content["examples"] = examples.into();
        described_operation["requestBody"] = json!({
            "required": true,
            "content": {"application/json": content},
        });
    }
    described_operation
}

/// Parameters of the path and of the query.
fn parameters(path: &str, described: &Described, generators: &Generators) -> Vec<Value> {
    let mut parameters = Vec::new();
    for part in path.split('/') {
        if let Some(name) = part
            .strip_prefix('{')
            .and_then(|part| part.strip_suffix('}'))
        {
            let words = match name {
                "queue" => "The queue's name.",
                "key" => "The key, percent-encoded.",
                "producer" => "The producer's name, percent-encoded.",
                "id" => "The message's id.",
                "record" => "The record's name, percent-encoded.",
                "ledger" => "The ledger's name.",
                "exchange" => "The exchange's name.",
                "schedule" => "The schedule's name.",
                "unique_id" => "The unique id, percent-encoded.",
                "reader" => "The reader's name, percent-encoded.",
                other => panic!("{other} is not described"),
            };
            parameters.push(json!({
                "name": name,
                "in": "path",
                "required": true,
                "description": words,
                "schema": {"type": "string"},
            }));
        }
    }
    if let Some(schema) = &described.parameters {
        let name = schema.get("$ref").and_then(Value::as_str).unwrap();
        let name = name.rsplit('/').next().unwrap();
        let all = &generators.inputs.definitions()[name];
        let required = all.get("required").and_then(Value::as_array);
        for (name, schema) in all["properties"].as_object().unwrap() {
            let mut schema = schema.clone();
            let fields = schema.as_object_mut().unwrap();
            let description = fields.remove("description");
            fields.remove("default");
            fields.remove("format");
            without_null(&mut schema);
            let mut parameter = json!({
                "name": name,
                "in": "query",
                "description": description,
                "schema": schema,
            });
            if required.is_some_and(|required| required.contains(&json!(name))) {
                parameter["required"] = true.into();
            }
            parameters.push(parameter);
        }
    }
    parameters
}

/// A parameter is present or absent, never `null`.
fn without_null(schema: &mut Value) {
    if let Some(kinds) = schema["type"].as_array_mut() {
        kinds.retain(|kind| kind != "null");
        if let [kind] = &kinds[..] {
            schema["type"] = kind.clone();
        }
    }
    if let Some(alternatives) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        alternatives.retain(|alternative| alternative["type"] != "null");
        if let [alternative] = &alternatives[..] {
            *schema = alternative.clone();
        }
    }
}

/// Removes what concerns Rust and not the API.
fn tidy(schemas: &mut Map<String, Value>) {
    fn walk(value: &mut Value) {
        if let Some(fields) = value.as_object_mut() {
            let number = fields
                .get("format")
                .and_then(Value::as_str)
                .is_some_and(|format| format.starts_with("uint"));
            if number {
                fields.remove("format");
            }
            if fields.get("default").is_some_and(Value::is_null) {
                fields.remove("default");
            }
            // The lines of a comment are one paragraph.
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            for value in fields.values_mut() {
                walk(value);
            }
        } else if let Some(values) = value.as_array_mut() {
            values.iter_mut().for_each(walk);
        }
    }
    // Parameters are described with their operations.
    schemas.retain(|name, _| {
        !name.starts_with("List")
            && !matches!(
                &**name,
                "WatchRecord"
                    | "DeleteRecord"
                    | "DropKeyState"
                    | "ReadEvents"
                    | "FollowEvents"
                    | "DeleteExchange"
                    | "DeleteSchedule"
            )
    });
    schemas.values_mut().for_each(walk);
}

/// Types that are another view of a thing get the name of the thing.
fn rename(document: &mut Value) {
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut plain_names = BTreeSet::new();
    let mut text = document.to_string();
    for name in schemas.keys() {
        for suffix in ["Word", "View", "Input"] {
            if let Some(plain) = name.strip_suffix(suffix) {
                let new = plain_names.insert(plain) && !schemas.contains_key(plain);
                assert!(new, "{plain} is there twice");
                text = text
                    .replace(
                        &format!("/schemas/{name}\""),
                        &format!("/schemas/{plain}\""),
                    )
                    .replace(&format!("\"{name}\":"), &format!("\"{plain}\":"));
            }
        }
    }
    *document = serde_json::from_str(&text).unwrap();
}

/// The description in the repository must be the generated one. To renew it: `UPDATE_SNAPSHOTS=1
/// cargo test -p lockgate-server api`.
#[tokio::test]
async fn the_description_is_true() {
    let examples = examples::record().await;
    let document = document(&examples);
    let text = serde_json::to_string_pretty(&document).unwrap() + "\n";
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    let found = std::fs::read_to_string(FILE).unwrap();
    assert!(
        found == text,
        "openapi.json is not what the code makes; UPDATE_SNAPSHOTS=1 renews it"
    );
}
