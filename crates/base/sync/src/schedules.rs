//! Many schedules of one test, with shuttle: threads run one at a time, and after each step of a
//! thread that others can see, the scheduler decides which thread goes on.
//!
//! Half of the schedules choose at random at each step. The other half follow priorities that
//! change a few times only (probabilistic concurrency testing), which finds with a known
//! probability the bugs that need a few switches at the right places. Both start from a fixed seed:
//! the same build runs the same schedules. A failure prints its schedule, for [`shuttle::replay`].
//!
//! Every atomic is sequentially consistent here. The effects of weaker orders are for loom to find.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// The environment variable that multiplies the number of schedules; then they also begin with
/// another seed.
pub const TIMES: &str = "QUORATE_SCHEDULES_TIMES";

const SEED: u64 = 20;
/// Changes of priority in a schedule.
const DEPTHS: [usize; 2] = [2, 4];
/// A test's threads run what lanes run, on stacks of this many bytes.
const STACK: usize = 512 * 1024;
/// Steps after which a schedule counts as endless.
const STEPS_MAX: usize = 2_000_000;

/// Runs the body under this many schedules, or a multiple as [`TIMES`] says.
///
/// # Panics
/// As the body does, and if its threads wait for each other in a circle.
pub fn explore(schedules: usize, body: impl Fn() + Send + Sync + 'static) {
    let times = std::env::var(TIMES).map_or(1, |times| times.parse().expect("a number of times"));
    let seed = SEED + times as u64 - 1;
    let body = std::sync::Arc::new(body);
    let half = schedules * times / 2;
    run(RandomScheduler::new_from_seed(seed, half), &body);
    for depth in DEPTHS {
        run(PctScheduler::new_from_seed(seed, depth, half / DEPTHS.len()), &body);
    }
}

fn run(
    scheduler: impl shuttle::scheduler::Scheduler + 'static,
    body: &std::sync::Arc<impl Fn() + Send + Sync + 'static>,
) {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = shuttle::MaxSteps::FailAfter(STEPS_MAX);
    // It is known that orderings are not followed.
    config.silence_warnings = true;
    let body = std::sync::Arc::clone(body);
    Runner::new(scheduler, config).run(move || body());
}

/// A choice that belongs to the schedule.
pub fn coin() -> bool {
    shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng())
}
