use quorate_engine::OptionValue;
use quorate_meerkat::{Isolation, Options};
use quorate_node::{Durability, EngineConfig};
use quorate_types::NodeSet;

use super::*;

const GOOD: &str = r#"[cluster]
name = "c"
lanes = 2

[[node]]
id = 1
peer = "127.0.0.1:7401"
client = "127.0.0.1:6379"
admin = "127.0.0.1:9400"

[[node]]
id = 2
peer = "127.0.0.1:7402"
client = "127.0.0.1:6380"
admin = "127.0.0.1:9401"

[[node]]
id = 3
peer = "127.0.0.1:7403"
client = "127.0.0.1:6381"
admin = "127.0.0.1:9402"

[[keyspace]]
db = 0
name = "default"
engine = "hermes"
"#;

fn error(text: &str) -> String {
    match Config::parse("q.toml", text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_example_is_good() {
    let text = include_str!("../../../../examples/quorate.toml");
    let config = Config::parse("example", text).unwrap();
    assert_eq!(config.nodes.len(), 3);
    assert_eq!(config.lease, NodeConfig::LEASE);
    assert_eq!(config.suspect_after, NodeConfig::SUSPECT_AFTER);
    assert!(config.warnings().is_empty());
    assert_eq!(config.node(2).unwrap().node, NodeId(2));
}

#[test]
fn administration_endpoints_have_the_names_of_their_addresses_and_more() {
    let example = include_str!("../../../../examples/quorate.toml");
    let text = format!("{example}\n[admin]\nhosts = [\"quorate.example\"]\n");
    let names = Config::parse("f", &text).unwrap().admin_names();
    assert_eq!(names, ["127.0.0.1", "127.0.0.1", "127.0.0.1", "quorate.example"]);
}

#[test]
fn guests_are_let_in_only_on_demand() {
    assert!(!Config::parse("q.toml", GOOD).unwrap().guests);
    let text = GOOD.replace("lanes = 2", "guests = true");
    assert!(Config::parse("q.toml", &text).unwrap().guests);
    assert!(error(&GOOD.replace("lanes = 2", "guests = 1")).contains("guests"));
}

/// Replaces `from` by `to` in a good file; the error must name the line and contain the words.
#[test]
fn each_mistake_names_line_key_and_remedy() {
    let table: &[(&str, &str, usize, &[&str])] = &[
        ("lanes = 2", "lane = 2", 3, &["lane", "unknown field", "spelling"]),
        ("lanes = 2", "lanes = 0", 3, &["[cluster] lanes", "0 is out of range", "1 to 64"]),
        ("lanes = 2", "lanes = 65", 3, &["[cluster] lanes", "65"]),
        ("lanes = 2", "lanes = \"2\"", 3, &["lanes", "invalid type"]),
        ("lanes = 2", "lease_ms = 5", 3, &["[cluster] lease_ms", "20 to 60000"]),
        ("lanes = 2", "suspect_ms = 149", 3, &["[cluster] suspect_ms", "150 to 600000"]),
        ("lanes = 2", "clock_drift_ppm = -1", 3, &["clock_drift_ppm", "-1 is out of range"]),
        ("name = \"c\"\n", "", 1, &["missing field `name`", "add it"]),
        (
            "[[node]]",
            "[admin]\nhosts = [\"quorate.example:80\"]\n[[node]]",
            6,
            &["[admin] hosts", "'quorate.example:80'", "without a port"],
        ),
        (
            "[[node]]",
            "[security]\nrequirepass = \"\"\n[[node]]",
            6,
            &["[security] requirepass", "leave"],
        ),
        ("id = 2", "id = 1", 12, &["[[node]] id", "1 is given twice, first on line 6"]),
        ("id = 2", "id = 64", 12, &["[[node]] id", "64 is out of range", "1 to 63"]),
        ("id = 2\n", "id = 2\nport = 1\n", 13, &["port", "unknown field"]),
        (":7402", ":6379", 13, &["[[node]] peer", "port 6379", "line 8"]),
        ("127.0.0.1:7402", "0.0.0.0:6379", 13, &["[[node]] peer", "port 6379"]),
        ("127.0.0.1:7402", "localhost", 13, &["[[node]] peer", "'localhost'", "host:port"]),
        ("db = 0", "db = 16", 24, &["[[keyspace]] db", "0 to 15"]),
        ("\"hermes\"", "\"paxos\"", 26, &["engine", "no engine \"paxos\"", "hermes", "meerkat"]),
        ("\"hermes\"", "\"local\"", 26, &["engine 'local' keeps one copy", "keep one [[node]]"]),
        ("\"hermes\"", "\"kuafu\"", 26, &["engine", "kuafu", "measuring instrument", "bench"]),
        ("\"hermes\"", "\"hermes\"\nreplicas = 4", 27, &["replicas", "4 replicas", "3 nodes"]),
        ("\"hermes\"", "\"hermes\"\nnodes = [1, 4]", 27, &["nodes", "no node 4"]),
        ("\"hermes\"", "\"hermes\"\nnodes = [1, 1]", 27, &["nodes", "named twice"]),
        ("\"hermes\"", "\"hermes\"\nnodes = []", 27, &["nodes", "no node replicates"]),
        ("\"hermes\"", "\"hermes\"\nnodes = [1]\nreplicas = 1", 28, &["replicas", "both"]),
        ("\"hermes\"", "\"hermes\"\nreads = \"dirty\"", 27, &["reads", "leased", "quorum"]),
        ("[[node]]", "[limits]\nmaxmemory = \"lots\"\n[[node]]", 6, &["maxmemory", "'lots'"]),
        (
            "[[node]]",
            "[limits]\nmaxmemory_clients = \"x\"\n[[node]]",
            6,
            &["maxmemory_clients", "'x'"],
        ),
        (
            "[[node]]",
            "[limits]\nmaxmemory_clients = \"5%\"\n[[node]]",
            6,
            &["[limits] maxmemory_clients", "set maxmemory"],
        ),
        (
            "[[node]]",
            "[limits]\nmaxmemory = \"1gb\"\nmaxmemory_clients = \"101%\"\n[[node]]",
            7,
            &["maxmemory_clients", "'101%'", "5%"],
        ),
        ("[[node]]", "[limits]\nmaxclients = 0\n[[node]]", 6, &["maxclients"]),
        ("[[node]]", "[limits]\nsessions_max = -1\n[[node]]", 6, &["sessions_max", "0 to"]),
        ("[[node]]", "[runtime]\nbusy_poll_us = -1\n[[node]]", 6, &["busy_poll_us"]),
        ("[cluster]", "[cluster", 1, &["correct the TOML"]),
    ];
    for (from, to, line, words) in table {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let error = error(&text);
        assert!(error.starts_with(&format!("q.toml, line {line}, ")), "{to}: {error}");
        for word in *words {
            assert!(error.contains(word), "{to}: '{word}' is missing in: {error}");
        }
    }
}

/// The engine's configuration and the replicas of a meerkat keyspace with these further lines.
fn meerkat(more: &str) -> KeyspaceConfig {
    let text = GOOD.replace("\"hermes\"", &format!("\"meerkat\"\n{more}"));
    let config = Config::parse("q.toml", &text).unwrap_or_else(|error| panic!("{more}: {error}"));
    config.keyspaces.into_iter().next().unwrap()
}

fn set(nodes: &[u16]) -> NodeSet {
    nodes.iter().copied().map(NodeId).collect()
}

#[test]
fn a_meerkat_keyspace_has_defaults_and_options() {
    let plain = meerkat("");
    assert_eq!((plain.engine, plain.replicas), (EngineConfig::meerkat(), None));
    for (text, isolation) in
        [("strict", Isolation::Strict), ("serializable", Isolation::Serializable)]
    {
        for skew_ms in [0, 7, 10_000] {
            let options = format!("isolation = \"{text}\"\nmax_clock_skew_ms = {skew_ms}");
            let max_clock_skew = Duration::from_millis(skew_ms);
            let expected = EngineConfig::Meerkat(Options { isolation, max_clock_skew });
            assert_eq!(meerkat(&options).engine, expected);
        }
    }
}

#[test]
fn a_zeus_keyspace_says_how_many_copies_it_keeps_and_not_where() {
    let text = |more: &str| {
        let zeus = format!("\"zeus\"\n{more}");
        GOOD.replace("\"hermes\"", &zeus)
    };
    for (more, replicas) in [("", 0), ("replicas = 0", 0), ("replicas = 2", 2), ("replicas = 3", 3)]
    {
        let config = Config::parse("q.toml", &text(more));
        let config = config.unwrap_or_else(|error| panic!("{more}: {error}"));
        let keyspace = &config.keyspaces[0];
        assert_eq!(keyspace.engine.get("replicas"), OptionValue::Number(replicas), "{more}");
        assert_eq!(keyspace.replicas, None, "every node may have any key");
    }
    let warnings =
        |more: &str| Config::parse("q.toml", &text(more)).expect("it is legal").warnings();
    assert!(warnings("replicas = 3").is_empty() && warnings("").is_empty());
    let fragile = warnings("replicas = 2");
    assert!(fragile[0].contains("2 replicas: it cannot lose a node"), "{fragile:?}");
    for (more, words) in [
        ("replicas = 4", &["[[keyspace]] replicas", "4 is out of range", "choose 0 to 3"][..]),
        ("nodes = [1, 2]", &["[[keyspace]] nodes", "chooses nodes for each key", "replicas"]),
        ("partitions = 2", &["[[keyspace]] partitions", "'zeus' has no partitions"]),
    ] {
        let error = error(&text(more));
        assert!(error.starts_with("q.toml, line 27, "), "{more}: {error}");
        words.iter().for_each(|word| assert!(error.contains(word), "{more}: {error}"));
    }
}

#[test]
fn the_nodes_of_partitions_are_those_of_the_keyspace_or_listed() {
    for (more, groups, replicas) in [
        ("partitions = 64", vec![None; 64], None),
        ("partitions = 2\nnodes = [1, 3]", vec![None; 2], Some(set(&[1, 3]))),
        ("partition_nodes = [[2, 1], [2]]", vec![Some(set(&[1, 2])), Some(set(&[2]))], {
            Some(set(&[1, 2]))
        }),
    ] {
        let keyspace = meerkat(more);
        assert_eq!((keyspace.partitions, keyspace.replicas), (groups, replicas), "{more}");
    }
}

#[test]
fn each_mistake_in_a_meerkat_keyspace_names_line_key_and_remedy() {
    let table: &[(&str, usize, &[&str])] = &[
        ("isolation = \"snapshot\"", 27, &["isolation", "strict", "serializable"]),
        ("max_clock_skew_ms = -1", 27, &["[[keyspace]] max_clock_skew_ms", "0 to 10000"]),
        ("max_clock_skew_ms = 10001", 27, &["max_clock_skew_ms", "10001 is out of range"]),
        ("partitions = 0", 27, &["[[keyspace]] partitions", "0 is out of range", "1 to 64"]),
        ("partitions = 65", 27, &["[[keyspace]] partitions", "65"]),
        ("partition_nodes = []", 27, &["[[keyspace]] partition_nodes", "0 partitions", "1 to 64"]),
        ("partition_nodes = [[1], []]", 27, &["partition_nodes", "no node replicates"]),
        ("partition_nodes = [[1, 2, 3],\n[4]]", 28, &["partition_nodes", "no node 4"]),
        ("partition_nodes = [[1, 2, 1]]", 27, &["partition_nodes", "named twice"]),
        ("partition_nodes = 3", 27, &["partition_nodes", "invalid type"]),
        ("partitions = 1\npartition_nodes = [[1]]", 28, &["both partitions and", "keep one"]),
        ("nodes = [1]\npartition_nodes = [[1]]", 28, &["both nodes and", "keep one"]),
        ("replicas = 1\npartition_nodes = [[1]]", 28, &["both replicas and", "keep one"]),
    ];
    for (more, line, words) in table {
        let error = error(&GOOD.replace("\"hermes\"", &format!("\"meerkat\"\n{more}")));
        assert!(error.starts_with(&format!("q.toml, line {line}, ")), "{more}: {error}");
        for word in *words {
            assert!(error.contains(word), "{more}: '{word}' is missing in: {error}");
        }
    }
}

#[test]
fn an_option_of_another_engine_names_the_engine_it_belongs_to() {
    for (engine, other, options) in [
        ("meerkat", "hermes", &["reads = \"leased\"", "ack_broadcast = false"][..]),
        ("hermes", "meerkat", &["isolation = \"strict\"", "max_clock_skew_ms = 50"]),
    ] {
        for option in options {
            let text = GOOD.replace("\"hermes\"", &format!("\"{engine}\"\n{option}"));
            let key = option.split(' ').next().unwrap();
            let expected = format!(
                "q.toml, line 27, [[keyspace]] {key}: it is an option of engine \"{other}\", not \
                 of \"{engine}\"; remove the key, or choose engine = \"{other}\""
            );
            assert_eq!(error(&text), expected);
        }
    }
}

#[test]
fn what_is_no_option_of_any_engine_and_partitions_of_one_without_name_the_remedy() {
    for (option, words) in [
        ("colour = \"red\"", &["[[keyspace]] colour", "reads, ack_broadcast"][..]),
        ("reads = 3", &["[[keyspace]] reads", "\"leased\" or \"quorum\""]),
        ("ack_broadcast = [1]", &["ack_broadcast", "true, false, a whole number"]),
        ("partitions = 1", &["[[keyspace]] partitions", "no partitions", "'meerkat'"]),
        ("partition_nodes = [[1]]", &["partition_nodes", "no partitions", "'meerkat'"]),
    ] {
        let error = error(&GOOD.replace("\"hermes\"", &format!("\"hermes\"\n{option}")));
        assert!(error.starts_with("q.toml, line 27, "), "{error}");
        words.iter().for_each(|word| assert!(error.contains(word), "'{word}' in {error}"));
    }
}

#[test]
fn each_partition_that_cannot_lose_a_node_is_warned_about() {
    let more = "\"meerkat\"\npartition_nodes = [[1, 2, 3], [3, 1], [2]]";
    let warnings = Config::parse("q.toml", &GOOD.replace("\"hermes\"", more)).unwrap().warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("partition 1 of keyspace 'default'"), "{warnings:?}");
    assert!(warnings[0].contains("2 replicas") && warnings[1].contains("1 replica:"));
    let more = "\"meerkat\"\npartitions = 5\nreplicas = 2";
    let warnings = Config::parse("q.toml", &GOOD.replace("\"hermes\"", more)).unwrap().warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[test]
fn keyspaces_have_numbers_and_names_of_their_own() {
    let more = "\n[[keyspace]]\ndb = 0\nname = \"other\"\nengine = \"hermes\"\n";
    let twice = error(&format!("{GOOD}{more}"));
    assert!(twice.contains("[[keyspace]] db: 0 is given twice, first on line 24"), "{twice}");
    let more = "\n[[keyspace]]\ndb = 1\nname = \"default\"\nengine = \"hermes\"\n";
    let twice = error(&format!("{GOOD}{more}"));
    assert!(twice.contains("[[keyspace]] name: default is given twice"), "{twice}");
}

#[test]
fn a_cluster_has_nodes_but_not_too_many() {
    assert!(error("[cluster]\nname = \"c\"\n").contains("there is no node"));
    let mut text = "[cluster]\nname = \"c\"\n".to_owned();
    for id in 1..=10 {
        text += &format!(
            "[[node]]\nid = {id}\npeer = \"h:{id}\"\nclient = \"h:1{id}\"\nadmin = \"h:2{id}\"\n"
        );
    }
    assert!(error(&text).contains("at most 9 nodes"));
}

#[test]
fn an_id_that_is_not_in_the_file_is_named() {
    let error = Config::parse("q.toml", GOOD).unwrap().node(4).unwrap_err().to_string();
    assert!(error.contains("no node 4") && error.contains("1, 2, 3"), "{error}");
}

#[test]
fn a_keyspace_that_cannot_lose_a_node_is_warned_about() {
    let text = GOOD.replace("\"hermes\"", "\"hermes\"\nreplicas = 2");
    let warnings = Config::parse("q.toml", &text).unwrap().warnings();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("'default'") && warnings[0].contains("2 replicas"));
}

#[test]
fn sizes_are_written_as_in_redis() {
    for (text, bytes) in [
        ("0", Some(0)),
        ("100", Some(100)),
        ("1kb", Some(1024)),
        ("4GB", Some(4 << 30)),
        ("1k", Some(1000)),
        ("", None),
        ("gb", None),
        ("1tb", None),
        ("99999999999999gb", None),
    ] {
        assert_eq!(bytes_of(text), bytes, "{text}");
    }
}

fn durable(more: &str, disk: &str) -> String {
    format!("{GOOD}durability = {more}\n{disk}")
}

#[test]
fn a_durable_keyspace_has_a_directory_for_each_node() {
    let disk = "[disk]\ndir = \"/data\"\nfsync_interval_ms = 5\nrevive_patience_ms = 250\nsnapshot_after = \"1gb\"\nsegment = \"2m\"\n";
    let config = Config::parse("f", &durable("\"sync\"", disk)).unwrap();
    let node = config.node(2).unwrap();
    assert_eq!(node.keyspaces[0].durability, Durability::Sync);
    assert_eq!(config.directory(&node), Some("/data/node-2".into()));
    assert_eq!(node.log.fsync_interval, Duration::from_millis(5));
    assert_eq!(node.revive_patience, Duration::from_millis(250));
    // A segment is a whole number of blocks.
    assert_eq!((node.log.snapshot_after, node.log.segment_bytes), (1 << 30, 2_002_944));
    let memory = Config::parse("f", &durable("\"memory\"", disk)).unwrap();
    assert_eq!(memory.directory(&memory.node(2).unwrap()), None, "nothing would be in it");
}

#[test]
fn a_durability_that_can_not_be_is_an_error_with_its_line() {
    let disk = "[disk]\ndir = \"/data\"\n";
    assert_eq!(
        error(&durable("\"disk\"", disk)),
        "q.toml, line 27, [[keyspace]] durability: there is no durability \"disk\"; choose \"memory\", \
         \"async\" or \"sync\""
    );
    assert_eq!(
        error(&durable("\"sync\"", "")),
        "q.toml, line 27, [[keyspace]] durability: \"sync\" needs a directory, and the file names none; \
         add [disk] with dir = \"...\", or choose \"memory\""
    );
    let file = format!(
        "[cluster]\nname = \"q\"\nlanes = 2\n{disk}[[node]]\nid = 1\npeer = \"h:1\"\n\
         client = \"h:2\"\nadmin = \"h:3\"\n[[keyspace]]\ndb = 0\nname = \"a\"\n\
         durability = \"sync\"\nengine = \"hermes\"\nack_broadcast = true\n"
    );
    assert_eq!(
        error(&file),
        "q.toml, line 14, [[keyspace]] durability: ack_broadcast takes an update for what its sender has \
         made durable, which it has not yet with durability = \"sync\"; set it to false, or choose \
         \"async\" or \"memory\""
    );
    for able in ["memory", "async"] {
        let file = file.replace("\"sync\"", &format!("\"{able}\""));
        assert!(Config::parse("q.toml", &file).is_ok(), "{file}");
    }
    for (line, problem) in [
        ("dir = \"\"", "the name of the directory is empty"),
        ("fsync_interval_ms = 0", "0 is out of range; choose 1 to 60000"),
        ("revive_patience_ms = 3600001", "3600001 is out of range; choose 0 to 3600000"),
        ("segment = \"1kb\"", "1024 bytes are out of range; choose 1048576 to 1073741824 bytes"),
        ("snapshot_after = \"much\"", "'much' is not a number of bytes"),
    ] {
        let said = error(&format!("{GOOD}[disk]\n{line}\n"));
        assert!(said.starts_with("q.toml, line 28, [disk] ") && said.contains(problem), "{said}");
    }
}
