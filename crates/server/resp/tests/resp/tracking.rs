//! Clients that keep what they read and are told when it changes. Replies are those of a Redis 7.0.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quorate_machine::Rng;
use quorate_resp::{ConnectionId, Invalidation, Settings, Shared};
use quorate_resp_harness::Harness;

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

/// A client of RESP3 that tracks what it reads.
fn tracker(harness: &mut Harness, options: &str) -> ConnectionId {
    let id = harness.connect();
    harness.talk(id, "HELLO 3");
    assert_eq!(harness.talk(id, &format!("CLIENT TRACKING ON {options}")), "+OK\r\n");
    id
}

fn talk(harness: &mut Harness, id: ConnectionId, line: &str) -> String {
    harness.talk(id, line).replace("\r\n", " ")
}

/// What a client is sent without having asked.
fn told(harness: &mut Harness, id: ConnectionId) -> String {
    while harness.complete_one() {}
    String::from_utf8(harness.take(id)).expect("keys are text here").replace("\r\n", " ")
}

fn id_of(harness: &mut Harness, id: ConnectionId) -> String {
    talk(harness, id, "CLIENT ID").trim().trim_start_matches(':').to_owned()
}

#[test]
fn errors_are_worded_as_in_redis() {
    let mut harness = harness();
    let id = harness.connect();
    let mut says = |line: &str, reply: &str| {
        assert_eq!(talk(&mut harness, id, line).trim_end(), reply, "{line}");
    };
    let not_twice = "You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and \
                     then re-enabling it with a different mode.";
    let not_broad = "You can't switch BCAST mode on/off before disabling tracking for this client, and \
                     then re-enabling it with a different mode.";
    says("CLIENT GETREDIR", ":-1");
    says("CLIENT TRACKING", "-ERR wrong number of arguments for 'client|tracking' command");
    says("CLIENT TRACKING maybe", "-ERR syntax error");
    says("CLIENT TRACKING ON REDIRECT", "-ERR syntax error");
    says("CLIENT TRACKING ON REDIRECT x", "-ERR value is not an integer or out of range");
    for id in ["99", "-1", "0"] {
        let text = "-ERR The client ID you want redirect to does not exist";
        says(&format!("CLIENT TRACKING ON REDIRECT {id}"), text);
    }
    says(
        "CLIENT TRACKING ON REDIRECT 1 REDIRECT 1",
        "-ERR A client can only redirect to a single other client",
    );
    says("CLIENT TRACKING ON PREFIX a", "-ERR PREFIX option requires BCAST mode to be enabled");
    says("CLIENT TRACKING ON BCAST OPTIN", "-ERR OPTIN and OPTOUT are not compatible with BCAST");
    says(
        "CLIENT TRACKING ON OPTIN OPTOUT",
        "-ERR You can't specify both OPTIN mode and OPTOUT mode",
    );
    says(
        "CLIENT CACHING YES",
        "-ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
         OPTOUT mode enabled",
    );
    says("CLIENT TRACKING ON OPTIN", "+OK");
    says("CLIENT TRACKING ON OPTOUT", &format!("-ERR {not_twice}"));
    says("CLIENT TRACKING ON BCAST", &format!("-ERR {not_broad}"));
    says(
        "CLIENT CACHING NO",
        "-ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
    );
    says("CLIENT CACHING maybe", "-ERR syntax error");
    says("CLIENT CACHING YES", "+OK");
    says(
        "CLIENT TRACKINGINFO",
        "*6 $5 flags *3 $2 on $5 optin $11 caching-yes $8 redirect :0 $8 prefixes *0",
    );
    says("CLIENT GETREDIR", ":0");
    says("CLIENT TRACKING OFF", "+OK");
    says("CLIENT TRACKINGINFO", "*6 $5 flags *1 $3 off $8 redirect :-1 $8 prefixes *0");
    let overlap = |one, which, other| {
        format!(
            "-ERR Prefix '{one}' overlaps with {which} prefix '{other}'. Prefixes for a single \
             client must not overlap."
        )
    };
    says("CLIENT TRACKING ON BCAST PREFIX ab PREFIX a", &overlap("ab", "another provided", "a"));
    says("CLIENT TRACKING ON BCAST PREFIX ab PREFIX c NOLOOP", "+OK");
    says("CLIENT TRACKING ON BCAST PREFIX abc", &overlap("abc", "an existing", "ab"));
    says(
        "CLIENT TRACKINGINFO",
        "*6 $5 flags *3 $2 on $5 bcast $6 noloop $8 redirect :0 $8 prefixes *2 $2 ab $1 c",
    );
    says("MULTI", "+OK");
    says("CLIENT TRACKING OFF", "+QUEUED");
    says("EXEC", "*1 -ERR CLIENT TRACKING is no part of a transaction; use it before MULTI");
    says("RESET", "+RESET");
    says("CLIENT TRACKINGINFO", "*6 $5 flags *1 $3 off $8 redirect :-1 $8 prefixes *0");
    assert!(harness.backend.prefixes.is_empty() || harness.frontend.has_postponed());
    harness.begin_turn();
    assert!(harness.backend.prefixes.is_empty());
}

#[test]
fn a_key_that_was_read_is_told_of_once() {
    let mut harness = harness();
    let reader = tracker(&mut harness, "");
    let writer = harness.connect();
    assert_eq!(talk(&mut harness, reader, "GET a"), "_ ");
    talk(&mut harness, reader, "MGET a b");
    assert_eq!(talk(&mut harness, writer, "SET a 1"), "+OK ");
    assert_eq!(told(&mut harness, reader), ">2 $10 invalidate *1 $1 a ");
    talk(&mut harness, writer, "SET a 2");
    assert_eq!(told(&mut harness, reader), "", "it was not read again");
    let info = talk(&mut harness, writer, "INFO");
    for line in ["tracking_clients:1", "tracking_total_keys:1", "tracking_total_items:1"] {
        assert!(info.contains(line), "{line}");
    }
    let list = talk(&mut harness, writer, "CLIENT LIST");
    assert!(list.contains("flags=t ") && list.contains("redir=0 ") && list.contains("redir=-1 "));
    // Another keyspace has another key of that name.
    talk(&mut harness, writer, "SELECT 2");
    talk(&mut harness, writer, "SET b 1");
    assert_eq!(told(&mut harness, reader), "");
    talk(&mut harness, reader, "CLIENT TRACKING OFF");
    talk(&mut harness, writer, "SELECT 0");
    talk(&mut harness, writer, "SET b 1");
    assert_eq!(told(&mut harness, reader), "");
    harness.begin_turn();
    assert!(harness.backend.tracked.is_empty());
}

#[test]
fn what_is_told_comes_behind_the_replies_that_are_to_come() {
    let mut harness = harness();
    harness.backend.local_reads = false;
    let reader = tracker(&mut harness, "");
    let writer = harness.connect();
    talk(&mut harness, writer, "SET a 1");
    // The read is under way when its key changes, and answers what was there before.
    harness.feed(reader, b"GET a\r\n");
    harness.frontend.invalidated(Invalidation::Keys {
        keyspace: 0,
        keys: vec![(b"a"[..].into(), None)],
        more: false,
    });
    assert_eq!(harness.take(reader), b"");
    assert_eq!(told(&mut harness, reader), "$1 1 >2 $10 invalidate *1 $1 a ");
    // One's own change, alone and in a block.
    talk(&mut harness, reader, "GET a");
    assert_eq!(talk(&mut harness, reader, "SET a 2"), "+OK >2 $10 invalidate *1 $1 a ");
    talk(&mut harness, reader, "SELECT 1");
    talk(&mut harness, reader, "MULTI");
    talk(&mut harness, reader, "GET a");
    talk(&mut harness, reader, "SET a 3");
    talk(&mut harness, reader, "GET b");
    assert_eq!(talk(&mut harness, reader, "EXEC"), "*3 _ +OK _ >2 $10 invalidate *1 $1 a ");
    talk(&mut harness, reader, "EVAL return{} 1 b");
    talk(&mut harness, writer, "SELECT 1");
    talk(&mut harness, writer, "SET b 1");
    assert_eq!(told(&mut harness, reader), ">2 $10 invalidate *1 $1 b ");
    // Who wants no replies is told all the same.
    talk(&mut harness, reader, "GET b");
    talk(&mut harness, reader, "CLIENT REPLY OFF");
    talk(&mut harness, writer, "SET b 2");
    assert_eq!(told(&mut harness, reader), ">2 $10 invalidate *1 $1 b ");
}

#[test]
fn who_waits_is_told_of_what_others_do() {
    let mut harness = harness();
    let reader = tracker(&mut harness, "");
    let writer = harness.connect();
    for id in [reader, writer] {
        talk(&mut harness, id, "SELECT 1");
    }
    talk(&mut harness, reader, "GET a");
    talk(&mut harness, reader, "LRANGE to 0 -1");
    assert_eq!(talk(&mut harness, reader, "BLMOVE from to LEFT LEFT 0"), "");
    talk(&mut harness, writer, "SET a 1");
    assert_eq!(told(&mut harness, reader), ">2 $10 invalidate *1 $1 a ");
    talk(&mut harness, writer, "RPUSH from x");
    assert_eq!(told(&mut harness, reader), "$1 x ");
    // A stream that it waits to read is told of now, and again behind what it reads of it.
    assert_eq!(talk(&mut harness, reader, "XREAD BLOCK 0 STREAMS s 0"), "");
    harness.frontend.invalidated(Invalidation::Keys {
        keyspace: 1,
        keys: vec![(b"s"[..].into(), None)],
        more: false,
    });
    assert_eq!(told(&mut harness, reader), ">2 $10 invalidate *1 $1 s ");
    talk(&mut harness, writer, "XADD s 1-1 f v");
    assert!(told(&mut harness, reader).ends_with(">2 $10 invalidate *1 $1 s "));
}

#[test]
fn only_what_is_opted_in_or_not_opted_out_is_tracked() {
    let mut harness = harness();
    let (opts_in, opts_out) = (tracker(&mut harness, "OPTIN"), tracker(&mut harness, "OPTOUT"));
    let writer = harness.connect();
    for id in [opts_in, opts_out] {
        talk(&mut harness, id, "GET a");
        talk(
            &mut harness,
            id,
            if id == opts_in { "CLIENT CACHING YES" } else { "CLIENT CACHING NO" },
        );
        talk(&mut harness, id, "GET b");
        talk(&mut harness, id, "GET c");
        talk(
            &mut harness,
            id,
            if id == opts_in { "CLIENT CACHING YES" } else { "CLIENT CACHING NO" },
        );
        talk(&mut harness, id, "MULTI");
        talk(&mut harness, id, "GET d");
        talk(&mut harness, id, "GET d");
        talk(&mut harness, id, "EXEC");
        talk(&mut harness, id, "GET e");
    }
    let heard = |key: &str| {
        talk(&mut harness, writer, &format!("SET {key} 1"));
        [opts_in, opts_out].map(|id| !told(&mut harness, id).is_empty())
    };
    let heard = ["a", "b", "c", "d", "e"].map(heard);
    let (no, yes) = ([false, true], [true, false]);
    assert_eq!(heard, [no, yes, no, yes, no]);
}

#[test]
fn broadcasts_are_of_prefixes_and_one_message_for_each() {
    let mut harness = harness();
    harness.backend.transactional.insert(0);
    let broad = tracker(&mut harness, "BCAST PREFIX a PREFIX b");
    let all = tracker(&mut harness, "BCAST NOLOOP");
    let writer = harness.connect();
    talk(&mut harness, writer, "MSET a1 x a2 x b1 x c x");
    assert_eq!(
        told(&mut harness, broad),
        ">2 $10 invalidate *2 $2 a1 $2 a2 >2 $10 invalidate *1 $2 b1 "
    );
    assert_eq!(told(&mut harness, all), ">2 $10 invalidate *4 $2 a1 $2 a2 $2 b1 $1 c ");
    assert_eq!(talk(&mut harness, all, "SET a1 x"), "+OK ", "its own change");
    assert_eq!(told(&mut harness, broad), ">2 $10 invalidate *1 $2 a1 ");
    let list = talk(&mut harness, writer, "CLIENT LIST");
    assert!(list.contains("flags=tB "));
    // Too much has changed to be listed.
    let keys = Vec::new();
    harness.frontend.invalidated(Invalidation::Keys { keyspace: 0, keys, more: true });
    for id in [broad, all] {
        assert_eq!(told(&mut harness, id), ">2 $10 invalidate _ ");
    }
    harness.frontend.close(all);
    harness.begin_turn();
    assert_eq!(harness.backend.prefixes, [b"a", b"b"]);
    // What comes behind waits until the other lanes know.
    let third = harness.connect();
    harness.feed(third, b"CLIENT TRACKING ON BCAST PREFIX c\r\nGET c\r\n");
    assert_eq!(harness.take(third), b"");
    harness.complete_one();
    assert_eq!(harness.take(third), b"+OK\r\n$1\r\nx\r\n");
    harness.backend.unheard.insert(b"elsewhere".to_vec());
    let reply = talk(&mut harness, writer, "CLIENT TRACKING ON BCAST");
    assert!(reply.starts_with("-ERR this node has no replica of some keys"), "{reply}");
}

#[test]
fn coalesced_broadcasts_are_asked_for_beside_others() {
    let mut harness = harness();
    let plain = tracker(&mut harness, "BCAST PREFIX a");
    let coalesced = tracker(&mut harness, "BCAST PREFIX a COALESCE");
    assert_eq!((harness.backend.prefixes.len(), harness.backend.coalesced.len()), (1, 1));
    let info = talk(&mut harness, coalesced, "CLIENT TRACKINGINFO");
    assert!(info.contains("$5 bcast $8 coalesce "), "{info}");
    let writer = harness.connect();
    talk(&mut harness, writer, "SET a1 x");
    for id in [plain, coalesced] {
        assert_eq!(told(&mut harness, id), ">2 $10 invalidate *1 $2 a1 ");
    }
    for options in ["COALESCE", "BCAST COALESCE NOLOOP", "OPTIN COALESCE"] {
        let reply = talk(&mut harness, writer, &format!("CLIENT TRACKING ON {options}"));
        assert_eq!(reply, "-ERR COALESCE requires BCAST mode to be enabled, without NOLOOP ");
    }
    for (id, options) in [(plain, "BCAST PREFIX b COALESCE"), (coalesced, "BCAST PREFIX b")] {
        let reply = talk(&mut harness, id, &format!("CLIENT TRACKING ON {options}"));
        assert!(reply.starts_with("-ERR You can't switch COALESCE on/off"), "{reply}");
    }
    // Who tracks all keys arms the node by asking for them again.
    let all = tracker(&mut harness, "BCAST COALESCE");
    assert_eq!(talk(&mut harness, all, "CLIENT TRACKING ON BCAST COALESCE"), "+OK ");
    harness.frontend.close(all);
    harness.frontend.close(plain);
    harness.begin_turn();
    assert_eq!((harness.backend.prefixes.len(), harness.backend.coalesced.len()), (0, 1));
    assert!(talk(&mut harness, writer, "INFO").contains("tracking_total_prefixes:1"));
    talk(&mut harness, coalesced, "CLIENT TRACKING OFF");
    harness.begin_turn();
    assert!(harness.backend.coalesced.is_empty());
    assert!(talk(&mut harness, writer, "INFO").contains("tracking_total_prefixes:0"));
}

#[test]
fn ones_own_changes_are_not_told_with_noloop() {
    let mut harness = harness();
    let id = tracker(&mut harness, "NOLOOP");
    let writer = harness.connect();
    talk(&mut harness, id, "GET a");
    assert_eq!(talk(&mut harness, id, "SET a 1"), "+OK ");
    talk(&mut harness, id, "GET a");
    talk(&mut harness, writer, "SET a 2");
    assert_eq!(told(&mut harness, id), ">2 $10 invalidate *1 $1 a ");
}

#[test]
fn another_client_can_be_told() {
    let mut harness = harness();
    let (old, new) = (harness.connect(), harness.connect());
    talk(&mut harness, new, "HELLO 3");
    let writer = harness.connect();
    let ids = [old, new].map(|id| id_of(&mut harness, id));
    talk(&mut harness, old, "SUBSCRIBE __redis__:invalidate");
    let [first, second] =
        [&ids[0], &ids[1]].map(|target| tracker(&mut harness, &format!("REDIRECT {target}")));
    for id in [first, second] {
        talk(&mut harness, id, "GET a");
    }
    talk(&mut harness, writer, "SET a 1");
    assert_eq!(told(&mut harness, old), "*3 $7 message $20 __redis__:invalidate *1 $1 a ");
    assert_eq!(told(&mut harness, new), ">2 $10 invalidate *1 $1 a ");
    // It is told behind the replies to the one that has read.
    harness.backend.local_reads = false;
    harness.feed(second, b"GET a\r\n");
    harness.frontend.invalidated(Invalidation::Everything);
    assert_eq!(harness.take(new), b"");
    assert_eq!(told(&mut harness, second), "$1 1 ");
    assert_eq!(told(&mut harness, new), ">2 $10 invalidate _ ");
    assert_eq!(told(&mut harness, old), "*3 $7 message $20 __redis__:invalidate $-1 ");
    // It is gone.
    harness.frontend.close(new);
    talk(&mut harness, second, "GET a");
    talk(&mut harness, writer, "SET a 2");
    let broken = format!(">2 $21 tracking-redir-broken :{} ", ids[1]);
    assert_eq!(told(&mut harness, second), broken);
    let info = talk(&mut harness, second, "CLIENT TRACKINGINFO");
    assert!(info.contains("broken_redirect"), "{info}");
    assert!(talk(&mut harness, writer, "CLIENT LIST").contains("flags=tR "));
}

#[test]
fn lanes_tell_each_others_clients() {
    let shared = Shared::new(Settings::default(), None);
    let mut lanes = [Harness::new(Arc::clone(&shared)), Harness::new(Arc::clone(&shared))];
    let target = lanes[1].connect();
    talk(&mut lanes[1], target, "HELLO 3");
    let number = id_of(&mut lanes[1], target);
    let reader = tracker(&mut lanes[0], &format!("REDIRECT {number}"));
    talk(&mut lanes[0], reader, "GET a");
    assert_eq!(talk(&mut lanes[0], reader, "SET a 1"), "+OK ");
    assert!(lanes[0].frontend.take_named_others() && lanes[1].frontend.has_arrivals());
    lanes[1].begin_turn();
    assert_eq!(told(&mut lanes[1], target), ">2 $10 invalidate *1 $1 a ");
    // A flush through one lane is told the clients of all.
    let flusher = lanes[1].connect();
    talk(&mut lanes[0], reader, "GET a");
    assert_eq!(talk(&mut lanes[1], flusher, "FLUSHALL"), "+OK ");
    lanes[0].begin_turn();
    lanes[1].begin_turn();
    assert_eq!(told(&mut lanes[1], target), ">2 $10 invalidate _ ");
    assert_eq!(shared.totals().errors, 0);
    assert!(talk(&mut lanes[1], flusher, "INFO").contains("tracking_total_keys:0"));
}

#[test]
fn what_is_tracked_is_bounded() {
    let settings = Settings::default();
    settings.tracked_keys_max.store(3, Relaxed);
    let mut harness = Harness::new(Shared::new(settings, None));
    let reader = tracker(&mut harness, "");
    for number in 0..3 {
        assert_eq!(talk(&mut harness, reader, &format!("GET {number}")), "_ ");
    }
    assert_eq!(talk(&mut harness, reader, "GET 3"), "_ >2 $10 invalidate *1 $1 0 ");
    assert_eq!(talk(&mut harness, reader, "GET 4"), "_ >2 $10 invalidate *1 $1 1 ");
    assert_eq!(harness.backend.tracked.len(), 3);
    assert_eq!(
        talk(&mut harness, reader, "CONFIG SET tracking-table-max-keys 1"),
        "+OK >2 $10 invalidate *1 $1 2 >2 $10 invalidate *1 $1 3 "
    );
    assert_eq!(harness.backend.tracked.len(), 1);
    harness.frontend.close(reader);
    harness.begin_turn();
    assert!(harness.backend.tracked.is_empty() && !harness.frontend.has_postponed());
}

#[test]
fn a_key_without_a_replica_here_is_not_to_be_kept() {
    let mut harness = harness();
    harness.backend.unheard.insert(b"a".to_vec());
    let reader = tracker(&mut harness, "");
    assert_eq!(talk(&mut harness, reader, "GET a"), "_ >2 $10 invalidate *1 $1 a ");
    harness.backend.local_reads = false;
    assert_eq!(talk(&mut harness, reader, "GET a"), "_ >2 $10 invalidate *1 $1 a ");
    talk(&mut harness, reader, "SELECT 1");
    talk(&mut harness, reader, "MULTI");
    talk(&mut harness, reader, "MGET a b");
    assert_eq!(talk(&mut harness, reader, "EXEC"), "*1 *2 _ _ >2 $10 invalidate *1 $1 a ");
}

/// What a client of RESP3 is sent: a value of a key, the end of a write, or what not to rely on.
#[derive(Debug)]
enum Heard {
    Value(Option<String>),
    Done,
    Forget(Option<String>),
}

/// Takes one message from the front of what has come.
fn hear(input: &mut VecDeque<String>) -> Option<Heard> {
    let first = input.pop_front()?;
    Some(match first.as_str() {
        "+OK" => Heard::Done,
        "_" => Heard::Value(None),
        ">2" => {
            input.drain(..2);
            match input.pop_front()?.as_str() {
                "_" => Heard::Forget(None),
                _ => {
                    input.pop_front();
                    Heard::Forget(input.pop_front())
                }
            }
        }
        text if text.starts_with(':') => Heard::Done,
        _ => Heard::Value(input.pop_front()),
    })
}

/// A client with a cache.
#[derive(Default)]
struct Cache {
    /// The keys of requests without an answer; `None` for writes.
    asked: VecDeque<Option<String>>,
    values: BTreeMap<String, Option<String>>,
    input: VecDeque<String>,
}

impl Cache {
    fn hear(&mut self, bytes: Vec<u8>) {
        let text = String::from_utf8(bytes).expect("all is text here");
        self.input.extend(text.split_terminator("\r\n").map(str::to_owned));
        while let Some(heard) = hear(&mut self.input) {
            match heard {
                Heard::Forget(None) => self.values.clear(),
                Heard::Forget(Some(key)) => drop(self.values.remove(&key)),
                Heard::Done => drop(self.asked.pop_front()),
                Heard::Value(value) => {
                    let asked = self.asked.pop_front().expect("values are asked for");
                    self.values.insert(asked.expect("a read"), value);
                }
            }
        }
    }
}

fn caches_run(seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let settings = Settings::default();
    if rng.below(3) == 0 {
        settings.tracked_keys_max.store(3, Relaxed);
    }
    let mut harness = Harness::new(Shared::new(settings, None));
    harness.backend.shuffle = Some(Rng::new(seed));
    let ids: Vec<_> = (0..4).map(|_| tracker(&mut harness, "")).collect();
    let mut caches: Vec<Cache> = ids.iter().map(|_| Cache::default()).collect();
    for step in 0..300 {
        let at = rng.below(4) as usize;
        let key = format!("k{}", rng.below(6));
        harness.backend.local_reads = rng.below(2) == 0;
        match rng.below(10) {
            0..3 => {
                harness.feed(ids[at], format!("GET {key}\r\n").as_bytes());
                caches[at].asked.push_back(Some(key));
            }
            3 | 4 => {
                let line = if rng.below(2) == 0 {
                    format!("SET {key} v{step}")
                } else {
                    format!("DEL {key}")
                };
                harness.feed(ids[at], format!("{line}\r\n").as_bytes());
                caches[at].asked.push_back(None);
            }
            5 if rng.below(20) == 0 => {
                harness.feed(ids[at], b"FLUSHDB\r\n");
                caches[at].asked.push_back(None);
            }
            5 | 6 => {
                if let Some(invalidation) = harness.backend.invalidated.pop_front() {
                    harness.frontend.invalidated(invalidation);
                }
            }
            _ => {
                let (now, backend) = (harness.now, &mut harness.backend);
                if let Some((tag, outcome)) = backend.execute(now) {
                    harness.frontend.complete(tag, outcome, now, backend);
                }
            }
        }
        if rng.below(8) == 0 {
            harness.begin_turn();
        }
        caches[at].hear(harness.take(ids[at]));
    }
    for _ in 0..3 {
        while harness.complete_one() {}
        harness.begin_turn();
        for (cache, id) in caches.iter_mut().zip(&ids) {
            cache.hear(harness.take(*id));
        }
    }
    let judge = harness.connect();
    let mut kept = 0;
    for cache in &caches {
        assert!(cache.asked.is_empty() && cache.input.is_empty(), "all is answered");
        for (key, value) in &cache.values {
            let now = talk(&mut harness, judge, &format!("GET {key}"));
            let now = now.split(' ').nth(1).filter(|value| !value.is_empty()).map(str::to_owned);
            assert_eq!(*value, now, "seed {seed}: {key} is kept and was not told of");
            kept += 1;
        }
    }
    kept
}

#[test]
fn what_caches_keep_is_what_the_store_holds() {
    let kept: usize = (0..200).map(caches_run).sum();
    assert!(kept > 200, "caches keep something: {kept}");
}
