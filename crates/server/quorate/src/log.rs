//! Logs that never hold a lane up and never end the process: a line goes into a bounded queue, and
//! a thread writes it. A line that finds no room, or that the system doesn't
//! take, is lost and counted; the log says how many as soon as it can.

mod limit;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use quorate_admin::LogCounts;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::limit::{Limit, WINDOW};

/// Lines that may wait to be written.
const LINES_MAX: usize = 1024;
/// Longest line, in bytes; the rest of a longer one is cut off.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// How long the end of the process, or the abort after a panic, waits for lines to be written.
const FLUSH_MAX: Duration = Duration::from_millis(200);
/// How soon output that was not ready (it is shared with something that made it non-blocking) is
/// tried again.
const RETRY: Duration = Duration::from_millis(10);

/// Where logs go.
static LOG: OnceLock<Lines> = OnceLock::new();
/// Where the output of a serving process goes.
static OUTPUT: OnceLock<Lines> = OnceLock::new();

/// Writes what is still waiting when it is dropped, as far as that takes no time.
pub(crate) struct Logs {
    pub(crate) counts: Arc<LogCounts>,
}

impl Drop for Logs {
    fn drop(&mut self) {
        LOG.get().into_iter().chain(OUTPUT.get()).for_each(Lines::flush);
    }
}

/// Sends logs to stderr: those of `default` severity and above, or what `QUORATE_LOG` asks for.
/// From now on panics are logged in the same way, and [`say`] and [`complain`] don't block.
pub(crate) fn start(default: &str) -> anyhow::Result<Logs> {
    let counts = Arc::new(LogCounts::default());
    let limit = Arc::new(Limit::new(Arc::clone(&counts)));
    let of = |stream: io::Result<_>| stream.context("cannot duplicate the standard streams");
    let log = File::from(of(io::stderr().as_fd().try_clone_to_owned())?);
    let output = File::from(of(io::stdout().as_fd().try_clone_to_owned())?);
    let log = Lines::start("log", log, Arc::clone(&counts), Some(Arc::clone(&limit)))?;
    let output = Lines::start("output", output, Arc::clone(&counts), None)?;
    let filter = EnvFilter::try_from_env("QUORATE_LOG").unwrap_or_else(|_| default.into());
    let writer = log.clone();
    let logs = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        // Errors of this layer would be printed, which blocks and may panic.
        .log_internal_errors(false)
        .with_writer(move || writer.clone());
    // There is no other subscriber in this program; should there be, it has the logs.
    let _ =
        tracing_subscriber::registry().with(filter).with(limit::Layer(limit)).with(logs).try_init();
    let (_, _) = (LOG.set(log), OUTPUT.set(output));
    std::panic::set_hook(Box::new(log_panic));
    Ok(Logs { counts })
}

/// Prints a line of the program's output. A reader that has gone, or that doesn't read, is no
/// reason to stop serving.
pub(crate) fn say(line: &str) {
    match OUTPUT.get() {
        Some(lines) => lines.push(format!("{line}\n").into_bytes()),
        None => {
            let mut stdout = io::stdout().lock();
            let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
        }
    }
}

/// Prints why the program ends. If nobody can be told, the exit code still says so.
pub(crate) fn complain(text: &str) {
    match LOG.get() {
        Some(lines) => {
            lines.push(format!("{text}\n").into_bytes());
            lines.flush();
        }
        None => {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }
}

/// Logs a panic as the standard library prints it, and gives the line time to leave, because the
/// process may abort next.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let mut text = format!("\nthread '{}' {panic}\n", thread.name().unwrap_or("<unnamed>"));
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        text += &format!("stack backtrace:\n{trace}\n");
    }
    if let Some(lines) = LOG.get() {
        // The queue may be full of lines that are being written.
        let _ = lines.queue.send_timeout(Item::Line(text.into_bytes()), FLUSH_MAX);
        lines.flush();
    }
}

enum Item {
    Line(Vec<u8>),
    /// Everything before this has been dealt with.
    Mark(Sender<()>),
}

/// Lines on their way to one file. Cheap to clone.
#[derive(Clone)]
struct Lines {
    queue: Sender<Item>,
    counts: Arc<LogCounts>,
}

impl Lines {
    fn start(
        name: &str,
        file: File,
        counts: Arc<LogCounts>,
        limit: Option<Arc<Limit>>,
    ) -> anyhow::Result<Self> {
        let (queue, lines) = bounded(LINES_MAX);
        let writer = Writer { file, lines, counts: Arc::clone(&counts), limit, told: 0 };
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || writer.run())
            .context("cannot start the thread that writes logs")?;
        Ok(Self { queue, counts })
    }

    fn push(&self, mut line: Vec<u8>) {
        if line.len() > LINE_BYTES_MAX {
            line.truncate(LINE_BYTES_MAX - 1);
            line.push(b'\n');
        }
        if self.queue.try_send(Item::Line(line)).is_err() {
            self.counts.no_room.fetch_add(1, Relaxed);
        }
    }

    /// Waits until what was pushed has been written, for a limited time.
    fn flush(&self) {
        let deadline = Instant::now() + FLUSH_MAX;
        let (mark, done) = bounded(1);
        if self.queue.send_deadline(Item::Mark(mark), deadline).is_ok() {
            // A file that nobody reads has its lines lost.
            let _ = done.recv_deadline(deadline);
        }
    }
}

/// One event, formatted, is one call.
impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread that writes lines to a file.
struct Writer<F> {
    file: F,
    lines: Receiver<Item>,
    counts: Arc<LogCounts>,
    /// Which lines were left out, to be said here.
    limit: Option<Arc<Limit>>,
    /// Lost lines that the log has told of.
    told: u64,
}

impl<F: Write> Writer<F> {
    fn run(mut self) {
        let mut patience = Duration::MAX;
        let mut reported = Instant::now();
        loop {
            match self.lines.recv_timeout(patience) {
                Ok(Item::Line(line)) => {
                    self.write(&line);
                    patience = WINDOW;
                }
                Ok(Item::Mark(mark)) => {
                    // The waiting thread may have given up.
                    let _ = mark.send(());
                }
                // Lines are left out only within a window of lines that were written, and so none
                // was left out since.
                Err(RecvTimeoutError::Timeout) => patience = Duration::MAX,
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(limit) = &self.limit
                && reported.elapsed() >= WINDOW
            {
                reported = Instant::now();
                limit.report(reported);
            }
        }
    }

    fn write(&mut self, line: &[u8]) {
        match write_whole(&mut self.file, line) {
            Ok(()) if self.limit.is_some() => self.tell_losses(),
            Ok(()) => {}
            Err(_) => {
                self.counts.not_taken.fetch_add(1, Relaxed);
            }
        }
    }

    /// Says how many lines were lost, once there is room again.
    fn tell_losses(&mut self) {
        let lost = self.counts.lost();
        if lost > self.told && self.lines.len() < LINES_MAX / 2 {
            tracing::warn!(
                lines = lost - self.told,
                "log lines were lost: they came faster than stderr took them, or it took none; \
                 read it, or make room where it is kept"
            );
            self.told = lost;
        }
    }
}

fn write_whole(file: &mut impl Write, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match file.write(line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => line = &line[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses so many writes, then keeps what comes.
    struct Disk {
        refusals: u32,
        kept: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.refusals > 0 {
                self.refusals -= 1;
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = bytes.len().min(3);
            self.kept.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_is_refused_is_counted_and_the_next_is_written_whole() {
        let counts = Arc::new(LogCounts::default());
        let (_queue, lines) = bounded(LINES_MAX);
        let file = Disk { refusals: 1, kept: Vec::new() };
        let mut writer = Writer { file, lines, counts: Arc::clone(&counts), limit: None, told: 0 };
        writer.write(b"first\n");
        writer.write(b"second\n");
        assert_eq!(writer.file.kept, b"second\n");
        assert_eq!(counts.lost(), 1);
    }

    #[test]
    fn lines_beyond_the_queue_are_counted_and_nobody_waits() {
        let counts = Arc::new(LogCounts::default());
        let (queue, lines) = bounded(2);
        let log = Lines { queue, counts: Arc::clone(&counts) };
        for _ in 0..5 {
            log.push(vec![b'x'; 2 * LINE_BYTES_MAX]);
        }
        assert_eq!(counts.lost(), 3);
        let Item::Line(line) = lines.recv().unwrap() else { panic!("nobody set a mark") };
        assert_eq!(line.len(), LINE_BYTES_MAX);
        assert_eq!(line.last(), Some(&b'\n'));
    }
}
