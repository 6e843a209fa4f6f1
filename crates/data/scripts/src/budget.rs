//! How long a script may run.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mlua::{Error, HookTriggers, Lua, VmState};
use quorate_commands::{MESSAGES_MAX, NOTES_BYTES_MAX, Reply};
use quorate_machine::mutant;
use rustix::time::{ClockId, clock_gettime};

use crate::error::Thrown;
use crate::limits;

const _: () = assert!(
    MESSAGES_MAX == 16_384 && NOTES_BYTES_MAX == 16_777_216,
    "the text of `Stop::Notes` names both limits"
);

thread_local! {
    /// The processor time of one run on this thread.
    static CPU_MS: Cell<u64> = const { Cell::new(limits::CPU_MS_MAX) };
}

/// Bounds the processor time of each run on this thread in milliseconds, [`limits::CPU_MS_MAX`] until
/// then. How much of it a count of instructions takes depends on the machine and on how this was
/// compiled, so a test of the counts sets it out of their reach.
pub fn bound_cpu_of_this_thread(millis: u64) {
    CPU_MS.set(millis);
}

/// Runs of scripts in this process, and how often they were told to stop.
static RUNNING: AtomicU64 = AtomicU64::new(0);
static KILLS: AtomicU64 = AtomicU64::new(0);

/// Stops every script that runs in this process; `false` if none does.
pub fn kill() -> bool {
    let any = RUNNING.load(Relaxed) > 0;
    if any {
        KILLS.fetch_add(1, Relaxed);
    }
    any
}

/// Why a run ends before its script does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    Instructions,
    Memory,
    Cpu,
    Killed,
    /// A library panicked.
    Defect,
    /// The transaction can't be what it wants to be any more; its engine says why.
    Workspace,
    /// More is to be told of it than may be.
    Notes,
}

impl Stop {
    pub(crate) fn reply(self) -> Reply<'static> {
        Reply::error(match self {
            Self::Instructions => {
                "ERR the script ran longer than 5000000 instructions, the most that one may, and was \
                 stopped; nothing of it happened. Do less in one script"
            }
            Self::Memory => {
                "ERR the script needed more than 67108864 bytes of memory, the most that one may, and \
                 was stopped; nothing of it happened. Hold less in one script"
            }
            Self::Cpu => {
                "ERR the script took more than 200 ms of processor time, the most that one may, and \
                 was stopped; nothing of it happened. Do less in one script"
            }
            Self::Killed => "ERR Script killed by user with SCRIPT KILL; nothing of it happened.",
            Self::Defect => {
                "ERR a library of the interpreter failed, and the script was stopped; nothing of it \
                 happened. This is a defect of Quorate: report the script"
            }
            Self::Notes => {
                "ERR the script published more than 16384 messages, or 16777216 bytes of messages and \
                 keyspace events, the most that one may, and was stopped; nothing of it happened. \
                 Publish less in one script"
            }
            Self::Workspace => "ERR the script touched more than its transaction may",
        })
    }
}

const _: () = assert!(
    limits::INSTRUCTIONS_MAX == 5_000_000
        && limits::MEMORY_BYTES_MAX == 67_108_864
        && limits::CPU_MS_MAX == 200,
    "the texts name the limits"
);

/// Instructions from one look at the bounds to the next. Fewer if the script holds much memory: then
/// single instructions may take long.
const PERIOD: u32 = 1000;
const PERIOD_OF_MEGABYTES: u32 = 100;
const PERIOD_OF_MUCH: u32 = 10;

/// Looks at the bounds from one look at the clock to the next.
const LOOKS_PER_CLOCK: u32 = 8;

/// What is left of a run. Shared by the hook and the functions of the libraries.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    left: Cell<i64>,
    stop: Cell<Option<Stop>>,
    period: Cell<u32>,
    looks: Cell<u32>,
    kills: Cell<u64>,
    /// The processor time of this thread when the run began, or up to [`CPU_READ_NS`] before.
    began_ns: Cell<u64>,
    /// When that was read.
    read_ns: Cell<u64>,
}

/// How often the processor time is read at most to begin a run: it takes a system call, which would be a
/// quarter of a short script.
const CPU_READ_NS: u64 = 1_000_000;

impl Budget {
    /// Begins a run, which ends when what is returned is dropped.
    pub(crate) fn begin(&self) -> Running {
        self.left.set(limits::INSTRUCTIONS_MAX as i64);
        self.stop.set(None);
        self.kills.set(KILLS.load(Relaxed));
        let now = now_ns(ClockId::Monotonic);
        if now - self.read_ns.get() > CPU_READ_NS {
            self.read_ns.set(now);
            self.began_ns.set(now_ns(ClockId::ThreadCPUTime));
        }
        RUNNING.fetch_add(1, Relaxed);
        Running
    }

    /// Why the run ends.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.stop.get()
    }

    pub(crate) fn stop(&self, why: Stop) -> Error {
        if self.stop.get().is_none() {
            self.stop.set(Some(why));
        }
        Thrown::Stop.into()
    }

    /// Counts work that takes as long as so many instructions.
    #[inline]
    pub(crate) fn charge(&self, instructions: usize) -> Result<(), Error> {
        let left = self.left.get() - instructions as i64;
        self.left.set(left);
        if left < 0 { Err(self.stop(Stop::Instructions)) } else { Ok(()) }
    }

    /// Has the interpreter look at the bounds now and then, in every coroutine.
    pub(crate) fn watch(self: &std::rc::Rc<Self>, lua: &Lua) -> Result<(), Error> {
        self.period.set(PERIOD);
        self.set_hook(lua)
    }

    fn set_hook(self: &std::rc::Rc<Self>, lua: &Lua) -> Result<(), Error> {
        let budget = self.clone();
        let triggers = HookTriggers::new().every_nth_instruction(self.period.get());
        let hook = move |lua: &Lua, _: &mlua::debug::Debug<'_>| budget.look(lua);
        if mutant!("scripts_hook_on_one_coroutine") {
            lua.set_hook(triggers, hook)
        } else {
            lua.set_global_hook(triggers, hook)
        }
    }

    fn look(self: &std::rc::Rc<Self>, lua: &Lua) -> Result<VmState, Error> {
        if self.stop.get().is_some() {
            return Err(Thrown::Stop.into());
        }
        let period = self.period.get();
        self.charge(period as usize)?;
        if KILLS.load(Relaxed) != self.kills.get() && !mutant!("scripts_kill_unseen") {
            return Err(self.stop(Stop::Killed));
        }
        let wanted = match lua.used_memory() {
            ..0x10_0000 => PERIOD,
            0x10_0000..0x80_0000 => PERIOD_OF_MEGABYTES,
            _ => PERIOD_OF_MUCH,
        };
        self.looks.set(self.looks.get() + 1);
        let looks_at_clock = wanted != PERIOD || self.looks.get().is_multiple_of(LOOKS_PER_CLOCK);
        if looks_at_clock {
            let millis = (now_ns(ClockId::ThreadCPUTime) - self.began_ns.get()) / 1_000_000;
            if millis > CPU_MS.get() {
                return Err(self.stop(Stop::Cpu));
            }
        }
        if wanted != period {
            self.period.set(wanted);
            self.set_hook(lua)?;
        }
        Ok(VmState::Continue)
    }
}

/// A run in progress.
pub(crate) struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Relaxed);
    }
}

/// What a clock shows, in nanoseconds.
fn now_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
