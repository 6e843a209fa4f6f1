//! Commands on their way to an answer: one, or several in one exchange.
//!
//! Each command ends by itself. A read is repeated until it has an answer. An update is a call of
//! the exchange's session ([`crate::sessions`]), under a number of its own, and is asked for again
//! under that number. Without sessions an update is not repeated once it may have happened. An
//! ended command is not sent again, so a command that was refused for the moment runs after those
//! that came behind it.

use std::sync::Arc;

use quorate_machine::mutant;

use crate::error::Error;
use crate::pool::{Loan, Pool};
use crate::reply::Reply;
use crate::request::Request;
use crate::retry::{Attempts, Failure};
use crate::routes::key_of;
use crate::sessions::{Held, OpenCall, Sessions, Tried, Work, words};

/// The effect of a command, which decides whether it can be repeated without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Read,
    Update,
}

/// A command and its state.
#[derive(Debug)]
pub(crate) struct Command {
    words: Vec<Vec<u8>>,
    kind: Effect,
    /// Whether a node takes it for a call.
    fits: bool,
    /// Its number, if it was tried as a call.
    number: Option<u64>,
    /// Whether a try may have taken effect.
    open: bool,
    end: Option<Result<Reply, Error>>,
}

impl Command {
    pub(crate) fn new(words: &[&[u8]], kind: Effect) -> Self {
        let words = words.iter().map(|word| word.to_vec()).collect();
        Self { words, kind, fits: true, number: None, open: false, end: None }
    }

    /// A command whose call may have happened.
    pub(crate) fn again(words: Vec<Vec<u8>>, number: u64) -> Self {
        let (kind, number) = (Effect::Update, Some(number));
        Self { words, kind, fits: true, number, open: true, end: None }
    }

    /// A command that can't be sent.
    pub(crate) fn refused(error: Error) -> Self {
        Self { end: Some(Err(error)), ..Self::new(&[], Effect::Read) }
    }

    /// The answer.
    pub(crate) fn end(self) -> Result<Reply, Error> {
        self.end.expect("every command is settled")
    }

    fn is_call(&self, sessions: &Sessions) -> bool {
        self.open || (self.kind == Effect::Update && self.fits && sessions.are_enabled())
    }

    /// Whether it is an update that is sent without a number, and must not be taken for a call.
    fn is_plain_update(&self, sessions: &Sessions) -> bool {
        self.kind == Effect::Update && !self.is_call(sessions)
    }

    fn end_call(&mut self, held: &mut Held<'_>, end: Result<Reply, Error>) {
        held.complete(self.number.take());
        self.end = Some(end);
    }

    /// The command has no answer, and will not be tried again.
    fn give_up(&mut self, held: &mut Held<'_>, error: Error) {
        let open = self.open && !mutant!("client_refusal_ends_lost_try");
        let Some(number) = self.number.filter(|_| open) else {
            return self.end_call(held, Err(error));
        };
        // A refusal is about its own try; an earlier one may have happened.
        let work = Work::Command(std::mem::take(&mut self.words));
        let call = held.open_call(number, work);
        if mutant!("client_acknowledges_open_call") {
            held.complete(Some(number));
        }
        self.end = Some(Err(Error::Unknown { reason: error.to_string(), call }));
    }

    /// The call loses its session, for this reason.
    fn lose_session(&mut self, reason: &str) {
        self.number = None;
        if std::mem::take(&mut self.open) && !mutant!("client_lost_call_made_anew") {
            self.end = Some(Err(Error::unknown(reason)));
        }
    }
}

/// Sends commands until each has ended, or the attempts are used up.
pub(crate) async fn perform(
    pool: &Arc<Pool>,
    mut held: Held<'_>,
    commands: &mut [Command],
    attempts: &mut Attempts,
) {
    while commands.iter().any(|command| command.end.is_none()) {
        let Some(failure) = round(pool, &mut held, commands).await else { continue };
        let Err(error) = attempts.again(failure, pool.has_fresh_node()).await else { continue };
        for command in commands.iter_mut().filter(|command| command.end.is_none()) {
            command.give_up(&mut held, error.repeated());
        }
    }
}

/// One exchange with the node whose turn it is. Returns the failure that keeps some commands open.
async fn round(pool: &Arc<Pool>, held: &mut Held<'_>, commands: &mut [Command]) -> Option<Failure> {
    let sessions = held.sessions();
    let key = anchor(commands);
    let mut loan = match pool.borrow(key.as_deref()).await {
        Ok(loan) => loan,
        Err(failure) => return Some(failure),
    };
    let unsettled = || commands.iter().filter(|command| command.end.is_none());
    if unsettled().any(|command| command.is_call(sessions)) {
        match sessions.attach(&mut loan, held).await {
            Ok(()) => {}
            Err(Tried::Expired(reason)) => return Some(expire(held, commands, reason)),
            // This server knows no sessions: commands are sent without, unless they were calls.
            Err(Tried::Unfit) if !unsettled().any(|command| command.open) => return None,
            Err(tried) => return Some(tried.failure()),
        }
    }
    let asked = key.filter(|key| loan.asks(key));
    let (request, sent) = compose(&mut loan, held, commands, asked.as_deref());
    if sent.is_empty() {
        // The session is full of open calls that their callers have given up.
        held.forget();
        return Some(Failure::TryAgain("a session's window is full".to_owned()));
    }
    let (mut replies, lost) = match loan.exchange(&request).await {
        Ok(replies) => (replies, None),
        Err(mut lost) => (std::mem::take(&mut lost.replies), Some(lost)),
    };
    if let Some(key) = &asked
        && !replies.is_empty()
    {
        loan.learn(key, &replies.remove(0));
    }
    let is_numbered = request.counted() + usize::from(asked.is_some()) < request.commands();
    if is_numbered && !replies.is_empty() && !replies.remove(0).is_ok() {
        // The node executed no update.
        loan.connection().numbers = None;
    }
    let (mut failure, mut expired) = (None, None);
    let answered = replies.len();
    for (at, reply) in sent.iter().zip(replies) {
        let command = &mut commands[*at];
        let later = match command.number {
            Some(_) => heed_call(&mut loan, held, command, reply),
            None => heed_plain(&loan, held, command, reply),
        };
        match later {
            Some(Tried::Expired(reason)) => expired = Some(reason),
            Some(tried) => failure = Some(tried.failure()),
            None => {}
        }
    }
    if let Some(lost) = lost {
        let reason = loan.explain(&lost);
        for (place, at) in sent.iter().enumerate().skip(answered) {
            let command = &mut commands[*at];
            // If bytes are missing, the last command was not executed.
            let executed = lost.sent || place + 1 < sent.len();
            if command.number.is_some() {
                command.open |= executed;
            } else if command.kind == Effect::Update
                && executed
                && !mutant!("client_plain_update_repeated")
            {
                command.end_call(held, Err(Error::unknown(reason.clone())));
            }
        }
        failure = Some(loan.lost(lost));
    }
    match expired {
        Some(reason) => Some(expire(held, commands, reason)),
        None => failure,
    }
}

/// The key that says where commands go: the first that one of them may change, or else the first.
fn anchor(commands: &[Command]) -> Option<Vec<u8>> {
    let unsettled = || commands.iter().filter(|command| command.end.is_none());
    let keys = |command: &Command| {
        let words: Vec<&[u8]> = command.words.iter().map(Vec::as_slice).collect();
        key_of(&words).map(<[u8]>::to_vec)
    };
    let updates = unsettled().filter(|command| command.kind == Effect::Update);
    updates.chain(unsettled()).find_map(keys)
}

/// The request of a round: the commands that have not ended, as far as there are numbers for them. In
/// front of them, the question where this key lives.
fn compose(
    loan: &mut Loan,
    held: &mut Held<'_>,
    commands: &mut [Command],
    asked: Option<&[u8]>,
) -> (Request, Vec<usize>) {
    let sessions = held.sessions();
    let (mut request, mut sent) = (Request::default(), Vec::new());
    if let Some(key) = asked {
        loan.connection().ask(&[b"PLACEMENT", b"GET", key], &mut request);
    }
    let unsettled = || commands.iter().filter(|command| command.end.is_none());
    let has_calls = unsettled().any(|command| command.is_call(sessions));
    let has_plain = unsettled().any(|command| command.is_plain_update(sessions));
    let is_new = unsettled().all(|command| command.number.is_none());
    let count = unsettled().count();
    let counts_along = has_calls
        && is_new
        && !has_plain
        && held.count_along(loan.connection(), count, &mut request);
    if has_plain {
        loan.connection().stop_numbering(&mut request);
    }
    for (at, command) in commands.iter_mut().enumerate() {
        if command.end.is_some() {
            continue;
        }
        let mut head = Default::default();
        let mut line: Vec<&[u8]> = command.words.iter().map(Vec::as_slice).collect();
        let (head, is_call) = (&mut head, command.is_call(sessions));
        if is_call || counts_along {
            // The window is full: the rest waits for answers.
            let known = command.number.filter(|_| !mutant!("client_retries_under_a_new_number"));
            let Some(number) = known.or_else(|| held.begin()) else { break };
            if is_call {
                command.number = Some(number);
            } else {
                held.complete(Some(number));
            }
            if !counts_along {
                *head = held.head(number);
                line = words(head, &line);
            }
        }
        request.push(&line);
        sent.push(at);
    }
    (request, sent)
}

/// Takes the reply to a call. Returns the failure for which it is to be tried again, if any.
fn heed_call(
    loan: &mut Loan,
    held: &mut Held<'_>,
    command: &mut Command,
    reply: Reply,
) -> Option<Tried> {
    match held.sessions().judge(loan, held, reply) {
        Tried::Answer(Reply::Error(error)) => command.end_call(held, Err(error.into())),
        Tried::Answer(reply) => command.end_call(held, Ok(reply)),
        // Nothing has happened: the command is sent without a number.
        Tried::Unfit if !command.open => {
            command.fits = false;
            held.complete(command.number.take());
        }
        Tried::Failed(Failure::Final(error)) => command.give_up(held, error),
        tried => {
            command.open |= matches!(tried, Tried::Open(_));
            return Some(tried);
        }
    }
    None
}

/// The same for a command outside of a session.
fn heed_plain(
    loan: &Loan,
    held: &mut Held<'_>,
    command: &mut Command,
    reply: Reply,
) -> Option<Tried> {
    let end = match reply {
        Reply::Error(error) => match loan.refused(error, command.kind == Effect::Update) {
            Failure::Final(error) => Err(error),
            later => return Some(Tried::Failed(later)),
        },
        reply => Ok(reply),
    };
    command.end_call(held, end);
    None
}

/// The session has ended: calls that may have happened in it stay unknown, and the other calls go
/// on in another session.
fn expire(held: &mut Held<'_>, commands: &mut [Command], reason: String) -> Failure {
    held.forget();
    commands.iter_mut().for_each(|command| command.lose_session(&reason));
    Failure::TryAgain(reason)
}

/// Goes on asking about a call.
pub(crate) async fn ask_again(
    pool: &Arc<Pool>,
    sessions: &Sessions,
    call: OpenCall,
    attempts: &mut Attempts,
) -> Result<Reply, Error> {
    let OpenCall { work, session, number } = call;
    let held = sessions.hold(Some(session));
    match work {
        Work::Command(words) => {
            let mut commands = [Command::again(words, number)];
            perform(pool, held, &mut commands, attempts).await;
            let [command] = commands;
            command.end()
        }
        Work::Block(block) => sessions.find_out(pool, held, number, block, None, attempts).await,
    }
}
