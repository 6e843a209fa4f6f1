//! What clients of a transactional keyspace draw: their intents, one by one.

use quorate_check::Action;
use quorate_machine::Rng;
use quorate_meerkat::Isolation;
use quorate_workloads::Source as _;

use super::{ACCOUNTS, PURSES, TWEETS, Transactions, YCSB_KEYS};
use crate::intent::Intent;
use crate::lapses::Lapses;
use crate::moves::Moves;
use crate::operations;
use crate::options::Workload;
use crate::parts;
use crate::steps::{Form, Step};

/// Appends after which clients go on to fresh lists: a check of lists reads them whole.
const LIST_LIFE: u64 = 400;
const COUNTERS: u64 = 2;

impl Transactions {
    /// The next intent of a client, which may be part of a guest. Each client has a workload of its
    /// own that it prefers.
    pub(crate) fn draw(&mut self, process: u64, guest: bool, rng: &mut Rng) -> Intent {
        self.unique += 1;
        if let Some(intent) = self.draw_lapse(process, guest, rng) {
            return intent;
        }
        match self.workload {
            Workload::Retwis => return self.draw_generated(true, rng),
            Workload::YcsbT => return self.draw_generated(false, rng),
            Workload::Mix if self.churn && rng.chance(1, 3) => {
                let reads = self.isolation == Isolation::Strict;
                return operations::draw_churn(rng, self.unique, reads);
            }
            Workload::Mix => {}
        }
        let workload = if rng.chance(1, 2) { process % 8 } else { rng.below(8) };
        match workload {
            0 | 1 => Intent::Steps {
                steps: self.draw_list_steps(rng),
                form: Form::alone(rng.chance(1, 2)),
            },
            2 => Intent::Steps {
                steps: self.draw_register_steps(rng),
                form: Form::alone(rng.chance(1, 2)),
            },
            3 => self.draw_purse(rng),
            4 => draw_account(Form::Block, rng),
            5 if rng.chance(1, 2) => self.draw_pair(rng),
            5 => self.draw_count(rng),
            6 => self.draw_generated(true, rng),
            _ => self.draw_generated(false, rng),
        }
    }

    /// A command on a collection, now and then. Reads may be outdated if the keyspace is only
    /// serializable.
    pub(crate) fn draw_collection(&mut self) -> Option<Intent> {
        let strict = self.isolation == Isolation::Strict;
        let (types, unique) = (self.types.as_mut()?, &mut self.unique);
        if !types.rng.chance(1, 4) {
            return types.draw(strict, true);
        }
        *unique += 1;
        if types.rng.chance(1, 4) {
            return Some(Intent::Moves(Moves::draw(*unique, &mut types.rng)));
        }
        let script = Form::Script { names_keys: types.rng.chance(1, 2) };
        if types.rng.chance(1, 8) {
            return Some(draw_account(script, &mut types.rng));
        }
        let steps = parts::draw(*unique, &mut types.rng).into_iter().map(Step::Part);
        let steps: Vec<Step> = steps.collect();
        let as_script = types.rng.chance(1, 2) && steps.iter().all(Step::may_be_in_script);
        let form = if as_script { script } else { Form::alone(types.rng.chance(1, 2)) };
        Some(Intent::Steps { steps, form })
    }

    /// An intent with keys that expire, now and then, if the run has any.
    fn draw_lapse(&mut self, process: u64, guest: bool, rng: &mut Rng) -> Option<Intent> {
        let lapses = self.lapses.as_mut().filter(|_| self.workload == Workload::Mix)?;
        // Reads may be outdated if the keyspace is only serializable.
        let recent = self.isolation == Isolation::Strict;
        match rng.below(6) {
            // The owner of a guest runs a failed transaction again, so a watch may fail there.
            0 if recent && !guest => Some(lapses.draw_own(process, self.unique, rng)),
            1 => Some(Lapses::draw(rng, self.unique, recent)),
            _ => None,
        }
    }

    /// A transaction of Retwis or of YCSB-T: sent whole, or in steps as the papers' clients do.
    fn draw_generated(&mut self, retwis: bool, rng: &mut Rng) -> Intent {
        let (generator, name) =
            if retwis { (&mut self.retwis, "tweet") } else { (&mut self.ycsb, "ycsb") };
        let drawn = generator.next();
        let key = |number: &u64| format!("{name}:{number}");
        let reads: Vec<String> = drawn.gets.iter().map(key).collect();
        let writes: Vec<(String, String)> = drawn
            .puts
            .iter()
            .enumerate()
            .map(|(at, put)| (key(&put.key), format!("v{}.{at}", self.unique)))
            .collect();
        if writes.is_empty() {
            let steps = match rng.chance(1, 2) {
                true => vec![Step::GetAll(reads)],
                false => reads.into_iter().map(Step::Get).collect(),
            };
            return Intent::Steps { steps, form: Form::Command };
        }
        if rng.chance(1, 2) {
            return Intent::Update { reads, writes };
        }
        let writes = writes.into_iter().map(|(key, value)| Step::Set(key, value));
        let steps = reads.into_iter().map(Step::Get).chain(writes).collect();
        Intent::Steps { steps, form: Form::Block }
    }

    /// Half of the steps go to one key, so that transactions always conflict.
    fn pick(&self, rng: &mut Rng) -> u64 {
        if rng.chance(1, 2) { 0 } else { rng.below(self.keys) }
    }

    fn draw_list_steps(&mut self, rng: &mut Rng) -> Vec<Step> {
        let age = self.unique / LIST_LIFE;
        let only_reads = rng.chance(1, 5);
        let count = 1 + rng.below(4);
        (0..count)
            .map(|step| {
                let key = format!("list:{age}:{}", self.pick(rng));
                if only_reads || rng.chance(2, 5) {
                    Step::GetList(key)
                } else {
                    Step::Append(key, format!("e{}.{step}", self.unique))
                }
            })
            .collect()
    }

    fn draw_register_steps(&mut self, rng: &mut Rng) -> Vec<Step> {
        let key = |number: u64| format!("reg:{number}");
        let value = |step: u64| format!("v{}.{step}", self.unique);
        match rng.below(12) {
            0 => vec![Step::SetIfAbsent(key(self.pick(rng)), value(0))],
            1 => {
                let first = rng.below(self.keys);
                let keys = [first, (first + 1) % self.keys];
                let pairs = keys.into_iter().enumerate();
                let pairs = pairs.map(|(at, number)| (key(number), value(at as u64)));
                vec![Step::SetAllIfAbsent(pairs.collect())]
            }
            2 if self.ordered => {
                let (name, count) = ("reg".to_owned(), self.keys);
                let limit = 1 + rng.below(count + 1) as usize;
                vec![Step::Range { name, count, limit }]
            }
            2 => vec![Step::GetAll((0..self.keys).map(key).collect())],
            // Blind writes.
            3 => {
                (0..1 + rng.below(3)).map(|at| Step::Set(key(self.pick(rng)), value(at))).collect()
            }
            _ => (0..1 + rng.below(4))
                .map(|at| match (key(self.pick(rng)), rng.below(10)) {
                    (key, 0..=3) => Step::Get(key),
                    (key, 4..=6) => Step::Set(key, value(at)),
                    (key, 7..=8) => Step::GetSet(key, value(at)),
                    (key, _) => Step::Del(key),
                })
                .collect(),
        }
    }

    fn draw_purse(&mut self, rng: &mut Rng) -> Intent {
        let name = |purse: u64| format!("purse:{purse}");
        if rng.chance(1, 4) {
            let steps = vec![Step::GetAll((0..PURSES as u64).map(name).collect())];
            return Intent::Steps { steps, form: Form::Command };
        }
        let from = rng.below(PURSES as u64);
        let to = (from + 1 + rng.below(PURSES as u64 - 1)) % PURSES as u64;
        let amount = 1 + rng.below(100) as i64;
        Intent::Transfer { keys: [name(from), name(to)], amount, unique: self.unique }
    }

    fn draw_pair(&mut self, rng: &mut Rng) -> Intent {
        match rng.below(8) {
            0..=2 => Intent::Pair(format!("p{}", self.unique)),
            3 => Intent::Unpair,
            4 => Intent::Swap,
            _ => Intent::Look,
        }
    }

    /// Reads of counters may be outdated if the keyspace is only serializable; increments may not.
    fn draw_count(&mut self, rng: &mut Rng) -> Intent {
        let key = format!("count:{}", rng.below(COUNTERS));
        let reads = self.isolation == Isolation::Strict && rng.chance(1, 3);
        let action = if reads { Action::Get } else { Action::Incr(1) };
        Intent::Single { key, action }
    }

    /// The intents that must succeed at the end: one for each `round`, none beyond the last.
    pub(crate) fn closing(&mut self, round: usize) -> Option<Intent> {
        self.unique += 1;
        let unique = self.unique;
        let numbers = 0..self.keys;
        let all = |name: &str, count: u64| {
            Step::GetAll((0..count).map(|number| format!("{name}:{number}")).collect())
        };
        let steps = match round {
            0 => {
                let age = unique / LIST_LIFE;
                let key = |number| format!("list:{age}:{number}");
                let append = |number| Step::Append(key(number), format!("e{unique}.{number}"));
                let appends = numbers.clone().map(append);
                appends.chain(numbers.clone().map(|number| Step::GetList(key(number)))).collect()
            }
            1 => vec![all("reg", self.keys), Step::Set("reg:0".into(), format!("v{unique}"))],
            2 => vec![all("purse", PURSES as u64)],
            3 => vec![all("account", ACCOUNTS as u64)],
            4 => vec![all("tweet", TWEETS), all("ycsb", YCSB_KEYS)],
            5 | 6 => {
                let key = format!("count:{}", round - 5);
                return Some(Intent::Single { key, action: Action::Incr(1) });
            }
            7 => return Some(Intent::Look),
            8 if self.types.is_some() => {
                return Some(Intent::Steps {
                    steps: parts::closing(unique).into_iter().map(Step::Part).collect(),
                    form: Form::Block,
                });
            }
            _ => return None,
        };
        Some(Intent::Steps { steps, form: Form::Block })
    }
}

/// A transfer between two accounts, or a read of all.
fn draw_account(form: Form, rng: &mut Rng) -> Intent {
    let name = |account: u64| format!("account:{account}");
    let count = ACCOUNTS as u64;
    let steps = if rng.chance(1, 3) {
        vec![Step::GetAll((0..count).map(name).collect())]
    } else {
        let (from, amount) = (rng.below(count), 1 + rng.below(100) as i64);
        let to = (from + 1 + rng.below(count - 1)) % count;
        let (mut taken, mut given) = (Step::Add(name(from), -amount), Step::Add(name(to), amount));
        if rng.chance(1, 2) {
            std::mem::swap(&mut taken, &mut given);
        }
        vec![taken, given]
    };
    Intent::Steps { steps, form }
}
