//! The topic patterns of an exchange as a trie of their words, so that a routing key finds those that match it.
//!
//! Several places of the trie are reached at a time, each once: a pattern with many `#` costs no more than its length for each
//! word of the routing key, and nothing is tried twice. So no recursion, and no search that doubles with each `#`.

use std::{hash::Hash, sync::Arc};

use hashbrown::Equivalent;

use super::{
    Steps, TooManySteps,
    index::{Rows, Seeded},
    pattern::{TopicPattern, TopicWord},
    spread::Spread,
};
use crate::{
    slab::{NONE, Slab},
    table::HashSeed,
};

/// A place in the trie: the words up to it.
#[derive(Clone, Debug)]
struct Node {
    /// The place before it, and the word between.
    before: u32,
    word: Word,
    /// The places behind `*` and `#`, or [`NONE`].
    one: u32,
    any: u32,
    /// How many places are behind a literal word.
    literals: u32,
    /// The bindings whose pattern ends here.
    ends: Rows,
}

#[derive(Clone, Debug)]
enum Word {
    Root,
    Literal(Arc<str>),
    One,
    Any,
}

/// The literal word behind a place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Edge {
    node: u32,
    word: Arc<str>,
}

/// The same without a share of the text. Its hash is that of an [`Edge`].
#[derive(Hash)]
struct EdgeRef<'a> {
    node: u32,
    word: &'a str,
}

impl Equivalent<Edge> for EdgeRef<'_> {
    fn equivalent(&self, edge: &Edge) -> bool {
        self.node == edge.node && self.word == &*edge.word
    }
}

#[derive(Debug)]
pub(crate) struct Topics {
    nodes: Slab<Node, 64>,
    root: u32,
    edges: Spread<Edge, u32>,
}

impl Topics {
    pub(super) fn new(seed: HashSeed) -> Self {
        let mut nodes = Slab::default();
        let root = nodes.insert(Node::new(NONE, Word::Root));
        Self {
            nodes,
            root,
            edges: Spread::new(Seeded(seed)),
        }
    }

    pub(super) fn insert(&mut self, pattern: &TopicPattern, row: u32) {
        let mut node = self.root;
        for word in pattern.words() {
            node = match self.behind(node, word) {
                Some(next) => next,
                None => self.grow(node, word),
            };
        }
        self.nodes[node].ends.insert(row);
    }

    pub(super) fn remove(&mut self, pattern: &TopicPattern, row: u32) {
        let mut node = self.root;
        for word in pattern.words() {
            match self.behind(node, word) {
                Some(next) => node = next,
                None => return,
            }
        }
        self.nodes[node].ends.remove(row);
        while self.nodes[node].is_bare() && node != self.root {
            let Node { before, word, .. } = self.nodes.remove(node);
            let parent = &mut self.nodes[before];
            match word {
                Word::Root => {}
                Word::One => parent.one = NONE,
                Word::Any => parent.any = NONE,
                Word::Literal(word) => {
                    parent.literals -= 1;
                    self.edges.remove(&Edge { node: before, word });
                }
            }
            node = before;
        }
    }

    /// Adds the bindings whose pattern matches these words, each once, in no order.
    pub(super) fn find<'k>(
        &self,
        words: impl Iterator<Item = &'k str>,
        steps: &mut Steps,
        found: &mut Vec<u32>,
    ) -> Result<(), TooManySteps> {
        let mut reached = Vec::new();
        let mut next = Vec::new();
        self.reach(self.root, &mut reached);
        for word in words {
            steps.spend(1 + reached.len())?;
            for &index in &reached {
                let node = &self.nodes[index];
                if let Word::Any = node.word {
                    // It takes this word too.
                    self.reach(index, &mut next);
                }
                if node.one != NONE {
                    self.reach(node.one, &mut next);
                }
                if node.literals > 0
                    && let Some(&literal) = self.edges.get(&EdgeRef { node: index, word })
                {
                    self.reach(literal, &mut next);
                }
            }
            reached.clear();
            std::mem::swap(&mut reached, &mut next);
            reached.sort_unstable();
            reached.dedup();
        }
        for index in reached {
            let ends = &self.nodes[index].ends;
            steps.spend(1 + ends.len())?;
            found.extend(ends.iter());
        }
        Ok(())
    }

    /// Adds a place, and the one behind its `#`, which is reached without a word. Behind a `#` there is no other one.
    fn reach(&self, node: u32, reached: &mut Vec<u32>) {
        reached.push(node);
        let any = self.nodes[node].any;
        if any != NONE {
            reached.push(any);
        }
    }

    fn behind(&self, node: u32, word: TopicWord<'_>) -> Option<u32> {
        let index = match word {
            TopicWord::One => self.nodes[node].one,
            TopicWord::Any => self.nodes[node].any,
            TopicWord::Literal(word) => *self.edges.get(&EdgeRef { node, word })?,
        };
        (index != NONE).then_some(index)
    }

    fn grow(&mut self, before: u32, word: TopicWord<'_>) -> u32 {
        let word = match word {
            TopicWord::One => Word::One,
            TopicWord::Any => Word::Any,
            TopicWord::Literal(word) => Word::Literal(word.into()),
        };
        let index = self.nodes.insert(Node::new(before, word.clone()));
        let parent = &mut self.nodes[before];
        match word {
            Word::Root => {}
            Word::One => parent.one = index,
            Word::Any => parent.any = index,
            Word::Literal(word) => {
                parent.literals += 1;
                *self.edges.or_default(Edge { node: before, word }) = index;
            }
        }
        index
    }

    /// How many places there are beside the root, and literal words.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.nodes.len() - 1 + self.edges.len()
    }
}

impl Node {
    fn new(before: u32, word: Word) -> Self {
        Self {
            before,
            word,
            one: NONE,
            any: NONE,
            literals: 0,
            ends: Rows::default(),
        }
    }

    /// Whether nothing ends at it or goes on from it.
    fn is_bare(&self) -> bool {
        self.one == NONE && self.any == NONE && self.literals == 0 && self.ends.len() == 0
    }
}
