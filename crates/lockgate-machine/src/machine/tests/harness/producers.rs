//! What scripts say of producers.

use super::*;

impl Run {
    /// `p/7/0/5`: producer, opening, lane and number, under the incarnation that was given last; `p/7/0/5/i1`: under the
    /// first one; `p/7/0/5/i1/4`: behind number 4.
    pub(super) fn produced(&self, queue: &str, text: &str) -> Produced {
        let parts: Vec<&str> = text.split('/').collect();
        let producer = ProducerName::new(parts[0]).unwrap();
        let given = self
            .incarnations
            .get(&(queue.to_owned(), parts[0].to_owned()));
        let incarnation = match (parts.get(4), given) {
            (Some(&"later"), _) => Some(ProducerIncarnation(u64::MAX)),
            (Some(label), Some(given)) => {
                given.get(label[1..].parse::<usize>().unwrap() - 1).copied()
            }
            (_, given) => given.and_then(|given| given.last()).copied(),
        };
        let [opening, lane, number] = [1, 2, 3].map(|at| parts[at].parse().unwrap());
        let lane = u8::try_from(lane).unwrap();
        Produced {
            mark: ProducerMark::new(producer, opening, lane, number).unwrap(),
            incarnation: incarnation.unwrap_or_default(),
            after: parts.get(5).map_or(0, |after| after.parse().unwrap()),
        }
    }

    pub(super) fn open_producer(&mut self, queue: &str, producer: &str) -> String {
        let open = OpenProducer {
            queue: name(queue),
            producer: ProducerName::new(producer).unwrap(),
        };
        let incarnation = match self.give(&Command::OpenProducer(open)) {
            Ok(Reply::ProducerOpened(incarnation)) => incarnation,
            other => return done(other),
        };
        let place = (queue.to_owned(), producer.to_owned());
        let given = self.incarnations.entry(place).or_default();
        assert!(
            given.last().is_none_or(|last| *last < incarnation),
            "it rises"
        );
        given.push(incarnation);
        format!("i{}", given.len())
    }

    /// Page by page: name, incarnation, openings, and for how long each was not used.
    pub(super) fn producers(&self, queue: &str) -> String {
        let (mut after, mut shown) = (None, Vec::new());
        loop {
            let list = ListProducers {
                queue: name(queue),
                after,
                limit: 2,
            };
            let page = match self.machine.query(&Query::ListProducers(list), self.now) {
                Ok(QueryReply::Producers(page)) => page,
                Ok(other) => panic!("{other:?}"),
                Err(rejection) => return refused(&rejection),
            };
            for status in page.producers {
                let producer = status.producer.to_string();
                let given = &self.incarnations[&(queue.to_owned(), producer.clone())];
                let label = given
                    .iter()
                    .position(|given| *given == status.incarnation)
                    .unwrap()
                    + 1;
                let (openings, unused) = (status.openings, status.unused);
                shown.push(format!("{producer} i{label}: {openings}, {unused} ms"));
            }
            after = page.next;
            if after.is_none() {
                let counts = self.describe(queue).counts;
                assert_eq!(counts.producers, shown.len() as u64);
                return or_nothing(shown);
            }
        }
    }
}
