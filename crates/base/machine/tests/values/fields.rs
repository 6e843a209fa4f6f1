//! A large object to test with: a map of numbered fields.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use quorate_machine::{Damaged, Object};

/// Fields by number.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Fields(BTreeMap<u64, Vec<u8>>);

thread_local! {
    /// How often all of an object was copied, encoded or decoded on this thread.
    static WHOLE: Cell<usize> = const { Cell::new(0) };
}

/// How often all of an object was copied, encoded or decoded on this thread.
pub(crate) fn whole_copies() -> usize {
    WHOLE.get()
}

impl Clone for Fields {
    fn clone(&self) -> Self {
        WHOLE.set(WHOLE.get() + 1);
        Self(self.0.clone())
    }
}

impl Hash for Fields {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// The delta that sets a field, or removes it.
pub(crate) fn delta(field: u64, value: Option<&[u8]>) -> Vec<u8> {
    let mut out = vec![u8::from(value.is_some())];
    out.extend_from_slice(&field.to_le_bytes());
    if let Some(value) = value {
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(value);
    }
    out
}

/// A field, and what it is set to; nothing removes it.
type Step<'a> = (u64, Option<&'a [u8]>);

/// The fields that a delta sets or removes, in order.
fn parse(mut delta: &[u8]) -> Result<Vec<Step<'_>>, Damaged> {
    let mut steps = Vec::new();
    while let Some((&form, rest)) = delta.split_first() {
        let (field, rest) = rest.split_first_chunk().ok_or(Damaged)?;
        let field = u64::from_le_bytes(*field);
        let (value, rest) = match form {
            0 => (None, rest),
            1 => {
                let (len, rest) = rest.split_first_chunk().ok_or(Damaged)?;
                let len = u32::from_le_bytes(*len) as usize;
                let (value, rest) = rest.split_at_checked(len).ok_or(Damaged)?;
                (Some(value), rest)
            }
            _ => return Err(Damaged),
        };
        steps.push((field, value));
        delta = rest;
    }
    Ok(steps)
}

impl Object for Fields {
    fn decode(whole: &[u8]) -> Result<Self, Damaged> {
        WHOLE.set(WHOLE.get() + 1);
        let fields = parse(whole)?.into_iter();
        fields
            .map(|(field, value)| Ok((field, value.ok_or(Damaged)?.to_vec())))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        WHOLE.set(WHOLE.get() + 1);
        for (field, value) in &self.0 {
            out.extend_from_slice(&delta(*field, Some(value)));
        }
    }

    fn apply(&mut self, bytes: &[u8], inverse: &mut Vec<u8>) -> Result<(), Damaged> {
        let steps = parse(bytes)?;
        let mut undo = Vec::with_capacity(steps.len());
        for (field, value) in steps {
            let before = match value {
                Some(value) => self.0.insert(field, value.to_vec()),
                None => self.0.remove(&field),
            };
            undo.push(delta(field, before.as_deref()));
        }
        // The last step is undone first.
        undo.iter().rev().for_each(|step| inverse.extend_from_slice(step));
        Ok(())
    }
}
