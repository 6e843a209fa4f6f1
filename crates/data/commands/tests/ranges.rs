//! Ranges of the ordinary map, which engines with ranges are compared with.

use std::collections::BTreeMap;

use quorate_commands::{MapWorkspace, OwnedCall, Reply};
use quorate_machine::{Change, Command, Rng, Unordered, ValueKind, Verdict, Workspace};
use quorate_types::{Timestamp, UnixMillis, WriterId};

const NOW: UnixMillis = UnixMillis(1_000);

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A key, its new value or none, and when that expires.
type KeyChange = (Vec<u8>, Option<Vec<u8>>, Option<UnixMillis>);

/// Changes some keys and then reads a range.
#[derive(Clone, Debug)]
struct ChangeAndRange {
    changes: Vec<KeyChange>,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    limit: usize,
    commits: bool,
}

impl Command for ChangeAndRange {
    type Owned = Self;
    type Reply = Result<Pairs, Unordered>;

    fn visit_keys(&self, visit: &mut dyn FnMut(&[u8])) {
        self.changes.iter().for_each(|(key, ..)| visit(key));
    }

    fn run<W: Workspace>(&self, _: UnixMillis, workspace: &mut W) -> Verdict<Self::Reply> {
        for (key, value, expire_at) in &self.changes {
            let change = match value {
                Some(bytes) => Change::Set {
                    bytes: bytes.into(),
                    kind: ValueKind::String,
                    expire_at: *expire_at,
                },
                None => Change::Delete,
            };
            workspace.write(key, change);
        }
        let mut pairs = Vec::new();
        let seen =
            workspace.range(&self.from, self.to.as_deref(), self.limit, &mut |key, current| {
                let content = current.content.expect("a range has keys with values");
                pairs.push((key.to_vec(), content.bytes.to_vec()));
            });
        let reply = seen.map(|()| pairs);
        if self.commits { Verdict::Commit(reply) } else { Verdict::Abandon(reply) }
    }

    fn updates(&self) -> bool {
        true
    }

    fn into_owned(self) -> Self {
        self
    }
}

fn key(rng: &mut Rng) -> Vec<u8> {
    (0..rng.below(3)).map(|_| b'a' + rng.below(3) as u8).collect()
}

#[test]
fn a_range_shows_values_in_order_with_the_transactions_own_changes() {
    let mut rng = Rng::new(1);
    let mut keys = MapWorkspace::default();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for version in 1..3_000 {
        let change = |rng: &mut Rng| {
            let value = (rng.below(3) > 0).then(|| vec![rng.below(256) as u8]);
            // Some values are past their time at once.
            (key(rng), value, (rng.below(5) == 0).then_some(NOW))
        };
        let txn = ChangeAndRange {
            changes: (0..rng.below(3)).map(|_| change(&mut rng)).collect(),
            from: key(&mut rng),
            to: (rng.below(3) > 0).then(|| key(&mut rng)),
            limit: rng.below(6) as usize,
            commits: rng.below(4) > 0,
        };
        let before = model.clone();
        for (key, value, _) in &txn.changes {
            match value {
                Some(value) => model.insert(key.clone(), value.clone()),
                None => model.remove(key),
            };
        }
        let inside = |key: &Vec<u8>| *key >= txn.from && txn.to.as_ref().is_none_or(|to| key < to);
        let expected: Pairs = model
            .iter()
            .filter(|(key, _)| inside(key))
            .take(txn.limit)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let timestamp = Timestamp::new(version, WriterId(1));
        let (Verdict::Commit(seen) | Verdict::Abandon(seen)) = keys.run(NOW, timestamp, &txn);
        assert_eq!(seen, Ok(expected), "{txn:?}");
        if !txn.commits {
            model = before;
        }
        // What the next transaction reads is past its time.
        for (key, ..) in txn.changes.iter().filter(|(.., expire_at)| expire_at.is_some()) {
            if txn.commits && keys.get(NOW, key).content.is_none() {
                model.remove(key);
            }
        }
    }
}

#[test]
fn keyrange_answers_keys_between_bounds_in_their_order() {
    let mut workspace = MapWorkspace::default();
    let mut version = 0;
    let mut ask = |line: &str| {
        let call = OwnedCall::new(line.split(' ').map(str::as_bytes)).expect("a command");
        version += 1;
        let timestamp = Timestamp::new(version, WriterId(1));
        match workspace.run(NOW, timestamp, &call.call()) {
            Verdict::Commit(Reply::Array(items)) => {
                let text = |item: &Reply<'_>| match item {
                    Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                    other => format!("{other:?}"),
                };
                items.iter().map(text).collect::<Vec<_>>().join(" ")
            }
            Verdict::Commit(Reply::Error(text)) => text.into_owned(),
            other => format!("{other:?}"),
        }
    };
    ask("MSET b 2 a 1 c 3 ba 4");
    ask("SET old 5");
    for (line, answer) in [
        ("KEYRANGE - +", "a b ba c old"),
        ("KEYRANGE [b (c", "b ba"),
        ("KEYRANGE (b [c", "ba c"),
        ("KEYRANGE [b + LIMIT 2", "b ba"),
        ("keyrange - + limit 2 withvalues", "a 1 b 2"),
        ("KEYRANGE - + WITHVALUES LIMIT 1", "a 1"),
        ("KEYRANGE - + LIMIT 0", ""),
        ("KEYRANGE + -", ""),
        ("KEYRANGE [c [a", ""),
        ("KEYRANGE b c", "ERR min or max is not a bound: - or +, or [ or ( and a key"),
        ("KEYRANGE - + LIMIT -1", "ERR LIMIT can't be negative"),
        ("KEYRANGE - + LIMIT x", "ERR value is not an integer or out of range"),
        ("KEYRANGE - + LIMIT", "ERR syntax error"),
        ("KEYRANGE - + COUNT 1", "ERR syntax error"),
    ] {
        assert_eq!(ask(line), answer, "{line}");
    }
}
