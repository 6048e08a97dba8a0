//! Maps of a request: no name may be in one twice.

use std::{
    collections::BTreeMap,
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};

use super::text::Text;

/// Values by name. Serde takes the last of two values of one name; who sent both meant something else.
#[derive(Clone, Debug)]
pub(crate) struct UniqueMap<'a, V>(BTreeMap<Text<'a>, V>);

impl<V> Default for UniqueMap<'_, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'a, V> Deref for UniqueMap<'a, V> {
    type Target = BTreeMap<Text<'a>, V>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<V> DerefMut for UniqueMap<'_, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<'a, V> IntoIterator for UniqueMap<'a, V> {
    type Item = (Text<'a>, V);
    type IntoIter = std::collections::btree_map::IntoIter<Text<'a>, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'m, 'a, V> IntoIterator for &'m UniqueMap<'a, V> {
    type Item = (&'m Text<'a>, &'m V);
    type IntoIter = std::collections::btree_map::Iter<'m, Text<'a>, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a, V> FromIterator<(Text<'a>, V)> for UniqueMap<'a, V> {
    fn from_iter<I: IntoIterator<Item = (Text<'a>, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<'a, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UniqueVisitor<'a, V>(PhantomData<(&'a (), V)>);

        impl<'de: 'a, 'a, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<'a, V> {
            type Value = UniqueMap<'a, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut unique = BTreeMap::new();
                while let Some(name) = map.next_key::<Text<'a>>()? {
                    if unique.contains_key(&name) {
                        return Err(A::Error::custom(format_args!(
                            "duplicate field `{:.100}`",
                            &*name
                        )));
                    }
                    unique.insert(name, map.next_value()?);
                }
                Ok(UniqueMap(unique))
            }
        }

        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}
