//! `CLIENT PAUSE`: the clients of this node wait, with everything they ask for or with what may change
//! something. Their commands stay where they arrived; `CLIENT PAUSE` and `CLIENT UNPAUSE` are executed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use quorate_commands::{Args, Call, ConnectionCommand, Reply as Answer, Run, flag, parse_integer};
use quorate_scripts::changes_nothing;
use quorate_types::{Duration, Instant};

use crate::backend::Backend;
use crate::connection::Reply;
use crate::dispatch::Context;
use crate::limits;
use crate::transaction::Transaction;

/// Until when the clients of a node wait.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    until: AtomicU64,
    /// Whether they wait with everything.
    all: AtomicBool,
}

impl Pause {
    #[inline]
    fn holds(&self, now: Instant, call: &Call<'_>, transaction: &Transaction) -> bool {
        self.until.load(Relaxed) > now.0
            && (self.all.load(Relaxed) || may_change(call, transaction))
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.until.load(Relaxed) <= now.0
    }
}

/// Whether a command may change something, or tell others something.
fn may_change(call: &Call<'_>, transaction: &Transaction) -> bool {
    match call.spec.run {
        Run::Connection(ConnectionCommand::Exec) => {
            transaction.calls().any(|queued| may_change(&queued, transaction))
        }
        Run::Connection(ConnectionCommand::SessionCall) => true,
        _ if call.spec.name.starts_with("eval") && call.is_script() => {
            call.updates() && !changes_nothing(call.script_source())
        }
        _ => call.spec.flags.has(flag::WRITE) || call.spec.flags.has(flag::MAY_REPLICATE),
    }
}

impl<B: Backend> Context<'_, B> {
    /// Whether a command waits for the end of a pause; its connection does, then.
    #[inline]
    pub(crate) fn is_held(&mut self, call: &Call<'_>) -> bool {
        let now = self.now.monotonic;
        if !self.core.shared.pause.holds(now, call, &self.connection.transaction) {
            return false;
        }
        use ConnectionCommand as Command;
        if matches!(call.spec.run, Run::Connection(Command::ClientPause | Command::ClientUnpause)) {
            return false;
        }
        if self.connection.replies.is_empty() {
            let poll = now + Duration::from_millis(limits::WAIT_POLL_MS);
            self.connection.push(Reply::Held { poll });
            self.connection.is_held_up();
            self.connection.barrier = true;
            self.core.waiting.push(self.id);
        }
        true
    }

    /// `CLIENT PAUSE milliseconds [WRITE | ALL]`. A pause never becomes shorter or weaker by another.
    pub(crate) fn client_pause(&mut self, args: Args<'_>) -> Answer<'static> {
        let all = match args.len() {
            3 => true,
            4 if args.get(3).eq_ignore_ascii_case(b"write") => false,
            4 if args.get(3).eq_ignore_ascii_case(b"all") => true,
            _ => return Answer::error("ERR CLIENT PAUSE mode must be WRITE or ALL"),
        };
        let millis = match parse_integer(args.get(2)) {
            None => return Answer::error("ERR timeout is not an integer or out of range"),
            Some(millis) => match u64::try_from(millis) {
                Ok(millis) => millis,
                Err(_) => return Answer::error("ERR timeout is negative"),
            },
        };
        let pause = &self.core.shared.pause;
        let now = self.now.monotonic;
        let all = all || !pause.is_over(now) && pause.all.load(Relaxed);
        let most = Duration::from_secs(limits::PAUSE_SECONDS_MAX);
        let until = now + Duration::from_millis(millis.min(most.as_millis() as u64));
        pause.all.store(all, Relaxed);
        pause.until.fetch_max(until.0, Relaxed);
        Answer::Ok
    }

    pub(crate) fn client_unpause(&mut self) -> Answer<'static> {
        self.core.shared.pause.until.store(0, Relaxed);
        Answer::Ok
    }
}
