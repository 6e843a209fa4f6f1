//! Calls of sessions: each takes effect once, however often and wherever it is tried.
//!
//! A call has a *home*: of the keys that it names that with the smallest hash, which is the same at
//! each try. Only the owner of the home key attempts the call, and looks for a record of it first.
//! Owners follow each other when all that the one before has begun with the key is committed, or is
//! replayed if that one has died. So a node that may attempt a call finds every attempt that was made
//! before: under way in its own pipeline, or with the group of the home key.
//!
//! The record is a part of the transaction: its R-INV carries call and answer, and goes to the group of
//! the home key, too, even if nothing of that key is written, or nothing at all. A follower notes an
//! attempt when it applies the transaction, and keeps the record from the step on in which it knows the
//! transaction to be committed. Records are copied with their shard (`join.rs`): those of attempts that
//! are under way come with their transactions. A node that leaves the group forgets its records.
//!
//! An owner outside the group asks a member of it. The answer holds for as long as the key does not
//! move: the round in which this node has got it says that.
//!
//! A call that is refused leaves no record: its attempt, which is one step, was not made. A call that
//! only reads leaves none either: to run it twice changes nothing, and the second answer is as good as
//! the first.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::Reverse;

use quorate_machine::{
    Backoff, CallError, Command, Completion, Effects, LaneShared, Outcome, Refusal, Table, mutant,
};
use quorate_rifl::{Call, Found, Kept, LeaseEnd, LeaseId, Lost, Permit, Sessions};
use quorate_types::placement::shard_of;
use quorate_types::{Instant, MemberNumber, NodeId, Now, Tag, Timestamp, hash_key, limits};
use quorate_wire::Malformed;

use crate::Request;
use crate::called::{Answered, CallMessage, CallsCursor, Known, Parts};
use crate::commit::Answer;
use crate::layout::Shards;
use crate::message::Message;
use crate::meta::Meta;
use crate::state::{Key, Zeus};

/// An attempt that is under way: its coordinator, and the slot of that one's pipeline.
pub type Attempt = (MemberNumber, u64);

/// What became of the calls whose home keys are of one lane and one shard.
pub type ResultTracker = quorate_rifl::ResultTracker<Attempt>;

/// A call's name.
type Name = (LeaseId, u64);

/// A transaction that is a call.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Called {
    pub(crate) permit: Permit,
    pub(crate) home: Key,
}

/// The calls that a lane knows.
#[derive(Clone, Hash, Debug, Default)]
pub(crate) struct Calls {
    /// By shard, of those that this node keeps.
    trackers: BTreeMap<u8, ResultTracker>,
    /// This node's attempts that are under way: the slot, and the home key.
    own: BTreeMap<Name, (u64, Key)>,
    /// What is asked of groups that this node is not in, for transactions.
    questions: BTreeMap<u64, Question>,
    /// Questions so far.
    asked: u64,
}

/// What the owner of a home key asks a member of its group.
#[derive(Clone, Hash, Debug)]
struct Question {
    request: u64,
    permit: Permit,
    home: Key,
    /// The round in which this node has got the home key.
    round: Timestamp,
    /// The answer, if there is no record: for how many bytes of answers the session has room.
    room: Option<u64>,
    tries: usize,
    wait: Backoff,
}

/// What is to be done with a transaction whose keys are here.
pub(crate) enum Look {
    /// It is no call, or one that was never attempted: it runs.
    New,
    /// It was answered.
    Ended,
    /// It waits for a member of the home key's group, or for an attempt under way.
    Waits,
}

const fn name(call: &Call) -> Name {
    (call.lease, call.sequence)
}

/// The key beside which a call's record lies: the same for every command that names the same keys.
pub(crate) fn home_key(command: &impl Command) -> Key {
    let mut home: Option<(u64, Key)> = None;
    command.visit_keys(&mut |key| {
        let hash = hash_key(key);
        if home.as_ref().is_none_or(|known| (hash, key) < (known.0, &*known.1)) {
            home = Some((hash, key.into()));
        }
    });
    // A script may find all its keys on the way. Its home is the same wherever it is called.
    home.map(|(_, key)| key).unwrap_or_default()
}

fn shard_number(key: &[u8]) -> u8 {
    u8::try_from(shard_of(key)).expect("there are 256 shards")
}

impl Calls {
    pub(crate) fn next_deadline(&self) -> Instant {
        let open = self.questions.values().filter(|question| question.room.is_none());
        open.map(|question| question.wait.deadline()).min().unwrap_or(Instant::NEVER)
    }

    /// Sessions that have records, or had; one with calls in several shards counts for each.
    pub(crate) fn sessions(&self) -> u64 {
        self.trackers.values().map(|tracker| tracker.len() as u64).sum()
    }

    /// A transaction has ended, or runs.
    pub(crate) fn forget_question(&mut self, id: u64) {
        self.questions.remove(&id);
    }

    /// What is known of each shard's calls.
    pub(crate) fn trackers(&self) -> impl Iterator<Item = (u8, &ResultTracker)> {
        self.trackers.iter().map(|(shard, tracker)| (*shard, tracker))
    }

    /// Takes in calls that the log of an earlier process has.
    pub(crate) fn restore(&mut self, shard: u8, sessions: &[u8]) -> Result<(), Malformed> {
        self.trackers.entry(shard).or_default().merge(sessions)
    }

    /// Takes in a committed transaction of the log that may be a call.
    pub(crate) fn restore_call(&mut self, bytes: &[u8]) {
        if let Some(Answered { shard, call, date, answer }) = Answered::trusted(bytes)
            && !mutant!("zeus_call_not_restored")
        {
            let attempt = (MemberNumber(0), 0);
            self.trackers.entry(shard).or_default().complete(&call, attempt, date, answer);
        }
    }

    /// Takes over calls of a donor; whether they are of these shards and undamaged.
    pub(crate) fn merge(&mut self, shards: &Shards, parts: Parts<'_>) -> bool {
        parts.iter().all(|(shard, sessions)| {
            shards.contains(usize::from(shard))
                && self.trackers.entry(shard).or_default().merge(sessions).is_ok()
        })
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Sessions for Zeus<T, X> {
    fn call(
        &mut self,
        now: Now,
        tag: Tag,
        permit: Permit,
        request: Request<X>,
        effects: &mut impl Effects<Self>,
    ) {
        let Request { origin, command } = request;
        if !command.updates() {
            return self.submit(now, tag, origin, command, effects);
        }
        if let Err(why) = permit.call.check() {
            return effects.complete(tag, Outcome::Refused(Refusal::CallError(why)));
        }
        self.enqueue(now, tag, origin, Some(permit), command, effects);
        self.settle_changes(now, effects);
    }

    /// Attempts have no dates of their own here.
    fn date(&self, _now: Now) -> u64 {
        0
    }

    fn leases_after(&self, after: Option<LeaseId>, max: usize) -> Vec<LeaseId> {
        let mut each: Vec<_> =
            self.calls.trackers.values().map(|tracker| tracker.leases_after(after)).collect();
        let firsts = each.iter_mut().enumerate();
        let mut next: BinaryHeap<Reverse<(LeaseId, usize)>> =
            firsts.filter_map(|(at, leases)| Some(Reverse((leases.next()?, at)))).collect();
        let mut leases = Vec::new();
        while let Some(Reverse((lease, at))) = next.pop() {
            if leases.last() != Some(&lease) {
                if leases.len() == max {
                    break;
                }
                leases.push(lease);
            }
            next.extend(each[at].next().map(|lease| Reverse((lease, at))));
        }
        leases
    }

    fn each_record(&self, visit: &mut impl FnMut(usize, LeaseId, u64, Kept<'_>)) {
        for (shard, tracker) in self.calls.trackers() {
            let shard = usize::from(shard);
            tracker.each_record(&mut |lease, number, kept| visit(shard, lease, number, kept));
        }
        let applied = self.streams.values().flat_map(|stream| stream.applied.values());
        for call in applied.filter_map(|applied| Answered::trusted(&applied.call)) {
            let shard = usize::from(call.shard);
            visit(shard, call.call.lease, call.call.sequence, Kept::Undecided);
        }
    }

    fn end_session(&mut self, verdict: &LeaseEnd) {
        for tracker in self.calls.trackers.values_mut() {
            // A session that is busy is asked about again.
            match verdict.lost {
                Lost::Expired => tracker.discard(verdict.lease, verdict.granted),
                Lost::Closed => tracker.close(verdict.lease),
            };
        }
    }
}

impl<T: Table<Meta = Meta> + LaneShared, X: Command<Owned = X>> Zeus<T, X> {
    // --- the coordinator -------------------------------------------------------------------------

    /// Looks for a record of a transaction that is a call, now that all its keys are here.
    pub(crate) fn look_up_call(
        &mut self,
        now: Now,
        id: u64,
        effects: &mut impl Effects<Self>,
    ) -> Look {
        let Some((client, called)) = self.transactions.call_of(id) else { return Look::New };
        let Called { permit, home } = called.clone();
        if mutant!("zeus_call_not_looked_up") {
            return Look::New;
        }
        let own = self.calls.own.get(&name(&permit.call));
        if let Some((slot, _)) = own.filter(|(_, of)| *of == home) {
            let slot = *slot;
            let kept = self.pipeline.call_of(slot).expect("it is under way");
            if kept.call.digest != permit.call.digest {
                // Whether that one has taken effect is known when it is committed.
                return Look::Waits;
            }
            effects.probe("zeus: a call is answered by an attempt under way");
            let Some(reply) = X::decode_reply(kept.answer) else {
                return self.end_call(id, Outcome::Unknown, effects);
            };
            if mutant!("zeus_call_answered_early") {
                return self.end_call(id, Outcome::Done(reply), effects);
            }
            self.pipeline.answer_after(slot, Answer { client, reply, at: None });
            self.forget(id);
            return Look::Ended;
        }
        let shard = shard_number(&home);
        if !self.layout.has_all(usize::from(shard)) {
            return self.ask_group(now, id, permit, home, effects);
        }
        match self.known_call(shard, &permit.call, permit.date) {
            Known::New { .. } if self.is_covered(&permit) => Look::New,
            Known::New { .. } => {
                self.refuse(id, Refusal::LeaseNeeded, effects);
                Look::Ended
            }
            Known::Answered(answer) => {
                let outcome = X::decode_reply(answer).map_or(Outcome::Unknown, Outcome::Done);
                self.end_call(id, outcome, effects)
            }
            Known::Refused(why) => {
                self.refuse(id, why, effects);
                Look::Ended
            }
        }
    }

    fn is_covered(&self, permit: &Permit) -> bool {
        self.layout.covers(permit) || mutant!("zeus_call_not_covered")
    }

    /// Answers a call that has taken effect before.
    fn end_call(
        &mut self,
        id: u64,
        outcome: Outcome<X::Reply>,
        effects: &mut impl Effects<Self>,
    ) -> Look {
        effects.probe("zeus: a call is answered from its record");
        if let Some((client, _)) = self.transactions.call_of(id) {
            self.answer(client, Completion::new(outcome), effects);
        }
        self.forget(id);
        Look::Ended
    }

    /// A call, of the transaction of this number, with its answer; the home key is named with it.
    pub(crate) fn answered_call(
        &self,
        id: u64,
        called: &Called,
        reply: &X::Reply,
    ) -> Result<(Key, Vec<u8>), Refusal> {
        let Called { permit, home } = called;
        let mut answer = Vec::new();
        X::encode_reply(reply, &mut answer);
        let (shard, call, date) = (shard_number(home), permit.call, permit.date);
        let room = match self.calls.questions.get(&id) {
            Some(question) => question.room.unwrap_or_default(),
            None => self.room(shard, call.lease),
        };
        if !ResultTracker::fits(usize::try_from(room).unwrap_or(usize::MAX), answer.len()) {
            return Err(Refusal::SessionFull);
        }
        let answered = Answered { shard, call, date, answer: &answer };
        Ok((home.clone(), Answered::write(Some(answered))))
    }

    fn room(&self, shard: u8, lease: LeaseId) -> u64 {
        let tracker = self.calls.trackers.get(&shard);
        tracker.map_or(limits::SESSION_ANSWER_BYTES_MAX, |tracker| tracker.room(lease)) as u64
    }

    /// An attempt of this node has run.
    pub(crate) fn begin_own_call(&mut self, slot: u64, home: Key, bytes: &[u8]) {
        let Some(answered) = Answered::trusted(bytes) else { return };
        let name = name(&answered.call);
        self.calls.own.insert(name, (slot, home));
        // What a member of the group has said of the call is no longer so.
        let others = |question: &Question| {
            (question.permit.call.lease, question.permit.call.sequence) != name
        };
        self.calls.questions.retain(|_, question| others(question));
        self.begin_call((self.layout.number, slot), bytes);
    }

    // --- questions -------------------------------------------------------------------------------

    /// Asks a member of the group of a home key that is here, unless one has answered since it came.
    fn ask_group(
        &mut self,
        now: Now,
        id: u64,
        permit: Permit,
        home: Key,
        effects: &mut impl Effects<Self>,
    ) -> Look {
        let round = self.settled(&home).round;
        if let Some(question) = self.calls.questions.get(&id)
            && (question.round == round || mutant!("zeus_call_asked_about_once"))
        {
            return match question.room {
                Some(_) if self.is_covered(&permit) => Look::New,
                Some(_) => {
                    self.refuse(id, Refusal::LeaseNeeded, effects);
                    Look::Ended
                }
                None => Look::Waits,
            };
        }
        effects.probe("zeus: a call is asked about");
        self.calls.asked += 1;
        let (request, room, wait) = (self.calls.asked, None, self.wait(now));
        let question = Question { request, permit, home, round, room, tries: 0, wait };
        self.calls.questions.insert(id, question);
        self.send_question(id, effects);
        Look::Waits
    }

    fn send_question(&mut self, id: u64, effects: &mut impl Effects<Self>) {
        let Some(question) = self.calls.questions.get_mut(&id) else { return };
        let &mut Question { request, permit, tries, .. } = question;
        question.tries += 1;
        let shard = shard_number(&question.home);
        if let Some(node) = self.layout.member_with_all(usize::from(shard), tries) {
            let (call, date) = (permit.call, permit.date);
            let find = CallMessage::Find { request, shard, call, date };
            effects.send(node, &Message::Call(find));
        }
    }

    /// Puts the questions again that are due.
    pub(crate) fn repeat_questions(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let mut due = Vec::new();
        for (id, question) in &mut self.calls.questions {
            if question.room.is_none() && question.wait.deadline() <= now.monotonic {
                self.config.wait_longer(&mut question.wait, now);
                due.push(*id);
            }
        }
        for id in due {
            effects.probe("zeus: a call is asked about again");
            self.send_question(id, effects);
        }
    }

    /// Puts the questions again that are open: in a new epoch the group of the key may be another.
    pub(crate) fn renew_questions(&mut self, now: Now, effects: &mut impl Effects<Self>) {
        let wait = self.wait(now);
        // A node that has joined the group finds the call among its own records.
        let layout = &self.layout;
        let is_outside = |home: &Key| !layout.has_all(usize::from(shard_number(home)));
        self.calls.questions.retain(|_, question| {
            is_outside(&question.home) || mutant!("zeus_member_asks_its_group")
        });
        let open = self.calls.questions.iter_mut().filter(|(_, question)| question.room.is_none());
        let mut ids = Vec::new();
        for (id, question) in open {
            question.wait = wait.clone();
            ids.push(*id);
        }
        ids.into_iter().for_each(|id| self.send_question(id, effects));
    }

    pub(crate) fn on_call_message(
        &mut self,
        now: Now,
        from: NodeId,
        message: CallMessage<'_>,
        effects: &mut impl Effects<Self>,
    ) {
        match message {
            CallMessage::Find { request, shard, call, date } => {
                if !self.layout.has_all(usize::from(shard)) || self.layout.in_doubt {
                    return effects.ignored("zeus: FIND to a node that does not know");
                }
                let known = self.known_call(shard, &call, date);
                effects.send(from, &Message::Call(CallMessage::Found { request, known }));
            }
            CallMessage::Found { request, known } => self.on_found(request, known, effects),
            CallMessage::Read { request, from: cursor, shards } => {
                self.on_calls_read(from, request, cursor, &shards, effects);
            }
            CallMessage::Copy { request, next, parts } => {
                self.on_calls(now, from, request, next, parts, effects);
            }
        }
    }

    /// A member of the group of a home key has answered.
    fn on_found(&mut self, request: u64, known: Known<'_>, effects: &mut impl Effects<Self>) {
        let mut questions = self.calls.questions.iter();
        let found = questions.find(|(_, question)| question.request == request);
        let Some((id, question)) = found.filter(|(_, question)| question.room.is_none()) else {
            return effects.ignored("zeus: FOUND of a call that is not asked about any more");
        };
        let (id, home, round) = (*id, question.home.clone(), question.round);
        // Had the key been elsewhere since, an attempt there might be found, or missed.
        let is_here = self.is_owner(&home) && self.settled(&home).round == round;
        if !is_here && !mutant!("zeus_found_believed") {
            effects.probe("zeus: a home key has moved while its group was asked");
            self.calls.questions.remove(&id);
            self.changed.insert(home);
            return;
        }
        match known {
            Known::New { room } => {
                let question = self.calls.questions.get_mut(&id).expect("it was found");
                question.room = Some(room);
                self.changed.insert(home);
            }
            Known::Answered(answer) => {
                let outcome = X::decode_reply(answer).map_or(Outcome::Unknown, Outcome::Done);
                self.end_call(id, outcome, effects);
            }
            Known::Refused(why) => self.refuse(id, why, effects),
        }
    }

    // --- the group -------------------------------------------------------------------------------

    /// What this node knows of a call, as a member of the group of its home key and for the key's owner.
    /// To that one each attempt that was applied here is committed: its coordinator has let go of the key
    /// since, or was replayed.
    fn known_call(&self, shard: u8, call: &Call, date: u64) -> Known<'_> {
        let room = self.room(shard, call.lease);
        let Some(tracker) = self.calls.trackers.get(&shard) else { return Known::New { room } };
        match tracker.find(call) {
            Ok(Found::Completed(answer)) => Known::Answered(answer),
            Ok(Found::InProgress(attempt)) if !mutant!("zeus_call_known_when_committed") => {
                let kept = self.kept_call(attempt).expect("it is under way");
                match kept.call.digest == call.digest {
                    true => Known::Answered(kept.answer),
                    false => Known::Refused(Refusal::CallError(CallError::Different)),
                }
            }
            Ok(Found::New | Found::InProgress(_)) => {
                let admitted = tracker.admits(call.lease, date).is_ok();
                match admitted || mutant!("zeus_forgotten_session_admitted") {
                    true => Known::New { room },
                    false => Known::Refused(Refusal::LeaseNeeded),
                }
            }
            Err(why) => Known::Refused(Refusal::CallError(why)),
        }
    }

    fn kept_call(&self, (coordinator, slot): Attempt) -> Option<Answered<'_>> {
        if coordinator == self.layout.number {
            return self.pipeline.call_of(slot);
        }
        Answered::trusted(&self.streams.get(&coordinator)?.applied.get(slot)?.call)
    }

    /// An attempt at a call is applied here. The same client may use a number for two commands at once.
    pub(crate) fn begin_call(&mut self, attempt: Attempt, bytes: &[u8]) {
        let Some(Answered { shard, call, answer, .. }) = Answered::trusted(bytes) else { return };
        if !self.layout.keeps(usize::from(shard)) {
            return;
        }
        let tracker = self.calls.trackers.entry(shard).or_default();
        if tracker.find(&call) == Ok(Found::New) {
            tracker.begin(&call, attempt, answer.len());
        }
    }

    /// A transaction that may be a call is known to be committed.
    pub(crate) fn complete_call(&mut self, attempt: Attempt, bytes: &[u8]) {
        let Some(Answered { shard, call, date, answer }) = Answered::trusted(bytes) else { return };
        let name = name(&call);
        if attempt.0 == self.layout.number {
            self.calls.own.remove(&name);
        }
        if self.layout.keeps(usize::from(shard)) {
            let tracker = self.calls.trackers.entry(shard).or_default();
            tracker.complete(&call, attempt, date, answer);
        }
    }

    // --- copies ----------------------------------------------------------------------------------

    /// Forgets the calls of shards that this node has left, or has not followed, in a new view. What is
    /// applied of those that it keeps is noted again.
    pub(crate) fn place_calls(&mut self, stays: &Shards, lacking: &Shards) {
        let stays = |shard: u8| {
            stays.contains(usize::from(shard)) || mutant!("zeus_calls_kept_by_a_leaver")
        };
        self.calls.trackers.retain(|shard, _| stays(*shard));
        for shard in lacking.iter() {
            let shard = u8::try_from(shard).expect("there are 256 shards");
            self.calls.trackers.entry(shard).or_default().begin_copy();
        }
        for (shard, tracker) in &mut self.calls.trackers {
            if !lacking.contains(usize::from(*shard)) {
                tracker.end_copy();
            }
        }
        let own = self.pipeline.calls().map(|(slot, call)| ((self.layout.number, slot), call));
        let applied = self.streams.iter().flat_map(|(from, stream)| {
            stream.applied.iter().map(|(slot, applied)| ((*from, slot), &applied.call[..]))
        });
        let calls = own.chain(applied).filter(|(_, call)| !call.is_empty());
        let calls: Vec<(Attempt, Vec<u8>)> = calls.map(|(of, call)| (of, call.to_vec())).collect();
        for (attempt, call) in calls {
            self.begin_call(attempt, &call);
        }
    }

    /// All calls of these shards are here.
    pub(crate) fn end_copy_of_calls(&mut self, shards: &Shards) {
        for (shard, tracker) in &mut self.calls.trackers {
            if shards.contains(usize::from(*shard)) {
                tracker.end_copy();
            }
        }
    }

    /// A replica asks for the calls of some shards. It is a follower of all attempts that are under way
    /// in this epoch. Of one that was committed before and not heard of since, nobody would tell it.
    fn on_calls_read(
        &mut self,
        from: NodeId,
        request: u64,
        cursor: CallsCursor,
        shards: &Shards,
        effects: &mut impl Effects<Self>,
    ) {
        if !shards.iter().all(|shard| self.layout.gives_to(from, shard)) {
            return effects.ignored("zeus: a copy of what is not complete");
        }
        let epoch = self.layout.epoch;
        let mut applied = self.streams.values().flat_map(|stream| stream.applied.values());
        let is_unheard = applied.any(|applied| {
            let is_asked = |call: Answered<'_>| shards.contains(usize::from(call.shard));
            applied.heard != epoch
                && applied.replay.is_none()
                && Answered::trusted(&applied.call).is_some_and(is_asked)
        });
        if is_unheard && !mutant!("zeus_calls_copied_unheard") {
            return effects.ignored("zeus: a copy of calls that may be committed");
        }
        let (mut parts, mut next) = (Vec::new(), None);
        for (&shard, tracker) in self.calls.trackers.range(cursor.shard..) {
            if !shards.contains(usize::from(shard)) || *tracker == ResultTracker::default() {
                continue;
            }
            if parts.len() >= limits::CHUNK_BYTES {
                next = Some(CallsCursor::begin(shard));
                break;
            }
            let start = if shard == cursor.shard { cursor.record } else { (LeaseId(0), 0) };
            let mut sessions = Vec::new();
            let room = limits::CHUNK_BYTES - parts.len();
            let rest = tracker.encode_from(start, room, &mut sessions);
            Parts::push(&mut parts, shard, &sessions);
            if let Some(record) = rest {
                next = Some(CallsCursor { shard, record });
                break;
            }
        }
        let parts = Parts::check(&parts).expect("just written");
        effects.send(from, &Message::Call(CallMessage::Copy { request, next, parts }));
    }

    // --- for checks ------------------------------------------------------------------------------

    /// What this node knows of the calls whose home keys are of a shard, if it knows any.
    pub fn tracker(&self, shard: u8) -> Option<&ResultTracker> {
        self.calls.trackers.get(&shard)
    }
}
