//! Primary-backup: KuaFu++ and Meerkat-PB. The client's node sends a transaction to the primary,
//! which alone validates it and tells the coordinator once a majority has it.
//!
//! In Meerkat-PB the transaction keeps the timestamp of its coordinator, and a lane has its own
//! record of what it replicates. In KuaFu++ its timestamp is the next value of a counter, and it has
//! a place in a log: both are common to all lanes, at the primary and (the log) at the backups,
//! whose lanes replay it side by side, in any order, since versions are installed in order of their
//! timestamps.

use quorate_machine::{Command, Effects, Table};
use quorate_meerkat::{Body, Kind, Meta, occ};
use quorate_types::{NodeId, NodeSet, Now, Timestamp};

use crate::{Baseline, COMMITS_FAST, System};

/// A transaction that the primary has validated, until a majority has it.
#[derive(Debug)]
pub(crate) struct Replicating {
    /// Its coordinator, and how that one calls it.
    from: NodeId,
    ticket: Timestamp,
    /// Its place in the log.
    place: u64,
    /// Its sets; those of KuaFu++ lie in the log.
    body: Vec<u8>,
    held: NodeSet,
}

impl<S, T, X> Baseline<S, T, X>
where
    S: System,
    T: Table<Meta = Meta>,
    X: Command<Owned = X>,
{
    pub(crate) fn ask_primary(
        &mut self,
        now: Now,
        id: Timestamp,
        body: Vec<u8>,
        effects: &mut impl Effects<Self>,
    ) {
        let primary = self.group().primary;
        let sets = Body::trusted(&body);
        if primary == self.config.node {
            self.on_submit(now, primary, id, sets, effects);
        } else {
            let kind = Kind::Validate { id, stable: 0, participants: 1, body: sets };
            effects.send(primary, &Self::message(kind));
        }
        self.recycle(body);
    }

    /// At the primary: validates, orders, and hands to the backups.
    pub(crate) fn on_submit(
        &mut self,
        now: Now,
        from: NodeId,
        ticket: Timestamp,
        body: Body<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let ordered = S::ORDERED;
        let id = match ordered {
            true => Timestamp::new(self.common.next(), self.group().writer),
            false => ticket,
        };
        let vote = occ::validate(&mut self.table, id, body, |_| 0);
        if vote.is_err() {
            if from == self.config.node {
                self.on_vote(now, from, ticket, vote, effects);
            } else {
                effects.send(from, &Self::message(Kind::Vote { id: ticket, vote }));
            }
            return;
        }
        let mut bytes = Vec::new();
        let mut place = 0;
        if ordered {
            place = self.common.append(body.bytes());
        } else {
            bytes = self.buffer();
            bytes.extend_from_slice(body.bytes());
        }
        let held = NodeSet::only(self.config.node);
        self.replicating.insert(id, Replicating { from, ticket, place, body: bytes, held });
        let others = self.others();
        if !others.is_empty() {
            let kind =
                Kind::Accept { id, view: place, ok: true, participants: 1, body: Some(body) };
            effects.broadcast(others, &Self::message(kind));
        }
        self.on_appended(now, self.config.node, id, effects);
    }

    /// At a backup: replays a transaction.
    pub(crate) fn on_append(
        &mut self,
        from: NodeId,
        id: Timestamp,
        place: u64,
        body: Body<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        if S::ORDERED {
            self.common.append_at(place, body.bytes());
            let bytes = self.common.take(place);
            occ::apply(&mut self.table, id, Body::trusted(&bytes));
            self.common.done(place);
        } else {
            occ::apply(&mut self.table, id, body);
        }
        effects.send(from, &Self::message(Kind::Accepted { id, view: place }));
    }

    /// At the primary: one more node has a transaction.
    pub(crate) fn on_appended(
        &mut self,
        _now: Now,
        from: NodeId,
        id: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        let majority = self.group().quorums.majority;
        let Some(replicating) = self.replicating.get_mut(&id) else {
            return effects.ignored("baselines: ACCEPTED beyond a majority");
        };
        replicating.held.insert(from);
        if replicating.held.len() < majority {
            return;
        }
        let done = self.replicating.remove(&id).expect("just looked at");
        if S::ORDERED {
            let bytes = self.common.take(done.place);
            occ::apply(&mut self.table, id, Body::trusted(&bytes));
            self.common.done(done.place);
        } else {
            occ::apply(&mut self.table, id, Body::trusted(&done.body));
            self.recycle(done.body);
        }
        if done.from == self.config.node {
            self.committed(done.ticket.version, COMMITS_FAST, effects);
        } else {
            let kind = Kind::Decided { id: done.ticket, commit: true, body: None };
            effects.send(done.from, &Self::message(kind));
        }
    }
}
