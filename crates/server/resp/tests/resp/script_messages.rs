//! What scripts publish, and the events of their commands, at the front end.

use quorate_machine::Rng;
use quorate_resp::{ConnectionId, Settings, Shared};
use quorate_resp_harness::Harness;

/// A keyspace with transactions; keyspace 0 has single keys.
const TRANSACTIONS: &str = "SELECT 1";

struct Channels {
    harness: Harness,
    subscriber: ConnectionId,
    publisher: ConnectionId,
}

impl Channels {
    /// Somebody who listens to all channels, and somebody who publishes.
    fn new() -> Self {
        let mut harness = Harness::new(Shared::new(Settings::default(), None));
        let [subscriber, publisher] = [(); 2].map(|()| harness.connect());
        harness.talk(subscriber, "PSUBSCRIBE *");
        Self { harness, subscriber, publisher }
    }

    fn say(&mut self, line: &str) -> String {
        self.harness.talk(self.publisher, line).replace("\r\n", " ")
    }

    /// What was heard so far, as `channel message`.
    fn heard(&mut self) -> Vec<String> {
        self.harness.begin_turn();
        let bytes = self.harness.take(self.subscriber);
        let text = String::from_utf8(bytes).expect("messages of this test are text");
        let words: Vec<&str> = text.split("\r\n").collect();
        words.chunks_exact(9).map(|words| format!("{} {}", words[6], words[8])).collect()
    }
}

fn publish(message: &str) -> String {
    format!("EVAL \"return redis.call('publish', 'c', '{message}')\" 0")
}

#[test]
fn a_script_publishes_once_it_has_committed() {
    for keyspace in [0, 1] {
        let mut channels = Channels::new();
        channels.say(&format!("SELECT {keyspace}"));
        channels.harness.talk(channels.subscriber, "SSUBSCRIBE c");
        let source = "redis.call('set', KEYS[1], 'v') \
                      local first = redis.call('publish', 'c', 'x') \
                      local second = redis.call('SPUBLISH', 'c', 'y') \
                      return {first, second, redis.call('publish', 'd', 12.5)}";
        let line = format!("EVAL \"{source}\" 1 k\r\n");
        channels.harness.feed(channels.publisher, line.as_bytes());
        assert_eq!(channels.heard(), [""; 0], "it is under way");
        assert!(channels.harness.complete_one());
        channels.harness.begin_turn();
        let heard = channels.harness.take(channels.subscriber);
        assert_eq!(
            String::from_utf8_lossy(&heard).replace("\r\n", " "),
            "*4 $8 pmessage $1 * $1 c $1 x *3 $8 smessage $1 c $1 y *4 $8 pmessage $1 * $1 d $4 12.5 "
        );
        let answer = channels.harness.take(channels.publisher);
        assert_eq!(String::from_utf8_lossy(&answer), "*3\r\n:0\r\n:0\r\n:0\r\n");
    }
}

#[test]
fn an_error_keeps_what_was_published_and_a_bound_does_not() {
    for keyspace in [0, 1] {
        let mut channels = Channels::new();
        channels.say(&format!("SELECT {keyspace}"));
        channels.say("EVAL \"redis.call('publish', 'c', KEYS[1]) error('x')\" 1 k");
        assert_eq!(channels.heard(), ["c k"]);
        for body in [
            "while true do end",
            "while true do redis.call('publish', 'c', 'x') end",
            "return string.rep('x', 16 * 1024 * 1024)",
        ] {
            let source = format!("redis.call('publish', 'c', KEYS[1]) {body}");
            for line in [
                format!("EVAL \"{source}\" 1 k"),
                format!("MULTI\r\nEVAL \"{source}\" 1 k\r\nEXEC"),
            ] {
                let answer = channels.say(&line);
                assert!(answer.contains("-E"), "{line}: {answer}");
                assert_eq!(channels.heard(), [""; 0], "{line}");
            }
        }
    }
}

/// Scripts on different keys end in any order.
#[test]
fn what_a_client_publishes_is_heard_in_its_order() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut channels = Channels::new();
        channels.harness.backend.shuffle = Some(Rng::new(seed));
        channels.say(&format!("SELECT {}", rng.below(2)));
        let mut lines = Vec::new();
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        for _ in 0..20 {
            let keys = rng.below(2);
            let line = match rng.below(5) {
                0 => format!("PUBLISH c {}", next()),
                1 => "SET other v".to_owned(),
                2 => {
                    let (one, two, three) = (publish(&next().to_string()), next(), next());
                    let other = publish(&next().to_string());
                    format!(
                        "MULTI\r\n{one}\r\nPUBLISH c {two}\r\nPUBLISH c {three}\r\n{other}\r\nEXEC"
                    )
                }
                _ => format!(
                    "EVAL \"redis.call('publish', 'c', {}) redis.call('publish', 'c', {})\" {keys} k{}",
                    next(),
                    next(),
                    rng.below(5)
                ),
            };
            lines.push(line);
        }
        let answers = channels.say(&lines.join("\r\n"));
        assert!(!answers.contains("-E"), "{answers}");
        let expected: Vec<_> = (1..=number).map(|number| format!("c {number}")).collect();
        assert_eq!(channels.heard(), expected, "seed {seed}: {lines:?}");
    }
}

#[test]
fn a_message_of_a_script_leaves_after_the_changes_before_it() {
    let mut channels = Channels::new();
    channels
        .harness
        .feed(channels.publisher, format!("SET k v\r\n{}\r\n", publish("x")).as_bytes());
    assert_eq!(channels.heard(), [""; 0], "the change is under way");
    assert!(channels.harness.complete_one());
    assert_eq!(channels.heard(), ["c x"]);
}

/// A script that changes nothing rests on what this node holds, and its lease was lost.
#[test]
fn what_rests_on_a_lease_that_was_lost_is_not_told() {
    for lease in [true, false] {
        let mut channels = Channels::new();
        let line = "EVAL \"redis.call('get', KEYS[1]) redis.call('publish', 'c', 'x')\" 1 k\r\n";
        channels.harness.feed(channels.publisher, line.as_bytes());
        channels.harness.feed(channels.publisher, b"PUBLISH c y\r\n");
        let harness = &mut channels.harness;
        let (tag, outcome) = harness.backend.execute(harness.now).expect("the script");
        harness.frontend.rests_on_lease(tag);
        harness.frontend.complete(tag, outcome, harness.now, &mut harness.backend);
        let output = harness.frontend.output(channels.subscriber);
        assert!(output.is_some_and(|output| output.is_empty()), "it may not leave yet");
        harness.lease = lease;
        harness.take(channels.publisher);
        harness.lease = true;
        let heard: &[&str] = if lease { &["c x", "c y"] } else { &[] };
        assert_eq!(channels.heard(), heard);
    }
}

#[test]
fn a_call_that_is_made_again_publishes_once() {
    let mut channels = Channels::new();
    channels.say(TRANSACTIONS);
    channels.say("SESSION OPEN");
    let call = format!("SESSION CALL 0 0 {}", publish("x"));
    let block = format!("MULTI\r\n{}\r\nSET k v\r\nSESSION CALL 1 0 EXEC", publish("y"));
    for (line, answer, heard) in
        [(call, ":0 ", "c x"), (block, "+OK +QUEUED +QUEUED *2 :0 +OK ", "c y")]
    {
        for heard in [&[heard][..], &[]] {
            assert_eq!(channels.say(&line), answer);
            assert_eq!(channels.heard(), heard, "{line}");
        }
    }
}

#[test]
fn what_a_client_that_is_gone_has_asked_for_is_told() {
    for (line, heard) in [
        (publish("x"), vec!["c x"]),
        (format!("MULTI\r\n{}\r\n{}\r\nEXEC", publish("x"), publish("y")), vec!["c x", "c y"]),
        (format!("SET k v\r\n{}", publish("x")), vec!["c x"]),
    ] {
        // The last op is answered first, with its client, without it, or with one that is killed.
        for gone in 0..3 {
            let mut channels = Channels::new();
            channels.say(TRANSACTIONS);
            channels.harness.feed(channels.publisher, format!("{line}\r\n").as_bytes());
            let harness = &mut channels.harness;
            let mut ops = std::iter::from_fn(|| harness.backend.execute(harness.now));
            let mut done: Vec<_> = ops.by_ref().collect();
            let killer = harness.connect();
            match gone {
                1 => harness.frontend.close(channels.publisher),
                2 => drop(harness.talk(killer, "CLIENT KILL TYPE normal SKIPME yes")),
                _ => {}
            }
            while let Some((tag, outcome)) = done.pop() {
                harness.frontend.complete(tag, outcome, harness.now, &mut harness.backend);
            }
            harness.frontend.close(channels.publisher);
            assert_eq!(channels.heard(), heard, "{line} {gone}");
        }
    }
}

#[test]
fn the_commands_of_a_script_have_their_events() {
    let mut channels = Channels::new();
    channels.say(TRANSACTIONS);
    channels.say("CONFIG SET notify-keyspace-events EAn");
    let library = "#!lua name=l\nredis.register_function('f', function(keys) \
                   redis.call('lpush', keys[1], 'x') redis.call('publish', 'c', 'm') \
                   return redis.call('lpop', keys[1]) end)";
    let words = ["FUNCTION", "LOAD", library];
    let mut load = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| load += &format!("${}\r\n{word}\r\n", word.len()));
    channels.harness.send(channels.publisher, load.as_bytes());
    assert_eq!(channels.heard(), [""; 0], "a library is no key of the client's");
    let heard = [
        "__keyevent@1__:new k",
        "__keyevent@1__:lpush k",
        "c m",
        "__keyevent@1__:lpop k",
        "__keyevent@1__:del k",
    ];
    assert_eq!(channels.say("FCALL f 1 k"), "$1 x ");
    assert_eq!(channels.heard(), heard);
    assert_eq!(channels.say("MULTI\r\nFCALL f 1 k\r\nEXEC"), "+OK +QUEUED *1 $1 x ");
    assert_eq!(channels.heard(), heard);
    channels.say("SELECT 0");
    channels.say("EVAL \"redis.call('incr', KEYS[1]) redis.call('get', KEYS[1])\" 1 n");
    assert_eq!(channels.heard(), ["__keyevent@0__:new n", "__keyevent@0__:incrby n"]);
    channels.say("CONFIG SET notify-keyspace-events ''");
    channels.say("EVAL \"redis.call('incr', KEYS[1])\" 1 n");
    assert_eq!(channels.heard(), [""; 0]);
}

#[test]
fn what_only_reads_may_not_publish() {
    let mut channels = Channels::new();
    for command in ["publish", "spublish"] {
        let answer =
            channels.say(&format!("EVAL_RO \"return redis.call('{command}', 'c', 'x')\" 0"));
        assert!(
            answer.contains("Write commands are not allowed from read-only scripts."),
            "{answer}"
        );
    }
    assert_eq!(channels.heard(), [""; 0]);
}
