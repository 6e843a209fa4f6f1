//! Reads of partitions that this node has no replica of: one replica of the partition is asked, and
//! the transaction runs again with what it answered (§5.2.1; validation finds out what was stale).

use alloc::vec::Vec;

use quorate_machine::{Command, Content, Effects, LaneShared, Record, Slot, Table};
use quorate_types::{NodeId, Now, Timestamp, limits, partition_of};
use quorate_wire::{Reader, Writer};

use crate::attempt::{Attempt, Part, Stage};
use crate::body::{Body, BodyWriter, ITEM_BYTES, Item, Write};
use crate::coordinator::FLOOR;
use crate::join::BASES;
use crate::message::{Kind, Message};
use crate::meta::Meta;
use crate::state::Meerkat;
use crate::work::{Fetched, absent_base};

impl<T, X> Meerkat<T, X>
where
    T: Table<Meta = Meta> + LaneShared,
    X: Command<Owned = X>,
{
    /// Asks for the keys that the last run missed.
    pub(crate) fn fetch(&mut self, now: Now, slot: Slot, effects: &mut impl Effects<Self>) {
        let request = self.issue(now, 0).version;
        let partitions = self.config.partitions.len();
        let missing = core::mem::take(&mut self.work.missing);
        let fetched = core::mem::take(&mut self.work.fetched);
        let mut parts: Vec<Part> = Vec::new();
        for key in missing {
            let partition = partition_of(&key, partitions);
            let at = parts.iter().position(|part| part.partition == partition);
            let at = at.unwrap_or_else(|| {
                parts.push(Part { partition, ..Part::default() });
                parts.len() - 1
            });
            Writer(&mut parts[at].body).bytes(&key);
        }
        if parts.is_empty() {
            // A guest that reads nothing asks for the time alone.
            parts.push(Part::default());
        }
        let Some(op) = self.ops.get_mut(slot) else { return };
        op.fetched = fetched;
        op.attempt = Some(request);
        self.attempts.insert(request, Attempt::question(now, slot, Stage::Fetching, parts));
        self.send_gets(request, effects);
        self.resends.push(now.monotonic + self.config.message_loss_timeout, request);
    }

    /// Asks some replica of each partition that has not answered.
    pub(crate) fn send_gets(&mut self, request: u64, effects: &mut impl Effects<Self>) {
        let spin = self.rng.next_u64() as usize;
        let Some(attempt) = self.attempts.get(&request) else { return };
        if self.config.guest.is_some() {
            let others = self.view.active().difference(attempt.seen);
            let kind = Kind::Get { request, keys: &[] };
            effects.broadcast(others, &Message { partition: 0, kind });
        }
        for part in attempt.parts.iter().filter(|part| part.ok.is_empty() && !part.body.is_empty())
        {
            let Some(group) = self.groups.get(usize::from(part.partition)) else { continue };
            if let Some(node) = group.live.nth(spin % group.live.len().max(1)) {
                let kind = Kind::Get { request, keys: &part.body };
                effects.send(node, &Message { partition: part.partition, kind });
            }
        }
    }

    /// GET.
    pub(crate) fn on_get(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        request: u64,
        keys: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        // The request's number is a timestamp of the asker.
        self.observe(now, request);
        let floor = self.table.least(FLOOR);
        let mut items = Vec::new();
        let mut writer = BodyWriter::new(&mut items, None);
        let mut reader = Reader(keys);
        let (mut count, mut bytes) = (0, 0);
        let mut whole = Vec::new();
        while let Ok(key) = reader.bytes() {
            let mut wts = Timestamp::ZERO;
            if let Some(record) = self.table.lock_existing(key) {
                wts = record.meta().wts;
                if let Some(content) = record.whole(&mut whole) {
                    bytes += content.bytes.len();
                    if is_full(key, &mut count, &mut bytes) {
                        break;
                    }
                    let (base, write) = (Some(wts), Some(Write::Set(content)));
                    writer.item(&Item { key, base, absent: false, write });
                    continue;
                }
            }
            if is_full(key, &mut count, &mut bytes) {
                break;
            }
            let base = Some(absent_base(wts, floor));
            writer.item(&Item { key, base, absent: true, write: Some(Write::Delete) });
        }
        writer.finish();
        let clock = self.clock(now);
        let kind = Kind::Values { request, clock, items: &items };
        effects.send(from, &Message { partition, kind });
    }

    /// VALUES: once every partition has answered, the transaction runs again.
    #[expect(clippy::too_many_arguments, reason = "the fields of the message")]
    pub(crate) fn on_values(
        &mut self,
        now: Now,
        from: NodeId,
        partition: u16,
        request: u64,
        clock: u64,
        items: &[u8],
        effects: &mut impl Effects<Self>,
    ) {
        self.observe(now, clock);
        if let Some(attempt) = self.attempts.get_mut(&request).filter(|a| a.is_open_update()) {
            // A member outside the groups has taken note of the timestamp.
            attempt.seen.insert(from);
            return self.evaluate(now, request, false, effects);
        }
        let Ok(body) = Body::check(items) else {
            return effects.refused("meerkat: damaged values");
        };
        let newest = body.iter().filter_map(|item| item.base).max().unwrap_or_default();
        if self.is_absurd(now, newest.version) {
            return effects.refused("meerkat: a version years ahead of this node's clock");
        }
        if request == BASES {
            return self.on_bases(body, effects);
        }
        let fetching = |attempt: &&mut Attempt| attempt.stage == Stage::Fetching;
        let Some(attempt) = self.attempts.get_mut(&request).filter(fetching) else {
            return effects.ignored("meerkat: VALUES of a finished read");
        };
        let slot = attempt.slot;
        attempt.seen.insert(from);
        let told = attempt.seen;
        if body.iter().next().is_some()
            && let Some(part) = attempt.part(partition)
        {
            part.ok.insert(from);
        }
        let all = attempt.parts.iter().all(|part| !part.ok.is_empty() || part.body.is_empty());
        let all = all && self.knows_the_time(told);
        let Some(op) = self.ops.get_mut(slot) else {
            self.attempts.remove(&request);
            return;
        };
        op.aware |= all;
        for Item { key, base, write, .. } in body.iter() {
            let value = match write {
                Some(Write::Set(Content { bytes, kind, expire_at })) => {
                    Some((bytes.to_vec(), kind, expire_at))
                }
                _ => None,
            };
            let base = base.unwrap_or(Timestamp::ZERO);
            op.fetched.insert(key.to_vec(), Fetched { base, value });
        }
        if all {
            op.attempt = None;
            self.attempts.remove(&request);
            self.start(now, slot, effects);
        }
    }
}

/// Whether the item of this key has no room any more beside those that are counted: it will be
/// asked for again. One always has.
fn is_full(key: &[u8], count: &mut usize, bytes: &mut usize) -> bool {
    *count += 1;
    *bytes += key.len() + ITEM_BYTES;
    *count > limits::TXN_KEYS_MAX || (*count > 1 && *bytes > limits::TXN_BYTES_MAX)
}
