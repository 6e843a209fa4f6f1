//! `PLACEMENT`: where a key lives that moves between nodes, and pins.
//!
//! A pin is a record of an internal keyspace that every node keeps; so `PIN` and `UNPIN` are a `SET` and
//! a `DEL` there.

use std::sync::Mutex;

use quorate_commands::{Call, Op, OwnedCall, Reply as Answer, Run, ServerCommand};
use quorate_machine::mutant;
use quorate_types::placement::pin_key;
use quorate_types::{Instant, limits, unit_of};

use crate::backend::Backend;
use crate::connection::{Placing, Reply};
use crate::dispatch::Context;
use crate::encode::{encode, error};
use crate::pending::Failure;
use crate::session::bulk;
use crate::shared::lock;

const FIXED: &str = "ERR keys of this keyspace do not move between nodes; PLACEMENT is for keyspaces whose engine \
                     moves them";

/// How often something happens in a second, between two looks that are a second or more apart.
#[derive(Debug, Default)]
pub(crate) struct Rate(Mutex<Option<Looked>>);

/// A look at a counter.
#[derive(Debug)]
struct Looked {
    at: Instant,
    count: u64,
    rate: u64,
}

impl Rate {
    pub(crate) fn rate(&self, now: Instant, count: u64) -> u64 {
        let mut last = lock(&self.0);
        let last = last.get_or_insert(Looked { at: now, count, rate: 0 });
        let millis = now.since(last.at).as_millis() as u64;
        if millis >= 1000 {
            let rate = count.saturating_sub(last.count) * 1000 / millis;
            *last = Looked { at: now, count, rate };
        }
        last.rate
    }
}

impl<B: Backend> Context<'_, B> {
    /// `PLACEMENT GET key | PIN unit node | UNPIN unit`.
    pub(crate) fn placement(&mut self, call: &Call<'_>) {
        let (spec, database) = (call.spec, self.connection.session.database);
        let protocol = self.connection.session.protocol;
        let unit = unit_of(call.args.get(2));
        let Some((count, pinned)) = self.backend.pins(database, unit) else {
            return self.reply(spec, &Answer::error(FIXED));
        };
        if let Run::Server(ServerCommand::PlacementGet) = spec.run {
            let placing = Placing { spec, protocol, database, unit: unit.into() };
            let number = self.connection.push(Reply::Placement(Box::new(placing)));
            let key = call.args.get(2);
            return self.submit(
                database,
                number,
                0,
                2 * key.len(),
                None,
                Op::Placement(key.into()),
            );
        }
        let key = pin_key(database, unit);
        if key.len() > limits::KEY_BYTES_MAX {
            let text = format!("ERR a unit that is pinned has {} bytes at most", key_room());
            return self.reply(spec, &Answer::Error(text.into()));
        }
        let op = match spec.run {
            Run::Server(ServerCommand::PlacementPin) => {
                let node = match self.node_to_pin_to(call.args.get(3)) {
                    Ok(node) => node.to_string(),
                    Err(text) => return self.reply(spec, &Answer::Error(text.into())),
                };
                let is_full = count >= limits::PLACEMENTS_MAX && pinned.is_none();
                if is_full && !mutant!("resp_pins_unbounded") {
                    let text = format!(
                        "ERR {} units are pinned, which is the limit PLACEMENTS_MAX; PLACEMENT UNPIN \
                         some of them first",
                        limits::PLACEMENTS_MAX
                    );
                    return self.reply(spec, &Answer::Error(text.into()));
                }
                OwnedCall::new([b"set".as_slice(), &key, node.as_bytes()])
            }
            _ => OwnedCall::new([b"del".as_slice(), &key]),
        };
        let op = Op::Call(op.expect("a command of the table"));
        let number = self.connection.push(Reply::Op { spec, protocol, update: true });
        self.connection.updates += 1;
        self.submit(limits::PINS_KEYSPACE, number, 0, 2 * key.len(), None, op);
    }

    /// The node that a client names.
    ///
    /// # Errors
    /// If it is no live member: with those that are.
    fn node_to_pin_to(&self, word: &[u8]) -> Result<u16, String> {
        let members = self.backend.facts().members;
        let named = std::str::from_utf8(word).ok().and_then(|word| word.parse::<u16>().ok());
        let found = members.iter().find(|(node, role, _)| Some(*node) == named && *role != "down");
        if let Some((node, ..)) = found {
            return Ok(*node);
        }
        let nodes =
            members.iter().map(|(node, role, address)| format!("{node} ({role}, {address})"));
        let nodes = nodes.collect::<Vec<_>>().join(", ");
        let word = String::from_utf8_lossy(&word[..word.len().min(20)]).into_owned();
        Err(format!("ERR '{word}' is no live node to pin to; choose one of {nodes}"))
    }

    /// The node has said where a key lives.
    pub(crate) fn finish_placement(
        &mut self,
        number: u64,
        answer: Result<Answer<'static>, Failure>,
    ) {
        let Some(Reply::Placement(placing)) = self.take(number) else { return };
        let Placing { spec, protocol, database, unit } = *placing;
        let answer = match answer {
            Ok(Answer::Array(told)) => Ok(told),
            Ok(_) => Err(FIXED),
            Err(failure) => Err(failure.text()),
        };
        let told = match answer {
            Ok(told) => told,
            Err(text) => {
                self.core.stats.failed(spec, text);
                self.connection.finish(number, |out| error(text, out));
                return;
            }
        };
        let mut told = told.into_iter();
        let owner = told.next().unwrap_or(Answer::Null);
        let moves = told.next().unwrap_or(Answer::Null);
        let members = self.backend.facts().members;
        let address = members.iter().find(|(node, ..)| owner == Answer::Int((*node).into()));
        let address = address.map_or(Answer::Null, |(.., address)| bulk(address.as_bytes()));
        let pinned = self.backend.pins(database, &unit).and_then(|(_, node)| node);
        let pinned = pinned.map_or(Answer::Null, |node| Answer::Int(node.into()));
        let reply = Answer::Map(vec![
            (Answer::text("owner"), owner),
            (Answer::text("address"), address),
            (Answer::text("readers"), Answer::Array(told.collect())),
            (Answer::text("moves"), moves),
            (Answer::text("pinned"), pinned),
        ]);
        self.connection.finish(number, |out| encode(&reply, protocol, out));
    }
}

/// Most bytes of a unit that is pinned.
const fn key_room() -> usize {
    limits::KEY_BYTES_MAX - 1
}
