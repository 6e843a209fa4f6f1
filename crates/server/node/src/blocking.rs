//! Commands that wait until their keys hold something: a *try* and a *wait*.
//!
//! The try is the command as an ordinary op of its engine, which takes what there is or answers null.
//! Like every update it is decided before it is answered, so an element goes to one client, on every
//! engine, wherever the clients are. While tries find nothing the command waits here, and is tried
//! again once a key that it waits for has changed on this node's replica
//! ([`quorate_storage::Store::watch`]).
//!
//! Who waits for the same thing on a key stands in one line, over all lanes of the node, and only the
//! first is tried. Who leaves a line as its first, served or not, passes the turn on. So a push of *n*
//! elements serves the first *n* in their order, each by a try of its own, and wakes one of any number
//! that wait. `XREAD` takes nothing, so everybody in its line is tried. Nodes keep no common line: which
//! node's client is next, the engine decides.
//!
//! ```text
//! block ─► in line ─ first of it ─► ready ─► try ─┬─ something, or an error ──────► answered
//!             ▲                       ▲           └─ nothing ─┐
//!             │      key changed, turn passed on, new view ───┴── not asked again: waits
//! ```
//! Pitfalls, each with a mutant:
//! - The key is watched *before* the first try, or what is pushed in between wakes nobody. For the same
//!   reason a change during a try makes it be tried again.
//! - The answer "nothing" when the time is over, waits for a try under way: what that takes would be
//!   lost.
//! - That answer rests on a last try of all keys, which begins when the time is over. The tries before may
//!   have been refused, be older than a change that was not looked at yet, or have been those of another
//!   command before it in line; and each rests on a lease of its own moment. If the last one is refused,
//!   that is the answer.
//! - Who leaves passes the turn on even if it was never served.
//! - Where a stream ends, for which `$` stands, is asked once, before the first try. A try that asked
//!   again would not find what came before it.
//!
//! What was taken for a client whose connection breaks before it has read the answer is gone, as with
//! any pop; where the try's own end is unknown, so is the command's.
//!
//! A node without a replica of a key hears of no change of it by itself. Others tell it (`far.rs`). Besides,
//! it asks again and again: after 10 ms, later after up to 80, or after up to 1.28 s once all others know
//! what is waited for. A node that has not served for `op_timeout` answers all that wait.

mod lines;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_commands::{Line, Op, OwnedCall, Reply, Wait};
use quorate_machine::{Outcome, Refusal, Slab, Slot, mutant};
use quorate_types::{Duration, Instant, KeyspaceId, Now, Tag};

pub(crate) use self::lines::Lines;
use crate::blocking::lines::Place;
use crate::lane::Internal;
use crate::{Done, Lane, Mail, Outbox, Shared};

/// After how long a key is tried again whose changes aren't heard of here, or a try that was refused.
const POLL_FIRST: Duration = Duration::from_millis(10);
/// How often that doubles.
const POLL_DOUBLINGS_MAX: u32 = 3;
/// How often it does if others tell of changes.
const TOLD_DOUBLINGS_MAX: u32 = 7;
/// How often it is looked whether the node still serves, while anything waits.
const SERVES_POLL: Duration = Duration::from_millis(100);
/// Tries that begin in one turn at most; the others follow in the next.
const TRIES_PER_TURN: usize = 256;

/// A command that waits for what its keys will hold.
#[derive(Clone, Debug)]
pub struct BlockingCall {
    /// The keyspace.
    pub keyspace: KeyspaceId,
    /// As of any op.
    pub origin: u64,
    /// The command; [`quorate_commands::Call::waits`] says that it waits.
    pub call: OwnedCall,
    /// For what.
    pub line: Line,
    /// Until when; then [`Wait::NOTHING`] is its answer.
    pub until: Instant,
}

/// A command that waits on this lane.
#[derive(Debug)]
struct Waiter {
    tag: Tag,
    call: BlockingCall,
    /// The keys that it waits for, each once.
    keys: Vec<Box<[u8]>>,
    /// Whether it moves what it takes to another key.
    moves: bool,
    /// Where it stands in every line.
    number: u64,
    /// The keys whose changes aren't heard of here, by their places in `keys`.
    unheard: BTreeSet<u32>,
    /// The keys in whose lines it is the first.
    first_of: BTreeSet<u32>,
    /// The keys that it is to be tried on.
    due: BTreeSet<u32>,
    /// It is on its first way through its keys, on which a key of another type is an error.
    arriving: bool,
    /// A try is under way.
    trying: bool,
    /// It stands among those that are ready.
    ready: bool,
    /// Whether the other nodes are told that it waits for what has no copy here.
    is_told: bool,
    /// Its answer, if the try under way finds nothing. Before it says that there is nothing, a last try of
    /// all keys begins.
    ends: Option<Reply<'static>>,
    /// The try under way belongs to the last one.
    tries_last: bool,
    /// The last try takes key after key: all at once met another type at one of them.
    singly: bool,
    /// An earlier part of the last try rests on the lease.
    lease_bound: bool,
    /// When it is tried again without having been told of a change.
    poll_at: Instant,
    doublings: u32,
    /// When it stands among the deadlines.
    wakes_at: Instant,
}

impl Waiter {
    /// Whether its time has run out, and it is to be tried on all its keys for the last time.
    fn is_over(&self) -> bool {
        self.ends.as_ref().is_some_and(Wait::is_nothing) && !mutant!("node_nothing_without_a_look")
    }

    /// Every key is to be tried.
    fn look_at_all(&mut self) {
        self.due = (0..).zip(&self.keys).map(|(at, _)| at).collect();
    }

    /// The answer, if it waits for a group and a later try says that the group or its stream is gone.
    fn lost_group(
        &self,
        keys: &BTreeSet<u32>,
        outcome: &Outcome<Reply<'static>>,
        shared: &Shared,
    ) -> Option<Reply<'static>> {
        let Outcome::Done(answer) = outcome else { return None };
        if self.arriving {
            return None;
        }
        let at = *keys.first()?;
        let store = shared.store(self.call.keyspace)?;
        let heard = !self.unheard.contains(&at);
        let gone = heard.then(|| store.kind_of(&self.keys[at as usize]).is_none());
        self.call.line.group_lost(answer, gone)
    }
}

/// Whether an op is refused for the moment, and has not happened.
fn did_not_happen(outcome: &Outcome<Reply<'static>>) -> bool {
    matches!(outcome, Outcome::Refused(Refusal::Busy | Refusal::Conflict | Refusal::TimedOut))
}

/// The commands that wait on one lane.
#[derive(Debug, Default)]
pub(crate) struct Blocking {
    waiters: Slab<Waiter>,
    by_tag: BTreeMap<Tag, Slot>,
    deadlines: BTreeSet<(Instant, Slot)>,
    /// Those that are to be tried.
    ready: VecDeque<Slot>,
    /// Those that are to be tried later, whatever is heard.
    to_poll: Vec<Slot>,
    /// How many wait for each key without a copy here, by its name among nodes.
    pub(crate) far: BTreeMap<Box<[u8]>, u32>,
    /// A new view is in force: everybody is to be tried again once the node serves.
    all_again: bool,
    /// Since when the node was seen not to serve.
    down_since: Option<Instant>,
    serves_poll_at: Option<Instant>,
}

impl Blocking {
    pub(crate) fn next_deadline(&self) -> Instant {
        if !self.ready.is_empty() || !self.to_poll.is_empty() {
            return Instant::ZERO;
        }
        let first = self.deadlines.first().map_or(Instant::NEVER, |(at, _)| *at);
        first.min(self.serves_poll_at.unwrap_or(Instant::NEVER))
    }

    /// A view is in force: changes may have been missed while it was agreed on.
    pub(crate) fn view_installed(&mut self) {
        self.all_again = true;
    }

    /// A waiter is to be tried if a key is due.
    fn make_ready(&mut self, slot: Slot) {
        let Some(waiter) = self.waiters.get_mut(slot) else { return };
        if !waiter.trying && !waiter.ready && !waiter.due.is_empty() {
            waiter.ready = true;
            self.ready.push_back(slot);
        }
    }

    /// It is this waiter's turn on a key.
    pub(crate) fn wake(&mut self, slot: Slot, key: u32) {
        if let Some(waiter) = self.waiters.get_mut(slot) {
            waiter.first_of.insert(key);
            // What changes after its last try is for who comes next.
            let lost = waiter.trying && mutant!("node_change_during_try_lost");
            if waiter.is_over() || lost {
                return;
            }
            waiter.due.insert(key);
            self.make_ready(slot);
        }
    }

    /// Keeps the deadline of a waiter.
    fn schedule(&mut self, slot: Slot) {
        let Some(waiter) = self.waiters.get_mut(slot) else { return };
        let at = waiter.call.until.min(waiter.poll_at);
        if at != waiter.wakes_at {
            self.deadlines.remove(&(waiter.wakes_at, slot));
            waiter.wakes_at = at;
            if at != Instant::NEVER {
                self.deadlines.insert((at, slot));
            }
        }
    }

    /// The first deadline that has come, and whose.
    fn pop_due(&mut self, now: Now) -> Option<(Instant, Slot)> {
        let due = self.deadlines.first().copied().filter(|(at, _)| *at <= now.monotonic)?;
        self.deadlines.remove(&due);
        if let Some(waiter) = self.waiters.get_mut(due.1) {
            waiter.wakes_at = Instant::NEVER;
        }
        Some(due)
    }

    /// Everybody who is the first of a line is to be tried there.
    fn make_all_ready(&mut self) {
        for slot in self.by_tag.values().copied().collect::<Vec<_>>() {
            if let Some(waiter) = self.waiters.get_mut(slot) {
                match waiter.is_over() {
                    true => waiter.look_at_all(),
                    false => waiter.due.extend(&waiter.first_of),
                }
                self.make_ready(slot);
            }
        }
    }

    fn poll_later(&mut self, now: Now, slot: Slot, doublings_max: u32) {
        let Some(waiter) = self.waiters.get_mut(slot) else { return };
        waiter.poll_at = now.monotonic + POLL_FIRST * (1 << waiter.doublings);
        waiter.doublings = (waiter.doublings + 1).min(doublings_max);
        self.schedule(slot);
    }
}

impl Lane {
    /// Submits a command that waits. As with [`Lane::submit`], its answer comes through
    /// [`Outbox::done`] of this lane. That an op would be refused for the moment ends no wait.
    pub fn block(&mut self, now: Now, tag: Tag, call: BlockingCall, out: &mut Outbox) {
        let slot = self.line_up(tag, call);
        self.blocking.by_tag.insert(tag, slot);
        self.blocking.schedule(slot);
        self.blocking.serves_poll_at.get_or_insert(now.monotonic + SERVES_POLL);
        self.start_try(now, slot, out);
    }

    /// Puts a command into the lines of its keys, which are watched from now on.
    fn line_up(&mut self, tag: Tag, call: BlockingCall) -> Slot {
        let mut known = BTreeSet::new();
        let awaited = call.call.call();
        let keys = awaited.awaited_keys().filter(|key| known.insert(*key));
        let keys: Vec<Box<[u8]>> = keys.map(Box::from).collect();
        let engine = self.engine(call.keyspace).expect("clients know the configured keyspaces");
        let unheard = (0..).zip(&keys).filter(|(_, key)| !engine.holds(key));
        let unheard = unheard.map(|(at, _)| at).collect();
        let moves = awaited.keys().count() > awaited.awaited_keys().count();
        let slot = self.blocking.waiters.insert(Waiter {
            tag,
            call,
            keys,
            moves,
            number: 0,
            unheard,
            first_of: BTreeSet::new(),
            due: BTreeSet::new(),
            arriving: true,
            trying: false,
            ready: false,
            is_told: false,
            ends: None,
            tries_last: false,
            singly: false,
            lease_bound: false,
            poll_at: Instant::NEVER,
            doublings: 0,
            wakes_at: Instant::NEVER,
        });
        let waiter = self.blocking.waiters.get_mut(slot).expect("it was just put there");
        let BlockingCall { keyspace, ref line, .. } = waiter.call;
        let (number, first) = self.shared.lines.join(keyspace, &waiter.keys, line, (self.id, slot));
        let store = self.shared.store(keyspace).expect("every configured keyspace has a store");
        waiter.keys.iter().for_each(|key| store.watch(key));
        // Where others wait there is nothing to take. But what is there may be of another type, and a
        // group may not be there: those before are perhaps about to hear of that.
        let foreign = |key: &[u8]| store.kind_of(key).is_some_and(|kind| !line.wants(kind));
        let of_group = matches!(line, Line::Group(_)) && !mutant!("node_group_taken_for_granted");
        let is_due = |at: u32, key: &[u8]| first.contains(&at) || foreign(key) || of_group;
        let due = (0..).zip(&waiter.keys).filter(|(at, key)| is_due(*at, key)).map(|(at, _)| at);
        waiter.due = due.collect();
        waiter.arriving = !waiter.due.is_empty();
        (waiter.number, waiter.first_of) = (number, first);
        slot
    }

    /// Ends the wait of the command with this tag: its answer is this one, unless a try that is under
    /// way finds something. That there is nothing it is told after one more try, which may find something,
    /// too. Does nothing if the command has its answer.
    pub fn unblock(&mut self, tag: Tag, answer: Reply<'static>, out: &mut Outbox) {
        if let Some(slot) = self.blocking.by_tag.get(&tag) {
            self.end_wait(*slot, answer, out);
        }
    }

    /// How many commands wait on this lane.
    pub fn blocked(&self) -> usize {
        self.blocking.by_tag.len()
    }

    fn end_wait(&mut self, slot: Slot, answer: Reply<'static>, out: &mut Outbox) {
        let Some(waiter) = self.blocking.waiters.get_mut(slot) else { return };
        let was_over = waiter.is_over();
        if !Wait::is_nothing(&answer) || waiter.ends.is_none() {
            waiter.ends = Some(answer);
        }
        let waits_for_try = waiter.trying && !mutant!("node_timeout_overtakes_try");
        if waiter.is_over() && (waits_for_try || !waiter.trying) {
            if !was_over {
                waiter.look_at_all();
            }
            self.blocking.make_ready(slot);
        } else if !waits_for_try && let Some(answer) = waiter.ends.take() {
            self.answer_waiter(slot, Outcome::Done(answer), false, out);
        }
    }

    /// Answers a waiter and passes its turns on.
    fn answer_waiter(
        &mut self,
        slot: Slot,
        outcome: Outcome<Reply<'static>>,
        lease_bound: bool,
        out: &mut Outbox,
    ) {
        let Some(waiter) = self.blocking.waiters.remove(slot) else { return };
        self.blocking.by_tag.remove(&waiter.tag);
        self.blocking.deadlines.remove(&(waiter.wakes_at, slot));
        let BlockingCall { keyspace, line, .. } = waiter.call;
        for (at, key) in (0..).zip(&waiter.keys) {
            if waiter.is_told && waiter.unheard.contains(&at) {
                self.stop_far(keyspace, key);
            }
            let next = self.shared.lines.leave(keyspace, key, &line, waiter.number);
            if let Some(next) = next
                && !mutant!("node_turn_not_passed_on")
            {
                self.give_turn(next, out);
            }
            if let Some(store) = self.shared.store(keyspace) {
                store.unwatch(key);
            }
        }
        out.done.push(Done { tag: waiter.tag, outcome, lease_bound, at: None });
    }

    /// It is somebody's turn to be tried on a key.
    fn give_turn(&mut self, Place { lane, slot, key }: Place, out: &mut Outbox) {
        if lane == self.id {
            self.blocking.wake(slot, key);
        } else {
            out.mail.push((lane, Mail::Turn { slot, key }));
        }
    }

    /// Tries a waiter on a key that is due. When it arrives, on all of them at once if the engine has
    /// transactions.
    fn start_try(&mut self, now: Now, slot: Slot, out: &mut Outbox) {
        let Some(waiter) = self.blocking.waiters.get_mut(slot) else { return };
        waiter.ready = false;
        if waiter.trying || waiter.due.is_empty() {
            return;
        }
        let BlockingCall { keyspace, origin, ref call, .. } = waiter.call;
        waiter.tries_last = waiter.is_over();
        if let Some(read) = call.call().ends_wanted()
            && !mutant!("node_end_of_stream_not_fixed")
        {
            waiter.trying = true;
            let tag = self.internal_tag(Internal::End { slot });
            return self.submit_any(now, keyspace, tag, origin, Op::Call(read), out);
        }
        let store = self.shared.store(keyspace);
        let tries_all = waiter.arriving || waiter.tries_last && !waiter.singly;
        let due = if tries_all && store.is_some_and(|store| store.capabilities().transactions) {
            std::mem::take(&mut waiter.due)
        } else {
            waiter.due.pop_first().into_iter().collect()
        };
        let keys: Vec<&[u8]> = due.iter().map(|at| &*waiter.keys[*at as usize]).collect();
        let op = Op::Call(call.call().on_awaited(&keys));
        waiter.trying = true;
        let tag = self.internal_tag(Internal::Try { slot, keys: due });
        self.submit_any(now, keyspace, tag, origin, op, out);
    }

    /// The node knows where a stream ends that a command waits for.
    pub(crate) fn found_end(&mut self, slot: Slot, done: Done, out: &mut Outbox) {
        let Some(waiter) = self.blocking.waiters.get_mut(slot) else { return };
        waiter.trying = false;
        let fixed = match &done.outcome {
            Outcome::Done(reply) => waiter.call.call.call().with_end(reply).map(Some),
            outcome if did_not_happen(outcome) => Ok(None),
            _ => return self.answer_waiter(slot, done.outcome, done.lease_bound, out),
        };
        let refused = match fixed {
            Ok(Some(call)) => {
                waiter.call.call = call;
                false
            }
            Ok(None) => true,
            Err(error) => {
                return self.answer_waiter(slot, Outcome::Done(error), done.lease_bound, out);
            }
        };
        if refused && waiter.tries_last {
            return self.answer_waiter(slot, done.outcome, done.lease_bound, out);
        }
        if !waiter.is_over() {
            if let Some(answer) = waiter.ends.take() {
                return self.answer_waiter(slot, Outcome::Done(answer), false, out);
            }
            if refused {
                return self.blocking.to_poll.push(slot);
            }
        }
        self.blocking.make_ready(slot);
    }

    /// A try on these keys has ended.
    pub(crate) fn tried(&mut self, slot: Slot, keys: BTreeSet<u32>, done: Done, out: &mut Outbox) {
        let Some(waiter) = self.blocking.waiters.get_mut(slot) else { return };
        waiter.trying = false;
        if let Some(end) = waiter.lost_group(&keys, &done.outcome, &self.shared) {
            return self.answer_waiter(slot, Outcome::Done(end), done.lease_bound, out);
        }
        let mut is_foreign = false;
        let refused = match &done.outcome {
            Outcome::Done(reply) if Wait::is_nothing(reply) => false,
            // The key got another type while the command waited. But an item that is moved may have
            // met another type at its target.
            Outcome::Done(Reply::Error(text))
                if !waiter.arriving && !waiter.moves && text.starts_with("WRONGTYPE ") =>
            {
                is_foreign = true;
                false
            }
            outcome if did_not_happen(outcome) => true,
            _ => return self.answer_waiter(slot, done.outcome, done.lease_bound, out),
        };
        if waiter.is_over() {
            return self.tried_after_the_end(slot, keys, refused, is_foreign, done, out);
        }
        if let Some(answer) = waiter.ends.take() {
            return self.answer_waiter(slot, Outcome::Done(answer), false, out);
        }
        if refused {
            waiter.due.extend(keys);
            return self.blocking.to_poll.push(slot);
        }
        waiter.arriving &= !waiter.due.is_empty();
        let waits_far = waiter.due.is_empty() && !waiter.unheard.is_disjoint(&waiter.first_of);
        if waits_far {
            self.blocking.to_poll.push(slot);
            // Not before, since most find something at once.
            if !std::mem::replace(&mut waiter.is_told, true) {
                let keyspace = waiter.call.keyspace;
                let far = waiter.unheard.iter().map(|at| waiter.keys[*at as usize].clone());
                let far: Vec<Box<[u8]>> = far.collect();
                far.iter().for_each(|key| self.wait_far(keyspace, key));
            }
        }
        self.blocking.make_ready(slot);
    }

    /// A try of a waiter whose time is over has found nothing. If it was the end of the last one, that is
    /// the answer, and it rests on what the last one rests on.
    fn tried_after_the_end(
        &mut self,
        slot: Slot,
        keys: BTreeSet<u32>,
        refused: bool,
        is_foreign: bool,
        done: Done,
        out: &mut Outbox,
    ) {
        let Some(waiter) = self.blocking.waiters.get_mut(slot) else { return };
        if waiter.tries_last && refused {
            return self.answer_waiter(slot, done.outcome, done.lease_bound, out);
        }
        if waiter.tries_last {
            waiter.lease_bound |= done.lease_bound;
            if is_foreign && keys.len() > 1 {
                // One key of another type hides what the others hold.
                waiter.singly = true;
                waiter.due.extend(keys);
            } else if waiter.due.is_empty() {
                let answer = waiter.ends.take().unwrap_or(Wait::NOTHING);
                let lease_bound = waiter.lease_bound && !mutant!("node_nothing_without_a_lease");
                return self.answer_waiter(slot, Outcome::Done(answer), lease_bound, out);
            }
        }
        self.blocking.make_ready(slot);
    }

    /// Begins the tries that something has become a reason for.
    pub(crate) fn tend_blocking(&mut self, now: Now, out: &mut Outbox) {
        for slot in std::mem::take(&mut self.blocking.to_poll) {
            // A try that was refused is no matter of changes.
            let waiter = self.blocking.waiters.get(slot);
            let only_far = waiter.is_some_and(|waiter| waiter.due.is_empty());
            let max = match only_far && self.is_announced() {
                true => TOLD_DOUBLINGS_MAX,
                false => POLL_DOUBLINGS_MAX,
            };
            self.blocking.poll_later(now, slot, max);
        }
        self.hear_changes(out);
        if self.blocking.all_again && self.serves_waiters(now) {
            self.blocking.all_again = false;
            self.blocking.make_all_ready();
        }
        for _ in 0..TRIES_PER_TURN {
            let Some(slot) = self.blocking.ready.pop_front() else { return };
            self.start_try(now, slot, out);
        }
    }

    /// Looks at the keys that have changed on this node, whichever lane has changed them.
    fn hear_changes(&mut self, out: &mut Outbox) {
        let shared = std::sync::Arc::clone(&self.shared);
        for (keyspace, store) in shared.stores() {
            if !store.has_changes() {
                continue;
            }
            let changes = store.take_changes();
            for changed in &changes.keys {
                let wants = |line: &Line| line.is_woken_by(changed.kind);
                for place in shared.lines.first(keyspace, &changed.key, wants) {
                    self.give_turn(place, out);
                }
                self.tell_far(keyspace, &changed.key, out);
            }
            self.tell_trackers(keyspace, changes, out);
        }
    }

    /// Whether keys that are watched have changed, so that this lane should look at them.
    pub(crate) fn has_changes(&self) -> bool {
        self.shared.stores().any(|(_, store)| store.has_changes())
    }

    fn serves_waiters(&self, now: Now) -> bool {
        self.shared.is_active() && self.has_contact(now, true)
    }

    /// Ends waits past their deadline, polls, and looks whether the node serves.
    pub(crate) fn tick_blocking(&mut self, now: Now, out: &mut Outbox) {
        while let Some((_, slot)) = self.blocking.pop_due(now) {
            let Some(waiter) = self.blocking.waiters.get_mut(slot) else { continue };
            if waiter.call.until <= now.monotonic {
                waiter.call.until = Instant::NEVER;
                self.end_wait(slot, Wait::NOTHING, out);
                continue;
            }
            waiter.poll_at = Instant::NEVER;
            if !waiter.is_over() {
                waiter.due.extend(waiter.unheard.intersection(&waiter.first_of));
            }
            self.blocking.schedule(slot);
            self.blocking.make_ready(slot);
        }
        if self.blocking.serves_poll_at.is_some_and(|at| at <= now.monotonic) {
            self.look_whether_it_serves(now, out);
        }
    }

    fn look_whether_it_serves(&mut self, now: Now, out: &mut Outbox) {
        let waits = !self.blocking.by_tag.is_empty();
        self.blocking.serves_poll_at = waits.then_some(now.monotonic + SERVES_POLL);
        if self.serves_waiters(now) {
            self.blocking.all_again |= self.blocking.down_since.take().is_some();
            return;
        }
        let since = *self.blocking.down_since.get_or_insert(now.monotonic);
        if now.monotonic.since(since) < self.shared.config.op_timeout {
            return;
        }
        // What is being tried hears from its engine, or with what is parked.
        for slot in self.blocking.by_tag.values().copied().collect::<Vec<_>>() {
            if self.blocking.waiters.get(slot).is_some_and(|waiter| !waiter.trying) {
                self.answer_waiter(slot, Outcome::Refused(Refusal::NotServing), false, out);
            }
        }
    }

    /// It is the turn of a waiter of this lane.
    pub(crate) fn take_turn(&mut self, slot: Slot, key: u32) {
        self.blocking.wake(slot, key);
    }
}
