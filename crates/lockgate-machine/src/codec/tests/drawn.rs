//! Random effects of every kind.

use super::*;

pub(super) fn text(max: usize) -> impl Strategy<Value = String> {
    let char = prop_oneof![3 => prop::char::range('a', 'z'), 1 => any::<char>()];
    prop::collection::vec(
        char.prop_map(|c| if c.is_control() { '✓' } else { c }),
        1..max,
    )
    .prop_map(|chars| chars.into_iter().collect())
}

fn ledger() -> impl Strategy<Value = LedgerId> {
    any::<u32>().prop_map(LedgerId)
}

fn exchange() -> impl Strategy<Value = ExchangeId> {
    any::<u32>().prop_map(ExchangeId)
}

fn schedule() -> impl Strategy<Value = ScheduleId> {
    any::<u32>().prop_map(ScheduleId)
}

fn schedule_name() -> impl Strategy<Value = ScheduleName> {
    "[a-zA-Z0-9_.-]{1,80}".prop_map(|name| ScheduleName::new(&name).unwrap())
}

fn time() -> impl Strategy<Value = Option<WallTime>> {
    prop::option::of(number().prop_map(WallTime))
}

fn schedule_spec() -> impl Strategy<Value = ScheduleSpec> {
    let timing = prop_oneof![
        number().prop_map(|at| Timing::At(WallTime(at))),
        (number(), time()).prop_map(|(period, from)| Timing::Every { period, from }),
        (shared_text(), shared_text())
            .prop_map(|(expression, zone)| Timing::Cron { expression, zone }),
    ];
    let to = prop_oneof![
        "[a-z]{1,9}".prop_map(|name| ScheduleTo::Queue(QueueName::new(&name).unwrap())),
        ("[a-z]{1,9}", text(9)).prop_map(|(name, key)| ScheduleTo::Exchange {
            exchange: ExchangeName::new(&name).unwrap(),
            routing_key: RoutingKey::new(&key).unwrap(),
        }),
    ];
    let catch_up = prop::sample::select(CatchUp::ALL);
    let overlap = prop::sample::select(Overlap::ALL);
    (
        timing,
        to,
        message(),
        any::<bool>(),
        (catch_up, overlap, number()),
    )
        .prop_map(
            |(timing, to, mut message, is_group, (catch_up, overlap, late_max))| {
                (message.due, message.unique_id) = (None, None);
                if is_group {
                    message.group = message.key.take();
                }
                ScheduleSpec {
                    timing,
                    to,
                    message: Arc::new(message),
                    catch_up,
                    overlap,
                    late_max,
                }
            },
        )
}

fn firing() -> impl Strategy<Value = Firing> {
    (time(), number(), prop::option::of(any::<u128>())).prop_map(|(scheduled, at, message)| {
        Firing {
            scheduled,
            at: WallTime(at),
            message: message.map(MessageId::from_bits),
        }
    })
}

fn exchange_kind() -> impl Strategy<Value = ExchangeKind> {
    prop::sample::select(ExchangeKind::ALL.to_vec())
}

fn unroutable() -> impl Strategy<Value = Unroutable<ExchangeId>> {
    prop_oneof![
        Just(Unroutable::Reject),
        Just(Unroutable::Drop),
        exchange().prop_map(Unroutable::Alternate),
    ]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let pair = (text(9), prop::option::of(text(9))).prop_map(|(name, value)| HeaderPair {
        name: name.into(),
        value: value.map(Into::into),
    });
    let pairs = prop::collection::btree_set(pair, 1..4);
    prop_oneof![
        text(9).prop_map(|key| Pattern::RoutingKey(RoutingKey::new(&key).unwrap())),
        "([a*#]\\.){0,4}b?".prop_map(|text| Pattern::Topic(TopicPattern::new(&text).unwrap())),
        Just(Pattern::Everything),
        (any::<bool>(), pairs).prop_map(|(is_any, pairs)| {
            let pairs = pairs.into_iter().collect();
            Pattern::Headers(Arc::new(HeadersMatch::checked(is_any, pairs).unwrap()))
        }),
    ]
}

fn binding() -> impl Strategy<Value = Binding> {
    let key_from = prop_oneof![
        Just(KeyFrom::RoutingKey),
        text(9).prop_map(|name| KeyFrom::Header(name.into())),
    ];
    let filter = (any::<bool>(), "[a-z ]{1,9}").prop_map(|(is_body, text)| {
        let scope = [FilterScope::Headers, FilterScope::Body][usize::from(is_body)];
        Filter::new(scope, &format!(r#"{{"{text}": ["{text}"]}}"#)).unwrap()
    });
    let to = prop_oneof![
        3 => queue().prop_map(BindTo::Queue),
        1 => exchange().prop_map(BindTo::Exchange),
    ];
    let name = "[a-z]{1,9}".prop_map(|name| QueueName::new(&name).unwrap());
    let options = (
        prop::option::of(key_from),
        any::<bool>(),
        prop::option::of(text(9)),
        prop::option::of(name),
    );
    (to, pattern(), prop::option::of(filter), options).prop_map(
        |(to, pattern, filter, (key_from, skip_when_full, envelope, overflow))| {
            let is_to_queue = matches!(to, BindTo::Queue(_));
            Binding {
                to,
                pattern,
                options: BindingOptions {
                    filter,
                    key_from: key_from.filter(|_| is_to_queue),
                    skip_when_full: skip_when_full && is_to_queue,
                    envelope: envelope.filter(|_| is_to_queue).map(Into::into),
                    overflow: overflow.filter(|_| is_to_queue),
                },
            }
        },
    )
}

fn block() -> impl Strategy<Value = EventBlock> {
    let event = (prop::option::of(text(9)), bytes()).prop_map(|(id, payload)| StoredEvent {
        unique_id: id.map(|id| UniqueId::new(&id).unwrap()),
        payload,
    });
    let hashes = prop::option::of(any::<[[u8; 32]; 2]>());
    let numbers = (1..1_u64 << 62, number(), number());
    (
        ledger(),
        numbers,
        hashes,
        prop::collection::vec(event, 0..4),
    )
        .prop_map(
            |(ledger, (first, epoch, time), hashes, events)| EventBlock {
                ledger,
                first: SequenceId(first),
                epoch: Epoch(epoch),
                time: WallTime(time),
                hashes: hashes.map(|hashes| hashes.map(EventHash)),
                events,
            },
        )
}

pub(super) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..300_u64, any::<u64>(), Just(u64::MAX)]
}

pub(super) fn queue() -> impl Strategy<Value = QueueId> {
    prop_oneof![0..300_u32, 0..=QueueId::MAX.0].prop_map(QueueId)
}

pub(super) fn sequence() -> impl Strategy<Value = Sequence> {
    prop_oneof![0..300_u64, 0..=Sequence::MAX.0].prop_map(Sequence)
}

pub(super) fn now() -> impl Strategy<Value = Now> {
    (number(), number()).prop_map(|(wall, machine)| Now {
        wall: WallTime(wall),
        machine: MachineTime(machine),
    })
}

pub(super) fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

pub(super) fn shared_text() -> impl Strategy<Value = Arc<str>> {
    text(20).prop_map(Arc::from)
}

pub(super) fn key() -> impl Strategy<Value = Key> {
    text(60).prop_map(|text| Key::new(&text).unwrap())
}

pub(super) fn record() -> impl Strategy<Value = RecordName> {
    text(60).prop_map(|text| RecordName::new(&text).unwrap())
}

pub(super) fn producer() -> impl Strategy<Value = ProducerName> {
    text(30).prop_map(|text| ProducerName::new(&text).unwrap())
}

pub(super) fn produced() -> impl Strategy<Value = Box<Produced>> {
    let lane = 0..ProducerMark::LANES;
    let number = number().prop_map(|number| number.max(1));
    (producer(), any::<u64>(), lane, number, self::number()).prop_map(
        |(producer, opening, lane, number, incarnation)| {
            Box::new(Produced {
                mark: ProducerMark::new(producer, opening, lane, number).unwrap(),
                incarnation: ProducerIncarnation(incarnation),
                after: 0,
            })
        },
    )
}

pub(super) fn message() -> impl Strategy<Value = Message> {
    let header = (shared_text(), shared_text(), bytes()).prop_map(|(name, kind, value)| Header {
        name,
        kind,
        value,
    });
    let level = prop::sample::select(vec![
        Level::Memory,
        Level::Process,
        Level::Disk,
        Level::Replicated,
    ]);
    let unique_id = text(60).prop_map(|text| UniqueId::new(&text).unwrap());
    (
        (
            bytes(),
            prop::collection::vec(header, 0..4),
            prop::option::of(key()),
            prop::option::of(unique_id),
        ),
        (
            prop::option::of(number().prop_map(WallTime)),
            prop::option::of(number()),
            prop::option::of(shared_text()),
            prop::option::of(shared_text()),
            prop::option::of(level),
            0..=PRIORITY_MAX,
        ),
    )
        .prop_map(
            |(
                (body, headers, key, unique_id),
                (due, time_to_live, content_type, trace_context, level, priority),
            )| Message {
                body,
                headers,
                key,
                group: None,
                unique_id,
                due,
                time_to_live,
                content_type,
                trace_context,
                level,
                priority,
                producer: None,
            },
        )
}

pub(super) fn stored() -> impl Strategy<Value = Box<StoredMessage>> {
    let until = prop::option::of(number().prop_map(MachineTime));
    let marked = prop::option::weighted(0.3, (produced(), number().prop_map(MachineTime)));
    let remembered = (until, number().prop_map(NonZeroU64::new), marked);
    let payload = prop_oneof![
        Just(Payload::Own),
        Just(Payload::Shared),
        (any::<u16>(), any::<u32>()).prop_map(|(part, size)| Payload::Of { part, size }),
    ];
    (
        queue(),
        sequence(),
        any::<u128>(),
        number(),
        remembered,
        (message(), payload),
    )
        .prop_map(
            |(queue, sequence, id, accepted, remembered, (mut message, payload))| {
                let (unique_until, key_sequence, marked) = remembered;
                let (producer, marked_at) = marked.unzip();
                message.producer = producer;
                if let Payload::Of { .. } = payload {
                    copies::take_payload(&mut message, Message::default());
                }
                Box::new(StoredMessage {
                    queue,
                    sequence,
                    id: MessageId::from_bits(id),
                    accepted: WallTime(accepted),
                    unique_until,
                    key_sequence,
                    marked_at,
                    payload,
                    message,
                })
            },
        )
}

/// Any value of each setting.
pub(super) fn settings() -> impl Strategy<Value = Box<QueueSettings>> {
    let drawn = prop::collection::vec(number(), SETTINGS.len());
    (any::<bool>(), drawn, prop::option::of(number())).prop_map(|(keyed, drawn, from)| {
        let mut settings = Box::new(QueueSettings {
            keyed,
            dedup_scope_from: from.map(MachineTime),
            ..QueueSettings::default()
        });
        for (setting, number) in SETTINGS.iter().zip(drawn) {
            let value = match setting.kind {
                _ if setting.none.is_some() && number % 3 == 0 => SettingValue::None,
                SettingKind::Flag => SettingValue::Flag(number % 2 == 0),
                SettingKind::Word(words) => {
                    let at = usize::try_from(number % words.len() as u64).unwrap();
                    SettingValue::Word(words[at])
                }
                SettingKind::Count { min, max }
                | SettingKind::Time { min, max }
                | SettingKind::Bytes { min, max } => SettingValue::Number(number.clamp(min, max)),
                SettingKind::Queue => {
                    let name = format!("dead-{}", number % 100);
                    SettingValue::Queue(QueueName::new(&name).unwrap())
                }
                kind => {
                    let many = number % 1_000 + 1;
                    let one = match kind {
                        SettingKind::Rate => format!("{many}/{many}s burst {}", many % 7 + 1),
                        SettingKind::Gap => format!("{many}s"),
                        _ => many.to_string(),
                    };
                    let forms = [
                        one.clone(),
                        format!("{one} per key"),
                        format!("{one} + {one} per key"),
                    ];
                    let at = usize::try_from(number % 3).unwrap();
                    SettingValue::Limit(forms[at].clone())
                }
            };
            setting.set(&mut settings, value).unwrap();
        }
        settings
    })
}

pub(super) fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map(text(10), ".{0,10}", 0..4)
}

/// Any effect of the kind with this number.
pub(super) fn effect_at(place: usize) -> BoxedStrategy<Effect> {
    let wall = || number().prop_map(WallTime);
    let machine = || number().prop_map(MachineTime);
    let message = || (queue(), sequence());
    match place {
        0 => {
            let ids = any::<(u64, u64, [u8; 16], i64, [u8; 32])>();
            (0..=ShardId::MAX.get(), ids, now())
                .prop_map(
                    |(shard, (epoch, incarnation, boot, clock_offset, secret), now)| {
                        Effect::TermStarted {
                            term: Term {
                                shard: ShardId::new(shard).unwrap(),
                                epoch: Epoch(epoch),
                                incarnation: Incarnation(incarnation),
                            },
                            boot_id: BootId(boot),
                            clock_offset,
                            secret,
                            now,
                        }
                    },
                )
                .boxed()
        }
        1 => now().prop_map(|now| Effect::TermEnded { now }).boxed(),
        2 => (now(), any::<u32>())
            .prop_map(|(now, budget)| Effect::Advanced { now, budget })
            .boxed(),
        3 => (queue(), "[a-z.]{1,80}", settings(), map(), map(), wall())
            .prop_map(
                |(queue, name, settings, annotations, tags, at)| Effect::QueueCreated {
                    queue,
                    name: QueueName::new(&name).unwrap(),
                    settings,
                    annotations,
                    tags,
                    at,
                },
            )
            .boxed(),
        4 => (queue(), settings(), map(), map(), wall())
            .prop_map(
                |(queue, settings, annotations, tags, at)| Effect::QueueChanged {
                    queue,
                    settings,
                    annotations,
                    tags,
                    at,
                },
            )
            .boxed(),
        5 => queue()
            .prop_map(|queue| Effect::QueueDeleted { queue })
            .boxed(),
        6 => queue().prop_map(|queue| Effect::Purged { queue }).boxed(),
        7 => (queue(), any::<bool>())
            .prop_map(|(queue, paused)| Effect::Paused { queue, paused })
            .boxed(),
        8 => stored().prop_map(Effect::Accepted).boxed(),
        9 => stored().prop_map(Effect::Compacted).boxed(),
        10 => message()
            .prop_map(|(queue, below)| Effect::SequencesReserved { queue, below })
            .boxed(),
        11 => (message(), number(), now(), machine(), text(30))
            .prop_map(
                |((queue, sequence), lease, now, deadline, holder)| Effect::Leased {
                    queue,
                    sequence,
                    lease: LeaseNumber(lease),
                    now,
                    deadline,
                    holder: HolderName::new(&holder).unwrap(),
                },
            )
            .boxed(),
        12 => (queue(), machine())
            .prop_map(|(queue, until)| Effect::LeaseBoundRaised { queue, until })
            .boxed(),
        13 => message()
            .prop_map(|(queue, sequence)| Effect::Acked { queue, sequence })
            .boxed(),
        14 => {
            let failed = (wall(), prop::option::of(shared_text()))
                .prop_map(|(at, error)| Failed { at, error });
            (
                message(),
                prop::option::of(machine()),
                prop::option::of(failed),
            )
                .prop_map(|((queue, sequence), until, failed)| Effect::Nacked {
                    queue,
                    sequence,
                    until,
                    failed,
                })
                .boxed()
        }
        15 => (message(), machine())
            .prop_map(|((queue, sequence), deadline)| Effect::Extended {
                queue,
                sequence,
                deadline,
            })
            .boxed(),
        16 => (message(), any::<bool>())
            .prop_map(|((queue, sequence), started)| Effect::GivenBack {
                queue,
                sequence,
                started,
            })
            .boxed(),
        17 => {
            let reason = prop_oneof![
                any::<u16>().prop_map(|attempts| DeadLetterReason::Attempts { attempts }),
                prop::option::of(shared_text())
                    .prop_map(|reason| DeadLetterReason::Rejected { reason }),
                prop::option::of(queue()).prop_map(|source| DeadLetterReason::Redriven { source }),
            ];
            (message(), message(), reason, wall())
                .prop_map(
                    |((from, sequence), (to, to_sequence), reason, at)| Effect::Moved {
                        from,
                        sequence,
                        to,
                        to_sequence,
                        reason,
                        at,
                    },
                )
                .boxed()
        }
        18 => {
            let reason = prop::sample::select(vec![
                DropReason::Purged,
                DropReason::QueueDeleted,
                DropReason::Expired,
                DropReason::Damaged,
                DropReason::Rejected,
                DropReason::Cancelled,
                DropReason::KeyDropped,
            ]);
            (message(), reason)
                .prop_map(|((queue, sequence), reason)| Effect::Dropped {
                    queue,
                    sequence,
                    reason,
                })
                .boxed()
        }
        19 => (message(), wall())
            .prop_map(|((queue, sequence), due)| Effect::Rescheduled {
                queue,
                sequence,
                due,
            })
            .boxed(),
        20 => (queue(), key())
            .prop_map(|(queue, key)| Effect::KeyParked { queue, key })
            .boxed(),
        21 => (queue(), key())
            .prop_map(|(queue, key)| Effect::KeyResumed { queue, key })
            .boxed(),
        22 => (record(), number(), number(), wall(), bytes())
            .prop_map(|(name, version, revision, at, value)| Effect::RecordPut {
                name,
                version: RecordVersion(version),
                revision: Revision(revision),
                at,
                value,
            })
            .boxed(),
        23 => (record(), number())
            .prop_map(|(name, revision)| Effect::RecordDeleted {
                name,
                revision: Revision(revision),
            })
            .boxed(),
        24 => (record(), text(20), number(), number(), any::<bool>())
            .prop_map(
                |(name, holder, epoch, deadline, delete_at_end)| Effect::RecordLeased {
                    name,
                    holder: HolderName::new(&holder).unwrap(),
                    epoch: Epoch(epoch),
                    deadline: MachineTime(deadline),
                    delete_at_end,
                },
            )
            .boxed(),
        25 => (record(), number())
            .prop_map(|(name, revision)| Effect::RecordReleased {
                name,
                revision: Revision(revision),
            })
            .boxed(),
        26 => (queue(), key(), number(), wall(), bytes())
            .prop_map(|(queue, key, version, at, value)| Effect::KeyStatePut {
                queue,
                key,
                version: RecordVersion(version),
                at,
                value,
            })
            .boxed(),
        27 => (queue(), key())
            .prop_map(|(queue, key)| Effect::KeyStateDropped { queue, key })
            .boxed(),
        28 => (queue(), prop::option::of(key()), prop::option::of(number()))
            .prop_map(|(queue, key, until)| Effect::Held {
                queue,
                // Without another draw, so that saved failure cases stay what they are.
                what: match (key, until) {
                    (None, Some(until)) if until % 2 == 1 => HoldTarget::Key(None),
                    (None, _) => HoldTarget::Queue,
                    (key, _) => HoldTarget::Key(key),
                },
                until: until.map(MachineTime),
            })
            .boxed(),
        29 => (queue(), producer(), number(), machine())
            .prop_map(
                |(queue, producer, incarnation, at)| Effect::ProducerOpened {
                    queue,
                    producer,
                    incarnation: ProducerIncarnation(incarnation),
                    at,
                },
            )
            .boxed(),
        30 => (queue(), producer())
            .prop_map(|(queue, producer)| Effect::ProducerForgotten { queue, producer })
            .boxed(),
        31 => (queue(), produced(), machine())
            .prop_map(|(queue, produced, at)| Effect::MarkRaised {
                queue,
                produced,
                at,
            })
            .boxed(),
        32 => {
            let options = (any::<bool>(), prop::option::of(number()), wall());
            (ledger(), "[a-z.]{1,80}", options)
                .prop_map(
                    |(ledger, name, (hashed, retention, at))| Effect::LedgerCreated {
                        ledger,
                        name: LedgerName::new(&name).unwrap(),
                        hashed,
                        retention,
                        at,
                    },
                )
                .boxed()
        }
        33 => ledger()
            .prop_map(|ledger| Effect::LedgerDeleted { ledger })
            .boxed(),
        34 => {
            let inputs = prop::collection::vec((text(9), number()), 0..4);
            (block(), inputs, prop::collection::vec(text(9), 0..4))
                .prop_map(|(block, inputs, settled)| {
                    let input = |text: String| InputId::new(&text).unwrap();
                    let inputs = inputs.into_iter();
                    Effect::EventsAppended(Box::new(AppendedEvents {
                        block,
                        inputs: inputs
                            .map(|(id, place)| (input(id), SequenceId(place)))
                            .collect(),
                        settled: settled.into_iter().map(input).collect(),
                    }))
                })
                .boxed()
        }
        35 => (ledger(), text(9), prop::option::of(number()))
            .prop_map(|(ledger, reader, to)| Effect::ReaderMoved {
                ledger,
                reader: ReaderName::new(&reader).unwrap(),
                to: to.map(SequenceId),
            })
            .boxed(),
        36 => (ledger(), number())
            .prop_map(|(ledger, epoch)| Effect::LedgerSealed {
                ledger,
                epoch: Epoch(epoch),
            })
            .boxed(),
        37 => (ledger(), number())
            .prop_map(|(ledger, first)| Effect::LedgerTrimmed {
                ledger,
                first: SequenceId(first),
            })
            .boxed(),
        38 => block()
            .prop_map(|block| Effect::EventsCompacted(Box::new(block)))
            .boxed(),
        39 => (ledger(), number())
            .prop_map(|(ledger, first)| Effect::EventsLost {
                ledger,
                first: SequenceId(first),
            })
            .boxed(),
        40 => message()
            .prop_map(|(queue, up_to)| Effect::IdsIndexed { queue, up_to })
            .boxed(),
        41 => (ledger(), number())
            .prop_map(|(ledger, up_to)| Effect::EventIdsIndexed {
                ledger,
                up_to: SequenceId(up_to),
            })
            .boxed(),
        42 => (
            "[a-z.]{1,80}",
            exchange_kind(),
            unroutable(),
            exchange(),
            wall(),
        )
            .prop_map(
                |(name, kind, unroutable, exchange, at)| Effect::ExchangeCreated {
                    exchange,
                    name: ExchangeName::new(&name).unwrap(),
                    kind,
                    unroutable,
                    at,
                },
            )
            .boxed(),
        43 => (exchange(), unroutable(), wall())
            .prop_map(|(exchange, unroutable, at)| Effect::ExchangeChanged {
                exchange,
                unroutable,
                at,
            })
            .boxed(),
        44 => exchange()
            .prop_map(|exchange| Effect::ExchangeDeleted { exchange })
            .boxed(),
        45 => (exchange(), any::<u32>(), binding())
            .prop_map(|(exchange, number, binding)| Effect::Bound {
                exchange,
                number,
                binding: Arc::new(binding),
            })
            .boxed(),
        46 => (exchange(), any::<u32>())
            .prop_map(|(exchange, number)| Effect::Unbound { exchange, number })
            .boxed(),
        47 => (exchange(), any::<[u64; 2]>(), any::<[bool; 2]>())
            .prop_map(
                |(exchange, [copies, skipped], [unroutable, dropped])| Effect::Published {
                    exchange,
                    copies,
                    skipped,
                    unroutable,
                    dropped,
                },
            )
            .boxed(),
        48 => (exchange(), map(), map())
            .prop_map(|(exchange, annotations, tags)| Effect::ExchangeNoted {
                exchange,
                notes: Arc::new(ExchangeNotes { annotations, tags }),
            })
            .boxed(),
        49 => (
            (schedule(), schedule_name(), any::<u64>(), time(), time()),
            (number(), number(), schedule_spec()),
        )
            .prop_map(
                |((schedule, name, generation, next, planned), (anchor, at, spec))| {
                    Effect::ScheduleSet {
                        schedule,
                        name,
                        generation,
                        next,
                        planned,
                        anchor: WallTime(anchor),
                        at: WallTime(at),
                        spec: Arc::new(spec),
                    }
                },
            )
            .boxed(),
        50 => (
            schedule(),
            any::<u64>(),
            any::<bool>(),
            time(),
            time(),
            number(),
        )
            .prop_map(
                |(schedule, generation, paused, next, planned, at)| Effect::ScheduleChanged {
                    schedule,
                    generation,
                    paused,
                    next,
                    planned,
                    at: WallTime(at),
                },
            )
            .boxed(),
        51 => schedule()
            .prop_map(|schedule| Effect::ScheduleDeleted { schedule })
            .boxed(),
        52 => (
            schedule(),
            prop::option::of(firing()),
            any::<bool>(),
            any::<u64>(),
            time(),
        )
            .prop_map(
                |(schedule, firing, replaced, missed, next)| Effect::ScheduleStepped {
                    schedule,
                    firing,
                    replaced,
                    missed,
                    next,
                },
            )
            .boxed(),
        _ => unreachable!("a new effect needs a strategy here"),
    }
}

pub(super) fn effects() -> impl Strategy<Value = Vec<Effect>> {
    prop::collection::vec((0..KINDS).prop_flat_map(effect_at), 0..5)
}
