//! Connections that wait: for what a key will hold, or for replicas (`WAIT`).
//!
//! A command that waits is dispatched once every earlier reply of its connection is complete, and
//! nothing behind it is executed before its own. Who goes, or is named by `CLIENT UNBLOCK`, stops
//! waiting ([`Backend::unblock`]): at once, or, if something is about to be handed to it, with that.

use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{Args, Call, Reply as Answer, Wait, parse_integer};
use quorate_machine::mutant;
use quorate_types::{Duration, Instant, Tag, limits as bounds};

use crate::backend::{Backend, Blocking};
use crate::connection::{Connection, Reply};
use crate::dispatch::Context;
use crate::encode::{error, integer};
use crate::frontend::{Core, Frontend};
use crate::limits;
use crate::pending::Failure;
use crate::session::{NOT_AN_INTEGER, failure, quoted};
use crate::shared::Shared;

/// What `CLIENT UNBLOCK` knows of a client: it doesn't wait.
const WAITS_NOT: u8 = 0;
/// It waits.
const WAITS: u8 = 1;
/// It is to be answered as if its time were over.
const TIMED_OUT: u8 = 2;
/// It is to be answered with an error.
const UNBLOCKED: u8 = 3;
/// It waits for the end of a pause, which `CLIENT UNBLOCK` doesn't change.
const HELD_UP: u8 = 4;

const VIA_COMMAND: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
const GONE: &str = "UNBLOCKED the connection is gone";
const STOPS: &str = "UNBLOCKED this node is about to stop; nothing was taken, ask another node";
pub(crate) const NO_CALL: &str = "ERR a command that waits is no part of a session's call, since its \
                                  answer would be kept; send it on a connection without SESSION AUTO, \
                                  or use the command that doesn't wait";

/// About what a key that is waited for takes, besides its bytes, which are there twice.
const AWAITED_KEY_BYTES: usize = 256;

impl<B: Backend> Context<'_, B> {
    /// A command that waits, if its arguments say so.
    pub(crate) fn block(&mut self, call: &Call<'_>) {
        let wait = match call.waits() {
            Ok(Some(wait)) => wait,
            Ok(None) if self.connection.numbering.is_some() && call.updates() => {
                return self.numbered_update(call);
            }
            Ok(None) => return self.keyed(call),
            Err(reply) => return self.reply(call.spec, &reply),
        };
        if self.connection.numbering.is_some() && call.updates() {
            return self.reply(call.spec, &Answer::error(NO_CALL));
        }
        let database = self.connection.session.database;
        let awaited = call.awaited_keys().count();
        let is_split = call.waits_as_one() && call.single_key().is_err();
        if is_split && !self.backend.transactional(database) {
            let text = self.backend.crosskey().to_owned();
            return self.reply(call.spec, &Answer::Error(text.into()));
        }
        if awaited > bounds::TXN_KEYS_MAX {
            return self.reply(call.spec, &Answer::error(Failure::TooLarge.text()));
        }
        let until = wait.timeout.map_or(Instant::NEVER, |timeout| self.now.monotonic + timeout);
        let protocol = self.connection.session.protocol;
        let number = self.connection.push(Reply::Op { spec: call.spec, protocol, update: true });
        self.connection.updates += 1;
        self.connection.barrier = true;
        let bytes = 3 * call.args.buffer.len() + awaited * AWAITED_KEY_BYTES;
        let tag = self.tag(number, 0, bytes);
        self.connection.blocked = Some(tag);
        self.begins_to_wait();
        let blocking = Blocking { call: call.to_owned_call(), line: wait.line, until };
        let origin = self.connection.facts.id;
        self.backend.block(database, self.now, tag, origin, blocking);
    }

    /// `WAIT`. Every live replica has acknowledged a write before its reply, so all that can be
    /// waited for is that more replicas come to life.
    pub(crate) fn wait(&mut self, call: &Call<'_>) {
        let (wanted, timeout) = match crate::server::wait_arguments(call.args) {
            Ok(arguments) => arguments,
            Err(reply) => return self.reply(call.spec, &reply),
        };
        let replicas = self.backend.replicas(self.connection.session.database) as i64;
        if replicas >= wanted {
            return self.reply(call.spec, &Answer::Int(replicas));
        }
        let now = self.now.monotonic;
        let until = match timeout {
            0 => Instant::NEVER,
            millis => now + Duration::from_millis(millis),
        };
        let poll = now + Duration::from_millis(limits::WAIT_POLL_MS);
        self.connection.push(Reply::Wait { wanted, until, poll });
        self.connection.barrier = true;
        self.core.waiting.push(self.id);
        self.begins_to_wait();
    }

    fn begins_to_wait(&mut self) {
        self.connection.facts.wait.store(WAITS, Relaxed);
    }

    /// Whether the connection's `WAIT` or its pause has ended. Answers a `WAIT` that has.
    pub(crate) fn poll_wait(&mut self) -> bool {
        let replicas = self.backend.replicas(self.connection.session.database) as i64;
        let now = self.now.monotonic;
        let first = self.connection.first;
        let wait = self.connection.facts.wait.load(Relaxed);
        match self.connection.reply(first) {
            Some(Reply::Wait { wanted, until, poll }) => {
                if replicas < *wanted && now < *until && wait == WAITS {
                    *poll = now + Duration::from_millis(limits::WAIT_POLL_MS);
                    return false;
                }
            }
            Some(Reply::Held { may_change, poll }) => {
                if self.core.shared.pause.holds(now, || *may_change) {
                    *poll = now + Duration::from_millis(limits::WAIT_POLL_MS);
                    return false;
                }
                self.connection.waits_no_more();
                self.connection.finish(first, |_| {});
                return true;
            }
            Some(Reply::Pause { until }) => {
                if now < *until {
                    return false;
                }
                self.connection.finish(first, |_| {});
                return true;
            }
            _ => return true,
        }
        self.connection.waits_no_more();
        self.connection.finish(first, |out| match wait {
            UNBLOCKED => error(VIA_COMMAND, out),
            _ => integer(b':', replicas, out),
        });
        true
    }

    /// `CLIENT UNBLOCK id [TIMEOUT|ERROR]`. The client's lane answers it in its next turn, with
    /// something that is about to be handed to it, if so.
    pub(crate) fn client_unblock(&mut self, args: Args<'_>) -> Answer<'static> {
        let how = match args.len() {
            3 => TIMED_OUT,
            4 if args.get(3).eq_ignore_ascii_case(b"timeout") => TIMED_OUT,
            4 if args.get(3).eq_ignore_ascii_case(b"error") => UNBLOCKED,
            4 => return Answer::error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
            _ => {
                let text = "ERR unknown subcommand or wrong number of arguments for";
                return failure(format!("{text} '{}'. Try CLIENT HELP.", quoted(args.get(1))));
            }
        };
        let Some(id) = parse_integer(args.get(2)) else { return NOT_AN_INTEGER };
        let shared = &self.core.shared;
        let client = shared.clients().into_iter().find(|facts| facts.id as i64 == id);
        let named = client
            .is_some_and(|facts| facts.wait.compare_exchange(WAITS, how, Relaxed, Relaxed).is_ok());
        if named {
            shared.unblocks.fetch_add(1, Relaxed);
            self.core.named_others = true;
        }
        Answer::Int(i64::from(named))
    }
}

impl Connection {
    /// It waits for the end of a pause.
    pub(crate) fn is_held_up(&mut self) {
        self.facts.wait.store(HELD_UP, Relaxed);
    }

    /// What it waited for is answered.
    pub(crate) fn waits_no_more(&mut self) {
        self.blocked = None;
        self.facts.wait.store(WAITS_NOT, Relaxed);
    }
}

impl Core {
    /// Whether the wait of some connection is to be ended.
    pub(crate) fn has_unblocked(&self) -> bool {
        !self.unblocked.is_empty() || self.shared.unblocks.load(Relaxed) != self.unblocks
    }

    /// A connection is gone; so is what it waited for.
    pub(crate) fn leaves_line(&mut self, connection: &Connection) {
        if let Some(tag) = connection.blocked
            && !mutant!("resp_gone_client_waits")
        {
            // That there is nothing would be looked for, and found in vain.
            self.unblocked.push((tag, Answer::error(GONE)));
        }
    }
}

impl Frontend {
    /// The node stops: who waits is told so.
    pub(crate) fn unblock_all(&mut self) {
        let blocked = self.connections.iter().filter_map(|(_, connection)| connection.blocked);
        self.core.unblocked.extend(blocked.map(|tag| (tag, Answer::error(STOPS))));
    }

    /// Ends the waits of connections that are gone or were named.
    pub(crate) fn unblock<B: Backend>(&mut self, backend: &mut B) {
        let unblocks = self.core.shared.unblocks.load(Relaxed);
        if std::mem::replace(&mut self.core.unblocks, unblocks) != unblocks {
            let named = |connection: &Connection| -> Option<(Tag, Answer<'static>)> {
                let answer = match connection.facts.wait.load(Relaxed) {
                    TIMED_OUT => Wait::NOTHING,
                    UNBLOCKED => Answer::error(VIA_COMMAND),
                    _ => return None,
                };
                Some((connection.blocked?, answer))
            };
            let named = self.connections.iter().filter_map(|(_, connection)| named(connection));
            self.core.unblocked.extend(named);
        }
        for (tag, answer) in std::mem::take(&mut self.core.unblocked) {
            backend.unblock(tag, answer);
        }
    }
}

impl Shared {
    /// Clients that wait, on whatever lane.
    pub(crate) fn blocked_clients(&self) -> usize {
        self.clients().iter().filter(|facts| facts.wait.load(Relaxed) != WAITS_NOT).count()
    }
}
