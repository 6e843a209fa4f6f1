//! `DEBUG`: what test suites use of it. It is refused unless the node's settings allow it.

use std::sync::atomic::Ordering::Relaxed;

use quorate_commands::{Args, Reply, debug_protocol, parse_integer};
use quorate_types::Duration;

use crate::backend::Backend;
use crate::connection;
use crate::dispatch::Context;
use crate::session::{SYNTAX, failure, quoted};

const NOT_ALLOWED: &str = "ERR DEBUG command not allowed. If the enable-debug-command option is set to \
                           \"local\", you can run it from a local connection, otherwise you need to \
                           set this option in the configuration file, and then restart the server.";
/// Seconds that `DEBUG SLEEP` lasts at most.
const SLEEP_SECONDS_MAX: f64 = 60.0;

/// Who may use `DEBUG`: the values of `enable-debug-command`, in the order of their numbers.
pub(crate) const ALLOWED: [&str; 3] = ["no", "local", "yes"];

impl<B: Backend> Context<'_, B> {
    pub(crate) fn debug(&mut self, args: Args<'_>) -> Reply<'static> {
        let allowed = match self.core.shared.settings.debug_command.load(Relaxed) {
            0 => false,
            1 => self.connection.facts.peer.ip().is_loopback(),
            _ => true,
        };
        if !allowed {
            return Reply::error(NOT_ALLOWED);
        }
        let subcommand = args.get(1).to_ascii_lowercase();
        match (subcommand.as_slice(), args.len()) {
            // Nothing is on disk, nor compressed in nodes of its own: there is nothing to switch.
            (b"reload" | b"loadaof" | b"change-repl-id", _) => Reply::Ok,
            (b"set-active-expire" | b"quicklist-packed-threshold" | b"pause-cron", 3) => Reply::Ok,
            (b"set-skip-checksum-validation", 3) => Reply::Ok,
            (b"set-disable-deny-scripts", 3) => {
                quorate_scripts::allow_debug(args.get(2) == b"1");
                Reply::Ok
            }
            (b"replybuffer", 4) => Reply::Ok,
            (b"sleep", 3) => self.debug_sleep(args.get(2)),
            (b"error", 3) => failure(quoted(args.get(2)).into_owned()),
            (b"stringmatch-len", 4) => match parse_integer(args.get(2)) {
                None => SYNTAX,
                Some(length) => {
                    let length = usize::try_from(length).unwrap_or(0).min(args.get(3).len());
                    let matches =
                        quorate_commands::glob_match(args.get(3), &args.get(3)[..length], false);
                    Reply::Int(i64::from(matches))
                }
            },
            (b"protocol", 3) => debug_protocol(args.get(2)),
            (
                b"digest" | b"digest-value" | b"object" | b"jmap" | b"populate" | b"htstats"
                | b"htstats-key" | b"listpack" | b"quicklist" | b"sdslen",
                _,
            ) => failure(format!(
                "ERR Quorate has no 'DEBUG {}' yet; docs/src/commands.md lists what there is",
                quoted(args.get(1)).to_ascii_uppercase()
            )),
            _ => failure(format!(
                "ERR unknown subcommand or wrong number of arguments for '{}'. Try DEBUG HELP.",
                quoted(args.get(1))
            )),
        }
    }

    /// The connection waits, and nobody else.
    fn debug_sleep(&mut self, seconds: &[u8]) -> Reply<'static> {
        let text = std::str::from_utf8(seconds).unwrap_or_default();
        // As in C, other text is no number.
        let seconds = text.parse::<f64>().unwrap_or(0.0).clamp(0.0, SLEEP_SECONDS_MAX);
        let length = Duration::from_micros((seconds * 1e6) as u64);
        let until = self.now.monotonic + length;
        self.core.slept = length;
        self.connection.push(connection::Reply::Pause { until });
        self.connection.barrier = true;
        self.core.waiting.push(self.id);
        Reply::Ok
    }
}
