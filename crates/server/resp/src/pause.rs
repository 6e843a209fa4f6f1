//! `CLIENT PAUSE`: the clients of this node wait, with everything they ask for or with what may change
//! something. Their commands stay where they arrived; `CLIENT PAUSE` and `CLIENT UNPAUSE` are executed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use quorate_commands::{Args, Call, ConnectionCommand, Reply as Answer, Run, flag, parse_integer};
use quorate_machine::mutant;
use quorate_scripts::changes_nothing;
use quorate_types::{Duration, Instant};

use crate::backend::Backend;
use crate::connection::Reply;
use crate::dispatch::Context;
use crate::limits;
use crate::transaction::Transaction;

/// Until when the clients of a node wait: for whom they wait longest. As with Redis, what one purpose asks
/// for is ended by that purpose alone.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    asked: [Asked; 2],
}

/// What clients wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// A client asked for it; the `CLIENT UNPAUSE` of any client ends it.
    Client,
    /// A backup asked for it; only that backup ends it.
    Backup,
}

#[derive(Debug, Default)]
struct Asked {
    until: AtomicU64,
    /// Whether they wait with everything.
    all: AtomicBool,
}

impl Asked {
    #[inline]
    fn lasts(&self, now: Instant) -> bool {
        self.until.load(Relaxed) > now.0
    }
}

impl Pause {
    /// Whether a command waits. `may_change` says whether it may change something.
    #[inline]
    pub(crate) fn holds(&self, now: Instant, may_change: impl Fn() -> bool) -> bool {
        let holds = |asked: &Asked| asked.lasts(now) && (asked.all.load(Relaxed) || may_change());
        self.asked.iter().any(holds)
    }

    fn asked(&self, purpose: Purpose) -> &Asked {
        let shared = mutant!("resp_one_pause_for_all");
        &self.asked[if shared { 0 } else { purpose as usize }]
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
        let transaction = &self.connection.transaction;
        if !self.core.shared.pause.holds(now, || may_change(call, transaction)) {
            return false;
        }
        use ConnectionCommand as Command;
        if matches!(call.spec.run, Run::Connection(Command::ClientPause | Command::ClientUnpause)) {
            return false;
        }
        if self.connection.replies.is_empty() {
            let poll = now + Duration::from_millis(limits::WAIT_POLL_MS);
            let may_change = may_change(call, transaction);
            self.connection.push(Reply::Held { may_change, poll });
            self.connection.is_held_up();
            self.connection.barrier = true;
            self.core.waiting.push(self.id);
        }
        true
    }

    /// `CLIENT PAUSE milliseconds [WRITE | ALL]`: never becomes shorter or weaker by another. With
    /// `BACKUP` behind it, a pause that `CLIENT UNPAUSE` doesn't end: it lasts as long as the last such
    /// command says, which may be 0.
    pub(crate) fn client_pause(&mut self, args: Args<'_>) -> Answer<'static> {
        let is =
            |at: usize, word: &[u8]| args.len() > at && args.get(at).eq_ignore_ascii_case(word);
        let purpose = if is(4, b"backup") { Purpose::Backup } else { Purpose::Client };
        let all = match args.len() {
            3 => true,
            4 | 5 if is(3, b"write") => false,
            4 | 5 if is(3, b"all") => true,
            _ => return Answer::error("ERR CLIENT PAUSE mode must be WRITE or ALL"),
        };
        if args.len() == 5 && purpose == Purpose::Client {
            return Answer::error("ERR syntax error");
        }
        let millis = match parse_integer(args.get(2)) {
            None => return Answer::error("ERR timeout is not an integer or out of range"),
            Some(millis) => match u64::try_from(millis) {
                Ok(millis) => millis,
                Err(_) => return Answer::error("ERR timeout is negative"),
            },
        };
        let now = self.now.monotonic;
        let most = Duration::from_secs(limits::PAUSE_SECONDS_MAX);
        let until = now + Duration::from_millis(millis.min(most.as_millis() as u64));
        let asked = self.core.shared.pause.asked(purpose);
        match purpose {
            Purpose::Client => {
                let all = all || asked.lasts(now) && asked.all.load(Relaxed);
                asked.all.store(all, Relaxed);
                asked.until.fetch_max(until.0, Relaxed);
            }
            Purpose::Backup => {
                asked.all.store(all, Relaxed);
                asked.until.store(until.0, Relaxed);
            }
        }
        Answer::Ok
    }

    pub(crate) fn client_unpause(&mut self) -> Answer<'static> {
        self.core.shared.pause.asked(Purpose::Client).until.store(0, Relaxed);
        Answer::Ok
    }
}
