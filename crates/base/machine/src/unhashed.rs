//! What does not tell two machines apart.

use core::hash::{Hash, Hasher};
use core::ops::{Deref, DerefMut};

/// A part of a machine that does not decide what the machine will do: counts, and memory that is kept
/// for reuse. Its hash is that of nothing, so that an exploration takes machines that differ only in
/// such parts for one.
#[derive(Clone, Debug, Default)]
pub struct Unhashed<V>(pub V);

impl<V> Hash for Unhashed<V> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<V> Deref for Unhashed<V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        &self.0
    }
}

impl<V> DerefMut for Unhashed<V> {
    #[inline]
    fn deref_mut(&mut self) -> &mut V {
        &mut self.0
    }
}
