//! One log: acceptor, proposer and learner of one node.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use quorate_machine::{Rng, mutant};
use quorate_types::{Duration, Instant, NodeId};
use quorate_wire::{Malformed, Reader, Writer};

use crate::message::{put_entry, take_entry, take_slot};
use crate::{Ballot, Body, Entry, Message, SlotNumber, Stream, Voter};

/// The highest round of a ballot. No proposer campaigns that often; a round at the end of its range
/// would have no higher one.
pub const ROUND_MAX: u64 = 1 << 48;

/// The highest slot that has voters and that a message may name. No log grows that long; a slot at
/// the end of its range would have no next one.
pub const SLOT_MAX: SlotNumber = SlotNumber(1 << 48);

/// Bounds of a log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Settings {
    /// How long a proposer waits for an answer before it repeats itself.
    pub resend: Duration,
    /// The shortest rest of a proposer that was outbid; the actual rest is drawn between this and
    /// four times this, so that two duelling proposers part.
    pub backoff: Duration,
    /// The most entries in the answer to one Fetch.
    pub fetch_entries_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            resend: Duration::from_millis(20),
            backoff: Duration::from_millis(5),
            fetch_entries_max: 64,
        }
    }
}

/// The effects of a log for its host, which empties them after each call.
#[derive(Clone, PartialEq, Hash, Debug)]
pub struct Outbox<E> {
    /// Messages to other nodes.
    pub messages: Vec<(NodeId, Message<E>)>,
    /// Entries that became known to be chosen, in order of slot.
    pub chosen: Vec<(Stream, SlotNumber, E)>,
}

impl<E> Default for Outbox<E> {
    fn default() -> Self {
        Self { messages: Vec::new(), chosen: Vec::new() }
    }
}

const CHOSEN_TWICE: Malformed = Malformed("log: another entry is known to be chosen for the slot");
const BEYOND: Malformed = Malformed("log: a round or slot beyond the limit");

/// The proposer leads no ballot for the next free slot: [`Log::campaign`] first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NotLeading;

#[derive(Clone, PartialEq, Hash, Debug)]
struct InFlight<E> {
    entry: E,
    accepted_by: BTreeSet<Voter>,
    resend_at: Instant,
}

#[derive(Clone, PartialEq, Hash, Debug)]
struct Proposer<E> {
    ballot: Ballot,
    /// The first slot that the promises cover.
    from: SlotNumber,
    promised_by: BTreeSet<Voter>,
    /// The entry of the highest ballot that a promise carried, per slot.
    adopted: BTreeMap<SlotNumber, (Ballot, E)>,
    leading: bool,
    in_flight: BTreeMap<SlotNumber, InFlight<E>>,
    resend_at: Instant,
}

#[derive(Clone, PartialEq, Hash, Debug)]
struct Withheld<E> {
    from: Voter,
    ballot: Ballot,
    slot: SlotNumber,
    entry: E,
    until: Instant,
}

#[derive(Clone, PartialEq, Hash, Debug)]
struct Voters {
    from: SlotNumber,
    /// `None`: until told otherwise.
    through: Option<SlotNumber>,
    set: Vec<Voter>,
}

/// One node's part in one log. See the crate's documentation for the algorithm.
#[derive(Clone, PartialEq, Hash, Debug)]
pub struct Log<E> {
    stream: Stream,
    me: Voter,
    settings: Settings,
    rng: Rng,
    voters: Vec<Voters>,
    /// The first slot not known to be chosen; all before it are.
    next: SlotNumber,
    chosen: BTreeMap<SlotNumber, E>,
    promised: Ballot,
    accepted: BTreeMap<SlotNumber, (Ballot, E)>,
    withheld: Vec<Withheld<E>>,
    proposer: Option<Proposer<E>>,
    round_seen: u64,
    campaign_not_before: Instant,
}

impl<E: Entry> Log<E> {
    /// An empty log that begins at `first`.
    pub fn new(
        stream: Stream,
        me: Voter,
        first: SlotNumber,
        settings: Settings,
        seed: u64,
    ) -> Self {
        Self {
            stream,
            me,
            settings,
            rng: Rng::new(seed),
            voters: Vec::new(),
            next: first,
            chosen: BTreeMap::new(),
            promised: Ballot::ZERO,
            accepted: BTreeMap::new(),
            withheld: Vec::new(),
            proposer: None,
            round_seen: 0,
            campaign_not_before: Instant::ZERO,
        }
    }

    /// The stream of this log.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// The first slot that is not known to be chosen.
    pub fn next(&self) -> SlotNumber {
        self.next
    }

    /// The entry of a slot, if it is chosen, known and not forgotten.
    pub fn chosen(&self, slot: SlotNumber) -> Option<&E> {
        self.chosen.get(&slot)
    }

    /// The entries that this voter has accepted for an open slot, or whose acceptance it withholds.
    pub fn considered(&self, slot: SlotNumber) -> impl Iterator<Item = &E> {
        let accepted = self.accepted.get(&slot).map(|(_, entry)| entry);
        let withheld = self.withheld.iter().filter(move |held| held.slot == slot);
        accepted.into_iter().chain(withheld.map(|held| &held.entry))
    }

    /// The acceptor's state in few words: it changes whenever [`Log::write_acceptor`] would write something
    /// else, as a ballot brings one entry to a slot.
    pub fn acceptor_mark(&self) -> (Ballot, SlotNumber, Ballot) {
        let last = self.accepted.last_key_value();
        let (slot, at) = last.map_or((SlotNumber(0), Ballot::ZERO), |(slot, (at, _))| (*slot, *at));
        (self.promised, slot, at)
    }

    /// Appends what this acceptor must not forget: what it has promised, and what it has accepted of open
    /// slots. `ballot | count u32 | (slot u64 | ballot | entry with its length before it)...`
    pub fn write_acceptor(&self, writer: &mut Writer<'_>) {
        self.promised.encode(writer);
        writer.u32(u32::try_from(self.accepted.len()).expect("a window of slots is small"));
        for (slot, (ballot, entry)) in &self.accepted {
            writer.u64(slot.0);
            ballot.encode(writer);
            put_entry(entry, writer);
        }
    }

    /// Takes in, before the first message, what [`Log::write_acceptor`] wrote in an earlier process of
    /// this voter, whose next slot was the same.
    ///
    /// # Errors
    /// If no acceptor in this place wrote it. Then the log is unchanged.
    pub fn read_acceptor(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let promised = Ballot::decode(reader)?;
        let mut accepted = BTreeMap::new();
        let mut expected = self.next;
        for _ in 0..reader.u32()? {
            let slot = take_slot(reader)?;
            let ballot = Ballot::decode(reader)?;
            if slot != expected || slot > SLOT_MAX || ballot > promised {
                return Err(Malformed("log: accepted what was not promised, or out of order"));
            }
            accepted.insert(slot, (ballot, take_entry(reader)?));
            expected = slot.next();
        }
        if promised.round > ROUND_MAX {
            return Err(BEYOND);
        }
        (self.promised, self.accepted, self.round_seen) = (promised, accepted, promised.round);
        Ok(())
    }

    /// Names the voters of the slots `from..=through` (or of all slots from `from` on). Voters
    /// named before for slots below `from` stay.
    ///
    /// # Panics
    /// If the voters of an open slot would change after they were named: two majorities of one
    /// slot could then be disjoint.
    pub fn set_voters(
        &mut self,
        from: SlotNumber,
        through: Option<SlotNumber>,
        voters: impl IntoIterator<Item = Voter>,
    ) {
        let mut set: Vec<Voter> = voters.into_iter().collect();
        set.sort_unstable();
        set.dedup();
        if from >= self.next
            && let Some(known) = self.voters_of(from)
        {
            assert!(known == set, "the voters of slot {from:?} were named before");
        }
        self.voters.retain(|voters| voters.from < from);
        let next = self.next;
        self.voters.retain(|voters| voters.through.is_none_or(|through| through >= next));
        if let Some(last) = self.voters.last_mut()
            && last.through.is_none_or(|through| through >= from)
        {
            last.through = Some(SlotNumber(from.0 - 1));
        }
        self.voters.push(Voters { from, through, set });
    }

    /// The voters of a slot, if they have been named. Slots above [`SLOT_MAX`] have none.
    pub fn voters_of(&self, slot: SlotNumber) -> Option<&[Voter]> {
        let covers = |voters: &&Voters| {
            voters.from <= slot && slot <= voters.through.unwrap_or(SLOT_MAX).min(SLOT_MAX)
        };
        self.voters.iter().rev().find(covers).map(|voters| &voters.set[..])
    }

    /// Whether this node leads and [`Log::propose`] would succeed now.
    pub fn is_leading(&self) -> bool {
        self.proposer.as_ref().is_some_and(|proposer| {
            proposer.leading
                && self.is_majority(self.free_slot(proposer), |voter| {
                    proposer.promised_by.contains(voter)
                })
        })
    }

    /// Whether a ballot of this node is under way: asked for promises, or leading.
    pub fn is_campaigning(&self) -> bool {
        self.proposer.is_some()
    }

    /// Whether an entry proposed by this node waits to be chosen.
    pub fn is_deciding(&self) -> bool {
        self.proposer.as_ref().is_some_and(|proposer| !proposer.in_flight.is_empty())
    }

    /// The time from which a campaign is allowed again after being outbid.
    pub fn campaign_not_before(&self) -> Instant {
        self.campaign_not_before
    }

    /// When [`Log::tick`] wants to be called.
    pub fn next_deadline(&self) -> Instant {
        let held = self.withheld.iter().map(|held| held.until);
        let proposer = self.proposer.iter().flat_map(|proposer| {
            let preparing = (!proposer.leading).then_some(proposer.resend_at);
            preparing.into_iter().chain(proposer.in_flight.values().map(|flight| flight.resend_at))
        });
        held.chain(proposer).min().unwrap_or(Instant::NEVER)
    }

    /// Stands for leadership with a ballot above every one seen. Does nothing while a backoff runs,
    /// while a campaign is under way, or when this node is no voter of the next slot.
    pub fn campaign(
        &mut self,
        now: Instant,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) {
        let preparing = self.proposer.as_ref().is_some_and(|proposer| !proposer.leading);
        if preparing || now < self.campaign_not_before || !self.votes_in(self.next) {
            return;
        }
        let highest = self.round_seen.max(self.promised.round);
        if highest >= ROUND_MAX {
            self.campaign_not_before = now + self.settings.backoff;
            return;
        }
        self.round_seen = highest + 1;
        let ballot = Ballot { round: self.round_seen, proposer: self.me };
        self.proposer = Some(Proposer {
            ballot,
            from: self.next,
            promised_by: BTreeSet::new(),
            adopted: BTreeMap::new(),
            leading: false,
            in_flight: BTreeMap::new(),
            resend_at: now + self.settings.resend,
        });
        let prepare = Body::Prepare { ballot, from: self.next };
        self.to_voters(self.next, &prepare, out);
        self.tell_self(now, prepare, gate, out);
    }

    /// Proposes an entry for the next free slot.
    ///
    /// # Errors
    /// [`NotLeading`] if no majority of that slot's voters has promised this node a ballot, or the
    /// slot's voters are not known yet.
    pub fn propose(
        &mut self,
        now: Instant,
        entry: E,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) -> Result<SlotNumber, NotLeading> {
        if !self.is_leading() {
            return Err(NotLeading);
        }
        let slot = self.free_slot(self.proposer.as_ref().ok_or(NotLeading)?);
        self.send_to_voters(now, slot, entry, gate, out);
        Ok(slot)
    }

    /// Handles a message of this stream; `from` is the sender that the message claims. `gate`
    /// returns the time until which acceptance of an entry has to be withheld.
    ///
    /// # Errors
    /// If no correct voter sends this message. Then the log is unchanged.
    pub fn on_message(
        &mut self,
        now: Instant,
        from: Voter,
        body: Body<E>,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) -> Result<(), Malformed> {
        self.check(from, &body)?;
        match body {
            Body::Prepare { ballot, from: slot } => {
                self.on_prepare(now, from, ballot, slot, gate, out)
            }
            Body::Promise { ballot, from: slot, accepted } => {
                self.on_promise(now, from, ballot, slot, accepted, gate, out);
            }
            Body::Accept { ballot, slot, entry } => {
                self.on_accept(now, from, ballot, slot, entry, gate, out);
            }
            Body::Accepted { ballot, slot } => self.on_accepted(from, ballot, slot, out),
            Body::Reject { ballot, promised } => self.on_reject(now, ballot, promised),
            Body::Learn { slot, entry } => self.on_learn(from.node, slot, entry, out),
            Body::Fetch { from: slot } => self.on_fetch(from.node, slot, out),
        }
        Ok(())
    }

    /// Checks that a correct voter can have sent the message, whatever this one knows.
    fn check(&self, from: Voter, body: &Body<E>) -> Result<(), Malformed> {
        if body.slot() > SLOT_MAX {
            return Err(BEYOND);
        }
        let is_own = |ballot: &Ballot| ballot.proposer == from;
        let (ballot, is_fit) = match body {
            Body::Prepare { ballot, .. } => (ballot, is_own(ballot)),
            Body::Accept { ballot, slot, entry } => {
                let twice = self.accepted.get(slot).filter(|(at, _)| at == ballot);
                if twice.is_some_and(|(_, held)| held != entry) {
                    return Err(Malformed("log: two entries for a slot in one ballot"));
                }
                (ballot, is_own(ballot))
            }
            Body::Promise { ballot, from: first, accepted } => {
                let slots = (first.0..).zip(accepted);
                let in_order = |(expected, (slot, at, _)): (u64, &(SlotNumber, Ballot, E))| {
                    slot.0 == expected && at <= ballot
                };
                (ballot, { slots }.all(in_order))
            }
            Body::Reject { promised, .. } => (promised, true),
            Body::Accepted { ballot, .. } => (ballot, true),
            Body::Learn { slot, entry } => {
                return match self.chosen.get(slot) {
                    Some(known) if known != entry => Err(CHOSEN_TWICE),
                    _ => Ok(()),
                };
            }
            Body::Fetch { .. } => return Ok(()),
        };
        if ballot.round > ROUND_MAX {
            return Err(BEYOND);
        }
        if is_fit { Ok(()) } else { Err(Malformed("log: a ballot or slots of another campaign")) }
    }

    /// Delivers a message of this node to itself, which is as true as its own state.
    fn tell_self(
        &mut self,
        now: Instant,
        body: Body<E>,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) {
        let heard = self.on_message(now, self.me, body, gate, out);
        heard.expect("a proposer proposes one entry for a slot in each of its ballots");
    }

    /// Repeats unanswered requests that are due, and accepts entries that no longer have to be
    /// withheld.
    pub fn tick(
        &mut self,
        now: Instant,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) {
        let (due, wait): (Vec<_>, Vec<_>) =
            self.withheld.drain(..).partition(|held| held.until <= now);
        self.withheld = wait;
        for Withheld { from, ballot, slot, entry, .. } in due {
            self.on_accept(now, from, ballot, slot, entry, gate, out);
        }
        self.resend(now, gate, out);
    }

    /// Jumps over slots whose entries are superseded by the entry of `slot`, which is chosen.
    ///
    /// # Errors
    /// If another entry of that slot is known to be chosen, or the slot is above [`SLOT_MAX`]. Then
    /// the log is unchanged.
    pub fn jump(
        &mut self,
        slot: SlotNumber,
        entry: E,
        out: &mut Outbox<E>,
    ) -> Result<(), Malformed> {
        if self.chosen.get(&slot).is_some_and(|known| *known != entry) {
            return Err(CHOSEN_TWICE);
        }
        if slot > SLOT_MAX {
            return Err(BEYOND);
        }
        if slot < self.next {
            return Ok(());
        }
        self.chosen.insert(slot, entry.clone());
        self.next = slot.next();
        out.chosen.push((self.stream, slot, entry));
        self.forget_open_before(self.next);
        Ok(())
    }

    /// Frees the chosen entries below `slot`; a peer that lacks them needs [`Log::jump`].
    pub fn forget_before(&mut self, slot: SlotNumber) {
        self.chosen = self.chosen.split_off(&slot);
    }

    /// Tells the log how far a peer is, from gossip; asks the peer for slots that are missing here.
    pub fn on_progress(&mut self, peer: NodeId, next: SlotNumber, out: &mut Outbox<E>) {
        if next > self.next {
            self.send(peer, Body::Fetch { from: self.next }, out);
        }
    }

    /// Asserts the invariants between calls.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn check_invariants(&self) {
        for (ballot, _) in self.accepted.values() {
            assert!(*ballot <= self.promised, "accepted {ballot:?} above {:?}", self.promised);
        }
        let mut expected = self.next;
        for slot in self.accepted.keys() {
            assert_eq!(*slot, expected, "accepted slots have a gap");
            expected = expected.next();
        }
        if let Some(proposer) = &self.proposer {
            assert_eq!(proposer.ballot.proposer, self.me, "leads another's ballot");
            assert!(proposer.leading || proposer.in_flight.is_empty(), "proposed unprepared");
            assert!(proposer.in_flight.keys().all(|slot| *slot >= self.next), "proposes the past");
        }
    }

    // Acceptor.

    fn on_prepare(
        &mut self,
        now: Instant,
        from: Voter,
        ballot: Ballot,
        slot: SlotNumber,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) {
        self.round_seen = self.round_seen.max(ballot.round);
        if slot < self.next {
            return self.on_fetch(from.node, slot, out);
        }
        if ballot < self.promised && !mutant!("paxos_promises_backwards") {
            let promised = self.promised;
            return self.answer(now, from, Body::Reject { ballot, promised }, gate, out);
        }
        self.promised = ballot;
        self.withheld.retain(|held| held.ballot >= ballot);
        let accepted = self
            .accepted
            .range(slot..)
            .map(|(slot, (ballot, entry))| (*slot, *ballot, entry.clone()))
            .collect();
        self.answer(now, from, Body::Promise { ballot, from: slot, accepted }, gate, out);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message, once")]
    fn on_accept(
        &mut self,
        now: Instant,
        from: Voter,
        ballot: Ballot,
        slot: SlotNumber,
        entry: E,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) {
        self.round_seen = self.round_seen.max(ballot.round);
        if slot < self.next {
            return self.on_fetch(from.node, slot, out);
        }
        if ballot < self.promised && !mutant!("paxos_accepts_backwards") {
            let promised = self.promised;
            return self.answer(now, from, Body::Reject { ballot, promised }, gate, out);
        }
        let in_order = slot == self.next
            || self.accepted.last_key_value().is_some_and(|(last, _)| last.next() >= slot);
        if !in_order || !self.votes_in(slot) {
            // A voter that lags asks for the missing slots; the proposer will repeat itself.
            if slot > self.next {
                self.send(from.node, Body::Fetch { from: self.next }, out);
            }
            return;
        }
        if self.accepted.get(&slot).is_some_and(|(at, _)| *at == ballot) {
            return self.answer(now, from, Body::Accepted { ballot, slot }, gate, out);
        }
        self.withheld.retain(|held| held.slot != slot);
        if let Some(until) = gate(slot, &entry).filter(|until| *until > now) {
            self.withheld.push(Withheld { from, ballot, slot, entry, until });
            return;
        }
        self.promised = ballot;
        self.accepted.insert(slot, (ballot, entry));
        self.answer(now, from, Body::Accepted { ballot, slot }, gate, out);
    }

    // Proposer.

    #[expect(clippy::too_many_arguments, reason = "the fields of one message, once")]
    fn on_promise(
        &mut self,
        now: Instant,
        from: Voter,
        ballot: Ballot,
        slot: SlotNumber,
        accepted: Vec<(SlotNumber, Ballot, E)>,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) {
        let next = self.next;
        let Some(proposer) = &mut self.proposer else { return };
        if proposer.ballot != ballot || proposer.from != slot {
            return;
        }
        if proposer.leading {
            // A late promise widens the lead if it brings no entry that should have been adopted.
            let settled = |slot: &SlotNumber| *slot < next || proposer.in_flight.contains_key(slot);
            if accepted.iter().all(|(slot, ..)| settled(slot)) {
                proposer.promised_by.insert(from);
            }
            return;
        }
        proposer.promised_by.insert(from);
        for (slot, ballot, entry) in accepted {
            let known = proposer.adopted.get(&slot).map_or(Ballot::ZERO, |(ballot, _)| *ballot);
            if slot >= next && ballot > known && !mutant!("paxos_adopts_nothing") {
                proposer.adopted.insert(slot, (ballot, entry));
            }
        }
        let promised_by = proposer.promised_by.clone();
        if !self.is_majority(self.next, |voter| promised_by.contains(voter)) {
            return;
        }
        let Some(proposer) = &mut self.proposer else { return };
        proposer.leading = true;
        let adopted = core::mem::take(&mut proposer.adopted);
        for (slot, (_, entry)) in adopted {
            self.send_to_voters(now, slot, entry, gate, out);
        }
    }

    /// Sends an entry to the voters.
    fn send_to_voters(
        &mut self,
        now: Instant,
        slot: SlotNumber,
        entry: E,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) {
        let resend_at = now + self.settings.resend;
        let Some(proposer) = self.proposer.as_mut().filter(|proposer| proposer.leading) else {
            return;
        };
        let ballot = proposer.ballot;
        let flight = InFlight { entry: entry.clone(), accepted_by: BTreeSet::new(), resend_at };
        let before = proposer.in_flight.insert(slot, flight);
        assert!(before.is_none(), "{slot:?} was proposed twice in one ballot");
        let accept = Body::Accept { ballot, slot, entry };
        self.to_voters(slot, &accept, out);
        self.tell_self(now, accept, gate, out);
    }

    fn on_accepted(&mut self, from: Voter, ballot: Ballot, slot: SlotNumber, out: &mut Outbox<E>) {
        let Some(proposer) = self.proposer.as_mut().filter(|own| own.ballot == ballot) else {
            return;
        };
        let Some(flight) = proposer.in_flight.get_mut(&slot) else { return };
        flight.accepted_by.insert(from);
        self.decide(out);
    }

    /// Learns, in order, every slot that a majority of its voters has accepted in this ballot.
    fn decide(&mut self, out: &mut Outbox<E>) {
        loop {
            let slot = self.next;
            let Some(flight) =
                self.proposer.as_ref().and_then(|proposer| proposer.in_flight.get(&slot))
            else {
                return;
            };
            if !self.is_majority(slot, |voter| flight.accepted_by.contains(voter)) {
                return;
            }
            let entry = flight.entry.clone();
            self.to_voters(slot, &Body::Learn { slot, entry: entry.clone() }, out);
            self.learn(slot, entry, out);
        }
    }

    fn on_reject(&mut self, now: Instant, ballot: Ballot, promised: Ballot) {
        self.round_seen = self.round_seen.max(promised.round);
        if self.proposer.as_ref().is_none_or(|own| own.ballot != ballot) {
            return;
        }
        self.proposer = None;
        let shortest = self.settings.backoff;
        let rest = shortest + self.rng.span_below(shortest * 3 + Duration::from_nanos(1));
        self.campaign_not_before = now + rest;
    }

    /// Repeats unanswered requests, also to this node's own acceptor: it may have withheld an
    /// entry, then promised a higher ballot of a proposer that died, and no other voter need reject
    /// this ballot.
    fn resend(
        &mut self,
        now: Instant,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) {
        let again = now + self.settings.resend;
        let Some(proposer) = &mut self.proposer else { return };
        let mut due = Vec::new();
        if !proposer.leading && proposer.resend_at <= now {
            proposer.resend_at = again;
            let prepare = Body::Prepare { ballot: proposer.ballot, from: proposer.from };
            due.push((proposer.from, prepare, proposer.promised_by.clone()));
        }
        for (slot, flight) in &mut proposer.in_flight {
            if flight.resend_at <= now {
                flight.resend_at = again;
                let (ballot, entry) = (proposer.ballot, flight.entry.clone());
                let accept = Body::Accept { ballot, slot: *slot, entry };
                due.push((*slot, accept, flight.accepted_by.clone()));
            }
        }
        for (slot, body, answered) in due {
            for voter in self.voters_of(slot).unwrap_or_default() {
                if !answered.contains(voter) {
                    self.send(voter.node, body.clone(), out);
                }
            }
            if !answered.contains(&self.me) && !mutant!("paxos_forgets_its_own_vote") {
                self.tell_self(now, body, gate, out);
            }
        }
    }

    // Learner.

    fn on_learn(&mut self, from: NodeId, slot: SlotNumber, entry: E, out: &mut Outbox<E>) {
        if slot > self.next {
            self.send(from, Body::Fetch { from: self.next }, out);
        } else if slot == self.next {
            self.learn(slot, entry, out);
        }
    }

    fn on_fetch(&mut self, from: NodeId, slot: SlotNumber, out: &mut Outbox<E>) {
        // Forgotten entries can't be fetched; then the host has other means (see `jump`).
        if from == self.me.node || !self.chosen.contains_key(&slot) {
            return;
        }
        let known: Vec<_> =
            self.chosen.range(slot..).take(self.settings.fetch_entries_max).collect();
        for (slot, entry) in known {
            let body = Body::Learn { slot: *slot, entry: entry.clone() };
            out.messages.push((from, Message { stream: self.stream, body }));
        }
    }

    fn learn(&mut self, slot: SlotNumber, entry: E, out: &mut Outbox<E>) {
        assert_eq!(slot, self.next, "slots are learnt in order");
        self.chosen.insert(slot, entry.clone());
        self.next = slot.next();
        out.chosen.push((self.stream, slot, entry));
        self.forget_open_before(self.next);
    }

    /// Drops the state of decided slots. A campaign that asked for promises from such a slot on is
    /// void unless it leads already.
    fn forget_open_before(&mut self, next: SlotNumber) {
        self.accepted = self.accepted.split_off(&next);
        self.withheld.retain(|held| held.slot >= next);
        if let Some(proposer) = &mut self.proposer {
            proposer.in_flight = proposer.in_flight.split_off(&next);
            if !proposer.leading && proposer.from < next {
                self.proposer = None;
            }
        }
    }

    // Helpers.

    fn free_slot(&self, proposer: &Proposer<E>) -> SlotNumber {
        proposer.in_flight.last_key_value().map_or(self.next, |(slot, _)| slot.next())
    }

    fn votes_in(&self, slot: SlotNumber) -> bool {
        self.voters_of(slot).is_some_and(|voters| voters.contains(&self.me))
    }

    fn is_majority(&self, slot: SlotNumber, counts: impl Fn(&Voter) -> bool) -> bool {
        self.voters_of(slot).is_some_and(|voters| {
            voters.iter().filter(|voter| counts(voter)).count() * 2 > voters.len()
        })
    }

    fn send(&self, to: NodeId, body: Body<E>, out: &mut Outbox<E>) {
        if to != self.me.node {
            out.messages.push((to, Message { stream: self.stream, body }));
        }
    }

    fn to_voters(&self, slot: SlotNumber, body: &Body<E>, out: &mut Outbox<E>) {
        for voter in self.voters_of(slot).unwrap_or_default() {
            self.send(voter.node, body.clone(), out);
        }
    }

    /// Answers a proposer, which can be this node itself.
    fn answer(
        &mut self,
        now: Instant,
        to: Voter,
        body: Body<E>,
        gate: &impl Fn(SlotNumber, &E) -> Option<Instant>,
        out: &mut Outbox<E>,
    ) {
        if to == self.me {
            self.tell_self(now, body, gate, out);
        } else {
            self.send(to.node, body, out);
        }
    }
}
