//! `MONITOR`: what the clients of this node ask for, on all lanes.
//!
//! Each monitor has a queue that every lane writes and its own lane reads. Commands never wait for it: a
//! monitor that falls behind by more than [`limits::MONITOR_BYTES_MAX`] is disconnected.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use quorate_commands::{Args, ConnectionCommand, Run, Spec, flag};
use quorate_types::Now;

use crate::connection::{Connection, ConnectionId};
use crate::frontend::{Core, Frontend};
use crate::limits;
use crate::shared::{ClientFacts, lock};

/// The monitors of a node.
#[derive(Debug, Default)]
pub(crate) struct Monitors {
    /// How many there are; read before each command.
    count: AtomicU64,
    feeds: Mutex<Vec<Arc<Feed>>>,
}

/// What a monitor has yet to be told.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<Arc<[u8]>>,
    bytes: usize,
    overflowed: bool,
}

impl Monitors {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    fn add(&self) -> Arc<Feed> {
        let feed = Arc::new(Feed::default());
        lock(&self.feeds).push(Arc::clone(&feed));
        self.count.fetch_add(1, Relaxed);
        feed
    }

    fn remove(&self, feed: &Arc<Feed>) {
        lock(&self.feeds).retain(|other| !Arc::ptr_eq(other, feed));
        self.count.fetch_sub(1, Relaxed);
    }

    fn tell(&self, line: &Arc<[u8]>) {
        for feed in lock(&self.feeds).iter() {
            let mut lines = lock(&feed.lines);
            if lines.bytes + line.len() > limits::MONITOR_BYTES_MAX {
                lines.overflowed = true;
                continue;
            }
            lines.bytes += line.len();
            lines.lines.push_back(Arc::clone(line));
        }
    }
}

impl Core {
    /// A client asks for a command: monitors are told, on all lanes.
    pub(crate) fn tell_monitors(
        &mut self,
        spec: &Spec,
        args: Args<'_>,
        now: Now,
        client: &ClientFacts,
    ) {
        if spec.flags.has(flag::SKIP_MONITOR) || spec.flags.has(flag::ADMIN) {
            return;
        }
        let line: Arc<[u8]> = line(spec, args, now, client).into();
        self.shared.monitors.tell(&line);
        self.named_others = true;
    }

    pub(crate) fn begin_monitor(&mut self, connection: &mut Connection, id: ConnectionId) {
        if connection.monitor.is_none() {
            connection.monitor = Some(self.shared.monitors.add());
            self.monitors.push(id);
        }
    }

    pub(crate) fn end_monitor(&mut self, connection: &mut Connection, id: ConnectionId) {
        if let Some(feed) = connection.monitor.take() {
            self.shared.monitors.remove(&feed);
            self.monitors.retain(|other| *other != id);
        }
    }
}

impl Frontend {
    /// Hands the monitors of this lane what there is to tell them.
    pub(crate) fn feed_monitors(&mut self) {
        for at in 0..self.core.monitors.len() {
            let id = self.core.monitors[at];
            let Some(connection) = self.connections.get_mut(id.0) else { continue };
            let Some(feed) = connection.monitor.clone() else { continue };
            let taken = std::mem::take(&mut *lock(&feed.lines));
            if taken.overflowed {
                connection.kill();
                self.core.mark_dirty(connection, id);
                continue;
            }
            if taken.lines.is_empty() {
                continue;
            }
            connection.push_message(|out| {
                taken.lines.iter().for_each(|line| out.extend_from_slice(line));
            });
            self.core.cut_slow(connection);
            self.core.recount(connection);
            self.core.mark_dirty(connection, id);
        }
    }
}

/// `+<seconds>.<micros> [<database> <address>] "<name>" "<argument>" ...`
fn line(spec: &Spec, args: Args<'_>, now: Now, client: &ClientFacts) -> Vec<u8> {
    let micros = now.unix.0 / 1000;
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let database = client.database.load(Relaxed);
    let mut line = format!("+{seconds}.{micros:06} [{database} {}]", client.peer).into_bytes();
    let mut secret = match spec.run {
        Run::Connection(ConnectionCommand::Auth) => args.len() - 1,
        _ => 0,
    };
    let is_hello = matches!(spec.run, Run::Connection(ConnectionCommand::Hello));
    for (at, argument) in args.iter().enumerate() {
        if line.len() > limits::MONITOR_LINE_BYTES_MAX {
            line.extend_from_slice(format!(" ... ({} more arguments)", args.len() - at).as_bytes());
            break;
        }
        if at > 0 && secret > 0 {
            secret -= 1;
            line.extend_from_slice(b" \"(redacted)\"");
            continue;
        }
        if is_hello && argument.eq_ignore_ascii_case(b"auth") {
            secret = 2;
        }
        line.extend_from_slice(b" \"");
        let shown = &argument[..argument.len().min(limits::MONITOR_LINE_BYTES_MAX)];
        shown.iter().for_each(|&byte| escape(byte, &mut line));
        line.push(b'"');
    }
    line.extend_from_slice(b"\r\n");
    line
}

/// Appends a byte as Redis quotes it.
fn escape(byte: u8, line: &mut Vec<u8>) {
    let short = match byte {
        b'\\' | b'"' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x07 => b'a',
        0x08 => b'b',
        b' '..=b'~' => return line.push(byte),
        _ => return line.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
    };
    line.extend_from_slice(&[b'\\', short]);
}
