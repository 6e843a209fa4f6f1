//! The scripts that a node remembers for `EVALSHA`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use quorate_commands::SCRIPT_DIGEST_BYTES;
use quorate_types::hash_key;
use sha1_smol::Sha1;

use crate::limits;

/// The digest of a script, in lower case.
pub(crate) fn digest_of(source: &[u8]) -> String {
    Sha1::from(source).digest().to_string()
}

/// The scripts of one node, shared by its lanes. A client whose script was forgotten is told so
/// (`NOSCRIPT`) and sends the script itself.
#[derive(Debug, Default)]
pub struct Cache(RwLock<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_digest: HashMap<String, Arc<[u8]>>,
    /// The digest of each by a quicker hash, so that a script that is known costs no digest.
    by_hash: HashMap<u64, String>,
    /// The oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl Cache {
    /// Remembers a script, and forgets the oldest ones for it. Returns its digest, and whether it is new.
    pub fn add(&self, source: &[u8]) -> (String, bool) {
        let hash = hash_key(source);
        if let Some(digest) = self.read().digest(hash, source) {
            return (digest.to_owned(), false);
        }
        let digest = digest_of(source);
        let mut inner = self.write();
        if inner.by_digest.contains_key(&digest) {
            return (digest, false);
        }
        inner.bytes += source.len();
        inner.by_digest.insert(digest.clone(), source.into());
        inner.by_hash.insert(hash, digest.clone());
        inner.order.push_back(digest.clone());
        while inner.order.len() > limits::CACHED_MAX || inner.bytes > limits::CACHED_BYTES_MAX {
            inner.forget_oldest();
        }
        (digest, true)
    }

    /// How many scripts it knows.
    pub fn len(&self) -> usize {
        self.read().by_digest.len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The script with this digest, in whatever case.
    pub fn get(&self, digest: &[u8]) -> Option<Arc<[u8]>> {
        if digest.len() != SCRIPT_DIGEST_BYTES {
            return None;
        }
        let digest = std::str::from_utf8(digest).ok()?;
        let inner = self.read();
        let found = inner.by_digest.get(digest);
        found.or_else(|| inner.by_digest.get(&digest.to_ascii_lowercase())).cloned()
    }

    /// Forgets all.
    pub fn flush(&self) {
        *self.write() = Inner::default();
    }

    /// How many scripts are known, and their bytes.
    pub fn size(&self) -> (usize, usize) {
        let inner = self.read();
        (inner.order.len(), inner.bytes)
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn digest(&self, hash: u64, source: &[u8]) -> Option<&str> {
        let digest = self.by_hash.get(&hash)?;
        let known = self.by_digest.get(digest)?;
        (**known == *source).then_some(digest)
    }

    fn forget_oldest(&mut self) {
        let Some(digest) = self.order.pop_front() else { return };
        if let Some(source) = self.by_digest.remove(&digest) {
            self.bytes -= source.len();
            self.by_hash.remove(&hash_key(&source));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_scripts_are_forgotten_at_the_bounds() {
        let cache = Cache::default();
        let digests: Vec<String> = (0..limits::CACHED_MAX + 10)
            .map(|number| cache.add(format!("return {number}").as_bytes()).0)
            .collect();
        assert_eq!(cache.size().0, limits::CACHED_MAX);
        assert_eq!(cache.get(digests[9].as_bytes()), None);
        assert_eq!(cache.get(digests[10].as_bytes()).as_deref(), Some(&b"return 10"[..]));
        assert_eq!(cache.add(b"return 10"), (digests[10].clone(), false));
        let long = vec![b' '; limits::CACHED_BYTES_MAX];
        cache.add(&long);
        assert_eq!(cache.size(), (1, long.len()));
        cache.flush();
        assert_eq!(cache.size(), (0, 0));
    }

    #[test]
    fn a_digest_is_found_in_either_case() {
        let cache = Cache::default();
        let (digest, is_new) = cache.add(b"return 1");
        assert_eq!((digest.as_str(), is_new), ("e0e1f9fabfc9d4800c877a703b823ac0578ff8db", true));
        assert!(cache.get(digest.to_ascii_uppercase().as_bytes()).is_some());
        assert!(cache.get(b"e0e1").is_none());
    }
}
