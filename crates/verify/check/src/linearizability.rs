//! Linearizability of one key: just-in-time linearization with exact reductions.
//!
//! A *configuration* is a state of the key together with what has happened to each pending
//! operation. The events of the key are walked in time order; at an invoke nothing has to be
//! decided, at a return every configuration in which the operation has not taken effect yet is
//! expanded by all sequences of pending operations that end with it. If no configuration is left,
//! the history up to that return has no linearization.
//!
//! The reductions, each with the reason why no linearization is lost and none is invented:
//!
//! - **Pure operations at once.** An operation whose answer says that it changed nothing (a `get`,
//!   a `del` that answered 0) is placed as soon as the state fits it: it can't help or hinder any
//!   other.
//! - **Hidden writes.** A plain `set` fits every state, and no operation sees it when it is placed
//!   right before another step that ignores the state. So when such a step is placed, every `set`
//!   pending at that moment becomes *free*: at its return it may be counted as placed before,
//!   without choosing an order among the hidden ones.
//! - **Unknown operations are never forced**, since leaving one out is always allowed. One is
//!   placed only where the next step depends on the state, and where its result can lead to what
//!   that step, or another pending one, saw. One that leaves the state unchanged is placed only
//!   where it frees a `set`: a `del` of an absent key hides the writes right before it.
//! - **Unknown operations that are equal are counted**, not told apart: all were invoked already.
//! - **Values that no answer and no condition mentions** are one value, on keys without `append` and
//!   without commands on collections.
//! - **Growth.** On a key that is only read and incremented upwards, or only read and appended to,
//!   a state beyond what a pending operation saw is a dead end.
//! - **Losses.** Where a power cut may take back what was answered last ([`Loss`]), each configuration
//!   remembers one state that it has had since the first answer at risk, and goes back to that at the cut.
//!   So what is lost is a suffix of the order. To remember fits every state and sees it; it takes a
//!   slot of its own, so the other reductions treat it as an operation that anything may help. What a key may
//!   be afterwards is not known beforehand, so growth is no guide then.
//! - **Attempts.** A store may try an operation again before it answers, if another came between: an `incr` of
//!   3 that has made 4 of it at one replica meets a `set` of 10, and answers 11. So what a configuration
//!   remembers is a state, or what one pending operation that changes the key makes of it, whatever that
//!   answers later. The operation takes effect in the order all the same: once among what is lost, and once
//!   among what is kept.
//! - **Dominance.** Of two configurations with the same state the one that has used no more
//!   unknown operations and has each pending operation in a position at least as good makes the
//!   other superfluous.
//!
//! The problem is NP-complete: the budget bounds the worst case, and the reductions don't. A key is
//! expensive if many operations whose answers say little (`del`, `setnx`) are in flight at once,
//! together with many unknown outcomes of several kinds. Registers with distinct values and
//! counters stay cheap with hundreds of unknown outcomes. Spread a mixed load over many keys.

mod configurations;
mod growth;

use std::collections::HashMap;

use crate::history::{Action, Answer, Operation, Outcome};
use crate::model::{Need, Seen, State, Step, Values};
use configurations::{Antichain, Configuration};
use growth::Growth;

/// At most this many operations with known answers may be in flight on one key at once; beyond it
/// the key is undecided.
pub const PENDING_MAX: usize = 128;

/// At most this many configurations are held at once, some hundred bytes each; beyond it the key
/// is undecided.
pub const LIVE_MAX: usize = 500_000;

/// A time at which what was answered last may be undone: a suffix of the order of each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What was answered before this is kept.
    pub from: u64,
    /// What was answered until this may be lost. An operation that is under way at this time has an unknown
    /// outcome, or was answered later and may be lost as well.
    pub at: u64,
    /// Whether everything may be lost as well, whenever it was answered: the key may be as it was at first.
    pub all: bool,
}

impl Loss {
    /// Whether what was asked for and answered then may be lost. Without an answer the second is the end of
    /// time.
    pub fn takes(&self, asked: u64, answered: u64) -> bool {
        asked <= self.at && (self.all || answered >= self.from)
    }
}

/// One operation as the search sees it.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) operation: &'a Operation,
    /// Judge the operation as if its answer were unknown.
    pub(crate) weak: bool,
}

/// The result of the search.
pub(crate) enum Judgement {
    Linearizable,
    Violation(Failure),
    Undecided(String),
}

/// Why a key has no linearization.
pub(crate) struct Failure {
    /// The entry that can't be placed, as an index.
    pub(crate) entry: usize,
    /// What it needs the key to hold, in words.
    pub(crate) need: String,
    /// What the key may have held just before its return, in words.
    pub(crate) states: Vec<String>,
    /// One linearization of everything that returned before, in order.
    pub(crate) prefix: Vec<Placed>,
}

/// A place in a linearization.
#[derive(Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) entry: u32,
    /// A write that a concurrent one overwrote before any operation saw it.
    pub(crate) hidden: bool,
}

/// To choose what a loss leaves: it fits every state and changes none.
const CHOICE: Seen = Seen { step: Step::Get, need: Need::Nothing };

/// Bits of operation slots.
type Slots = u128;

/// Unknown operations that do the same.
struct Class {
    step: Step,
    /// The invoked ones, as entries.
    entries: Vec<u32>,
}

/// A link of the traces, which form a tree that grows at the leaves.
struct Link {
    parent: u32,
    placed: Placed,
}

const TRACE_ROOT: u32 = u32::MAX;

enum Stop {
    Undecided(String),
    Failed(Failure),
}

#[derive(Clone, Copy)]
struct Event {
    time: u64,
    what: What,
    entry: u32,
}

/// What happens, in this order at the same time: equal times count as concurrent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// What is answered from here on may be lost.
    Risk,
    Invoke,
    Return,
    Loss,
}

/// In the place of an entry: none.
const NO_ENTRY: u32 = u32::MAX;

/// Judges the operations of one key. `losses` are in order and apart. `budget` bounds the configurations
/// that are looked at. Answers also how many they were.
pub(crate) fn judge(
    entries: &[Entry<'_>],
    losses: &[Loss],
    initial: State,
    budget: u64,
) -> (Judgement, u64) {
    let growth = if losses.is_empty() { Growth::of(entries) } else { Growth::Free };
    let (judgement, spent) = judge_with(entries, losses, initial, u64::MAX, budget, growth);
    if growth == Growth::Free || !matches!(judgement, Judgement::Violation(_)) {
        return (judgement, spent);
    }
    // Looking ahead at what pending operations saw gives up early, and then blames an operation
    // that only forces the dead end. Without it the first one that can't be placed is blamed.
    match judge_with(entries, losses, initial, u64::MAX, budget, Growth::Free) {
        (exact @ Judgement::Violation(_), more) => (exact, spent + more),
        (_, more) => (judgement, spent + more),
    }
}

/// Judges the events up to `until`, without looking ahead.
pub(crate) fn judge_until(
    entries: &[Entry<'_>],
    losses: &[Loss],
    initial: State,
    until: u64,
    budget: u64,
) -> (Judgement, u64) {
    judge_with(entries, losses, initial, until, budget, Growth::Free)
}

fn judge_with(
    entries: &[Entry<'_>],
    losses: &[Loss],
    initial: State,
    until: u64,
    budget: u64,
    growth: Growth,
) -> (Judgement, u64) {
    let mut search = Search::new(initial, budget, entries.len(), growth);
    let judgement = match search.run(entries, losses, until) {
        Ok(()) => Judgement::Linearizable,
        Err(Stop::Undecided(reason)) => Judgement::Undecided(reason),
        Err(Stop::Failed(failure)) => Judgement::Violation(failure),
    };
    (judgement, search.spent)
}

fn events(entries: &[Entry<'_>], losses: &[Loss], until: u64) -> Vec<Event> {
    let mut events = Vec::with_capacity(entries.len() * 2);
    for (index, Entry { operation, weak }) in entries.iter().enumerate() {
        let entry = index as u32;
        let returned = match &operation.outcome {
            Outcome::Refused { .. } => continue,
            Outcome::Done { at, .. } if !weak => Some(*at),
            _ => None,
        };
        events.push(Event { time: operation.invoke, what: What::Invoke, entry });
        if let Some(time) = returned {
            events.push(Event { time, what: What::Return, entry });
        }
    }
    for Loss { from, at, .. } in losses {
        let [risk, loss] = [(*from, What::Risk), (*at, What::Loss)];
        events.extend([risk, loss].map(|(time, what)| Event { time, what, entry: NO_ENTRY }));
    }
    events.retain(|event| event.time <= until);
    events.sort_by_key(|event| (event.time, event.what));
    events
}

struct Search {
    values: Values,
    /// The entry and the operation in each slot.
    slots: Vec<(u32, Seen)>,
    slot_of: Vec<u8>,
    pending: Slots,
    blind: Slots,
    pure: Slots,
    /// The slot that stands for the choice of what the next loss leaves.
    choice: Slots,
    classes: Vec<Class>,
    class_of: HashMap<Step, usize>,
    /// Classes that leave a fixed state, by that state.
    blind_classes: HashMap<State, Vec<usize>>,
    /// Classes whose effect depends on the state.
    chain_classes: Vec<usize>,
    /// Before the first operation.
    initial: State,
    frontier: Vec<Configuration>,
    trace: Vec<Link>,
    growth: Growth,
    budget: u64,
    spent: u64,
}

impl Search {
    fn new(initial: State, budget: u64, entries: usize, growth: Growth) -> Self {
        let used = Vec::new();
        let (state, kept, trace) = (initial, None, TRACE_ROOT);
        let start = Configuration { state, kept, placed: 0, free: 0, used, trace };
        Self {
            values: Values::default(),
            slots: Vec::new(),
            slot_of: vec![0; entries],
            pending: 0,
            blind: 0,
            pure: 0,
            choice: 0,
            classes: Vec::new(),
            class_of: HashMap::new(),
            blind_classes: HashMap::new(),
            chain_classes: Vec::new(),
            initial,
            frontier: vec![start],
            trace: Vec::new(),
            growth,
            budget,
            spent: 0,
        }
    }

    fn run(&mut self, entries: &[Entry<'_>], losses: &[Loss], until: u64) -> Result<(), Stop> {
        self.merge_unseen(entries);
        let mut losses_to_come = losses.iter();
        for event in events(entries, losses, until) {
            match event.what {
                What::Risk => {
                    self.choice = self.occupy(NO_ENTRY, CHOICE)?;
                    continue;
                }
                What::Loss => {
                    let loss = losses_to_come.next();
                    self.on_loss(loss.is_some_and(|loss| loss.all))?;
                    continue;
                }
                What::Return => {
                    let bit = 1 << self.slot_of[event.entry as usize];
                    self.on_return(event.entry, bit)?;
                    continue;
                }
                What::Invoke => {}
            }
            let Entry { operation, weak } = entries[event.entry as usize];
            let step = Step::new(&operation.action, &mut self.values);
            match &operation.outcome {
                Outcome::Done { answer, .. } if !weak => {
                    let need = Need::new(step, answer, &mut self.values);
                    self.on_invoke(event.entry, Seen { step, need })?;
                }
                _ => self.on_unknown(event.entry, step),
            }
        }
        Ok(())
    }

    /// Interns all values that matter, and lets the others become one.
    fn merge_unseen(&mut self, entries: &[Entry<'_>]) {
        let depends_on_bytes = |entry: &Entry<'_>| {
            matches!(entry.operation.action, Action::Append(_) | Action::Command(_))
        };
        if entries.iter().any(depends_on_bytes) {
            return;
        }
        for Entry { operation, .. } in entries {
            if let Outcome::Done { answer: Answer::Value(Some(value)), .. } = &operation.outcome {
                self.values.intern(&value.0);
            }
            if let Action::Cas { expected: Some(expected), .. } = &operation.action {
                self.values.intern(&expected.0);
            }
        }
        self.values.merge_unseen();
    }

    fn on_unknown(&mut self, entry: u32, step: Step) {
        let step = match step {
            Step::Get | Step::Command { reads: true, .. } => return,
            // Without its answer it is a plain write.
            Step::GetSet(value) => Step::Set(value),
            _ => step,
        };
        let class = *self.class_of.entry(step).or_insert_with(|| {
            let class = self.classes.len();
            match step.blind_product() {
                Some(product) => self.blind_classes.entry(product).or_default().push(class),
                None => self.chain_classes.push(class),
            }
            self.classes.push(Class { step, entries: Vec::new() });
            class
        });
        self.classes[class].entries.push(entry);
    }

    /// Gives an operation a slot.
    fn occupy(&mut self, entry: u32, seen: Seen) -> Result<Slots, Stop> {
        let slot = (!self.pending).trailing_zeros() as usize;
        if slot == PENDING_MAX {
            let reason = format!("more than {PENDING_MAX} operations in flight at once");
            return Err(Stop::Undecided(reason));
        }
        let bit = 1 << slot;
        if slot == self.slots.len() {
            self.slots.push((entry, seen));
        }
        self.slots[slot] = (entry, seen);
        self.pending |= bit;
        set_bit(&mut self.blind, bit, seen.is_blind());
        set_bit(&mut self.pure, bit, seen.is_pure() && entry != NO_ENTRY);
        Ok(bit)
    }

    fn on_invoke(&mut self, entry: u32, seen: Seen) -> Result<(), Stop> {
        let bit = self.occupy(entry, seen)?;
        self.slot_of[entry as usize] = bit.trailing_zeros() as u8;
        if seen.is_pure() {
            let mut frontier = std::mem::take(&mut self.frontier);
            for configuration in &mut frontier {
                self.place_pure(configuration, bit);
            }
            self.frontier = frontier;
        }
        Ok(())
    }

    /// The key goes back to the state that was chosen, or is chosen now; or to the first one, if `all` may be lost.
    fn on_loss(&mut self, all: bool) -> Result<(), Stop> {
        let choice = std::mem::take(&mut self.choice);
        self.on_return(NO_ENTRY, choice)?;
        // What is answered later may have taken effect before, and be lost.
        let (mut reached, mut queue) = (Antichain::default(), std::mem::take(&mut self.frontier));
        let mut head = 0;
        while head < queue.len() && self.pending != 0 {
            let configuration = queue[head].clone();
            head += 1;
            let pending = bits(self.pending & !configuration.placed);
            let placed: Vec<_> =
                pending.filter_map(|slot| self.place(&configuration, 1 << slot)).collect();
            for after in self.successors(&configuration, 0).into_iter().chain(placed) {
                if self.keep(&mut reached, after.clone())? {
                    queue.push(after);
                }
            }
        }
        let mut left = Antichain::default();
        for mut configuration in queue {
            let chosen = configuration.kept.take().expect("it was chosen");
            for state in [Some(chosen), all.then_some(self.initial)].into_iter().flatten() {
                configuration.state = state;
                let mut after = configuration.clone();
                self.place_pure(&mut after, self.pure);
                self.keep(&mut left, after)?;
            }
        }
        self.frontier = left.into_vec();
        Ok(())
    }

    fn on_return(&mut self, entry: u32, bit: Slots) -> Result<(), Stop> {
        let mut next = Antichain::default();
        let mut unplaced = Vec::new();
        for configuration in std::mem::take(&mut self.frontier) {
            if configuration.placed & bit != 0 {
                let placed = configuration.placed & !bit;
                self.keep(&mut next, Configuration { placed, ..configuration })?;
                continue;
            }
            if configuration.free & bit != 0 {
                let mut hidden = configuration.clone();
                hidden.free &= !bit;
                self.note(&mut hidden, entry, true);
                self.keep(&mut next, hidden)?;
            }
            unplaced.push(configuration);
        }
        self.expand(unplaced.clone(), bit, &mut next)?;
        self.pending &= !bit;
        self.frontier = next.into_vec();
        if self.frontier.is_empty() {
            return Err(Stop::Failed(self.failure(entry, &unplaced)));
        }
        Ok(())
    }

    /// Places pending operations in every order that ends with the one of `bit`.
    fn expand(
        &mut self,
        start: Vec<Configuration>,
        bit: Slots,
        next: &mut Antichain,
    ) -> Result<(), Stop> {
        let mut reached = Antichain::default();
        let mut queue = Vec::new();
        for configuration in start {
            if self.keep(&mut reached, configuration.clone())? {
                queue.push(configuration);
            }
        }
        // In order of arrival: short sequences come first and dominate the longer ones.
        let mut head = 0;
        while head < queue.len() {
            let configuration = queue[head].clone();
            head += 1;
            let attempts = self.attempts(&configuration, bit);
            for mut after in self.place(&configuration, bit).into_iter().chain(attempts) {
                if !self.is_dead_end(&after) {
                    after.placed &= !bit;
                    self.keep(next, after)?;
                }
            }
            for after in self.successors(&configuration, bit) {
                if self.is_dead_end(&after) {
                    continue;
                }
                if after.placed & bit != 0 {
                    // The target was pure, and the state fits it by now.
                    let placed = after.placed & !bit;
                    self.keep(next, Configuration { placed, ..after })?;
                } else if self.keep(&mut reached, after.clone())? {
                    queue.push(after);
                }
            }
        }
        Ok(())
    }

    /// The configurations one step on, other than by the operation of `target`.
    fn successors(&mut self, from: &Configuration, target: Slots) -> Vec<Configuration> {
        let mut successors = Vec::new();
        let wanting = self.pending & !from.placed & !self.blind;
        for slot in bits(self.pending & !from.placed & !target) {
            let bit = 1 << slot;
            // In a known state pure operations have been placed wherever they fit.
            if self.pure & bit != 0 && from.state != State::WILD {
                continue;
            }
            if let Some(product) = self.slots[slot].1.step.blind_product()
                && self.blind & bit != 0
                && !self.leads_on(product, wanting, from)
            {
                continue;
            }
            successors.extend(self.place(from, bit));
            successors.extend(self.attempts(from, bit));
        }
        for class in self.candidates(wanting, from) {
            let step = self.classes[class].step;
            let state = step.apply_unseen(from.state, &mut self.values).unwrap_or(from.state);
            let hidden = match step.blind_product() {
                Some(_) => self.pending & self.blind & !from.placed,
                None => 0,
            };
            let is_futile = state == from.state && hidden & !from.free == 0;
            if is_futile || !self.leads_on(state, wanting, from) {
                continue;
            }
            let mut after = from.clone();
            after.state = state;
            after.free |= hidden;
            let nth = take_one(&mut after.used, class as u32);
            let entry = self.classes[class].entries[nth as usize];
            self.note(&mut after, entry, false);
            self.place_pure(&mut after, self.pure);
            successors.push(after);
        }
        successors
    }

    /// Whether some pending operation can't be placed any more, however the search goes on.
    fn is_dead_end(&self, configuration: &Configuration) -> bool {
        self.growth != Growth::Free
            && bits(self.pending & !configuration.placed).any(|slot| {
                let need = self.slots[slot].1.need;
                self.growth.has_passed(configuration.state, need, &self.values)
            })
    }

    /// The classes of unknown operations worth trying.
    fn candidates(&self, wanting: Slots, from: &Configuration) -> Vec<usize> {
        let mut candidates: Vec<usize> = self.chain_classes.clone();
        let exact: Option<Vec<State>> = bits(wanting)
            .map(|slot| match self.slots[slot].1.need {
                Need::Exactly(state) => Some(state),
                _ => None,
            })
            .collect();
        match exact {
            // Only these states are of use, so there is no need to look at every class.
            Some(mut states) if self.chain_classes.is_empty() => {
                states.sort_unstable();
                states.dedup();
                let classes = states.iter().filter_map(|state| self.blind_classes.get(state));
                candidates.extend(classes.flatten());
            }
            _ => candidates.extend(self.blind_classes.values().flatten()),
        }
        candidates.retain(|&class| self.is_available(class, from));
        // The order of a hash map must not decide which explanation is printed.
        candidates.sort_unstable();
        candidates
    }

    fn is_available(&self, class: usize, from: &Configuration) -> bool {
        let used = from.used.iter().find(|(used, _)| *used as usize == class);
        used.map_or(0, |(_, count)| *count as usize) < self.classes[class].entries.len()
    }

    /// Whether `state` may be seen: by a pending operation of `wanting`, or by one after further
    /// unknown operations. May say yes too often, never no wrongly.
    fn leads_on(&self, state: State, wanting: Slots, from: &Configuration) -> bool {
        let needs = || bits(wanting).map(|slot| self.slots[slot].1.need);
        if needs().any(|need| need.accepts(state, &self.values)) {
            return true;
        }
        let chain: Vec<Step> = self
            .chain_classes
            .iter()
            .filter(|&&class| self.is_available(class, from))
            .map(|&class| self.classes[class].step)
            .collect();
        let values = &self.values;
        let only = |test: &dyn Fn(&Step) -> bool| chain.iter().all(test);
        if !chain.iter().any(|step| step.fires_on(state, values)) {
            false
        } else if only(&|step| matches!(step, Step::Incr(by) if *by > 0)) {
            needs().any(|need| climbs(state, need, values, |from, to| from < to))
        } else if only(&|step| matches!(step, Step::Incr(by) if *by < 0)) {
            needs().any(|need| climbs(state, need, values, |from, to| from > to))
        } else if only(&|step| matches!(step, Step::Append(_))) {
            needs().any(|need| grows(state, need, values))
        } else {
            true
        }
    }

    /// Places the pending operation of `bit`, if the state fits it.
    fn place(&mut self, from: &Configuration, bit: Slots) -> Option<Configuration> {
        let (entry, seen) = self.slots[bit.trailing_zeros() as usize];
        if !seen.need.accepts(from.state, &self.values) {
            return None;
        }
        let mut after = from.clone();
        after.state = seen.apply(from.state, &mut self.values);
        after.placed |= bit;
        after.free &= !bit;
        if entry == NO_ENTRY {
            after.kept = Some(from.state);
            return Some(after);
        }
        if seen.is_blind() {
            after.free |= self.pending & self.blind & !after.placed;
        }
        self.note(&mut after, entry, false);
        if after.state != from.state {
            self.place_pure(&mut after, self.pure);
        }
        Some(after)
    }

    /// Places the choice of what a loss leaves, if `bit` is its slot, so that it leaves what a pending operation
    /// has tried.
    fn attempts(&mut self, from: &Configuration, bit: Slots) -> Vec<Configuration> {
        if self.slots[bit.trailing_zeros() as usize].0 != NO_ENTRY {
            return Vec::new();
        }
        let mut attempts = Vec::new();
        for slot in bits(self.pending & !from.placed & !bit & !self.pure) {
            let state = self.slots[slot].1.step.apply_unseen(from.state, &mut self.values);
            let Some(state) = state else { continue };
            let mut after = from.clone();
            after.kept = Some(state);
            after.placed |= bit;
            // It takes effect later.
            after.free &= !(bit | 1 << slot);
            attempts.push(after);
        }
        attempts
    }

    /// Places those pure pending operations of `mask` that the state fits.
    fn place_pure(&mut self, configuration: &mut Configuration, mask: Slots) {
        if configuration.state == State::WILD {
            return;
        }
        for slot in bits(self.pending & mask & !configuration.placed) {
            let (entry, seen) = self.slots[slot];
            if seen.need.accepts(configuration.state, &self.values) {
                configuration.placed |= 1 << slot;
                self.note(configuration, entry, false);
            }
        }
    }

    fn note(&mut self, configuration: &mut Configuration, entry: u32, hidden: bool) {
        let parent = configuration.trace;
        configuration.trace = self.trace.len() as u32;
        self.trace.push(Link { parent, placed: Placed { entry, hidden } });
    }

    /// Adds a configuration unless another dominates it, and accounts for the work.
    fn keep(&mut self, to: &mut Antichain, configuration: Configuration) -> Result<bool, Stop> {
        let (kept, compared) = to.insert(configuration, self.pure);
        if to.len > LIVE_MAX {
            let reason = format!("more than {LIVE_MAX} configurations are possible at once");
            return Err(Stop::Undecided(reason));
        }
        self.spent += 1 + compared as u64 / 8;
        // Traces and values are memory: 64 bytes of either cost as much as a configuration.
        let memory = (self.trace.len() as u64 * 12 + self.values.bytes) / 64;
        if self.spent + memory > self.budget {
            let reason = format!("the search exceeded its budget of {} steps", self.budget);
            return Err(Stop::Undecided(reason));
        }
        Ok(kept)
    }

    fn failure(&self, entry: u32, before: &[Configuration]) -> Failure {
        let mut states: Vec<State> = before.iter().map(|c| c.state).collect();
        states.sort_unstable();
        states.dedup();
        let mut prefix = Vec::new();
        // The configuration that placed the most is the longest linearization.
        let longest = before.iter().max_by_key(|c| c.placed.count_ones());
        let mut at = longest.map_or(TRACE_ROOT, |c| c.trace);
        while at != TRACE_ROOT {
            let link = &self.trace[at as usize];
            prefix.push(link.placed);
            at = link.parent;
        }
        prefix.reverse();
        let need = self.slots[usize::from(self.slot_of[entry as usize])].1.need;
        Failure {
            entry: entry as usize,
            need: need.describe(&self.values),
            states: states.into_iter().map(|state| self.values.describe(state)).collect(),
            prefix,
        }
    }
}

/// Whether adding numbers of one sign can lead from `state` to what `need` wants.
fn climbs(state: State, need: Need, values: &Values, towards: fn(i64, i64) -> bool) -> bool {
    let Some(from) = values.number_of(state) else { return false };
    match need {
        Need::Exactly(wanted) => {
            wanted != State::ABSENT && values.number_of(wanted).is_some_and(|to| towards(from, to))
        }
        Need::Number(to) => towards(from, to),
        _ => true,
    }
}

/// Whether appending can lead from `state` to what `need` wants.
fn grows(state: State, need: Need, values: &Values) -> bool {
    let from = values.bytes_of(state);
    match need {
        Need::Exactly(wanted) => {
            wanted != State::ABSENT && values.bytes_of(wanted).starts_with(from)
        }
        Need::Length(length) => from.len() as u64 <= length,
        _ => true,
    }
}

/// Counts one more use of `class` and answers how many there were.
fn take_one(used: &mut Vec<(u32, u32)>, class: u32) -> u32 {
    match used.binary_search_by_key(&class, |(class, _)| *class) {
        Ok(index) => {
            used[index].1 += 1;
            used[index].1 - 1
        }
        Err(index) => {
            used.insert(index, (class, 1));
            0
        }
    }
}

fn set_bit(slots: &mut Slots, bit: Slots, on: bool) {
    *slots = if on { *slots | bit } else { *slots & !bit };
}

/// The numbers of the set bits, ascending.
fn bits(mut slots: Slots) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = slots.trailing_zeros() as usize;
        (slots != 0).then(|| {
            slots &= slots - 1;
            slot
        })
    })
}
