//! Changes of a hash whose fields expire, or begin to.

use alloc::vec;
use alloc::vec::Vec;

use quorate_collections::{self as collections, Delta, Step};
use quorate_machine::{Change, Current, ValueKind, mutant};
use quorate_types::{UnixMillis, limits};

use super::expiring::{Field, Writing};
use super::{Hash, form, large};
use crate::Reply;
use crate::named::{Member, Named};
use crate::packed::{BEYOND_COMPACT, Builder, EXPIRING, LENGTH_BYTES_MAX, Packed, replace};
use crate::string::expiry_of;

/// The error of a hash that is too long to have fields that expire.
const TOO_LARGE: Reply<'static> = Reply::error(
    "ERR the hash would be longer than 4194304 bytes, the most that one with fields that expire may have; \
     spread it over several keys",
);

/// A hash of any form while one command changes some of its fields, which it names. Memory follows the
/// command, until the new hash is written.
pub(super) struct Edit<'a> {
    hash: Hash<'a>,
    now: UnixMillis,
    named: Named<'a>,
    /// What those named are by now, in the order of `named`.
    fields: Vec<Option<Field<'a>>>,
    is_changed: bool,
}

/// What the record of a hash depends on besides its fields.
#[derive(Default)]
struct Sum {
    count: usize,
    bytes: usize,
    /// How many of them expire, and when the last one does.
    expiring: usize,
    last: Option<UnixMillis>,
}

impl<'a> Edit<'a> {
    pub(super) fn new(
        hash: Hash<'a>,
        now: UnixMillis,
        names: impl Iterator<Item = &'a [u8]>,
    ) -> Self {
        let mut named = Named::new(names);
        let mut fields = vec![None; named.len()];
        if let Hash::Large(large) = hash {
            for (number, held) in fields.iter_mut().enumerate() {
                let name = named.get(number).name;
                *held = large.get(name).map(|value| Field { name, value, expire_at: None });
                if held.is_some() {
                    named.meet(name);
                }
            }
        } else {
            let mut all = hash.fields(now);
            while !named.all_met()
                && let Some(field) = all.next()
            {
                if let Some(number) = named.meet(field.name) {
                    fields[number] = Some(field);
                }
            }
        }
        Self { hash, now, named, fields, is_changed: false }
    }

    /// What a field that the command names is by now.
    pub(super) fn get(&self, name: &[u8]) -> Option<Field<'a>> {
        self.fields[self.number(name)]
    }

    /// Gives it a value and an expiry, or takes them.
    pub(super) fn set(&mut self, name: &'a [u8], value: &'a [u8], expire_at: Option<UnixMillis>) {
        let number = self.number(name);
        self.fields[number] = Some(Field { name, value, expire_at });
        self.is_changed = true;
    }

    /// Gives a field that is there another expiry, or none.
    pub(super) fn expire(&mut self, field: Field<'a>, expire_at: Option<UnixMillis>) {
        self.set(field.name, field.value, expire_at);
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        let number = self.number(name);
        self.is_changed |= self.fields[number].take().is_some();
    }

    fn number(&self, name: &[u8]) -> usize {
        self.named.find(name).expect("the command names it")
    }

    /// Its fields by now; new ones are behind the others.
    fn result<'s>(&'s self, new: &'s [Member<'a>]) -> impl Iterator<Item = Field<'a>> + 's {
        let held =
            self.hash.fields(self.now).filter_map(|field| match self.named.find(field.name) {
                Some(number) => self.fields[number],
                None => Some(field),
            });
        held.chain(new.iter().filter_map(|member| self.get(member.name)))
    }

    /// The change that this makes of a key, whose own expiry stays.
    ///
    /// # Errors
    /// If the hash would be longer than its form allows.
    pub(super) fn finish<'c>(self, current: Current<'_>) -> Result<Change<'c>, Reply<'static>> {
        if !self.is_changed {
            return Ok(Change::Keep);
        }
        self.finish_with(expiry_of(current), current)
    }

    /// The same, with another expiry of the key's own.
    pub(super) fn finish_with<'c>(
        self,
        own: Option<UnixMillis>,
        current: Current<'_>,
    ) -> Result<Change<'c>, Reply<'static>> {
        if let Hash::Large(large) = self.hash
            && self.fields.iter().flatten().all(|field| field.expire_at.is_none())
        {
            return self.delta(large, current);
        }
        let new = self.named.unmet();
        let mut sum = Sum::default();
        for field in self.result(&new) {
            sum.count += 1;
            sum.bytes += field.name.len() + field.value.len() + 8 + 2 * LENGTH_BYTES_MAX;
            sum.expiring += usize::from(field.expire_at.is_some());
            sum.last = sum.last.max(field.expire_at);
        }
        if sum.count == 0 {
            return Ok(if current.content.is_some() { Change::Delete } else { Change::Keep });
        }
        let given = self.fields.iter().flatten().flat_map(|field| [field.name, field.value]);
        let form = form(self.hash.form(), sum.count, given);
        let room = sum.bytes.min(limits::VALUE_BYTES_MAX);
        if sum.expiring == 0 {
            let mut builder = Builder::new(form, room);
            for field in self.result(&new) {
                builder.item(field.name);
                builder.item(field.value);
            }
            let change = replace(builder.finish(sum.count), ValueKind::Hash, current)?;
            return Ok(with_expiry(change, own));
        }
        let mut writing = Writing::new(form, own, room);
        for field in self.result(&new) {
            writing.push(field);
            if writing.len() > limits::VALUE_BYTES_MAX {
                return Err(TOO_LARGE);
            }
        }
        let all = sum.expiring == sum.count && !mutant!("commands_hash_outlives_its_fields");
        let last = if all { sum.last } else { None };
        // The earlier one of those that there are.
        let expire_at = own.into_iter().chain(last).min();
        Ok(Change::Set { bytes: writing.finish().into(), kind: ValueKind::Hash, expire_at })
    }

    /// The change of a large hash, which stays one.
    fn delta<'c>(
        self,
        large: &collections::Hash,
        current: Current<'_>,
    ) -> Result<Change<'c>, Reply<'static>> {
        let (mut delta, mut left) = (Delta::new(), large.len());
        for (number, field) in self.fields.iter().enumerate() {
            let name = self.named.get(number).name;
            let held = large.get(name);
            match field {
                Some(field) if held != Some(field.value) => {
                    left += usize::from(held.is_none());
                    delta.push(Step::Put { field: name, value: field.value });
                }
                None if held.is_some() => {
                    left -= 1;
                    delta.push(Step::Remove(name));
                }
                _ => {}
            }
        }
        large::change(delta, left, current)
    }
}

/// The same value with this expiry.
fn with_expiry(change: Change<'_>, expire_at: Option<UnixMillis>) -> Change<'_> {
    match change {
        Change::Set { bytes, kind, .. } => Change::Set { bytes, kind, expire_at },
        change => change,
    }
}

/// The change of the key's own expiry, which may also be taken away, if it holds a hash with expiring
/// fields; `None` if it holds anything else.
///
/// # Errors
/// If the hash is longer than one may be, which no correct peer sends.
pub(crate) fn expire_key(
    current: Current<'_>,
    own: Option<UnixMillis>,
    now: UnixMillis,
) -> Result<Option<Change<'static>>, Reply<'static>> {
    let hash = current.content.filter(|content| content.kind == ValueKind::Hash);
    let hash = hash.map(|content| Hash::Packed(Packed::read(content)));
    let hash = hash.filter(|hash| hash.expiring(now).is_some());
    let edit = hash.map(|hash| Edit::new(hash, now, core::iter::empty()));
    edit.map(|edit| edit.finish_with(own, current)).transpose()
}

const _: () = assert!(limits::VALUE_BYTES_MAX == 4_194_304, "a text names the limit");
const _: () = assert!(EXPIRING & BEYOND_COMPACT == 0, "two bits of one form");
