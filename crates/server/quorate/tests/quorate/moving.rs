//! `quorate import` and `quorate export`, between real redis-servers and real nodes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};

use crate::support::dev::Dev;
use crate::support::files::{self, Directory, assert_same, at, call, content, fail, run};
use crate::support::redis::{Raw, Redis};
use crate::support::{Cluster, PATIENCE, keyspace};
use rustix::process::Signal;

fn redis(directory: &Directory, more: &[&str]) -> Redis {
    let file = ["--dir", directory.path(), "--enable-debug-command", "yes"];
    Redis::start(&[&file, more].concat())
}

/// Every type and form, and many keys more.
fn fill(client: &mut Raw) {
    files::fill(client);
    call(client, "DEBUG POPULATE 3000 populated 20");
}

fn digest(port: u16) -> String {
    call(&mut Raw::new(port), "DEBUG DIGEST")
}

/// The data of a redis-server in a file that it saved.
fn saved(directory: &Directory, settings: &str) -> (Redis, String) {
    let origin = redis(directory, &["--dbfilename", "origin.rdb"]);
    let mut client = Raw::new(origin.port);
    call(&mut client, &format!("CONFIG SET {settings}"));
    fill(&mut client);
    call(&mut client, "SAVE");
    (origin, directory.file("origin.rdb"))
}

const SMALL_NODES: &str = "rdbcompression yes list-max-listpack-size 4 hash-max-listpack-entries 8 \
                           zset-max-listpack-entries 8 set-max-intset-entries 8 stream-node-max-entries 5";
const LARGE_NODES: &str = "rdbcompression no list-max-listpack-size -5 hash-max-listpack-entries 4000 \
                           hash-max-listpack-value 200 zset-max-listpack-entries 4000 \
                           zset-max-listpack-value 200 set-max-intset-entries 4000 \
                           stream-node-max-entries 0";

#[test]
fn a_file_of_redis_comes_in_and_goes_out_again() {
    for (engine, settings) in
        [("meerkat", SMALL_NODES), ("hermes", LARGE_NODES), ("zeus", SMALL_NODES)]
    {
        let directory = Directory::new("round");
        let (origin, file) = saved(&directory, settings);
        let dev = Dev::start(&["--engine", engine]);
        let target = at(dev.clients[0]);
        let told = run(&["import", &file, "--target", &target]);
        assert!(told.contains("imported 3030 keys"), "{told}");
        for database in [0, 3] {
            let there = content(origin.port, database);
            assert_same(&there, &content(dev.clients[0], database), engine);
        }
        // Out again, and into a Redis, which has the same then.
        let out = directory.file("dump.rdb");
        let told = run(&["export", "--out", &out, "--target", &at(dev.clients[1])]);
        assert!(told.contains("3030 keys"), "{told}");
        let copy = redis(&directory, &["--dbfilename", "dump.rdb"]);
        assert_eq!(digest(copy.port), digest(origin.port), "{engine}");
        let streams = content(origin.port, 0);
        assert_same(&streams, &content(copy.port, 0), engine);
    }
}

/// From one Redis to another, by commands and by the file.
#[test]
fn a_redis_is_a_target_as_well() {
    let directory = Directory::new("redis");
    let (origin, file) = saved(&directory, SMALL_NODES);
    let copy = redis(&directory, &["--requirepass", "secret", "--dbfilename", "copy.rdb"]);
    let target = at(copy.port);
    let error = fail(&["import", &file, "--target", &target]);
    assert!(error.contains("--password"), "{error}");
    let error = fail(&["import", &file, "--target", &target, "--password", "wrong"]);
    assert!(error.contains("WRONGPASS") && !error.contains("AUTH wrong"), "{error}");
    run(&["import", &file, "--target", &target, "--password", "secret", "--user", "default"]);
    let mut client = Raw::new(copy.port);
    call(&mut client, "AUTH secret");
    assert_eq!(call(&mut client, "DEBUG DIGEST"), digest(origin.port));
    let out = directory.file("out.rdb");
    run(&["export", "--out", &out, "--target", &target, "--password", "secret"]);
    let third = redis(&directory, &["--dbfilename", "out.rdb"]);
    assert_eq!(digest(third.port), digest(origin.port));
}

/// A user who may run commands on keys, and neither `CONFIG` nor `FUNCTION`, can import and export.
#[test]
fn little_is_needed_of_a_target() {
    let directory = Directory::new("little");
    let (origin, file) = saved(&directory, SMALL_NODES);
    let copy = redis(&directory, &["--dbfilename", "copy.rdb"]);
    let mut client = Raw::new(copy.port);
    let rules =
        "on >secret ~* -@all +@read +@write +@keyspace +@connection +@transaction +xgroup +dbsize";
    call(&mut client, &format!("ACL SETUSER mover {rules}"));
    let target = at(copy.port);
    let user = ["--target", &target, "--user", "mover", "--password", "secret"];
    run(&[&["import", &file], &user[..]].concat());
    assert_eq!(digest(copy.port), digest(origin.port));
    let out = directory.file("out.rdb");
    run(&[&["export", "--out", &out], &user[..]].concat());
    let third = redis(&directory, &["--dbfilename", "out.rdb"]);
    assert_eq!(digest(third.port), digest(origin.port));
    call(&mut client, "ACL SETUSER mover -hset");
    let error = fail(&[&["import", &file, "--replace"], &user[..]].concat());
    assert!(error.contains("NOPERM") && error.contains("--replace"), "{error}");
}

/// Longer than one answer may be: read in pieces, and written in pieces.
#[test]
fn collections_of_many_megabytes_come_in_and_go_out() {
    let directory = Directory::new("large");
    let origin = redis(&directory, &["--dbfilename", "large.rdb"]);
    let mut client = Raw::new(origin.port);
    let value = "v".repeat(900);
    for round in 0..20 {
        let lines = [("RPUSH list", 0), ("SADD set", 0), ("HSET hash", 1), ("ZADD zset", 2)];
        for (name, kind) in lines {
            let items: String = (0..1000)
                .map(|number| match kind {
                    0 => format!(" {value}{round}:{number}"),
                    1 => format!(" {round}:{number} {value}"),
                    _ => format!(" {number}.5 {value}{round}:{number}"),
                })
                .collect();
            call(&mut client, &format!("{name}{items}"));
        }
    }
    let entry = value.repeat(10);
    for number in 1..=2200 {
        let more = if number % 5 == 0 { " other x" } else { "" };
        call(&mut client, &format!("XADD stream {number}-{} f {entry}{more}", number % 3));
    }
    for line in [
        "XDEL stream 7-1 1999-1",
        "XGROUP CREATE stream readers 0",
        "XREADGROUP GROUP readers one COUNT 1500 STREAMS stream >",
        "XREADGROUP GROUP readers two COUNT 20 STREAMS stream >",
        "XGROUP CREATECONSUMER stream readers idle",
        "XACK stream readers 3-0",
        "XGROUP CREATE stream others $",
    ] {
        call(&mut client, line);
    }
    // Few of them are as much.
    let long = "w".repeat(600_000);
    for number in 0..40 {
        for name in [
            "RPUSH list:few",
            "SADD set:few",
            &format!("HSET hash:few {number}"),
            "ZADD zset:few 1",
        ] {
            call(&mut client, &format!("{name} {long}{number}"));
        }
    }
    call(&mut client, "PEXPIREAT zset 4000000000123");
    call(&mut client, "SAVE");
    let dev = Dev::start(&["--nodes", "1"]);
    let target = at(dev.clients[0]);
    run(&["import", &directory.file("large.rdb"), "--target", &target]);
    let out = directory.file("out.rdb");
    run(&["export", "--out", &out, "--target", &target]);
    let copy = redis(&directory, &["--dbfilename", "out.rdb"]);
    assert_eq!(digest(copy.port), digest(origin.port));
    // When entries were delivered is not exact: a long stream only says for how long they wait.
    let mut copied = Raw::new(copy.port);
    for line in [
        "XLEN stream",
        "XINFO GROUPS stream",
        "XPENDING stream readers",
        "XPENDING stream readers - + 1 one",
        "XRANGE stream - + COUNT 3",
    ] {
        let [one, other] = [&mut client, &mut copied].map(|client| {
            let reply = call(client, line);
            // The third line of an entry that is pending says how long.
            let keep = |(at, _): &(usize, &str)| !(line.ends_with("one") && *at == 6);
            let lines = reply.split("\r\n").enumerate().filter(keep).map(|(_, line)| line);
            lines.collect::<Vec<_>>().join(" ")
        });
        assert_eq!(one, other, "{line}");
    }
}

/// Fields that expire need a later version of the format.
#[test]
fn fields_keep_their_expiry() {
    let directory = Directory::new("fields");
    let dev = Dev::start(&["--nodes", "1"]);
    let mut client = Raw::new(dev.clients[0]);
    call(&mut client, "HSET session user ada token 5f2c seen 7");
    call(&mut client, "HPEXPIREAT session 4000000000123 FIELDS 2 token seen");
    call(&mut client, "SET plain 1");
    let out = directory.file("out.rdb");
    let target = at(dev.clients[0]);
    let told = run(&["export", "--out", &out, "--target", &target]);
    assert!(told.contains("its version is 12"), "{told}");
    run(&["import", &out, "--target", &target, "--db-map", "0:7"]);
    call(&mut client, "SELECT 7");
    let expiries = "HPEXPIRETIME session FIELDS 3 user token seen";
    assert_eq!(call(&mut client, expiries), "*3\r\n:-1\r\n:4000000000123\r\n:4000000000123\r\n");
    assert_eq!(call(&mut client, "HGET session token"), "$4\r\n5f2c\r\n");
}

#[test]
fn what_is_there_stays_unless_told_otherwise() {
    let directory = Directory::new("there");
    let origin = redis(&directory, &["--dbfilename", "there.rdb"]);
    let mut client = Raw::new(origin.port);
    for line in ["RPUSH a 1 2 3", "SET b new", "HSET c f v", "SET gone x PX 1", "SAVE"] {
        call(&mut client, line);
    }
    let file = directory.file("there.rdb");
    let dev = Dev::start(&["--nodes", "1"]);
    let target = at(dev.clients[0]);
    let mut client = Raw::new(dev.clients[0]);
    call(&mut client, "RPUSH a old");
    call(&mut client, "SET d stays");
    let error = fail(&["import", &file, "--target", &target]);
    assert!(error.contains("database 0 has 2 keys already"), "{error}");
    assert!(error.contains("--replace or --skip-existing"), "{error}");
    assert_eq!(call(&mut client, "DBSIZE"), ":2\r\n");
    let told = run(&["import", &file, "--target", &target, "--skip-existing"]);
    assert!(told.contains("imported 2 keys (1 string, 1 hash)"), "{told}");
    assert!(told.contains("1 keys were there already"), "{told}");
    assert_eq!(call(&mut client, "LRANGE a 0 -1"), "*1\r\n$3\r\nold\r\n");
    run(&["import", &file, "--target", &target, "--replace"]);
    assert_eq!(call(&mut client, "LRANGE a 0 -1"), "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
    assert_eq!(call(&mut client, "GET d"), "$5\r\nstays\r\n");
    // Databases that the target doesn't have, and maps that make no sense.
    let error = fail(&["import", &file, "--target", &target, "--db-map", "0:99"]);
    assert!(error.contains("SELECT 99"), "{error}");
    let error = fail(&["import", &file, "--target", &target, "--db-map", "4:5"]);
    assert!(error.contains("no keys in database 4 to import"), "{error}");
}

/// What the target won't take is named, taken back, and an error at the end; the rest is there.
#[test]
fn keys_that_a_target_refuses_are_named() {
    let directory = Directory::new("refused");
    let origin = redis(&directory, &["--dbfilename", "refused.rdb"]);
    let mut client = Raw::new(origin.port);
    let long = "x".repeat(5 * 1024 * 1024);
    call(&mut client, &format!("SET string {long}"));
    call(&mut client, &format!("RPUSH list a b {long}"));
    call(&mut client, "SET fine 1");
    // More fields with expiries than one value may have would need a newer Redis; a key that is too
    // long needs none.
    call(&mut client, &format!("SET {} 1", "k".repeat(70_000)));
    call(&mut client, "SAVE");
    let dev = Dev::start(&["--nodes", "1"]);
    let file = directory.file("refused.rdb");
    let error = fail(&["import", &file, "--target", &at(dev.clients[0])]);
    assert!(error.contains("imported 1 keys (1 string)"), "{error}");
    assert!(error.contains("keys that could not be imported: 3"), "{error}");
    assert!(error.contains("\"string\": it has a string of 5242880 bytes"), "{error}");
    let mut client = Raw::new(dev.clients[0]);
    assert_eq!(call(&mut client, "KEYS *"), "*1\r\n$4\r\nfine\r\n");
}

#[test]
fn bad_files_and_targets_are_said() {
    let directory = Directory::new("bad");
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/rdb/tests/golden/redis-7.0.rdb");
    let golden = golden.to_str().unwrap();
    let whole = std::fs::read(golden).unwrap();
    let dev = Dev::start(&["--nodes", "1"]);
    let target = at(dev.clients[0]);
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.file(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let mut damaged = whole.clone();
    damaged[300] ^= 1;
    let newer = [b"REDIS0099", &whole[9..]].concat();
    for (file, wanted) in [
        (write("cut.rdb", &whole[..700]), "the file ends here"),
        (write("damaged.rdb", &damaged), "damaged"),
        (write("newer.rdb", &newer), "version 99"),
        (write("other.rdb", b"something else"), "no RDB file"),
        (write("empty.rdb", b""), "no RDB file"),
        (directory.file("absent.rdb"), "cannot open"),
        (directory.path().to_owned(), "is no file"),
    ] {
        let error = fail(&["import", &file, "--target", &target]);
        assert!(error.contains(wanted), "{file}: {error}");
    }
    assert_eq!(call(&mut Raw::new(dev.clients[0]), "DBSIZE"), ":0\r\n");
    let error = fail(&["import", golden, "--target", &at(dev.admins[0])]);
    assert!(error.contains("doesn't answer as a Redis does"), "{error}");
    let replica = redis(&directory, &["--replicaof", "127.0.0.1 1", "--dbfilename", "replica.rdb"]);
    let error = fail(&["import", golden, "--target", &at(replica.port)]);
    assert!(error.contains("takes no writes"), "{error}");
}

#[test]
fn an_export_is_whole_or_nothing() {
    let directory = Directory::new("whole");
    let dev = Dev::start(&["--nodes", "1"]);
    let target = at(dev.clients[0]);
    call(&mut Raw::new(dev.clients[0]), "SET a 1");
    let out = directory.file("out.rdb");
    run(&["export", "--out", &out, "--target", &target]);
    let whole = std::fs::read(&out).unwrap();
    let error = fail(&["export", "--out", &out, "--target", &target]);
    assert!(error.contains("is there already") && error.contains("--force"), "{error}");
    // If the target is no Redis, the file stays as it was, and nothing is left beside it.
    let error = fail(&["export", "--out", &out, "--force", "--target", &at(dev.admins[0])]);
    assert!(error.contains("doesn't answer as a Redis does"), "{error}");
    assert_eq!(std::fs::read(&out).unwrap(), whole);
    let error = fail(&["export", "--out", &directory.file("no/such/out.rdb"), "--target", &target]);
    assert!(error.contains("cannot create"), "{error}");
    let error = fail(&["export", "--out", directory.path(), "--force", "--target", &target]);
    assert!(error.contains("is no name of a file"), "{error}");
    run(&["export", "--out", &out, "--force", "--target", &target, "--db", "5"]);
    assert_ne!(std::fs::read(&out).unwrap(), whole);
    let names: Vec<_> =
        std::fs::read_dir(&directory.0).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names, ["out.rdb"]);
}

/// Says that something has ended, also if a test fails there.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Each key is of one moment while others write: a value never has the expiry of another one.
#[test]
fn a_key_is_exported_with_its_own_expiry() {
    const KEYS: u64 = 150;
    const EXPIRY: u64 = 4_000_000_000_000;
    let directory = Directory::new("moment");
    for engine in ["meerkat", "hermes"] {
        let dev = Dev::start(&["--engine", engine]);
        let write = |client: &mut Raw, round: u64| {
            for key in 0..KEYS {
                let (value, at) = (round * KEYS + key, EXPIRY + round * KEYS + key);
                call(client, &format!("SET key:{key} {value} PXAT {at}"));
            }
        };
        write(&mut Raw::new(dev.clients[0]), 0);
        let out = directory.file(&format!("{engine}.rdb"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = Raw::new(dev.clients[0]);
                let mut round = 0;
                while !is_over.load(Relaxed) {
                    round += 1;
                    write(&mut client, round);
                }
            });
            let _end = End(&is_over);
            for _ in 0..5 {
                run(&["export", "--force", "--out", &out, "--target", &at(dev.clients[1])]);
            }
        });
        let name = format!("{engine}.rdb");
        let copy = redis(&directory, &["--dbfilename", &name]);
        let mut client = Raw::new(copy.port);
        let number = |reply: String| -> u64 {
            let mut lines = reply.rsplit("\r\n");
            lines.find_map(|line| line.trim_start_matches(':').parse().ok()).unwrap()
        };
        for key in 0..KEYS {
            let value = number(call(&mut client, &format!("GET key:{key}")));
            let expiry = number(call(&mut client, &format!("PEXPIRETIME key:{key}")));
            assert_eq!(expiry, EXPIRY + value, "{engine}, key:{key}");
        }
    }
}

/// A way to a server that breaks each connection after so many bytes of commands, and the last one not
/// at all. Says when it breaks one.
fn breaking(port: u16, cuts: Vec<usize>) -> (u16, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut cuts = cuts.into_iter();
        for stream in listener.incoming().map_while(Result::ok) {
            // A server that is gone is as one that accepts and closes.
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let (mut from, mut to) = (server.try_clone().unwrap(), stream.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let cut = cuts.next().unwrap_or(usize::MAX);
            let broken = sender.clone();
            std::thread::spawn(move || {
                forward(stream, server, cut);
                // Not every test waits for it.
                let _ = broken.send(());
            });
        }
    });
    (own, receiver)
}

fn forward(mut from: TcpStream, mut to: TcpStream, cut: usize) {
    let (mut piece, mut passed) = ([0; 4096], 0);
    while passed < cut {
        let Ok(read @ 1..) = from.read(&mut piece) else { break };
        let read = read.min(cut - passed);
        if to.write_all(&piece[..read]).is_err() {
            break;
        }
        passed += read;
    }
    // What has passed is carried out, and nobody is told.
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Write);
}

#[test]
fn lost_connections_leave_no_key_half_there() {
    let directory = Directory::new("lost");
    let (origin, file) = saved(&directory, SMALL_NODES);
    let dev = Dev::start(&["--nodes", "1"]);
    let there = content(origin.port, 0);
    for (database, cuts) in [
        (1, vec![200, 30_000, 200_000]),
        (2, vec![100_000; 7]),
        (4, vec![5000, 600_000, 650_000]),
        (5, vec![150_000]),
    ] {
        let map = format!("0:{database}");
        let more = ["--db-map", &map, "--skip-existing"];
        let losses = cuts.len();
        let (way, _) = breaking(dev.clients[0], cuts);
        let told = run(&[&["import", &file, "--target", &at(way)], &more[..]].concat());
        // Not from the beginning: of a batch at most that was under way.
        let line = told.lines().find(|line| line.ends_with("written again")).unwrap();
        let rewritten = line.rsplit_once("; ").unwrap().1.split(' ').next().unwrap();
        assert!(rewritten.parse::<usize>().unwrap() <= 512 * losses, "{line}");
        assert_same(&there, &content(dev.clients[0], database), "after losses");
    }
    let (way, _) = breaking(dev.clients[0], vec![300, 20_000, 900, 50_000]);
    let out = directory.file("dump.rdb");
    run(&["export", "--out", &out, "--target", &at(way), "--db", "2"]);
    let copy = redis(&directory, &["--dbfilename", "dump.rdb"]);
    assert_same(&there, &content(copy.port, 2), "exported");
    // Nobody there at all.
    drop(dev);
    let error = fail(&["import", &file, "--target", "127.0.0.1:1,127.0.0.1:2"]);
    assert!(error.contains("start a cluster with `quorate dev`"), "{error}");
}

/// The node that is written to dies in the middle: the next one is told the rest, and nothing is missing
/// at those that live.
#[test]
fn a_node_that_dies_meanwhile_costs_no_key() {
    let directory = Directory::new("dies");
    let (origin, file) = saved(&directory, LARGE_NODES);
    let there = content(origin.port, 0);
    for engine in ["hermes", "meerkat"] {
        let name = format!("moving-{engine}");
        let cluster = Cluster::write(&name, 3, "", &keyspace(engine, ""));
        let nodes = cluster.serve_all();
        let (way, broken) = breaking(cluster.clients[0], vec![150_000]);
        let targets = format!("{},{}", at(way), at(cluster.clients[1]));
        let told = std::thread::scope(|scope| {
            let import = scope.spawn(|| run(&["import", &file, "--db", "0", "--target", &targets]));
            broken.recv_timeout(PATIENCE).unwrap();
            nodes[0].signal(Signal::KILL);
            import.join().unwrap()
        });
        assert!(told.contains("written again"), "{told}");
        for node in 1..3 {
            assert_same(&there, &content(cluster.clients[node], 0), engine);
        }
        // It has no other database.
        let out = directory.file(&format!("{engine}.rdb"));
        run(&["export", "--out", &out, "--target", &at(cluster.clients[2])]);
        let out = format!("{engine}.rdb");
        let copy = redis(&directory, &["--dbfilename", &out]);
        assert_same(&there, &content(copy.port, 0), engine);
    }
}
