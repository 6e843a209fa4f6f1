//! `MULTI`, `EXEC`, `WATCH`: a queue of commands that becomes one op or one transaction.
//!
//! The queued commands that touch keys run together with the versions that `WATCH` saw, so that
//! the engine decides atomically: as one [`Block`] over any keys in a transactional keyspace, as
//! which has one key in another. Commands without keys run once those have: they
//! don't run at all if a watched key has changed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{
    ANSWER_TOO_LONG, Block, CROSSKEY, Call, ConnectionCommand, Op, OwnedCall, Reply as Answer, Run,
    ServerCommand, Spec, Watch, flag, parse_integer,
};
use quorate_machine::Access;
use quorate_types::limits as bounds;

use crate::backend::Backend;
use crate::calls::Numbered;
use crate::connection::Reply;
use crate::dispatch::{Context, flush_options_are_valid};
use crate::encode::{array_header, encode, error};
use crate::frontend::refuse;
use crate::limits;
use crate::pending::{Exec, Failure, Step};

/// The answer to a block whose keys, watched ones included, are in several keyspaces, if one of them
/// is transactional.
const ONE_KEYSPACE: &str = "CROSSKEY a transaction stays in one keyspace; the keys of WATCH and of \
                            every command between MULTI and EXEC must be in the same one";
/// The answer to a block with a flush and something else on keys.
const FLUSH_ALONE: &str = "CROSSKEY a flush is not part of a transaction; a block with FLUSHDB or \
                           FLUSHALL can't touch keys, watch them or flush again";

/// The replies to `MULTI` and to a command that it queues.
const OK: &[u8] = b"+OK\r\n";
const QUEUED: &[u8] = b"+QUEUED\r\n";

/// The keys that a connection watches in one keyspace, as `WATCH` saw them.
type Watches = BTreeMap<Box<[u8]>, Watch>;

/// What a connection has queued and watches.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    queue: Option<Vec<OwnedCall>>,
    bytes: usize,
    failed: bool,
    has_local: bool,
    may_add: bool,
    /// By keyspace; none of them is empty.
    watches: BTreeMap<u8, Watches>,
    /// Bytes of the watched keys.
    watched_bytes: usize,
}

impl Transaction {
    /// Whether commands are being queued.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.queue.is_some()
    }

    /// The queued commands.
    pub(crate) fn calls(&self) -> impl Iterator<Item = Call<'_>> {
        self.queue.iter().flatten().map(OwnedCall::call)
    }

    /// Whether a queued command needs something else than its key.
    pub(crate) fn has_local(&self) -> bool {
        self.has_local
    }

    /// Whether a queued command may add data, for which there must be memory when it runs.
    pub(crate) fn may_add(&self) -> bool {
        self.may_add
    }

    pub(crate) fn begin(&mut self) {
        self.queue = Some(Vec::new());
    }

    /// A command was rejected: `EXEC` will refuse.
    pub(crate) fn fail(&mut self) {
        self.failed |= self.is_open();
    }

    /// Forgets the queue and the watches.
    pub(crate) fn discard(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn unwatch(&mut self) {
        self.watches.clear();
        self.watched_bytes = 0;
    }

    /// Bytes that the queue and the watched keys take.
    pub(crate) fn bytes(&self) -> usize {
        let watches: usize = self.watches.values().map(Watches::len).sum();
        self.bytes + self.watched_bytes + watches * size_of::<(Box<[u8]>, Watch)>()
    }

    /// Whether the key is watched.
    pub(crate) fn watches(&self, database: u8, key: &[u8]) -> bool {
        self.watches.get(&database).is_some_and(|watches| watches.contains_key(key))
    }

    /// Whether a block could check these keys too. More than a transaction may read is never
    /// remembered.
    pub(crate) fn has_room_for(&self, keys: &[Box<[u8]>]) -> bool {
        let count = self.watches.values().map(Watches::len).sum::<usize>() + keys.len();
        let bytes = self.watched_bytes + keys.iter().map(|key| key.len()).sum::<usize>();
        count <= bounds::TXN_KEYS_MAX && bytes <= bounds::TXN_BYTES_MAX
    }

    /// Remembers a key; a key that is already watched keeps the version first seen.
    pub(crate) fn watch(&mut self, database: u8, key: Box<[u8]>, version: Watch) {
        let bytes = key.len();
        if let Entry::Vacant(place) = self.watches.entry(database).or_default().entry(key) {
            place.insert(version);
            self.watched_bytes += bytes;
        }
    }
}

/// Why a block can't run, from what only a keyspace without transactions minds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Clash {
    Keys,
    Keyspaces,
    Flush,
}

/// What an `EXEC` has to do.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    /// The first key, and its keyspace.
    target: Option<(u8, Box<[u8]>)>,
    /// Whether a keyspace that is touched or flushed has transactions.
    transactional: bool,
    calls: Vec<OwnedCall>,
    update: bool,
    /// The keyspaces to flush.
    flush: Vec<u8>,
    clash: Option<Clash>,
}

impl Plan {
    fn touch(&mut self, database: u8, key: &[u8]) {
        let clash = match &self.target {
            None => {
                self.target = Some((database, key.into()));
                return;
            }
            Some((other, _)) if *other != database => Some(Clash::Keyspaces),
            Some((_, known)) if **known != *key => Some(Clash::Keys),
            Some(_) => None,
        };
        self.clash = self.clash.max(clash);
    }

    /// The error that the block answers.
    fn refusal(&self) -> Option<&'static str> {
        match (self.clash?, self.transactional) {
            (_, false) => Some(CROSSKEY),
            (Clash::Keys, true) => None,
            (Clash::Keyspaces, true) => Some(ONE_KEYSPACE),
            (Clash::Flush, true) => Some(FLUSH_ALONE),
        }
    }
}

impl<B: Backend> Context<'_, B> {
    /// Queues a command behind `MULTI`.
    pub(crate) fn queue(&mut self, call: &Call<'_>) {
        let bound = self.core.shared.settings.query_bytes_max.load(Relaxed);
        let runs_at_once = self.runs_at_once(call);
        let transaction = &mut self.connection.transaction;
        let bytes: usize =
            call.args.buffer.len() + size_of_val(call.args.spans) + size_of::<OwnedCall>();
        if (transaction.bytes + bytes) as u64 > bound {
            transaction.fail();
            return refuse(
                self.connection,
                "ERR the commands queued by MULTI exceed client-query-buffer-limit; use smaller \
                 transactions or raise the limit",
            );
        }
        transaction.bytes += bytes;
        transaction.may_add |=
            call.spec.flags.has(flag::DENYOOM) || call.is_script() && call.updates();
        transaction.has_local |= !matches!(call.spec.run, Run::Key(_)) || runs_at_once;
        if let Some(queue) = &mut transaction.queue {
            queue.push(call.to_owned_call());
            self.connection.facts.queued.store(queue.len() as u64 + 1, Relaxed);
        }
        self.connection.write(|out| out.extend_from_slice(QUEUED));
    }

    /// `EXEC`, if it is so numbered as a call of the attached session.
    pub(crate) fn exec(&mut self, spec: &'static Spec, numbered: Option<Numbered>) {
        let transaction = std::mem::take(&mut self.connection.transaction);
        self.connection.facts.queued.store(0, Relaxed);
        let Some(queue) = transaction.queue else {
            // Without MULTI, the watches stay.
            self.connection.transaction = transaction;
            return self.reply(spec, &Answer::error("ERR EXEC without MULTI"));
        };
        if transaction.failed {
            let text = "EXECABORT Transaction discarded because of previous errors.";
            return self.reply(spec, &Answer::error(text));
        }
        let (bytes, announced) = (transaction.bytes, OK.len() + queue.len() * QUEUED.len());
        let plan = self.plan(queue, &transaction.watches);
        if let Some(text) = plan.refusal() {
            let text = if text == CROSSKEY { self.backend.crosskey() } else { text }.to_owned();
            return self.reply(spec, &Answer::Error(text.into()));
        }
        let ready = match plan.target {
            _ if !plan.flush.is_empty() => self.backend.serving(),
            Some(_) => self.backend.takes_ops(),
            None => Ok(()),
        };
        if let Err(why) = ready {
            let text = format!("EXECABORT Transaction discarded because of: CLUSTERDOWN {why}");
            return self.reply(spec, &Answer::Error(text.into()));
        }
        let is_next = self.connection.replies.is_empty();
        // What is only read needs no record.
        let updates = plan.update || !plan.flush.is_empty();
        let numbered = match numbered.filter(|_| updates) {
            None if updates => match self.numbered_by_place() {
                Ok(numbered) => numbered,
                Err(reply) => return self.reply(spec, &reply),
            },
            numbered => numbered,
        };
        if numbered.is_some()
            && let Err(text) = self.can_call(plan.target.as_ref().map(|(database, _)| *database))
        {
            return self.reply(spec, &Answer::Error(text));
        }
        let unheard = self.track_block(&plan);
        self.start(spec, plan, bytes, transaction.watches, numbered);
        self.told_unheard(unheard);
        self.connection.held |= is_next
            && !self.connection.replies.is_empty()
            && self.connection.output.len() <= announced;
    }

    /// Sorts the queued commands into those for the engine and the others.
    fn plan(&self, queue: Vec<OwnedCall>, watches: &BTreeMap<u8, Watches>) -> Plan {
        let mut plan = Plan::default();
        for (database, watches) in watches {
            plan.transactional |= self.backend.transactional(*database);
            watches.keys().for_each(|key| plan.touch(*database, key));
        }
        let mut database = self.connection.session.database;
        for owned in queue {
            let call = owned.call();
            match call.spec.run {
                Run::Key(_) if self.is_keyless(&call) && !self.backend.transactional(database) => {}
                Run::Key(_) => {
                    plan.transactional |= self.backend.transactional(database);
                    for key in call.keys() {
                        plan.touch(database, key);
                    }
                    if self.is_keyless(&call) {
                        plan.touch(database, b"");
                    }
                    if call.is_range() || call.finds_keys() {
                        // Any key stands for the keyspace, and clashes with all others.
                        plan.touch(database, b"");
                        plan.clash = plan.clash.max(Some(Clash::Keys));
                    }
                    plan.update |= call.access() != Access::Read;
                    plan.steps.push(Step::Keyed(call.spec));
                    plan.calls.push(owned);
                    continue;
                }
                Run::Server(ServerCommand::Flushdb | ServerCommand::Flushall)
                    if flush_options_are_valid(call.args) =>
                {
                    // A flush touches every key of its keyspaces.
                    if !plan.flush.is_empty() {
                        plan.clash = Some(Clash::Flush);
                    }
                    plan.transactional |= self.backend.transactional(database);
                    plan.flush = self.flushed(call.spec, database);
                    plan.steps.push(Step::Flush(call.spec));
                    continue;
                }
                Run::Connection(ConnectionCommand::Select) => {
                    if let Some(number) =
                        parse_integer(call.args.get(1)).and_then(|n| u8::try_from(n).ok())
                        && self.backend.has_keyspace(number)
                    {
                        database = number;
                    }
                }
                _ => {}
            }
            plan.steps.push(Step::Local(owned));
        }
        if !plan.flush.is_empty() && plan.target.is_some() {
            plan.clash = Some(Clash::Flush);
        }
        plan
    }

    fn start(
        &mut self,
        spec: &'static Spec,
        plan: Plan,
        bytes: usize,
        mut watches: BTreeMap<u8, Watches>,
        numbered: Option<Numbered>,
    ) {
        let protocol = self.connection.session.protocol;
        let has_local = plan.steps.iter().any(|step| matches!(step, Step::Local(_)));
        let update = plan.update || plan.transactional || !plan.flush.is_empty();
        let missing = plan.flush.len().max(1);
        let (call, steps) = (numbered.is_some(), plan.steps);
        let exec =
            Exec { spec, protocol, plan: steps, missing, done: 0, failure: None, update, call };
        if plan.target.is_none() && plan.flush.is_empty() {
            let number = self.connection.first;
            let bytes = self.results(number, exec, Vec::new());
            return self.connection.write(|out| out.extend_from_slice(&bytes));
        }
        let keyspace = plan.target.as_ref().map_or(0, |(database, _)| *database);
        let mut bytes = bytes + self.awaited(keyspace, plan.calls.iter().map(OwnedCall::call));
        let number = self.connection.push(Reply::Exec(Box::new(exec)));
        self.connection.updates += u32::from(update);
        // Commands without keys run when the script is done; later commands must see them.
        self.connection.barrier |= has_local || !plan.flush.is_empty();
        if !plan.flush.is_empty() {
            self.core.was_flushed();
        }
        for database in plan.flush {
            let tag = self.tag(number, 0, std::mem::take(&mut bytes));
            self.backend.flush(database, self.now, tag);
        }
        let Some((database, _)) = plan.target else { return };
        let watches = watches.remove(&database).unwrap_or_default();
        let block = Block { watches: watches.into_iter().collect(), calls: plan.calls };
        let op = Op::Block(block);
        match numbered {
            Some(numbered) => self.call(database, number, bytes, numbered, op),
            None => {
                let read = if plan.transactional { None } else { self.read_hash(&op) };
                self.submit(database, number, 0, bytes, read, op);
            }
        }
    }

    /// Tracks the keys that a block is about to read: all of them if it says something of that itself,
    /// which takes effect once they are read. Those of whose changes this node doesn't hear.
    fn track_block(&mut self, plan: &Plan) -> Vec<Box<[u8]>> {
        let Some((database, _)) = plan.target else { return Vec::new() };
        let says = plan.steps.iter().any(|step| {
            matches!(step, Step::Local(owned) if matches!(
                owned.call().spec.run,
                Run::Connection(ConnectionCommand::ClientCaching)
            ))
        });
        let calls = plan.calls.iter().map(OwnedCall::call);
        calls.flat_map(|call| self.track_reads(database, &call, says)).collect()
    }

    /// The engine has run the script of an `EXEC`.
    pub(crate) fn finish_exec(&mut self, number: u64, answer: Result<Answer<'static>, Failure>) {
        let Some(Reply::Exec(exec)) = self.connection.reply(number) else { return };
        exec.missing -= 1;
        exec.done += usize::from(answer.is_ok());
        exec.failure = exec.failure.max(answer.as_ref().err().copied());
        if exec.missing > 0 {
            return;
        }
        // Of several keyspaces, some may have been flushed.
        let answer = match exec.failure {
            Some(_) if exec.done > 0 => Err(Failure::Partial),
            Some(failure) => Err(failure),
            None => answer,
        };
        let Some(Reply::Exec(exec)) = self.take(number) else { return };
        self.connection.updates -= u32::from(exec.update);
        if exec.call {
            self.call_answered();
        }
        let mut bytes = Vec::new();
        match answer {
            Err(failure) => {
                let text = if exec.call { failure.text_of_call() } else { failure.text() };
                self.core.stats.failed(exec.spec, text);
                error(text, &mut bytes);
            }
            Ok(Answer::Array(results)) => bytes = self.results(number, *exec, results),
            Ok(Answer::Ok) => bytes = self.results(number, *exec, Vec::new()),
            // A watched key has changed, or the answers were too long.
            Ok(reply) => {
                if let Answer::Error(text) = &reply {
                    self.core.stats.failed(exec.spec, text);
                }
                encode(&reply, exec.protocol, &mut bytes);
            }
        }
        self.connection.finish(number, |out| out.extend_from_slice(&bytes));
    }

    /// The reply of an `EXEC`: the script's results with those of the other commands, which are
    /// executed here, in their places: of these, none that comes after a reply that is as long as
    /// it may be.
    fn results(&mut self, number: u64, exec: Exec, keyed: Vec<Answer<'static>>) -> Vec<u8> {
        let mut bytes = Vec::new();
        array_header(exec.plan.len(), &mut bytes);
        let mut keyed = keyed.into_iter();
        self.connection.walk_left = limits::EXEC_RECORDS_MAX;
        let mut protocol = exec.protocol;
        let mute = self.connection.mute;
        for step in exec.plan {
            let spec = match &step {
                Step::Keyed(spec) | Step::Flush(spec) => *spec,
                Step::Local(owned) => owned.call().spec,
            };
            self.core.stats.called(spec);
            if matches!(step, Step::Local(_)) {
                // Nothing is before a block with such a command.
                self.tell_below(number + 1);
            }
            let mut reply = match step {
                Step::Keyed(_) => keyed.next().unwrap_or(Answer::error(Failure::Unknown.text())),
                Step::Flush(_) => Answer::Ok,
                Step::Local(_) if bytes.len() > bounds::REPLY_BYTES_MAX => {
                    Answer::error(ANSWER_TOO_LONG)
                }
                Step::Local(owned) if self.pubsub(&owned.call(), &mut bytes, false) => {
                    protocol = self.connection.session.protocol;
                    continue;
                }
                Step::Local(owned) => {
                    let reply = self.local(&owned.call());
                    protocol = self.connection.session.protocol;
                    reply
                }
            };
            self.hold_notes(number, &mut reply);
            if let Answer::Error(text) = &reply {
                self.core.stats.failed(spec, text);
            }
            encode(&reply, protocol, &mut bytes);
        }
        // What `CLIENT REPLY` says within the block goes for the commands behind it, and what
        // `CLIENT CACHING` says does not.
        self.connection.mute = mute;
        self.forget_caching();
        bytes
    }
}
