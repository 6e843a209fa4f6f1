//! Large hashes.

use alloc::vec::Vec;

use crate::hashed::{Members, Part, Value};
use crate::packed::{self, Items};

/// A hash: fields and their values.
#[derive(Clone, Default, Debug)]
pub struct Hash {
    fields: Members<Value>,
}

impl Hash {
    /// That of packed items; `None` if they are damaged, or have a field twice.
    pub(crate) fn build(items: &[u8]) -> Option<Self> {
        Members::build(items).map(|fields| Self { fields })
    }

    /// How many fields.
    pub fn len(&self) -> usize {
        self.fields.tree().len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        self.fields.tree().bytes()
    }

    pub(crate) fn memory(&self) -> usize {
        self.fields.tree().memory()
    }

    pub(crate) fn leaves(&self) -> impl Iterator<Item = &[u8]> {
        self.fields.tree().leaves()
    }

    /// The value of a field.
    pub fn get(&self, field: &[u8]) -> Option<&[u8]> {
        self.fields.get(field).map(item)
    }

    /// Fields with their values, from one number on, in an order that changes when fields come and go.
    pub fn fields_from(&self, number: usize) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.fields.from(number).map(|(field, value)| (field, item(value)))
    }

    /// Fields from a place ([`crate::place_of`]) on: at least `count` of them unless there are fewer, and
    /// the place at which the next ones begin, if any follow. A walk from place to place visits every
    /// field that is there all the time.
    pub fn part(&self, place: u64, count: usize) -> Part<(&[u8], &[u8])> {
        let (next, part) = self.fields.part(place, count);
        (next, part.into_iter().map(|(field, value)| (field, item(value))).collect())
    }

    /// Sets the value of a field, and returns the old value as an item.
    pub(crate) fn put(&mut self, field: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let mut tail = Vec::with_capacity(value.len() + packed::LENGTH_BYTES_MAX);
        packed::put_item(value, &mut tail);
        self.fields.put(field, &tail)
    }

    /// Removes a field, and returns its value as an item.
    pub(crate) fn remove(&mut self, field: &[u8]) -> Option<Vec<u8>> {
        self.fields.remove(field)
    }
}

fn item(bytes: &[u8]) -> &[u8] {
    Items { rest: bytes }.next().unwrap_or_default()
}

#[cfg(test)]
impl Hash {
    pub(crate) fn check(&self) {
        self.fields.tree().check();
    }
}
