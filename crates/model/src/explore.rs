//! Runs a scope, and says what was found.

use std::collections::BTreeSet;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use crate::engine::Engine;
use crate::scope::{RESTS, Scope};

/// How to explore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Threads.
    pub threads: usize,
    /// Stop after about so many transitions, if ever.
    pub steps_max: Option<usize>,
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The scope.
    pub name: &'static str,
    /// Different states.
    pub states: usize,
    /// Transitions between them, those to known states included.
    pub steps: usize,
    /// The longest path that was followed.
    pub depth: usize,
    /// How long it took.
    pub seconds: f64,
    /// Rare branches that were reached.
    pub reached: BTreeSet<&'static str>,
    /// How to break the specification, step by step, if it can be broken.
    pub violation: Option<Vec<String>>,
    /// Whether it stopped at [`Limits::steps_max`].
    pub cut: bool,
}

/// Explores every state of a scope, in depth: what lies open is then never much.
pub fn explore<E: Engine>(scope: &Scope<E>, limits: Limits) -> Report {
    let begin = Instant::now();
    let mut checker =
        scope.clone().checker().threads(limits.threads).finish_when(HasDiscoveries::AnyFailures);
    if let Some(count) = limits.steps_max {
        checker = checker.target_state_count(count);
    }
    let checker = checker.spawn_dfs().join();
    let violated = checker.discoveries().into_keys().next();
    let steps = checker.state_count();
    let violation = violated.map(|property| {
        // The shortest way there is the one to read. Searching in breadth keeps more states, but
        // not beyond the depth of the first violation.
        let shortest = scope
            .clone()
            .checker()
            .finish_when(HasDiscoveries::AnyFailures)
            .target_state_count(TRACE_STEPS_MAX)
            .spawn_bfs()
            .join();
        let paths = [shortest.discoveries(), checker.discoveries()];
        let path = paths.into_iter().find_map(|found| found.into_iter().next());
        let (property, path) = path.map_or((property, None), |(name, path)| (name, Some(path)));
        path.map(|path| in_words(scope, property, path.into_vec())).unwrap_or_default()
    });
    Report {
        name: scope.name,
        states: checker.unique_state_count(),
        steps,
        depth: checker.max_depth(),
        seconds: begin.elapsed().as_secs_f64(),
        reached: scope.probes.lock().expect("nobody panics with it").clone(),
        violation,
        cut: limits.steps_max.is_some_and(|most| steps >= most),
    }
}

/// Transitions after which the search for the shortest trace gives up.
const TRACE_STEPS_MAX: usize = 2_000_000;

type Steps<E> = Vec<(<Scope<E> as Model>::State, Option<<Scope<E> as Model>::Action>)>;

fn in_words<E: Engine>(scope: &Scope<E>, property: &str, path: Steps<E>) -> Vec<String> {
    let mut words = Vec::new();
    let mut end = None;
    for (world, action) in path {
        match action {
            Some(action) => words.push(scope.words(&world, action)),
            None => end = Some(world),
        }
    }
    if let Some(world) = end {
        let broken = world.broken.as_deref().map(str::to_owned);
        let rest = || world.rest(scope).err();
        let reason = if property == RESTS { rest() } else { broken };
        words.push(format!("VIOLATED: {}", reason.unwrap_or_default()));
    }
    words
}
