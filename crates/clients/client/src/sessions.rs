//! Calls that may be tried again: each update is a call of a session, which a node executes once
//! however often it is asked (the chapter on sessions; RIFL §2.3).
//!
//! A client keeps as many sessions as it has exchanges with updates under way at a time. Each waits
//! for its answers before its next call, so that a call acknowledges all earlier ones. A session
//! belongs to no connection: after a failure it is attached to another one, and the call is made
//! again there.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_machine::mutant;
use quorate_rifl::{ClientLease, RequestTracker};
use quorate_types::limits::SESSION_WINDOW;
use quorate_types::{Duration, Instant};

use crate::block::Block;
use crate::connection::{Attached, Connection, Numbers};
use crate::error::Error;
use crate::pool::Loan;
use crate::reply::{Reply, ServerError};
use crate::request::Request;
use crate::retry::Failure;

/// Errors that say nothing about the command, only that this try had no effect.
const NO_ANSWERS: &[&str] =
    &["TRYAGAIN", "UNKNOWN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"];

/// The sessions of one client.
pub(crate) struct Sessions {
    enabled: AtomicBool,
    spare: Mutex<Vec<Session>>,
    opened: AtomicU64,
    /// The origin of instants.
    since: tokio::time::Instant,
}

/// A session, as its client knows it.
pub(crate) struct Session {
    /// Tells the client's own sessions apart, for connections to remember.
    number: u64,
    id: Vec<u8>,
    /// The expiry that a node asks for when the session is attached to another connection.
    until: Vec<u8>,
    client_lease: ClientLease,
    requests: RequestTracker,
}

/// A session in use. Dropping this gives the session back to the others, unless it has ended.
pub(crate) struct Held<'a> {
    sessions: &'a Sessions,
    session: Option<Shared>,
}

/// A session and its holders: the exchange that makes calls in it, and its open calls.
pub(crate) type Shared = Arc<Mutex<Session>>;

/// The work of a call.
#[derive(Debug)]
pub(crate) enum Work {
    /// A command.
    Command(Vec<Vec<u8>>),
    /// The block of a transaction.
    Block(Block),
}

/// A call whose outcome is unknown: [`crate::Client::ask_again`] goes on asking.
pub struct OpenCall {
    pub(crate) work: Work,
    pub(crate) session: Shared,
    pub(crate) number: u64,
}

impl OpenCall {
    /// The id of the session, as `SESSION OPEN` told it.
    pub fn session(&self) -> String {
        String::from_utf8_lossy(&lock(&self.session).id).into_owned()
    }

    /// The number of the call within the session.
    pub fn sequence(&self) -> u64 {
        self.number
    }
}

impl fmt::Debug for OpenCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {} of session {}", self.number, self.session())
    }
}

/// The result of one try.
pub(crate) enum Tried {
    /// The command's own answer.
    Answer(Reply),
    /// This try had no effect.
    Failed(Failure),
    /// The try may have taken effect; asking again tells.
    Open(Failure),
    /// The session has ended, or the node does not know it.
    Expired(String),
    /// The command or the server does not fit sessions.
    Unfit,
}

impl Tried {
    /// The reason why the call has no answer yet.
    pub(crate) fn failure(self) -> Failure {
        match self {
            Self::Failed(failure) | Self::Open(failure) => failure,
            Self::Expired(reason) => Failure::TryAgain(reason),
            Self::Unfit => Failure::TryAgain("a node took it for no call".to_owned()),
            Self::Answer(Reply::Error(error)) => last(error),
            Self::Answer(other) => unexpected("SESSION CALL", &other),
        }
    }
}

impl Sessions {
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            enabled: AtomicBool::new(enabled),
            spare: Mutex::default(),
            opened: AtomicU64::new(0),
            since: tokio::time::Instant::now(),
        }
    }

    /// Whether updates are calls. Not with a server that knows no sessions.
    pub(crate) fn are_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_nanos(self.since.elapsed().as_nanos() as u64)
    }

    /// The time from which a term counts: its owner may have begun the term as soon as it was
    /// asked.
    fn term_from(&self, sent_at: Instant) -> Instant {
        if mutant!("client_term_from_the_answer") { self.now() } else { sent_at }
    }

    /// A session that is not in use: the one of this number, if it is free. Sessions that may have
    /// ended are forgotten.
    fn take(&self, attached: Option<u64>) -> Option<Session> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        spare.retain(|session| session.client_lease.may_begin(now));
        let at = spare.iter().position(|session| Some(session.number) == attached);
        match at {
            Some(at) => Some(spare.swap_remove(at)),
            None => spare.pop(),
        }
    }

    /// Holds this session for calls, or the one that the first call takes.
    pub(crate) fn hold(&self, session: Option<Shared>) -> Held<'_> {
        Held { sessions: self, session }
    }

    /// Lets a connection make the calls of the session in use; if none is in use, takes a spare one
    /// or opens one. Renews its lease when that is due. Calls wait for the answer: without it, they
    /// might count as calls of the earlier session.
    pub(crate) async fn attach(&self, loan: &mut Loan, held: &mut Held<'_>) -> Result<(), Tried> {
        let attached = loan.connection().session.as_deref().copied();
        if held.session.is_none() {
            held.session = self.take(attached.map(|attached| attached.number)).map(share);
        }
        let Some(session) = &held.session else {
            held.session = Some(share(self.open(loan).await?));
            return Ok(());
        };
        // Numbered updates would acknowledge open calls.
        let has_open = lock(session).requests.open() > 0;
        let has_open = has_open && !mutant!("client_numbers_beside_open_calls");
        if has_open && let Err(lost) = loan.stop_numbering().await {
            return Err(Tried::Failed(loan.lost(lost)));
        }
        let (number, next, told, renewal) = {
            let session = lock(session);
            let attached = attached.filter(|attached| attached.number == session.number);
            let told = attached.map(|attached| attached.client_lease);
            let told = told.map(|told| match mutant!("client_connection_told_long_ago") {
                true => session.client_lease,
                false => told,
            });
            if told.is_some_and(|told| self.now() < told.renew_at()) {
                return Ok(());
            }
            let words: [&[u8]; 4] = [b"SESSION", b"RENEW", &session.id, &session.until];
            let mut request = Request::one(&words);
            let next = (!has_open).then(|| session.requests.next());
            if attached.is_none() {
                match next {
                    Some(next) => number_from(&mut request, next, 1),
                    None => request.push_numbering(&[b"SESSION", b"AUTO", b"OFF"]),
                }
            }
            (session.number, next, session.client_lease, request)
        };
        let sent_at = self.now();
        let mut replies = match loan.exchange(&renewal).await {
            Ok(replies) => replies,
            Err(lost) => return Err(Tried::Failed(loan.lost(lost))),
        };
        if renewal.commands() > 1 {
            loan.connection().numbers = numbers(number, next, replies.pop());
        }
        match replies.pop().expect("each command has a reply") {
            Reply::Error(error) if error.code == "EXPIRED" => {
                loan.connection().session = None;
                Err(lock(session).is_over_as_told(Some(told), error))
            }
            Reply::Error(error) => Err(Tried::Failed(loan.refused(error, false))),
            reply => {
                let Some((_, until, term)) = read_lease(&reply) else {
                    return Err(Tried::Failed(unexpected("SESSION RENEW", &reply)));
                };
                let client_lease = ClientLease::new(self.term_from(sent_at), term);
                lock(session).renewed(until, client_lease);
                loan.connection().session = Some(Box::new(Attached { number, client_lease }));
                Ok(())
            }
        }
    }

    /// The meaning of the reply to a call.
    pub(crate) fn judge(&self, loan: &mut Loan, held: &Held<'_>, reply: Reply) -> Tried {
        let Reply::Error(error) = reply else { return Tried::Answer(reply) };
        match error.code.as_str() {
            "UNKNOWN" => Tried::Open(Failure::TryAgain(error.to_string())),
            code if NO_ANSWERS.contains(&code) => Tried::Failed(loan.refused(error, false)),
            "EXPIRED" => {
                let told = loan.connection().session.take().map(|attached| attached.client_lease);
                lock(held.attached()).is_over_as_told(told, error)
            }
            "NOSESSION" => {
                loan.connection().session = None;
                loan.connection().numbers = None;
                Tried::Failed(Failure::TryAgain(error.to_string()))
            }
            "NOTSUPPORTED" => {
                self.enabled.store(false, Ordering::Relaxed);
                Tried::Unfit
            }
            "CROSSKEY" => Tried::Unfit,
            "ERR" if error.message.starts_with("a session's call is") => Tried::Unfit,
            "ERR" if error.message.starts_with("the session holds") => Tried::Failed(last(error)),
            "MISCONF" if mutant!("client_full_disk_is_an_answer") => {
                Tried::Answer(Reply::Error(error))
            }
            "STALE" | "WINDOW" | "DIFFERENT" | "OOM" | "MISCONF" | "NOAUTH" => {
                Tried::Failed(last(error))
            }
            _ => Tried::Answer(Reply::Error(error)),
        }
    }

    /// Opens a session over a connection.
    async fn open(&self, loan: &mut Loan) -> Result<Session, Tried> {
        let sent_at = self.now();
        let mut request = Request::one(&[b"SESSION", b"OPEN"]);
        number_from(&mut request, 0, 1);
        let mut replies = match loan.exchange(&request).await {
            Ok(replies) => replies,
            Err(lost) => return Err(Tried::Failed(loan.lost(lost))),
        };
        let numbered = replies.pop();
        let reply = replies.pop().expect("each command has a reply");
        if let Reply::Error(error) = reply {
            let unknown = error.code == "ERR" && error.message.starts_with("unknown command");
            return Err(match error.code.as_str() {
                "MAXSESSIONS" => Tried::Failed(Failure::Node(error.to_string())),
                code if unknown || code == "NOTSUPPORTED" => {
                    self.enabled.store(false, Ordering::Relaxed);
                    Tried::Unfit
                }
                _ => Tried::Failed(loan.refused(error, false)),
            });
        }
        let Some((id, until, term)) = read_lease(&reply) else {
            return Err(Tried::Failed(unexpected("SESSION OPEN", &reply)));
        };
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let client_lease = ClientLease::new(self.term_from(sent_at), term);
        loan.connection().session = Some(Box::new(Attached { number, client_lease }));
        loan.connection().numbers = numbers(number, Some(0), numbered);
        let requests = RequestTracker::default();
        Ok(Session { number, id, until, client_lease, requests })
    }
}

impl Session {
    /// A connection was told of a renewal. Answers may overtake each other.
    fn renewed(&mut self, until: Vec<u8>, client_lease: ClientLease) {
        if client_lease.over_at() >= self.client_lease.over_at() {
            (self.until, self.client_lease) = (until, client_lease);
        }
    }

    /// A node has said that the session is over. It judges by what it was shown, if it has not known the
    /// lease from the beginning; so if another connection has been told of a later renewal, this one shows
    /// that next. A connection that is told of none has been refused for that a moment ago.
    fn is_over_as_told(&self, told: Option<ClientLease>, error: ServerError) -> Tried {
        let renewed = told.is_none_or(|told| told.over_at() < self.client_lease.over_at());
        match renewed && !mutant!("client_told_of_the_end_too_soon") {
            true => Tried::Failed(Failure::TryAgain(error.to_string())),
            false => Tried::Expired(error.to_string()),
        }
    }
}

impl<'a> Held<'a> {
    pub(crate) fn sessions(&self) -> &'a Sessions {
        self.sessions
    }

    /// The number of a new call; `None` while the window is full.
    pub(crate) fn begin(&mut self) -> Option<u64> {
        lock(self.attached()).requests.begin()
    }

    /// Whether this many new commands can be sent without numbers, under the session's next
    /// numbers, which the node counts as the client does. `request` begins with the commands that
    /// this takes.
    ///
    /// It can't be while a call is open: each command acknowledges all calls before the exchange
    /// that it belongs to.
    pub(crate) fn count_along(
        &self,
        connection: &mut Connection,
        commands: usize,
        request: &mut Request,
    ) -> bool {
        let mut session = lock(self.attached());
        let Some(numbers) = &mut connection.numbers else { return false };
        if session.requests.open() > 0 || commands as u64 > SESSION_WINDOW {
            return false;
        }
        // Another connection may have used the session meanwhile.
        let (number, next) = (session.number, session.requests.next());
        let is_ahead = numbers.next >= next || mutant!("client_counts_its_connection_only");
        if numbers.session == Some(number) && is_ahead && numbers.depth >= commands {
            session.requests.leave_out(numbers.next);
        } else {
            number_from(request, next, commands);
            **numbers = Numbers { session: Some(number), next, depth: commands };
        }
        true
    }

    /// The words before the command of a call.
    pub(crate) fn head(&self, number: u64) -> [Vec<u8>; 4] {
        let numbers = [number, lock(self.attached()).requests.first_incomplete()];
        let [number, first] = numbers.map(|number| number.to_string().into_bytes());
        [b"SESSION".to_vec(), b"CALL".to_vec(), number, first]
    }

    fn attached(&self) -> &Shared {
        self.session.as_ref().expect("it is attached")
    }

    /// A call's end is known, or it never began.
    pub(crate) fn complete(&mut self, number: Option<u64>) {
        if let (Some(session), Some(number)) = (&self.session, number) {
            lock(session).requests.complete(number);
        }
    }

    /// The failure of a call that did not happen, and never will.
    pub(crate) fn fail(&mut self, number: Option<u64>, tried: Tried) -> Failure {
        match &tried {
            Tried::Expired(_) => self.forget(),
            _ => self.complete(number),
        }
        tried.failure()
    }

    /// Forgets the session: it has ended, or no node can go on with it.
    pub(crate) fn forget(&mut self) {
        self.session = None;
    }

    /// A call whose outcome is left open.
    pub(crate) fn open_call(&self, number: u64, work: Work) -> Option<Box<OpenCall>> {
        let session = self.session.clone()?;
        Some(Box::new(OpenCall { work, session, number }))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The session goes back only when the last of its open calls has ended.
        let Some(session) = self.session.take().and_then(Arc::into_inner) else { return };
        let session = session.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.sessions.spare.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }
}

fn share(session: Session) -> Shared {
    Arc::new(Mutex::new(session))
}

fn lock(session: &Shared) -> MutexGuard<'_, Session> {
    // No code that holds the lock leaves the session half changed.
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks a node to number the commands that follow.
fn number_from(request: &mut Request, next: u64, depth: usize) {
    let [next, depth] = [next, depth as u64].map(|number| number.to_string().into_bytes());
    request.push_numbering(&[b"SESSION", b"AUTO", &next, &depth]);
}

/// The numbering of a connection's commands after the answer to that, or to `AUTO OFF` if there is
/// no next number; `None` if the node does not number commands.
fn numbers(session: u64, next: Option<u64>, answer: Option<Reply>) -> Option<Box<Numbers>> {
    let is_ok = answer.is_some_and(|answer| answer.is_ok());
    let numbers =
        Numbers { session: next.map(|_| session), next: next.unwrap_or_default(), depth: 1 };
    is_ok.then(|| Box::new(numbers))
}

/// The words of a call.
pub(crate) fn words<'a>(head: &'a [Vec<u8>; 4], command: &[&'a [u8]]) -> Vec<&'a [u8]> {
    head.iter().map(Vec::as_slice).chain(command.iter().copied()).collect()
}

/// The id, the expiry and the term of a lease.
fn read_lease(reply: &Reply) -> Option<(Vec<u8>, Vec<u8>, Duration)> {
    match (reply.field("id")?, reply.field("until")?, reply.field("term")?) {
        (Reply::Bulk(id), Reply::Bulk(until), Reply::Integer(term)) => {
            let term = Duration::from_millis(u64::try_from(*term).ok()?);
            Some((id.clone(), until.clone(), term))
        }
        _ => None,
    }
}

fn unexpected(command: &'static str, reply: &Reply) -> Failure {
    Failure::Final(Error::UnexpectedReply { command, reply: reply.kind() })
}

fn last(error: ServerError) -> Failure {
    Failure::Final(error.into())
}
