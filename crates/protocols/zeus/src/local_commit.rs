//! Local commit: the changes of a transaction are made in the records of their owner, and written down as
//! they travel. From here on the transaction can't be taken back.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use quorate_machine::{
    Change, Command, Completion, Content, Effects, LaneShared, OneKey, Outcome, Record as _, Table,
    Workspace as _, mutant,
};
use quorate_types::{Now, Timestamp, limits};

use crate::commit::{Answer, Committing};
use crate::deltas::Wholes;
use crate::fields::{ITEM_BYTES, Item, Items};
use crate::lanes::Client;
use crate::meta::{DataState, Meta, OwnerState};
use crate::remote::NOTHING;
use crate::state::{Key, Rights, Zeus};
use crate::workspace::{Records, Run, Work};

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    /// Makes the changes of a transaction, and appends it to the pipeline; `false`, without a change,
    /// if they are too large. Nobody is told if there is no client.
    pub(crate) fn commit(
        &mut self,
        now: Now,
        client: Option<(Client, X::Reply)>,
        mut work: Work,
        call: Option<(Key, Vec<u8>)>,
        effects: &mut impl Effects<Self>,
    ) -> bool {
        let sent = |(key, one): (&[u8], &OneKey<'_>)| key.len() + one.change_bytes() + ITEM_BYTES;
        let call_bytes = call.as_ref().map_or(0, |(_, bytes)| bytes.len());
        let bytes = work.keys.iter().map(sent).sum::<usize>() + call_bytes;
        if bytes > limits::TXN_BYTES_MAX + ITEM_BYTES {
            return false;
        }
        let version = self.issue(now);
        let mut committing = Committing {
            version,
            read: Vec::new(),
            items: Items::begin(bytes),
            wholes: Wholes::new(),
            call,
        };
        for key in &work.found.expired {
            effects.expired(key);
        }
        for (key, one) in work.keys.drain() {
            match one.is_changed() {
                true => self.write(now, key, one.finish(), &mut committing, effects),
                false => committing.read.push(key.into()),
            }
        }
        let is_changed = !Items::trusted(&committing.items).is_empty();
        let at = is_changed.then_some(version);
        let answer = client.map(|(client, reply)| Answer { client, reply, at });
        if let Some(Answer { client, reply, .. }) = &answer
            && mutant!("zeus_answers_at_local_commit")
        {
            let done = Completion::new(Outcome::Done(reply.clone())).at(version);
            self.answer(*client, done, effects);
        }
        self.append(now, committing, answer, effects);
        true
    }

    /// Deletes a value that has expired, without anybody's asking for it.
    pub(crate) fn delete_expired(
        &mut self,
        now: Now,
        key: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        let rights = Rights { layout: &self.layout, has_recovered: self.lanes.has_recovered };
        let lanes = self.config.lanes;
        let mut work = Work::default();
        let records = Records {
            table: &mut self.table,
            fetched: &NOTHING,
            now: now.wall(),
            may_use: |meta: &Meta, key: &[u8]| rights.may_own(meta, key),
            layout: &self.layout,
            readers: &self.readers,
            lanes,
        };
        // Reading it is what deletes it.
        Run { records, work: &mut work }.read(key);
        if !work.found.expired.is_empty() {
            effects.probe("zeus: an expired value is deleted");
            self.commit(now, None, work, None, effects);
        }
    }

    /// The round in which this node has got a key that it is about to write. If it is the owner only
    /// because there was none, it becomes one by name: what it sends carries a round of its own.
    fn claim(&mut self, now: Now, key: &[u8], effects: &mut impl Effects<Self>) -> Timestamp {
        let meta = self.meta(key);
        if !self.is_own(key) {
            // It is claimed when its lane writes it itself.
            return meta.round;
        }
        if self.layout.node_of(meta.owner).is_some() {
            return self.rounds.get(key).map_or(meta.round, |round| round.previous.round);
        }
        effects.probe("zeus: a default owner claims a key");
        let owner = self.layout.number;
        self.supersede(now, key, owner, effects);
        self.rounds.remove(key);
        let round = self.next_round_at(meta.round);
        let settled = (round, owner, OwnerState::Valid);
        self.change_meta(key, |meta| (meta.round, meta.owner, meta.state) = settled);
        round
    }

    /// Changes a record, and adds the change to what is committed as it travels.
    fn write(
        &mut self,
        now: Now,
        key: &[u8],
        change: Change<'_>,
        committing: &mut Committing,
        effects: &mut impl Effects<Self>,
    ) {
        let version = committing.version;
        let length = if let Change::Set { bytes, .. } = &change { bytes.len() } else { 0 };
        let has_round = self.rounds.contains_key(key);
        let is_own = self.config.is_own(key);
        let is_settled = |meta: &Meta| {
            is_own && !has_round && self.layout.node_of(meta.owner) == Some(self.layout.node)
        };
        // The usual key is this node's by name, and its record has all its words.
        let usual = |record: &T::Record<'_>| is_settled(&record.meta());
        let (mut record, meta, round) =
            if let Some(record) = self.table.lock_existing(key).filter(usual) {
                let meta = record.meta();
                (record, meta, meta.round)
            } else {
                let round = self.claim(now, key, effects);
                let absent = self.absent(key);
                let record = self.table.lock_key(key, length);
                let meta = record.meta().or(absent);
                (record, meta, round)
            };
        let is_large = record.large().is_some();
        let mut delta = None;
        match change {
            Change::Keep => {}
            Change::Set { bytes, kind, expire_at } => {
                record.set_content(Content { bytes: &bytes, kind, expire_at });
            }
            Change::Delta { bytes, expire_at } => {
                let large = record.large_mut().expect("a command saw that the value is large");
                large.apply(&bytes, &mut Vec::new()).expect("it made a delta of what it saw");
                record.set_expiry(expire_at);
                delta = Some(bytes);
            }
            Change::Expire(expire_at) => {
                record.set_expiry(expire_at);
                delta = is_large.then_some(Cow::Borrowed(&[]));
            }
            Change::Delete => record.clear(),
        }
        if is_own {
            self.sweep.note(key, record.content());
        }
        assert!(meta.version < version, "a transaction is above all that it overwrites");
        record.set_meta(Meta { version, data: DataState::Write, ..meta });
        let (mut packed, items) = (Vec::new(), &mut committing.items);
        match delta.zip(record.large()) {
            Some((bytes, whole)) => {
                committing.wholes.insert(key.into(), whole.clone());
                let content = record.content().map(|content| Content { bytes: &bytes, ..content });
                Items::push(items, &Item { key, round, content, base: Some(meta.version) });
            }
            None => {
                let content = record.whole(&mut packed);
                Items::push(items, &Item { key, round, content, base: None });
            }
        }
    }
}
