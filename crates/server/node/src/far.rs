//! Commands that wait at a node for keys of which it has no copy, so that it does not hear of their
//! changes.
//!
//! Such a node tells all others which keys these are, as it tells what its clients subscribe to
//! (`interest.rs`), and they watch them. Of a change one node tells: the one that tells of the key in
//! listings ([`quorate_engine::Engine::lists`]), which has all of the key that was acknowledged. That it
//! is told of before it is committed does no harm: the waiting command is only tried again, as an op
//! that sees what was acknowledged.
//!
//! What is told may be lost, as any publication, and who has told since when is a matter of views. So the
//! command is also tried again by itself, though seldom once all others know of it, and with each view.

use std::sync::Arc;

use quorate_machine::mutant;
use quorate_types::{KeyspaceId, Publication, Topic};

use crate::{Lane, Outbox};

/// The name under which nodes tell each other of a key.
fn name_of(keyspace: KeyspaceId, key: &[u8]) -> Box<[u8]> {
    [&[keyspace.0], key].concat().into()
}

/// The key of such a name. Whether there is such a keyspace a peer may be wrong about.
fn key_of(name: &[u8]) -> Option<(KeyspaceId, &[u8])> {
    let (keyspace, key) = name.split_first()?;
    Some((KeyspaceId(*keyspace), key))
}

impl Lane {
    /// One more command of this lane waits for a key without a copy here.
    pub(crate) fn wait_far(&mut self, keyspace: KeyspaceId, key: &[u8]) {
        let name = name_of(keyspace, key);
        let waiting = self.blocking.far.entry(name.clone()).or_default();
        *waiting += 1;
        let waiting = *waiting;
        self.listen(Topic::Key, &name, waiting);
    }

    /// One less does.
    pub(crate) fn stop_far(&mut self, keyspace: KeyspaceId, key: &[u8]) {
        let name = name_of(keyspace, key);
        let waiting = self.blocking.far.get_mut(&name).expect("it was counted");
        *waiting -= 1;
        let waiting = *waiting;
        if waiting == 0 {
            self.blocking.far.remove(&name);
        }
        self.listen(Topic::Key, &name, waiting);
    }

    /// Commands of other nodes begin or end to wait for keys.
    pub(crate) fn watch_for_others(&self, names: Vec<(Box<[u8]>, bool)>) {
        for (name, begins) in names {
            let Some((keyspace, key)) = key_of(&name) else { continue };
            let Some(store) = self.shared.store(keyspace) else { continue };
            if begins {
                store.watch(key);
            } else {
                store.unwatch(key);
            }
        }
    }

    /// A key has changed here: tells the nodes at which commands wait for it.
    pub(crate) fn tell_far(&mut self, keyspace: KeyspaceId, key: &[u8], out: &mut Outbox) {
        let name = name_of(keyspace, key);
        let others = self.view.live().without(self.shared.config.node);
        if self.shared.listeners.count(Topic::Key, &name, others) == 0
            || !self.engine(keyspace).is_some_and(|engine| engine.lists(key))
            || mutant!("node_change_not_told_far")
        {
            return;
        }
        let publication = Publication { topic: Topic::Key, channel: name, message: Box::default() };
        self.broadcast(&Arc::new(publication), out);
    }

    /// Takes what was published elsewhere, for clients of this lane or for what waits on it.
    pub(crate) fn take_publication(&mut self, publication: Arc<Publication>, out: &mut Outbox) {
        if publication.topic != Topic::Key {
            return out.published.push(publication);
        }
        let Some((keyspace, key)) = key_of(&publication.channel) else { return };
        for place in self.shared.lines.first(keyspace, key, |_| true) {
            if place.lane == self.id {
                self.blocking.wake(place.slot, place.key);
            }
        }
    }
}
