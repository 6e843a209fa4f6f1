//! Commands on the state of one connection.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{Args, ConnectionCommand, Reply, by_id, parse_integer};
use quorate_types::{Duration, Instant};

use crate::backend::Backend;
use crate::connection::{Life, Wants};
use crate::dispatch::Context;
use crate::encode::Protocol;
use crate::limits;
use crate::pubsub::is_of_type;
use crate::shared::{ClientFacts, lock};
use crate::tracking::NOT_IN_MULTI;

/// The version of Redis whose replies these are.
pub const REDIS_VERSION: &str = "7.0.15";

pub(crate) const SYNTAX: Reply<'static> = Reply::error("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: Reply<'static> =
    Reply::error("ERR value is not an integer or out of range");
const WRONG_PASSWORD: Reply<'static> =
    Reply::error("WRONGPASS invalid username-password pair or user is disabled.");
const NO_PASSWORD: Reply<'static> = Reply::error(
    "ERR AUTH <password> called without any password configured for the default user. Are you \
     sure your configuration is correct?",
);
const HELLO_FIRST: Reply<'static> = Reply::error(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH \
     <user> <pass> option can be used to authenticate the client and select the RESP protocol \
     version at the same time",
);
const BAD_NAME: Reply<'static> =
    Reply::error("ERR Client names cannot contain spaces, newlines or special characters.");

pub(crate) fn bulk(bytes: &[u8]) -> Reply<'static> {
    Reply::Bulk(Cow::Owned(bytes.to_vec()))
}

pub(crate) fn failure(text: String) -> Reply<'static> {
    Reply::Error(Cow::Owned(text))
}

/// What an error text quotes from a request: up to the first zero byte, as in Redis.
pub(crate) fn quoted(argument: &[u8]) -> Cow<'_, str> {
    let end = argument.iter().position(|&byte| byte == 0).unwrap_or(argument.len());
    String::from_utf8_lossy(&argument[..end])
}

impl<B: Backend> Context<'_, B> {
    /// Executes a command on the connection's own state.
    pub(crate) fn session_command(
        &mut self,
        command: ConnectionCommand,
        args: Args<'_>,
    ) -> Reply<'static> {
        use ConnectionCommand as Command;
        match command {
            Command::Hello => self.hello(args),
            Command::Auth => self.auth(args),
            Command::Select => self.select(args),
            Command::Reset => self.reset(),
            Command::Multi if self.connection.transaction.is_open() => {
                Reply::error("ERR MULTI calls can not be nested")
            }
            Command::Multi => {
                self.connection.transaction.begin();
                self.connection.facts.queued.store(1, Relaxed);
                Reply::Ok
            }
            Command::Discard if !self.connection.transaction.is_open() => {
                Reply::error("ERR DISCARD without MULTI")
            }
            Command::Discard => {
                self.connection.transaction.discard();
                self.connection.facts.queued.store(0, Relaxed);
                Reply::Ok
            }
            Command::Unwatch => {
                self.connection.transaction.unwatch();
                Reply::Ok
            }
            Command::ClientId => Reply::Int(self.connection.facts.id as i64),
            Command::ClientGetname => {
                let names = lock(&self.connection.facts.names);
                if names.name.is_empty() { Reply::Null } else { bulk(names.name.as_bytes()) }
            }
            Command::ClientSetname => self.set_name(args.get(2)).err().unwrap_or(Reply::Ok),
            Command::ClientSetinfo => self.set_info(args.get(2), args.get(3)),
            Command::ClientInfo => {
                self.measure(args);
                let text = client_line(&self.connection.facts, self.now.monotonic);
                Reply::Verbatim(Cow::Owned(text))
            }
            Command::ClientList => self.client_list(args),
            Command::ClientNoEvict => {
                switch(args.get(2), |on| self.connection.facts.no_evict.store(on, Relaxed))
            }
            Command::ClientNoTouch => {
                switch(args.get(2), |on| self.connection.facts.no_touch.store(on, Relaxed))
            }
            Command::ClientReply => self.client_reply(args.get(2)),
            Command::ClientKill => self.client_kill(args),
            Command::ClientUnblock => self.client_unblock(args),
            Command::ClientTracking => NOT_IN_MULTI,
            Command::ClientCaching => self.client_caching(args.get(2)),
            Command::ClientTrackinginfo => self.client_tracking_info(),
            Command::ClientGetredir => self.client_redirect(),
            Command::ClientPause => self.client_pause(args),
            Command::ClientUnpause => self.client_unpause(),
            Command::Monitor => {
                self.core.begin_monitor(self.connection, self.id);
                Reply::Ok
            }
            Command::SessionInfo => self.session_info(),
            Command::Subscribe
            | Command::Unsubscribe
            | Command::Psubscribe
            | Command::Punsubscribe
            | Command::Ssubscribe
            | Command::Sunsubscribe
            | Command::Ping
            | Command::Echo
            | Command::Exec
            | Command::Watch
            | Command::Quit
            | Command::SessionOpen
            | Command::SessionRenew
            | Command::SessionClose
            | Command::SessionCall
            | Command::SessionAuto => {
                unreachable!("answered alone, or executed before this is reached")
            }
        }
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`.
    fn hello(&mut self, args: Args<'_>) -> Reply<'static> {
        let mut protocol = None;
        if args.len() > 1 {
            protocol = match parse_integer(args.get(1)) {
                None => {
                    return Reply::error("ERR Protocol version is not an integer or out of range");
                }
                Some(2) => Some(Protocol::Resp2),
                Some(3) => Some(Protocol::Resp3),
                Some(_) => return Reply::error("NOPROTO unsupported protocol version"),
            };
        }
        // As in Redis 7.0, each option takes effect when it is read, whatever is wrong with a later
        // one.
        let mut at = 2;
        while at < args.len() {
            let option = args.get(at);
            let more = args.len() - 1 - at;
            if option.eq_ignore_ascii_case(b"auth") && more >= 2 {
                if !self.core.shared.authenticates(args.get(at + 1), args.get(at + 2)) {
                    return self.wrong_password();
                }
                self.connection.session.authenticated = true;
                at += 3;
            } else if option.eq_ignore_ascii_case(b"setname") && more >= 1 {
                if let Err(reply) = self.set_name(args.get(at + 1)) {
                    return reply;
                }
                at += 2;
            } else {
                return failure(format!("ERR Syntax error in HELLO option '{}'", quoted(option)));
            }
        }
        if self.core.must_authenticate(self.connection) {
            return HELLO_FIRST;
        }
        if let Some(protocol) = protocol {
            self.connection.session.protocol = protocol;
            self.connection.facts.protocol.store(protocol.number(), Relaxed);
        }
        let number = i64::from(self.connection.session.protocol.number());
        Reply::Map(vec![
            (Reply::text("server"), Reply::text("redis")),
            (Reply::text("version"), Reply::text(REDIS_VERSION)),
            (Reply::text("proto"), Reply::Int(number)),
            (Reply::text("id"), Reply::Int(self.connection.facts.id as i64)),
            (Reply::text("mode"), Reply::text("standalone")),
            (Reply::text("role"), Reply::text("master")),
            (Reply::text("modules"), Reply::Array(Vec::new())),
        ])
    }

    fn auth(&mut self, args: Args<'_>) -> Reply<'static> {
        let (user, password) = match args.len() {
            2 if !self.core.shared.has_password() => return NO_PASSWORD,
            2 => (b"default".as_slice(), args.get(1)),
            3 => (args.get(1), args.get(2)),
            _ => return SYNTAX,
        };
        if !self.core.shared.authenticates(user, password) {
            return self.wrong_password();
        }
        self.connection.session.authenticated = true;
        Reply::Ok
    }

    /// Who guesses waits for the answer, longer each time, and has to come again after a while. (A
    /// client with other answers outstanding is in already.)
    fn wrong_password(&mut self) -> Reply<'static> {
        if !self.core.shared.has_password() {
            return WRONG_PASSWORD;
        }
        let connection = &mut *self.connection;
        connection.auth_failures += 1;
        if connection.auth_failures >= limits::AUTH_FAILURES_MAX {
            connection.life = Life::Closing;
        } else if connection.replies.is_empty() {
            let doubled = limits::AUTH_BACKOFF_MS << (connection.auth_failures - 1);
            let until = self.now.monotonic + Duration::from_millis(doubled);
            connection.push(crate::connection::Reply::Pause { until });
            connection.barrier = true;
            self.core.waiting.push(self.id);
        }
        WRONG_PASSWORD
    }

    fn select(&mut self, args: Args<'_>) -> Reply<'static> {
        let Some(number) = parse_integer(args.get(1)) else { return NOT_AN_INTEGER };
        if i32::try_from(number).is_err() {
            return Reply::error(
                "ERR value is out of range, value must between -2147483648 and 2147483647",
            );
        }
        match u8::try_from(number) {
            Ok(number) if self.backend.has_keyspace(number) => {
                self.connection.session.database = number;
                self.connection.facts.database.store(number, Relaxed);
                Reply::Ok
            }
            _ => Reply::error("ERR DB index is out of range"),
        }
    }

    fn reset(&mut self) -> Reply<'static> {
        let authenticated = !self.core.shared.has_password();
        self.connection.transaction.discard();
        self.core.unsubscribe_all(self.connection);
        self.core.end_tracking(self.connection, self.id);
        self.core.end_monitor(self.connection, self.id);
        self.core.pubsub.tell(self.now, self.backend);
        self.connection.attached = None;
        self.connection.numbering = None;
        self.connection.session =
            crate::connection::Session { authenticated, ..crate::connection::Session::default() };
        let facts = &self.connection.facts;
        lock(&facts.names).name.clear();
        facts.database.store(0, Relaxed);
        facts.protocol.store(2, Relaxed);
        facts.queued.store(0, Relaxed);
        facts.no_evict.store(false, Relaxed);
        facts.no_touch.store(false, Relaxed);
        self.connection.mute = false;
        Reply::status("RESET")
    }

    fn set_name(&mut self, name: &[u8]) -> Result<(), Reply<'static>> {
        if !is_printable(name) {
            return Err(BAD_NAME);
        }
        lock(&self.connection.facts.names).name = quoted(name).into_owned();
        Ok(())
    }

    /// `CLIENT SETINFO`, which Redis has since 7.2; common client libraries send it.
    fn set_info(&mut self, attribute: &[u8], value: &[u8]) -> Reply<'static> {
        let lower = attribute.to_ascii_lowercase();
        if lower != b"lib-name" && lower != b"lib-ver" {
            return failure(format!("ERR Unrecognized option '{}'", quoted(attribute)));
        }
        if !is_printable(value) {
            return failure(format!(
                "ERR {} cannot contain spaces, newlines or special characters.",
                quoted(&lower)
            ));
        }
        let mut names = lock(&self.connection.facts.names);
        let value = quoted(value).into_owned();
        if lower == b"lib-name" {
            names.library = value;
        } else {
            names.library_version = value;
        }
        Reply::Ok
    }

    /// `CLIENT REPLY ON | OFF | SKIP`. Only the first is answered.
    fn client_reply(&mut self, word: &[u8]) -> Reply<'static> {
        let connection = &mut *self.connection;
        let wants = match word.to_ascii_lowercase().as_slice() {
            b"on" => Wants::Every,
            b"off" => Wants::None,
            // Who wants none wants none of the next command either.
            b"skip" if connection.session.wants == Wants::None => Wants::None,
            b"skip" => Wants::NotNext,
            _ => return SYNTAX,
        };
        connection.session.wants = wants;
        connection.mute = wants != Wants::Every;
        Reply::Ok
    }

    /// `CLIENT KILL address | [ID id] [TYPE type] [ADDR address] [LADDR address] [USER name]
    /// [SKIPME yes|no]`. A client of another lane is disconnected in that lane's next
    /// turn.
    fn client_kill(&mut self, args: Args<'_>) -> Reply<'static> {
        let victims = match Victims::parse(args, &self.connection.facts) {
            Ok(victims) => victims,
            Err(reply) => return reply,
        };
        let (shared, myself) = (&self.core.shared, self.connection.facts.id);
        let mut killed = 0;
        for facts in shared.clients() {
            if !victims.include(&facts, myself) {
                continue;
            }
            killed += 1;
            if facts.id == myself {
                self.connection.life = Life::Closing;
            } else {
                shared.kill_client(&facts);
                self.core.named_others = true;
            }
        }
        match (args.len(), killed) {
            (3, 0) => Reply::error("ERR No such client"),
            (3, _) => Reply::Ok,
            _ => Reply::Int(killed),
        }
    }

    /// Notes the size of the command at hand, which is what the buffer holds while it runs.
    fn measure(&self, args: Args<'_>) {
        self.connection.facts.input_bytes.store(args.buffer.len() as u64, Relaxed);
    }

    /// `CLIENT LIST [TYPE type | ID id ...]`, over all lanes.
    fn client_list(&mut self, args: Args<'_>) -> Reply<'static> {
        let mut ids = None;
        let mut kind = None;
        if args.len() > 2 {
            let option = args.get(2);
            if args.len() == 4 && option.eq_ignore_ascii_case(b"type") {
                // An unknown type is an error, even if there is no client.
                if let Err(reply) = is_of_type(&self.connection.facts, args.get(3)) {
                    return reply;
                }
                kind = Some(args.get(3));
            } else if args.len() > 3 && option.eq_ignore_ascii_case(b"id") {
                let parsed: Option<Vec<i64>> = args.iter().skip(3).map(parse_integer).collect();
                match parsed {
                    None => return Reply::error("ERR Invalid client ID"),
                    parsed => ids = parsed,
                }
            } else {
                return SYNTAX;
            }
        }
        self.measure(args);
        let mut text = String::new();
        for facts in self.core.shared.clients() {
            let wanted = ids.as_ref().is_none_or(|ids| ids.contains(&(facts.id as i64)));
            let is_of_kind = kind.is_none_or(|kind| is_of_type(&facts, kind) == Ok(true));
            if wanted && is_of_kind {
                text += &client_line(&facts, self.now.monotonic);
            }
        }
        Reply::Verbatim(Cow::Owned(text))
    }
}

/// What `CLIENT KILL` chooses by; of everything that is named, all must apply.
#[derive(Default)]
struct Victims {
    id: Option<i64>,
    peer: Option<String>,
    local: Option<String>,
    /// The types that it must have.
    kinds: Vec<Vec<u8>>,
    myself: bool,
}

impl Victims {
    fn parse(args: Args<'_>, myself: &ClientFacts) -> Result<Self, Reply<'static>> {
        let mut victims = Self::default();
        if args.len() == 3 {
            victims.peer = Some(quoted(args.get(2)).into_owned());
            victims.myself = true;
            return Ok(victims);
        }
        for at in (2..args.len()).step_by(2) {
            if at + 1 == args.len() {
                return Err(SYNTAX);
            }
            let value = args.get(at + 1);
            match args.get(at).to_ascii_lowercase().as_slice() {
                b"id" => {
                    let id = parse_integer(value).filter(|&id| id > 0);
                    let wrong = "ERR client-id should be greater than 0";
                    victims.id = Some(id.ok_or(Reply::error(wrong))?);
                }
                b"type" => {
                    is_of_type(myself, value)?;
                    victims.kinds.push(value.to_vec());
                }
                b"addr" => victims.peer = Some(quoted(value).into_owned()),
                b"laddr" => victims.local = Some(quoted(value).into_owned()),
                b"user" if value == b"default" => {}
                b"user" => return Err(failure(format!("ERR No such user '{}'", quoted(value)))),
                b"skipme" => match value.to_ascii_lowercase().as_slice() {
                    b"yes" => victims.myself = false,
                    b"no" => victims.myself = true,
                    _ => return Err(SYNTAX),
                },
                _ => return Err(SYNTAX),
            }
        }
        Ok(victims)
    }

    fn include(&self, facts: &ClientFacts, myself: u64) -> bool {
        let is = |wanted: &Option<String>, address: SocketAddr| {
            wanted.as_ref().is_none_or(|wanted| *wanted == address.to_string())
        };
        self.kinds.iter().all(|kind| is_of_type(facts, kind) == Ok(true))
            && (self.myself || facts.id != myself)
            && self.id.is_none_or(|id| id == facts.id as i64)
            && is(&self.peer, facts.peer)
            && is(&self.local, facts.local)
    }
}

/// `ON` or `OFF`.
fn switch(word: &[u8], set: impl FnOnce(bool)) -> Reply<'static> {
    if word.eq_ignore_ascii_case(b"on") {
        set(true);
    } else if word.eq_ignore_ascii_case(b"off") {
        set(false);
    } else {
        return SYNTAX;
    }
    Reply::Ok
}

fn is_printable(name: &[u8]) -> bool {
    name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

/// One line of `CLIENT LIST`.
fn client_line(facts: &ClientFacts, now: Instant) -> String {
    let names = lock(&facts.names).clone();
    let queued = facts.queued.load(Relaxed);
    let subscriptions = facts.subscriptions.each_ref().map(|count| count.load(Relaxed));
    let [channels, patterns, shards] = subscriptions;
    let mut flags = String::new();
    let ([tracks, broken, broadcast], redirect) = facts.tracking.shown();
    for (set, flag) in [
        (subscriptions.iter().any(|count| *count > 0), 'P'),
        (queued > 0, 'x'),
        (facts.blocked.load(Relaxed), 'b'),
        tracks,
        broken,
        broadcast,
        (facts.no_evict.load(Relaxed), 'e'),
        (facts.no_touch.load(Relaxed), 'T'),
    ] {
        if set {
            flags.push(flag);
        }
    }
    if flags.is_empty() {
        flags.push('N');
    }
    let command = facts.command.load(Relaxed).checked_sub(1);
    let command = command.and_then(|id| by_id(u16::try_from(id).ok()?)).map_or("NULL", |s| s.name);
    let output = facts.output_bytes.load(Relaxed);
    format!(
        "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={flags} db={} sub={channels} \
         psub={patterns} ssub={shards} multi={} qbuf={} qbuf-free={} argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl={output} \
         oll=0 omem={output} tot-mem={} events=r cmd={command} user=default redir={redirect} resp={} \
         lib-name={} lib-ver={}\n",
        facts.id,
        facts.peer,
        facts.local,
        names.name,
        now.since(facts.opened).as_secs(),
        now.since(Instant(facts.active.load(Relaxed))).as_secs(),
        facts.database.load(Relaxed),
        queued as i64 - 1,
        facts.input_bytes.load(Relaxed),
        facts.input_capacity.load(Relaxed),
        facts.holding.bytes(),
        facts.protocol.load(Relaxed),
        names.library,
        names.library_version,
    )
}
