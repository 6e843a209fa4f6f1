//! The front end of one lane: opens, feeds, completes and closes connections.

mod run;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{Note, Reply as Answer, Spec};
use quorate_machine::{Outcome, Seal, Slab, Slot};
use quorate_rifl::Answer as Lease;
use quorate_types::{Duration, Instant, Now, Tag};

use crate::backend::{Backend, Listed};
use crate::connection::{Connection, ConnectionId, Life, OutputBuffer, Reply};
use crate::dispatch::Context;
use crate::encode;
use crate::limits;
use crate::parser::Limits;
use crate::pending::{Pending, answer_or_failure};
use crate::pubsub::PubSub;
use crate::shared::{LaneStats, Shared, add};
use crate::slowlog::Kept;
use crate::tracking::{Inbox, Tracking};
use crate::turn::Turn;
use run::run;

/// Everything but the connections, so that both can be borrowed at once.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    /// Whether this lane hears which scripts are loaded at other nodes.
    pub(crate) hears_scripts: bool,
    pub(crate) stats: Arc<LaneStats>,
    pub(crate) pending: Slab<Pending>,
    pub(crate) dirty: Vec<ConnectionId>,
    pub(crate) lease_bound: Vec<ConnectionId>,
    pub(crate) waiting: Vec<ConnectionId>,
    pub(crate) pubsub: PubSub,
    /// What is to be told of ops, at the latest when the next turn begins.
    pub(crate) due: Vec<Note>,
    /// What the clients of this lane keep that they have read.
    pub(crate) tracking: Tracking,
    /// What they are told on behalf of others.
    pub(crate) inbox: Arc<Inbox>,
    /// Commands whose wait is to end, with their answers.
    pub(crate) unblocked: Vec<(Tag, Answer<'static>)>,
    /// How often `CLIENT UNBLOCK` had named a client when this lane looked last.
    pub(crate) unblocks: u64,
    /// A read buffer that no connection needs at the moment: all read into the same one, unless a
    /// command is left unfinished.
    spare_input: Vec<u8>,
    /// This lane's part of the account when it last looked at the whole.
    pub(crate) looked_at: u64,
    /// Whether clients of other lanes were named that are to be disconnected.
    pub(crate) named_others: bool,
    pub(crate) turn: Turn,
    /// Connections whose share of the last turn was used up: they go on in this order.
    postponed: VecDeque<ConnectionId>,
    /// The monitors of this lane.
    pub(crate) monitors: Vec<ConnectionId>,
    /// The arguments of the ops in progress, by the place of each in `pending`.
    pub(crate) kept: Vec<Kept>,
    /// The first op that the command at hand has begun.
    pub(crate) begun: Option<Slot>,
    /// The command at hand, if it was executed and not refused, queued or parked.
    pub(crate) ran: Option<&'static Spec>,
    /// How long the command at hand makes its client wait.
    pub(crate) slept: Duration,
    /// The node is about to stop: a connection ends behind the next answer.
    pub(crate) draining: bool,
}

/// The Redis front end of one lane. It owns no socket: a driver moves bytes between sockets and
/// the buffers here, and says when ops complete.
///
/// The tag of a submitted op is its place in a table of unfinished ops, with the generation of the
/// place, so that a late or doubled completion finds nothing.
///
/// One turn of a lane's loop:
/// 1. [`Frontend::begin_turn`], which lets clients go on that have waited for it; then, until
///    [`Frontend::is_turn_over`], for each readable socket, read into [`Frontend::read_buffer`]
///    while [`Frontend::wants_read`], then [`Frontend::process`];
/// 2. [`Frontend::complete`] for each op that the engines have answered;
/// 3. [`Frontend::tick`] when [`Frontend::next_deadline`] has come;
/// 4. [`Frontend::seal`] with whether the lease still holds, which is checked *after* the reads of
///    this turn: replies that rest on local reads leave only if it does;
/// 5. for each connection of [`Frontend::take_dirty`], write [`Frontend::output`], report it with
///    [`Frontend::written`], and close those that [`Frontend::wants_close`].
pub struct Frontend {
    pub(crate) connections: Slab<Connection>,
    pub(crate) core: Core,
    idle_check: Instant,
    /// How many kills this lane has carried out on its own connections.
    kills: u64,
}

/// How long a client may stay without the password.
const AUTH: Duration = Duration::from_millis(limits::AUTH_MS);
/// How long it may send nothing of an argument that is dropped.
const SKIP: Duration = Duration::from_millis(limits::SKIP_MS);

impl Frontend {
    /// The front end of one more lane of the node that `shared` belongs to.
    pub fn new(shared: Arc<Shared>) -> Self {
        quorate_scripts::install();
        let stats = shared.register_lane();
        Self {
            connections: Slab::default(),
            core: Core {
                shared,
                hears_scripts: false,
                stats,
                pending: Slab::default(),
                dirty: Vec::new(),
                lease_bound: Vec::new(),
                waiting: Vec::new(),
                pubsub: PubSub::new(),
                due: Vec::new(),
                tracking: Tracking::default(),
                inbox: Arc::default(),
                unblocked: Vec::new(),
                unblocks: 0,
                spare_input: Vec::new(),
                looked_at: 0,
                named_others: false,
                turn: Turn::default(),
                postponed: VecDeque::new(),
                monitors: Vec::new(),
                kept: Vec::new(),
                begun: None,
                ran: None,
                slept: Duration::ZERO,
                draining: false,
            },
            idle_check: Instant::ZERO,
            kills: 0,
        }
    }

    /// This lane's counters.
    pub fn stats(&self) -> &LaneStats {
        &self.core.stats
    }

    /// Whether so much of `maxmemory` is used that commands which may add some are refused soon.
    pub fn is_short_of_memory(&self, used: impl FnOnce() -> u64) -> bool {
        let bound = self.core.shared.settings.max_memory.load(Relaxed);
        bound > 0 && used() > bound / 16 * 15
    }

    /// Open connections of this lane.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Ops submitted and not answered yet, those of closed connections included.
    pub fn in_flight(&self) -> usize {
        self.core.pending.len()
    }

    /// The node is about to stop. Each client is told so by the end of its connection, right behind
    /// an answer: no command is on its way then, unless the client sends the next one before it has
    /// read the answer. Clients that wait for one get that; the others get one more.
    pub fn drain(&mut self) {
        self.core.draining = true;
        self.unblock_all();
        self.end_inputs(|connection| !connection.replies.is_empty());
    }

    /// No connection executes anything further. Each gets the replies it is owed and then wants to
    /// be closed.
    pub fn end_all_input(&mut self) {
        self.end_inputs(|_| true);
    }

    fn end_inputs(&mut self, which: impl Fn(&Connection) -> bool) {
        let ids: Vec<_> = self.connections.iter().map(|(slot, _)| ConnectionId(slot)).collect();
        for id in ids {
            if let Some(connection) = self.connections.get_mut(id.0)
                && (connection.life == Life::Open && which(connection) || connection.skip > 0)
            {
                connection.life = Life::Closing;
                connection.skip = 0;
                self.core.mark_dirty(connection, id);
            }
        }
    }

    /// A client has connected.
    ///
    /// # Errors
    /// The bytes to send before the socket is closed, if there are `maxclients` clients already.
    pub fn open(
        &mut self,
        now: Now,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Result<ConnectionId, &'static [u8]> {
        let shared = &self.core.shared;
        let Some(facts) = shared.register_client(peer, local, now.monotonic, &self.core.inbox)
        else {
            add(&self.core.stats.rejected, 1);
            return Err(b"-ERR max number of clients reached\r\n");
        };
        add(&self.core.stats.connections, 1);
        let authenticated = !shared.has_password();
        let mut connection = Connection::new(Arc::clone(&facts), authenticated);
        self.core.recount(&mut connection);
        let slot = self.connections.insert(connection);
        facts.place.store(slot.to_u64(), Relaxed);
        Ok(ConnectionId(slot))
    }

    /// The connection is gone. Its unfinished ops run to their end unanswered.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(mut connection) = self.connections.remove(id.0) {
            connection.take_due_notes(u64::MAX, &mut self.core.due);
            self.core.unsubscribe_all(&mut connection);
            self.core.end_tracking(&mut connection, id);
            self.core.leaves_line(&connection);
            self.core.end_monitor(&mut connection, id);
            self.core.charge(connection.charged.wrapping_neg());
            self.core.shared.has_left(&connection.facts.holding);
            self.core.shared.forget_client(connection.facts.id);
            self.core.waiting.retain(|&other| other != id);
        }
    }

    /// Whether to read from the connection's socket: not while commands that arrived wait for
    /// replies to complete or to be read.
    pub fn wants_read(&self, id: ConnectionId) -> bool {
        self.connections.get(id.0).is_some_and(|connection| {
            let skips = connection.life == Life::Closing && connection.skip > 0;
            let executes = connection.life == Life::Open && !connection.postponed;
            skips
                || executes
                    && (!connection.is_paused() || connection.input.len() < limits::READ_BYTES)
        })
    }

    /// Begins the clients' part of a turn: those that wait since an earlier one go on.
    pub fn begin_turn<B: Backend>(&mut self, now: Now, backend: &mut B) {
        self.core.turn.begin(backend.clock());
        self.hear_of_scripts(now, backend);
        self.begin_fan_out(now, backend);
        self.tend_tracking(backend);
        for _ in 0..self.core.postponed.len() {
            let Some(id) = self.core.postponed.pop_front() else { break };
            if let Some(connection) = self.connections.get_mut(id.0) {
                connection.postponed = false;
                run(&mut self.core, connection, id, now, backend);
            }
            if self.core.turn.has_resumed_enough() {
                break;
            }
        }
        self.settle();
    }

    /// Whether clients have had their part of the turn, so that nothing further is read from them.
    pub fn is_turn_over(&self) -> bool {
        self.core.turn.is_over()
    }

    /// Whether clients wait for another turn: the lane must not sleep then.
    pub fn has_postponed(&self) -> bool {
        let core = &self.core;
        let tells = core.pubsub.has_work() || !core.due.is_empty() || core.has_tracking_work();
        !core.postponed.is_empty() || tells
    }

    /// Where to append what the socket gives, with some spare capacity. Grows with what has
    /// arrived, never with what a client announced.
    pub fn read_buffer(&mut self, id: ConnectionId) -> Option<&mut Vec<u8>> {
        let connection = self.connections.get_mut(id.0)?;
        let input = &mut connection.input;
        if input.capacity() == 0 {
            *input = std::mem::take(&mut self.core.spare_input);
        }
        if input.capacity() - input.len() < limits::READ_BYTES {
            let wanted = connection
                .parser
                .wanted(input)
                .clamp(limits::READ_BYTES, input.len().max(limits::READ_BYTES));
            input.reserve(wanted);
        }
        Some(input)
    }

    /// The socket gave nothing: the read buffer is of use to others.
    pub fn nothing_read(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id.0) {
            self.core.stow_input(connection);
            self.core.recount(connection);
        }
    }

    /// Executes what has arrived in the read buffer, as far as replies may pile up.
    pub fn process<B: Backend>(&mut self, id: ConnectionId, now: Now, backend: &mut B) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        run(&mut self.core, connection, id, now, backend);
        self.settle();
        self.tend_tracking(backend);
    }

    /// Whether other lanes must be told to look at once: clients of theirs are to be disconnected, or
    /// told something.
    pub fn take_named_others(&mut self) -> bool {
        std::mem::take(&mut self.core.named_others)
    }

    /// What must be done once commands were executed.
    fn settle(&mut self) {
        self.close_killed();
        self.settle_messages();
        self.feed_monitors();
        self.fan_out();
    }

    /// Closes the clients that were named, on this lane or another, by `CLIENT KILL` or because
    /// they hold most. Call it once in each turn.
    pub fn close_killed(&mut self) {
        let kills = self.core.shared.kills.load(Relaxed);
        if std::mem::replace(&mut self.kills, kills) == kills {
            return;
        }
        let ids: Vec<_> = self.connections.iter().map(|(slot, _)| ConnectionId(slot)).collect();
        for id in ids {
            if let Some(connection) = self.connections.get_mut(id.0)
                && connection.facts.killed.load(Relaxed)
            {
                connection.kill();
                self.core.mark_dirty(connection, id);
            }
        }
    }

    /// A submitted op is answered. Tags of connections that are gone are fine.
    pub fn complete<B: Backend>(
        &mut self,
        tag: Tag,
        outcome: Outcome<Answer<'static>>,
        now: Now,
        backend: &mut B,
    ) {
        let Some(pending) = self.core.release(Slot::from_u64(tag.0)) else { return };
        let id = pending.connection;
        let Some(connection) = self.connections.get_mut(id.0) else {
            return self.core.tell_at_once(outcome, now, backend);
        };
        connection.ended(&pending);
        if connection.blocked == Some(tag) {
            connection.waits_no_more();
        }
        self.core.op_took(connection, &pending, Slot::from_u64(tag.0), now);
        let mut context = Context { core: &mut self.core, connection, id, backend, now };
        let answer = answer_or_failure(outcome).map(|mut reply| {
            context.hold_notes(pending.number, &mut reply);
            context.name_engines(reply)
        });
        context.op_answered(pending, answer);
        run(&mut self.core, connection, id, now, backend);
        self.settle();
    }

    /// Other nodes have said what keys there are. Tags of connections that are gone are fine.
    pub fn listed<B: Backend>(
        &mut self,
        tag: Tag,
        listed: Outcome<Listed>,
        now: Now,
        backend: &mut B,
    ) {
        let Some(pending) = self.core.release(Slot::from_u64(tag.0)) else { return };
        let id = pending.connection;
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        let mut context = Context { core: &mut self.core, connection, id, backend, now };
        context.listed(pending.number, listed);
        run(&mut self.core, connection, id, now, backend);
        self.settle();
    }

    /// What a session's lease has come to. Under the tag of a request it is the answer; under that of
    /// a call it says that the lease was renewed, and the call goes on, or is the end of the call.
    pub fn leased<B: Backend>(&mut self, tag: Tag, answer: Lease, now: Now, backend: &mut B) {
        let slot = Slot::from_u64(tag.0);
        let Some(&pending) = self.core.pending.get(slot) else { return };
        let id = pending.connection;
        let Some(connection) = self.connections.get_mut(id.0) else {
            // The end of a call that was renewed and goes on frees its place.
            if !matches!(answer, Lease::Granted(_)) {
                self.core.release(slot);
            }
            return;
        };
        let mut context = Context { core: &mut self.core, connection, id, backend, now };
        if context.leased(pending, answer) {
            self.core.release(slot);
            connection.ended(&pending);
            run(&mut self.core, connection, id, now, backend);
            self.settle();
        }
    }

    /// The answer that [`Frontend::complete`] is about to be called with rests on the node's lease,
    /// so it leaves only if [`Frontend::seal`] allows it.
    pub fn rests_on_lease(&mut self, tag: Tag) {
        let Some(pending) = self.core.pending.get(Slot::from_u64(tag.0)) else { return };
        let id = pending.connection;
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        if !connection.lease_bound {
            connection.lease_bound = true;
            self.core.lease_bound.push(id);
        }
    }

    /// The client has sent everything it ever will. What it sent before is still answered; then
    /// the connection closes.
    pub fn end_of_input(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        if connection.life == Life::Open {
            connection.life = Life::Closing;
        }
        connection.skip = 0;
        // What is handed to who has gone is lost.
        if connection.blocked.is_some() {
            connection.kill();
        }
        if connection.is_finished() {
            self.core.mark_dirty(connection, id);
        }
    }

    /// Ops submitted and not yet answered.
    pub fn pending(&self) -> usize {
        self.core.pending.len()
    }

    /// Whether some connection has something new to send, or wants to be closed.
    pub fn is_dirty(&self) -> bool {
        !self.core.dirty.is_empty()
    }

    /// What to write to the connection's socket; nothing while replies wait for
    /// [`Frontend::seal`], which includes replies to commands that [`Frontend::written`] let go
    /// on. The connection is dirty then, so that the next turn sends them. Nothing, either, while
    /// all of it is `+QUEUED` and the like of a block whose `EXEC` is under way.
    pub fn output(&self, id: ConnectionId) -> Option<&OutputBuffer> {
        self.connections
            .get(id.0)
            .filter(|connection| !connection.lease_bound && !connection.held)
            .map(|connection| &connection.output)
    }

    /// The socket took `count` bytes. Commands that waited for the client to read go on.
    pub fn written<B: Backend>(
        &mut self,
        id: ConnectionId,
        count: usize,
        now: Now,
        backend: &mut B,
    ) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        let was_paused = connection.is_paused();
        connection.output.advance(count);
        connection.facts.output_bytes.store(connection.written() as u64, Relaxed);
        add(&self.core.stats.output_bytes, count as u64);
        let goes_on = was_paused && !connection.is_paused();
        if goes_on || (connection.has_walk() && connection.written() < limits::OUTPUT_PAUSE_BYTES) {
            run(&mut self.core, connection, id, now, backend);
            self.settle();
        } else {
            self.core.recount(connection);
        }
    }

    /// Moves the connections that have something new to send, or want to be closed, into `into`.
    pub fn take_dirty(&mut self, into: &mut Vec<ConnectionId>) {
        into.clear();
        std::mem::swap(into, &mut self.core.dirty);
        for id in into {
            if let Some(connection) = self.connections.get_mut(id.0) {
                connection.dirty = false;
            }
        }
    }

    /// How many connections [`Frontend::take_dirty`] would find.
    pub fn dirty_count(&self) -> usize {
        self.core.dirty.len()
    }

    /// Whether [`Frontend::take_dirty`] would find any: the lane must not sleep then.
    pub fn has_dirty(&self) -> bool {
        !self.core.dirty.is_empty()
    }

    /// Whether the connection's socket should be closed now.
    pub fn wants_close(&self, id: ConnectionId) -> bool {
        self.connections.get(id.0).is_none_or(Connection::is_finished)
    }

    /// Whether replies wait for [`Frontend::seal`].
    pub fn needs_seal(&self) -> bool {
        !self.core.lease_bound.is_empty()
    }

    /// Settles the replies that rest on local reads: they may leave, or they wait for the next turn,
    /// or their connections are dropped and not a byte of them is sent, since a stale answer must
    /// never be seen.
    pub fn seal(&mut self, seal: Seal) {
        if seal == Seal::Waits {
            return;
        }
        for id in std::mem::take(&mut self.core.lease_bound) {
            let Some(connection) = self.connections.get_mut(id.0) else { continue };
            connection.lease_bound = false;
            if seal == Seal::Lost {
                connection.notes.clear();
                connection.kill();
            }
            connection.take_due_notes(0, &mut self.core.due);
            // What has waited is still to be sent.
            self.core.mark_dirty(connection, id);
        }
    }

    /// When to call [`Frontend::tick`] next.
    pub fn next_deadline(&self) -> Instant {
        if self.core.has_unblocked() {
            return Instant::ZERO;
        }
        if self.connections.is_empty() {
            return Instant::NEVER;
        }
        let waits = self.core.waiting.iter().filter_map(|id| self.wait_until(*id)).min();
        self.idle_check.min(waits.unwrap_or(Instant::NEVER))
    }

    fn wait_until(&self, id: ConnectionId) -> Option<Instant> {
        match self.connections.get(id.0)?.replies.front()? {
            Reply::Wait { until, poll, .. } => Some((*until).min(*poll)),
            Reply::Pause { until } => Some(*until),
            Reply::Held { poll, .. } => Some(*poll),
            _ => None,
        }
    }

    /// Ends each `WAIT` and pause whose time has come and, about once a second, looks for idle clients.
    pub fn tick<B: Backend>(&mut self, now: Now, backend: &mut B) {
        self.settle();
        if self.core.has_unblocked() {
            self.unblock(backend);
        }
        for id in std::mem::take(&mut self.core.waiting) {
            let Some(connection) = self.connections.get_mut(id.0) else { continue };
            let mut context = Context { core: &mut self.core, connection, id, backend, now };
            if context.poll_wait() {
                run(&mut self.core, connection, id, now, backend);
            } else {
                self.core.waiting.push(id);
            }
        }
        if now.monotonic >= self.idle_check {
            self.idle_check = now.monotonic + Duration::from_millis(limits::IDLE_CHECK_MS);
            self.check_idle(now.monotonic);
            self.core.enforce_memory_limit();
            self.settle();
        }
    }

    /// Disconnects who is idle for too long, doesn't read its replies, or doesn't authenticate.
    fn check_idle(&mut self, now: Instant) {
        let settings = &self.core.shared.settings;
        let timeout = Duration::from_secs(settings.timeout_seconds.load(Relaxed));
        let ids: Vec<_> = self.connections.iter().map(|(slot, _)| ConnectionId(slot)).collect();
        for id in ids {
            let Some(connection) = self.connections.get_mut(id.0) else { continue };
            let idle = now.since(Instant(connection.facts.active.load(Relaxed)));
            if idle >= Duration::from_millis(limits::IDLE_CHECK_MS) {
                connection.output.shrink(limits::IDLE_BUFFER_BYTES);
                if connection.input.is_empty() {
                    connection.input = Vec::new();
                    connection.facts.input_capacity.store(0, Relaxed);
                }
                self.core.recount(connection);
            }
            let waits = !connection.replies.is_empty();
            let listens = connection.is_subscriber();
            let timed_out = !timeout.is_zero() && idle > timeout && !waits && !listens;
            let [_, soft, seconds] = self.core.output_limits(connection);
            let over = soft > 0 && connection.unsent() as u64 > soft;
            let since = over.then(|| connection.over_soft_limit.unwrap_or(now));
            connection.over_soft_limit = since;
            let owes = !connection.session.authenticated && self.core.shared.has_password();
            let owing = owes.then(|| connection.owes_password.unwrap_or(now));
            connection.owes_password = owing;
            let stuck = connection.skip > 0 && idle >= SKIP;
            let intruder = owing.is_some_and(|since| now.since(since) >= AUTH);
            let soft_span = Duration::from_secs(seconds);
            let slow = since.is_some_and(|since| now.since(since) > soft_span);
            if slow {
                self.core.cut(connection);
            }
            if timed_out || intruder || stuck || slow {
                connection.kill();
                self.core.mark_dirty(connection, id);
            }
        }
    }
}

impl Core {
    pub(crate) fn mark_dirty(&mut self, connection: &mut Connection, id: ConnectionId) {
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Takes an empty read buffer from a connection, for the connection that is read next.
    fn stow_input(&mut self, connection: &mut Connection) {
        if connection.input.is_empty() {
            let input = std::mem::take(&mut connection.input);
            if input.capacity() <= limits::BUFFER_KEEP_BYTES {
                self.spare_input = input;
            }
        }
    }

    /// An op begins.
    pub(crate) fn begin(&mut self, pending: Pending) -> Tag {
        add(&self.stats.submitted, 1);
        self.charge(pending.bytes as u64);
        let slot = self.pending.insert(pending);
        self.begun.get_or_insert(slot);
        Tag(slot.to_u64())
    }

    /// An op has ended.
    pub(crate) fn release(&mut self, slot: Slot) -> Option<Pending> {
        let pending = self.pending.remove(slot)?;
        self.charge((pending.bytes as u64).wrapping_neg());
        Some(pending)
    }

    /// Lets a connection wait for another turn.
    pub(crate) fn postpone(&mut self, connection: &mut Connection, id: ConnectionId) {
        if !connection.postponed {
            connection.postponed = true;
            self.postponed.push_back(id);
        }
    }

    pub(crate) fn limits(&self, connection: &Connection) -> Limits {
        Limits {
            bulk_bytes_max: self.shared.settings.bulk_bytes_max.load(Relaxed),
            unauthenticated: self.must_authenticate(connection),
        }
    }

    pub(crate) fn must_authenticate(&self, connection: &Connection) -> bool {
        !connection.session.authenticated && self.shared.has_password()
    }
}

/// Appends an error reply to a connection's replies.
pub(crate) fn refuse(connection: &mut Connection, text: &str) {
    connection.write(|out| encode::error(text, out));
}
