//! Commands on the state of the node or of a whole keyspace.

use std::borrow::Cow;

use quorate_commands::{Args, Call, Reply, ServerCommand, Spec, parse_integer, table};

use quorate_types::limits as bounds;

use crate::backend::Backend;
use crate::connection::Life;
use crate::dispatch::Context;
use crate::session::{NOT_AN_INTEGER, SYNTAX, bulk, failure};
use quorate_commands::glob_match;

const DOCTOR: &str = "Records are accounted exactly: compare used_memory with maxmemory and used_memory_rss \
                      in INFO memory, and look for clients that hold much with CLIENT LIST.\n";
const ALLOCATOR: &str = "The allocator tells nothing in a form for people; INFO memory has what the node \
                         knows.\n";

impl<B: Backend> Context<'_, B> {
    /// Executes a command that is answered at once.
    pub(crate) fn server_command(
        &mut self,
        command: ServerCommand,
        args: Args<'_>,
    ) -> Reply<'static> {
        use ServerCommand as Command;
        let database = self.connection.session.database;
        match command {
            Command::CommandList => command_list(args),
            Command::Info => self.info(args),
            Command::ConfigGet => self.config_get(args),
            Command::ConfigSet => self.config_set(args),
            Command::ConfigResetstat => {
                self.core.shared.reset_stats();
                self.backend.reset_stats();
                // As in Redis, it is the first command that is counted again. In a block it is one of
                // several that are counted when all have run.
                if let Some(spec) = self.core.ran {
                    self.core.stats.called(spec);
                }
                Reply::Ok
            }
            Command::ScriptLoad
            | Command::ScriptExists
            | Command::ScriptFlush
            | Command::ScriptKill
            | Command::ScriptDebug
            | Command::FunctionKill => self.script_command(command, args),
            Command::Lolwut => self.lolwut(args),
            Command::MemoryUsage => self.memory_usage(args),
            Command::MemoryStats => self.memory_stats(),
            Command::MemoryDoctor => Reply::Verbatim(Cow::Borrowed(DOCTOR)),
            Command::MemoryMallocStats => Reply::Verbatim(Cow::Borrowed(ALLOCATOR)),
            // The allocator gives back what it has no use for by itself.
            Command::MemoryPurge => Reply::Ok,
            Command::AclWhoami
            | Command::AclUsers
            | Command::AclList
            | Command::AclCat
            | Command::AclGetuser
            | Command::AclDryrun => self.acl(command, args),
            // Every node takes writes, and nobody follows a stream of them.
            Command::Role => {
                Reply::Array(vec![Reply::text("master"), Reply::Int(0), Reply::Array(Vec::new())])
            }
            Command::ModuleList => Reply::Array(Vec::new()),
            Command::SlowlogGet | Command::SlowlogLen | Command::SlowlogReset => {
                self.slowlog(command, args)
            }
            Command::LatencyLatest
            | Command::LatencyHistory
            | Command::LatencyReset
            | Command::LatencyGraph
            | Command::LatencyDoctor
            | Command::LatencyHistogram => self.latency(command, args),
            Command::Debug => self.debug(args),
            // Inside MULTI nothing may block, so WAIT answers what there is.
            Command::Wait => match wait_arguments(args) {
                Ok(_) => Reply::Int(self.backend.replicas(database) as i64),
                Err(reply) => reply,
            },
            Command::Waitaof => self.wait_for_disk(args).unwrap_or_else(|error| error),
            Command::Save | Command::Bgsave | Command::Bgrewriteaof | Command::Lastsave => {
                self.save_command(command, args)
            }
            // Only options that are wrong come here.
            Command::Flushdb | Command::Flushall | Command::Shutdown => SYNTAX,
            Command::Command
            | Command::CommandCount
            | Command::CommandDocs
            | Command::CommandInfo
            | Command::CommandGetkeys
            | Command::CommandGetkeysandflags
            | Command::Time => unreachable!("answered from the command table or the clock alone"),
            Command::PubsubChannels
            | Command::PubsubNumsub
            | Command::PubsubNumpat
            | Command::PubsubShardchannels
            | Command::PubsubShardnumsub => self.pubsub_facts(command, args),
            Command::Publish | Command::Spublish => unreachable!("messages take another way"),
            Command::PlacementGet | Command::PlacementPin | Command::PlacementUnpin => {
                unreachable!("not within a block, and submitted otherwise")
            }
            Command::Dbsize | Command::Keys | Command::Randomkey | Command::Scan => {
                unreachable!("a walk through the keyspace")
            }
        }
    }

    fn config_get(&mut self, args: Args<'_>) -> Reply<'static> {
        let patterns: Vec<&[u8]> = args.iter().skip(2).collect();
        let pairs = self.core.shared.config_get(&patterns);
        Reply::Map(
            pairs
                .into_iter()
                .map(|(name, value)| (bulk(name.as_bytes()), bulk(value.as_bytes())))
                .collect(),
        )
    }

    fn config_set(&mut self, args: Args<'_>) -> Reply<'static> {
        if !args.len().is_multiple_of(2) {
            return SYNTAX;
        }
        let pairs: Vec<(&[u8], &[u8])> =
            (2..args.len()).step_by(2).map(|at| (args.get(at), args.get(at + 1))).collect();
        let reply = self.core.shared.config_set(&pairs).map_or_else(failure, |()| Reply::Ok);
        // Other lanes may have to forget what they track.
        self.core.named_others = true;
        reply
    }

    fn memory_usage(&mut self, args: Args<'_>) -> Reply<'static> {
        let mut at = 3;
        while at < args.len() {
            if !args.get(at).eq_ignore_ascii_case(b"samples") || at + 1 >= args.len() {
                return SYNTAX;
            }
            match parse_integer(args.get(at + 1)) {
                None => return NOT_AN_INTEGER,
                Some(samples) if samples < 0 => return SYNTAX,
                Some(_) => at += 2,
            }
        }
        self.bind_to_lease();
        let database = self.connection.session.database;
        match self.backend.memory_usage(database, self.now, args.get(2)) {
            Some(bytes) => Reply::Int(bytes as i64),
            None => Reply::Null,
        }
    }

    /// `MEMORY STATS`: of what Redis tells, what there is here.
    fn memory_stats(&mut self) -> Reply<'static> {
        let memory = self.backend.memory();
        let keys: u64 = (0..bounds::KEYSPACES_MAX as u8)
            .filter_map(|number| self.backend.keyspace(number))
            .map(|keyspace| keyspace.keys)
            .sum();
        let int = |number: u64| Reply::Int(number as i64);
        let share = memory.used as f64 * 100.0 / memory.peak.max(1) as f64;
        let ratio = memory.resident as f64 / memory.used.max(1) as f64;
        Reply::Map(
            [
                ("peak.allocated", int(memory.peak)),
                ("total.allocated", int(memory.used)),
                ("startup.allocated", int(0)),
                ("replication.backlog", int(0)),
                ("clients.slaves", int(0)),
                ("clients.normal", int(self.core.shared.clients_bytes())),
                ("aof.buffer", int(0)),
                ("keys.count", int(keys)),
                ("keys.bytes-per-key", int(memory.used / keys.max(1))),
                ("dataset.bytes", int(memory.used)),
                ("peak.percentage", Reply::Double(share)),
                ("allocator.resident", int(memory.resident)),
                ("fragmentation", Reply::Double(ratio)),
                ("fragmentation.bytes", int(memory.resident.saturating_sub(memory.used))),
            ]
            .into_iter()
            .map(|(name, value)| (Reply::text(name), value))
            .collect(),
        )
    }

    /// `LOLWUT [VERSION n ...]`: the same picture for every version.
    fn lolwut(&mut self, args: Args<'_>) -> Reply<'static> {
        if args.len() > 2
            && args.get(1).eq_ignore_ascii_case(b"version")
            && parse_integer(args.get(2)).is_none()
        {
            return NOT_AN_INTEGER;
        }
        let facts = self.backend.facts();
        let mut text = String::from("    o---o\n     \\ /\n      o\n\n");
        text += "Three that agree outlive any one of them.\n";
        text += &format!("Quorate ver. {}\n", facts.version);
        Reply::Verbatim(Cow::Owned(text))
    }

    /// `WAITAOF numlocal numreplicas timeout`. Where an update is answered once it is on the disks of those
    /// that decide, there is nothing to wait for; elsewhere nobody can tell.
    fn wait_for_disk(&mut self, args: Args<'_>) -> Result<Reply<'static>, Reply<'static>> {
        let integer = |at| parse_integer(args.get(at)).ok_or(NOT_AN_INTEGER);
        let local = integer(1)?;
        if !(0..=1).contains(&local) {
            return Err(Reply::error("ERR value is out of range, value must between 0 and 1"));
        }
        if integer(2)? < 0 {
            return Err(Reply::error("ERR value is out of range, must be positive"));
        }
        timeout(args.get(3))?;
        let database = self.connection.session.database;
        if self.backend.acknowledges_from_disks(database) {
            let replicas = self.backend.replicas(database) as i64;
            return Ok(Reply::Array(vec![Reply::Int(1), Reply::Int(replicas)]));
        }
        if local > 0 {
            return Err(Reply::error(
                "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
            ));
        }
        Ok(Reply::Array(vec![Reply::Int(0), Reply::Int(0)]))
    }

    /// `SHUTDOWN`: no answer if it works; the node drains and closes the connection.
    pub(crate) fn shutdown(&mut self, call: &Call<'_>) {
        let reply = match shutdown_options(call.args) {
            Ok(true) => Reply::error("ERR No shutdown in progress."),
            Ok(false) => {
                self.backend.shutdown();
                self.connection.life = Life::Closing;
                return;
            }
            Err(reply) => reply,
        };
        self.reply(call.spec, &reply);
    }
}

/// `COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]`.
fn command_list(args: Args<'_>) -> Reply<'static> {
    let all = table().iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands));
    let wanted: Box<dyn Fn(&&'static Spec) -> bool> = match args.len() {
        2 => Box::new(|_| true),
        5 if args.get(2).eq_ignore_ascii_case(b"filterby") => {
            let value = args.get(4);
            match args.get(3).to_ascii_lowercase().as_slice() {
                b"module" => Box::new(|_| false),
                b"aclcat" => Box::new(move |spec| {
                    let named = |name: &str| name.as_bytes()[1..].eq_ignore_ascii_case(value);
                    spec.categories.names().any(named)
                }),
                b"pattern" => Box::new(move |spec| glob_match(value, spec.name.as_bytes(), true)),
                _ => return SYNTAX,
            }
        }
        _ => return SYNTAX,
    };
    Reply::Array(all.filter(wanted).map(|spec| Reply::text(spec.name)).collect())
}

/// Whether `ABORT` is asked for. The other options say how to save what is not on disk; there is
/// nothing on disk.
fn shutdown_options(args: Args<'_>) -> Result<bool, Reply<'static>> {
    let (mut save, mut nosave, mut now, mut force, mut abort) = (false, false, false, false, false);
    for option in args.iter().skip(1) {
        match option.to_ascii_lowercase().as_slice() {
            b"save" => save = true,
            b"nosave" => nosave = true,
            b"now" => now = true,
            b"force" => force = true,
            b"abort" => abort = true,
            _ => return Err(SYNTAX),
        }
    }
    if (save && nosave) || (abort && (save || nosave || now || force)) {
        return Err(SYNTAX);
    }
    Ok(abort)
}

/// A timeout in milliseconds.
fn timeout(word: &[u8]) -> Result<u64, Reply<'static>> {
    let timeout =
        parse_integer(word).ok_or(Reply::error("ERR timeout is not an integer or out of range"))?;
    u64::try_from(timeout).map_err(|_| Reply::error("ERR timeout is negative"))
}

/// The replicas and milliseconds that `WAIT` names.
pub(crate) fn wait_arguments(args: Args<'_>) -> Result<(i64, u64), Reply<'static>> {
    let wanted = parse_integer(args.get(1)).ok_or(NOT_AN_INTEGER)?;
    Ok((wanted, timeout(args.get(2))?))
}
