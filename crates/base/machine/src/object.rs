//! Large values, which are changed in place and replicated by what changed.

use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;

/// A structure that is changed in place: a value that is too large to be copied for each change.
///
/// A *delta* is absolute and deterministic: "this field holds these bytes", "the first element is
/// the one with this number". Applied to the content that it was made for, it gives the same content
/// at every replica. Two deltas, one behind the other, are a delta.
///
/// An object lies in its record, reachable only under the record's lock.
pub trait Object: Clone + Eq + Hash + Debug + Send + 'static {
    /// Whether there are such objects. Without them, the code that handles them is compiled away.
    const EXISTS: bool = true;

    /// Makes the object that these bytes describe.
    ///
    /// # Errors
    /// If [`Object::encode`] did not write them.
    fn decode(whole: &[u8]) -> Result<Self, Damaged>;

    /// Appends all of the object: for a replica that holds nothing that a delta could be applied to.
    fn encode(&self, out: &mut Vec<u8>);

    /// Applies a delta, and appends its inverse, which is the delta that gives back what was here
    /// before. Work and memory grow with the delta, and not with the object.
    ///
    /// # Errors
    /// If no object's change has this form. Nothing has changed then.
    fn apply(&mut self, delta: &[u8], inverse: &mut Vec<u8>) -> Result<(), Damaged>;
}

/// Bytes that no correct peer sends as an object or a delta.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged;

/// What a delta meets where values are packed.
///
/// # Panics
/// Always: a command changes an object only after it has seen that the value is one.
#[cold]
pub fn no_object() -> ! {
    panic!("a delta changes an object, and values are packed here")
}

/// The objects of a table of packed values, which has no objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NoObject {}

impl Object for NoObject {
    const EXISTS: bool = false;

    fn decode(_: &[u8]) -> Result<Self, Damaged> {
        Err(Damaged)
    }

    fn encode(&self, _: &mut Vec<u8>) {
        match *self {}
    }

    fn apply(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), Damaged> {
        match *self {}
    }
}
