//! One value per variant, found without a search if its position is known.
//!
//! A tick looks up a dozen values of every variant, and a search among thousands compares ten names
//! each time. Nearly always there is a value for every variant of the fleet. The position of a
//! variant in the fleet is then the position of its value.

use crate::fleet::{Fleet, VariantKey};

/// Values by variant, in the order of their keys.
#[derive(Clone, Debug)]
pub(crate) struct PerVariant<V> {
    sorted: Vec<(VariantKey, V)>,
}

impl<V> PerVariant<V> {
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.sorted.iter_mut().map(|(_, value)| value)
    }

    pub(crate) fn get(&self, key: &VariantKey) -> Option<&V> {
        let place = self.search(key).ok()?;
        Some(&self.sorted[place].1)
    }

    pub(crate) fn get_mut(&mut self, key: &VariantKey) -> Option<&mut V> {
        let place = self.search(key).ok()?;
        Some(&mut self.sorted[place].1)
    }

    /// The value of a variant, with `place` as the first position to try.
    pub(crate) fn get_at(&self, place: usize, key: &VariantKey) -> Option<&V> {
        let found = self.find(place, key).ok()?;
        Some(&self.sorted[found].1)
    }

    /// As [`PerVariant::get_at`], but creates the value if it is missing.
    pub(crate) fn get_or_insert_at(
        &mut self,
        place: usize,
        key: &VariantKey,
        make: impl FnOnce() -> V,
    ) -> &mut V {
        let found = self.find(place, key).unwrap_or_else(|free| {
            self.sorted.insert(free, (key.clone(), make()));
            free
        });
        &mut self.sorted[found].1
    }

    pub(crate) fn insert(&mut self, key: VariantKey, value: V) {
        match self.search(&key) {
            Ok(place) => self.sorted[place].1 = value,
            Err(place) => self.sorted.insert(place, (key, value)),
        }
    }

    pub(crate) fn remove(&mut self, key: &VariantKey) {
        if let Ok(place) = self.search(key) {
            self.sorted.remove(place);
        }
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&VariantKey) -> bool) {
        self.sorted.retain(|(key, _)| keep(key));
    }

    /// Keeps the values of the fleet's variants, and forgets all others.
    pub(crate) fn keep(&mut self, fleet: &Fleet) {
        let mut known = fleet.variants().map(|spec| &spec.key).peekable();
        self.sorted.retain(|(key, _)| {
            while known.next_if(|it| *it < key).is_some() {}
            known.next_if_eq(&key).is_some()
        });
    }

    pub(crate) fn clear(&mut self) {
        self.sorted.clear();
    }

    /// The position of a variant's value, or the position to insert it at.
    fn find(&self, place: usize, key: &VariantKey) -> Result<usize, usize> {
        match self.sorted.get(place) {
            Some((known, _)) if known == key => Ok(place),
            Some(_) | None => self.search(key),
        }
    }

    fn search(&self, key: &VariantKey) -> Result<usize, usize> {
        // Inserts come in the order of their keys.
        if self.sorted.last().is_none_or(|(last, _)| last < key) {
            return Err(self.sorted.len());
        }
        self.sorted.binary_search_by(|(known, _)| known.cmp(key))
    }
}

impl<V> Default for PerVariant<V> {
    fn default() -> Self {
        Self { sorted: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fleet::VariantSpec;

    fn key(name: u8) -> VariantKey {
        VariantSpec::example(&format!("v{name}")).key
    }

    proptest! {
        #[test]
        fn a_value_is_found_whatever_the_place_that_is_guessed(
            steps in prop::collection::vec((0_u8..12, 0_usize..14, 0_u8..4), 0..60),
        ) {
            let mut values = PerVariant::default();
            let mut model = std::collections::BTreeMap::new();
            for (name, place, step) in steps {
                let key = key(name);
                match step {
                    0 => {
                        values.insert(key.clone(), place);
                        model.insert(key, place);
                    }
                    1 => {
                        values.remove(&key);
                        model.remove(&key);
                    }
                    2 => {
                        let one = *values.get_or_insert_at(place, &key, || place);
                        prop_assert_eq!(one, *model.entry(key).or_insert(place));
                    }
                    _ => {
                        prop_assert_eq!(values.get_at(place, &key), model.get(&key));
                        prop_assert_eq!(values.get(&key), model.get(&key));
                        prop_assert_eq!(values.get_mut(&key), model.get_mut(&key));
                    }
                }

                prop_assert!(values.sorted.iter().map(|(key, _)| key).eq(model.keys()));
            }
        }
    }
}
