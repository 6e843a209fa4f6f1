//! Runs a scope, and reports the result.

use std::collections::BTreeSet;
use std::hash::Hash;
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

/// The result of an exploration.
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

/// Explores every state of a scope.
pub fn explore<E: Engine>(scope: &Scope<E>, limits: Limits) -> Report {
    let words = |property: &str, path| in_words(scope, property, path);
    let report = search(scope.name, scope, scope.depth_max, limits, words);
    let reached = scope.probes.lock().expect("nobody panics with it").clone();
    Report { reached, ..report }
}

/// A path: states, each with the action that follows.
pub(crate) type Steps<M> = Vec<(<M as Model>::State, Option<<M as Model>::Action>)>;

/// Searches depth first, which keeps few open states; with a bound on the steps, breadth first.
pub(crate) fn search<M>(
    name: &'static str,
    model: &M,
    depth_max: Option<usize>,
    limits: Limits,
    words: impl Fn(&str, Steps<M>) -> Vec<String>,
) -> Report
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Hash + Clone + PartialEq + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Send + Sync + 'static,
{
    let begin = Instant::now();
    let mut builder = model.clone().checker().finish_when(HasDiscoveries::AnyFailures);
    if let Some(count) = limits.steps_max {
        builder = builder.target_state_count(count);
    }
    let mut seen = match depth_max {
        Some(depth) => look(builder.target_max_depth(depth).spawn_bfs()),
        None => look(builder.threads(limits.threads).spawn_dfs()),
    };
    if seen.violation.is_some() && depth_max.is_none() {
        // The shortest trace is the one to read. A breadth-first search keeps more states, but none
        // beyond the depth of the first violation.
        let shortest = model.clone().checker().finish_when(HasDiscoveries::AnyFailures);
        let shortest = look(shortest.target_state_count(TRACE_STEPS_MAX).spawn_bfs());
        seen.violation = shortest.violation.or(seen.violation);
    }
    Report {
        name,
        states: seen.states,
        steps: seen.steps,
        depth: seen.depth,
        seconds: begin.elapsed().as_secs_f64(),
        reached: BTreeSet::new(),
        violation: seen.violation.map(|(property, path)| words(property, path)),
        cut: limits.steps_max.is_some_and(|most| seen.steps >= most),
    }
}

struct Seen<M: Model> {
    states: usize,
    steps: usize,
    depth: usize,
    violation: Option<(&'static str, Steps<M>)>,
}

fn look<M>(checker: impl Checker<M>) -> Seen<M>
where
    M: Model,
    M::State: Hash + Clone + PartialEq,
    M::Action: Clone + PartialEq,
{
    let checker = checker.join();
    let violation = checker.discoveries().into_iter().next();
    Seen {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        violation: violation.map(|(property, path)| (property, path.into_vec())),
    }
}

/// Transitions after which the search for the shortest trace gives up.
const TRACE_STEPS_MAX: usize = 2_000_000;

fn in_words<E: Engine>(scope: &Scope<E>, property: &str, path: Steps<Scope<E>>) -> Vec<String> {
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
        let reason = if property == RESTS { world.rest(scope).err() } else { broken };
        words.push(format!("VIOLATED: {}", reason.unwrap_or_default()));
    }
    words
}
