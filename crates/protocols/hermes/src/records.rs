//! Records of calls after the loss of all power.
//!
//! A version brings the call that it is of, but not those of versions before it. So a replica that has lost
//! the end of its log may be told of a key's newest version and lack the record of a call that the key has
//! seen, and a try at that call would take effect again. A replica in doubt (`tombstones.rs`) asks every other
//! active one for all its records, and attempts no call that it knows nothing of before it has them. It asks
//! them once more when a version takes the place of one that came back with a call: the newer one may be built
//! on that, or on another version that its log has lost ([`Hermes::cover`]).

use alloc::collections::BTreeMap;

use quorate_machine::{Backoff, Command, Effects, Table, mutant};
use quorate_types::{Instant, NodeId, NodeSet, Now};
use quorate_wire::Malformed;

use crate::join::PATIENCE_DOUBLINGS_MAX;
use crate::message::{Chunk, Cursor, Message};
use crate::{Hermes, Meta};

/// Records that are being gathered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Gathering {
    /// Names the questions.
    request: u64,
    /// Who has told all.
    heard: NodeSet,
    /// Where the others go on.
    cursors: BTreeMap<NodeId, Cursor>,
    patience: Backoff,
    /// Since some of them were asked there is something else that they may know.
    stale: bool,
}

impl Gathering {
    /// What a replica is asked next.
    fn question(&self, node: NodeId) -> Message<'static> {
        let cursor = self.cursors.get(&node).copied().unwrap_or(Cursor::SESSIONS);
        Message::ChunkRead { request: self.request, cursor }
    }
}

impl<T: Table<Meta = Meta>, O: Command<Owned = O>> Hermes<T, O> {
    /// Others may have records of calls that this replica lacks.
    pub(crate) fn doubt_records(&mut self) {
        if mutant!("hermes_lost_records_not_gathered") {
            return;
        }
        if let Some(gathering) = &mut self.gathering {
            gathering.stale = true;
            return;
        }
        let request = self.rng.next_u64();
        let (heard, cursors) = (NodeSet::EMPTY, BTreeMap::new());
        let patience = Backoff::default();
        self.gathering = Some(Gathering { request, heard, cursors, patience, stale: false });
    }

    /// Whether a call of which there is no record may have taken effect.
    pub(crate) fn lacks_records(&self) -> bool {
        self.gathering.is_some()
    }

    pub(crate) fn gathering_deadline(&self) -> Instant {
        self.gathering.as_ref().map_or(Instant::NEVER, |gathering| gathering.patience.deadline())
    }

    /// Asks those that have not told all, once this replica serves: in each view, and when no answer came.
    pub(crate) fn gather_records(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let Some(gathering) = &mut self.gathering else { return };
        let me = self.config.node;
        if !self.active.contains(me) {
            gathering.patience = Backoff::AT_REST;
            return;
        }
        let missing = self.active.without(me).difference(gathering.heard);
        if missing.is_empty() {
            effects.probe("hermes: records of calls are gathered");
            if self.gathering.take().is_some_and(|gathered| gathered.stale) {
                self.doubt_records();
            }
            return;
        }
        for node in missing {
            effects.send(node, &gathering.question(node));
        }
        gathering.patience.begin(now, self.config.message_loss_timeout * 2);
    }

    /// Some have not answered in time: they may be dead, and members until the next view.
    pub(crate) fn on_gathering_timeout(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let patience = self.gathering.as_mut().map(|gathering| &mut gathering.patience);
        if let Some(patience) = patience.filter(|patience| patience.deadline() > Instant::ZERO) {
            patience.grow(PATIENCE_DOUBLINGS_MAX);
        }
        self.gather_records(now, effects);
    }

    /// Takes a chunk if it answers a question for records; whether it does.
    pub(crate) fn take_records(
        &mut self,
        now: Now,
        from: NodeId,
        chunk: &Chunk<'_>,
        effects: &mut impl Effects<Self>,
    ) -> Result<bool, Malformed> {
        let is_asked = |gathering: &Gathering| gathering.request == chunk.request;
        if !self.gathering.as_ref().is_some_and(is_asked) {
            return Ok(false);
        }
        if !chunk.sessions.is_empty() {
            self.tracker.merge(chunk.sessions)?;
            self.append_sessions(chunk.sessions, effects);
        }
        let Some(gathering) = &mut self.gathering else { return Ok(true) };
        gathering.patience.ease(now);
        if let Some(next) = chunk.next {
            gathering.cursors.insert(from, next);
            effects.send(from, &gathering.question(from));
        } else {
            gathering.heard.insert(from);
        }
        let heard = gathering.heard;
        if self.active.without(self.config.node).is_subset(heard) {
            self.gather_records(now, effects);
        }
        Ok(true)
    }
}
