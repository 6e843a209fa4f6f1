//! Sorted sets beyond Redis's compact encoding, and what is drawn at random from them.

#[expect(dead_code, reason = "other tests call commands by their words")]
mod redis;
#[expect(dead_code, reason = "the examples are a test of their own")]
mod workspace;

use quorate_machine::Rng;
use redis::Redis;
use workspace::{Answer, Store, Words, show};

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Answers of a scan of a large sorted set come in an order of their own.
fn agree(words: &Words, ours: &Answer, theirs: &Answer) -> bool {
    let pairs = |answer: &Answer| {
        let Answer::Array(parts) = answer else { return None };
        let Answer::Array(members) = &parts[1] else { return None };
        let (pairs, []) = members.as_chunks::<2>() else { return None };
        let mut pairs: Vec<_> = pairs.iter().map(|pair| format!("{pair:?}")).collect();
        pairs.sort();
        Some(pairs)
    };
    ours == theirs
        || words[0] == b"ZSCAN" && pairs(ours).is_some_and(|ours| Some(ours) == pairs(theirs))
}

/// So many members that a set is large now and then, some of them too long for a listpack. Where names
/// make a range, all scores are 0: otherwise Redis's answer is a matter of chance.
fn command(rng: &mut Rng) -> Words {
    let mut pick = |pool: &[&str]| pool[rng.below(pool.len() as u64) as usize].to_owned();
    let key = pick(&["by score", "by name", "few"]);
    let lex = pick(&["-", "+", "[m1", "(m1", "[m2", "(m3", "[m100", "(m9"]);
    let other_lex = pick(&["-", "+", "+", "[m15", "(m2", "[m3", "(m9"]);
    let bound = pick(&["-inf", "(0", "3", "(7.5", "-2"]);
    let other_bound = pick(&["+inf", "10", "(10", "5", "-1"]);
    let number = |rng: &mut Rng, below| rng.below(below).to_string();
    let member = |rng: &mut Rng| match rng.below(300) {
        0 => format!("m{}", "x".repeat(64)),
        1 => format!("m{}", "x".repeat(63)),
        number => format!("m{number}"),
    };
    let mut line: Vec<String> = match rng.below(18) {
        0..6 => {
            let mut line = vec!["ZADD".to_owned(), key.clone()];
            for _ in 0..=rng.below(if key == "few" { 2 } else { 60 }) {
                let score = match (key.as_str(), rng.below(8)) {
                    ("by name", _) => "0".to_owned(),
                    (_, 0) => "1e17".to_owned(),
                    (_, 1) => format!("{}.1", rng.below(20)),
                    _ => number(rng, 20),
                };
                line.extend([score, member(rng)]);
            }
            line
        }
        6 if key == "by name" => vec!["ZREM".into(), key, member(rng)],
        6 => vec!["ZINCRBY".into(), key, number(rng, 9), member(rng)],
        7 => [vec!["ZREM".into(), key], (0..40).map(|_| member(rng)).collect()].concat(),
        8 => vec!["ZRANK".into(), key, member(rng)],
        9 => vec!["ZREVRANGE".into(), key, number(rng, 300), number(rng, 300)],
        10 => vec!["ZRANGE".into(), key, "0".into(), "-1".into(), "WITHSCORES".into()],
        11 => [
            vec!["ZRANGE".into(), key, other_bound, bound, "BYSCORE".into(), "REV".into()],
            vec!["LIMIT".into(), number(rng, 20), number(rng, 90)],
        ]
        .concat(),
        12 => vec!["ZREMRANGEBYSCORE".into(), key, bound.clone(), bound],
        13 => vec!["ZREMRANGEBYRANK".into(), key, number(rng, 300), number(rng, 200)],
        14 => ["ZRANGEBYLEX", "by name", &lex, &other_lex].map(str::to_owned).into(),
        15 => ["ZREVRANGEBYLEX", "by name", &other_lex, &lex].map(str::to_owned).into(),
        16 => ["ZUNIONSTORE", "few", "2", "by score", "few"].map(str::to_owned).into(),
        _ => vec!["ZPOPMAX".into(), key, number(rng, 60)],
    };
    if rng.chance(1, 12) {
        let key = ["by score", "by name", "few"][rng.below(3) as usize];
        line = match rng.below(3) {
            0 => ["ZSCAN", key, "0", "COUNT", "1000"].map(str::to_owned).into(),
            1 => ["ZRANGESTORE", "few", key, "10", "20"].map(str::to_owned).into(),
            _ => ["ZLEXCOUNT", "by name", &lex, &other_lex].map(str::to_owned).into(),
        };
    }
    line.into_iter().map(String::into_bytes).collect()
}

#[test]
fn large_sorted_sets_answer_as_those_of_redis() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    let mut rng = Rng::new(7);
    let (mut large, mut compact) = (0, 0);
    for round in 0..3_000 {
        let key = ["by score", "by name", "few"][round % 3];
        let encoding: Words = ["OBJECT", "ENCODING", key].map(|word| word.into()).into();
        for words in [command(&mut rng), encoding] {
            let (ours, theirs) = (store.run(&words), redis.pipeline([&words]).remove(0));
            assert!(
                agree(&words, &ours, &theirs),
                "round {round}: {}\n  ours:   {ours:?}\n  theirs: {theirs:?}",
                show(&words)
            );
            large += usize::from(ours == Answer::Bulk(b"skiplist".into()));
            compact += usize::from(ours == Answer::Bulk(b"listpack".into()));
        }
    }
    assert!(large > 500 && compact > 200, "{large} large and {compact} compact");
}

#[test]
fn drawn_members_are_members_and_all_come_up() {
    let mut store = Store::default();
    store.run(&words("ZADD z 1 a 2 b 3 c 4 d"));
    let mut seen = std::collections::BTreeSet::new();
    for version in 0..100 {
        store.version = version;
        store.now.0 += 1;
        let Answer::Bulk(one) = store.run(&words("ZRANDMEMBER z")) else { panic!("a member") };
        seen.insert(one);
        let Answer::Array(two) = store.run(&words("ZRANDMEMBER z 2")) else { panic!("members") };
        assert!(two.len() == 2 && two[0] != two[1], "{two:?}");
        let drawn = store.run(&words("ZRANDMEMBER z -9 WITHSCORES"));
        let Answer::Array(drawn) = drawn else { panic!("members") };
        assert_eq!(drawn.len(), 18);
        for pair in drawn.chunks(2) {
            let (Answer::Bulk(member), Answer::Bulk(score)) = (&pair[0], &pair[1]) else {
                panic!("{pair:?}");
            };
            assert_eq!(member[0] - b'a' + 1, score[0] - b'0', "{pair:?}");
        }
    }
    assert_eq!(seen.len(), 4);
    let huge = store.run(&words("ZRANDMEMBER z -9223372036854775807"));
    assert!(matches!(huge, Answer::Error(ref text) if text.contains("16777216")), "{huge:?}");
}

#[test]
fn a_scan_visits_every_member_of_a_large_set_once() {
    let mut store = Store::default();
    let mut add = words("ZADD z");
    (0..500).for_each(|number| add.extend(words(&format!("{number} member{number}"))));
    assert_eq!(store.run(&add), Answer::Int(500));
    let (mut cursor, mut seen, mut parts) = ("0".to_owned(), vec![], 0);
    loop {
        let Answer::Array(answer) = store.run(&words(&format!("ZSCAN z {cursor} COUNT 40"))) else {
            panic!("a cursor and members");
        };
        let [Answer::Bulk(next), Answer::Array(part)] = &answer[..] else { panic!("{answer:?}") };
        seen.extend(part.chunks(2).map(|pair| format!("{:?}", pair[0])));
        (cursor, parts) = (String::from_utf8_lossy(next).into_owned(), parts + 1);
        if cursor == "0" {
            break;
        }
    }
    assert!(parts >= 12, "{parts}");
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 500);
}

#[test]
fn ties_stand_in_the_order_of_their_bytes() {
    let mut store = Store::default();
    let mut ask = |line: &str| format!("{:?}", store.run(&words(line)));
    assert_eq!(ask("ZADD z 1 b 1 d"), ":2");
    assert_eq!(ask("ZADD z 1 c 1 a 1 e"), ":3");
    assert_eq!(ask("ZRANGE z 0 -1"), r#"["a", "b", "c", "d", "e"]"#);
}

/// What a Redis 7.0.15 answered: it begins with the smallest set.
#[test]
fn sums_depend_on_the_sizes_of_the_sets() {
    let mut store = Store::default();
    let mut ask = |line: &str| format!("{:?}", store.run(&words(line)));
    assert_eq!(ask("ZADD large 1e300 a 1 b 1 c"), ":3");
    assert_eq!(ask("ZADD small -1e300 a 1 b"), ":2");
    assert_eq!(ask("ZADD one 1 a"), ":1");
    assert_eq!(ask("ZINTER 3 large small one WITHSCORES"), "[\"a\", \"0\"]");
    assert_eq!(ask("ZADD infinite inf a 1 b"), ":2");
    let union = "ZUNION 3 infinite large one WEIGHTS 1 -inf 1 WITHSCORES";
    assert_eq!(ask(union), "[\"b\", \"-inf\", \"c\", \"-inf\", \"a\", \"0\"]");
}

/// An option of Redis 7.2, as its documentation shows it.
#[test]
fn a_rank_comes_with_its_score() {
    let mut store = Store::default();
    let mut ask = |line: &str| format!("{:?}", store.run(&words(line)));
    assert_eq!(ask("ZADD z 1 one 2 two 3 three"), ":3");
    assert_eq!(ask("ZRANK z three WITHSCORE"), "[:2, \"3\"]");
    assert_eq!(ask("ZREVRANK z three withscore"), "[:0, \"3\"]");
    assert_eq!(ask("ZRANK z four WITHSCORE"), "null array");
    assert_eq!(ask("ZRANK none four WITHSCORE"), "null array");
    assert_eq!(ask("ZRANK z four"), "null");
    assert_eq!(ask("ZRANK z three WITHSCORES"), "-ERR syntax error");
    assert_eq!(ask("ZRANK z three WITHSCORE x"), "-ERR syntax error");
}

/// The keys of a call are known before it runs: it writes no other.
#[test]
fn a_search_stores_only_where_its_keys_say() {
    let mut store = Store::default();
    let mut ask = |line: &str| format!("{:?}", store.run(&words(line)));
    assert_eq!(ask("GEOADD g 13 38 a 15 37 b"), ":2");
    for options in ["STORE x STORE y", "STOREDIST STORE STORE y", "STORE x STOREDIST y STORE z"] {
        let answer = ask(&format!("GEORADIUS g 15 37 300 km {options}"));
        assert!(answer.contains("stated twice"), "{options}: {answer}");
    }
    assert_eq!(ask("EXISTS x y z STORE"), ":0");
    assert_eq!(ask("GEORADIUS g 15 37 300 km STORE x STOREDIST y"), ":2");
    assert_eq!(ask("GEORADIUS g 15 37 300 km STORE y STORE y"), ":2");
    assert_eq!(ask("EXISTS x y"), ":1");
}

/// A call with very many members looks at each a few times, not at each for each.
#[test]
fn very_many_members_in_one_call() {
    let mut store = Store::default();
    let count = 30_000;
    let names = || (0..count).map(|number: u64| number.wrapping_mul(0x9e37_79b9) % 1_000_003);
    let mut add = words("ZADD z");
    names().for_each(|name| add.extend(words(&format!("{} m{name}", name % 100))));
    let members: Vec<Vec<u8>> = add[2..].chunks(2).map(|pair| pair[1].clone()).collect();
    let distinct = members.iter().collect::<std::collections::BTreeSet<_>>().len() as i64;
    assert_eq!(store.run(&add), Answer::Int(distinct));
    assert_eq!(store.run(&add), Answer::Int(0));
    assert_eq!(store.run(&words("ZCARD z")), Answer::Int(distinct));
    let Answer::Array(scores) = store.run(&[words("ZMSCORE z"), members.clone()].concat()) else {
        panic!("scores");
    };
    assert!(!scores.contains(&Answer::Null));
    assert_eq!(store.run(&words("ZUNIONSTORE u 3 z z z")), Answer::Int(distinct));
    assert_eq!(store.run(&words("ZINTERSTORE i 2 u z")), Answer::Int(distinct));
    assert_eq!(store.run(&words("ZDIFFSTORE d 2 u i")), Answer::Int(0));
    assert_eq!(store.run(&[words("ZREM z"), members].concat()), Answer::Int(distinct));
    assert_eq!(store.run(&words("EXISTS z")), Answer::Int(0));
}

#[test]
fn a_set_longer_than_a_value_is_refused_and_changes_nothing() {
    let mut store = Store::default();
    // A large one may be longer.
    store.large = store.large.with_large(usize::MAX);
    let long = |number: u64| format!("{number:0>1000}").repeat(100).into_bytes();
    for number in 0..41 {
        for (line, number) in [("ZADD z 1", number), ("ZADD y 1", number + 41)] {
            let add: Words = [words(line), vec![long(number)]].concat();
            assert_eq!(store.run(&add), Answer::Int(1));
        }
    }
    let is_refused =
        |answer: Answer| matches!(answer, Answer::Error(text) if text.contains("4194304"));
    assert!(is_refused(store.run(&[words("ZADD z 1"), vec![long(99)]].concat())));
    assert!(is_refused(store.run(&words("ZUNIONSTORE z 2 z y"))));
    assert_eq!(store.run(&words("ZCARD z")), Answer::Int(41));
    assert_eq!(store.run(&words("ZINTERSTORE x 2 z y")), Answer::Int(0));
}
