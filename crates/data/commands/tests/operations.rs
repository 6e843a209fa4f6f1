//! Operations as engines use them: encoding, scripts, watches, access.

use proptest::prelude::*;
use quorate_commands::{
    Block, CROSSKEY, Call, Keyed, Op, OwnedArgs, OwnedCall, Reply, Run, Watch, lookup_name,
    resolve, table,
};
use quorate_machine::{Access, Change, Command, Content, Current, ValueKind};
use quorate_types::limits::REPLY_BYTES_MAX;
use quorate_types::{MemberNumber, Timestamp, UnixMillis, WriterId};

const NOW: UnixMillis = UnixMillis(1_000_000);

fn call(line: &str) -> OwnedCall {
    OwnedCall::new(line.split(' ').map(str::as_bytes)).expect(line)
}

fn op(line: &str) -> Op {
    Op::Call(call(line))
}

fn block(lines: &[&str], watches: Vec<Watch>) -> Op {
    let calls = lines.iter().map(|line| call(line)).collect();
    let watches = watches.into_iter().map(|watch| (b"k"[..].into(), watch)).collect();
    Op::Block(Block { watches, calls })
}

fn timestamp(version: u64) -> Timestamp {
    Timestamp::new(version, WriterId::new(MemberNumber(1), 0))
}

fn holding(bytes: &[u8], expire_at: Option<u64>) -> Current<'_> {
    let expire_at = expire_at.map(UnixMillis);
    let content = Some(Content { bytes, kind: ValueKind::String, expire_at });
    Current { content, large: None, timestamp: timestamp(7) }
}

const ABSENT: Current<'static> = Current::ABSENT;

fn set(bytes: &str, expire_at: Option<u64>) -> Change<'_> {
    Change::Set {
        bytes: bytes.as_bytes().into(),
        kind: ValueKind::String,
        expire_at: expire_at.map(UnixMillis),
    }
}

fn bulk(text: &str) -> Reply<'static> {
    Reply::Bulk(text.as_bytes().to_vec().into())
}

#[test]
fn a_script_sees_its_own_changes_and_leaves_their_sum() {
    for (lines, current, replies, change) in [
        (
            &["SET k 1", "INCR k", "GET k"][..],
            ABSENT,
            vec![Reply::Ok, Reply::Int(2), bulk("2")],
            set("2", None),
        ),
        (
            &["APPEND k b", "EXPIREAT k 2000", "GETDEL k", "EXISTS k"],
            holding(b"a", None),
            vec![Reply::Int(2), Reply::Int(1), bulk("ab"), Reply::Int(0)],
            Change::Delete,
        ),
        (
            &["EXPIREAT k 2000", "PERSIST k", "PEXPIREAT k 3000000", "STRLEN k"],
            holding(b"abc", None),
            vec![Reply::Int(1), Reply::Int(1), Reply::Int(1), Reply::Int(3)],
            Change::Expire(Some(UnixMillis(3_000_000))),
        ),
        (
            &["APPEND k b", "EXPIREAT k 2000", "GET k"],
            holding(b"a", Some(9_000_000)),
            vec![Reply::Int(2), Reply::Int(1), bulk("ab")],
            set("ab", Some(2_000_000)),
        ),
        (
            &["GET k", "PING", "SETNX k x"],
            holding(b"v", None),
            vec![bulk("v"), Reply::status("PONG"), Reply::Int(0)],
            Change::Keep,
        ),
    ] {
        let op = block(lines, vec![]);
        assert_eq!(op.apply(NOW, current), (Reply::Array(replies), change), "{lines:?}");
    }
}

#[test]
fn an_error_in_a_script_undoes_nothing() {
    let op = block(&["SET k a", "INCR k", "SELECT 1", "APPEND k b"], vec![]);
    let (Reply::Array(replies), change) = op.apply(NOW, ABSENT) else { panic!("not an array") };
    assert_eq!(replies[0], Reply::Ok);
    assert!(replies[1].is_error() && replies[2].is_error());
    assert_eq!(replies[3], Reply::Int(2));
    assert_eq!(change, set("ab", None));
}

#[test]
fn a_watch_fails_when_the_version_moved_or_the_value_expired() {
    let watch = |existed, version| vec![Watch { existed, timestamp: timestamp(version) }];
    let gone = Current { timestamp: timestamp(7), ..Current::ABSENT };
    for (watches, current, held) in [
        (watch(true, 7), holding(b"v", None), true),
        (watch(true, 6), holding(b"v", None), false),
        (watch(true, 7), gone, false),
        (watch(false, 7), gone, true),
        (watch(false, 7), ABSENT, true),
        (watch(false, 8), gone, true),
        (watch(true, 8), gone, false),
        (watch(true, 8), holding(b"v", None), false),
        (watch(false, 8), holding(b"v", None), false),
        (watch(true, 7), ABSENT, false),
        (watch(false, 6), Current { timestamp: timestamp(7), ..Current::ABSENT }, false),
        (vec![watch(true, 7)[0], watch(true, 6)[0]], holding(b"v", None), false),
    ] {
        let op = block(&["SET k w"], watches.clone());
        assert_eq!(op.access(), Access::Update);
        let expected = if held {
            (Reply::Array(vec![Reply::Ok]), set("w", None))
        } else {
            (Reply::NullArray, Change::Keep)
        };
        assert_eq!(op.apply(NOW, current), expected, "{watches:?} {current:?}");
    }
    let version = Op::Versions([b"k"[..].into()].into());
    assert_eq!(
        version.apply(NOW, gone),
        (Reply::Array([Reply::Version(timestamp(7), false)].into()), Change::Keep)
    );
}

#[test]
fn access_is_a_write_only_where_the_old_value_has_no_say() {
    for (line, access) in [
        ("GET k", Access::Read),
        ("MGET k k", Access::Read),
        ("SET k v", Access::Write),
        ("SET k v EX 10", Access::Write),
        ("SET k v EXAT 1", Access::Write),
        ("SET k v EX 0", Access::Read),
        ("SET k v EX ten", Access::Read),
        ("SET k v PX 9000000000000000000", Access::Update),
        ("SET k v NX", Access::Update),
        ("SET k v XX", Access::Update),
        ("SET k v GET", Access::Update),
        ("SET k v KEEPTTL", Access::Update),
        ("SET k v NX XX", Access::Read),
        ("SETEX k 10 v", Access::Write),
        ("SETEX k -1 v", Access::Read),
        ("PSETEX k 10 v", Access::Write),
        ("MSET k 1 k 2", Access::Write),
        ("MSET k 1 j 2", Access::Read),
        ("MSET k 1 k", Access::Read),
        ("GETEX k", Access::Read),
        ("GETEX k PERSIST", Access::Update),
        ("INCR k", Access::Update),
        ("DEL k", Access::Update),
        ("EXPIRE k 1", Access::Update),
        ("OBJECT ENCODING k", Access::Read),
    ] {
        assert_eq!(op(line).access(), access, "{line}");
        assert_eq!(op(line).key(), b"k", "{line}");
    }
    assert_eq!(block(&["SET k v", "SETEX k 10 w"], vec![]).access(), Access::Write);
    assert_eq!(block(&["SET k v", "GET k"], vec![]).access(), Access::Update);
    assert_eq!(block(&["GET k", "PING"], vec![]).access(), Access::Read);
}

#[test]
fn every_keyed_row_has_a_key_and_every_write_an_access() {
    use quorate_commands::{AccessRule, flag};
    let all = table().iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands));
    for spec in all {
        let Run::Key(_) = spec.run else { continue };
        let script = matches!(spec.run, Run::Key(Keyed::Script));
        assert!(spec.has_keys() || spec.name == "keyrange" || script, "{}", spec.name);
        assert!(spec.keys.first as usize <= spec.arity.unsigned_abs() as usize, "{}", spec.name);
        let reads = matches!(spec.access, AccessRule::Read);
        let several = matches!(spec.run, Run::Key(Keyed::Several(_)));
        assert!(!reads || !spec.flags.has(flag::WRITE) || several, "{}", spec.name);
        // What a script writes, its text says.
        assert!(reads || spec.flags.has(flag::WRITE) || script, "{}", spec.name);
    }
}

#[test]
fn calls_over_several_keys_come_apart() {
    let mget = call("MGET a b a");
    let keys: Vec<_> = mget.call().keys().collect();
    assert_eq!(keys, [&b"a"[..], b"b", b"a"]);
    assert_eq!(mget.call().single_key(), Err(Reply::error(CROSSKEY)));
    let part = mget.call().split(1);
    assert_eq!((part.call().spec.name, part.call().key()), ("get", &b"b"[..]));
    let del = call("DEL a b");
    assert_eq!(del.call().split(0).call().execute(NOW, holding(b"v", None)).0, Reply::Int(1));
    assert_eq!(call("MSET a 1 a 2").call().single_key(), Ok(Some(&b"a"[..])));
    assert_eq!(call("MSET a 1 b 2").call().single_key(), Err(Reply::error(CROSSKEY)));
    assert_eq!(call("PING").call().single_key(), Ok(None));
    assert_eq!(call("OBJECT ENCODING k").call().single_key(), Ok(Some(&b"k"[..])));
}

#[test]
fn what_nobody_can_decode_is_nothing() {
    let encode = |op: &Op| {
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        bytes
    };
    let ops = [
        op("SET k v PX 100"),
        block(
            &["SET k v", "PING", "INCR k"],
            vec![Watch { existed: true, timestamp: timestamp(3) }],
        ),
        Op::Versions([b"k"[..].into()].into()),
    ];
    for op in &ops {
        let bytes = encode(op);
        assert_eq!(Op::decode(&bytes).as_ref(), Some(op));
        for cut in 0..bytes.len() {
            assert_eq!(Op::decode(&bytes[..cut]), None, "cut at {cut}");
        }
        assert_eq!(Op::decode(&[&bytes[..], b"x"].concat()), None);
    }
    // A command with too few arguments or without a key, and a block on two keys.
    let get = lookup_name(b"get").expect("a command");
    let args = OwnedArgs::new([&b"GET"[..]]);
    let mut bytes = Vec::new();
    Call::new(get, args.borrow()).encode(&mut bytes);
    assert_eq!(Op::decode(&bytes), None);
    assert_eq!(Op::decode(&encode(&op("PING"))), None);
    assert_eq!(Op::decode(&encode(&block(&["SET j v", "SET k v"], vec![]))), None);
    assert_eq!(Op::decode(&encode(&block(&["PING"], vec![]))), None);
    let two = Op::Versions([b"j"[..].into(), b"k"[..].into()].into());
    assert_eq!(Op::decode(&encode(&two)), None);
    // An engine of transactions is given what has several keys, but nothing without any.
    let several = [two, block(&["SET j v", "SET k v"], vec![]), op("GET k")];
    for op in several {
        assert_eq!(Op::decode_any(&encode(&op)), Some(op));
    }
    assert_eq!(Op::decode_any(&encode(&op("PING"))), None);
    // A borrowed call encodes as its owned form.
    let call = call("SET k v");
    let mut bytes = Vec::new();
    call.call().encode(&mut bytes);
    assert_eq!(bytes, encode(&Op::Call(call.clone())));
    assert_eq!(Command::into_owned(call.call()), Op::Call(call));
}

#[test]
fn golden_bytes_of_operations_and_answers() {
    let get = lookup_name(b"get").expect("a command").id as u8;
    let mut bytes = Vec::new();
    op("GET k").encode(&mut bytes);
    let golden = [0, get, 0, 2, 0, 0, 0, 3, 0, 0, 0, b'G', b'E', b'T', 1, 0, 0, 0, b'k'];
    assert_eq!(bytes, golden, "the layout changed without a new wire VERSION");
    bytes.clear();
    let watch = Watch { existed: true, timestamp: timestamp(0x0102) };
    block(&["GET k"], vec![watch]).encode(&mut bytes);
    let head = [1, 1, 0, 0, 0, 1, 0, 0, 0, b'k', 1, 2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(bytes, [&head[..], &golden[1..]].concat());
    bytes.clear();
    Reply::Array(vec![Reply::Ok, Reply::Int(-2), bulk("a"), Reply::Null]).encode(&mut bytes);
    let mut golden = vec![6, 4, 0, 0, 0, 0, 2, 0xfe];
    golden.extend([0xff; 7]);
    golden.extend([3, 1, 0, 0, 0, b'a', 4]);
    assert_eq!(bytes, golden, "the layout changed without a new wire VERSION");
}

fn any_reply() -> impl Strategy<Value = Reply<'static>> {
    let leaf = prop_oneof![
        Just(Reply::Ok),
        Just(Reply::Null),
        Just(Reply::NullArray),
        any::<i64>().prop_map(Reply::Int),
        any::<f64>().prop_filter("comparable", |f| !f.is_nan()).prop_map(Reply::Double),
        any::<f64>().prop_filter("comparable", |f| !f.is_nan()).prop_map(Reply::Decimal),
        any::<Vec<u8>>().prop_map(|bytes| Reply::Bulk(bytes.into())),
        any::<String>().prop_map(|text| Reply::Status(text.into())),
        any::<String>().prop_map(|text| Reply::Error(text.into())),
        any::<String>().prop_map(|text| Reply::Verbatim(text.into())),
        (any::<u64>(), any::<u32>(), any::<bool>()).prop_map(|(version, writer, existed)| {
            Reply::Version(Timestamp::new(version, WriterId(writer)), existed)
        }),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Reply::Array),
            prop::collection::vec(inner.clone(), 0..8).prop_map(Reply::Set),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Reply::Map),
        ]
    })
}

fn any_call() -> impl Strategy<Value = OwnedCall> {
    let value = prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        value.clone().prop_map(|v| OwnedCall::new([&b"SET"[..], b"k", &v])),
        value.clone().prop_map(|v| OwnedCall::new([&b"append"[..], b"k", &v])),
        Just(()).prop_map(|()| OwnedCall::new([&b"GET"[..], b"k"])),
        value.prop_map(|v| OwnedCall::new([&b"SET"[..], b"k", &v, b"EX", b"10", b"GET"])),
    ]
    .prop_map(|call| call.expect("a valid command"))
}

fn any_op() -> impl Strategy<Value = Op> {
    let watch =
        (any::<bool>(), any::<u64>(), any::<u32>()).prop_map(|(existed, version, writer)| Watch {
            existed,
            timestamp: Timestamp::new(version, WriterId(writer)),
        });
    let watches = prop::collection::vec(watch, 0..4);
    let calls = prop::collection::vec(any_call(), 0..5);
    let key = prop::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        any_call().prop_map(Op::Call),
        (watches, any_call(), calls).prop_map(|(watches, first, rest)| {
            let watches = watches.into_iter().map(|watch| (b"k"[..].into(), watch)).collect();
            let calls = std::iter::once(first).chain(rest).collect();
            Op::Block(Block { watches, calls })
        }),
        key.prop_map(|key| Op::Versions([key.into()].into())),
    ]
}

proptest! {
    #[test]
    fn operations_come_back(op in any_op()) {
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        prop_assert_eq!(Op::decode(&bytes), Some(op));
    }

    #[test]
    fn replies_come_back(reply in any_reply()) {
        let mut bytes = Vec::new();
        Op::encode_reply(&reply, &mut bytes);
        prop_assert_eq!(Op::decode_reply(&bytes), Some(reply));
    }

    #[test]
    fn garbage_is_decoded_to_nothing_or_to_something_that_runs(
        mut bytes in prop::collection::vec(any::<u8>(), 0..60),
        kind in 0..4_u8,
    ) {
        let _ = Op::decode_reply(&bytes);
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Some(op) = Op::decode(&bytes) {
            let _ = (op.key().len(), op.access(), op.apply(NOW, holding(b"v", None)));
        }
    }

    #[test]
    fn damaged_operations_are_decoded_to_nothing_or_to_something_that_runs(
        op in any_op(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Some(op) = Op::decode(&bytes) {
            let _ = (op.key().len(), op.access(), op.apply(NOW, holding(b"v", None)));
        }
    }
}

#[test]
fn a_command_nobody_knows_is_quoted_in_part() {
    let long = "x".repeat(200);
    let args = OwnedArgs::new([b"nope\r\n", long.as_bytes(), b"y"]);
    let expected =
        format!("ERR unknown command 'nope  ', with args beginning with: '{}' ", "x".repeat(128));
    assert_eq!(resolve(args.borrow()), Err(Reply::Error(expected.into())));
}

#[test]
fn what_would_answer_too_much_changes_nothing() {
    let value = vec![b'v'; REPLY_BYTES_MAX / 4];
    let current = holding(&value, None);
    let fits = block(&["STRLEN k", "GET k", "GET k", "GETSET k x"], vec![]);
    assert!(matches!(fits.apply(NOW, current), (Reply::Array(_), Change::Set { .. })));
    let large =
        block(&["GETSET k x", "SET k y", "SETRANGE k 4194300 zzzz", "MGET k k k k"], vec![]);
    let (reply, change) = large.apply(NOW, current);
    assert!(matches!(&reply, Reply::Error(text) if text.starts_with("EXECABORT ")), "{reply:?}");
    assert_eq!(change, Change::Keep);
    let one = op("MGET k k k k");
    let (reply, _) = one.apply(NOW, current);
    assert!(matches!(&reply, Reply::Error(text) if text.contains("16777216")), "{reply:?}");
    assert!(matches!(op("MGET k k k").apply(NOW, current).0, Reply::Array(_)));
}
