//! Operations on schedules: make them, look at them, run, pause and move them.

use std::{fmt::Display, sync::Arc};

use lockgate_core::{Message, RoutingKey, ScheduleName, Timing, WallTime};
use lockgate_engine::next_times;
use lockgate_machine::{
    self as machine, ChangeSchedule, DescribeSchedule, Query, Rejection, RunSchedule,
    ScheduleChange, ScheduleDescription, ScheduleError, ScheduleSpec, ScheduleTo, SchedulesPage,
};

use super::{exchanges::exchange_of, invalid_page, page_after, page_limit, page_start};
use crate::{
    api::{
        Problem, Request, Service,
        shapes::{
            DeleteSchedule, Encoding, FiringView, HeaderView, Instant, ListSchedules, MoveSchedule,
            OfGeneration, OutgoingMessage, PutSchedule, ScheduleCounts, SchedulePut, ScheduleRun,
            ScheduleToWord, ScheduleView, ScheduledMessage, Schedules, Within,
        },
    },
    auth::Verb,
};

/// Next times that an answer about one schedule shows.
const TIMES_SHOWN: usize = 5;

/// The messages of schedules in one answer, in bytes.
const PAGE_BYTES_MAX: usize = 4 << 20;

impl Service {
    pub(in crate::api) async fn list_schedules(
        &self,
        request: &Request<'_>,
        input: ListSchedules,
    ) -> Result<Schedules, Problem> {
        let after = match &input.page {
            None => None,
            Some(page) => Some(ScheduleName::new(&page_start(page)?).map_err(|_| invalid_page())?),
        };
        let mut list = machine::ListSchedules {
            prefix: input.prefix.unwrap_or_default(),
            after,
            limit: page_limit(input.limit),
        };
        let limit = list.limit;
        loop {
            let SchedulesPage {
                mut schedules,
                next,
            } = self.engine.query(list.clone()).await?;
            schedules.retain(|schedule| request.may_with_schedule(Verb::Read, &schedule.spec.to));
            let fits = fitting(&schedules).min(limit);
            let is_cut = schedules.len() > fits;
            schedules.truncate(fits);
            // A page that goes on ends with a schedule that the caller may read: its token tells the name.
            let last = schedules.last().map(|schedule| schedule.name.clone());
            match next {
                // Those that the caller may not read are passed over by many at a time.
                Some(next) if last.is_none() => {
                    (list.after, list.limit) = (Some(next), Query::LIMIT_MAX);
                }
                next => {
                    let next = last.filter(|_| is_cut || next.is_some());
                    return Ok(Schedules {
                        // More of each would be computed, for up to a thousand.
                        schedules: schedules.iter().map(|it| view(it, 1)).collect(),
                        next_page: next.map(|last| page_after(last.as_str())),
                    });
                }
            }
        }
    }

    pub(in crate::api) async fn put_schedule(
        &self,
        request: &Request<'_>,
        name: &str,
        input: PutSchedule,
    ) -> Result<SchedulePut, Problem> {
        let name = schedule_name(name)?;
        let generation = input.generation;
        let spec = self.spec_of(request, input)?;
        // Whoever changes a schedule needs the same rights where its messages go now.
        let schedule = name.clone();
        let present = self.engine.query(DescribeSchedule { schedule }).await;
        let is_same = |present: &ScheduleDescription| present.spec.to == spec.to;
        if let Ok(present) = &present
            && !is_same(present)
            && !request.may_with_schedule(Verb::Manage, &present.spec.to)
        {
            let what = format_args!("the queue or exchange of the schedule of that name");
            return Err(request.denied(Verb::Manage, what));
        }
        // What was looked at must be what is changed.
        let looked_at = present.map(|present| present.generation).unwrap_or(0);
        let generation = generation.or(request.identity.as_ref().map(|_| looked_at));
        let put = self.engine.put_schedule(name, spec, generation).await?;
        Ok(SchedulePut {
            created: put.created,
            changed: put.changed,
            schedule: view(&put.schedule, TIMES_SHOWN),
        })
    }

    pub(in crate::api) async fn get_schedule(
        &self,
        request: &Request<'_>,
        name: &str,
    ) -> Result<ScheduleView, Problem> {
        let schedule = self.schedule(request, Verb::Read, name).await?;
        Ok(view(&schedule, TIMES_SHOWN))
    }

    pub(in crate::api) async fn delete_schedule(
        &self,
        request: &Request<'_>,
        name: &str,
        input: &DeleteSchedule,
    ) -> Result<(), Problem> {
        let present = self.schedule(request, Verb::Manage, name).await?;
        let delete = machine::DeleteSchedule {
            name: present.name.clone(),
            generation: as_seen(request, input.generation, &present),
        };
        Ok(self.engine.submit(delete).await?)
    }

    pub(in crate::api) async fn run_schedule(
        &self,
        request: &Request<'_>,
        name: &str,
        input: &OfGeneration,
    ) -> Result<ScheduleRun, Problem> {
        let present = self.schedule(request, Verb::Send, name).await?;
        let run = RunSchedule {
            name: present.name.clone(),
            generation: as_seen(request, input.generation, &present),
        };
        let message = self.engine.submit(run).await.map_err(|error| match error {
            lockgate_engine::EngineError::Rejected(rejection) => {
                self.publish_refused(request, rejection)
            }
            error => error.into(),
        })?;
        Ok(ScheduleRun {
            message_id: message.to_string(),
        })
    }

    pub(in crate::api) async fn pause_schedule(
        &self,
        request: &Request<'_>,
        name: &str,
        input: &OfGeneration,
    ) -> Result<ScheduleView, Problem> {
        let change = ScheduleChange::Pause;
        self.change_schedule(request, name, change, input.generation)
            .await
    }

    pub(in crate::api) async fn resume_schedule(
        &self,
        request: &Request<'_>,
        name: &str,
        input: &OfGeneration,
    ) -> Result<ScheduleView, Problem> {
        let present = self.schedule(request, Verb::Manage, name).await?;
        let generation = as_seen(request, input.generation, &present);
        let name = present.name.clone();
        let resumed = self.engine.resume_schedule(name, generation).await?;
        Ok(view(&resumed, TIMES_SHOWN))
    }

    pub(in crate::api) async fn move_schedule(
        &self,
        request: &Request<'_>,
        name: &str,
        input: &MoveSchedule,
    ) -> Result<ScheduleView, Problem> {
        let to = match (input.at, input.after_ms) {
            (Some(at), None) => at.0,
            (None, Some(after)) => self.engine.due_after(after.get()),
            (Some(_), Some(_)) => {
                let what = "at and after_ms are both there: leave one out";
                return Err(Problem::invalid("after_ms", what));
            }
            (None, None) => {
                let what = "one of at and after_ms is needed: \"at\": \"2027-01-01T00:00:00Z\", or \"after_ms\": 60000";
                return Err(Problem::invalid("at", what));
            }
        };
        let change = ScheduleChange::Move(to);
        self.change_schedule(request, name, change, input.generation)
            .await
    }

    async fn change_schedule(
        &self,
        request: &Request<'_>,
        name: &str,
        change: ScheduleChange,
        generation: Option<u64>,
    ) -> Result<ScheduleView, Problem> {
        let present = self.schedule(request, Verb::Manage, name).await?;
        let change = ChangeSchedule {
            name: present.name.clone(),
            change,
            generation: as_seen(request, generation, &present),
        };
        Ok(view(&self.engine.submit(change).await?, TIMES_SHOWN))
    }

    /// The schedule of that name, if the caller may do `verb` where its messages go.
    async fn schedule(
        &self,
        request: &Request<'_>,
        verb: Verb,
        name: &str,
    ) -> Result<ScheduleDescription, Problem> {
        let schedule = schedule_name(name)?;
        let present = self.engine.query(DescribeSchedule { schedule }).await?;
        let to = &present.spec.to;
        // One whose messages go where the caller may not read is not there for it.
        if !request.may_with_schedule(verb, to) && !request.may_with_schedule(Verb::Read, to) {
            let schedule = present.name;
            return Err(Rejection::Schedule(ScheduleError::NotFound { schedule }).into());
        }
        check(request, verb, to)?;
        Ok(present)
    }

    fn spec_of(&self, request: &Request<'_>, input: PutSchedule) -> Result<ScheduleSpec, Problem> {
        let timing = self.timing_of(&input)?;
        let routing_key = input.routing_key.as_deref();
        let to = match &input.to {
            ScheduleToWord::Queue(queue) => {
                if routing_key.is_some() {
                    let what = "it is for an exchange, and to names a queue";
                    return Err(Problem::invalid("routing_key", what));
                }
                let at = |problem: Problem| problem.at("to.queue");
                self.queue(request, Verb::Manage, queue).map_err(at)?;
                let queue = self.queue(request, Verb::Send, queue).map_err(at)?;
                ScheduleTo::Queue(queue.name.clone())
            }
            ScheduleToWord::Exchange(exchange) => {
                exchange_of(request, Verb::Manage, "to.exchange", exchange)?;
                let routing_key = RoutingKey::new(routing_key.unwrap_or_default());
                ScheduleTo::Exchange {
                    exchange: exchange_of(request, Verb::Send, "to.exchange", exchange)?,
                    routing_key: named("routing_key", routing_key)?,
                }
            }
        };
        Ok(ScheduleSpec {
            timing,
            to,
            message: Arc::new(self.template_of(input.message)?),
            catch_up: input.catch_up.map_or_else(Default::default, Into::into),
            overlap: input.overlap.map_or_else(Default::default, Into::into),
            late_max: input
                .late_max_ms
                .map_or(ScheduleSpec::LATE_MAX_DEFAULT, Within::get),
        })
    }

    fn template_of(&self, given: OutgoingMessage) -> Result<Message, Problem> {
        let unwanted = [
            ("unique_id", given.unique_id.is_some()),
            ("delay_ms", given.delay_ms.is_some()),
            ("due_at", given.due_at.is_some()),
            ("producer", given.producer.is_some()),
        ];
        if let Some((field, _)) = unwanted.iter().find(|(_, is_there)| *is_there) {
            let what = "a schedule gives its messages their time and unique id: leave it out";
            return Err(Problem::invalid(field, what).within("message"));
        }
        let message = self.message_of(given, false);
        message.map_err(|problem| problem.within("message"))
    }

    fn timing_of(&self, input: &PutSchedule) -> Result<Timing, Problem> {
        let PutSchedule {
            at,
            after_ms,
            every_ms,
            from,
            cron,
            zone,
            ..
        } = input;
        let given = [
            at.is_some(),
            after_ms.is_some(),
            every_ms.is_some(),
            cron.is_some(),
        ];
        if given.iter().filter(|given| **given).count() != 1 {
            let what = "exactly one of at, after_ms, every_ms and cron says when it fires";
            return Err(Problem::invalid("cron", what));
        }
        if from.is_some() && every_ms.is_none() {
            let what = "it is the first time of every_ms, which is not there";
            return Err(Problem::invalid("from", what));
        }
        if zone.is_some() && cron.is_none() {
            let what = "it is the time zone of cron, which is not there";
            return Err(Problem::invalid("zone", what));
        }
        if let Some(Instant(at)) = at {
            return Ok(Timing::At(*at));
        }
        if let Some(after) = after_ms {
            return Ok(Timing::At(self.engine.due_after(after.get())));
        }
        if let Some(period) = every_ms {
            let period = period.get();
            let from = from.map(|Instant(from)| from);
            return Ok(Timing::Every { period, from });
        }
        Ok(Timing::Cron {
            expression: cron.as_deref().unwrap_or_default().trim().into(),
            zone: zone.as_deref().unwrap_or("UTC").into(),
        })
    }
}

impl Request<'_> {
    fn may_with_schedule(&self, verb: Verb, to: &ScheduleTo) -> bool {
        match to {
            ScheduleTo::Queue(queue) => self.may(verb, queue),
            ScheduleTo::Exchange { exchange, .. } => self.may_with_exchange(verb, exchange),
        }
    }
}

fn check(request: &Request<'_>, verb: Verb, to: &ScheduleTo) -> Result<(), Problem> {
    match to {
        ScheduleTo::Queue(queue) => request.check(verb, queue),
        ScheduleTo::Exchange { exchange, .. } => {
            exchange_of(request, verb, "exchange", exchange.as_str()).map(|_| ())
        }
    }
}

/// The generation that a change is for. A caller whose rights were checked changes what was looked at for that.
fn as_seen(
    request: &Request<'_>,
    asked: Option<u64>,
    present: &ScheduleDescription,
) -> Option<u64> {
    asked.or(request.identity.as_ref().map(|_| present.generation))
}

fn schedule_name(name: &str) -> Result<ScheduleName, Problem> {
    named("schedule", ScheduleName::new(name))
}

fn named<T>(field: &str, name: Result<T, impl Display>) -> Result<T, Problem> {
    name.map_err(|error| Problem::invalid(field, error))
}

/// How many of the schedules fit into a page, at least one.
fn fitting(schedules: &[ScheduleDescription]) -> usize {
    let mut bytes = 0;
    let sizes = schedules
        .iter()
        .map(|schedule| schedule.spec.message.size());
    let fits = sizes.take_while(|size| {
        bytes += size;
        bytes <= PAGE_BYTES_MAX
    });
    fits.count().max(1)
}

fn view(schedule: &ScheduleDescription, times: usize) -> ScheduleView {
    let ScheduleSpec {
        timing,
        to,
        message,
        catch_up,
        overlap,
        late_max,
    } = &*schedule.spec;
    let instant = |at: WallTime| Instant(at);
    let (mut at, mut every_ms, mut from, mut cron, mut zone) = (None, None, None, None, None);
    match timing {
        Timing::At(time) => at = Some(Instant(*time)),
        Timing::Every {
            period,
            from: first,
        } => (every_ms, from) = (Some(*period), first.map(instant)),
        Timing::Cron {
            expression,
            zone: of,
        } => (cron, zone) = (Some(expression.to_string()), Some(of.to_string())),
    }
    let (to, routing_key) = match to {
        ScheduleTo::Queue(queue) => (ScheduleToWord::Queue(queue.to_string()), None),
        ScheduleTo::Exchange {
            exchange,
            routing_key,
        } => (
            ScheduleToWord::Exchange(exchange.to_string()),
            Some(routing_key.to_string()),
        ),
    };
    let counts = &schedule.counts;
    ScheduleView {
        name: schedule.name.to_string(),
        generation: schedule.generation,
        at,
        every_ms,
        from,
        cron,
        zone,
        to,
        routing_key,
        message: template_view(message),
        catch_up: (*catch_up).into(),
        overlap: (*overlap).into(),
        late_max_ms: *late_max,
        created_at: Instant(schedule.created),
        changed_at: Instant(schedule.changed),
        paused: schedule.paused,
        next_at: schedule.next.map(instant),
        planned_at: schedule.planned.map(instant),
        next_times: next_times(schedule, times)
            .into_iter()
            .map(instant)
            .collect(),
        waits_for: schedule.waits_for.map(|id| id.to_string()),
        problem: schedule.problem.as_deref().map(str::to_owned),
        last: schedule.last.map(|last| FiringView {
            scheduled_at: last.scheduled.map(instant),
            at: Instant(last.at),
            message_id: last.message.map(|id| id.to_string()),
        }),
        unsettled: schedule.unsettled,
        counts: ScheduleCounts {
            fired: counts.fired,
            by_hand: counts.by_hand,
            missed: counts.missed,
            overlapped: counts.overlapped,
            replaced: counts.replaced,
        },
    }
}

fn template_view(message: &Message) -> ScheduledMessage {
    let (body, body_encoding) = Encoding::encode(&message.body);
    let headers = message.headers.iter().map(|header| {
        let (value, encoding) = Encoding::encode(&header.value);
        let value = HeaderView {
            kind: header.kind.to_string(),
            value,
            encoding,
        };
        (header.name.to_string(), value)
    });
    let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
    ScheduledMessage {
        body,
        body_encoding,
        key: message.key.as_ref().map(ToString::to_string),
        group: message.group.as_ref().map(ToString::to_string),
        time_to_live_ms: message.time_to_live,
        headers: headers.collect(),
        content_type: text(&message.content_type),
        trace_context: text(&message.trace_context),
        level: message.level.map(Into::into),
        priority: message.priority,
    }
}
