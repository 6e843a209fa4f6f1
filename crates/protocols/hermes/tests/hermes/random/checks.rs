//! What must hold while a random run goes on, and when it has ended.

use quorate_check::{Action, Answer, Bytes, Header, History, Initial, Operation, Outcome as Seen};
use quorate_hermes::State;
use quorate_machine::{Access, Command as _, Outcome, Record, Table};
use quorate_rifl::Found;

use super::{Asked, Run};
use crate::op::{Op, Reply, Verb};

impl Run {
    /// H0 and agreement: one timestamp stands for one content.
    pub(super) fn check_agreement(&mut self) {
        for (node, host) in &mut self.cluster.hosts {
            let table = host.machine_mut().table_mut();
            for key in 0..self.plan.keys {
                let key = format!("k{key}").into_bytes();
                let Some(handle) = table.find(&key) else { continue };
                let record = table.lock(handle);
                let timestamp = record.meta().timestamp;
                let content = record.content().map(|content| content.bytes.to_vec());
                let known = self.minted.entry((key, timestamp)).or_insert_with(|| content.clone());
                assert_eq!(*known, content, "node {node}, {timestamp:?}");
            }
        }
    }

    /// After healing every op of a node that lived has an answer, and all replicas agree.
    pub(super) fn check_end(&mut self) {
        for (tag, asked) in &self.asked {
            let host = &self.cluster.hosts[&asked.node];
            if host.up && host.incarnation == asked.incarnation {
                let (op, node) = (&asked.op, asked.node);
                assert!(
                    self.answered.contains_key(tag),
                    "op {tag}, {op:?}, of node {node} is open"
                );
            }
        }
        let live = self.cluster.view.live();
        for key in 0..self.plan.keys {
            let key = format!("k{key}");
            let mut seen = Vec::new();
            for node in live {
                // Nobody reads at a shadow, so a lost VAL is not missed there.
                if self.cluster.view.active().contains(node) {
                    assert_eq!(self.cluster.state(node.0, &key), State::Valid, "{key} at {node}");
                }
                seen.push(self.cluster.stored(node.0, &key));
            }
            seen.dedup();
            assert_eq!(seen.len(), 1, "{key} differs");
        }
        self.check_records();
    }

    /// Replicas forget all deleted keys, although messages were lost.
    pub(super) fn check_tombstones(&mut self) {
        for node in self.cluster.view.active() {
            let table = self.cluster.hosts[&node.0].machine().table();
            let left = table.entries().filter(|(_, _, (), content)| content.is_none()).count();
            assert_eq!(left, 0, "tombstones at {node}");
        }
    }

    /// Every replica that serves has a call's record, or has heard that it is acknowledged, or none
    /// has.
    fn check_records(&mut self) {
        let active = self.cluster.view.active();
        for client in self.clients.iter().filter(|client| !client.over) {
            for tried in &client.calls {
                let mut fates = Vec::new();
                for node in active {
                    let tracker = self.cluster.hosts[&node.0].machine().tracker();
                    fates.push(match tracker.find(&tried.permits[0].call) {
                        Ok(Found::Completed(answer)) => Some(Op::decode_reply(answer)),
                        Ok(Found::New) => None,
                        Ok(Found::InProgress(_)) => panic!("all is at rest"),
                        // Acknowledged.
                        Err(_) => continue,
                    });
                }
                let (op, done) = (&tried.op, &tried.done);
                if let (Some((reply, _)), true) = (done, op.access() != Access::Read) {
                    let same = |fate: &Option<Option<Reply>>| *fate == Some(Some(reply.clone()));
                    assert!(fates.iter().all(same), "{op:?} heard {reply:?}: {fates:?}");
                }
                fates.dedup();
                assert!(fates.len() <= 1, "{op:?} heard {done:?}: {fates:?}");
            }
        }
    }

    pub(super) fn history(&self) -> History {
        let mut operations = Vec::new();
        for (tag, asked) in &self.asked {
            let Asked { op, invoke, node, .. } = asked;
            let outcome = match self.answered.get(tag) {
                None | Some((Outcome::Unknown, _)) => Seen::Unknown,
                Some((Outcome::Refused(_), at)) => Seen::Refused { at: *at },
                Some((Outcome::Done(reply), at)) => Seen::Done { at: *at, answer: answer(reply) },
            };
            let operation = |action, outcome| Operation {
                process: u64::from(*node),
                key: Bytes(op.key.clone()),
                action,
                invoke: *invoke,
                outcome,
            };
            if let Verb::Set(_, Some(_)) = op.verb {
                // A value that expires is deleted by nobody, at some time: an unknown delete.
                operations.push(operation(Action::Del, Seen::Unknown));
            }
            if let Some(action) = action(&op.verb) {
                operations.push(operation(action, outcome));
            }
        }
        for tried in self.clients.iter().flat_map(|client| &client.calls) {
            let Some(action) = action(&tried.op.verb) else {
                // The delete of a wipe, which answers nothing.
                operations.push(Operation {
                    process: 0,
                    key: Bytes(tried.op.key.clone()),
                    action: Action::Del,
                    invoke: tried.invoke,
                    outcome: Seen::Unknown,
                });
                continue;
            };
            let refused = |tag: &u64| match self.answered.get(tag) {
                Some((Outcome::Refused(_), at)) => Some(*at),
                _ => None,
            };
            let outcome = match &tried.done {
                Some((reply, at)) => Seen::Done { at: *at, answer: answer(reply) },
                // Each try says that it did nothing: nothing was done.
                None => tried
                    .tags
                    .iter()
                    .map(refused)
                    .collect::<Option<Vec<u64>>>()
                    .and_then(|ends| ends.into_iter().max())
                    .map_or(Seen::Unknown, |at| Seen::Refused { at }),
            };
            let (key, invoke) = (Bytes(tried.op.key.clone()), tried.invoke);
            operations.push(Operation { process: 0, key, action, invoke, outcome });
        }
        History { header: Header { initial: Initial::Absent, note: String::new() }, operations }
    }

    pub(super) fn check_counters(&mut self) {
        for key in 0..self.plan.keys {
            let key = format!("k{key}");
            let (mut done, mut unknown) = (0, 0);
            for (tag, Asked { op, .. }) in &self.asked {
                if op.verb == Verb::Incr && op.key == key.as_bytes() {
                    match self.answered.get(tag) {
                        Some((Outcome::Done(_), _)) => done += 1,
                        Some((Outcome::Refused(_), _)) => {}
                        Some((Outcome::Unknown, _)) | None => unknown += 1,
                    }
                }
            }
            for tried in self.clients.iter().flat_map(|client| &client.calls) {
                if tried.op.verb != Verb::Incr || tried.op.key != key.as_bytes() {
                    continue;
                }
                let refused =
                    |tag: &u64| matches!(self.answered.get(tag), Some((Outcome::Refused(_), _)));
                if tried.done.is_some() {
                    done += 1;
                } else if !tried.tags.iter().all(refused) {
                    unknown += 1;
                }
            }
            let node = self.cluster.view.active().first().expect("a majority lives").0;
            let total: u64 =
                self.cluster.stored(node, &key).map_or(0, |text| text.parse().expect("a number"));
            assert!(done <= total && total <= done + unknown, "{done} <= {total} <= +{unknown}");
        }
    }
}

fn action(verb: &Verb) -> Option<Action> {
    Some(match verb {
        Verb::Get => Action::Get,
        Verb::Set(_, Some(0)) => return None,
        Verb::Set(value, _) => Action::Set(Bytes(value.clone())),
        Verb::Incr => Action::Incr(1),
        Verb::Append(tail) => Action::Append(Bytes(tail.clone())),
        Verb::Del => Action::Del,
        Verb::SetNx(value) => Action::SetNx(Bytes(value.clone())),
        Verb::Version
        | Verb::Swap(_)
        | Verb::Expire(_)
        | Verb::Make(_)
        | Verb::Change(_)
        | Verb::Watched(..) => unreachable!("not in the mix"),
    })
}

fn answer(reply: &Reply) -> Answer {
    match reply {
        Reply::Ok => Answer::Ok,
        Reply::Value(value) => Answer::Value(value.clone().map(Bytes)),
        Reply::Int(number) => Answer::Integer(*number),
        Reply::NotANumber => Answer::Error("not a number".to_owned()),
        Reply::Version(_) => unreachable!("not in the mix"),
    }
}
