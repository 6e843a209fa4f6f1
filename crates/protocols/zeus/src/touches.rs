//! Which transactions under way have touched which keys.

use quorate_machine::DetMap;

use crate::state::Key;

/// The slots of a pipeline that have touched a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Touch {
    /// The last that has read or written it.
    pub(crate) last: u64,
    /// The last that has written it; 0 if none has.
    pub(crate) written: u64,
}

/// Of each key that a transaction under way has touched.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Touches(DetMap<Key, Touch>);

impl Touches {
    pub(crate) fn get(&self, key: &[u8]) -> Option<Touch> {
        self.0.get(key).copied()
    }

    /// The next slot reads a key; the slot under way that has written it, or 0.
    pub(crate) fn read(&mut self, key: &[u8], slot: u64) -> u64 {
        let touch = self.touch(key);
        touch.last = slot;
        touch.written
    }

    /// The next slot writes a key; the slot under way that has written it before, or 0.
    pub(crate) fn write(&mut self, key: &[u8], slot: u64) -> u64 {
        let touch = self.touch(key);
        touch.last = slot;
        core::mem::replace(&mut touch.written, slot)
    }

    /// A slot under way keeps a key, too; whether none from this one on has done so before.
    pub(crate) fn keep(&mut self, key: &[u8], slot: u64) -> bool {
        let touch = self.touch(key);
        let is_new = touch.last < slot;
        touch.last = touch.last.max(slot);
        is_new
    }

    fn touch(&mut self, key: &[u8]) -> &mut Touch {
        if !self.0.contains_key(key) {
            self.0.insert(key.into(), Touch::default());
        }
        self.0.get_mut(key).expect("it is there now")
    }

    /// A slot that has touched a key is committed, and all before it.
    pub(crate) fn committed(&mut self, key: &[u8], slot: u64) {
        let Some(touch) = self.0.get_mut(key) else { return };
        if touch.last == slot {
            self.0.remove(key);
        } else if touch.written == slot {
            touch.written = 0;
        }
    }

    /// Whether a condition holds for every key.
    pub(crate) fn all(&self, mut condition: impl FnMut(Touch) -> bool) -> bool {
        !self.0.any(|_, touch| !condition(*touch))
    }
}
