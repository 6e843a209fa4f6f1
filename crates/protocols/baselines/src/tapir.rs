//! TAPIR-style: every replica validates at the client's timestamp, a fast quorum of equal votes
//! decides, and otherwise a majority must accept the outcome. As Meerkat's normal case, except that
//! all lanes of a node keep their transactions in one record behind a mutex.

use quorate_machine::{Command, Effects, Table};
use quorate_meerkat::{Body, Kind, Meta, Vote, occ};
use quorate_types::{NodeId, NodeSet, Now, Timestamp};

use crate::common::Tentative;
use crate::{Baseline, COMMITS_FAST, COMMITS_SLOW, System};

impl<S, T, X> Baseline<S, T, X>
where
    S: System,
    T: Table<Meta = Meta>,
    X: Command<Owned = X>,
{
    /// Validates at this node first: what fails here costs no message. Then asks the others.
    pub(crate) fn ask_all(
        &mut self,
        now: Now,
        id: Timestamp,
        body: Vec<u8>,
        effects: &mut impl Effects<Self>,
    ) {
        let vote = occ::validate(&mut self.table, id, Body::trusted(&body), |_| 0);
        if let Err(conflict) = vote {
            self.count_abort(conflict.reason);
            self.recycle(body);
            if let Some(attempt) = self.attempts.get_mut(&id.version) {
                attempt.conflict = Some(conflict);
            }
            return self.lost(now, id.version, effects);
        }
        let others = self.others();
        if !others.is_empty() {
            let kind =
                Kind::Validate { id, stable: 0, participants: 1, body: Body::trusted(&body) };
            effects.broadcast(others, &Self::message(kind));
        }
        self.common.insert(id, Tentative { body, registered: true, accepted: None });
        self.on_vote(now, self.config.node, id, Ok(()), effects);
    }

    pub(crate) fn on_validate(
        &mut self,
        from: NodeId,
        id: Timestamp,
        body: Body<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        let vote = occ::validate(&mut self.table, id, body, |_| 0);
        let mut bytes = self.buffer();
        bytes.extend_from_slice(body.bytes());
        let tentative = Tentative { body: bytes, registered: vote.is_ok(), accepted: None };
        self.common.insert(id, tentative);
        effects.send(from, &Self::message(Kind::Vote { id, vote }));
    }

    /// A replica's vote; in the other systems, the primary's refusal.
    pub(crate) fn on_vote(
        &mut self,
        now: Now,
        from: NodeId,
        id: Timestamp,
        vote: Vote,
        effects: &mut impl Effects<Self>,
    ) {
        let Some(attempt) = self.attempts.get_mut(&id.version) else {
            return effects.ignored("baselines: VOTE on a finished attempt");
        };
        match vote {
            Ok(()) => attempt.ok.insert(from),
            Err(conflict) => {
                attempt.abort.insert(from);
                attempt.conflict = Some(conflict);
                self.counters[crate::ABORTS + conflict.reason as usize] += 1;
            }
        }
        if S::LEADERLESS {
            self.evaluate(now, id, effects);
        } else {
            self.lost(now, id.version, effects);
        }
    }

    fn evaluate(&mut self, now: Now, id: Timestamp, effects: &mut impl Effects<Self>) {
        let quorums = self.group().quorums;
        let Some(attempt) = self.attempts.get_mut(&id.version) else { return };
        if attempt.proposal.is_some() {
            return;
        }
        let (ok, abort) = (attempt.ok.len(), attempt.abort.len());
        if ok >= quorums.fast {
            return self.decide(now, id, true, COMMITS_FAST, effects);
        }
        if abort >= quorums.fast || quorums.abort_is_final(abort) {
            return self.decide(now, id, false, COMMITS_FAST, effects);
        }
        let out = quorums.live - ok - abort;
        if ok.max(abort) + out >= quorums.fast {
            return;
        }
        // No fast quorum is possible any more: the slow path, with what a majority may want.
        let proposal = match (ok >= quorums.majority, ok + out < quorums.majority) {
            (true, _) => true,
            (false, true) => false,
            (false, false) => return,
        };
        attempt.proposal = Some(proposal);
        attempt.accepted = NodeSet::only(self.config.node);
        self.common.accept(id, proposal);
        let kind = Kind::Accept { id, view: 0, ok: proposal, participants: 1, body: None };
        effects.broadcast(self.others(), &Self::message(kind));
    }

    pub(crate) fn on_accept(
        &mut self,
        from: NodeId,
        id: Timestamp,
        ok: bool,
        effects: &mut impl Effects<Self>,
    ) {
        self.common.accept(id, ok);
        effects.send(from, &Self::message(Kind::Accepted { id, view: 0 }));
    }

    pub(crate) fn on_accepted(
        &mut self,
        now: Now,
        from: NodeId,
        id: Timestamp,
        effects: &mut impl Effects<Self>,
    ) {
        let majority = self.group().quorums.majority;
        let Some(attempt) = self.attempts.get_mut(&id.version) else {
            return effects.ignored("baselines: ACCEPTED of a finished attempt");
        };
        attempt.accepted.insert(from);
        if let Some(commit) = attempt.proposal
            && attempt.accepted.len() >= majority
        {
            self.decide(now, id, commit, COMMITS_SLOW, effects);
        }
    }

    fn decide(
        &mut self,
        now: Now,
        id: Timestamp,
        commit: bool,
        counter: usize,
        effects: &mut impl Effects<Self>,
    ) {
        self.end(id, commit);
        let others = self.others();
        if !others.is_empty() {
            effects.broadcast(others, &Self::message(Kind::Decided { id, commit, body: None }));
        }
        if commit {
            self.committed(id.version, counter, effects);
        } else {
            self.lost(now, id.version, effects);
        }
    }

    /// Ends a transaction at this replica. Links lose and reorder nothing, so it was seen before.
    pub(crate) fn end(&mut self, id: Timestamp, commit: bool) {
        let Some(tentative) = self.common.remove(id) else { return };
        let body = Body::trusted(&tentative.body);
        if commit {
            occ::apply(&mut self.table, id, body);
        } else if tentative.registered {
            occ::release(&mut self.table, id, body);
        }
        debug_assert_ne!(tentative.accepted, Some(!commit), "{id:?} ended against its proposal");
        self.recycle(tentative.body);
    }
}
