//! From a parsed command to its execution: the checks that Redis makes first, in its order, then the
//! connection, the node, this node's replica or an engine.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{
    Args, CROSSKEY, Call, ConnectionCommand, Op, Reply as Answer, Run, ServerCommand, Spec, Split,
    UNORDERED, flag, lookup, resolve,
};
use quorate_machine::{Access, Command, Current, mutant};
use quorate_types::{Now, Tag, hash_key, limits as bounds};

use crate::backend::Backend;
use crate::connection::{Connection, ConnectionId, Life, Reply, Wants};
use crate::encode::{encode, error};
use crate::frontend::{Core, refuse};
use crate::pending::{Failure, Gather, Merge, OOM, Pending, Watching};
use crate::shared::add;

/// What becomes of the command that was dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// It is on its way; the next may follow.
    Next,
    /// It must wait until every earlier reply is complete, then be dispatched again.
    Park,
}

/// One connection at work.
pub(crate) struct Context<'a, B> {
    pub(crate) core: &'a mut Core,
    pub(crate) connection: &'a mut Connection,
    pub(crate) id: ConnectionId,
    pub(crate) backend: &'a mut B,
    pub(crate) now: Now,
}

impl<B: Backend> Context<'_, B> {
    /// Checks a command and executes or queues it.
    pub(crate) fn dispatch(&mut self, args: Args<'_>) -> Flow {
        let wants = self.connection.session.wants;
        if wants == Wants::NotNext {
            self.connection.session.wants = Wants::Every;
        }
        self.connection.mute = wants != Wants::Every;
        self.number(args);
        self.core.begun = None;
        self.core.ran = None;
        let flow = self.execute(args);
        self.core.keep_arguments(args);
        if flow != Flow::Park {
            self.end_caching(args);
        }
        if flow == Flow::Park {
            self.connection.session.wants = wants;
            if let Some(numbering) = &mut self.connection.numbering {
                numbering.put_back();
            }
        }
        self.connection.mute = false;
        flow
    }

    fn execute(&mut self, args: Args<'_>) -> Flow {
        let spec = match resolve(args) {
            Ok(spec) => spec,
            Err(reply) => return self.unresolved(args, &reply),
        };
        // Redis answers QUIT before it checks anything.
        if matches!(spec.run, Run::Connection(ConnectionCommand::Quit)) {
            self.connection.write(|out| out.extend_from_slice(b"+OK\r\n"));
            self.connection.life = Life::Closing;
            return Flow::Next;
        }
        let call = Call::new(spec, self.seeded(spec, args));
        if let Some(reply) = self.reject(&call) {
            self.abort(spec, &reply);
            return Flow::Next;
        }
        if call.is_script() { self.script(&call) } else { self.accept(&call) }
    }

    /// The arguments of a command with a seed of their own, if it draws anything.
    pub(crate) fn seeded<'b>(&mut self, spec: &Spec, args: Args<'b>) -> Args<'b> {
        if spec.draws() { Args { seed: self.backend.random(), ..args } } else { args }
    }

    /// Queues a command that was not rejected, has it wait for its turn, or executes it.
    pub(crate) fn accept(&mut self, call: &Call<'_>) -> Flow {
        let (spec, args) = (call.spec, call.args);
        if self.is_held(call) {
            return Flow::Park;
        }
        if self.connection.transaction.is_open() && !is_transactional(call) {
            self.queue(call);
            return Flow::Next;
        }
        if self.waits_to_publish(call) {
            self.core.postpone(self.connection, self.id);
            return Flow::Park;
        }
        // A parked command comes here twice; it is counted when it runs.
        if !self.connection.replies.is_empty() && self.waits_for_earlier(call) {
            return Flow::Park;
        }
        self.core.stats.called(spec);
        self.core.ran = Some(spec);
        if !self.core.shared.monitors.is_empty() {
            self.core.tell_monitors(spec, args, self.now, &self.connection.facts);
        }
        self.connection.facts.command.store(u64::from(spec.id) + 1, Relaxed);
        let unheard = self.track_reads(self.connection.session.database, call, false);
        match spec.run {
            Run::Key(_) if spec.flags.has(flag::BLOCKING) => self.block(call),
            Run::Key(_) if self.connection.numbering.is_some() && call.updates() => {
                self.numbered_update(call);
            }
            Run::Key(_) => self.keyed(call),
            Run::Connection(ConnectionCommand::SessionAuto) => {
                let reply = self.session_auto(args).err().unwrap_or(Answer::Ok);
                self.reply(spec, &reply);
            }
            Run::Connection(ConnectionCommand::Watch) => self.watch(call),
            Run::Connection(ConnectionCommand::Exec) => self.exec(spec, None),
            Run::Connection(ConnectionCommand::SessionCall) => self.session_call(args),
            Run::Connection(
                ConnectionCommand::SessionOpen
                | ConnectionCommand::SessionRenew
                | ConnectionCommand::SessionClose,
            ) => self.lease(call),
            Run::Server(ServerCommand::Wait) => self.wait(call),
            Run::Server(
                ServerCommand::Keys
                | ServerCommand::Scan
                | ServerCommand::Randomkey
                | ServerCommand::Dbsize,
            ) => self.walk(call),
            Run::Server(ServerCommand::Flushdb | ServerCommand::Flushall) => self.flush(call),
            Run::Server(ServerCommand::Shutdown) => self.shutdown(call),
            Run::Server(
                ServerCommand::PlacementGet
                | ServerCommand::PlacementPin
                | ServerCommand::PlacementUnpin,
            ) => self.placement(call),
            Run::Connection(ConnectionCommand::ClientTracking) => self.client_tracking(call),
            _ => self.answer(call),
        }
        self.told_unheard(unheard);
        Flow::Next
    }

    /// Whether a call that publishes, or may, must wait for another turn: for subscribers, or for what
    /// scripts of its connection have published before.
    #[inline]
    fn waits_to_publish(&self, call: &Call<'_>) -> bool {
        let publishes = call.spec.publishes().is_some();
        let may_publish = publishes || call.is_script() && call.updates();
        let is_behind =
            publishes && !self.connection.notes.is_empty() && self.connection.replies.is_empty();
        may_publish && (is_behind || self.core.pubsub.is_full())
    }

    /// Executes a command that is answered at once.
    fn answer(&mut self, call: &Call<'_>) {
        let (mut told, mute) = (Vec::new(), self.connection.mute);
        if self.pubsub(call, &mut told, mute) {
            return self.tell_subscriber(call.spec, told);
        }
        let reply = self.local(call);
        self.reply(call.spec, &reply);
    }

    pub(crate) fn reply(&mut self, spec: &'static Spec, reply: &Answer<'_>) {
        if let Answer::Error(text) = reply {
            self.core.stats.failed(spec, text);
        }
        let protocol = self.connection.session.protocol;
        self.connection.write(|out| encode(reply, protocol, out));
    }

    /// A command that connections, nodes or nobody executes, without any key.
    pub(crate) fn local(&mut self, call: &Call<'_>) -> Answer<'static> {
        if let Some(reply) = call.answer_alone(self.now.wall()) {
            return reply.into_owned();
        }
        match call.spec.run {
            Run::Connection(command) => self.session_command(command, call.args),
            Run::Server(
                ServerCommand::Keys
                | ServerCommand::Scan
                | ServerCommand::Randomkey
                | ServerCommand::Dbsize,
            ) => self.walk_within(call),
            Run::Server(command) => self.server_command(command, call.args),
            Run::Key(_) if call.is_script() => {
                let mut answer = call.run_without_keys(self.now.wall());
                self.core.due.extend(answer.take_notes());
                self.core.tell_due(self.now, self.backend);
                self.name_engines(answer)
            }
            Run::Key(_) if self.is_keyless(call) => {
                let absent = Current::ABSENT;
                call.execute(self.now.wall(), absent).0.into_owned()
            }
            Run::Help | Run::Refused | Run::Container | Run::Key(_) => {
                unreachable!(
                    "HELP and what is refused answer by themselves, a container has no command of its own, a key has an engine"
                )
            }
        }
    }

    pub(crate) fn unresolved(&mut self, args: Args<'_>, reply: &Answer<'_>) -> Flow {
        // What a browser sends when a page makes it talk to a Redis port.
        if args.get(0).eq_ignore_ascii_case(b"post") || args.get(0).eq_ignore_ascii_case(b"host:") {
            self.connection.kill();
            return Flow::Next;
        }
        match lookup(args.get(0)) {
            Some(spec) => self.abort(spec, reply),
            None => {
                if let Answer::Error(text) = reply {
                    self.core.stats.error(text);
                }
                self.connection.transaction.fail();
                let protocol = self.connection.session.protocol;
                self.connection.write(|out| encode(reply, protocol, out));
            }
        }
        Flow::Next
    }

    /// Why a command can't be executed, before it is looked at in any detail.
    pub(crate) fn reject(&mut self, call: &Call<'_>) -> Option<Answer<'static>> {
        let spec = call.spec;
        if !self.connection.session.authenticated
            && self.core.must_authenticate(self.connection)
            && !spec.flags.has(flag::NO_AUTH)
        {
            return Some(Answer::error("NOAUTH Authentication required."));
        }
        let queued = self.connection.transaction.is_open() && !is_transactional(call);
        let adds = match spec.run {
            Run::Connection(ConnectionCommand::Exec) => self.connection.transaction.may_add(),
            _ => queued || spec.flags.has(flag::DENYOOM),
        };
        if adds && self.is_out_of_memory() {
            return Some(Answer::error(OOM));
        }
        if let Some(reply) = self.refuses_subscriber(spec) {
            return Some(reply);
        }
        let ready = match spec.run {
            // These wait where the node can't serve at the moment.
            Run::Key(_) | Run::Connection(ConnectionCommand::Watch) => self.backend.takes_ops(),
            _ if touches_keyspace(spec) => self.backend.serving(),
            _ => Ok(()),
        };
        if let Err(why) = ready {
            return Some(Answer::Error(format!("CLUSTERDOWN {why}").into()));
        }
        if call.keys().any(|key| key.len() > bounds::KEY_BYTES_MAX) {
            let text = format!("ERR the key is longer than {} bytes", bounds::KEY_BYTES_MAX);
            return Some(Answer::Error(text.into()));
        }
        if call.is_range() && !self.backend.transactional(self.connection.session.database) {
            return Some(Answer::error(UNORDERED));
        }
        if queued && spec.flags.has(flag::NO_MULTI) {
            return Some(Answer::error("ERR Command not allowed inside a transaction"));
        }
        None
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        let bound = self.core.shared.settings.max_memory.load(Relaxed);
        bound > 0 && self.backend.memory().used > bound
    }

    /// Answers a rejected command. It spoils the transaction that it was to be part of.
    pub(crate) fn abort(&mut self, spec: &'static Spec, reply: &Answer<'_>) {
        if let (Run::Connection(ConnectionCommand::Exec), Answer::Error(text)) = (spec.run, reply) {
            self.connection.transaction.discard();
            self.connection.facts.queued.store(0, Relaxed);
            let text = text.strip_prefix("ERR ").unwrap_or(text);
            let text = format!("EXECABORT Transaction discarded because of: {text}");
            self.core.stats.was_rejected(spec, &text);
            return refuse(self.connection, &text);
        }
        if let Answer::Error(text) = reply {
            self.core.stats.was_rejected(spec, text);
        }
        self.connection.transaction.fail();
        let protocol = self.connection.session.protocol;
        self.connection.write(|out| encode(reply, protocol, out));
    }

    /// Whether a command must see the effect of everything this connection asked for before.
    fn waits_for_earlier(&self, call: &Call<'_>) -> bool {
        use ServerCommand as Server;
        match call.spec.run {
            Run::Key(_) if call.spec.flags.has(flag::BLOCKING) => true,
            // One that runs at once may publish.
            Run::Key(_) if call.is_script() && self.runs_at_once(call) => true,
            Run::Key(_) | Run::Connection(ConnectionCommand::Watch) => self.command_overtakes(call),
            Run::Server(
                Server::Wait
                | Server::Waitaof
                | Server::Flushdb
                | Server::Flushall
                | Server::Dbsize
                | Server::Scan
                | Server::Keys
                | Server::Randomkey
                | Server::MemoryUsage
                | Server::Debug
                | Server::Shutdown,
            ) => true,
            // Who hears of a change must find it.
            Run::Server(Server::Publish | Server::Spublish) => {
                let is_ahead = self.connection.updates > 0 || !self.connection.notes.is_empty();
                is_ahead && !mutant!("resp_publish_overtakes_update")
            }
            Run::Connection(ConnectionCommand::Exec) => {
                self.connection.transaction.has_local() || self.command_overtakes(call)
            }
            Run::Connection(ConnectionCommand::SessionCall) => {
                self.connection.transaction.has_local() || self.call_overtakes(call.args)
            }
            Run::Connection(
                ConnectionCommand::SessionOpen
                | ConnectionCommand::SessionRenew
                | ConnectionCommand::SessionClose
                | ConnectionCommand::SessionAuto,
            ) => true,
            _ => false,
        }
    }

    /// A command on keys: answered from this node's replica if that is allowed and possible,
    /// submitted to the engine otherwise. Over several keys it is one transaction if the engine
    /// has them. Local reads of one key after another are not atomic.
    pub(crate) fn keyed(&mut self, call: &Call<'_>) {
        let database = self.connection.session.database;
        let transactional = self.backend.transactional(database);
        let comes_apart = call.spec.split != Split::None;
        let several = (transactional || comes_apart) && !matches!(call.single_key(), Ok(Some(_)));
        if several && !transactional {
            return self.split(call);
        }
        if self.runs_at_once(call) {
            return self.answer(call);
        }
        let reads = call.access() == Access::Read;
        if reads && !call.is_script() && !several && self.reads_locally(call) && self.read(call) {
            return;
        }
        let update = transactional || !reads;
        let protocol = self.connection.session.protocol;
        let bytes = call.args.buffer.len() + self.awaited(database, std::iter::once(*call));
        let number = self.connection.push(Reply::Op { spec: call.spec, protocol, update });
        self.connection.updates += u32::from(update);
        let read = (reads && !transactional).then(|| hash_key(call.key()));
        self.submit(database, number, 0, bytes, read, *call);
    }

    /// How many bytes some calls may answer, if others are in progress: one answer is bounded, all
    /// of a pipeline are not. What is not on this node counts for nothing.
    pub(crate) fn awaited<'c>(
        &mut self,
        database: u8,
        calls: impl Iterator<Item = Call<'c>>,
    ) -> usize {
        if self.connection.replies.is_empty() {
            return 0;
        }
        let mut bytes = 0;
        for key in calls.filter(answers_values).flat_map(Call::keys) {
            let value = self.backend.memory_usage(database, self.now, key);
            bytes += value.unwrap_or(0) as usize;
            if bytes > bounds::REPLY_BYTES_MAX {
                break;
            }
        }
        bytes
    }

    /// Whether a read may be answered from this node's replica: none of this connection's updates is
    /// under way, and none of its earlier reads of the same keys.
    #[inline]
    pub(crate) fn reads_locally(&self, call: &Call<'_>) -> bool {
        let connection = &self.connection;
        connection.updates == 0
            && (mutant!("resp_read_overtakes_read") || !connection.reads.touch(call))
    }

    /// Answers a read from this node's replica, if it can.
    #[inline]
    fn read(&mut self, call: &Call<'_>) -> bool {
        let session = &self.connection.session;
        let (protocol, database) = (session.protocol, session.database);
        let (backend, now, stats) = (&mut *self.backend, self.now, &self.core.stats);
        let answered = self.connection.write(|out| {
            backend.read(database, now, call, |reply| {
                let reply = reply.within_limit();
                match reply {
                    Answer::Null => add(&stats.misses, 1),
                    Answer::Error(ref text) => stats.failed(call.spec, text),
                    _ => add(&stats.hits, 1),
                }
                encode(&reply, protocol, out);
            })
        });
        if answered.is_none() {
            return false;
        }
        add(&self.core.stats.local_reads, 1);
        self.bind_to_lease();
        true
    }

    /// Notes that what was just answered rests on this node's replica.
    pub(crate) fn bind_to_lease(&mut self) {
        if !self.connection.lease_bound {
            self.connection.lease_bound = true;
            self.core.lease_bound.push(self.id);
        }
    }

    /// Submits an op that takes so many bytes while it is in progress.
    /// `read` is the hash of its key if it only reads one.
    pub(crate) fn submit<P>(
        &mut self,
        database: u8,
        number: u64,
        part: u32,
        bytes: usize,
        read: Option<u64>,
        op: P,
    ) where
        P: Command<Owned = Op, Reply = Answer<'static>>,
    {
        let tag = self.begin(number, part, bytes, read);
        self.submit_noting(database, tag, op);
    }

    /// The hash of the only key of an op, if it only reads.
    pub(crate) fn read_hash(&self, op: &impl Command) -> Option<u64> {
        (op.access() == Access::Read).then(|| hash_key(op.key()))
    }

    /// The tag of what takes so many bytes while it is in progress and is no read of one key.
    pub(crate) fn tag(&mut self, number: u64, part: u32, bytes: usize) -> Tag {
        self.begin(number, part, bytes, None)
    }

    fn begin(&mut self, number: u64, part: u32, bytes: usize, read: Option<u64>) -> Tag {
        self.connection.in_flight_bytes += bytes;
        if let Some(hash) = read {
            self.connection.reads.add(hash);
        }
        let since = self.now.monotonic;
        self.core.begin(Pending { connection: self.id, number, part, bytes, read, since })
    }

    /// `FLUSHDB` and `FLUSHALL`: earlier commands are complete, later ones wait.
    fn flush(&mut self, call: &Call<'_>) {
        if !flush_options_are_valid(call.args) {
            return self.reply(call.spec, &Answer::error("ERR syntax error"));
        }
        self.core.was_flushed();
        let protocol = self.connection.session.protocol;
        let databases = self.flushed(call.spec, self.connection.session.database);
        let mut gather = Gather::new(call.spec, protocol, Merge::Ok, databases.len());
        gather.update = true;
        gather.next = databases.len();
        gather.in_flight = databases.len();
        let number = self.connection.push(Reply::Gather(Box::new(gather)));
        self.connection.updates += 1;
        self.connection.barrier = true;
        for (part, database) in databases.into_iter().enumerate() {
            let tag = self.tag(number, part as u32, 0);
            self.backend.flush(database, self.now, tag);
        }
    }

    /// The keyspaces that `FLUSHDB` or `FLUSHALL` empties.
    pub(crate) fn flushed(&self, spec: &'static Spec, selected: u8) -> Vec<u8> {
        if matches!(spec.run, Run::Server(ServerCommand::Flushall)) {
            let all = 0..bounds::KEYSPACES_MAX as u8;
            return all.filter(|number| self.backend.has_keyspace(*number)).collect();
        }
        vec![selected]
    }

    /// `WATCH`: asks for the versions of the keys. What follows must know them.
    fn watch(&mut self, call: &Call<'_>) {
        if self.connection.transaction.is_open() {
            return self.reply(call.spec, &Answer::error("ERR WATCH inside MULTI is not allowed"));
        }
        let database = self.connection.session.database;
        let transaction = &self.connection.transaction;
        let mut new = BTreeSet::new();
        let unknown = |key: &&[u8]| !transaction.watches(database, key);
        let keys: Vec<Box<[u8]>> =
            call.keys().filter(unknown).filter(|key| new.insert(*key)).map(Box::from).collect();
        if keys.is_empty() {
            return self.reply(call.spec, &Answer::Ok);
        }
        if !transaction.has_room_for(&keys) {
            return self.reply(call.spec, &Answer::error(Failure::TooLarge.text()));
        }
        let transactional = self.backend.transactional(database);
        let missing = if transactional { 1 } else { keys.len() };
        let watching = Watching {
            database,
            versions: vec![None; keys.len()],
            keys: keys.clone(),
            missing,
            failure: None,
        };
        let number = self.connection.push(Reply::Watch(Box::new(watching)));
        self.connection.barrier = true;
        if transactional {
            let bytes = 2 * call.args.buffer.len();
            return self.submit(database, number, 0, bytes, None, Op::Versions(keys));
        }
        for (part, key) in keys.into_iter().enumerate() {
            let (bytes, read) = (2 * key.len(), Some(hash_key(&key)));
            self.submit(database, number, part as u32, bytes, read, Op::Versions([key].into()));
        }
    }

    /// The same answer, except that CROSSKEY names the engines that can do what was asked for.
    pub(crate) fn name_engines(&self, answer: Answer<'static>) -> Answer<'static> {
        match answer {
            Answer::Error(text) if text == CROSSKEY => {
                Answer::Error(self.backend.crosskey().to_owned().into())
            }
            answer => answer,
        }
    }

    /// A submitted op was answered.
    pub(crate) fn op_answered(
        &mut self,
        pending: Pending,
        mut answer: Result<Answer<'static>, Failure>,
    ) {
        let number = pending.number;
        let part = pending.part as usize;
        let connection = &mut *self.connection;
        match connection.reply(number) {
            None
            | Some(
                Reply::Ready(_)
                | Reply::Wait { .. }
                | Reply::Pause { .. }
                | Reply::Held { .. }
                | Reply::Redirected(_)
                | Reply::Walk(_),
            ) => {
                if let Ok(answer) = &mut answer {
                    self.hold_all_notes(number, answer);
                }
            }
            Some(Reply::Op { spec, protocol, update }) => {
                let (spec, protocol, update) = (*spec, *protocol, *update);
                connection.updates -= u32::from(update);
                match &answer {
                    Ok(Answer::Error(text)) => self.core.stats.failed(spec, text),
                    Ok(_) => {}
                    Err(failure) => self.core.stats.failed(spec, failure.text()),
                }
                connection.finish(number, |out| match &answer {
                    Ok(reply) => encode(reply, protocol, out),
                    Err(failure) => error(failure.text(), out),
                });
            }
            Some(Reply::Call { spec, protocol }) => {
                let (spec, protocol) = (*spec, *protocol);
                connection.updates -= 1;
                self.finish_call(number, spec, protocol, &answer);
            }
            Some(Reply::Subscribed(told)) => {
                let told = std::mem::take(told);
                connection.finish(number, |out| out.extend_from_slice(&told));
            }
            Some(Reply::Lease(_)) => unreachable!("leases are answered as such"),
            Some(Reply::Gather(gather)) => {
                gather.in_flight -= 1;
                let before = gather.bytes();
                gather.fold(part, answer.as_ref().map_err(|failure| *failure));
                let after = gather.bytes();
                connection.gathered_bytes += after;
                connection.gathered_bytes -= before;
                self.feed(number);
            }
            Some(Reply::Watch(watching)) => {
                if watching.part_answered(part, answer) {
                    self.finish_watch(number);
                }
            }
            Some(Reply::Placement(_)) => self.finish_placement(number, answer),
            Some(Reply::Exec(_)) => self.finish_exec(number, answer),
        }
    }

    /// Takes an unfinished reply out of its place, which [`Connection::finish`] then fills.
    pub(crate) fn take(&mut self, number: u64) -> Option<Reply> {
        let reply = self.connection.reply(number)?;
        Some(std::mem::replace(reply, Reply::Ready(Vec::new())))
    }

    fn finish_watch(&mut self, number: u64) {
        let Some(Reply::Watch(watching)) = self.take(number) else { return };
        if let Some(failure) = watching.failure {
            self.core.stats.error(failure.text());
            self.connection.finish(number, |out| error(failure.text(), out));
            return;
        }
        for (key, version) in watching.keys.into_iter().zip(watching.versions) {
            let version = version.expect("no version is missing");
            self.connection.transaction.watch(watching.database, key, version);
        }
        self.connection.finish(number, |out| out.extend_from_slice(b"+OK\r\n"));
    }
}

/// Whether a call may answer what its keys hold.
fn answers_values(call: &Call<'_>) -> bool {
    !call.updates() || ["set", "getset", "getdel", "getex"].contains(&call.spec.name)
}

pub(crate) fn flush_options_are_valid(args: Args<'_>) -> bool {
    match args.len() {
        1 => true,
        2 => {
            args.get(1).eq_ignore_ascii_case(b"async") || args.get(1).eq_ignore_ascii_case(b"sync")
        }
        _ => false,
    }
}

/// Whether a command is executed rather than queued inside `MULTI`.
fn is_transactional(call: &Call<'_>) -> bool {
    use ConnectionCommand as Connection;
    if matches!(call.spec.run, Run::Connection(Connection::SessionCall)) {
        return call.args.get(4).eq_ignore_ascii_case(b"exec");
    }
    matches!(
        call.spec.run,
        Run::Connection(
            Connection::Exec
                | Connection::Discard
                | Connection::Multi
                | Connection::Watch
                | Connection::Quit
                | Connection::Reset
        )
    )
}

/// Whether a command reads or changes what a keyspace holds, or a session's lease.
fn touches_keyspace(spec: &'static Spec) -> bool {
    use ServerCommand as Server;
    match spec.run {
        Run::Connection(
            ConnectionCommand::SessionOpen
            | ConnectionCommand::SessionRenew
            | ConnectionCommand::SessionClose,
        ) => true,
        Run::Server(command) => matches!(
            command,
            Server::Dbsize
                | Server::Scan
                | Server::Keys
                | Server::Randomkey
                | Server::Flushdb
                | Server::Flushall
                | Server::MemoryUsage
                | Server::PlacementGet
                | Server::PlacementPin
                | Server::PlacementUnpin
        ),
        _ => false,
    }
}
