//! Scripts: commands that are given their function as text, and find keys on the way.
//!
//! This crate knows no interpreter. The program that has one installs it once, before a script
//! runs ([`install_scripts`]).

use once_cell::race::OnceRef;
use quorate_machine::{Change, Current, OneKey, Unordered, Verdict, Workspace, mutant};
use quorate_types::{Topic, UnixMillis, limits};

use crate::meter::{Metered, TOO_MUCH};
use crate::notes::{Notes, Wanted};
use crate::room::{ANSWER_TOO_LONG, Room};
use crate::spec::{Keyed, Run, flag};
use crate::{Args, CROSSKEY, Call, Reply, Spec};

/// The function behind every script: from the command, its arguments, the time and the keys to an
/// answer and notes. Deterministic, as every command is. [`Verdict::Abandon`] undoes what the script
/// did, and nothing is told of it.
pub type ScriptFunction = fn(
    &'static Spec,
    Args<'_>,
    UnixMillis,
    &mut dyn Workspace,
    &mut Notes,
) -> Verdict<Reply<'static>>;

/// The key of a keyspace that has its libraries of functions. No listing shows it, and no flush
/// deletes it.
pub const LIBRARIES_KEY: &[u8] = b"\0quorate: libraries of functions";

/// Length of a script's digest as clients write it: forty hexadecimal digits.
pub const SCRIPT_DIGEST_BYTES: usize = 40;

static FUNCTION: OnceRef<'static, ScriptFunction> = OnceRef::new();

/// Says what runs scripts from now on, in the whole process. The first one to say so decides.
pub fn install_scripts(function: &'static ScriptFunction) {
    // A second installation is of the same function: there is one interpreter.
    let _ = FUNCTION.set(function);
}

/// The answer to a command that names a channel by more than [`limits::KEY_BYTES_MAX`] bytes.
pub const CHANNEL_TOO_LONG: &str = "ERR the name of a channel has at most 65536 bytes";

const _: () = assert!(
    limits::KEY_BYTES_MAX == 65_536 && limits::VALUE_BYTES_MAX == 4_194_304,
    "texts name both limits"
);

const NO_INTERPRETER: Reply<'static> =
    Reply::error("ERR this program has no interpreter of scripts");

impl<'a> Call<'a> {
    /// Whether it is a script, which may touch keys that it doesn't name.
    #[inline]
    pub fn is_script(self) -> bool {
        matches!(self.spec.run, Run::Key(Keyed::Script))
    }

    /// Whether it names its script by a digest. A node puts the source behind the digest, if it knows
    /// it: then the script means the same wherever it runs.
    #[inline]
    pub fn names_script(self) -> bool {
        self.is_script() && self.spec.name.starts_with("evalsha")
    }

    /// The source of a script: what follows the digest of one that is named by it.
    pub fn script_source(self) -> &'a [u8] {
        let given = self.args.get(1);
        if !self.names_script() {
            return given;
        }
        given.get(SCRIPT_DIGEST_BYTES..).unwrap_or_default()
    }

    /// Runs a script.
    pub(crate) fn run_script(
        self,
        now: UnixMillis,
        workspace: &mut dyn Workspace,
        room: &mut Room,
        notes: &mut Notes,
    ) -> Verdict<Reply<'static>> {
        let Some(function) = FUNCTION.get() else { return Verdict::Abandon(NO_INTERPRETER) };
        match function(self.spec, self.args, now, workspace, notes) {
            Verdict::Commit(reply) => {
                let reply = room.hold_with(reply, notes.bytes());
                if room.is_exceeded() { Verdict::Abandon(reply) } else { Verdict::Commit(reply) }
            }
            abandoned => abandoned,
        }
    }

    /// Runs a script for an engine of single keys, which has read the only key that the script names.
    /// One that names none can touch none.
    pub(crate) fn run_script_on_one_key(
        self,
        now: UnixMillis,
        current: Current<'a>,
        wanted: Wanted,
    ) -> (Reply<'static>, Change<'a>) {
        let named = match self.single_key() {
            Ok(named) => named,
            Err(crosskey) => return (crosskey, Change::Keep),
        };
        let mut key = OneKey::new(current);
        let mut only = OnlyKey::new(named, &mut key);
        let mut metered = Metered::new(&mut only);
        let mut notes = Notes::new(wanted);
        let verdict = self.run_script(now, &mut metered, &mut Room::new(), &mut notes);
        let is_exceeded = metered.is_exceeded();
        match verdict {
            _ if only.has_strayed() => (Reply::error(CROSSKEY), Change::Keep),
            _ if is_exceeded => (TOO_MUCH, Change::Keep),
            Verdict::Commit(reply) => (notes.attach(reply), key.finish()),
            Verdict::Abandon(reply) if mutant!("commands_undone_script_publishes") => {
                (notes.attach(reply), Change::Keep)
            }
            Verdict::Abandon(reply) => (reply, Change::Keep),
        }
    }

    /// Runs a script that names no key, in a keyspace of single keys: it can touch none.
    pub fn run_without_keys(self, now: UnixMillis) -> Reply<'static> {
        self.execute(now, Current::ABSENT).0.into_owned()
    }

    /// Runs a command of a script over the keys that the script sees, if it can run there: another
    /// command than on keys answers what it does alone. What is published leaves with the script's
    /// answer, so who receives it is not known: as many as none.
    pub fn run_within_script(
        self,
        now: UnixMillis,
        workspace: &mut dyn Workspace,
        notes: &mut Notes,
    ) -> Reply<'static> {
        if let Some(topic) = self.spec.publishes() {
            return self.publish(topic, notes);
        }
        let mut room = Room::new();
        match self.run_over(now, &mut Lent(workspace), &mut room, notes) {
            Verdict::Commit(_) if room.is_exceeded() => Reply::error(ANSWER_TOO_LONG),
            Verdict::Commit(reply) | Verdict::Abandon(reply) => reply,
        }
    }

    fn publish(self, topic: Topic, notes: &mut Notes) -> Reply<'static> {
        let (channel, message) = (self.args.get(1), self.args.get(2));
        if channel.len() > limits::KEY_BYTES_MAX {
            return Reply::error(CHANNEL_TOO_LONG);
        }
        if message.len() > limits::VALUE_BYTES_MAX {
            return Reply::error("ERR a message has at most 4194304 bytes");
        }
        notes.publish(topic, channel, message);
        Reply::Int(0)
    }

    /// Whether it may change what a key holds, as Redis says of the command, or is to be replicated
    /// like one that does.
    pub fn is_write(self) -> bool {
        self.spec.flags.has(flag::WRITE) || self.spec.publishes().is_some()
    }
}

/// A workspace that is borrowed without knowing which one it is.
struct Lent<'w>(&'w mut dyn Workspace);

impl Workspace for Lent<'_> {
    fn read(&mut self, key: &[u8]) -> Current<'_> {
        self.0.read(key)
    }

    fn write(&mut self, key: &[u8], change: Change<'_>) {
        self.0.write(key, change);
    }

    fn range(
        &mut self,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], Current<'_>),
    ) -> Result<(), Unordered> {
        self.0.range(from, to, limit, visit)
    }

    fn warm(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        self.0.warm(keys);
    }

    fn is_full(&self) -> bool {
        self.0.is_full()
    }
}

/// One key of a workspace. Every other key is absent, can't be written, and spoils the script that
/// touched it.
#[derive(Debug)]
pub(crate) struct OnlyKey<'k, 'w, W> {
    key: Option<&'k [u8]>,
    workspace: &'w mut W,
    strayed: bool,
}

impl<'k, 'w, W: Workspace> OnlyKey<'k, 'w, W> {
    pub(crate) fn new(key: Option<&'k [u8]>, workspace: &'w mut W) -> Self {
        Self { key, workspace, strayed: false }
    }

    /// Whether another key was touched.
    pub(crate) fn has_strayed(&self) -> bool {
        self.strayed
    }
}

impl<W: Workspace> Workspace for OnlyKey<'_, '_, W> {
    fn read(&mut self, key: &[u8]) -> Current<'_> {
        if self.key == Some(key) {
            return self.workspace.read(key);
        }
        self.strayed = true;
        Current::ABSENT
    }

    fn write(&mut self, key: &[u8], change: Change<'_>) {
        if self.key == Some(key) {
            return self.workspace.write(key, change);
        }
        self.strayed = true;
    }

    fn is_full(&self) -> bool {
        self.strayed || self.workspace.is_full()
    }
}
