//! The extra readers of a key, as its owner knows them: nodes outside the group that keep a copy
//! (`extra_copies.rs`) and are followers of every transaction that writes the key.
//!
//! No directory hears of them: who else may read a key concerns only who commits writes of it. So
//! - the owner gives a key away only when it has no extra readers: it withdraws their copies first, and
//!   defers its agreement;
//! - a node may hear of a view last, and read its copies under a good lease meanwhile. So the extra
//!   readers of an epoch stay followers in the next one until each of them has said there that it has
//!   recovered: then it has dropped what it had. A default owner waits for that word of all;
//! - a loan to another lane names them, and none is added while the key is lent.

use alloc::vec::Vec;

use quorate_machine::{
    Backoff, Command, Content, DetMap, Effects, LaneShared, Record as _, Table, mutant,
};
use quorate_types::{Instant, NodeId, NodeSet, Now};

use crate::extra_copies::VALUE_BYTES_MAX;
use crate::extras::{ExtraMessage, ExtraStep};
use crate::message::Message;
use crate::meta::{DataState, Meta, OwnerState};
use crate::ownership::Value;
use crate::state::{Key, Zeus};

/// Keys of a lane that have extra readers.
const KEYS_MAX: usize = 64 * 1024;

/// A node that keeps a copy of a key outside its group.
#[derive(Clone, Hash, Debug)]
struct Reader {
    node: NodeId,
    /// Which of its requests.
    number: u64,
    /// Whether it has said that it has the copy.
    has_confirmed: bool,
}

/// The extra readers of one key.
#[derive(Clone, Hash, Debug, Default)]
struct Readers {
    nodes: Vec<Reader>,
    /// Those of earlier epochs, which may not have heard of this one.
    former: NodeSet,
    /// Whether they were told to drop their copies.
    is_withdrawn: bool,
}

impl Readers {
    fn nodes(&self) -> NodeSet {
        self.nodes.iter().map(|reader| reader.node).collect()
    }
}

/// Those of all keys that this lane owns.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct ExtraReaders {
    keys: DetMap<Key, Readers>,
    /// What was sent and is not answered.
    waits: DetMap<Key, Backoff>,
}

impl ExtraReaders {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }

    /// Those of a key.
    pub(crate) fn of(&self, key: &[u8]) -> NodeSet {
        self.keys.get(key).map(Readers::nodes).unwrap_or_default()
    }

    /// How many there are, of all keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.sum(|_, readers| readers.nodes.len())
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.waits.is_empty() && !self.keys.any(|_, readers| !readers.former.is_empty())
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Every node has recovered, so none reads what it had in earlier epochs.
    pub(crate) fn forget_former(&mut self) {
        self.keys.change_all(|readers| readers.former = NodeSet::EMPTY);
        self.keys.retain(|_, readers| !readers.nodes.is_empty());
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        self.waits.least(Backoff::deadline).unwrap_or(Instant::NEVER)
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// The nodes outside a key's group that follow it besides its owner. This lane has the key, or has
    /// borrowed it.
    pub(crate) fn extra_readers(&self, key: &[u8]) -> NodeSet {
        if !self.is_own(key) {
            return self
                .lanes
                .readers_of_borrowed(key, self.layout.epoch, |former| self.not_recovered(former));
        }
        let Some(readers) = self.readers.keys.get(key) else { return NodeSet::EMPTY };
        let nodes = match mutant!("zeus_reader_counts_from_its_word") {
            true => {
                let confirmed = readers.nodes.iter().filter(|reader| reader.has_confirmed);
                confirmed.map(|reader| reader.node).collect()
            }
            false => readers.nodes(),
        };
        nodes.union(self.not_recovered(readers.former))
    }

    /// Those of some former readers that may not have heard of this epoch.
    fn not_recovered(&self, former: NodeSet) -> NodeSet {
        let live = former.intersection(self.layout.live);
        match &self.recovery {
            Some(recovery) if !mutant!("zeus_late_reader_forgotten") => {
                live.difference(recovery.heard())
            }
            _ => NodeSet::EMPTY,
        }
    }

    /// A node wants a copy. A member of the directory passes that on to the owner.
    pub(crate) fn on_want(
        &mut self,
        now: Now,
        from: NodeId,
        key: &[u8],
        number: u64,
        reader: NodeId,
        effects: &mut impl Effects<Self>,
    ) {
        let is_outside = !self.layout.group(key).contains(reader) && reader != self.layout.node;
        if !self.layout.active.contains(reader) || !is_outside {
            return effects.ignored("zeus: WANT of a node that needs no copy");
        }
        let meta = self.meta(key);
        if !self.rights().may_own(&meta, key) {
            let owner = self.owner_of(&meta, key);
            let is_directory = self.layout.directory(key).contains(&self.layout.node);
            return match owner.filter(|owner| *owner != self.layout.node && *owner != reader) {
                Some(owner) if is_directory && from == reader => {
                    let step = ExtraStep::Want { reader };
                    effects.send(owner, &Message::Extra(ExtraMessage { key, number, step }));
                }
                _ => effects.ignored("zeus: WANT to a node that is not the owner"),
            };
        }
        let is_moving = self.rounds.contains_key(key) || meta.state != OwnerState::Valid;
        let is_lent = self.lanes.is_lent(key) && !mutant!("zeus_reader_added_to_loan");
        let is_committed = meta.data == DataState::Valid || mutant!("zeus_grants_uncommitted");
        if is_moving || is_lent || !is_committed {
            // It asks again.
            return effects.ignored("zeus: WANT of a key that is being written or moved");
        }
        let most = self.config.extra_readers;
        let has_room = self.readers.keys.len() < KEYS_MAX;
        let fits = self.copy_for_reader(now, key).is_some();
        let known = self.readers.keys.get_mut(key);
        if known.as_ref().is_some_and(|readers| readers.is_withdrawn) {
            return effects.ignored("zeus: WANT of a key whose copies are withdrawn");
        }
        let place = known.as_ref().map_or(0, |readers| readers.nodes.len());
        let own = known.and_then(|readers| readers.nodes.iter_mut().find(|it| it.node == reader));
        match own {
            Some(own) if own.number > number => {
                return effects.ignored("zeus: WANT of an earlier request");
            }
            Some(own) => (own.number, own.has_confirmed) = (number, false),
            None if place >= most || !has_room || !fits => {
                let step = ExtraStep::Withdraw;
                return effects.send(reader, &Message::Extra(ExtraMessage { key, number, step }));
            }
            None => {
                effects.probe("zeus: a key gets an extra reader");
                let new = Reader { node: reader, number, has_confirmed: false };
                let (readers, _) =
                    self.readers.keys.get_or_insert_with(key.into(), Readers::default);
                readers.nodes.push(new);
                readers.is_withdrawn = false;
                self.counters.readers_added += 1;
            }
        }
        let wait = self.wait(now);
        self.readers.waits.insert(key.into(), wait);
        self.grant(now, key, reader, number, effects);
    }

    /// What an extra reader gets: the value, if it is committed, has not expired and is not too large.
    fn copy_for_reader(&mut self, now: Now, key: &[u8]) -> Option<(Meta, Value)> {
        let record = self.table.lock_existing(key)?;
        let meta = record.meta();
        let is_committed = meta.data == DataState::Valid || mutant!("zeus_grants_uncommitted");
        let is_large = record.large().is_some_and(|large| large.packed_len() > VALUE_BYTES_MAX);
        if !is_committed || is_large {
            return None;
        }
        let mut packed = Vec::new();
        let content = record.whole(&mut packed)?;
        let Content { bytes, .. } = content;
        let may_be_copied = bytes.len() <= VALUE_BYTES_MAX && !content.is_expired(now.wall());
        may_be_copied.then(|| (meta, Value::of(content)))
    }

    fn grant(
        &mut self,
        now: Now,
        key: &[u8],
        reader: NodeId,
        number: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let step = match self.copy_for_reader(now, key) {
            Some((Meta { version, owner, moves, .. }, value)) => {
                let grant = ExtraStep::Grant { version, owner, moves, content: value.content() };
                let message = ExtraMessage { key, number, step: grant };
                return effects.send(reader, &Message::Extra(message));
            }
            // It is being written: the copy is sent later.
            None if self.meta(key).data != DataState::Valid => return,
            None => ExtraStep::Withdraw,
        };
        effects.send(reader, &Message::Extra(ExtraMessage { key, number, step }));
    }

    /// An extra reader has its copy.
    pub(crate) fn on_keep(
        &mut self,
        from: NodeId,
        key: &[u8],
        number: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let readers = self.readers.keys.get_mut(key);
        let known = readers.and_then(|readers| {
            readers.nodes.iter_mut().find(|it| it.node == from && it.number == number)
        });
        let Some(reader) = known else {
            return effects.ignored("zeus: KEEP of a copy that was not granted");
        };
        reader.has_confirmed = true;
        self.check_readers(key);
    }

    /// An extra reader has dropped its copy.
    pub(crate) fn on_gone(
        &mut self,
        from: NodeId,
        key: &[u8],
        number: u64,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(readers) = self.readers.keys.get_mut(key) else {
            return effects.ignored("zeus: the end of a copy that was not granted");
        };
        let before = readers.nodes.len();
        readers.nodes.retain(|it| {
            it.node != from || it.number > number && !mutant!("zeus_old_end_believed")
        });
        self.counters.readers_ended += (before - readers.nodes.len()) as u64;
        self.changed.insert(key.into());
        self.check_readers(key);
    }

    /// Waits for nothing where all is said, and forgets keys without extra readers.
    fn check_readers(&mut self, key: &[u8]) {
        let Some(readers) = self.readers.keys.get(key) else { return };
        let is_open = readers.nodes.iter().any(|reader| !reader.has_confirmed);
        let is_empty = readers.nodes.is_empty();
        let is_over = is_empty && self.not_recovered(readers.former).is_empty();
        if is_empty || !is_open && !readers.is_withdrawn {
            self.readers.waits.remove(key);
        }
        if is_over {
            self.readers.keys.remove(key);
        }
    }

    /// Tells the extra readers of a key to drop their copies, since it is to be given away. Whether that is
    /// not over.
    pub(crate) fn withdraw_readers(
        &mut self,
        now: Now,
        key: &[u8],
        effects: &mut impl Effects<Self>,
    ) -> bool {
        if mutant!("zeus_given_beside_extra_readers") || self.extra_readers(key).is_empty() {
            return false;
        }
        let readers = self.readers.keys.get_mut(key).expect("there are some");
        let is_told = core::mem::replace(&mut readers.is_withdrawn, true);
        if !is_told && !readers.nodes.is_empty() {
            effects.probe("zeus: an owner withdraws extra copies");
            let wait = self.wait(now);
            self.readers.waits.insert(key.into(), wait);
            self.say_withdrawn(key, effects);
        }
        true
    }

    fn say_withdrawn(&self, key: &[u8], effects: &mut impl Effects<Self>) {
        let Some(readers) = self.readers.keys.get(key) else { return };
        for Reader { node, number, .. } in &readers.nodes {
            let (number, step) = (*number, ExtraStep::Withdraw);
            effects.send(*node, &Message::Extra(ExtraMessage { key, number, step }));
        }
    }

    /// Says again what is not answered.
    pub(crate) fn repeat_readers(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        for key in self.readers.waits.keys_that(|_, wait| wait.deadline() <= now.monotonic) {
            let Some(wait) = self.readers.waits.get_mut(&key) else { continue };
            self.config.wait_longer(wait, now);
            let Some(readers) = self.readers.keys.get(&key) else { continue };
            if readers.is_withdrawn {
                self.say_withdrawn(&key, effects);
                continue;
            }
            let open = readers.nodes.iter().filter(|reader| !reader.has_confirmed);
            let open: Vec<_> = open.map(|reader| (reader.node, reader.number)).collect();
            for (node, number) in open {
                effects.probe("zeus: a copy is granted again");
                self.grant(now, &key, node, number, effects);
            }
        }
    }

    /// A new view: no node has a copy in it, and those that have not heard of it may read theirs.
    pub(crate) fn renew_readers(&mut self) {
        let live = self.layout.live;
        self.readers.waits.clear();
        self.readers.keys.change_all(|readers| {
            readers.former = readers.former.union(readers.nodes()).intersection(live);
            readers.nodes.clear();
            readers.is_withdrawn = false;
        });
        self.readers.keys.retain(|_, readers| !readers.former.is_empty());
    }

    /// A node has dropped what it had in earlier epochs.
    pub(crate) fn note_recovered(&mut self, node: NodeId) {
        let former = self.readers.keys.keys_that(|_, readers| readers.former.contains(node));
        for key in former {
            self.check_readers(&key);
            self.changed.insert(key);
        }
    }
}
