//! How the log of a lane brings back what it has (`log.rs`), and what becomes of that in the first view that
//! names this life.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_machine::{
    Collection, Command, Content, Effects, LaneShared, Record as _, Scan, Table, Unreadable, mutant,
};
use quorate_types::placement::shard_of;
use quorate_types::{
    Incarnation, LaneId, Lsn, MemberNumber, Timestamp, View, WriterId, lane_of_key, limits,
};
use quorate_wire::{Malformed, Reader};

use crate::called::Answered;
use crate::deltas::{Wholes, change};
use crate::fields::{Item, Items, read_content, read_key};
use crate::floor::KNOWN;
use crate::follower::Applied;
use crate::join::RECORDS;
use crate::log::{
    Appended, CALLS, CLUSTER, CLUSTER_CELL, FLOORS, GONE, HEAD, PART, PROMISED, RECORD, UPDATE,
    UpdateHead, read_item, read_part, write_number, write_promised,
};
use crate::meta::{DataState, Meta};
use crate::state::Zeus;

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    pub(crate) fn restore_entry(&mut self, entry: &[u8]) -> Result<(), Unreadable> {
        self.try_to_restore(entry).map_err(|Malformed(field)| Unreadable(field))
    }

    fn try_to_restore(&mut self, entry: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader(entry);
        match reader.u8()? {
            CLUSTER => {
                let cluster = Incarnation(reader.u64()?);
                reader.end()?;
                let former = self.log.cluster;
                let is_of_use = former != cluster && former.shares_data_with(cluster);
                if !is_of_use && !mutant!("zeus_useless_entries_restored") {
                    self.forget_restored();
                    self.forget_records();
                }
                self.restore_cluster(cluster);
            }
            HEAD => {
                let cluster = Incarnation(reader.u64()?);
                reader.end()?;
                self.restore_cluster(cluster);
            }
            UPDATE => self.restore_update(&mut reader)?,
            RECORD => {
                let version = reader.timestamp()?;
                let (key, content) = (read_key(&mut reader)?, read_content(&mut reader)?);
                reader.end()?;
                self.observe(version.version);
                let item = Item { key, round: Timestamp::ZERO, content, base: None };
                self.restore_item(version, DataState::Valid, &item);
            }
            GONE => {
                self.table.remove_if(reader.rest(), |_| true);
            }
            FLOORS => {
                let floors = [reader.u64()?, reader.u64()?, reader.u64()?];
                reader.end()?;
                if !mutant!("zeus_floors_not_restored") {
                    self.restore_floors(floors);
                }
            }
            CALLS => {
                let shard = reader.u8()?;
                self.calls.restore(shard, reader.rest())?;
            }
            PROMISED => {
                self.log.waited = match reader.u8()? {
                    waited @ (0 | 1) => waited == 1,
                    _ => return Err(Malformed("whether promises waited")),
                };
                reader.end()?;
            }
            PART => {
                let (version, items) = read_part(entry)?;
                self.observe(version.version);
                for item in &items {
                    if self.is_own(item.key) {
                        self.restore_item(version, DataState::Valid, item);
                    }
                }
            }
            _ => return Err(Malformed("unknown kind of entry")),
        }
        Ok(())
    }

    fn restore_update(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let UpdateHead { coordinator, slot, behind, version, depends_on, call } =
            UpdateHead::read(reader)?;
        let mut items = Items::begin(reader.0.len());
        let mut kept = Vec::new();
        while !reader.0.is_empty() {
            if kept.len() >= limits::TXN_KEYS_MAX {
                return Err(Malformed("more keys than a transaction has"));
            }
            let (item, is_kept) = read_item(reader)?;
            Items::push(&mut items, &item);
            kept.push(is_kept || mutant!("zeus_restores_what_it_did_not_keep"));
        }
        let lane = u8::try_from(self.config.lane.0).expect("a lane fits into a virtual id");
        let version = Timestamp::new(version, WriterId::new(coordinator, lane));
        self.observe(version.version);
        let committed = slot.saturating_sub(behind);
        self.restore_committed(coordinator, committed);
        let stream = self.streams.entry(coordinator).or_default();
        let is_decided = slot <= stream.committed;
        let known = stream.applied.remove(slot);
        let mut wholes = known.map(|known| known.wholes).unwrap_or_default();
        let data = match is_decided || mutant!("zeus_restored_as_valid") {
            true => DataState::Valid,
            false => DataState::Invalid,
        };
        let all = Items::trusted(&items).iter().zip(kept);
        let mut others = BTreeSet::new();
        for (item, _) in all.filter(|(_, is_kept)| *is_kept) {
            if !self.is_own(item.key) {
                others.insert(item.key.into());
            } else if let Some(whole) = self.restore_item(version, data, &item) {
                wholes.insert(item.key.into(), whole);
            }
        }
        let call = Answered::write(call);
        if is_decided {
            self.calls.restore_call(&call);
            return Ok(());
        }
        if !others.is_empty() {
            self.log.others.entry((coordinator, slot)).or_default().append(&mut others);
        }
        let applied = Applied::restored(version, depends_on, items, wholes, call);
        self.streams.entry(coordinator).or_default().applied.insert(slot, applied);
        Ok(())
    }

    /// What a transaction has left in a key, unless a later one is here. What is there then, if it was changed
    /// in place.
    fn restore_item(
        &mut self,
        version: Timestamp,
        data: DataState,
        item: &Item<'_>,
    ) -> Option<Collection> {
        let length = item.content.map_or(0, |content| content.bytes.len());
        let is_delta = item.base.is_some();
        let mut record = match is_delta {
            true => self.table.lock_existing(item.key)?,
            false => self.table.lock_key(item.key, length),
        };
        let held = record.meta().version;
        if held < version {
            let mut left = None;
            match (item.content, item.base) {
                (Some(content), Some(base)) => {
                    // Without its base this node did not keep the key when it lost power.
                    if held != base || record.large_mut().is_none() {
                        return None;
                    }
                    left = change(&mut record, content, base, None);
                    left.as_ref()?;
                }
                (Some(content), None) => record.set_content(content),
                (None, _) => record.clear(),
            }
            record.set_meta(Meta { version, data, ..Meta::default() });
            return left;
        }
        if held == version && data == DataState::Invalid {
            record.set_meta(Meta { data, ..record.meta() });
        }
        // It is large or packed, as the table likes.
        if is_delta && held == version {
            record.large_mut().map(|large| large.clone())
        } else {
            None
        }
    }

    /// A coordinator's slots are known to be committed up to this one.
    fn restore_committed(&mut self, coordinator: MemberNumber, upto: u64) {
        let stream = self.streams.entry(coordinator).or_default();
        stream.committed = stream.committed.max(upto);
        let next = |this: &mut Self| {
            let stream = this.streams.get_mut(&coordinator)?;
            stream.applied.pop_upto(upto)
        };
        while let Some((slot, applied)) = next(self) {
            self.log.others.remove(&(coordinator, slot));
            self.calls.restore_call(&applied.call);
            for item in Items::trusted(&applied.items).iter() {
                let Some(mut record) = self.table.lock_existing(item.key) else { continue };
                let meta = record.meta();
                if meta.version == applied.version {
                    record.set_meta(Meta { data: DataState::Valid, ..meta });
                }
            }
        }
    }

    /// Every entry of all lanes is in.
    pub(crate) fn end_restore(&mut self) {
        self.log.is_restored = true;
        if !mutant!("zeus_decided_replayed") {
            self.restore_decided();
        }
        self.restore_others();
        self.drop_overwritten();
        self.set_doubt(!self.log.waited);
    }

    fn restore_cluster(&mut self, cluster: Incarnation) {
        (self.log.is_kept, self.log.cluster) = (true, cluster);
        self.table.set_cell(CLUSTER_CELL, cluster.0);
    }

    /// The floors that lanes know, of those whose logs are of the same cluster as this one. What others have
    /// is about to go.
    pub(crate) fn known_floors(&self) -> Vec<Option<u64>> {
        let lanes = (0..self.config.lanes).map(LaneId);
        let cluster = self.log.cluster;
        let known = lanes.map(|lane| match lane == self.config.lane {
            true => Some(self.floor.kept()[0]),
            false => {
                let other = Incarnation(self.table.cell_of(lane, CLUSTER_CELL));
                let is_same = cluster.shares_data_with(other);
                is_same.then(|| self.table.cell_of(lane, KNOWN))
            }
        });
        known.collect()
    }

    /// Puts what is undecided into the keys of other lanes: nobody reads it before it is replayed.
    fn restore_others(&mut self) {
        let (lanes, floors) = (self.config.lanes, self.known_floors());
        for ((coordinator, slot), keys) in core::mem::take(&mut self.log.others) {
            let stream = self.streams.get(&coordinator);
            let Some(applied) = stream.and_then(|stream| stream.applied.get(slot)) else {
                continue;
            };
            let (version, items) = (applied.version, applied.items.clone());
            let mut wholes = Wholes::new();
            for item in Items::trusted(&items).iter().filter(|item| keys.contains(item.key)) {
                let is_here = floors[usize::from(lane_of_key(item.key, lanes).0)].is_some();
                if !is_here || mutant!("zeus_undecided_of_one_lane") {
                    continue;
                }
                if let Some(whole) = self.restore_item(version, DataState::Invalid, &item) {
                    wholes.insert(item.key.into(), whole);
                }
            }
            let stream = self.streams.get_mut(&coordinator).expect("it was found");
            stream.applied.get_mut(slot).expect("it was found").wholes.append(&mut wholes);
        }
    }

    /// Whether a floor has passed a transaction: that of this lane, which has run it, or that of a key's lane.
    pub(crate) fn is_passed(
        &self,
        floors: &[Option<u64>],
        version: Timestamp,
        items: Items<'_>,
    ) -> bool {
        let is_below = |lane: LaneId| {
            floors[usize::from(lane.0)].is_some_and(|known| version.version <= known)
        };
        let mut lanes = items.iter().map(|item| lane_of_key(item.key, self.config.lanes));
        is_below(self.config.lane) || lanes.any(is_below) && !mutant!("zeus_floor_of_one_lane")
    }

    /// Transactions of which a key has a later version that is decided are committed, and so are those that
    /// a floor has passed.
    fn restore_decided(&mut self) {
        let undecided: BTreeMap<Timestamp, (MemberNumber, u64)> = self
            .streams
            .iter()
            .flat_map(|(from, stream)| {
                stream.applied.iter().map(|(slot, applied)| (applied.version, (*from, slot)))
            })
            .collect();
        let lanes = self.config.lanes;
        let floors = self.known_floors();
        for (version, (coordinator, slot)) in &undecided {
            let stream = &self.streams[coordinator];
            let Some(applied) = stream.applied.get(*slot) else { continue };
            let items = Items::trusted(&applied.items);
            let is_overwritten = items.iter().any(|item| {
                let is_known = floors[usize::from(lane_of_key(item.key, lanes).0)].is_some();
                let held = self.table.lock_existing(item.key).map(|record| record.meta().version);
                is_known
                    && held.is_some_and(|held| held > *version && !undecided.contains_key(&held))
            });
            if is_overwritten || self.is_passed(&floors, *version, items) {
                self.restore_committed(*coordinator, *slot);
            }
        }
    }

    /// A snapshot has values that were written after some that are undecided. Those are not known any more: a
    /// transaction that is replayed leaves out a value that it has changed in place, and the one that
    /// has overwritten it brings all of it.
    fn drop_overwritten(&mut self) {
        for stream in self.streams.values_mut() {
            for applied in stream.applied.values_mut() {
                let items = Items::trusted(&applied.items);
                if items.iter().all(|item| item.base.is_none()) {
                    continue;
                }
                let mut left = Items::begin(applied.items.len());
                for item in items.iter() {
                    let whole = applied.wholes.get(item.key);
                    let mut packed = Vec::new();
                    match (item.base, whole, item.content) {
                        (Some(_), Some(whole), Some(content)) => {
                            whole.pack(&mut packed);
                            let content = Some(Content { bytes: &packed, ..content });
                            Items::push(&mut left, &Item { content, base: None, ..item });
                        }
                        (Some(_), ..) => {
                            let record = self.table.lock_existing(item.key);
                            let held = record.map(|record| record.meta().version);
                            if held.is_none_or(|held| held <= applied.version) {
                                // Those that keep the key have what it changes.
                                Items::push(&mut left, &item);
                            }
                        }
                        (None, ..) => Items::push(&mut left, &item),
                    }
                }
                applied.items = left;
            }
        }
    }

    /// Forgets what was restored, but for the records.
    fn forget_restored(&mut self) {
        self.streams.clear();
        self.calls = Default::default();
        self.floor = Default::default();
        self.table.set_cell(KNOWN, 0);
        self.log.others.clear();
        self.set_doubt(false);
    }

    /// Forgets the records of this lane's keys.
    fn forget_records(&mut self) {
        if self.config.lanes == 1 || mutant!("zeus_lane_forgets_all") {
            return self.table.reset();
        }
        let mut scan = Scan::default();
        loop {
            for key in scan.next_keys(&self.table, RECORDS) {
                self.table.remove_if(&key, |_| true);
            }
            if scan.is_at_end() {
                return;
            }
        }
    }

    /// Whether what was restored is of the cluster of this view, or of the one that it was recovered from. A
    /// log that names none has lost everything.
    fn has_data_of(&self, view: &View) -> bool {
        let is_new = self.log.cluster != view.cluster;
        let is_lost = self.log.cluster == Incarnation::default();
        is_lost
            || self.log.cluster.shares_data_with(view.cluster)
                && !(is_new && mutant!("zeus_recovers_nothing"))
    }

    /// What is of another cluster goes before any lane begins the epoch: another one may fill records then.
    pub(crate) fn forget_other_cluster(&mut self, view: &View) {
        let is_first = self.log.is_restored && !self.log.has_begun;
        if is_first && !self.has_data_of(view) && self.layout_of(view).is_live() {
            self.forget_restored();
            self.forget_records();
        }
    }

    /// Whether the records that are here go before any lane begins this epoch: they are of a life that has
    /// ended, or were restored at a node that is not active in the first view that names its life.
    pub(crate) fn begins_empty(&self, view: &View) -> bool {
        if !self.log.is_restored {
            return self.lanes.is_new();
        }
        let layout = self.layout_of(view);
        let goes_on = layout.is_active() || mutant!("zeus_shadow_goes_on");
        !self.log.has_begun && layout.is_live() && !goes_on
    }

    /// Whether this node has had all of a shard since before the power went.
    pub(crate) fn has_restored(&self, shard: usize) -> bool {
        self.log.goes_on && self.layout.has_all(shard)
    }

    /// The first view that names this life decides what becomes of what was restored. Keys that the node does
    /// not keep as a member of their group go: what it has of others may be old. Other lanes get their parts
    /// of what is replayed anew.
    pub(crate) fn take_restored(&mut self, view: &View, effects: &mut impl Effects<Self>) {
        self.log.goes_on = false;
        if core::mem::replace(&mut self.log.has_begun, true) {
            return;
        }
        let is_restored = core::mem::take(&mut self.log.is_restored);
        let is_active = self.layout.is_active() || mutant!("zeus_shadow_goes_on");
        let cluster = view.cluster;
        let is_new = self.log.cluster != cluster;
        self.log.goes_on = is_restored && is_active && self.has_data_of(view);
        self.log.revives = self.log.goes_on;
        if is_restored && !self.log.goes_on {
            self.forget_restored();
        }
        let append = |log: &mut Vec<u8>| write_number(CLUSTER, cluster.0, log);
        let is_other = !self.log.cluster.shares_data_with(cluster);
        if is_new {
            self.log.cluster = cluster;
            self.log.append(effects, append);
        }
        if !self.log.goes_on && !is_other {
            // Named once more: what came before is of no use.
            self.log.append(effects, append);
        }
        self.log.waited = false;
        self.log.append(effects, |log| write_promised(false, log));
        self.log.note_copied();
        if !self.log.goes_on {
            return;
        }
        effects.probe("zeus: goes on from its log");
        let mut scan = Scan::default();
        loop {
            for key in scan.next_keys(&self.table, RECORDS) {
                if !self.layout.has_all(shard_of(&key)) {
                    self.drop_record(&key, effects);
                } else if let Some(record) = self.table.lock_existing(&key) {
                    self.sweep.note(&key, record.content());
                }
            }
            if scan.is_at_end() {
                break;
            }
        }
        if !mutant!("zeus_parts_not_given_anew") {
            self.spread_restored(effects);
        }
    }

    fn spread_restored(&mut self, effects: &mut impl Effects<Self>) {
        let restored = self.streams.iter().flat_map(|(from, stream)| {
            let applied = stream.applied.iter();
            applied.map(|(slot, applied)| (*from, slot, applied.clone()))
        });
        for (coordinator, slot, applied) in restored.collect::<Vec<_>>() {
            let update = Appended {
                coordinator,
                slot,
                committed: 0,
                version: applied.version,
                depends_on: &applied.depends_on,
                items: Items::trusted(&applied.items),
                wholes: &applied.wholes,
                call: &applied.call,
            };
            self.spread(&update, Lsn::START, effects);
        }
    }
}
