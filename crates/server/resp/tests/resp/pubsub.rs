//! Subscribers and publishers of one lane. The replies are those of a Redis 7.0.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quorate_resp::{ConnectionId, Settings, Shared};
use quorate_resp_harness::Harness;
use quorate_types::{Publication, Topic};

const DELIVERIES_PER_TURN: usize = 4096;
const ROUSED_PER_TURN: usize = 256;

fn harness() -> Harness {
    Harness::new(Shared::new(Settings::default(), None))
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("answers are text").replace("\r\n", " ")
}

fn talk(harness: &mut Harness, id: ConnectionId, line: &str) -> String {
    harness.talk(id, line).replace("\r\n", " ")
}

fn taken(harness: &mut Harness, id: ConnectionId) -> String {
    text(harness.take(id))
}

fn publication(topic: Topic, channel: &str, message: &str) -> Arc<Publication> {
    Arc::new(Publication {
        topic,
        channel: channel.as_bytes().into(),
        message: message.as_bytes().into(),
    })
}

#[test]
fn confirmations() {
    let mut harness = harness();
    let id = harness.connect();
    for (line, reply) in [
        ("UNSUBSCRIBE", "*3 $11 unsubscribe $-1 :0 "),
        ("SUNSUBSCRIBE x", "*3 $12 sunsubscribe $1 x :0 "),
        (
            "SUBSCRIBE a a b",
            "*3 $9 subscribe $1 a :1 *3 $9 subscribe $1 a :1 *3 $9 subscribe $1 b :2 ",
        ),
        ("PSUBSCRIBE y x", "*3 $10 psubscribe $1 y :3 *3 $10 psubscribe $1 x :4 "),
        ("SSUBSCRIBE s", "*3 $10 ssubscribe $1 s :1 "),
        ("UNSUBSCRIBE b q", "*3 $11 unsubscribe $1 b :3 *3 $11 unsubscribe $1 q :3 "),
        ("UNSUBSCRIBE", "*3 $11 unsubscribe $1 a :2 "),
        ("PUNSUBSCRIBE", "*3 $12 punsubscribe $1 y :1 *3 $12 punsubscribe $1 x :0 "),
        (
            "GET k",
            "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
                   RESET are allowed in this context ",
        ),
        ("SUNSUBSCRIBE", "*3 $12 sunsubscribe $1 s :0 "),
        ("GET k", "$-1 "),
        ("SUBSCRIBE", "-ERR wrong number of arguments for 'subscribe' command "),
    ] {
        assert_eq!(talk(&mut harness, id, line), reply, "{line}");
    }
    let id = harness.connect();
    harness.talk(id, "HELLO 3");
    assert_eq!(talk(&mut harness, id, "UNSUBSCRIBE"), ">3 $11 unsubscribe _ :0 ");
    assert_eq!(talk(&mut harness, id, "PSUBSCRIBE p"), ">3 $10 psubscribe $1 p :1 ");
}

#[test]
fn who_speaks_resp2_and_listens_may_say_little_else() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "SUBSCRIBE a");
    let refused = |name: &str| {
        format!(
            "-ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
             are allowed in this context "
        )
    };
    for (line, reply) in [
        ("PING", "*2 $4 pong $0  ".to_owned()),
        ("PING hi", "*2 $4 pong $2 hi ".to_owned()),
        ("PING a b", "-ERR wrong number of arguments for 'ping' command ".to_owned()),
        ("SET", "-ERR wrong number of arguments for 'set' command ".to_owned()),
        ("CLIENT INFO", refused("client|info")),
        ("MULTI", refused("multi")),
        ("EXEC", refused("exec").replace("-ERR ", "-EXECABORT Transaction discarded because of: ")),
        ("HELLO 3", refused("hello")),
        ("PUBLISH a b", refused("publish")),
        ("RESET", "+RESET ".to_owned()),
        ("UNSUBSCRIBE", "*3 $11 unsubscribe $-1 :0 ".to_owned()),
        ("PING", "+PONG ".to_owned()),
    ] {
        assert_eq!(talk(&mut harness, id, line), reply, "{line}");
    }
    assert!(harness.backend.listening.is_empty(), "RESET ends what it listened to");
}

#[test]
fn messages_reach_subscribers_in_their_protocol() {
    let mut harness = harness();
    let [two, three, publisher] = [(); 3].map(|()| harness.connect());
    harness.talk(three, "HELLO 3");
    for id in [two, three] {
        harness.talk(id, "PSUBSCRIBE a* *b");
        harness.talk(id, "SUBSCRIBE ab");
        harness.talk(id, "SSUBSCRIBE ab");
    }
    assert_eq!(harness.talk(publisher, "PUBLISH ab hello"), ":6\r\n");
    assert_eq!(
        taken(&mut harness, two),
        "*3 $7 message $2 ab $5 hello *4 $8 pmessage $2 *b $2 ab $5 hello \
         *4 $8 pmessage $2 a* $2 ab $5 hello "
    );
    assert_eq!(
        taken(&mut harness, three),
        ">3 $7 message $2 ab $5 hello >4 $8 pmessage $2 *b $2 ab $5 hello \
         >4 $8 pmessage $2 a* $2 ab $5 hello "
    );
    assert_eq!(harness.talk(publisher, "SPUBLISH ab shard"), ":2\r\n");
    assert_eq!(taken(&mut harness, two), "*3 $8 smessage $2 ab $5 shard ");
    assert_eq!(harness.talk(publisher, "PUBLISH none x"), ":0\r\n");
    // Those of other lanes and nodes come the same way.
    harness.frontend.published(publication(Topic::Channel, "b", "far"), &harness.backend);
    assert_eq!(taken(&mut harness, two), "*4 $8 pmessage $2 *b $1 b $3 far ");
}

#[test]
fn who_publishes_to_itself_gets_the_message_before_the_reply() {
    let mut harness = harness();
    let id = harness.connect();
    harness.talk(id, "HELLO 3");
    harness.talk(id, "SUBSCRIBE a");
    harness.talk(id, "PSUBSCRIBE a*");
    let own = ">3 $7 message $1 a $1 x >4 $8 pmessage $2 a* $1 a $1 x ";
    assert_eq!(talk(&mut harness, id, "PUBLISH a x"), format!("{own}:2 "));
    let block = "MULTI\r\nPUBLISH a x\r\nGET q\r\nSUBSCRIBE k l\r\nUNSUBSCRIBE k\r\nEXEC";
    assert_eq!(
        talk(&mut harness, id, block),
        format!(
            "+OK +QUEUED +QUEUED +QUEUED +QUEUED *4 {own}:2 _ >3 $9 subscribe $1 k :3 \
             >3 $9 subscribe $1 l :4 >3 $11 unsubscribe $1 k :3 "
        )
    );
    // Silence is for replies.
    assert_eq!(
        talk(&mut harness, id, "CLIENT REPLY OFF\r\nSUBSCRIBE m\r\nPUBLISH a x\r\nCLIENT REPLY ON"),
        format!(">3 $9 subscribe $1 m :4 {own}+OK ")
    );
}

#[test]
fn a_subscriber_of_resp2_in_a_block() {
    let mut harness = harness();
    let id = harness.connect();
    assert_eq!(
        talk(&mut harness, id, "MULTI\r\nSUBSCRIBE a b\r\nPING\r\nSET x 1\r\nEXEC"),
        "+OK +QUEUED +QUEUED +QUEUED *3 *3 $9 subscribe $1 a :1 *3 $9 subscribe $1 b :2 \
         *2 $4 pong $0  +OK "
    );
}

#[test]
fn a_message_comes_behind_what_was_asked_before_it() {
    let mut harness = harness();
    let (id, publisher) = (harness.connect(), harness.connect());
    harness.talk(id, "HELLO 3");
    harness.talk(id, "SUBSCRIBE a");
    harness.feed(id, b"SET k v\r\nGET k\r\n");
    harness.talk(publisher, "CLIENT ID");
    harness.frontend.published(publication(Topic::Channel, "a", "x"), &harness.backend);
    while harness.complete_one() {}
    assert_eq!(taken(&mut harness, id), "+OK $1 v >3 $7 message $1 a $1 x ");
    // A command that only waits doesn't hold it up.
    harness.feed(id, b"WAIT 5 0\r\n");
    harness.frontend.published(publication(Topic::Channel, "a", "y"), &harness.backend);
    assert_eq!(taken(&mut harness, id), ">3 $7 message $1 a $1 y ");
}

#[test]
fn a_message_leaves_after_the_changes_that_were_asked_for_before_it() {
    let mut harness = harness();
    let id = harness.connect();
    harness.feed(id, b"SET k v\r\nPUBLISH a changed\r\n");
    assert!(harness.backend.published.is_empty(), "the change is under way");
    assert!(harness.complete_one());
    assert_eq!(harness.backend.published.len(), 1);
    assert_eq!(taken(&mut harness, id), "+OK :0 ");
}

#[test]
fn a_subscription_is_confirmed_once_other_nodes_know_of_it() {
    let mut harness = harness();
    let id = harness.connect();
    harness.backend.announces = true;
    harness.feed(id, b"SUBSCRIBE a\r\nPING\r\nUNSUBSCRIBE q\r\n");
    assert_eq!(taken(&mut harness, id), "");
    // What is published here meanwhile comes behind the confirmation.
    harness.frontend.published(publication(Topic::Channel, "a", "x"), &harness.backend);
    assert_eq!(taken(&mut harness, id), "");
    assert!(harness.complete_one());
    assert_eq!(
        taken(&mut harness, id),
        "*3 $9 subscribe $1 a :1 *2 $4 pong $0  *3 $11 unsubscribe $1 q :1 *3 $7 message $1 a $1 x "
    );
    // Silence is for replies.
    let id = harness.connect();
    harness.backend.announces = false;
    harness.talk(id, "CLIENT REPLY OFF");
    harness.backend.announces = true;
    assert_eq!(talk(&mut harness, id, "SUBSCRIBE a"), "*3 $9 subscribe $1 a :1 ");
    harness.frontend.check_invariants();
}

#[test]
fn facts_about_listeners() {
    let mut harness = harness();
    let (id, other) = (harness.connect(), harness.connect());
    harness.talk(id, "SUBSCRIBE a b");
    harness.talk(other, "HELLO 3");
    harness.talk(other, "SUBSCRIBE b");
    harness.talk(other, "PSUBSCRIBE p* q*");
    harness.talk(other, "SSUBSCRIBE s");
    for (line, reply) in [
        ("PUBSUB CHANNELS", "*2 $1 a $1 b "),
        ("PUBSUB CHANNELS [b-z]", "*1 $1 b "),
        (
            "PUBSUB CHANNELS a b",
            "-ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. \
                                 Try PUBSUB HELP. ",
        ),
        ("PUBSUB NUMSUB", "*0 "),
        ("PUBSUB NUMSUB a b c", "*6 $1 a :1 $1 b :2 $1 c :0 "),
        ("PUBSUB NUMPAT", ":2 "),
        ("PUBSUB NUMPAT x", "-ERR wrong number of arguments for 'pubsub|numpat' command "),
        ("PUBSUB SHARDCHANNELS", "*1 $1 s "),
        ("PUBSUB SHARDNUMSUB s a", "*4 $1 s :1 $1 a :0 "),
        ("PUBSUB foo", "-ERR unknown subcommand 'foo'. Try PUBSUB HELP. "),
        ("PUBSUB", "-ERR wrong number of arguments for 'pubsub' command "),
    ] {
        assert_eq!(talk(&mut harness, other, line), reply, "{line}");
    }
    let info = harness.talk(other, "CLIENT INFO");
    assert!(info.contains("flags=P db=0 sub=1 psub=2 ssub=1 "), "{info}");
    let list = harness.talk(other, "CLIENT LIST TYPE pubsub");
    assert!(list.contains("sub=2 psub=0 ssub=0") && list.contains("sub=1 psub=2"), "{list}");
    assert_eq!(harness.talk(other, "CLIENT LIST TYPE normal"), "=4\r\ntxt:\r\n");
    let info = harness.talk(other, "INFO stats");
    for line in ["pubsub_channels:2", "pubsub_patterns:2", "pubsubshard_channels:1"] {
        assert!(info.contains(line), "{line}: {info}");
    }
    // Who is gone listens to nothing.
    harness.frontend.close(id);
    assert!(harness.frontend.has_postponed(), "the node is told in the next turn");
    assert_eq!(talk(&mut harness, other, "PUBSUB NUMSUB a b"), "*4 $1 a :0 $1 b :1 ");
    assert_eq!(talk(&mut harness, other, "CLIENT KILL TYPE pubsub SKIPME no"), ":1 ");
}

#[test]
fn a_slow_subscriber_is_disconnected_and_counted() {
    let mut harness = harness();
    let (slow, reader, publisher) = (harness.connect(), harness.connect(), harness.connect());
    harness.talk(publisher, "CONFIG SET client-output-buffer-limit 'pubsub 100kb 0 0'");
    harness.talk(slow, "SUBSCRIBE a");
    harness.talk(reader, "SUBSCRIBE a");
    let line = format!("PUBLISH a {}", "x".repeat(30_000));
    for _ in 0..3 {
        harness.talk(publisher, &line);
        assert!(!harness.take(reader).is_empty());
        assert!(!harness.frontend.wants_close(slow));
    }
    harness.talk(publisher, &line);
    assert!(harness.frontend.wants_close(slow), "100 KiB were not read");
    assert!(!harness.frontend.wants_close(reader));
    assert_eq!(harness.frontend.stats().subscribers_cut.load(Relaxed), 1);
    harness.frontend.close(slow);
    harness.begin_turn();
    assert_eq!(harness.talk(publisher, "PUBLISH a x"), ":1\r\n");
    let info = harness.talk(publisher, "INFO stats");
    assert!(info.contains("client_output_buffer_limit_disconnections:1"), "{info}");
    harness.frontend.check_invariants();
}

#[test]
fn a_subscriber_above_the_soft_limit_is_disconnected_once_it_lasts() {
    let mut harness = harness();
    let (slow, publisher) = (harness.connect(), harness.connect());
    harness.talk(publisher, "CONFIG SET client-output-buffer-limit 'pubsub 0 10kb 5'");
    harness.talk(slow, "SUBSCRIBE a");
    harness.talk(publisher, &format!("PUBLISH a {}", "x".repeat(20_000)));
    harness.pass(2_000);
    harness.pass(4_000);
    assert!(!harness.frontend.wants_close(slow));
    harness.pass(2_000);
    assert!(harness.frontend.wants_close(slow));
}

/// Many subscribers of one channel.
fn crowd(harness: &mut Harness, count: usize) -> Vec<ConnectionId> {
    let ids: Vec<_> = (0..count).map(|_| harness.connect()).collect();
    for &id in &ids {
        harness.talk(id, "SUBSCRIBE a");
    }
    ids
}

/// How many of them have something to be sent, which is taken.
fn reached(harness: &mut Harness, ids: &[ConnectionId]) -> usize {
    let mut dirty = Vec::new();
    harness.frontend.take_dirty(&mut dirty);
    ids.iter().filter(|id| !harness.take(**id).is_empty()).count()
}

#[test]
fn a_turn_serves_a_bounded_number_of_subscribers() {
    let mut harness = harness();
    let ids = crowd(&mut harness, 1000);
    let publisher = harness.connect();
    harness.begin_turn();
    reached(&mut harness, &ids);
    assert_eq!(harness.talk(publisher, "PUBLISH a x"), ":1000\r\n");
    assert_eq!(reached(&mut harness, &ids), ROUSED_PER_TURN);
    assert!(harness.frontend.has_postponed());
    // Who comes later doesn't get it.
    let late = harness.connect();
    harness.talk(late, "SUBSCRIBE a");
    let mut served = ROUSED_PER_TURN;
    while harness.frontend.has_postponed() {
        harness.begin_turn();
        served += reached(&mut harness, &ids);
    }
    assert_eq!(served, 1000);
    assert_eq!(taken(&mut harness, late), "");
}

#[test]
fn a_publisher_waits_while_too_much_is_on_its_way() {
    let source = "redis.call('publish', 'a', ARGV[1])";
    let script = format!("*4\r\n$4\r\nEVAL\r\n${}\r\n{source}\r\n$1\r\n0\r\n", source.len());
    for publish in ["*3\r\n$7\r\nPUBLISH\r\n$1\r\na\r\n", &script] {
        waits_while_too_much_is_on_its_way(publish);
    }
}

fn waits_while_too_much_is_on_its_way(publish: &str) {
    let mut harness = harness();
    let ids = crowd(&mut harness, 300);
    let publisher = harness.connect();
    harness.begin_turn();
    let large = format!("{publish}$100000\r\n{}\r\n", "x".repeat(100_000));
    let mut sent = 0;
    while harness.frontend.wants_read(publisher) && sent < 1000 {
        harness.feed(publisher, large.as_bytes());
        sent += 1;
    }
    assert!((80..200).contains(&sent), "{sent} messages of 100 kB are more than 8 MiB");
    let mut received = 0;
    for _ in 0..100_000 {
        if !harness.frontend.has_postponed() {
            break;
        }
        harness.begin_turn();
        for &id in &ids {
            let bytes = harness.take(id).len();
            received += bytes / 100_000;
        }
        harness.take(publisher);
    }
    assert_eq!(received, sent * 300, "nothing is lost");
    assert!(harness.frontend.wants_read(publisher));
    assert_eq!(harness.frontend.stats().messages_dropped.load(Relaxed), 0);
    harness.frontend.check_invariants();
}

#[test]
fn a_turn_delivers_a_bounded_number_of_messages() {
    let mut harness = harness();
    let ids = crowd(&mut harness, 100);
    let publisher = harness.connect();
    harness.begin_turn();
    reached(&mut harness, &ids);
    let before = harness.frontend.stats().messages_delivered.load(Relaxed);
    harness.feed(publisher, "PUBLISH a x\r\n".repeat(100).as_bytes());
    let delivered = harness.frontend.stats().messages_delivered.load(Relaxed) - before;
    assert_eq!(delivered as usize, DELIVERIES_PER_TURN);
}

#[test]
fn messages_of_other_nodes_are_lost_beyond_a_bound() {
    let mut harness = harness();
    let ids = crowd(&mut harness, 10);
    harness.begin_turn();
    let large = publication(Topic::Channel, "a", &"x".repeat(4 * 1024 * 1024));
    for _ in 0..40 {
        harness.frontend.published(Arc::clone(&large), &harness.backend);
    }
    assert!(harness.frontend.stats().messages_dropped.load(Relaxed) > 20);
    while harness.frontend.has_postponed() {
        harness.begin_turn();
        ids.iter().for_each(|id| drop(harness.take(*id)));
    }
}

#[test]
fn names_are_bounded() {
    let mut harness = harness();
    let id = harness.connect();
    let long = "x".repeat(64 * 1024 + 1);
    let too_long = "-ERR the name of a channel has at most 65536 bytes ";
    assert_eq!(talk(&mut harness, id, "SUBSCRIBE a\r\n"), "*3 $9 subscribe $1 a :1 ");
    let mut bytes = b"*2\r\n$9\r\nSUBSCRIBE\r\n".to_vec();
    bytes.extend(format!("${}\r\n{long}\r\n", long.len()).as_bytes());
    assert_eq!(text(harness.send(id, &bytes)), too_long);
    let mut bytes = b"*3\r\n$7\r\nPUBLISH\r\n".to_vec();
    bytes.extend(format!("${}\r\n{long}\r\n$1\r\nx\r\n", long.len()).as_bytes());
    let publisher = harness.connect();
    assert_eq!(text(harness.send(publisher, &bytes)), too_long);
    // 32 MiB of names.
    let name = |number: usize| format!("{number:065000}");
    for number in 0..516 {
        let reply = talk(&mut harness, id, &format!("SUBSCRIBE {number}"));
        assert!(reply.starts_with("*3"), "{reply}");
        let mut bytes = b"*2\r\n$9\r\nSUBSCRIBE\r\n$65000\r\n".to_vec();
        bytes.extend(name(number).as_bytes());
        bytes.extend(b"\r\n");
        assert!(text(harness.send(id, &bytes)).starts_with("*3"));
    }
    let mut bytes = b"*2\r\n$9\r\nSUBSCRIBE\r\n$65000\r\n".to_vec();
    bytes.extend(name(516).as_bytes());
    bytes.extend(b"\r\n");
    let reply = text(harness.send(id, &bytes));
    assert!(reply.starts_with("-ERR the clients of this lane listen to as many names"), "{reply}");
    harness.frontend.check_invariants();
    harness.frontend.close(id);
    harness.begin_turn();
    assert_eq!(talk(&mut harness, publisher, "PUBSUB CHANNELS"), "*0 ");
}

#[test]
fn what_happens_to_keys_is_told_once_it_was_answered() {
    let mut harness = harness();
    let [subscriber, writer, gone] = [(); 3].map(|()| harness.connect());
    assert_eq!(harness.talk(writer, "CONFIG SET notify-keyspace-events KE$"), "+OK\r\n");
    assert_eq!(
        harness.talk(writer, "CONFIG GET notify-keyspace-events"),
        "*2\r\n$22\r\nnotify-keyspace-events\r\n$3\r\n$KE\r\n"
    );
    harness.talk(subscriber, "PSUBSCRIBE __key*__:*");
    harness.feed(writer, b"SET k v\r\n");
    assert_eq!(taken(&mut harness, subscriber), "", "it is under way");
    assert!(harness.complete_one());
    let told = "*4 $8 pmessage $10 __key*__:* $16 __keyspace@0__:k $3 set \
                *4 $8 pmessage $10 __key*__:* $18 __keyevent@0__:set $1 k ";
    assert_eq!(taken(&mut harness, subscriber), told);
    assert_eq!(taken(&mut harness, writer), "+OK ");
    // Classes that are not wanted, reads, and failures tell nothing.
    harness.talk(writer, "DEL k\r\nGET k\r\nSET k");
    assert_eq!(taken(&mut harness, subscriber), "");
    // In a keyspace of transactions, in blocks, and of clients that are gone.
    harness.talk(writer, "SELECT 1\r\nMULTI\r\nSET k v\r\nINCR n\r\nEXEC");
    let told = taken(&mut harness, subscriber);
    for channel in
        ["__keyspace@1__:k", "__keyevent@1__:set", "__keyspace@1__:n", "__keyevent@1__:incrby"]
    {
        assert!(told.contains(channel), "{channel}: {told}");
    }
    harness.feed(gone, b"APPEND k x\r\n");
    harness.frontend.close(gone);
    assert!(harness.complete_one());
    assert!(harness.frontend.has_postponed());
    harness.begin_turn();
    assert!(taken(&mut harness, subscriber).contains("__keyevent@0__:append"));
    // Expiry is told by the node that deletes.
    let (now, key) = (harness.now, (*b"k").into());
    harness.frontend.expired(0, key, now, &mut harness.backend);
    assert_eq!(taken(&mut harness, subscriber), "", "not wanted");
    harness.talk(writer, "CONFIG SET notify-keyspace-events Ex");
    harness.frontend.expired(0, (*b"k").into(), now, &mut harness.backend);
    assert_eq!(
        taken(&mut harness, subscriber),
        "*4 $8 pmessage $10 __key*__:* $22 __keyevent@0__:expired $1 k "
    );
    assert_eq!(
        harness.talk(writer, "CONFIG SET notify-keyspace-events q"),
        "-ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - Invalid \
         event class character. Use 'Ag$lshzxeKEtmdn'.\r\n"
    );
}
