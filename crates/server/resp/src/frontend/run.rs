//! The commands that have arrived from a connection, executed one after another.

use std::sync::atomic::Ordering::Relaxed;

use quorate_types::Now;

use super::Core;
use crate::backend::Backend;
use crate::connection::{Connection, ConnectionId, Life};
use crate::dispatch::{Context, Flow};
use crate::limits;
use crate::parser::{Parser, Step};
use crate::shared::add;

/// Executes the commands in a connection's read buffer until none is whole or it must pause.
pub(super) fn run<B: Backend>(
    core: &mut Core,
    connection: &mut Connection,
    id: ConnectionId,
    now: Now,
    backend: &mut B,
) {
    Context { core, connection, id, backend, now }.tell_complete();
    if connection.has_walk() {
        Context { core, connection, id, backend, now }.walk_on();
    }
    if let Some(number) = connection.feeding.take() {
        Context { core, connection, id, backend, now }.feed(number);
    }
    let fresh = connection.input.len().saturating_sub(connection.counted);
    add(&core.stats.input_bytes, fresh as u64);
    // The arguments of a command are borrowed while it changes the rest of the connection.
    let mut input = std::mem::take(&mut connection.input);
    let mut parser = std::mem::take(&mut connection.parser);
    let settings = &core.shared.settings;
    let query_bytes_max = settings.query_bytes_max.load(Relaxed);
    connection.in_flight_bytes_max = match settings.output_bytes_hard.load(Relaxed) {
        0 => limits::IN_FLIGHT_BYTES_MAX,
        hard => limits::IN_FLIGHT_BYTES_MAX.min(hard as usize / 2),
    };
    let mut executed = false;
    while connection.life == Life::Open && !connection.is_paused() {
        let is_waiting = connection.parked || parser.consumed() < input.len();
        if is_waiting && !core.turn.has_time(&connection.share) {
            core.postpone(connection, id);
            break;
        }
        if !std::mem::take(&mut connection.parked) {
            match parser.step(&mut input, &core.limits(connection)) {
                Step::Incomplete => break,
                Step::Command => {}
                Step::Broken(error) => {
                    add(&core.stats.errors, 1);
                    connection.skip = error.unread().min(limits::SKIPPED_BYTES_MAX);
                    connection.write(|out| error.encode(out));
                    connection.life = Life::Closing;
                    break;
                }
            }
        }
        let args = parser.args(&input);
        // One read can bring the rest of a command that is too long.
        if args.buffer.len() as u64 > query_bytes_max {
            connection.kill();
            break;
        }
        let begun = Progress::of(core, connection, args.buffer.len());
        let mut context = Context { core, connection, id, backend, now };
        let flow = context.dispatch(args);
        let work = begun.work(core, connection, backend);
        let exactly = core.shared.logs_short();
        let passed = core.turn.spend(&mut connection.share, work, exactly, || backend.clock());
        let took = passed + std::mem::take(&mut core.slept);
        let at_once = flow == Flow::Next && core.pending.len() <= begun.ops;
        if let Some(spec) = core.ran.take().filter(|_| at_once)
            && (exactly || !took.is_zero())
        {
            core.command_took(connection, spec, args, took, now);
        }
        match flow {
            Flow::Next => {
                parser.finish();
                executed = true;
            }
            Flow::Park => connection.parked = true,
        }
        let waits_for_turn = connection.parked && connection.postponed;
        if waits_for_turn {
            break;
        }
    }
    let goes_on = connection.parked || connection.postponed || connection.is_paused();
    let ends = core.draining && executed && !goes_on;
    if ends && connection.life == Life::Open && !connection.transaction.is_open() {
        connection.life = Life::Closing;
    }
    if parser.consumed() > 0 {
        parser.compact(&mut input);
    }
    if !connection.redirected.is_empty() {
        core.hand_on_redirected(connection);
    }
    if connection.skip > 0 {
        connection.skip = connection.skip.saturating_sub(parser.unparsed(&input) as u64);
        input.clear();
        parser = Parser::default();
    }
    if input.len() as u64 > query_bytes_max {
        connection.kill();
    }
    core.cut_slow(connection);
    connection.counted = input.len();
    parser.shrink(limits::BUFFER_KEEP_BYTES);
    connection.input = input;
    core.stow_input(connection);
    connection.parser = parser;
    connection.publish(now.monotonic);
    core.recount(connection);
    core.watch_account();
    if (!connection.output.is_empty() && !connection.held) || connection.is_finished() {
        core.mark_dirty(connection, id);
    }
}

/// What there was before a command, so that what it does can be told.
struct Progress {
    bytes: usize,
    written: usize,
    ops: usize,
}

impl Progress {
    #[inline]
    fn of(core: &Core, connection: &Connection, bytes: usize) -> Self {
        Self { bytes, written: connection.written(), ops: core.pending.len() }
    }

    /// An estimate of what the command took, in reads of a short value.
    #[inline]
    fn work<B: Backend>(&self, core: &Core, connection: &Connection, backend: &mut B) -> u64 {
        let written = connection.written().saturating_sub(self.written);
        let bytes = (self.bytes + written) as u64 + backend.touched();
        let ops = core.pending.len().saturating_sub(self.ops) as u64;
        1 + ops * limits::WORK_OF_OP + bytes / limits::BYTES_PER_WORK
    }
}
