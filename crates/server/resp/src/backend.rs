//! What the front end needs from the store behind it.

use std::num::NonZeroU64;
use std::sync::Arc;

use quorate_commands::{CROSSKEY, Call, Line, Op, OwnedCall, Reply};
use quorate_machine::{Command, ValueKind};
use quorate_rifl::{Genuine, Grant, LeaseId, Request};
use quorate_types::{Duration, Instant, Now, Publication, Tag, Topic};

/// A keyspace as clients see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyspaceFacts {
    /// The number that `SELECT` takes.
    pub number: u8,
    /// Its configured name.
    pub name: String,
    /// Its engine's name.
    pub engine: &'static str,
    /// How many replicas it is configured to have.
    pub replicas: usize,
    /// Keys that have a value on this node.
    pub keys: u64,
    /// Keys that have a value with an expiry.
    pub expires: u64,
}

/// The node's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryFacts {
    /// Bytes of records and indexes, accounted exactly; what `maxmemory` bounds.
    pub used: u64,
    /// The largest `used` so far.
    pub peak: u64,
    /// Resident bytes of the process, 0 if unknown.
    pub resident: u64,
}

/// The node, for `INFO`, `HELLO` and `LOLWUT`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerFacts {
    /// This program's version.
    pub version: String,
    /// The cluster's name.
    pub cluster: String,
    /// The node's id.
    pub node: u16,
    /// The node's incarnation.
    pub incarnation: u64,
    /// The epoch of the view in force.
    pub epoch: u64,
    /// What the node does in the view: `active`, `shadow` or `down`.
    pub role: &'static str,
    /// Whether the node holds its lease.
    pub lease: bool,
    /// Lanes of the node.
    pub lanes: u16,
    /// The voters: id, what it does, its client address.
    pub members: Vec<(u16, &'static str, String)>,
    /// The Redis port.
    pub port: u16,
    /// The process id.
    pub process: u32,
    /// Seconds since the node started.
    pub uptime_seconds: u64,
    /// Processor time of the process so far, in microseconds: system, user.
    pub cpu_micros: (u64, u64),
    /// By lane, the longest turn of its loop since the start or [`Backend::reset_stats`], in
    /// microseconds; 0 if none was slow.
    pub longest_turns_micros: Vec<u64>,
}

/// What a node knows of its log, all lanes together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PersistenceFacts {
    /// Whether a snapshot is being written or was asked for.
    pub is_saving: bool,
    /// When the last one was complete, in seconds since 1970; before the first, when the node started.
    pub last_save: u64,
    /// Whether the last one found no room.
    pub save_failed: bool,
    /// How long the last one took.
    pub save_seconds: Option<u64>,
    /// Bytes of the last ones.
    pub save_bytes: u64,
    /// Snapshots that all lanes have completed since the start.
    pub saves: u64,
    /// Entries of the log since the last snapshots began, and their bytes.
    pub entries_since_save: u64,
    /// Likewise.
    pub bytes_since_save: u64,
    /// Bytes that are not on the disk yet.
    pub pending_bytes: u64,
    /// Whether the disk has no room.
    pub is_full: bool,
    /// Entries and bytes that were restored at the start.
    pub restored: (u64, u64),
    /// Flushes since the start.
    pub flushes: u64,
    /// How long they took, in microseconds.
    pub flush_micros: u64,
}

/// Where transactions run whose keys move, and how often keys do, since the node started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlacementFacts {
    /// Moves of keys between live nodes that this node has seen.
    pub moves: u64,
    /// Of 1000 commands of this node that may change something, how many ran here at once.
    pub local_share: u64,
    /// Units of keys that have begun to bounce, and those that do now.
    pub bounced: (u64, u64),
    /// Copies of keys that other nodes keep, which have given way since memory was short.
    pub copies_dropped: u64,
    /// Units that are pinned.
    pub pins: u64,
}

/// A session's call, as the front end submits it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Which call it is.
    pub call: quorate_rifl::Call,
    /// The permission that the connection was given last.
    pub grant: Grant,
    /// What it asks for. It updates something.
    pub op: Op,
}

/// A command that waits for what its keys will hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocking {
    /// The command.
    pub call: OwnedCall,
    /// What it waits for.
    pub line: Line,
    /// Until when; then [`quorate_commands::Wait::NOTHING`] is its answer.
    pub until: Instant,
}

/// Some keys of a keyspace, as other nodes say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Where the listing goes on; 0 at the end.
    pub next: u64,
    /// The keys; none if only their number was asked for.
    pub keys: Vec<Vec<u8>>,
    /// How many they are.
    pub count: u64,
}

/// What clients must no longer rely on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// Keys have changed.
    Keys {
        /// The number of the keyspace.
        keyspace: u8,
        /// The keys, each with the client that alone has changed it, if that is known.
        keys: Vec<(Box<[u8]>, Option<NonZeroU64>)>,
        /// Whether any other key with a tracked prefix may have changed as well.
        more: bool,
    },
    /// Anything may have.
    Everything,
}

/// The store and the node behind a front end, as one lane reaches them.
///
/// Everything but [`Backend::submit`], [`Backend::block`], [`Backend::flush`], [`Backend::call`],
/// [`Backend::list`] and [`Backend::lease`] answers at once. The first four are answered through
/// [`crate::Frontend::complete`] with the same tag, exactly once, and not before the call into the
/// front end that submitted them has returned.
pub trait Backend {
    /// The keyspace that `SELECT number` picks, if there is one.
    fn keyspace(&self, number: u8) -> Option<KeyspaceFacts>;

    /// Whether there is such a keyspace; cheaper than [`Backend::keyspace`].
    fn has_keyspace(&self, number: u8) -> bool {
        self.keyspace(number).is_some()
    }

    /// Whether the keyspace's engine runs transactions over several keys. Otherwise an op has one.
    fn transactional(&self, keyspace: u8) -> bool;

    /// What is answered instead of [`quorate_commands::CROSSKEY`]: it names the engines that can.
    fn crosskey(&self) -> &str {
        CROSSKEY
    }

    /// Executes a read on this node's replica and hands its reply to `with`, borrowing the value.
    /// Nothing, and `with` not called, if the replica can't answer now (the key has an update in
    /// flight, the node doesn't serve): the op must then be submitted.
    ///
    /// The reply counts only if the node's lease still holds after the read, which the front end
    /// leaves to the caller of [`crate::Frontend::seal`].
    fn read<R>(
        &mut self,
        keyspace: u8,
        now: Now,
        call: &Call<'_>,
        with: impl FnOnce(Reply<'_>) -> R,
    ) -> Option<R>;

    /// Bytes of values that reads on this replica have looked at since this was asked last.
    fn touched(&mut self) -> u64;

    /// Reads the clock: how long the turn lasts already.
    fn clock(&mut self) -> Instant;

    /// Submits an op to the keyspace's engine: all of it happens at once, or nothing. Ops of one
    /// `origin` that have a key in common take effect in the order of submission. In a keyspace that
    /// is [`Backend::transactional`], one that is too large or that others keep getting in the way
    /// of is refused, with [`quorate_machine::Refusal::TooLarge`] or
    /// [`quorate_machine::Refusal::Conflict`].
    fn submit<P>(&mut self, keyspace: u8, now: Now, tag: Tag, origin: u64, op: P)
    where
        P: Command<Owned = Op, Reply = Reply<'static>>;

    /// Submits a command that waits: for its first answer that is something, in order of arrival. It is
    /// answered when its time is over, unless what it asks for is being decided then, and after one more
    /// look.
    fn block(&mut self, keyspace: u8, now: Now, tag: Tag, origin: u64, blocking: Blocking);

    /// Ends the wait of [`Backend::block`] with this answer, unless something is being handed to it. Before
    /// it is told that there is nothing, that is looked at once more.
    fn unblock(&mut self, tag: Tag, answer: Reply<'static>);

    /// Whether the keyspace's engine carries out the calls of sessions.
    fn has_sessions(&self, keyspace: u8) -> bool;

    /// How long a session's lease lasts without being renewed.
    fn session_term(&self) -> Duration;

    /// The token that a client is told with the id of a session that this node began.
    fn session_token(&self, lease: LeaseId) -> u64;

    /// Whether a client that shows this token was told the id of the session.
    fn is_genuine(&self, lease: LeaseId, token: u64) -> Genuine;

    /// Asks for a session's lease. Answered through [`crate::Frontend::leased`] with the same tag.
    fn lease(&mut self, now: Now, tag: Tag, request: Request);

    /// Submits a session's call to a keyspace that has sessions. If the session's lease is no more,
    /// it is answered through [`crate::Frontend::leased`] instead, which also says so if the lease
    /// was renewed for the call.
    fn call(&mut self, keyspace: u8, now: Now, tag: Tag, origin: u64, attempt: Attempt);

    /// Deletes every key of a keyspace; completes with [`Reply::Ok`].
    fn flush(&mut self, keyspace: u8, now: Now, tag: Tag);

    /// Visits some keys that have a live value, from `cursor` (0 begins). Returns the next
    /// cursor, 0 at the end. A key present during a whole iteration is visited at least once.
    /// Nothing, and no key visited, if this node doesn't hold all of them: [`Backend::list`].
    fn scan(
        &mut self,
        keyspace: u8,
        now: Now,
        cursor: u64,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], ValueKind),
    ) -> Option<u64>;

    /// Whether this node's records are all that a listing needs. Otherwise it must be asked of
    /// [`Backend::list`] and [`Backend::count`], even if this node holds all keys: others may have
    /// acknowledged what it has yet to hear of.
    fn lists_alone(&self, keyspace: u8) -> bool;

    /// As [`Backend::scan`], of the nodes that hold the keys. Answered through
    /// [`crate::Frontend::listed`] with the same tag, not before the call into the front end that
    /// asked has returned.
    fn list(
        &mut self,
        keyspace: u8,
        now: Now,
        tag: Tag,
        cursor: u64,
        limit: usize,
        kind: Option<ValueKind>,
    );

    /// As [`Backend::list`], but only how many keys there are.
    fn count(&mut self, keyspace: u8, now: Now, tag: Tag, cursor: u64);

    /// So many clients of this lane listen to a name from now on.
    fn listen(&mut self, now: Now, topic: Topic, name: &[u8], clients: u32);

    /// Whether every node knows which names the clients of this lane listen to.
    fn is_announced(&self) -> bool;

    /// Completes with [`Reply::Ok`] once every node knows, or doesn't answer.
    fn announce(&mut self, now: Now, tag: Tag);

    /// Hands a message to the other lanes and nodes on which somebody listens, and returns how many
    /// subscriptions in the whole cluster, those of this lane included, it is for, as far as is known.
    fn publish(&mut self, now: Now, publication: &Arc<Publication>) -> u64;

    /// How many clients in the whole cluster listen to a name, as far as is known.
    fn listeners(&self, topic: Topic, name: &[u8]) -> u64;

    /// Visits the names to which clients listen in the whole cluster, as far as is known, each once.
    fn visit_names(&self, topic: Topic, visit: &mut dyn FnMut(&[u8]));

    /// Whether any client of this lane keeps what it reads.
    fn set_tracking(&mut self, active: bool);

    /// The next change of a key is told through [`crate::Frontend::invalidated`], unless this returns
    /// false. To be called before the key is read.
    fn track(&mut self, keyspace: u8, key: &[u8]) -> bool;

    /// Nobody on this lane tracks the key any more.
    fn untrack(&mut self, keyspace: u8, key: &[u8]);

    /// Whether this node hears of the changes of every key.
    fn hears_all(&self) -> bool;

    /// Each change of a key with one of these prefixes is told through
    /// [`crate::Frontend::invalidated`], in every keyspace, from the moment on at which this completes
    /// with [`Reply::Ok`]. If they are `coalesced`, changes are told together, and a key once until this is
    /// called again on any lane.
    fn track_prefixes(&mut self, tag: Tag, prefixes: &[&[u8]], coalesced: bool);

    /// Nobody on this lane tracks the prefix so any more.
    fn untrack_prefix(&mut self, prefix: &[u8], coalesced: bool);

    /// A random number.
    fn random(&mut self) -> u64;

    /// A cursor at a place that `random` chooses.
    fn random_cursor(&self, keyspace: u8, random: u64) -> u64;

    /// How many keys have a value; `None` if this node doesn't hold all keys.
    fn key_count(&self, keyspace: u8) -> Option<u64>;

    /// Bytes that a key and its value take, index included; nothing for an absent key.
    fn memory_usage(&mut self, keyspace: u8, now: Now, key: &[u8]) -> Option<u64>;

    /// Live replicas of the keyspace besides this node. Every one of them has acknowledged every
    /// write that was answered, or a majority has, where that decides.
    fn replicas(&self, keyspace: u8) -> usize;

    /// How many units of keys are pinned to nodes, and the node of this one. `None` where keys don't move,
    /// which is where nothing is pinned.
    fn pins(&self, keyspace: u8, unit: &[u8]) -> Option<(u64, Option<u16>)> {
        let _ = (keyspace, unit);
        None
    }

    /// Where transactions run whose keys move. `None` if no keys do.
    fn placement(&self) -> Option<PlacementFacts> {
        None
    }

    /// Updates that may have ended and whose end some live replica may not know, those begun at this
    /// node. Slightly old, but for what [`Backend::track_prefixes`] has completed behind.
    fn unsettled(&self) -> u64 {
        0
    }

    /// What is known of the node's log. `None` if it has none.
    fn persistence(&self) -> Option<PersistenceFacts> {
        None
    }

    /// Has a snapshot of every lane written; only if there is a log.
    fn save(&mut self) {}

    /// Whether an update of this keyspace is answered once it is on the disks of all live replicas.
    fn acknowledges_from_disks(&self, keyspace: u8) -> bool {
        let _ = keyspace;
        false
    }

    /// The node's memory.
    fn memory(&self) -> MemoryFacts;

    /// The node.
    fn facts(&self) -> ServerFacts;

    /// `CONFIG RESETSTAT`: [`ServerFacts::longest_turns_micros`] begins anew.
    fn reset_stats(&mut self);

    /// Whether the node serves clients now; otherwise the sentence that follows `CLUSTERDOWN`.
    ///
    /// # Errors
    /// Why it doesn't, and what to do.
    fn serving(&self) -> Result<(), &'static str>;

    /// Whether the node takes ops: it serves, or has them wait until it does.
    ///
    /// # Errors
    /// As [`Backend::serving`], once ops have waited in vain.
    fn takes_ops(&self) -> Result<(), &'static str>;

    /// Asks the node to drain and stop.
    fn shutdown(&mut self);
}
