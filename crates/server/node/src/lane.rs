//! One lane: routes events between clients, engines, membership and the node's other lanes.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use quorate_commands::{Call, Op, Reply};
use quorate_machine::{Command, Event, Rng, Slab, Slot, WARM_TOGETHER, mutant};
use quorate_types::{Incarnation, Instant, KeyspaceId, LaneId, Lsn, NodeId, Now, Tag, View};
use quorate_wire::{Header, Kind, Malformed};

use crate::blocking::Blocking;
use crate::control::{Change, Control, Moves};
use crate::engine::{KeyspaceLane, Sink};
use crate::flush::Flushes;
use crate::forwarding::Submission;
use crate::guests::Guests;
use crate::lane_log::LaneLog;
use crate::listing::Listings;
use crate::parking::Parking;
use crate::pubsub::PubSub;
use crate::questions::Question;
use crate::renewal::Renewal;
use crate::room::Room;
use crate::sessions::Sessions;
use crate::tracking::Tracking;
use crate::voter_file::VoterDisk;
use crate::{Done, Durability, LaneFacts, Mail, Outbox, Shared};

mod guests;
mod views;

/// Tags with this bit are the lane's own; drivers use the ones below it.
pub(crate) const INTERNAL: u64 = 1 << 63;

/// Why the lane itself submitted an op.
#[derive(Debug)]
pub(crate) enum Internal {
    /// On behalf of another lane, which knows it by this tag.
    Mail { from: LaneId, tag: Tag },
    /// For a command that waits here, on these of its keys.
    Try { slot: Slot, keys: BTreeSet<u32> },
    /// For a command that waits here, where a stream ends.
    End { slot: Slot },
    /// A key of the flush with this number.
    Flush { job: u64 },
    /// Whether this key of the listing with this number has a value.
    Listing { number: u64, key: Vec<u8> },
    /// A session's call, which this lane or another knows by this tag.
    Call { from: LaneId, tag: Tag },
    /// On behalf of another node, which has forwarded the command under this number.
    Forwarded { from: NodeId, keyspace: KeyspaceId, sequence: u64 },
    /// Where a key lives, for a client of this node.
    Question(Box<Question>),
}

/// One lane of one node.
pub struct Lane {
    pub(crate) id: LaneId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) incarnation: Incarnation,
    pub(crate) view: Arc<View>,
    /// By keyspace number.
    pub(crate) engines: Vec<Option<KeyspaceLane>>,
    /// On lane 0.
    pub(crate) control: Option<Control>,
    internal: Slab<Internal>,
    internal_done: Vec<Done>,
    /// What its engines append, if the driver has given it a log.
    pub(crate) log: Option<Box<LaneLog>>,
    /// What this node has promised as a voter, on lane 0, if the node has a disk.
    pub(crate) voter_file: Option<Box<VoterDisk>>,
    /// Whether the disk is full on which an update would have to be kept.
    pub(crate) disk_is_full: bool,
    /// Whose disk is.
    pub(crate) room: Room,
    pub(crate) flushes: Flushes,
    /// Questions where a key lives that go to its owner with the end of this turn.
    pub(crate) questions: Vec<Question>,
    pub(crate) listings: Listings,
    pub(crate) pubsub: PubSub,
    guests: Guests,
    pub(crate) renewal: Renewal,
    pub(crate) sessions: Sessions,
    pub(crate) rng: Rng,
    pub(crate) parking: Parking,
    pub(crate) blocking: Blocking,
    pub(crate) tracking: Tracking,
    /// What a seal at the *start* of the turn would have said; used only by a mutant.
    pub(crate) lease_at_start: bool,
    scratch: Vec<u8>,
    /// Why the message that is being handled is refused.
    refusal: Option<&'static str>,
    /// Whether a local record was read since the last seal.
    pub(crate) has_read: bool,
    /// Bytes of values that were read; see [`Lane::take_touched`].
    touched: u64,
    pub(crate) counts: LaneFacts,
}

impl Lane {
    /// A lane of a node that starts now. All lanes of a node get the same incarnation.
    pub fn new(shared: Arc<Shared>, id: LaneId, incarnation: Incarnation, now: Now) -> Self {
        let config = &shared.config;
        let mut rng = Rng::new(config.seed ^ (u64::from(config.node.0) << 48) ^ u64::from(id.0));
        let mut engines: Vec<Option<KeyspaceLane>> = Vec::new();
        let highest = config.keyspaces.iter().map(|keyspace| usize::from(keyspace.id.0)).max();
        engines.resize_with(highest.map_or(0, |highest| highest + 1), || None);
        for keyspace in &config.keyspaces {
            let engine = KeyspaceLane::new(&shared, id, incarnation, keyspace, rng.next_u64());
            engines[usize::from(keyspace.id.0)] = Some(engine);
        }
        let control = (id.0 == 0)
            .then(|| Control::new(Arc::clone(&shared), incarnation, rng.next_u64(), now));
        let sessions = Sessions::new(config, id, incarnation, now);
        Self {
            id,
            incarnation,
            view: Arc::default(),
            engines,
            control,
            internal: Slab::default(),
            internal_done: Vec::new(),
            log: None,
            voter_file: None,
            disk_is_full: false,
            room: Room::default(),
            flushes: Flushes::default(),
            questions: Vec::new(),
            listings: Listings::default(),
            pubsub: PubSub::default(),
            guests: Guests::default(),
            renewal: Renewal::default(),
            sessions,
            rng,
            parking: Parking::default(),
            blocking: Blocking::default(),
            tracking: Tracking::default(),
            lease_at_start: false,
            scratch: Vec::new(),
            refusal: None,
            has_read: false,
            touched: 0,
            counts: LaneFacts::default(),
            shared,
        }
    }

    /// Which lane this is.
    pub fn id(&self) -> LaneId {
        self.id
    }

    /// The part that all lanes of the node share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The view in force on this lane.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// This life of the node.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The engine of a keyspace, for the simulator's checks.
    pub fn engine(&self, keyspace: KeyspaceId) -> Option<&KeyspaceLane> {
        self.engines.get(usize::from(keyspace.0))?.as_ref()
    }

    /// Runs a read-only call on the local record without a message or a lock. `None` if the
    /// record isn't readable at this moment, the node doesn't serve, or local reads aren't safe here:
    /// then the call must be submitted. The answer may leave only after [`Lane::seal`].
    #[inline]
    pub fn read<R>(
        &mut self,
        now: Now,
        keyspace: KeyspaceId,
        call: &Call<'_>,
        with: impl FnOnce(Reply<'_>) -> R,
    ) -> Option<R> {
        let engine = self.engines.get(usize::from(keyspace.0))?.as_ref()?;
        // What a node that doesn't serve reads could only be thrown away.
        if !self.may_read(now) || !engine.reads_locally(call.key()) {
            return None;
        }
        let store = self.shared.store(keyspace)?;
        let answer = store.read(call, now.wall(), &mut self.scratch, with)?;
        self.counts.local_reads += 1;
        self.has_read = true;
        self.touched += self.scratch.len() as u64;
        Some(answer)
    }

    /// Bytes of values that [`Lane::read`] has looked at since the last call of this function. The
    /// driver divides the time of a turn by it.
    pub fn take_touched(&mut self) -> u64 {
        std::mem::take(&mut self.touched)
    }

    pub(crate) fn run<P>(
        &mut self,
        now: Now,
        keyspace: KeyspaceId,
        tag: Tag,
        origin: u64,
        op: P,
        out: &mut Outbox,
    ) where
        P: Command<Owned = Op, Reply = Reply<'static>>,
    {
        if op.asks_placement() && self.engine(keyspace).is_some_and(KeyspaceLane::places) {
            return self.ask_placement(now, (keyspace, tag, origin), op, out);
        }
        self.counts.submitted += 1;
        // It looks at records several times.
        let _pinned = quorate_storage::pin();
        // What changes at once is this client's doing.
        let claimed = self.claim_changes(keyspace, NonZeroU64::new(origin));
        let (engine, mut sink) = self.engine_and_sink(keyspace, out);
        engine.take(now, Submission::new(tag, origin, op), &mut sink);
        if claimed {
            self.claim_changes(keyspace, None);
        }
        self.answer_internal(out);
    }

    /// Says in whose name this lane changes records from now on, if anybody wants to know.
    fn claim_changes(&self, keyspace: KeyspaceId, writer: Option<NonZeroU64>) -> bool {
        let store = self.shared.store(keyspace);
        let watched = store.filter(|store| store.is_any_watched(self.id));
        watched.map(|store| store.set_writer(self.id, writer)).is_some()
    }

    /// Handles whole peer messages. `from` and `incarnation` are the sender's, as its connection
    /// introduced it. `now` must be read after the messages were: promises count from their
    /// receipt, and one that is dated too early lapses while a peer still relies on it.
    ///
    /// # Errors
    /// When the bytes are not messages of this version, or say what no correct peer says: the
    /// connection can't be trusted any more.
    pub fn receive(
        &mut self,
        now: Now,
        from: NodeId,
        incarnation: Incarnation,
        bytes: &[u8],
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        let heard = self.receive_all(now, from, incarnation, bytes, out);
        if let Err(Malformed(reason)) = heard {
            count(&mut self.counts.ignored, reason);
        }
        heard
    }

    /// Has what a message and the next of its keyspace are about fetched from memory; how many they are.
    fn warm(&self, header: &Header, body: &[u8], mut rest: &[u8]) -> usize {
        let next = || {
            let (next, body) = Header::split(&mut rest).ok()??;
            ((next.kind, next.keyspace) == (header.kind, header.keyspace)).then_some(body)
        };
        let next = std::iter::from_fn(next).take(WARM_TOGETHER - 1);
        let mut bodies = [&[][..]; WARM_TOGETHER];
        let mut count = 0;
        for body in std::iter::once(body).chain(next) {
            bodies[count] = body;
            count += 1;
        }
        let engine = self.engine(header.keyspace);
        if let Some(engine) = engine.filter(|_| count > 1 && matches!(header.kind, Kind::Engine(_)))
        {
            engine.warm(bodies[..count].iter().copied());
        }
        count
    }

    fn receive_all(
        &mut self,
        now: Now,
        from: NodeId,
        incarnation: Incarnation,
        bytes: &[u8],
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        if self.guests.contains(from) {
            return self.receive_guest(now, from, bytes, out);
        }
        let mut rest = bytes;
        let mut warmed = 0;
        // Each message looks at records several times.
        let mut pinned = quorate_storage::pin();
        while let Some((header, body)) = Header::split(&mut rest)? {
            self.counts.messages += 1;
            if warmed == 0 {
                pinned.refresh();
                warmed = self.warm(&header, body, rest);
            }
            warmed -= 1;
            match header.kind {
                Kind::Guest => return Err(Malformed("a node is no guest")),
                Kind::Membership => {
                    let Some(control) = &mut self.control else {
                        return Err(Malformed("membership message on a lane other than 0"));
                    };
                    control.receive(now, from, body, out)?;
                    self.follow_control(now, out);
                }
                Kind::Session => {
                    self.hear_lease_manager(now, from, incarnation, &header, body, out)?
                }
                _ if !self.view.is_live(from, incarnation) => {
                    count(&mut self.counts.ignored, "node: sender is not live in this view");
                }
                Kind::Listing => self.hear_listing(now, from, &header, body, out)?,
                Kind::Forward => self.hear_forward(now, from, &header, body, out)?,
                Kind::PubSub => self.hear_pubsub(now, (from, incarnation), body, out)?,
                Kind::Room => self.hear_room(now, from, body)?,
                Kind::Engine(_) => {
                    if self.engine(header.keyspace).is_none() {
                        return Err(Malformed("unknown keyspace"));
                    }
                    let (engine, mut sink) = self.engine_and_sink(header.keyspace, out);
                    engine.receive(now, from, &header, body, &mut sink)?;
                    self.answer_internal(out);
                    self.refuse()?;
                }
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(Malformed("message cut short")) }
    }

    /// An error if the engine has refused the message that it was just handed.
    fn refuse(&mut self) -> Result<(), Malformed> {
        match self.refusal.take() {
            Some(reason) => Err(Malformed(reason)),
            None => Ok(()),
        }
    }

    /// Handles mail from another lane of this node.
    pub fn deliver(&mut self, now: Now, mail: Mail, out: &mut Outbox) {
        match mail {
            Mail::Submit { from, keyspace, tag, origin, op } => {
                let tag = self.internal_tag(Internal::Mail { from, tag });
                self.run(now, keyspace, tag, origin, op, out);
            }
            Mail::Done(done) => self.answer_at_last(done, out),
            Mail::Turn { slot, key } => self.take_turn(slot, key),
            Mail::View(view) => self.install(now, view, out),
            Mail::Rejoin(incarnation) => self.rejoin(now, incarnation, out),
            Mail::CaughtUp { from, epoch } => {
                let control = self.control.as_mut().expect("only lane 0 is told of progress");
                control.caught_up(now, from, epoch, out);
                self.follow_control(now, out);
            }
            Mail::Link { from, node, up } => {
                let control = self.control.as_mut().expect("only lane 0 is told of connections");
                control.lane_link(now, from, node, up, out);
                self.follow_control(now, out);
            }
            Mail::Engine { from, keyspace, mail } => {
                let (engine, mut sink) = self.engine_and_sink(keyspace, out);
                engine.deliver(now, from, mail, &mut sink);
                self.answer_internal(out);
            }
            Mail::Save => self.ask_snapshot(),
            Mail::Renew { from, number } => self.renew_log(from, number),
            Mail::Renewed { from, number } => self.lane_renewed(from, number),
            Mail::AwaitLog { from, snapshot } => self.await_log(from, snapshot, out),
            Mail::LogDurable { from, snapshot } => self.log_of_lane_is_durable(from, snapshot),
            Mail::Flush { from, keyspace, tag } => self.flushes.begin(from, keyspace, tag),
            Mail::Flushed { tag, outcome } => self.flushes.lane_done(tag, outcome, out),
            Mail::Lease { from, tag, request } => {
                self.ask_lease_manager(now, from, tag, request, out)
            }
            Mail::Leased { tag, answer } => self.leased(now, tag, answer, out),
            Mail::Call { from, tag, call } => self.begin_call(now, from, tag, *call, out),
            Mail::Sweep(leases) => self.sweep_own(now, &leases, out),
            Mail::Verdicts(verdicts) => self.hear_verdicts(&verdicts),
            Mail::Published(publication) => self.take_publication(publication, out),
            Mail::Invalidated(invalidation) => out.invalidated.push(invalidation),
            Mail::Watch { from, tag } => {
                if !mutant!("node_prefix_publishes_nothing") {
                    self.publish(now);
                }
                out.mail.push((from, Mail::WatchHeard { tag }));
            }
            Mail::WatchHeard { tag } => self.watch_heard(tag, out),
        }
    }

    /// When this lane wants its next turn at the latest; the past if it has work for it already.
    pub fn next_deadline(&self) -> Instant {
        if self.flushes.wants_turn() || self.has_changes() || !self.questions.is_empty() {
            return Instant::ZERO;
        }
        let engines = self.engines.iter().flatten().map(KeyspaceLane::next_deadline);
        let control = self.control.as_ref().map(Control::next_deadline);
        let first = engines.chain(control).min().unwrap_or(Instant::NEVER);
        first
            .min(self.sessions.next_deadline())
            .min(self.listings.next_deadline())
            .min(self.pubsub.next_deadline())
            .min(self.parking.next_deadline())
            .min(self.blocking.next_deadline())
            .min(self.tracking_deadline())
            .min(self.log.as_ref().map_or(Instant::NEVER, |log| log.next_deadline()))
            .min(self.room.next_deadline())
            .min(self.voter_file.as_ref().map_or(Instant::NEVER, |file| file.next_deadline()))
    }

    /// Does what is due. Harmless when nothing is.
    pub fn tick(&mut self, now: Now, out: &mut Outbox) {
        if let Some(control) = &mut self.control
            && control.next_deadline() <= now.monotonic
        {
            control.tick(now, out);
            self.follow_control(now, out);
        }
        for number in 0..self.engines.len() {
            let due = |engine: &KeyspaceLane| engine.next_deadline() <= now.monotonic;
            if self.engines[number].as_ref().is_some_and(due) {
                let (engine, mut sink) = self.engine_and_sink(KeyspaceId(number as u8), out);
                engine.tick(now, &mut sink);
                self.answer_internal(out);
            }
        }
        if self.sessions.next_deadline() <= now.monotonic {
            self.tick_sessions(now, out);
        }
        if self.listings.next_deadline() <= now.monotonic {
            self.tick_listings(now, out);
        }
        if self.pubsub.next_deadline() <= now.monotonic {
            self.tick_pubsub(now, out);
        }
        if self.blocking.next_deadline() <= now.monotonic {
            self.tick_blocking(now, out);
        }
    }

    /// Closes the turn's batches. Call after the last event of a turn and before the flush.
    pub fn end_turn(&mut self, now: Now, out: &mut Outbox) {
        self.tend_parking(now, out);
        self.tend_blocking(now, out);
        self.tick_tracking(now, out);
        self.advance_flushes(now, out);
        self.tell_interest(now, out);
        self.ask_for_logs(out);
        self.ask_owners(now, out);
        for number in 0..self.engines.len() {
            if self.engines[number].is_some() {
                let (engine, mut sink) = self.engine_and_sink(KeyspaceId(number as u8), out);
                engine.end_turn(now, &mut sink);
            }
        }
        self.answer_internal(out);
        self.report_flushes(now, out);
        self.report_progress(now, out);
    }

    /// The node is about to have no memory for updates: engines give some of what they can do without.
    pub fn short_of_memory(&mut self, now: Now, out: &mut Outbox) {
        for number in 0..self.engines.len() {
            if self.engines[number].is_some() {
                let (engine, mut sink) = self.engine_and_sink(KeyspaceId(number as u8), out);
                engine.short_of_memory(now, &mut sink);
            }
        }
        self.answer_internal(out);
    }

    /// Marks the beginning of a turn.
    pub fn begin_turn(&mut self, now: Now) {
        self.lease_at_start = self.shared.lease_until() > now.monotonic && self.shared.is_active();
        self.flushes.begin_turn();
    }

    /// A connection to a peer was lost: a hint that it may be dead.
    pub fn peer_lost(&mut self, now: Now, node: NodeId, out: &mut Outbox) {
        match &mut self.control {
            Some(control) => {
                control.peer_lost(now, node, out);
                self.follow_control(now, out);
            }
            None => out.mail.push((LaneId(0), Mail::Link { from: self.id, node, up: false })),
        }
    }

    /// A connection to a peer stands again.
    pub fn peer_found(
        &mut self,
        now: Now,
        node: NodeId,
        incarnation: Incarnation,
        out: &mut Outbox,
    ) {
        match &mut self.control {
            // Another life of the peer does not bring the lost one back.
            Some(control) if self.view.is_live(node, incarnation) => {
                control.peer_found(now, node, out);
                self.follow_control(now, out);
            }
            Some(_) => {}
            None => out.mail.push((LaneId(0), Mail::Link { from: self.id, node, up: true })),
        }
    }

    /// Leaves the cluster for good: gives the lease up and has the others go on without this node.
    /// Answered through [`Outbox::control`] once they do, or if they can't. Lane 0 only.
    pub fn leave(&mut self, now: Now, tag: Tag, out: &mut Outbox) {
        let control = self.control.as_mut().expect("lane 0 leaves for the node");
        control.leave(now, tag, out);
        self.follow_control(now, out);
    }

    /// Asks for a change of the membership; answered through [`Outbox::control`]. Lane 0 only.
    pub fn change_members(&mut self, now: Now, tag: Tag, change: Change, out: &mut Outbox) {
        let control = self.control.as_mut().expect("membership changes are asked for on lane 0");
        control.change(now, tag, change, out);
        self.follow_control(now, out);
    }

    /// Whether ops are started or queued on this lane, so that messages about them will follow.
    pub fn is_busy(&self) -> bool {
        self.engines.iter().flatten().any(|engine| engine.pending() > 0)
    }

    /// Publishes what this lane counted, for the administration endpoint.
    pub fn publish(&mut self, now: Now) {
        self.counts.engines = self.engines.iter().flatten().map(KeyspaceLane::facts).collect();
        self.counts.sessions.open = self.sessions.open();
        self.counts.log = self.log_facts(now);
        self.shared.publish_lane(usize::from(self.id.0), self.counts.clone());
        if let Some(control) = &mut self.control {
            control.publish(now);
        }
    }

    /// What the node does or waits for, as a sentence; empty on lanes other than 0.
    pub fn phase(&self, now: Now) -> String {
        self.control.as_ref().map(|control| control.phase(now.monotonic)).unwrap_or_default()
    }

    /// What leads to the next view; nothing on lanes other than 0.
    pub fn moves(&self) -> Moves {
        self.control.as_ref().map(Control::moves).unwrap_or_default()
    }

    /// The nodes of open requests to add one, with their addresses; none on lanes other than 0. A cluster of one
    /// calls them, as it takes in only a node that it hears.
    pub fn newcomers(&self) -> impl Iterator<Item = &quorate_membership::MemberConfig> {
        self.control.iter().flat_map(|control| control.newcomers())
    }

    /// Live replicas of a keyspace besides this node, of the partition or key that has fewest.
    pub fn other_replicas(&self, keyspace: KeyspaceId) -> usize {
        if let Some(copies) = self.engine(keyspace).and_then(KeyspaceLane::other_copies) {
            return copies;
        }
        let others = self.view.live().without(self.shared.config.node);
        let groups = self.engine(keyspace).map_or(&[][..], KeyspaceLane::groups);
        groups.iter().map(|source| source.of(others).len()).min().unwrap_or(0)
    }

    /// Asserts what must hold between steps.
    ///
    /// # Panics
    /// When it does not.
    pub fn check_invariants(&self) {
        self.engines.iter().flatten().for_each(KeyspaceLane::check_invariants);
        self.sessions.check_invariants();
        if let Some(control) = &self.control {
            control.check_invariants();
        }
    }

    // --- internal ops --------------------------------------------------------------------------

    pub(crate) fn internal_tag(&mut self, internal: Internal) -> Tag {
        Tag(INTERNAL | self.internal.insert(internal).to_u64())
    }

    /// Answers what engines completed for the lane itself; repeats while that completes more.
    #[inline]
    pub(crate) fn answer_internal(&mut self, out: &mut Outbox) {
        if !self.internal_done.is_empty() {
            self.answer_all_internal(out);
        }
    }

    fn answer_all_internal(&mut self, out: &mut Outbox) {
        while let Some(done) = self.internal_done.pop() {
            let slot = Slot::from_u64(done.tag.0 & !INTERNAL);
            let internal = self.internal.remove(slot).expect("an internal op completes once");
            match internal {
                Internal::Mail { from, tag } => {
                    out.mail.push((from, Mail::Done(Done { tag, ..done })));
                }
                Internal::Call { from, tag } => self.call_done(from, Done { tag, ..done }, out),
                Internal::Forwarded { from, keyspace, sequence } => {
                    self.answer_forwarded((from, keyspace, sequence), &done, out);
                }
                Internal::Try { slot, keys } => self.tried(slot, keys, done, out),
                Internal::End { slot } => self.found_end(slot, done, out),
                Internal::Flush { job } => self.flushes.key_done(job, &done.outcome),
                Internal::Listing { number, key } => self.key_decided(number, key, &done),
                Internal::Question(question) => self.placement_told(*question, done, out),
            }
        }
    }

    /// The lane's log is durable up to `lsn`: what waited for that may leave, and the engines hear of
    /// it.
    pub fn durable(&mut self, now: Now, lsn: Lsn, out: &mut Outbox) {
        for done in out.durable(lsn) {
            self.answer_at_last(done, out);
        }
        self.step_lease_manager(now, Event::Durable(lsn), out);
        for number in 0..self.engines.len() {
            let waits = |engine: &KeyspaceLane| engine.durability() == Durability::Sync;
            if self.engines[number].as_ref().is_some_and(waits) {
                let (engine, mut sink) = self.engine_and_sink(KeyspaceId(number as u8), out);
                engine.durable(now, lsn, &mut sink);
            }
        }
        self.answer_internal(out);
    }

    /// Answers what waited for its gate.
    pub(crate) fn answer_at_last(&mut self, done: Done, out: &mut Outbox) {
        if done.tag.0 & INTERNAL == 0 {
            out.done.push(done);
        } else {
            self.internal_done.push(done);
            self.answer_internal(out);
        }
    }

    pub(crate) fn engine_and_sink<'a>(
        &'a mut self,
        keyspace: KeyspaceId,
        out: &'a mut Outbox,
    ) -> (&'a mut KeyspaceLane, Sink<'a>) {
        let engine = self.engines[usize::from(keyspace.0)]
            .as_mut()
            .expect("ops and messages are checked against the configured keyspaces");
        let sink = Sink {
            out,
            internal: INTERNAL,
            internal_done: &mut self.internal_done,
            ignored: &mut self.counts.ignored,
            refusal: &mut self.refusal,
            keyspace,
            lane: self.id,
            epoch: self.view.epoch,
            lease_bound: engine.is_leased(),
            durability: engine.durability(),
            disk_is_full: self.disk_is_full && engine.durability() != Durability::Memory,
            log: self.log.as_deref_mut(),
        };
        (engine, sink)
    }
}

/// Adds one to a counter of a short list; reasons are few and the same ones come again.
pub(crate) fn count(counters: &mut Vec<(&'static str, u64)>, name: &'static str) {
    // Nearly always it is the very text that was counted before; only then are texts compared.
    let same = counters.iter().position(|(known, _)| std::ptr::eq(*known, name));
    match same.or_else(|| counters.iter().position(|(known, _)| *known == name)) {
        Some(at) => counters[at].1 += 1,
        None => counters.push((name, 1)),
    }
}
