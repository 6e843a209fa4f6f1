//! `SAVE`, `BGSAVE`, `BGREWRITEAOF`, `LASTSAVE`, `WAITAOF` and what `INFO` says of the disk. A snapshot of
//! all lanes is what Redis's background save is, and what rewrites its log.

use std::borrow::Cow;

use quorate_commands::{Args, Reply, ServerCommand};

use crate::backend::Backend;
use crate::dispatch::Context;
use crate::info::Lines;

const NO_DISK: &str = "ERR nothing is on disk here, so there is nothing to save: what is acknowledged is on \
                       every live replica; `quorate backup` writes it to a file, and to keep it on disks, \
                       too, give keyspaces durability, see docs/src/durability.md";
const SAVE: &str = "ERR SAVE would hold everything up; BGSAVE has the node write a snapshot while it serves, \
                    and LASTSAVE says when the last one was complete";
const UNDER_WAY: &str = "ERR Background save already in progress";

impl<B: Backend> Context<'_, B> {
    /// Has snapshots written, or says when that was.
    pub(crate) fn save_command(
        &mut self,
        command: ServerCommand,
        args: Args<'_>,
    ) -> Reply<'static> {
        let Some(facts) = self.backend.persistence() else { return Reply::error(NO_DISK) };
        let option = args.iter().nth(1);
        let is_scheduled = option.is_some_and(|word| word.eq_ignore_ascii_case(b"schedule"));
        match command {
            ServerCommand::Save => Reply::error(SAVE),
            ServerCommand::Lastsave => Reply::Int(facts.last_save as i64),
            ServerCommand::Bgrewriteaof => {
                self.backend.save();
                Reply::Status(Cow::Borrowed("Background append only file rewriting started"))
            }
            _ if option.is_some() && !is_scheduled || args.len() > 2 => {
                Reply::error("ERR syntax error")
            }
            _ if facts.is_saving && !is_scheduled => Reply::error(UNDER_WAY),
            _ => {
                self.backend.save();
                Reply::Status(Cow::Borrowed(match facts.is_saving {
                    true => "Background saving scheduled",
                    false => "Background saving started",
                }))
            }
        }
    }

    /// `INFO persistence`, under Redis's names. `aof` is the log, and `rdb` a snapshot.
    pub(crate) fn info_persistence(&mut self, lines: &mut Lines<'_>) {
        lines.put("loading", 0);
        lines.put("async_loading", 0);
        let Some(facts) = self.backend.persistence() else {
            lines.put("rdb_bgsave_in_progress", 0);
            lines.put("aof_enabled", 0);
            lines.put("aof_rewrite_in_progress", 0);
            return;
        };
        let saving = u64::from(facts.is_saving);
        let seconds = |seconds: Option<u64>| seconds.map_or(-1, |seconds| seconds as i64);
        let status = |good: bool| if good { "ok" } else { "err" };
        lines.put("rdb_changes_since_last_save", facts.entries_since_save);
        lines.put("rdb_bgsave_in_progress", saving);
        lines.put("rdb_last_save_time", facts.last_save);
        lines.put("rdb_last_bgsave_status", status(!facts.save_failed));
        lines.put("rdb_last_bgsave_time_sec", seconds(facts.save_seconds));
        lines.put("rdb_saves", facts.saves);
        lines.put("aof_enabled", 1);
        lines.put("aof_rewrite_in_progress", saving);
        lines.put("aof_rewrite_scheduled", 0);
        lines.put("aof_last_bgrewrite_status", status(!facts.save_failed));
        lines.put("aof_last_write_status", status(!facts.is_full));
        lines.put("aof_current_size", facts.bytes_since_save);
        lines.put("aof_base_size", facts.save_bytes);
        lines.put("aof_buffer_length", facts.pending_bytes);
        lines.put("restored_entries", facts.restored.0);
        lines.put("restored_bytes", facts.restored.1);
        lines.put("log_flushes", facts.flushes);
        lines.put("log_flush_usec_per_flush", facts.flush_micros / facts.flushes.max(1));
    }
}
