//! `CLIENT TRACKING`: clients that keep what they have read, and are told when it changes.
//!
//! A lane knows which of its connections have read which key, or want to hear of every key with a
//! prefix. The node says what has changed ([`crate::Frontend::invalidated`]); a key is forgotten with
//! its first change, and who reads it again is tracked again.
//!
//! **Order.** A key is tracked before it is read. What a client is told of a change is put behind every
//! reply that is still to come, so it comes behind whatever the client is answered that was read
//! before the change. If the messages go to another connection (`REDIRECT`), they leave this one's
//! place in that order. Only who waits for what a key will hold is told of others' changes at once.
//!
//! **Bounds.** A node tracks `tracking-table-max-keys` keys, and a lane so many bytes of them and of
//! their readers ([`limits::TRACKED_BYTES_PER_LANE_MAX`]). Beyond that, keys are forgotten, and who has read them
//! is told as if they had changed.

mod options;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

use quorate_commands::{Args, Call, Reply as Answer, Run, flag};
use quorate_machine::{Slot, mutant};

use crate::backend::{Backend, Invalidation};
use crate::connection::{Connection, ConnectionId, Life, Reply};
use crate::dispatch::Context;
use crate::encode::{Protocol, array_header, bulk, encode, integer};
use crate::frontend::{Core, Frontend};
use crate::limits;
use crate::pubsub::push_header;
use crate::session::SYNTAX;
use crate::shared::lock;
use options::Options;
use table::READER_BYTES;

pub(crate) use table::Tracking;

/// The channel on which a subscriber that speaks RESP2 hears of what others have read.
const CHANNEL: &[u8] = b"__redis__:invalidate";

const TOO_MANY: &str = "ERR the clients of this lane track as many prefixes as they may (16384 of at most 65536 \
                        bytes each); track fewer, or connect again to get to another lane";
const NOT_ALL_KEYS: &str = "ERR this node has no replica of some keys, so it doesn't hear of their changes: BCAST \
                            needs a node with replicas of every keyspace; use one, or track without BCAST";
/// The answer to `CLIENT TRACKING` as part of a block: what the block reads is tracked before it runs.
pub(crate) const NOT_IN_MULTI: Answer<'static> =
    Answer::error("ERR CLIENT TRACKING is no part of a transaction; use it before MULTI");

/// What a client that keeps what it reads has asked for.
#[derive(Debug)]
pub(crate) struct ClientTracking {
    /// The client that is told instead; 0 for none.
    redirect: u64,
    mode: Mode,
    /// Whether it isn't told of its own changes.
    no_loop: bool,
    /// Whether it is told of a key once, until somebody broadcasts anew, and of several together.
    coalesced: bool,
    /// Whether `CLIENT CACHING` has been said for the next command.
    caching: bool,
    /// Whether the client that is to be told instead is gone.
    broken: bool,
}

/// Which keys a client is told of.
#[derive(Debug)]
enum Mode {
    /// Those that it reads.
    Read,
    /// Those that it reads behind `CLIENT CACHING YES`.
    OptIn,
    /// Those that it reads, except behind `CLIENT CACHING NO`.
    OptOut,
    /// Those with these prefixes.
    Broadcast(BTreeSet<Box<[u8]>>),
}

impl ClientTracking {
    /// Whether the keys are tracked that are read now.
    fn tracks_reads(&self) -> bool {
        match self.mode {
            Mode::Read => true,
            Mode::OptIn => self.caching,
            Mode::OptOut => !self.caching,
            Mode::Broadcast(_) => false,
        }
    }

    fn is_broadcast(&self) -> bool {
        matches!(self.mode, Mode::Broadcast(_))
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let prefixes = match &self.mode {
            Mode::Broadcast(prefixes) => prefixes.iter().map(|p| p.len() + READER_BYTES).sum(),
            _ => 0,
        };
        size_of::<Self>() + prefixes
    }
}

/// What a client must no longer rely on.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Keys(Vec<Box<[u8]>>),
    Everything,
}

impl Told {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let keys = match self {
            Self::Keys(keys) => keys.iter().map(|key| key.len() + limits::KEY_FRAME_BYTES).sum(),
            Self::Everything => 0,
        };
        size_of::<Self>() + keys
    }

    /// Appends it as a client of RESP3 is told it, or as a subscriber.
    fn write(&self, protocol: Protocol, out: &mut Vec<u8>) {
        match protocol {
            Protocol::Resp3 => {
                push_header(2, protocol, out);
                bulk(b"invalidate", out);
            }
            Protocol::Resp2 => {
                push_header(3, protocol, out);
                bulk(b"message", out);
                bulk(CHANNEL, out);
            }
        }
        match self {
            Self::Everything => encode(&Answer::Null, protocol, out),
            Self::Keys(keys) => {
                array_header(keys.len(), out);
                keys.iter().for_each(|key| bulk(key, out));
            }
        }
    }
}

/// What a lane is to tell connections of its own on behalf of other connections.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    messages: Mutex<Vec<(Slot, Told)>>,
    any: AtomicBool,
}

impl Inbox {
    fn leave(&self, to: Slot, told: Told) {
        lock(&self.messages).push((to, told));
        self.any.store(true, Relaxed);
    }

    fn is_empty(&self) -> bool {
        !self.any.load(Relaxed)
    }

    fn take(&self) -> Vec<(Slot, Told)> {
        if self.is_empty() {
            return Vec::new();
        }
        self.any.store(false, Relaxed);
        std::mem::take(&mut lock(&self.messages))
    }
}

/// What the lanes of a node track, together.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) clients: AtomicU64,
    pub(crate) keys: AtomicU64,
    pub(crate) items: AtomicU64,
    pub(crate) prefixes: AtomicU64,
    /// How often clients of this node have emptied a keyspace.
    flushes: AtomicU64,
    /// How often changes were not told key by key. A lease that lapsed does not count: if the node gets
    /// one again in the same life, it has heard of every change.
    pub(crate) untold: AtomicU64,
}

/// What `CLIENT LIST` shows of a client.
#[derive(Debug, Default)]
pub(crate) struct TrackingFacts {
    flags: AtomicU8,
    redirect: AtomicU64,
}

const ON: u8 = 1;
const BROKEN: u8 = 2;
const BROADCAST: u8 = 4;

impl TrackingFacts {
    fn publish(&self, tracking: Option<&ClientTracking>) {
        let flag = |set: bool, flag| if set { flag } else { 0 };
        let flags = tracking.map_or(0, |tracking| {
            ON | flag(tracking.broken, BROKEN) | flag(tracking.is_broadcast(), BROADCAST)
        });
        self.flags.store(flags, Relaxed);
        self.redirect.store(tracking.map_or(0, |tracking| tracking.redirect), Relaxed);
    }

    /// The flags, each with whether it is set, and the client that is told instead.
    pub(crate) fn shown(&self) -> ([(bool, char); 3], i64) {
        let flags = self.flags.load(Relaxed);
        let shown = [(ON, 't'), (BROKEN, 'R'), (BROADCAST, 'B')]
            .map(|(bit, sign)| (flags & bit != 0, sign));
        let redirect = self.redirect.load(Relaxed) as i64;
        (shown, if flags & ON == 0 { -1 } else { redirect })
    }
}

impl Core {
    /// Whether keys are to be forgotten, or the node is to be told of some that were.
    pub(crate) fn has_tracking_work(&self) -> bool {
        let tracking = &self.tracking;
        !tracking.forgotten.is_empty()
            || !tracking.dropped.is_empty()
            || tracking.announced == tracking.clients.is_empty()
            || self.tracks_too_much()
    }

    fn tracks_too_much(&self) -> bool {
        let max = self.shared.settings.tracked_keys_max.load(Relaxed);
        let tracking = &self.tracking;
        let too_many = max > 0 && self.shared.tracking.keys.load(Relaxed) > max;
        let is_over = too_many || tracking.bytes > limits::TRACKED_BYTES_PER_LANE_MAX;
        is_over && tracking.keyspaces.values().any(|keys| !keys.is_empty())
    }

    /// Clients have emptied a keyspace: those that keep what they have read are told so, on all lanes.
    pub(crate) fn was_flushed(&mut self) {
        self.shared.tracking.untold.fetch_add(1, Relaxed);
        self.shared.tracking.flushes.fetch_add(1, Relaxed);
        self.named_others = true;
    }

    /// A connection keeps nothing any more.
    pub(crate) fn end_tracking(&mut self, connection: &mut Connection, id: ConnectionId) {
        let Some(tracking) = connection.tracking.take() else { return };
        if let Mode::Broadcast(prefixes) = &tracking.mode {
            for prefix in prefixes {
                let totals = &self.shared.tracking;
                self.tracking.remove_prefix(prefix, tracking.coalesced, id, totals);
            }
        }
        self.tracking.clients.remove(&id);
        self.shared.tracking.clients.fetch_sub(1, Relaxed);
        if self.tracking.clients.is_empty() {
            self.tracking.clear(&self.shared.tracking);
        }
        connection.facts.tracking.publish(None);
    }

    /// Tells a connection, or the one that it has named, what not to rely on. `own` says that it made
    /// the change itself.
    fn tell(&mut self, connection: &mut Connection, id: ConnectionId, told: Told, own: bool) {
        let Some(tracking) = &connection.tracking else { return };
        if connection.life != Life::Open {
            return;
        }
        let (redirected, protocol) = (tracking.redirect != 0, connection.session.protocol);
        // What it waits for may be a read that is to be forgotten, too: then it is told twice.
        let at_once = connection.only_waits() && !own;
        let behind = !at_once || connection.waits_to_read();
        match (redirected, protocol) {
            (true, _) => {
                if at_once || connection.replies.is_empty() {
                    connection.redirected.push(told.clone());
                }
                if behind && !connection.replies.is_empty() {
                    connection.redirect_behind(told);
                }
                self.hand_on_redirected(connection);
            }
            (false, Protocol::Resp3) => {
                if at_once {
                    connection.begin_message(|out| told.write(protocol, out));
                }
                if behind && mutant!("resp_invalidation_overtakes_reply") {
                    connection.begin_message(|out| told.write(protocol, out));
                } else if behind {
                    connection.push_message(|out| told.write(protocol, out));
                }
            }
            (false, Protocol::Resp2) => return,
        }
        self.has_delivered(connection, id);
    }

    /// Hands on what the clients that a connection has named are to be told now.
    pub(crate) fn hand_on_redirected(&mut self, connection: &mut Connection) {
        for told in std::mem::take(&mut connection.redirected) {
            let Some(tracking) = &mut connection.tracking else { return };
            let Some(facts) = self.shared.client(tracking.redirect) else {
                tracking.broken = true;
                let (redirect, protocol) = (tracking.redirect, connection.session.protocol);
                connection.facts.tracking.publish(connection.tracking.as_deref());
                if protocol == Protocol::Resp3 {
                    connection.push_message(|out| {
                        push_header(2, protocol, out);
                        bulk(b"tracking-redir-broken", out);
                        integer(b':', redirect as i64, out);
                    });
                }
                continue;
            };
            facts.inbox.leave(Slot::from_u64(facts.place.load(Relaxed)), told);
            self.named_others = true;
        }
    }
}

impl Frontend {
    /// Keys have changed on this node, or may have.
    pub fn invalidated(&mut self, invalidation: Invalidation) {
        match invalidation {
            Invalidation::Everything => self.invalidate_everything(false),
            Invalidation::Keys { keyspace, keys, more } => {
                let mut of_prefixes: BTreeMap<Box<[u8]>, Vec<usize>> = BTreeMap::new();
                for (at, (key, writer)) in keys.iter().enumerate() {
                    let writer = writer.map_or(0, u64::from);
                    self.invalidate_readers(keyspace, key, writer);
                    for prefix in self.core.tracking.prefixes_of(key) {
                        of_prefixes.entry(prefix.into()).or_default().push(at);
                    }
                }
                for (prefix, changed) in of_prefixes {
                    self.broadcast(&prefix, changed.iter().map(|at| &keys[*at]));
                }
                if more {
                    self.core.shared.tracking.untold.fetch_add(1, Relaxed);
                    self.invalidate_everything(true);
                }
            }
        }
        self.settle_messages();
    }

    /// A key has changed, or is forgotten for want of room.
    fn invalidate_readers(&mut self, keyspace: u8, key: &[u8], writer: u64) {
        let readers = self.core.tracking.remove(keyspace, key, &self.core.shared.tracking);
        for id in readers {
            self.tell(id, writer, |tracking| {
                (!tracking.is_broadcast()).then(|| Told::Keys([key.into()].into()))
            });
        }
    }

    /// Keys with a prefix have changed.
    fn broadcast<'k>(
        &mut self,
        prefix: &[u8],
        keys: impl Iterator<Item = &'k (Box<[u8]>, Option<std::num::NonZeroU64>)> + Clone,
    ) {
        let listeners = self.core.tracking.prefixes.get(prefix);
        let clients = listeners.into_iter().flat_map(|each| each.0.iter().flatten().copied());
        for id in clients.collect::<Vec<_>>() {
            let Some(own) = self.connections.get(id.0).map(|one| one.facts.id) else { continue };
            self.tell(id, 0, |tracking| {
                let hears = |writer: Option<std::num::NonZeroU64>| {
                    !(tracking.no_loop && writer.is_some_and(|writer| writer.get() == own))
                };
                let heard = keys.clone().filter(|(_, writer)| hears(*writer));
                let keys: Vec<_> = heard.map(|(key, _)| key.clone()).collect();
                (!keys.is_empty()).then_some(Told::Keys(keys))
            });
        }
    }

    /// Anything may have changed, for all clients or for those that track prefixes.
    fn invalidate_everything(&mut self, broadcast_only: bool) {
        for id in self.core.tracking.clients.clone() {
            self.tell(id, 0, |tracking| {
                (!broadcast_only || tracking.is_broadcast()).then_some(Told::Everything)
            });
        }
    }

    /// Tells a client what it makes of its tracking, unless the change is its own and it wants to hear
    /// of no such.
    fn tell(
        &mut self,
        id: ConnectionId,
        writer: u64,
        told: impl FnOnce(&ClientTracking) -> Option<Told>,
    ) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        let own = connection.facts.id == writer;
        let Some(tracking) = &connection.tracking else { return };
        if own && tracking.no_loop || mutant!("resp_invalidation_lost") {
            return;
        }
        if let Some(told) = told(tracking) {
            self.core.tell(connection, id, told, own);
        }
    }

    /// Whether another lane has left something here that has not been looked at: the lane must not
    /// sleep then.
    pub fn has_arrivals(&self) -> bool {
        let flushes = self.core.shared.tracking.flushes.load(Relaxed);
        !self.core.inbox.is_empty() || self.core.tracking.flushes != flushes
    }

    /// Passes on what connections of this lane are told on behalf of others, and that a keyspace was
    /// emptied.
    pub(crate) fn settle_messages(&mut self) {
        let flushes = self.core.shared.tracking.flushes.load(Relaxed);
        if std::mem::replace(&mut self.core.tracking.flushes, flushes) != flushes {
            self.core.tracking.clear(&self.core.shared.tracking);
            self.invalidate_everything(false);
        }
        for (slot, told) in self.core.inbox.take() {
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            let protocol = connection.session.protocol;
            let hears = protocol == Protocol::Resp3 || connection.is_subscriber();
            if connection.life == Life::Open && hears {
                connection.push_message(|out| told.write(protocol, out));
                self.core.has_delivered(connection, ConnectionId(slot));
            }
        }
    }

    /// Forgets keys for which there is no room, and tells the node of what is forgotten.
    pub(crate) fn tend_tracking<B: Backend>(&mut self, backend: &mut B) {
        if !self.core.has_tracking_work() {
            return;
        }
        let active = !self.core.tracking.clients.is_empty();
        if std::mem::replace(&mut self.core.tracking.announced, active) != active {
            backend.set_tracking(active);
        }
        for (prefix, coalesced) in std::mem::take(&mut self.core.tracking.dropped) {
            backend.untrack_prefix(&prefix, coalesced);
        }
        for _ in 0..limits::FORGOTTEN_PER_TURN {
            if self.core.tracks_too_much()
                && let Some((keyspace, key)) = self.core.tracking.next_to_evict()
            {
                self.invalidate_readers(keyspace, &key, 0);
                self.core.tracking.evicted = (keyspace, key.clone());
                backend.untrack(keyspace, &key);
            } else if let Some((keyspace, key)) = self.core.tracking.forgotten.pop() {
                // It may have been read again.
                if !self.core.tracking.is_tracked(keyspace, &key) {
                    backend.untrack(keyspace, &key);
                }
            } else {
                break;
            }
        }
        self.settle_messages();
    }
}

impl<B: Backend> Context<'_, B> {
    /// Tracks the keys that a command is about to read, if the client wants that or `always`. Those of
    /// whose changes this node doesn't hear count as changed once the command is answered: see
    /// [`Context::told_unheard`].
    #[inline]
    pub(crate) fn track_reads(
        &mut self,
        database: u8,
        call: &Call<'_>,
        always: bool,
    ) -> Vec<Box<[u8]>> {
        match &self.connection.tracking {
            Some(tracking) if always || tracking.tracks_reads() => self.track_keys(database, call),
            _ => Vec::new(),
        }
    }

    fn track_keys(&mut self, database: u8, call: &Call<'_>) -> Vec<Box<[u8]>> {
        let reads = call.spec.flags.has(flag::READONLY) || call.is_script();
        if !matches!(call.spec.run, Run::Key(_)) || !reads || mutant!("resp_read_not_tracked") {
            return Vec::new();
        }
        let (core, backend, id) = (&mut *self.core, &mut *self.backend, self.id);
        let mut unheard = Vec::new();
        for key in call.keys() {
            if core.tracking.is_tracked(database, key) || backend.track(database, key) {
                core.tracking.add(database, key, id, &core.shared.tracking);
            } else {
                unheard.push(key.into());
            }
        }
        unheard
    }

    /// Tells the client not to rely on keys of whose changes this node doesn't hear.
    #[inline]
    pub(crate) fn told_unheard(&mut self, keys: Vec<Box<[u8]>>) {
        if !keys.is_empty() {
            self.core.tell(self.connection, self.id, Told::Keys(keys), true);
        }
    }

    /// A command has been executed or queued: `CLIENT CACHING` goes for one command or transaction.
    #[inline]
    pub(crate) fn end_caching(&mut self, args: Args<'_>) {
        if let Some(tracking) = &mut self.connection.tracking
            && tracking.caching
            && !self.connection.transaction.is_open()
            && !args.get(0).eq_ignore_ascii_case(b"client")
        {
            tracking.caching = false;
        }
    }

    /// `CLIENT CACHING` goes for nothing any more.
    pub(crate) fn forget_caching(&mut self) {
        if let Some(tracking) = &mut self.connection.tracking {
            tracking.caching = false;
        }
    }

    /// `CLIENT TRACKING`. What comes behind it must be tracked, so it waits until the other lanes know
    /// of new prefixes.
    pub(crate) fn client_tracking(&mut self, call: &Call<'_>) {
        let prefixes = match self.set_tracking(call.args) {
            Ok(None) => return self.reply(call.spec, &Answer::Ok),
            Ok(Some(prefixes)) => prefixes,
            Err(reply) => return self.reply(call.spec, &reply),
        };
        let number = self.connection.push(Reply::Subscribed(b"+OK\r\n".to_vec()));
        self.connection.barrier = true;
        let tag = self.tag(number, 0, 0);
        let prefixes: Vec<&[u8]> = prefixes.iter().map(|prefix| &**prefix).collect();
        let coalesced =
            self.connection.tracking.as_ref().is_some_and(|tracking| tracking.coalesced);
        self.backend.track_prefixes(tag, &prefixes, coalesced);
    }

    /// `CLIENT TRACKING ON | OFF ...`. For prefixes those of them that nobody on this lane has tracked
    /// so before.
    fn set_tracking(&mut self, args: Args<'_>) -> Result<Option<Vec<Box<[u8]>>>, Answer<'static>> {
        let options = Options::parse(args, |id| self.core.shared.client(id).is_some())?;
        if args.get(2).eq_ignore_ascii_case(b"off") {
            self.core.end_tracking(self.connection, self.id);
            return Ok(None);
        }
        if !args.get(2).eq_ignore_ascii_case(b"on") {
            return Err(SYNTAX);
        }
        let before = self.connection.tracking.as_deref();
        options.check(before)?;
        let Options { redirect, broadcast, opt_in, opt_out, no_loop, coalesced, mut prefixes } =
            options;
        if broadcast && prefixes.is_empty() {
            prefixes.push(b"");
        }
        if broadcast && !self.backend.hears_all() {
            return Err(Answer::error(NOT_ALL_KEYS));
        }
        let known = self.core.tracking.prefixes.len() + prefixes.len();
        if broadcast && known > limits::TRACKED_PREFIXES_PER_LANE_MAX
            || prefixes.iter().any(|prefix| prefix.len() > quorate_types::limits::KEY_BYTES_MAX)
        {
            return Err(Answer::error(TOO_MANY));
        }
        let caching = before.is_some_and(|before| before.caching);
        let mut mode = match (opt_in, opt_out) {
            (true, _) => Mode::OptIn,
            (_, true) => Mode::OptOut,
            _ => Mode::Read,
        };
        let mut new = Vec::new();
        let (core, id) = (&mut *self.core, self.id);
        if core.tracking.clients.insert(id) {
            core.shared.tracking.clients.fetch_add(1, Relaxed);
        }
        if broadcast {
            let mut all = match self.connection.tracking.take().map(|before| before.mode) {
                Some(Mode::Broadcast(prefixes)) => prefixes,
                _ => BTreeSet::new(),
            };
            for prefix in prefixes {
                all.insert(prefix.into());
                if core.tracking.add_prefix(prefix, coalesced, id, &core.shared.tracking) {
                    new.push(prefix.into());
                }
            }
            mode = Mode::Broadcast(all);
        }
        let tracking =
            ClientTracking { redirect, mode, no_loop, coalesced, caching, broken: false };
        self.connection.facts.tracking.publish(Some(&tracking));
        self.connection.tracking = Some(Box::new(tracking));
        if !std::mem::replace(&mut core.tracking.announced, true) {
            self.backend.set_tracking(true);
        }
        Ok(broadcast.then_some(new))
    }

    /// `CLIENT CACHING YES | NO`.
    pub(crate) fn client_caching(&mut self, word: &[u8]) -> Answer<'static> {
        let Some(tracking) = &mut self.connection.tracking else {
            return Answer::error(
                "ERR CLIENT CACHING can be called only when the client is in tracking mode with \
                 OPTIN or OPTOUT mode enabled",
            );
        };
        let fits = match word.to_ascii_lowercase().as_slice() {
            b"yes" if !matches!(tracking.mode, Mode::OptIn) => {
                Err("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.")
            }
            b"no" if !matches!(tracking.mode, Mode::OptOut) => {
                Err("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.")
            }
            b"yes" | b"no" => Ok(()),
            _ => return SYNTAX,
        };
        match fits {
            Ok(()) => {
                tracking.caching = true;
                Answer::Ok
            }
            Err(text) => Answer::error(text),
        }
    }

    /// `CLIENT GETREDIR`.
    pub(crate) fn client_redirect(&self) -> Answer<'static> {
        let tracking = self.connection.tracking.as_ref();
        Answer::Int(tracking.map_or(-1, |tracking| tracking.redirect as i64))
    }

    /// `CLIENT TRACKINGINFO`.
    pub(crate) fn client_tracking_info(&self) -> Answer<'static> {
        let text = |word: &'static str| Answer::Bulk(word.as_bytes().into());
        let (mut flags, mut prefixes) = (Vec::new(), Vec::new());
        match self.connection.tracking.as_deref() {
            None => flags.push(text("off")),
            Some(tracking) => {
                flags.push(text("on"));
                flags.extend(match tracking.mode {
                    Mode::Read => None,
                    Mode::OptIn => Some(text("optin")),
                    Mode::OptOut => Some(text("optout")),
                    Mode::Broadcast(_) => Some(text("bcast")),
                });
                if tracking.caching {
                    let is_in = matches!(tracking.mode, Mode::OptIn);
                    flags.push(text(if is_in { "caching-yes" } else { "caching-no" }));
                }
                flags.extend(tracking.no_loop.then(|| text("noloop")));
                flags.extend(tracking.coalesced.then(|| text("coalesce")));
                flags.extend(tracking.broken.then(|| text("broken_redirect")));
                if let Mode::Broadcast(all) = &tracking.mode {
                    prefixes = all.iter().map(|prefix| crate::session::bulk(prefix)).collect();
                }
            }
        }
        Answer::Map(vec![
            (text("flags"), Answer::Set(flags)),
            (text("redirect"), self.client_redirect()),
            (text("prefixes"), Answer::Array(prefixes)),
        ])
    }
}
