//! Which node a request goes to, in keyspaces whose keys move to where they are used.
//!
//! A request goes where its first key lives: the first that it may change, or else the first. Keys of
//! one *unit*, a hash tag or else a whole key, live together. Where a unit is used that nothing is
//! known of, its default owner serves it. The client computes it as nodes do, from the nodes' ids, so
//! all clients agree on it without asking anybody; who is next when that node is down, too.
//!
//! A unit may be elsewhere: it is pinned, or clients use it there that don't route. Therefore the
//! client asks now and then (`PLACEMENT GET`), in front of a request that it sends anyhow: of a unit
//! with the [`HINT_USES`]th request for it, and again with the first after [`HINT_AGE`]. Of the answer
//! it keeps a *hint*. A wrong one costs a move, or the node that was asked forwards the request.
//!
//! The answer tells where the unit was *before* the request that comes behind it. Two clients that
//! know different nodes learn of each other's; chance in the age of hints keeps them from changing
//! places for ever.
//!
//! With each connection the client asks for the node's id and whether keys move at all (`INFO`, in one
//! go with the greeting). If they don't, requests go round the nodes as if there were none of this.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_machine::mutant;
use quorate_types::placement::{rank, shard_of};
use quorate_types::{NodeId, unit_of};
use tokio::time::Instant;

use crate::limits::{HINT_AGE, HINT_USES, HINTS_MAX};
use crate::reply::{Reply, ServerError};
use crate::retry::chance;

/// What a client asks each node first.
pub(crate) const INTRODUCTION: &[&[u8]] = &[b"INFO", b"quorate", b"placement"];

/// What one client knows of where keys live.
pub(crate) struct Routes(Mutex<Known>);

struct Known {
    /// Whether keys move; `None` until a node has said it.
    moves: Option<bool>,
    /// The id of the node at each address.
    ids: Vec<Option<NodeId>>,
    /// What is known of units: used lately, and before that.
    hints: HashMap<Box<[u8]>, Hint>,
    older: HashMap<Box<[u8]>, Hint>,
}

/// What is known of one unit.
#[derive(Clone, Copy, Default)]
struct Hint {
    /// Where it was.
    node: Option<NodeId>,
    /// Requests for it since the first.
    uses: u32,
    /// When it was asked about last.
    old_at: Option<Instant>,
}

impl Routes {
    /// Routes among so many addresses, unless they are not wanted.
    pub(crate) fn new(addresses: usize, wanted: bool) -> Self {
        Self(Mutex::new(Known {
            // One node is where everything goes.
            moves: (!wanted || addresses < 2).then_some(false),
            ids: vec![None; addresses],
            hints: HashMap::new(),
            older: HashMap::new(),
        }))
    }

    /// Whether requests go where their keys live.
    pub(crate) fn are_in_use(&self) -> bool {
        self.known().moves == Some(true)
    }

    /// The addresses in the order in which they are good for a request with this key; `None` if any is
    /// as good as another.
    pub(crate) fn order(&self, key: Option<&[u8]>) -> Option<Vec<usize>> {
        let known = self.known();
        let key = key.filter(|_| known.moves == Some(true))?;
        let hint = known.hint(unit_of(key)).node.filter(|_| !mutant!("client_hint_unheeded"));
        let shard = shard_of(key);
        let mut order: Vec<usize> = (0..known.ids.len()).collect();
        // Who was never met comes first, once: without all ids there is no default owner.
        order.sort_by_key(|at| known.ids[*at].map(|id| (hint != Some(id), rank(shard, id))));
        Some(order)
    }

    /// Takes the answer to [`INTRODUCTION`] of the node at this address; an error says nothing, unless
    /// it is about the command.
    pub(crate) fn meet(&self, at: usize, answer: &Reply) {
        let mut known = self.known();
        let text = match answer {
            Reply::Bulk(text) | Reply::Verbatim { text, .. } => String::from_utf8_lossy(text),
            Reply::Error(error) if !is_about_the_command(error) => return,
            _ => return known.moves = Some(false),
        };
        let id = text.lines().find_map(|line| line.strip_prefix("node:")?.trim().parse().ok());
        known.ids[at] = id.map(NodeId);
        known.moves = Some(id.is_some() && text.contains("# Placement"));
    }

    /// Whether it is to be heard at all.
    pub(crate) fn wants_to_meet(&self) -> bool {
        self.known().moves != Some(false)
    }

    /// Whether a request with this key shall ask where its unit lives.
    pub(crate) fn asks(&self, key: &[u8], now: Instant) -> bool {
        let mut known = self.known();
        if known.moves != Some(true) {
            return false;
        }
        let hint = known.used(unit_of(key));
        hint.uses = hint.uses.saturating_add(1);
        let is_due = match hint.old_at {
            Some(old_at) => now >= old_at && !mutant!("client_hints_stay"),
            None => hint.uses >= HINT_USES,
        };
        if is_due {
            // Whatever the answer, the next question is for later.
            let age = HINT_AGE.as_millis() as u64;
            let age = age / 2 + chance() % (age / 2);
            hint.old_at = Some(now + Duration::from_millis(age));
        }
        is_due
    }

    /// Takes the answer about the unit of a key.
    pub(crate) fn learn(&self, key: &[u8], answer: &Reply) {
        let mut known = self.known();
        match answer {
            Reply::Error(error) if is_about_the_command(error) => known.moves = Some(false),
            Reply::Error(_) => {}
            answer => {
                let id = |name: &str| match answer.field(name) {
                    Some(Reply::Integer(id)) => u16::try_from(*id).ok().map(NodeId),
                    _ => None,
                };
                // Of a node without an address here the default owner will do.
                let is_met = |node: &NodeId| known.ids.contains(&Some(*node));
                let node = id("pinned").or_else(|| id("owner")).filter(is_met);
                known.used(unit_of(key)).node = node;
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // No code that holds the lock leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn hint(&self, unit: &[u8]) -> Hint {
        self.hints.get(unit).or_else(|| self.older.get(unit)).copied().unwrap_or_default()
    }

    /// The hint of a unit that is in use. Units that are not are forgotten, when there are too many.
    fn used(&mut self, unit: &[u8]) -> &mut Hint {
        if !self.hints.contains_key(unit) {
            if self.hints.len() >= HINTS_MAX / 2 && !mutant!("client_hints_unbounded") {
                self.older = std::mem::take(&mut self.hints);
            }
            let hint = self.older.remove(unit).unwrap_or_default();
            self.hints.insert(unit.into(), hint);
        }
        self.hints.get_mut(unit).expect("it is there")
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.hints.len() + self.older.len()
    }
}

/// Whether no node of this keyspace answers such a command.
fn is_about_the_command(error: &ServerError) -> bool {
    matches!(&*error.code, "ERR" | "NOPERM")
}

/// The key that says where a command goes, if it names one.
pub(crate) fn key_of<'a>(words: &[&'a [u8]]) -> Option<&'a [u8]> {
    let name = words.first()?.to_ascii_uppercase();
    let number = |at: usize| std::str::from_utf8(words.get(at)?).ok()?.parse::<usize>().ok();
    let at = match &*name {
        b"EVAL" | b"EVALSHA" | b"EVAL_RO" | b"EVALSHA_RO" | b"FCALL" | b"FCALL_RO" => {
            (number(2)? > 0).then_some(3)?
        }
        b"BITOP" | b"OBJECT" | b"XGROUP" | b"XINFO" | b"MEMORY" | b"PLACEMENT" | b"LMPOP"
        | b"ZMPOP" | b"SINTERCARD" | b"ZUNION" | b"ZINTER" | b"ZDIFF" | b"ZINTERCARD" => 2,
        b"BLMPOP" | b"BZMPOP" => 3,
        b"XREAD" | b"XREADGROUP" => {
            1 + words.iter().position(|word| word.eq_ignore_ascii_case(b"STREAMS"))?
        }
        b"ACL" | b"CLIENT" | b"CLUSTER" | b"COMMAND" | b"CONFIG" | b"DEBUG" | b"ECHO"
        | b"FUNCTION" | b"INFO" | b"KEYRANGE" | b"KEYS" | b"LATENCY" | b"LOLWUT" | b"PING"
        | b"PUBLISH" | b"PUBSUB" | b"SCAN" | b"SCRIPT" | b"SESSION" | b"SLOWLOG" | b"SPUBLISH"
        | b"WAIT" | b"WAITAOF" => return None,
        _ => 1,
    };
    words.get(at).copied()
}

#[cfg(test)]
mod tests {
    use quorate_types::NodeSet;
    use quorate_types::placement::group;

    use super::*;

    fn told(owner: i64, pinned: Reply) -> Reply {
        let pair = |name: &str, value| (Reply::Bulk(name.into()), value);
        Reply::Map(vec![pair("owner", Reply::Integer(owner)), pair("pinned", pinned)])
    }

    fn introduction(id: u16) -> Reply {
        Reply::Bulk(format!("# Quorate\r\nnode:{id}\r\n\r\n# Placement\r\n").into_bytes())
    }

    fn error(line: &str) -> Reply {
        Reply::Error(ServerError::parse(line.as_bytes()))
    }

    /// Routes among addresses of nodes with these ids.
    fn routes(ids: &[u16]) -> Routes {
        let routes = Routes::new(ids.len(), true);
        ids.iter().enumerate().for_each(|(at, id)| routes.meet(at, &introduction(*id)));
        routes
    }

    fn use_often(routes: &Routes, key: &[u8], now: Instant) -> u32 {
        (1..100).find(|_| routes.asks(key, now)).expect("it asks")
    }

    #[tokio::test(start_paused = true)]
    async fn a_unit_goes_to_its_default_owner_and_then_to_the_next() {
        let ids = [4, 2, 6, 1, 5, 3];
        let routes = routes(&ids);
        for number in 0..100 {
            let key = format!("{{user{number}}}cart");
            let order = routes.order(Some(key.as_bytes())).expect("keys move");
            let order: Vec<NodeId> = order.into_iter().map(|at| NodeId(ids[at])).collect();
            let all: NodeSet = ids.into_iter().map(NodeId).collect();
            assert_eq!(order, group(shard_of(key.as_bytes()), all, ids.len()));
        }
        assert_eq!(routes.order(None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_were_never_met_come_first() {
        let routes = Routes::new(3, true);
        assert_eq!(routes.order(Some(b"k")), None, "nobody has said yet that keys move");
        routes.meet(1, &introduction(2));
        assert_eq!(routes.order(Some(b"k")), Some(vec![0, 2, 1]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_is_learnt_after_some_uses_and_anew_when_it_is_old() {
        let (routes, now) = (routes(&[1, 2, 3]), Instant::now());
        let first = |routes: &Routes| routes.order(Some(b"{u}1")).expect("keys move")[0];
        let default = first(&routes);
        let (other, id) = ((default + 1) % 3, (default + 1) % 3 + 1);
        assert_eq!(use_often(&routes, b"{u}1", now), HINT_USES);
        routes.learn(b"{u}1", &told(id as i64, Reply::Null));
        assert_eq!(first(&routes), other);
        assert!((0..1000).all(|_| !routes.asks(b"{u}2", now + HINT_AGE / 3)));
        assert!(routes.asks(b"{u}2", now + HINT_AGE));
        assert!(!routes.asks(b"{u}2", now + HINT_AGE), "once is enough");
        routes.learn(b"{u}2", &error("TRYAGAIN busy"));
        assert_eq!(first(&routes), other, "that says nothing");
        routes.learn(b"{u}2", &told(id as i64, Reply::Integer(9)));
        assert_eq!(first(&routes), default, "the client knows no address of the pin's node");
        routes.learn(b"{u}2", &told(default as i64 + 1, Reply::Integer(id as i64)));
        assert_eq!(first(&routes), other, "it is pinned there");
    }

    #[tokio::test(start_paused = true)]
    async fn hints_are_bounded_and_those_in_use_stay() {
        let (routes, now) = (routes(&[1, 2, 3]), Instant::now());
        use_often(&routes, b"hot", now);
        for number in 0..3 * HINTS_MAX {
            routes.asks(format!("k{number}").as_bytes(), now);
            assert!(!routes.asks(b"hot", now), "it is known");
        }
        let len = routes.known().len();
        assert!((HINTS_MAX / 2..=HINTS_MAX + 1).contains(&len), "{len}");
    }

    #[tokio::test(start_paused = true)]
    async fn where_keys_do_not_move_nothing_is_asked() {
        let redis = Reply::Bulk(Vec::new());
        let fixed = Reply::Bulk(b"# Quorate\r\nnode:1\r\n".to_vec());
        for answer in [error("ERR syntax error"), error("NOPERM no"), redis, fixed] {
            let routes = Routes::new(3, true);
            routes.meet(0, &answer);
            assert!((0..100).all(|_| !routes.asks(b"k", Instant::now())), "{answer:?}");
            assert!(!routes.are_in_use() && !routes.wants_to_meet());
        }
        // Keys of another keyspace do.
        let routes = routes(&[1, 2, 3]);
        assert_eq!(use_often(&routes, b"k", Instant::now()), HINT_USES);
        routes.learn(b"k", &error("ERR keys of this keyspace do not move"));
        assert!(!routes.are_in_use());
        let routes = Routes::new(3, true);
        routes.meet(0, &error("NOAUTH authentication required"));
        assert!(routes.wants_to_meet(), "that says nothing");
        assert!(
            [(1, true), (3, false)].iter().all(|(n, on)| !Routes::new(*n, *on).wants_to_meet())
        );
    }

    #[test]
    fn commands_name_their_keys_in_several_places() {
        for (command, key) in [
            ("GET k", Some("k")),
            ("eval s 2 k l", Some("k")),
            ("EVAL s 0 k", None),
            ("BITOP AND k l", Some("k")),
            ("XREADGROUP GROUP g c COUNT 1 streams k >", Some("k")),
            ("ZUNION 1 k", Some("k")),
            ("BLMPOP 1 1 k LEFT", Some("k")),
            ("PING hello", None),
            ("DBSIZE", None),
            ("", None),
        ] {
            let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            let words = if command.is_empty() { &[] } else { &words[..] };
            assert_eq!(key_of(words), key.map(str::as_bytes), "{command}");
        }
    }
}
