//! Any order of calls and crashes, against a model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{folder, id, open};

#[derive(Clone, Debug)]
enum Step {
    Add {
        space: u64,
        ids: Vec<(u64, u64)>,
        more: u64,
    },
    Sync,
    Remove {
        space: u64,
        ids_max: usize,
    },
    /// What is not synced is lost.
    Crash,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Space {
    up_to: u64,
    removing: bool,
    ids: BTreeMap<u64, u64>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ids = prop::collection::vec((0..30_u64, any::<u64>()), 0..20);
    let step = prop_oneof![
        5 => (0..3_u64, ids, 0..3_u64).prop_map(|(space, ids, more)| Step::Add { space, ids, more }),
        2 => Just(Step::Sync),
        2 => (0..3_u64, 1..20_usize).prop_map(|(space, ids_max)| Step::Remove { space, ids_max }),
        2 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn an_index_has_what_was_added_and_after_a_crash_what_was_synced(steps in steps()) {
        let folder = folder();
        let mut index = open(folder.path());
        let (mut model, mut durable) = (BTreeMap::<u64, Space>::new(), BTreeMap::new());
        for step in steps {
            match step {
                Step::Add { space, ids, more } => {
                    let known = model.get(&space);
                    let up_to = known.map_or(1, |known| known.up_to) + more;
                    let batch: Vec<_> = ids.iter().map(|&(number, stands)| (id(number), stands)).collect();
                    let added = index.add(space, &batch, up_to);
                    if known.is_some_and(|known| known.removing) {
                        prop_assert!(added.is_err());
                        continue;
                    }
                    prop_assert_eq!(added.unwrap(), more > 0 || known.is_none());
                    if more > 0 || known.is_none() {
                        let known = model.entry(space).or_default();
                        known.up_to = up_to;
                        known.ids.extend(ids);
                    }
                }
                Step::Sync => {
                    index.sync().unwrap();
                    durable = model.clone();
                }
                Step::Remove { space, ids_max } => {
                    let Some(known) = model.get_mut(&space) else {
                        prop_assert!(index.remove_space(space, ids_max).unwrap());
                        continue;
                    };
                    let first = !known.removing;
                    known.removing = true;
                    if first {
                        durable = model.clone();
                    }
                    if index.remove_space(space, ids_max).unwrap() {
                        model.remove(&space);
                    }
                }
                Step::Crash => {
                    drop(index);
                    index = open(folder.path());
                    model = durable.clone();
                }
            }
            let all: Vec<_> = (0..30).map(id).collect();
            for space in 0..3 {
                let known = model.get(&space).filter(|known| !known.removing);
                let looked = index.look_up(space, &all).unwrap();
                prop_assert_eq!(looked.up_to, known.map(|known| known.up_to));
                let found = (0..30).map(|number| known.and_then(|known| known.ids.get(&number).copied()));
                prop_assert_eq!(looked.found, found.collect::<Vec<_>>());
                let kept = durable.get(&space).filter(|kept| known.is_some() && !kept.removing);
                prop_assert_eq!(index.durable_up_to(space), kept.map(|kept| kept.up_to));
            }
        }
    }
}
