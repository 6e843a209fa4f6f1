//! `SESSION`: calls that run exactly once. A connection makes the calls of the session that is
//! attached to it; the session outlives the connection, and goes on with another one.

use std::borrow::Cow;

use quorate_commands::{
    Args, Call, ConnectionCommand, Op, OwnedCall, Reply as Answer, Run, Spec, arity_error, resolve,
};
use quorate_machine::{CallError, mutant};
use quorate_rifl::{
    Answer as Lease, ClientLease, Genuine, Grant, LeaseId, Lost, Numbering, Request,
};
use quorate_types::{Instant, Tag, limits};

use crate::backend::{Attempt, Backend};
use crate::blocking::NO_CALL;
use crate::connection::{Asked, Reply};
use crate::dispatch::Context;
use crate::encode::{Protocol, encode, error};
use crate::pending::{Failure, Pending};
use crate::session::NOT_AN_INTEGER;

const NO_SESSION: Answer<'static> = Answer::error(
    "NOSESSION no session is attached to this connection; begin one with SESSION OPEN, or attach one \
     with SESSION RENEW id until",
);
const FLUSHES: &str = "ERR a flush is no part of a session's call; send the block without SESSION \
                       CALL, and after SESSION AUTO OFF";
const NO_NUMBERS: Answer<'static> = Answer::error(
    "NOSESSION the session that SESSION AUTO was to number the calls of is not attached, so this did \
     not happen; attach it and say SESSION AUTO n, or SESSION AUTO OFF for commands without a session",
);
const NO_DEPTH: Answer<'static> = Answer::error(
    "ERR the depth is how many commands are without an answer at most, from 1 to 512",
);

/// The session of a connection.
#[derive(Debug)]
pub(crate) struct Attached {
    grant: Grant,
    /// What is shown of the session besides its id.
    token: u64,
    client_lease: ClientLease,
    /// Calls that are not answered.
    open: u64,
}

/// The number that a client has given a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbered {
    sequence: u64,
    first_incomplete: u64,
}

impl<B: Backend> Context<'_, B> {
    // --- leases --------------------------------------------------------------------------------

    /// `SESSION OPEN`, `SESSION RENEW [id until]`, `SESSION CLOSE [id until]`. Everything before is
    /// answered; what follows waits.
    pub(crate) fn lease(&mut self, call: &Call<'_>) {
        let (request, token) = match self.lease_request(call) {
            Ok(request) => request,
            Err(reply) => return self.reply(call.spec, &reply),
        };
        let (spec, protocol) = (call.spec, self.connection.session.protocol);
        let since = self.now.monotonic;
        let asked = Asked { spec, protocol, since, token };
        let number = self.connection.push(Reply::Lease(asked));
        self.connection.barrier = true;
        let since = self.now.monotonic;
        let pending = Pending { connection: self.id, number, part: 0, bytes: 0, read: None, since };
        let tag = Tag(self.core.pending.insert(pending).to_u64());
        self.backend.lease(self.now, tag, request);
    }

    /// What is asked for, and the token of the session that it is asked for.
    fn lease_request(&self, call: &Call<'_>) -> Result<(Request, Option<u64>), Answer<'static>> {
        if matches!(call.spec.run, Run::Connection(ConnectionCommand::SessionOpen)) {
            return Ok((Request::Open, None));
        }
        let (lease, token, told) = match call.args.len() {
            2 => {
                let attached = self.connection.attached.as_ref().ok_or(NO_SESSION)?;
                (attached.grant.lease, attached.token, attached.grant.until)
            }
            4 => {
                let (lease, token) = self.shown(call.args.get(2))?;
                (lease, token, parse_number(call.args.get(3))?)
            }
            _ => return Err(arity_error(call.spec)),
        };
        let request = match call.spec.run {
            Run::Connection(ConnectionCommand::SessionClose) => Request::Close { lease },
            _ => Request::Renew { lease, told, above: 0 },
        };
        Ok((request, Some(token)))
    }

    /// The session whose id a client shows, if it was told it.
    fn shown(&self, id: &[u8]) -> Result<(LeaseId, u64), Answer<'static>> {
        let (lease, token) = parse_id(id).ok_or(Answer::error(Failure::Expired.text()))?;
        match self.backend.is_genuine(lease, token) {
            Genuine::Yes => Ok((lease, token)),
            Genuine::No => Err(Answer::error(Failure::Expired.text())),
            Genuine::Unready => Err(Answer::error(Failure::LeaseNeeded.text())),
        }
    }

    /// A lease manager has said something. Whether that settles the request or the call.
    pub(crate) fn leased(&mut self, pending: Pending, answer: Lease) -> bool {
        let number = pending.number;
        match self.connection.reply(number) {
            Some(&mut Reply::Lease(asked)) => {
                self.finish_lease(number, asked, answer);
                true
            }
            Some(Reply::Call { .. } | Reply::Exec(_)) => match answer {
                Lease::Granted(grant) => {
                    self.renewed(grant);
                    false
                }
                lost => {
                    self.op_answered(pending, Err(failure_of(&lost)));
                    true
                }
            },
            // The reply is nobody's any more; a call that was renewed is still to be answered.
            _ => !matches!(answer, Lease::Granted(_)),
        }
    }

    fn finish_lease(
        &mut self,
        number: u64,
        Asked { spec, protocol, since, token }: Asked,
        answer: Lease,
    ) {
        let closes = matches!(spec.run, Run::Connection(ConnectionCommand::SessionClose));
        let reply = match answer {
            Lease::Granted(grant) => {
                let token = token.unwrap_or_else(|| self.backend.session_token(grant.lease));
                self.attach(grant, token, since);
                Answer::Map(self.lease_facts(&grant, token))
            }
            Lease::Lost(Lost::Closed) if closes => {
                self.connection.attached = None;
                Answer::Ok
            }
            other => Answer::error(failure_of(&other).text()),
        };
        if let Answer::Error(text) = &reply {
            self.core.stats.failed(spec, text);
        }
        self.connection.finish(number, |out| encode(&reply, protocol, out));
    }

    /// The connection makes the calls of this session from now on. Its calls are all answered if
    /// another one was attached.
    fn attach(&mut self, grant: Grant, token: u64, since: Instant) {
        let term = self.backend.session_term();
        match &mut self.connection.attached {
            Some(attached) if attached.grant.lease == grant.lease => {
                attached.grant = grant;
                attached.client_lease.renewed(since, term);
            }
            attached => {
                let client_lease = ClientLease::new(since, term);
                *attached = Some(Box::new(Attached { grant, token, client_lease, open: 0 }));
            }
        }
    }

    /// The lease was renewed for one of its calls, just now or a moment ago.
    fn renewed(&mut self, grant: Grant) {
        if let Some(attached) = &mut self.connection.attached
            && attached.grant.lease == grant.lease
        {
            attached.grant = grant;
        }
    }

    fn lease_facts(&self, grant: &Grant, token: u64) -> Vec<(Answer<'static>, Answer<'static>)> {
        let term = self.backend.session_term().as_millis() as i64;
        vec![
            (Answer::text("id"), id_of(grant.lease, token)),
            (Answer::text("until"), opaque(grant.until)),
            (Answer::text("term"), Answer::Int(term)),
        ]
    }

    /// `SESSION INFO`.
    pub(crate) fn session_info(&self) -> Answer<'static> {
        let facts = self.connection.attached.as_ref().map(|attached| {
            let over = attached.client_lease.over_at();
            let remaining = over.since(self.now.monotonic).as_millis() as i64;
            let id = id_of(attached.grant.lease, attached.token);
            (id, opaque(attached.grant.until), remaining, attached.open)
        });
        let is_attached = i64::from(facts.is_some());
        let next = self.connection.numbering.as_ref().map(|numbering| opaque(numbering.next()));
        let (id, until, remaining, open) = facts.unwrap_or((Answer::Null, Answer::Null, 0, 0));
        Answer::Map(vec![
            (Answer::text("id"), id),
            (Answer::text("until"), until),
            (Answer::text("remaining"), Answer::Int(remaining)),
            (Answer::text("attached"), Answer::Int(is_attached)),
            (Answer::text("calls"), Answer::Int(open as i64)),
            (Answer::text("next"), next.unwrap_or(Answer::Null)),
        ])
    }

    // --- numbers that are left out ------------------------------------------------------------

    /// `SESSION AUTO n [depth]`, `SESSION AUTO OFF`. Once it was asked for, no update is a plain one
    /// before `OFF`, also if the request was refused: the client may have sent updates behind it,
    /// and try them again as calls.
    pub(crate) fn session_auto(&mut self, args: Args<'_>) -> Result<(), Answer<'static>> {
        if args.len() == 3 && args.get(2).eq_ignore_ascii_case(b"off") {
            self.connection.numbering = None;
            return Ok(());
        }
        let asked = self.asked_numbering(args);
        let refused = !mutant!("resp_auto_refused_is_off");
        let numbering = match &asked {
            Ok(numbering) => Some(numbering.clone()),
            Err(_) => refused.then(|| Numbering::new(None, 0, 1)),
        };
        self.connection.numbering = numbering.map(Box::new);
        asked.map(|_| ())
    }

    fn asked_numbering(&self, args: Args<'_>) -> Result<Numbering, Answer<'static>> {
        if args.len() > 4 {
            return Err(Answer::error("ERR syntax error"));
        }
        // Far enough from the last number for every command that a connection can send.
        let next = parse_number(args.get(2))?;
        if next > i64::MAX as u64 {
            return Err(NOT_AN_INTEGER);
        }
        let depth = if args.len() == 4 { parse_number(args.get(3))? } else { 1 };
        if !(1..=limits::SESSION_WINDOW).contains(&depth) {
            return Err(NO_DEPTH);
        }
        let attached = self.connection.attached.as_ref().ok_or(NO_SESSION)?;
        Ok(Numbering::new(Some(attached.grant.lease), next, depth))
    }

    /// A command has come, and takes a number if the connection's commands have some.
    #[inline]
    pub(crate) fn number(&mut self, args: Args<'_>) {
        if let Some(numbering) = &mut self.connection.numbering
            && (!mutant!("resp_auto_skips_unknown_commands") || resolve(args).is_ok())
        {
            numbering.begin();
        }
    }

    /// The number of an update as a call of the attached session, from its place among the
    /// connection's commands; `None` if the commands have no numbers.
    pub(crate) fn numbered_by_place(&mut self) -> Result<Option<Numbered>, Answer<'static>> {
        let connection = &mut *self.connection;
        let Some(numbering) = &mut connection.numbering else { return Ok(None) };
        let lease = connection.attached.as_ref().map(|attached| attached.grant.lease);
        let lease = lease.filter(|&lease| numbering.is_of(lease)).ok_or(NO_NUMBERS)?;
        let answered = connection.first;
        let place = answered + connection.replies.len() as u64;
        let call = numbering.call(lease, 0, place, answered);
        call.check().map_err(|why| Answer::error(Failure::CallError(why).text()))?;
        let (sequence, first_incomplete) = (call.sequence, call.first_incomplete);
        Ok(Some(Numbered { sequence, first_incomplete }))
    }

    /// An update of a connection whose commands have numbers.
    pub(crate) fn numbered_update(&mut self, call: &Call<'_>) {
        match self.numbered_by_place() {
            Ok(Some(numbered)) => self.call_keyed(call, numbered),
            Ok(None) => unreachable!("the connection's commands have numbers"),
            Err(reply) => self.reply(call.spec, &reply),
        }
    }

    // --- calls ---------------------------------------------------------------------------------

    /// `SESSION CALL seq first-incomplete command [arg ...]`.
    pub(crate) fn session_call(&mut self, args: Args<'_>) {
        let inner = Args { spans: &args.spans[4..], ..args };
        let spec = match resolve(inner) {
            Ok(spec) => spec,
            Err(reply) => {
                self.unresolved(inner, &reply);
                return;
            }
        };
        let is_exec = matches!(spec.run, Run::Connection(ConnectionCommand::Exec));
        let numbered = match self.numbered(args, spec) {
            Ok(numbered) => numbered,
            Err(reply) => {
                if is_exec {
                    self.forget_block();
                }
                return self.reply(spec, &reply);
            }
        };
        let call = Call::new(spec, self.seeded(spec, inner));
        if let Some(reply) = self.reject(&call) {
            return self.abort(spec, &reply);
        }
        if call.waits().is_ok_and(|wait| wait.is_some()) {
            return self.reply(spec, &Answer::error(NO_CALL));
        }
        let sourced = if call.is_script() { self.sourced(&call) } else { None };
        let call = sourced.as_ref().map_or(call, OwnedCall::call);
        if let Some(reply) = self.refuse_script(&call, true) {
            return self.reply(spec, &reply);
        }
        self.core.stats.called(spec);
        self.core.ran = Some(spec);
        let unheard = self.track_reads(self.connection.session.database, &call, false);
        if is_exec {
            self.exec(spec, Some(numbered));
        } else if call.updates() {
            self.call_keyed(&call, numbered);
        } else {
            // To read twice does no harm, and the second answer is as good as the first.
            self.keyed(&call);
        }
        self.told_unheard(unheard);
    }

    /// Whether what is no call would overtake one: calls run on the lane of their lease, or wait for
    /// their grant, and what follows on the connection's own lane does not.
    fn overtakes_calls(&self) -> bool {
        self.open_calls() > 0 && !mutant!("resp_calls_overtaken")
    }

    /// Whether a `SESSION CALL` would overtake anything or be overtaken. Calls that update keep their
    /// order among themselves; what only reads is no call.
    pub(crate) fn call_overtakes(&self, args: Args<'_>) -> bool {
        let inner = Args { spans: &args.spans[4..], ..args };
        resolve(inner).is_ok_and(|spec| self.update_overtakes(&Call::new(spec, inner)))
    }

    /// The same for a command that is a call if it updates.
    fn update_overtakes(&self, call: &Call<'_>) -> bool {
        let updates = u64::from(self.connection.updates);
        match call.spec.run {
            // What its block does is not looked at before its turn.
            Run::Connection(ConnectionCommand::Exec) => updates > 0,
            _ if call.updates() => updates > self.open_calls(),
            _ => self.overtakes_calls(),
        }
    }

    /// The same for a command on keys, `WATCH` or `EXEC` that is sent as it is.
    pub(crate) fn command_overtakes(&self, call: &Call<'_>) -> bool {
        if self.connection.numbering.is_some() {
            self.update_overtakes(call)
        } else {
            self.overtakes_calls()
        }
    }

    /// Calls of the attached session that are not answered.
    fn open_calls(&self) -> u64 {
        self.connection.attached.as_ref().map_or(0, |attached| attached.open)
    }

    /// The number of a call that the attached session may make.
    fn numbered(&self, args: Args<'_>, spec: &Spec) -> Result<Numbered, Answer<'static>> {
        let (sequence, first_incomplete) = (parse_number(args.get(2))?, parse_number(args.get(3))?);
        if !matches!(spec.run, Run::Key(_) | Run::Connection(ConnectionCommand::Exec)) {
            let name = spec.name.replace('|', " ").to_ascii_uppercase();
            let text = format!(
                "ERR a session's call is a command on keys, or EXEC; send {name} without SESSION CALL"
            );
            return Err(Answer::Error(text.into()));
        }
        let attached = self.connection.attached.as_ref().ok_or(NO_SESSION)?;
        let lease = attached.grant.lease;
        let call = quorate_rifl::Call { lease, sequence, first_incomplete, digest: 0 };
        call.check().map_err(|why| Answer::error(Failure::CallError(why).text()))?;
        Ok(Numbered { sequence, first_incomplete })
    }

    /// The block of an `EXEC` that can't be called is gone, as that of any `EXEC`.
    fn forget_block(&mut self) {
        self.connection.transaction.discard();
        self.connection.facts.queued.store(0, std::sync::atomic::Ordering::Relaxed);
    }

    /// Whether calls can be made on this keyspace. No keyspace: the block flushes some.
    pub(crate) fn can_call(&self, database: Option<u8>) -> Result<(), Cow<'static, str>> {
        let database = database.ok_or(FLUSHES)?;
        if self.backend.has_sessions(database) {
            return Ok(());
        }
        let engine = self.backend.keyspace(database).map_or("?", |facts| facts.engine);
        Err(format!(
            "NOTSUPPORTED the engine of this keyspace ('{engine}') has no sessions; SELECT a keyspace \
             whose engine has"
        )
        .into())
    }

    fn call_keyed(&mut self, call: &Call<'_>, numbered: Numbered) {
        let database = self.connection.session.database;
        if let Err(text) = self.can_call(Some(database)) {
            return self.reply(call.spec, &Answer::Error(text));
        }
        let transactional = self.backend.transactional(database);
        if !transactional && let Err(crosskey) = call.single_key() {
            return self.reply(call.spec, &crosskey);
        }
        if !transactional && self.is_keyless(call) {
            // It changes nothing, so it may run again.
            return self.keyed(call);
        }
        let op = Op::Call(call.to_owned_call());
        let protocol = self.connection.session.protocol;
        let bytes = call.args.buffer.len() + self.awaited(database, std::iter::once(*call));
        let number = self.connection.push(Reply::Call { spec: call.spec, protocol });
        self.connection.updates += 1;
        self.call(database, number, bytes, numbered, op);
    }

    /// Submits a call of the attached session.
    pub(crate) fn call(
        &mut self,
        database: u8,
        number: u64,
        bytes: usize,
        numbered: Numbered,
        op: Op,
    ) {
        let tag = self.tag(number, 0, bytes);
        let attached =
            self.connection.attached.as_mut().expect("only a session's calls are numbered");
        attached.open += 1;
        let grant = attached.grant;
        let Numbered { sequence, first_incomplete } = numbered;
        let digest = op.digest();
        let call = quorate_rifl::Call { lease: grant.lease, sequence, first_incomplete, digest };
        let op = match self.core.notified_classes() {
            0 => op,
            classes => op.noted(database, classes),
        };
        let attempt = Attempt { call, grant, op };
        self.backend.call(database, self.now, tag, self.connection.facts.id, attempt);
    }

    /// A call has its answer.
    pub(crate) fn call_answered(&mut self) {
        if let Some(attached) = &mut self.connection.attached {
            attached.open -= 1;
        }
    }

    pub(crate) fn finish_call(
        &mut self,
        number: u64,
        spec: &'static Spec,
        protocol: Protocol,
        answer: &Result<Answer<'static>, Failure>,
    ) {
        self.call_answered();
        match answer {
            Ok(Answer::Error(text)) => self.core.stats.failed(spec, text),
            Ok(_) => {}
            Err(failure) => self.core.stats.failed(spec, failure.text_of_call()),
        }
        self.connection.finish(number, |out| match answer {
            Ok(reply) => encode(reply, protocol, out),
            Err(failure) => error(failure.text_of_call(), out),
        });
    }
}

fn failure_of(answer: &Lease) -> Failure {
    match answer {
        Lease::Lost(Lost::Expired) => Failure::Expired,
        Lease::Lost(Lost::Closed) => Failure::CallError(CallError::Closed),
        Lease::Full => Failure::TooManySessions,
        Lease::Granted(_) | Lease::Unready => Failure::LeaseNeeded,
    }
}

/// The id of a session as its client is told it: `<number>-<token in 16 hexadecimal digits>`.
fn id_of(lease: LeaseId, token: u64) -> Answer<'static> {
    Answer::Bulk(Cow::Owned(format!("{}-{token:016x}", lease.0).into_bytes()))
}

/// What [`id_of`] wrote.
fn parse_id(text: &[u8]) -> Option<(LeaseId, u64)> {
    let (number, token) = std::str::from_utf8(text).ok()?.split_once('-')?;
    let is_hexadecimal = token.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = parse_number(number.as_bytes()).ok()?;
    let token = u64::from_str_radix(token, 16).ok().filter(|_| is_hexadecimal)?;
    Some((LeaseId(number), token))
}

/// A number that clients repeat as they were given it. In text, since not all of them fit into an
/// integer of RESP.
fn opaque(number: u64) -> Answer<'static> {
    Answer::Bulk(Cow::Owned(number.to_string().into_bytes()))
}

fn parse_number(text: &[u8]) -> Result<u64, Answer<'static>> {
    let digits = text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| digits);
    text.and_then(|text| text.parse().ok()).ok_or(NOT_AN_INTEGER)
}
