//! Operations on the producers of a queue: open, list and forget them.

use lockgate_core::{self as core, NameError, Produced, ProducerIncarnation, ProducerName};
use lockgate_machine::{self as machine, ForgetProducer, OpenProducer};

use super::{invalid_page, page_after, page_limit, page_start};
use crate::{
    api::{
        Code, Problem, Request, Service,
        shapes::{Instant, ListProducers, Producer, ProducerMark, ProducerOpened, Producers},
    },
    auth::Verb,
};

impl Service {
    pub(in crate::api) async fn list_producers(
        &self,
        request: &Request<'_>,
        queue: &str,
        input: ListProducers,
    ) -> Result<Producers, Problem> {
        let queue = self.queue(request, Verb::Read, queue)?;
        let after = match &input.page {
            None => None,
            Some(page) => Some(ProducerName::new(&page_start(page)?).map_err(|_| invalid_page())?),
        };
        let list = machine::ListProducers {
            queue: queue.name.clone(),
            after,
            limit: page_limit(input.limit),
        };
        let page = self.engine.query(list).await?;
        let now = self.engine.now().wall.0;
        let producers = page.producers.into_iter().map(|status| Producer {
            name: status.producer.to_string(),
            incarnation: status.incarnation.0,
            openings: status.openings,
            used_at: Instant(core::WallTime(now.saturating_sub(status.unused))),
        });
        Ok(Producers {
            producers: producers.collect(),
            next_page: page.next.map(|last| page_after(last.as_str())),
        })
    }

    pub(in crate::api) async fn open_producer(
        &self,
        request: &Request<'_>,
        queue: &str,
        producer: &str,
    ) -> Result<ProducerOpened, Problem> {
        let queue = self.queue(request, Verb::Send, queue)?.name.clone();
        let producer = named(producer)?;
        let incarnation = self.engine.submit(OpenProducer { queue, producer }).await?;
        Ok(ProducerOpened {
            incarnation: incarnation.0,
        })
    }

    pub(in crate::api) async fn forget_producer(
        &self,
        request: &Request<'_>,
        queue: &str,
        producer: &str,
    ) -> Result<(), Problem> {
        let queue = self.queue(request, Verb::Manage, queue)?.name.clone();
        // No producer has a name that is none.
        let producer = ProducerName::new(producer)
            .map_err(|error| Problem::new(Code::ProducerNotFound, error.to_string()))?;
        self.engine
            .submit(ForgetProducer { queue, producer })
            .await?;
        Ok(())
    }
}

fn named(producer: &str) -> Result<ProducerName, Problem> {
    ProducerName::new(producer).map_err(|error: NameError| Problem::invalid("producer", error))
}

/// Checks which record of a producer a message is, and turns it into the machine's form.
pub(super) fn produced(given: ProducerMark) -> Result<Box<Produced>, Problem> {
    let invalid = |field: &str, error: &dyn std::fmt::Display| {
        Problem::invalid(&format!("producer.{field}"), error)
    };
    let producer = ProducerName::new(&given.name).map_err(|error| invalid("name", &error))?;
    let digits = given.opening.bytes().all(|byte| byte.is_ascii_hexdigit());
    let opening = Some(&*given.opening).filter(|text| digits && text.len() == 16);
    let opening = opening.and_then(|text| u64::from_str_radix(text, 16).ok());
    let opening = opening.ok_or_else(|| {
        invalid(
            "opening",
            &"there must be 16 hexadecimal digits, as 00c0ffee12345678",
        )
    })?;
    let lane = u8::try_from(given.lane.get()).unwrap_or(u8::MAX);
    let number = given.number.get();
    let mark = core::ProducerMark::new(producer, opening, lane, number)
        .map_err(|error| Problem::invalid("producer", error))?;
    Ok(Box::new(Produced {
        mark,
        incarnation: ProducerIncarnation(given.incarnation),
        after: given.after,
    }))
}
