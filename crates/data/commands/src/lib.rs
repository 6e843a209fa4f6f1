//! The Redis command table, and every keyed command as a pure function.
//!
//! A command is a function from its arguments, the time and what its key holds to an answer and a
//! [`quorate_machine::Change`]; the few that only make sense over several keys at once, such as
//! `RENAME`, are functions over a [`quorate_machine::Workspace`]. It knows no engine, no connection
//! and no clock, so N engines and M commands cost N + M. Answers are those of Redis 7.0.15, byte for byte where Redis is
//! deterministic; `tests/differential.rs` compares the two on random sequences.
//!
//! - [`table`], [`lookup`], [`resolve`]: the command table ([`Spec`]) as data.
//! - [`Args`], [`Call`], [`OwnedCall`]: one command with its arguments; [`Call::execute`] runs it.
//! - [`Op`]: what an engine queues and runs, a [`quorate_machine::Command`]: a call, a `MULTI`/`EXEC`
//!   [`Block`], or a look at versions for `WATCH`. A key is read only if an answer or a change rests
//!   on what it holds, since every read is one more reason to try again. [`MapWorkspace`] runs ops
//!   one after the other, to compare an engine with.
//!
//!   ```
//!   use quorate_commands::{MapWorkspace, OwnedCall, Reply};
//!   use quorate_machine::Verdict;
//!   use quorate_types::{Timestamp, UnixMillis, WriterId};
//!
//!   let mut keys = MapWorkspace::default();
//!   let mut ask = |line: &str, version| {
//!       let call = OwnedCall::new(line.split(' ').map(str::as_bytes)).expect("a command");
//!       keys.run(UnixMillis(0), Timestamp::new(version, WriterId(1)), &call.call())
//!   };
//!   assert_eq!(ask("MSET a 1 b 2", 1), Verdict::Commit(Reply::Ok));
//!   assert_eq!(ask("RENAMENX a b", 2), Verdict::Commit(Reply::Int(0)));
//!   assert_eq!(ask("DEL a b c", 3), Verdict::Commit(Reply::Int(2)));
//!   ```
//! - [`Reply`]: an answer before it is encoded; the `resp` crate encodes it as RESP2 or RESP3.
//! - [`command_info`], [`command_docs`], [`command_getkeys`], [`help`]: what `COMMAND` and the
//!   `HELP` subcommands say.
//!
//! # Deviations from Redis
//! - `OBJECT ENCODING` is derived from the content. Redis remembers how a value came to be and
//!   says `raw` after an `APPEND` or a `SETRANGE` and `embstr` after an `INCRBYFLOAT` whose result
//!   is a whole number; here a short value is `int` or `embstr` however it came to be.
//! - `PFDEBUG DECODE` refuses a damaged HyperLogLog, which Redis decodes as far as it goes and further.
//! - What needs several keys at once (`MSET`, `RENAME`, `COPY`, `BITOP`, `LCS`, `LMOVE`, `SMOVE`, `SINTER` ...)
//!   answers [`CROSSKEY`] from an engine of single keys, unless all of them are the same key.
//! - `COPY` with the option `DB` is an error whatever keyspace it names: a transaction has one
//!   keyspace, and a command doesn't know which.
//! - The longest value is [`quorate_types::limits::VALUE_BYTES_MAX`], which is what Redis does
//!   with `proto-max-bulk-len` set to the same number.
//! - Bytes of a request that an error text quotes and that are not UTF-8 become U+FFFD.
//! - `DUMP` never compresses. `RESTORE` checks all of a payload, members that are there twice included,
//!   and takes payloads of Redis 7.2 and 7.4, too, but no streams of theirs.
//! - Sets of strings and large hashes are in the order in which members came, not in that of a hash
//!   table. A part of a scan of a large collection is at least a 64th of it.
//! - A negative count of members drawn at random is refused where the answer would be too long.
//! - What a collection needs beyond the longest value is refused.
//! - `EXPIRETIME` of an expiry in the last half second that 64 bits can express overflows in Redis
//!   and doesn't here.
//! - `BITFIELD` refuses to write where the value would be longer than it may be; Redis lets it grow
//!   by up to eight bytes more, and `#` with an offset that overflows 64 bits is refused here.
//! - `XREADGROUP` that waits is also served after `XGROUP SETID` has set its group back.
//! - `XAUTOCLAIM` takes any `COUNT`; Redis sets aside memory for as many ids, and may have too little.
//! - `PFCOUNT` never writes: the count cached in a HyperLogLog stays out of date, and is computed each
//!   time, until the value comes from a Redis that has counted it.
//! - `SORT` sorts at most 262,144 elements; equal ones keep their order; words are compared by their
//!   bytes.
//! - `DIGEST`, `DELEX`, `DELIFEQ` and the conditions of `SET` (`IFEQ`, `IFNE`, `IFDEQ`, `IFDNE`) are as
//!   Redis 8.4 and Valkey 9 document them. A digest that is none is an error also if the key is absent.
//! - Fields of hashes expire as in Redis 7.4 and 8.0. Those that have expired count for nothing at once (also
//!   for `HLEN`), the others stay in the order in which they came, and `OBJECT ENCODING` is `listpackex` as
//!   long as some field expires.
//! - `TIME` inside a transaction has the resolution of milliseconds.
//! - A range by name of members with several scores, which has no meaning, is what Redis finds in a
//!   listpack; in a skiplist, what it finds is a matter of chance.
//! - Distances on the earth are computed with `libm` and not with the system's C library: the last of 17
//!   digits that `STOREDIST` stores may differ. Of members at one distance, those that `COUNT` cuts off
//!   may be others.
//! - `GEORADIUS` and `GEORADIUSBYMEMBER` refuse a second `STORE` of another key, which Redis prefers to
//!   the first one.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod args;
mod bitfield;
mod bitmap;
mod block;
mod blocking;
mod call;
mod debug;
mod describe;
mod double;
mod dump;
mod expiry;
mod generic;
mod geo;
mod geohash;
mod glob;
mod hash;
mod help;
mod hyperloglog;
mod large;
mod lcs;
mod list;
mod long_double;
mod map_workspace;
mod meter;
mod named;
mod natural;
mod notes;
mod number;
mod numeric;
mod op;
mod options;
mod owned_args;
mod packed;
mod range;
mod refused;
mod reply;
mod resolve;
mod room;
mod sample;
mod script;
mod set;
mod set_algebra;
mod several;
mod sort;
mod sorted_set;
mod spec;
mod stream;
mod string;
mod table;

pub use args::{Args, Span};
pub use block::{Block, Watch};
pub use blocking::{Line, Wait};
pub use call::{Call, Keys as CallKeys, OwnedCall, Part};
pub use debug::debug_protocol;
pub use describe::{
    command_count, command_docs, command_getkeys, command_getkeysandflags, command_info,
    commands_info,
};
pub use double::{format_decimal, format_double};
pub use dump::{libraries_dump, parse_libraries_dump};
pub use generic::type_name;
pub use glob::glob_match;
pub use help::help;
pub use map_workspace::MapWorkspace;
pub use notes::{
    KeyEvent, MESSAGES_MAX, NOTES_BYTES_MAX, Note, Noted, Notes, class, parse_classes, show_classes,
};
pub use number::{format_integer, parse_integer};
pub use op::Op;
pub use owned_args::OwnedArgs;
pub use reply::{DEPTH_MAX as REPLY_DEPTH_MAX, Reply};
pub use resolve::{REDIS_COMMANDS, arity_error, resolve};
pub use room::ANSWER_TOO_LONG;
pub use script::{
    CHANNEL_TOO_LONG, LIBRARIES_KEY, SCRIPT_DIGEST_BYTES, ScriptFunction, install_scripts,
};
pub use spec::{
    AccessRule, Argument, Categories, ConnectionCommand, Docs, Flags, KeyFunction, KeySpec, Keyed,
    Keys, KeysBegin, KeysFind, KeysFunction, Run, ServerCommand, Spec, Split, category, flag,
};
pub use table::{by_id, lookup, lookup_name, table};

/// The answer to `KEYRANGE` on a keyspace that keeps no order.
pub const UNORDERED: &str = "ERR this keyspace doesn't keep its keys in order; use SCAN, or a keyspace \
                             whose engine has the option, with ordered = true";

/// The answer to an update of several keys, which an engine without transactions can't give. A front
/// end that knows the engines says instead which of them can.
pub const CROSSKEY: &str = "CROSSKEY this keyspace's engine updates one key at a time; use a \
                            keyspace whose engine has transactions for several keys in one";
