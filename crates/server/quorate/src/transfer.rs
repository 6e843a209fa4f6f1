//! What `quorate import`, `export`, `backup` and `restore` share: a server that speaks the Redis protocol, what its
//! errors mean for what is under way, and progress that people see.

mod pace;
mod progress;
mod resp;

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;

pub(crate) use pace::{Pace, PaceOptions};
pub(crate) use progress::{Progress, size};
pub(crate) use resp::{Connection, Reply, command};

/// How long a target may take to accept a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long it may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How often in a row what fails for a moment is tried again, and how long the pauses in between are,
/// each twice as long as the one before.
const ATTEMPTS_MAX: u32 = 12;
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Which server.
#[derive(Args, Clone, Debug)]
pub(crate) struct TargetOptions {
    /// Any node of the cluster, or any server like Redis; give several, and if one is lost the next is
    /// asked
    #[arg(
        long = "target",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:6379"
    )]
    targets: Vec<String>,
    /// The password, if clients need one
    #[arg(long)]
    password: Option<String>,
    /// The user that the password is for; without it, the default user
    #[arg(long, requires = "password")]
    user: Option<String>,
}

#[cfg(test)]
impl TargetOptions {
    /// A server without a password.
    pub(crate) fn at(address: &str) -> Self {
        Self { targets: vec![address.to_owned()], password: None, user: None }
    }
}

/// Why something was not done.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The connection was lost, or the server can't at the moment: it may be asked again. What was under
    /// way may have been done.
    Later(String),
    /// There is no use in going on.
    Stop(anyhow::Error),
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::InvalidData => Self::Stop(error.into()),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                Self::Later(format!("no answer for {} s", ANSWER_MAX.as_secs()))
            }
            _ => Self::Later(error.to_string()),
        }
    }
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::Stop(error)
    }
}

/// What an error reply means for all that is under way, if it is not only about one key.
pub(crate) fn trouble(error: &str) -> Option<Trouble> {
    let code = error.split(' ').next().unwrap_or_default();
    let remedy = match code {
        "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "BUSY" | "UNKNOWN" | "MASTERDOWN" => {
            return Some(Trouble::Later(error.to_owned()));
        }
        "NOAUTH" => {
            "it asks for a password: give --password, and --user unless it is the default user's"
        }
        "WRONGPASS" => "check --user and --password",
        "NOPERM" => "give --user and --password of a user who may run this on these keys",
        "READONLY" => {
            "this server takes no writes; give the address of one that does with --target"
        }
        "MISCONF" | "OOM" => "make room at the target, and begin again",
        "NOREPLICAS" => "the target lacks replicas for a write; mend that, and begin again",
        "MOVED" | "ASK" | "CROSSSLOT" => {
            "this is a node of a Redis Cluster, whose keys lie on several; it can't be used here"
        }
        _ => return None,
    };
    Some(Trouble::Stop(anyhow!("the target answered {error}; {remedy}")))
}

/// A server, and the connection to it.
pub(crate) struct Target {
    addresses: Vec<String>,
    auth: Option<Vec<String>>,
    /// Which address was used last.
    at: usize,
    connection: Option<Connection>,
    /// How many connections there were.
    opened: u64,
    database: u64,
    /// How often in a row it was asked in vain.
    attempts: u32,
}

impl Target {
    pub(crate) fn new(options: &TargetOptions) -> anyhow::Result<Self> {
        ensure!(!options.targets.is_empty(), "--target names no address");
        let auth = options.password.clone().map(|password| {
            let words = ["AUTH".to_owned()].into_iter().chain(options.user.clone());
            words.chain([password]).collect()
        });
        Ok(Self {
            addresses: options.targets.clone(),
            auth,
            at: 0,
            connection: None,
            opened: 0,
            database: 0,
            attempts: 0,
        })
    }

    /// The address that is used.
    pub(crate) fn address(&self) -> &str {
        &self.addresses[self.at % self.addresses.len()]
    }

    /// The connection, a new one if there is none.
    ///
    /// # Errors
    /// If nobody answers there, or not as a Redis does.
    pub(crate) fn connection(&mut self) -> Result<&mut Connection, Trouble> {
        if self.connection.is_none() {
            let opened = self.open(self.address())?;
            self.connection = Some(opened);
            self.opened += 1;
        }
        Ok(self.connection.as_mut().expect("it was opened above"))
    }

    /// Passes over so many addresses.
    pub(crate) fn skip(&mut self, addresses: usize) {
        self.at += addresses;
    }

    /// Keeps to the address that is used now.
    pub(crate) fn stay(&mut self) {
        self.addresses = vec![self.address().to_owned()];
        self.at = 0;
    }

    /// Opens a connection of its own to an address, as the same user.
    ///
    /// # Errors
    /// If nobody answers there, or not as a Redis does.
    pub(crate) fn open(&self, address: &str) -> Result<Connection, Trouble> {
        let found = address
            .to_socket_addrs()
            .with_context(|| format!("--target {address} is no HOST:PORT that can be found"))?;
        let mut refused = format!("--target {address} has no address");
        let mut stream = None;
        for address in found {
            match TcpStream::connect_timeout(&address, CONNECT_MAX) {
                Ok(connected) => {
                    stream = Some(connected);
                    break;
                }
                Err(error) => refused = format!("cannot connect to {address}: {error}"),
            }
        }
        let Some(stream) = stream else { return Err(Trouble::Later(refused)) };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        let mut connection = Connection::new(stream);
        if let Some(auth) = &self.auth {
            expect_ok(&mut connection, auth)?;
        }
        match ask(&mut connection, &["PING".to_owned()])? {
            Reply::Status(_) => {}
            other => {
                return Err(anyhow!("{address} answers PING with {other:?}; is it a Redis?").into());
            }
        }
        expect_ok(&mut connection, &["SELECT".to_owned(), self.database.to_string()])?;
        Ok(connection)
    }

    /// Tells the connection from those before.
    pub(crate) fn connection_number(&self) -> u64 {
        self.opened
    }

    /// Goes to another database.
    pub(crate) fn select(&mut self, database: u64) -> Result<(), Trouble> {
        if self.database == database && self.connection.is_some() {
            return Ok(());
        }
        self.database = database;
        match &mut self.connection {
            Some(connection) => {
                let words = ["SELECT".to_owned(), database.to_string()];
                expect_ok(connection, &words)
            }
            None => self.connection().map(|_| ()),
        }
    }

    /// Sends one command and reads its answer.
    pub(crate) fn ask(&mut self, words: &[&str]) -> Result<Reply, Trouble> {
        ask(self.connection()?, words)
    }

    /// The same of what the target may not know, or not allow: then there is no answer.
    pub(crate) fn ask_if_allowed(&mut self, words: &[&str]) -> Result<Option<Reply>, Trouble> {
        let mut bytes = Vec::new();
        command(words.iter().map(|word| word.as_bytes()), &mut bytes);
        let connection = self.connection()?;
        connection.send(&bytes)?;
        match connection.reply()? {
            Reply::Error(error) => match trouble(&error) {
                Some(Trouble::Later(reason)) => Err(Trouble::Later(reason)),
                _ => Ok(None),
            },
            reply => Ok(Some(reply)),
        }
    }

    /// A setting, if the target tells it and it is a number.
    pub(crate) fn setting(&mut self, name: &str) -> Result<Option<u64>, Trouble> {
        let Some(Reply::Array(parts)) = self.ask_if_allowed(&["CONFIG", "GET", name])? else {
            return Ok(None);
        };
        let Some(Reply::Bulk(value)) = parts.get(1) else { return Ok(None) };
        Ok(std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()))
    }

    /// Whether there is a database of this number.
    pub(crate) fn has(&mut self, database: u64) -> Result<bool, Trouble> {
        let number = database.to_string();
        let has = self.ask_if_allowed(&["SELECT", &number])?.is_some();
        if has {
            self.database = database;
        }
        Ok(has)
    }

    /// What was asked was answered.
    pub(crate) fn answered(&mut self) {
        self.attempts = 0;
    }

    /// Has what failed for a moment tried again: pauses, and goes to the next address.
    ///
    /// # Errors
    /// If that is of no use, or was done too often.
    pub(crate) fn again(&mut self, trouble: Trouble) -> anyhow::Result<()> {
        let reason = match trouble {
            Trouble::Stop(error) => return Err(error),
            Trouble::Later(reason) => reason,
        };
        self.connection = None;
        self.attempts += 1;
        if self.opened == 0 && self.attempts as usize >= self.addresses.len() {
            bail!(
                "{reason}; start a cluster with `quorate dev`, or say with --target where one is"
            );
        }
        if self.attempts == ATTEMPTS_MAX {
            bail!("{}: {reason}; tried {ATTEMPTS_MAX} times", self.address());
        }
        let pause = PAUSE_MIN.saturating_mul(1 << self.attempts).min(PAUSE_MAX);
        std::thread::sleep(pause);
        self.at += 1;
        Ok(())
    }

    /// Asks until there is an answer.
    pub(crate) fn persist<T>(
        &mut self,
        mut ask: impl FnMut(&mut Self) -> Result<T, Trouble>,
    ) -> anyhow::Result<T> {
        loop {
            match ask(self) {
                Ok(answer) => {
                    self.answered();
                    return Ok(answer);
                }
                Err(trouble) => self.again(trouble)?,
            }
        }
    }

    /// How many keys a database has.
    pub(crate) fn size_of(&mut self, database: u64) -> anyhow::Result<u64> {
        self.persist(|target| {
            target.select(database)?;
            match target.ask(&["DBSIZE"])? {
                Reply::Int(keys) => Ok(u64::try_from(keys).unwrap_or(0)),
                other => Err(anyhow!("DBSIZE answered {other:?}").into()),
            }
        })
    }
}

/// Sends one command and reads its answer.
pub(crate) fn ask<W: AsRef<[u8]>>(
    connection: &mut Connection,
    words: &[W],
) -> Result<Reply, Trouble> {
    let mut bytes = Vec::new();
    command(words.iter().map(AsRef::as_ref), &mut bytes);
    connection.send(&bytes)?;
    let reply = connection.reply()?;
    match &reply {
        Reply::Error(error) => match trouble(error) {
            Some(trouble) => Err(trouble),
            None => Ok(reply),
        },
        _ => Ok(reply),
    }
}

/// Sends commands at once and reads their answers.
pub(crate) fn ask_all(
    connection: &mut Connection,
    commands: &[&[&str]],
) -> Result<Vec<Reply>, Trouble> {
    send_all(connection, commands)?;
    answers(connection, commands.len())
}

/// Sends commands whose answers are read later.
pub(crate) fn send_all(connection: &mut Connection, commands: &[&[&str]]) -> Result<(), Trouble> {
    let mut bytes = Vec::new();
    for words in commands {
        command(words.iter().map(|word| word.as_bytes()), &mut bytes);
    }
    Ok(connection.send(&bytes)?)
}

/// Reads so many answers. An error among them is an error of this.
pub(crate) fn answers(connection: &mut Connection, count: usize) -> Result<Vec<Reply>, Trouble> {
    let mut answers = Vec::new();
    for _ in 0..count {
        match connection.reply()? {
            Reply::Error(error) => {
                let told = || anyhow!("the target answered {error}").into();
                return Err(trouble(&error).unwrap_or_else(told));
            }
            answer => answers.push(answer),
        }
    }
    Ok(answers)
}

/// The same of a command that answers a status.
pub(crate) fn expect_ok(connection: &mut Connection, words: &[String]) -> Result<(), Trouble> {
    match ask(connection, words)? {
        Reply::Status(_) => Ok(()),
        Reply::Error(error) => {
            // A password isn't told.
            let told = if words[0] == "AUTH" { "AUTH".to_owned() } else { words.join(" ") };
            Err(anyhow!("the target answers {told} with {error}").into())
        }
        other => Err(anyhow!("the target answers {} with {other:?}", words[0]).into()),
    }
}
