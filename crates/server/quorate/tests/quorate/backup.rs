//! `quorate backup` and `quorate restore`, between real nodes, while others write.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::support::dev::Dev;
use crate::support::files::{Directory, assert_same, at, call, content, fail, fill, run};
use crate::support::redis::{Raw, Redis};
use crate::support::{Cluster, Process, keyspace};

/// A cluster with lanes and databases that no crowded machine keeps from its leases.
fn cluster(engine: &str) -> (Cluster, Vec<Process>) {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Relaxed);
    let keyspaces = [0, 3, 5, 6, 7, 9]
        .map(|db| format!("[[keyspace]]\ndb = {db}\nname = \"n{db}\"\nengine = \"{engine}\"\n"));
    let nodes = if engine == "local" { 1 } else { 3 };
    let settings = "lanes = 2\nlease_ms = 5000";
    let name = format!("backup-{engine}-{number}");
    let cluster = Cluster::write(&name, nodes, settings, &keyspaces.concat());
    let nodes = cluster.serve_all();
    (cluster, nodes)
}

/// Names of libraries, and how much the functions in them answer.
const LIBRARIES: [(u32, &str, u32); 3] = [(0, "one", 7), (0, "two", 8), (3, "three", 9)];
/// A database that has libraries and no keys.
const EMPTY: u32 = 5;

fn load(client: &mut Raw, database: u32, name: &str, answer: u32) {
    call(client, &format!("SELECT {database}"));
    let source = format!(
        "#!lua name={name}\nredis.register_function('f_{name}', function() return {answer} end)"
    );
    let reply = client.ask(&["FUNCTION", "LOAD", &source]).unwrap();
    assert!(reply.starts_with(b"$"), "{}", String::from_utf8_lossy(&reply));
}

/// The libraries of a database, as a server tells them.
fn libraries(port: u16, database: u32) -> Vec<u8> {
    let mut client = Raw::new(port);
    call(&mut client, &format!("SELECT {database}"));
    client.ask(&["FUNCTION", "DUMP"]).unwrap()
}

#[test]
fn all_types_expiries_and_libraries_come_back() {
    for engine in ["meerkat", "hermes", "zeus"] {
        let directory = Directory::new("types");
        let (origin, _nodes) = cluster(engine);
        let mut client = Raw::new(origin.clients[0]);
        fill(&mut client);
        // Longer than one answer may be.
        call(&mut client, "SELECT 6");
        for round in 0..20 {
            let item = |number| format!(" {round}:{number}:{}", "v".repeat(900));
            let items: String = (0..1000).map(item).collect();
            call(&mut client, &format!("RPUSH large{items}"));
        }
        // Where an engine has libraries.
        let has_libraries = engine != "hermes";
        if has_libraries {
            for (database, name, answer) in LIBRARIES {
                load(&mut client, database, name, answer);
            }
            load(&mut client, EMPTY, "alone", 10);
        }
        let out = directory.file("backup.rdb");
        let told = run(&["backup", "--out", &out, "--target", &at(origin.clients[1])]);
        assert!(told.contains("31 keys"), "{told}");
        assert_eq!(told.contains("libraries of functions: 4"), has_libraries, "{told}");
        assert!(told.contains("all of it is of one moment"), "{engine}: {told}");
        // Into another cluster, by the way of another node.
        let (copy, _nodes) = cluster("meerkat");
        let target = at(copy.clients[2]);
        let told = run(&["restore", &out, "--target", &target]);
        assert!(told.contains("restored 31 keys"), "{told}");
        assert!(
            told.contains("a backup of cluster \"backup-") && told.contains("\", of one moment"),
            "{told}"
        );
        for database in [0, 3, 5, 7, 9] {
            let there = content(origin.clients[0], database);
            assert_same(&there, &content(copy.clients[1], database), engine);
            let [one, other] = [&origin, &copy].map(|one| libraries(one.clients[0], database));
            assert_eq!(one == other, has_libraries, "{engine}: libraries of {database}");
        }
        let mut client = Raw::new(copy.clients[0]);
        if has_libraries {
            assert_eq!(call(&mut client, "FCALL f_two 0"), ":8\r\n");
        }
        call(&mut client, "SELECT 6");
        assert_eq!(call(&mut client, "LLEN large"), ":20000\r\n");
        assert!(call(&mut client, "LINDEX large -1").contains("19:999:vvv"));
        call(&mut client, "SELECT 0");
        // A Redis reads it as well, and so does an import.
        let redis = Redis::start(&["--dir", directory.path(), "--dbfilename", "backup.rdb"]);
        let strings = |client: &mut Raw| call(client, "MGET text int:64 float until:s");
        assert_eq!(strings(&mut Raw::new(redis.port)), strings(&mut client));
        let told = fail(&["restore", &out, "--target", &target]);
        assert!(told.contains("database 0 has 29 keys") && told.contains("--overwrite"), "{told}");
        let told = run(&["import", &out, "--target", &target, "--replace"]);
        assert!(told.contains("imported 31 keys"), "{told}");
        assert_eq!(told.contains("library \"one\" was left out"), has_libraries, "{told}");
    }
}

/// How many keys a writer goes round.
const KEYS: u64 = 300;

/// Says that something has ended, also if a test fails there.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// One writer writes numbers in their order, another copies some of them at another node.
fn write(ports: [u16; 2], is_over: &AtomicBool, backup: impl FnOnce()) {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut client = Raw::new(ports[0]);
            for number in KEYS.. {
                if is_over.load(Relaxed) {
                    return;
                }
                call(&mut client, &format!("SET a:{} {number}", number % KEYS));
            }
        });
        scope.spawn(move || {
            let mut client = Raw::new(ports[1]);
            for number in (0..).map(|round: u64| round * 7 % KEYS) {
                if is_over.load(Relaxed) {
                    return;
                }
                let seen = number_in(&call(&mut client, &format!("GET a:{number}")));
                call(&mut client, &format!("SET b:{number} {seen}"));
            }
        });
        let _end = End(is_over);
        backup();
    });
}

fn number_in(reply: &str) -> u64 {
    reply.trim_end().rsplit("\r\n").next().unwrap().parse().unwrap()
}

/// The numbers of both writers, as they were restored.
fn numbers(port: u16) -> BTreeMap<String, u64> {
    let mut client = Raw::new(port);
    let names = (0..KEYS).flat_map(|number| [format!("a:{number}"), format!("b:{number}")]);
    let got = names.map(|name| {
        let number = number_in(&call(&mut client, &format!("GET {name}")));
        (name, number)
    });
    got.collect()
}

/// Every write of some beginning of the first writer's, and no later one; and no copy without what it was
/// copied from.
fn assert_one_moment(numbers: &BTreeMap<String, u64>, of: &str) {
    let of_a = |number: u64| numbers[&format!("a:{number}")];
    let last = (0..KEYS).map(of_a).max().unwrap();
    for number in 0..KEYS {
        let behind = (last + KEYS - number) % KEYS;
        assert_eq!(of_a(number), last - behind, "{of}: a:{number}, and {last} was written");
        let copy = numbers[&format!("b:{number}")];
        assert!(copy <= of_a(number), "{of}: b:{number} is a copy of {copy}, which is not there");
    }
}

#[test]
fn a_backup_under_load_is_of_one_moment() {
    let directory = Directory::new("load");
    for engine in ["meerkat", "hermes", "zeus", "local"] {
        let (origin, _nodes) = cluster(engine);
        let port = |node: usize| origin.clients[node % origin.clients.len()];
        let mut client = Raw::new(port(0));
        for number in 0..KEYS {
            call(&mut client, &format!("SET a:{number} {number}"));
            call(&mut client, &format!("SET b:{number} 0"));
        }
        for number in 0..3000 {
            call(&mut client, &format!("SET other:{number} {number}"));
        }
        let out = directory.file(&format!("{engine}.rdb"));
        let is_over = AtomicBool::new(false);
        let mut told = String::new();
        write([port(0), port(1)], &is_over, || {
            let target = at(port(2));
            let mut words = vec!["backup", "--out", &out, "--target", &target];
            words.extend(["--pause-writes", "9000"]);
            if engine == "hermes" {
                words.extend(["--rate", "1"]);
            }
            told = run(&words);
        });
        assert!(told.contains("all of it is of one moment"), "{engine}: {told}");
        let copy = Dev::start(&["--nodes", "1"]);
        run(&["restore", &out, "--target", &at(copy.clients[0]), "--quiet"]);
        let numbers = numbers(copy.clients[0]);
        assert_one_moment(&numbers, engine);
        let all = content(copy.clients[0], 0);
        assert_eq!(all.len(), 3000 + 2 * KEYS as usize);
        assert!(told.contains("of keys that have changed since"), "{engine}: {told}");
        assert!(told.contains("writes waited for"), "{engine}: {told}");
        // The writers go on when it has ended: the pause has ended at every node.
        for node in 0..origin.clients.len() {
            call(&mut Raw::new(port(node)), "SET after 1");
        }
    }
}

#[test]
fn a_rate_is_kept() {
    let (origin, _nodes) = cluster("local");
    let port = origin.clients[0];
    let mut client = Raw::new(port);
    let value = "x".repeat(4096);
    for number in 0..512 {
        call(&mut client, &format!("SET large:{number} {value}"));
    }
    let directory = Directory::new("rate");
    for command in ["backup", "export"] {
        let out = directory.file(&format!("{command}.rdb"));
        let begin = std::time::Instant::now();
        run(&[command, "--out", &out, "--target", &at(port), "--rate", "4"]);
        let least = std::time::Duration::from_millis(450);
        assert!(begin.elapsed() >= least, "{command}: 2 MiB in {:?}", begin.elapsed());
    }
}

/// Without a pause it takes what it gets, and says what that is.
#[test]
fn without_a_pause_the_file_says_what_it_is() {
    let directory = Directory::new("each");
    let (origin, _nodes) = cluster("local");
    let port = origin.clients[0];
    let mut client = Raw::new(port);
    for number in 0..KEYS {
        call(&mut client, &format!("SET a:{number} {number}"));
        call(&mut client, &format!("SET b:{number} 0"));
    }
    let out = directory.file("backup.rdb");
    let is_over = AtomicBool::new(false);
    let mut told = String::new();
    write([port, port], &is_over, || {
        told = run(&["backup", "--out", &out, "--target", &at(port)]);
    });
    let is_one = told.contains("all of it is of one moment");
    let is_each =
        told.contains("each key is of a moment of its own") && told.contains("--pause-writes");
    assert!(is_one || is_each, "{told}");
    assert!(!told.contains("writes waited"), "{told}");
    let copy = Dev::start(&["--nodes", "1"]);
    let told = run(&["restore", &out, "--target", &at(copy.clients[0])]);
    assert_eq!(told.contains("of one moment"), is_one, "{told}");
    let numbers = numbers(copy.clients[0]);
    if is_one {
        assert_one_moment(&numbers, "without a pause");
    }
}

#[test]
fn what_is_there_is_not_overwritten_unless_it_is_asked_for() {
    let directory = Directory::new("there");
    let origin = Dev::start(&["--nodes", "1"]);
    let mut client = Raw::new(origin.clients[0]);
    call(&mut client, "SET a new");
    call(&mut client, "SELECT 2");
    call(&mut client, "SET b new");
    load(&mut client, EMPTY, "alone", 10);
    let out = directory.file("backup.rdb");
    let backup = ["backup", "--out", &out, "--target", &at(origin.clients[0])];
    run(&backup);
    let told = fail(&backup);
    assert!(told.contains("is there already") && told.contains("--force"), "{told}");
    let copy = Dev::start(&["--nodes", "1"]);
    let target = at(copy.clients[0]);
    let mut client = Raw::new(copy.clients[0]);
    let restore = ["restore", &out, "--target", &target];
    // A library is data, too.
    load(&mut client, EMPTY, "alone", 11);
    let told = fail(&restore);
    assert!(told.contains("database 5 has 1 libraries"), "{told}");
    assert!(told.contains("nothing is written") && told.contains("--overwrite"), "{told}");
    call(&mut client, "SELECT 0");
    call(&mut client, "SET old 1");
    let told = fail(&restore);
    assert!(told.contains("database 0 has 1 keys"), "{told}");
    assert_eq!(call(&mut client, "DBSIZE"), ":1\r\n");
    // What is not in the file stays as it is, if it is in no database of the file.
    call(&mut client, "SELECT 9");
    call(&mut client, "SET stays 1");
    run(&[&restore[..], &["--overwrite"]].concat());
    assert_eq!(call(&mut client, "GET stays"), "$1\r\n1\r\n");
    call(&mut client, "SELECT 0");
    assert_eq!(call(&mut client, "MGET a old"), "*2\r\n$3\r\nnew\r\n$-1\r\n");
    call(&mut client, "SELECT 5");
    assert_eq!(call(&mut client, "FCALL f_alone 0"), ":10\r\n");
    // One database into another, but none with libraries into one that takes none.
    let told = fail(&[&restore[..], &["--db", "5", "--db-map", "5:1"]].concat());
    assert!(told.contains("database 1") && told.contains("takes no libraries"), "{told}");
    run(&[&restore[..], &["--db", "2", "--db-map", "2:7"]].concat());
    call(&mut client, "SELECT 7");
    assert_eq!(call(&mut client, "GET b"), "$3\r\nnew\r\n");
}

#[test]
fn what_does_not_fit_is_said() {
    let directory = Directory::new("fit");
    let origin = Dev::start(&["--nodes", "1"]);
    let mut client = Raw::new(origin.clients[0]);
    call(&mut client, "SET a 1");
    call(&mut client, "SELECT 4");
    call(&mut client, "SET b 1");
    let out = directory.file("backup.rdb");
    run(&["backup", "--out", &out, "--target", &at(origin.clients[0])]);
    let cluster = Cluster::write("backup-fit", 1, "", &keyspace("meerkat", ""));
    let _nodes = cluster.serve_all();
    let target = at(cluster.clients[0]);
    let told = fail(&["restore", &out, "--target", &target]);
    assert!(told.contains("has no database 4") && told.contains("db = 4"), "{told}");
    assert!(told.contains("engine meerkat"), "{told}");
    run(&["restore", &out, "--target", &target, "--db", "0"]);
    assert_eq!(call(&mut Raw::new(cluster.clients[0]), "GET a"), "$1\r\n1\r\n");
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/rdb/tests/golden/redis-7.0.rdb");
    let told = fail(&["restore", golden.to_str().unwrap(), "--target", &target]);
    assert!(told.contains("no backup") && told.contains("quorate import"), "{told}");
    let told = fail(&["restore", &directory.file("absent.rdb"), "--target", &target]);
    assert!(told.contains("cannot open"), "{told}");
    // A server that is no node has no backups.
    let redis = Redis::start(&["--dir", directory.path()]);
    let other = directory.file("other.rdb");
    let told = fail(&["backup", "--out", &other, "--target", &at(redis.port)]);
    assert!(told.contains("no node of a Quorate cluster") && told.contains("export"), "{told}");
    assert!(!Path::new(&other).exists());
    let told = fail(&["backup", "--out", &other, "--target", "127.0.0.1:1"]);
    assert!(told.contains("start a cluster with"), "{told}");
}

/// Nodes that have no replica of some keys hear of no changes of them.
#[test]
fn where_changes_are_not_told_the_file_says_so() {
    let directory = Directory::new("partitions");
    let parts = "partition_nodes = [[1], [2]]";
    let cluster = Cluster::write("backup-parts", 2, "", &keyspace("meerkat", parts));
    let _nodes = cluster.serve_all();
    let mut client = Raw::new(cluster.clients[0]);
    for number in 0..50 {
        call(&mut client, &format!("SET k{number} {number}"));
    }
    let out = directory.file("backup.rdb");
    let target = at(cluster.clients[0]);
    let told = run(&["backup", "--out", &out, "--target", &target]);
    assert!(told.contains("each key is of a moment of its own"), "{told}");
    assert!(told.contains("50 keys"), "{told}");
    let other = directory.file("other.rdb");
    let told = fail(&["backup", "--out", &other, "--target", &target, "--pause-writes", "100"]);
    assert!(told.contains("no single moment") && told.contains("no replica"), "{told}");
    assert!(!Path::new(&other).exists());
    let copy = Dev::start(&["--nodes", "1"]);
    let told = run(&["restore", &out, "--target", &at(copy.clients[0])]);
    assert!(told.contains("a moment of its own"), "{told}");
    assert_same(&content(cluster.clients[1], 0), &content(copy.clients[0], 0), "partitions");
}
