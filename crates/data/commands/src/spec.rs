//! What the command table knows about a command.

use quorate_machine::{Access, Change, Current, Workspace};
use quorate_types::{Topic, UnixMillis};

use crate::{Args, Reply};

/// One row of the command table: a command, or a subcommand such as `CLIENT ID`.
#[derive(Debug)]
pub struct Spec {
    /// Names the row on the wire between nodes of one version: the command's index, and for a
    /// subcommand its own in the lower six bits, that of its command above them, and the highest bit.
    pub id: u16,
    /// The full name in lower case; `client|id` for a subcommand.
    pub name: &'static str,
    /// How many arguments, the name (and the subcommand's) included; at least that many when
    /// negative.
    pub arity: i8,
    /// How it behaves.
    pub flags: Flags,
    /// Where its keys stand.
    pub keys: Keys,
    /// Its ACL categories.
    pub categories: Categories,
    /// Redis's tips to clients.
    pub tips: &'static [&'static str],
    /// What it does to each group of keys, for `COMMAND INFO`.
    pub key_specs: &'static [KeySpec],
    /// What `COMMAND DOCS` says.
    pub docs: Docs,
    /// Its subcommands.
    pub subcommands: &'static [Spec],
    /// What it does to its key if it has one key only; [`crate::Call::updates`] tells of several.
    pub access: AccessRule,
    /// How it comes apart over several keys.
    pub split: Split,
    /// Whether its function takes packed values only: it is given the packed bytes of large ones.
    pub takes_packed: bool,
    /// Who executes it.
    pub run: Run,
}

impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Spec {}

impl Spec {
    /// Whether `count` arguments, the name included, are a number that it takes.
    #[inline]
    pub fn takes(&self, count: usize) -> bool {
        let wanted = usize::from(self.arity.unsigned_abs());
        if self.arity >= 0 { count == wanted } else { count >= wanted }
    }

    /// Whether it can have keys.
    pub fn has_keys(&self) -> bool {
        self.keys.first != 0 || !self.key_specs.is_empty()
    }

    /// Whether what it does may rest on [`Args::seed`].
    #[inline]
    pub fn draws(&self) -> bool {
        self.tips.contains(&"nondeterministic_output")
            || matches!(self.run, Run::Key(Keyed::Script))
    }

    /// Where it publishes a message, if it does.
    #[inline]
    pub fn publishes(&self) -> Option<Topic> {
        match self.run {
            Run::Server(ServerCommand::Publish) => Some(Topic::Channel),
            Run::Server(ServerCommand::Spublish) => Some(Topic::Shard),
            _ => None,
        }
    }

    /// Whether other arguments say where its keys stand; [`Spec::keys`] tells all of them otherwise.
    #[inline]
    pub fn has_movable_keys(&self) -> bool {
        self.flags.has(flag::MOVABLEKEYS)
    }

    /// Whether a call that does this to a key may change anything.
    #[inline]
    pub(crate) fn updates(&self, access: Access) -> bool {
        match self.run {
            Run::Key(Keyed::One(_) | Keyed::Script) => access != Access::Read,
            Run::Key(Keyed::Several(_)) => self.flags.has(flag::WRITE),
            _ => false,
        }
    }
}

/// The function behind a command on one key.
pub type KeyFunction = for<'a> fn(Args<'a>, UnixMillis, Current<'a>) -> (Reply<'a>, Change<'a>);

/// The function behind a command that only makes sense over several keys at once. It looks at its
/// arguments before it touches a key: a call that is wrong in itself touches none.
pub type KeysFunction = fn(Args<'_>, UnixMillis, &mut dyn Workspace) -> Reply<'static>;

/// The function behind a command on keys.
#[derive(Clone, Copy, Debug)]
pub enum Keyed {
    /// Over one key. A call over several is one call for each ([`Split`]).
    One(KeyFunction),
    /// Over all of them at once. An engine that changes one key at a time runs it if all are the
    /// same key, and answers [`crate::CROSSKEY`] otherwise.
    Several(KeysFunction),
    /// Over any keys, those included that it doesn't name: what it does is one of its arguments
    /// ([`crate::install_scripts`]).
    Script,
}

/// Who executes a command.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// A function over its keys, wherever they are.
    Key(Keyed),
    /// The connection.
    Connection(ConnectionCommand),
    /// The node.
    Server(ServerCommand),
    /// Nobody needs to: [`crate::help`] is the answer.
    Help,
    /// One of its subcommands; the name alone is no command.
    Container,
    /// Nobody: it answers why, and what to do instead.
    Refused,
}

/// A command on the state of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "each is the command of that name")]
pub enum ConnectionCommand {
    Ping,
    Echo,
    Hello,
    Auth,
    Select,
    Quit,
    Reset,
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    ClientId,
    ClientGetname,
    ClientSetname,
    ClientSetinfo,
    ClientInfo,
    ClientList,
    ClientNoEvict,
    ClientNoTouch,
    ClientReply,
    ClientKill,
    ClientPause,
    ClientUnpause,
    Monitor,
    Subscribe,
    Unsubscribe,
    Psubscribe,
    Punsubscribe,
    Ssubscribe,
    Sunsubscribe,
    ClientUnblock,
    ClientTracking,
    ClientCaching,
    ClientTrackinginfo,
    ClientGetredir,
    SessionOpen,
    SessionRenew,
    SessionClose,
    SessionCall,
    SessionAuto,
    SessionInfo,
}

/// A command on the state of the node or of a whole keyspace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "each is the command of that name")]
pub enum ServerCommand {
    Command,
    CommandCount,
    CommandDocs,
    CommandInfo,
    CommandGetkeys,
    CommandGetkeysandflags,
    CommandList,
    ScriptLoad,
    ScriptExists,
    ScriptFlush,
    ScriptKill,
    ScriptDebug,
    FunctionKill,
    Info,
    ConfigGet,
    ConfigSet,
    ConfigResetstat,
    Dbsize,
    Time,
    Lolwut,
    MemoryUsage,
    Scan,
    Keys,
    Randomkey,
    Flushdb,
    Flushall,
    Wait,
    Waitaof,
    Publish,
    Spublish,
    PubsubChannels,
    PubsubNumsub,
    PubsubNumpat,
    PubsubShardchannels,
    PubsubShardnumsub,
    Shutdown,
    Save,
    Bgsave,
    Bgrewriteaof,
    Lastsave,
    AclWhoami,
    AclUsers,
    AclList,
    AclCat,
    AclGetuser,
    AclDryrun,
    Role,
    ModuleList,
    MemoryStats,
    MemoryDoctor,
    MemoryMallocStats,
    MemoryPurge,
    SlowlogGet,
    SlowlogLen,
    SlowlogReset,
    LatencyLatest,
    LatencyHistory,
    LatencyReset,
    LatencyGraph,
    LatencyDoctor,
    LatencyHistogram,
    PlacementGet,
    PlacementPin,
    PlacementUnpin,
    Debug,
}

/// How the access of a call follows from its command.
#[derive(Clone, Copy, Debug)]
pub enum AccessRule {
    /// Always [`Access::Read`].
    Read,
    /// Always [`Access::Update`].
    Update,
    /// It depends on the arguments.
    OfCall(fn(Args<'_>) -> Access),
}

/// How a command over several keys comes apart into commands over one key each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// It has one key, or can't.
    None,
    /// Its answer is an array of the parts' answers.
    Array,
    /// Its answer is the sum of the parts' answers.
    Sum,
}

/// Where the keys stand among the arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keys {
    /// Index of the first key; 0 if there are none.
    pub first: i8,
    /// Index of the last key, counted from the end if negative (-1 is the last argument).
    pub last: i8,
    /// Distance from one key to the next.
    pub step: i8,
}

/// What a command does to a group of keys: Redis's key specification.
#[derive(Clone, Copy, Debug)]
pub struct KeySpec {
    /// A remark.
    pub notes: Option<&'static str>,
    /// What happens to the keys.
    pub flags: &'static [&'static str],
    /// Where the search for them begins.
    pub begin: KeysBegin,
    /// Where they stand from there.
    pub find: KeysFind,
}

/// Where the search for a group of keys begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeysBegin {
    /// At this argument.
    Index(i64),
    /// Behind this word, looked for from an argument on, or backwards from the end if negative.
    Keyword(&'static str, i64),
    /// Nobody can say.
    Unknown,
}

/// Where the keys of a group stand from where the search began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeysFind {
    /// From there on.
    Range {
        /// The last key, relative to the first, or from the end if negative.
        last: i64,
        /// Distance from one key to the next.
        step: i64,
        /// If positive, the keys are that part of the arguments: a half is 2.
        limit: i64,
    },
    /// An argument says how many there are.
    Counted {
        /// Where that argument stands.
        count: i64,
        /// Where the first key stands.
        first: i64,
        /// Distance from one key to the next.
        step: i64,
    },
    /// Nobody can say.
    Unknown,
}

/// What `COMMAND DOCS` says of a command.
#[derive(Clone, Copy, Debug)]
pub struct Docs {
    /// One sentence.
    pub summary: &'static str,
    /// The version of Redis that introduced it; of Quorate, for a command that no Redis has.
    pub since: &'static str,
    /// The group of commands it belongs to.
    pub group: &'static str,
    /// Time complexity.
    pub complexity: Option<&'static str>,
    /// Whether it is deprecated.
    pub flags: &'static [&'static str],
    /// Since which version it is deprecated.
    pub deprecated_since: Option<&'static str>,
    /// What to use instead.
    pub replaced_by: Option<&'static str>,
    /// Version and change.
    pub history: &'static [(&'static str, &'static str)],
    /// Its arguments.
    pub arguments: &'static [Argument],
}

/// What `COMMAND DOCS` says of an argument.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Its name.
    pub name: &'static str,
    /// Its type, in Redis's words.
    pub kind: &'static str,
    /// For a key, its [`KeySpec`].
    pub key_spec: Option<i64>,
    /// The word that stands before it.
    pub token: Option<&'static str>,
    /// One sentence.
    pub summary: Option<&'static str>,
    /// The version of Redis that introduced it.
    pub since: Option<&'static str>,
    /// Since which version it is deprecated.
    pub deprecated_since: Option<&'static str>,
    /// Whether it is optional or can be repeated.
    pub flags: &'static [&'static str],
    /// What it consists of.
    pub arguments: &'static [Argument],
}

macro_rules! bit_set {
    ($(#[$doc:meta])* $name:ident, $module:ident, [$($constant:ident = $bit:literal, $text:literal;)*]) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name(pub u32);

        impl $name {
            /// Whether every bit of `wanted` is set.
            #[inline]
            pub const fn has(self, wanted: u32) -> bool {
                self.0 & wanted == wanted
            }

            /// The names of the bits that are set, in the order in which Redis lists them.
            pub fn names(self) -> impl ExactSizeIterator<Item = &'static str> {
                const NAMES: &[(u32, &str)] = &[$(($module::$constant, $text)),*];
                let mut names = [""; 32];
                let mut count = 0;
                for (bit, name) in NAMES {
                    if self.0 & bit != 0 {
                        names[count] = name;
                        count += 1;
                    }
                }
                names.into_iter().take(count)
            }
        }

        #[doc = concat!("The bits of [`", stringify!($name), "`], named as in Redis.")]
        #[expect(missing_docs, reason = "each is the word of that name in Redis's documentation")]
        pub mod $module {
            $(pub const $constant: u32 = 1 << $bit;)*
        }
    };
}

bit_set! {
    /// How a command behaves: bits of [`flag`].
    Flags, flag, [
        WRITE = 0, "write";
        READONLY = 1, "readonly";
        DENYOOM = 2, "denyoom";
        MODULE = 3, "module";
        ADMIN = 4, "admin";
        PUBSUB = 5, "pubsub";
        NOSCRIPT = 6, "noscript";
        BLOCKING = 7, "blocking";
        LOADING = 8, "loading";
        STALE = 9, "stale";
        SKIP_MONITOR = 10, "skip_monitor";
        SKIP_SLOWLOG = 11, "skip_slowlog";
        ASKING = 12, "asking";
        FAST = 13, "fast";
        NO_AUTH = 14, "no_auth";
        MAY_REPLICATE = 15, "may_replicate";
        NO_MANDATORY_KEYS = 16, "no_mandatory_keys";
        PROTECTED = 17, "protected";
        NO_ASYNC_LOADING = 18, "no_async_loading";
        NO_MULTI = 19, "no_multi";
        ALLOW_BUSY = 20, "allow_busy";
        MOVABLEKEYS = 21, "movablekeys";
    ]
}

bit_set! {
    /// The ACL categories of a command: bits of [`category`].
    Categories, category, [
        KEYSPACE = 0, "@keyspace";
        READ = 1, "@read";
        WRITE = 2, "@write";
        SET = 3, "@set";
        SORTEDSET = 4, "@sortedset";
        LIST = 5, "@list";
        HASH = 6, "@hash";
        STRING = 7, "@string";
        BITMAP = 8, "@bitmap";
        HYPERLOGLOG = 9, "@hyperloglog";
        GEO = 10, "@geo";
        STREAM = 11, "@stream";
        PUBSUB = 12, "@pubsub";
        ADMIN = 13, "@admin";
        FAST = 14, "@fast";
        SLOW = 15, "@slow";
        BLOCKING = 16, "@blocking";
        DANGEROUS = 17, "@dangerous";
        CONNECTION = 18, "@connection";
        TRANSACTION = 19, "@transaction";
        SCRIPTING = 20, "@scripting";
    ]
}
