//! What survives in a node's directory: processes are killed, directories are lost, swapped and damaged,
//! disks fill up and fail.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::dev::Dev;
use crate::support::{Client, Cluster, PATIENCE, Process, Reply, http_get, keyspace, poll_until};
use rustix::process::Signal;

/// How long a client of a node waits that may be killed.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// The exit code of a process whose disk has failed.
const EXIT_DISK: i32 = 74;

/// A cluster whose nodes keep what they acknowledge, and its directory, removed with this value.
struct World {
    cluster: Cluster,
    dir: PathBuf,
}

impl World {
    fn new(name: &str, nodes: usize, lanes: u16) -> Self {
        Self::of("hermes", name, nodes, lanes)
    }

    fn of(engine: &str, name: &str, nodes: usize, lanes: u16) -> Self {
        Self::with(name, nodes, lanes, &keyspace(engine, "durability = \"sync\""))
    }

    /// A cluster with these keyspaces.
    fn with(name: &str, nodes: usize, lanes: u16, keyspaces: &str) -> Self {
        let dir = directory(name);
        let disk = format!(
            "[disk]\ndir = {:?}\nsegment = \"1mb\"\nsnapshot_after = \"1gb\"\n{keyspaces}",
            dir.display().to_string()
        );
        let name = format!("durability-{name}");
        let cluster = Cluster::write(&name, nodes, &format!("lanes = {lanes}"), &disk);
        Self { cluster, dir }
    }

    /// The directory of a node.
    fn node(&self, node: usize) -> PathBuf {
        self.dir.join(format!("node-{node}"))
    }

    fn client(&self, node: usize) -> Client {
        Client::new(self.cluster.clients[node - 1])
    }

    /// Starts a node and waits until it serves.
    fn serve(&self, node: usize) -> Process {
        let process = self.cluster.serve(node);
        process.line(|line| line.starts_with("ready"));
        process
    }

    /// What `quorate recover` says: if the loss is accepted, once it succeeds, as it is refused until the
    /// nodes that are left know of each other; and otherwise what would be given up.
    fn recover(&self, asked: usize, lost: &[&str], accepts: bool) -> String {
        let admin = format!("127.0.0.1:{}", self.cluster.admins[asked - 1]);
        let token = self.cluster.token();
        let accept: &[&str] = if accepts { &["--accept-loss"] } else { &[] };
        let of_node = ["--admin", &admin, "--token-file", &token];
        let args = [&["recover"], lost, accept, &of_node[..]].concat();
        if !accepts {
            let mut recover = Process::start(&args);
            assert!(!recover.wait().success(), "nothing was done");
            recover.logged("Nothing would be left of");
            return recover.log();
        }
        poll_until(Instant::now() + PATIENCE, "the loss is accepted", || {
            let mut recover = Process::start(&args);
            recover.wait().success().then(|| recover.line(|line| line.contains("goes on")))
        })
    }

    /// Starts a node that must not start. Gives what it says.
    fn refused(&self, node: usize) -> String {
        let mut process = self.cluster.serve(node);
        assert!(!process.wait().success());
        process.logged("error: ")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// An empty place for a directory.
fn directory(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("quorate-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    dir
}

fn kill(nodes: &mut [Process]) {
    nodes.iter().for_each(|node| node.signal(Signal::KILL));
    for node in nodes {
        node.wait();
    }
}

fn set_all(client: &mut Client, keys: std::ops::Range<u64>) {
    for number in keys {
        let set = client.call(&["SET", &format!("key:{number}"), &number.to_string()]);
        assert_eq!(set, Reply::Simple("OK".into()));
    }
}

fn has_all(client: &mut Client, keys: std::ops::Range<u64>) {
    for number in keys {
        let key = format!("key:{number}");
        assert_eq!(client.call(&["GET", &key]), Reply::bulk(&number.to_string()), "{key}");
    }
}

/// Sets one key after the other through a node until it dies. Counts those that were acknowledged, and
/// deletes every tenth again.
fn write_until_killed(port: u16, writer: usize, acknowledged: &AtomicU64, stop: &AtomicBool) {
    let Ok(mut client) = Client::connect(port, CLIENT_PATIENCE) else { return };
    while !stop.load(Relaxed) {
        let number = acknowledged.load(Relaxed);
        let key = format!("writer:{writer}:{number}");
        let set = client.ask(&["SET", &key, &number.to_string()]);
        if !matches!(set, Ok(Reply::Simple(_))) {
            return;
        }
        if number % 10 == 9 && !matches!(client.ask(&["DEL", &key]), Ok(Reply::Int(1))) {
            return;
        }
        acknowledged.store(number + 1, Relaxed);
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_all_processes_are_killed_under_load() {
    kill_all_under_load(&World::new("all-killed", 3, 2));
}

#[test]
fn nor_is_it_where_keys_move_to_those_that_use_them() {
    kill_all_under_load(&World::of("zeus", "owners-killed", 3, 2));
}

fn kill_all_under_load(world: &World) {
    const WRITERS: usize = 3;
    const ENOUGH: u64 = 60;
    let acknowledged: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let mut nodes = world.cluster.serve_all();
    for round in 1..=3 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (writer, count) in acknowledged.iter().enumerate() {
                let port = world.cluster.clients[writer];
                let stop = &stop;
                scope.spawn(move || write_until_killed(port, writer, count, stop));
            }
            poll_until(Instant::now() + PATIENCE, "enough is acknowledged", || {
                let enough = |count: &AtomicU64| count.load(Relaxed) >= round * ENOUGH;
                acknowledged.iter().all(enough).then_some(())
            });
            // In the middle of it.
            kill(&mut nodes);
            stop.store(true, Relaxed);
        });
        nodes = world.cluster.serve_all();
        let mut client = world.client(1 + (round as usize) % 3);
        for (writer, count) in acknowledged.iter().enumerate() {
            for number in 0..count.load(Relaxed) {
                let expected = match number % 10 {
                    9 => Reply::Bulk(None),
                    _ => Reply::bulk(&number.to_string()),
                };
                let key = format!("writer:{writer}:{number}");
                assert_eq!(client.call(&["GET", &key]), expected, "round {round}, {key}");
            }
        }
    }
}

#[test]
fn one_node_comes_back_with_its_disk_without_it_and_with_damage() {
    let world = World::new("one", 3, 1);
    let mut nodes = world.cluster.serve_all();
    set_all(&mut world.client(1), 0..300);
    // With its disk.
    kill(&mut nodes[1..2]);
    set_all(&mut world.client(1), 300..400);
    nodes[1] = world.cluster.serve(2);
    nodes[1].logged("restored");
    nodes[1].line(|line| line.starts_with("ready"));
    has_all(&mut world.client(2), 0..400);
    // Without it.
    kill(&mut nodes[1..2]);
    fs::remove_dir_all(world.node(2)).unwrap();
    nodes[1] = world.serve(2);
    has_all(&mut world.client(2), 0..400);
    // With a byte of an early batch changed.
    kill(&mut nodes[1..2]);
    let segment = segments(&world.node(2)).remove(0);
    let file = fs::File::options().read(true).write(true).open(&segment).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 4096 + 30).unwrap();
    file.write_all_at(&[!byte[0]], 4096 + 30).unwrap();
    nodes[1] = world.cluster.serve(2);
    let said = nodes[1].logged("put aside");
    assert!(said.contains("offset 4096") && said.contains("damaged-1"), "{said}");
    nodes[1].line(|line| line.starts_with("ready"));
    has_all(&mut world.client(2), 0..400);
    assert!(!segments(&world.node(2).join("damaged-1")).is_empty(), "nothing is deleted");
    // And all of them, with the one that has copied everything anew.
    kill(&mut nodes);
    let _nodes = world.cluster.serve_all();
    (1..=3).for_each(|node| has_all(&mut world.client(node), 0..400));
}

/// A client that has no answer asks again when the power is back: its call has run once.
#[test]
fn a_call_of_a_session_outlives_the_loss_of_all_power() {
    for engine in ["hermes", "meerkat"] {
        let keyspace = keyspace(engine, "durability = \"sync\"");
        let world = World::with(&format!("session-{engine}"), 3, 2, &keyspace);
        let mut nodes = world.cluster.serve_all();
        let mut client = world.client(1);
        let Reply::Array(opened) = client.call(&["SESSION", "OPEN"]) else { panic!("no session") };
        let text = |reply: &Reply| match reply {
            Reply::Bulk(Some(text)) => String::from_utf8(text.clone()).unwrap(),
            other => panic!("{other:?}"),
        };
        let (id, until) = (text(&opened[1]), text(&opened[3]));
        let call = |client: &mut Client, sequence: u64| {
            let (number, key) = (sequence.to_string(), format!("counter:{}", sequence % 4));
            client.call(&["SESSION", "CALL", &number, &number, "INCR", &key])
        };
        for sequence in 0..20 {
            assert_eq!(call(&mut client, sequence), Reply::Int(1 + sequence as i64 / 4));
        }
        for round in 0..2 {
            kill(&mut nodes);
            nodes = world.cluster.serve_all();
            for node in [2, 3, 1] {
                let mut client = world.client(node);
                let renewed = client.call(&["SESSION", "RENEW", &id, &until]);
                assert!(matches!(renewed, Reply::Array(_)), "{engine}, {round}: {renewed:?}");
                assert_eq!(call(&mut client, 19), Reply::Int(5), "{engine}, {round}, node {node}");
            }
        }
        // What was acknowledged before is still known to be over.
        let mut client = world.client(2);
        client.call(&["SESSION", "RENEW", &id, &until]);
        let stale = client.call(&["SESSION", "CALL", "3", "3", "INCR", "counter:3"]);
        assert!(matches!(&stale, Reply::Error(text) if text.starts_with("STALE ")), "{stale:?}");
        assert_eq!(call(&mut client, 20), Reply::Int(6));
    }
}

/// Nodes 4 and 5 have a database of their own, and lose their disks while the others serve.
#[test]
fn a_person_gives_up_a_database_of_some_nodes_while_others_serve() {
    let own = "[[keyspace]]\ndb = 1\nname = \"own\"\nengine = \"hermes\"\nnodes = [4, 5]\n\
               durability = \"sync\"\n";
    let all = keyspace("hermes", "durability = \"sync\"");
    let world = World::with("group", 5, 1, &format!("{all}{own}"));
    let mut nodes = world.cluster.serve_all();
    set_all(&mut world.client(1), 0..50);
    let own_client = |node: usize| {
        let mut client = world.client(node);
        assert_eq!(client.call(&["SELECT", "1"]), Reply::Simple("OK".into()));
        client
    };
    set_all(&mut own_client(4), 0..50);
    kill(&mut nodes[3..]);
    for node in [4, 5] {
        fs::remove_dir_all(world.node(node)).unwrap();
        nodes[node - 1] = world.cluster.serve(node);
    }
    for node in &nodes[3..] {
        node.logged("`quorate recover 4 5 --accept-loss`");
    }
    let loss = world.recover(1, &["4", "5"], false);
    let said = "everything of database 1 (own), which only nodes 4, 5 had";
    assert!(loss.contains(said), "{loss}");
    let wrong = world.recover(1, &["4", "5"], true);
    assert!(wrong.contains("node 4, 5"), "{wrong}");
    for node in &nodes[3..] {
        node.line(|line| line.starts_with("ready"));
    }
    has_all(&mut world.client(5), 0..50);
    for node in [4, 5] {
        assert_eq!(own_client(node).call(&["DBSIZE"]), Reply::Int(0), "it begins anew");
    }
    set_all(&mut own_client(5), 0..50);
    has_all(&mut own_client(4), 0..50);
}

#[test]
fn libraries_of_functions_outlive_the_loss_of_all_power() {
    const LIBRARY: &str = "#!lua name=lib\n\
        redis.register_function('double', function(keys) return 2 * redis.call('GET', keys[1]) end)";
    for (engine, count) in [("meerkat", 3), ("local", 1)] {
        let keyspace = keyspace(engine, "durability = \"sync\"");
        let world = World::with(&format!("functions-{engine}"), count, 2, &keyspace);
        let mut nodes = world.cluster.serve_all();
        let mut client = world.client(1);
        assert_eq!(client.call(&["FUNCTION", "LOAD", LIBRARY]), Reply::bulk("lib"));
        assert_eq!(client.call(&["SET", "n", "21"]), Reply::Simple("OK".into()));
        for round in 0..3 {
            for node in 1..=count {
                let mut client = world.client(node);
                let doubled = client.call(&["FCALL", "double", "1", "n"]);
                assert_eq!(doubled, Reply::Int(42), "{engine}, round {round}, node {node}");
            }
            if round == 1 {
                // From a snapshot, too.
                save(&mut world.client(1));
            }
            kill(&mut nodes);
            nodes = world.cluster.serve_all();
        }
        let mut client = world.client(1);
        assert_eq!(client.call(&["FUNCTION", "FLUSH"]), Reply::Simple("OK".into()));
        kill(&mut nodes);
        let _nodes = world.cluster.serve_all();
        let gone = world.client(1).call(&["FCALL", "double", "1", "n"]);
        assert_eq!(gone, Reply::Error("ERR Function not found".into()), "{engine}");
    }
}

/// What one disk has is all there is, and it is there: also after the next loss of power.
#[test]
fn a_person_accepts_the_loss_of_a_majority_and_the_rest_goes_on_with_its_data() {
    for engine in ["hermes", "meerkat"] {
        let keyspace = keyspace(engine, "durability = \"sync\"");
        let world = World::with(&format!("recover-{engine}"), 3, 2, &keyspace);
        let mut nodes = world.cluster.serve_all();
        // Two nodes are a majority only together: the disk of node 1 has all that is acknowledged.
        kill(&mut nodes[2..]);
        set_all(&mut world.client(1), 0..200);
        assert_eq!(world.client(1).call(&["DEL", "key:7"]), Reply::Int(1));
        kill(&mut nodes[..2]);
        for node in [2, 3] {
            fs::remove_dir_all(world.node(node)).unwrap();
        }
        nodes = (1..=3).map(|node| world.cluster.serve(node)).collect();
        for node in &nodes[1..] {
            node.logged("come back from their disks");
        }
        let loss = world.recover(1, &["2", "3"], false);
        assert!(loss.contains("for good") && loss.contains("of no keyspace"), "{loss}");
        let said = world.recover(1, &["2", "3"], true);
        assert!(said.contains("node 2, 3"), "{said}");
        for round in 0..2 {
            for node in &nodes {
                node.line(|line| line.starts_with("ready"));
            }
            for node in 1..=3 {
                let mut client = world.client(node);
                has_all(&mut client, 0..7);
                has_all(&mut client, 8..200);
                let deleted = client.call(&["GET", "key:7"]);
                assert_eq!(deleted, Reply::Bulk(None), "{engine}, round {round}");
            }
            kill(&mut nodes);
            nodes = (1..=3).map(|node| world.cluster.serve(node)).collect();
        }
    }
}

/// The segments in a directory, in the order of their names.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|kind| kind == "segment")).collect();
    segments.sort();
    segments
}

#[test]
fn a_directory_belongs_to_one_node_and_one_process() {
    let world = World::new("owners", 3, 1);
    let mut nodes = world.cluster.serve_all();
    set_all(&mut world.client(1), 0..10);
    let said = world.refused(1);
    assert!(said.contains("another process uses this directory"), "{said}");
    kill(&mut nodes[0..2]);
    let elsewhere = world.dir.join("elsewhere");
    fs::rename(world.node(1), &elsewhere).unwrap();
    fs::rename(world.node(2), world.node(1)).unwrap();
    let said = world.refused(1);
    assert!(
        said.contains("node 2 of cluster") && said.contains("this process is 'node 1"),
        "{said}"
    );
    // Without the file that says so, those of the lanes do.
    fs::remove_file(world.node(1).join("node")).unwrap();
    let said = world.refused(1);
    assert!(said.contains("node 2"), "{said}");
    // Another number of lanes.
    let text = fs::read_to_string(&world.cluster.file).unwrap();
    fs::remove_dir_all(world.node(1)).unwrap();
    fs::rename(elsewhere, world.node(1)).unwrap();
    fs::write(&world.cluster.file, text.replace("lanes = 1", "lanes = 2")).unwrap();
    let said = world.refused(1);
    assert!(said.contains("written by 1 lanes") && said.contains("the node has 2"), "{said}");
    fs::write(&world.cluster.file, text).unwrap();
    nodes[0] = world.serve(1);
    has_all(&mut world.client(1), 0..10);
}

/// A field of `INFO persistence`.
fn info(client: &mut Client, field: &str) -> String {
    let Reply::Bulk(Some(text)) = client.call(&["INFO", "persistence"]) else { panic!("no text") };
    let text = String::from_utf8(text).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {field} in {text}")).to_owned()
}

/// Has a snapshot written and waits until it is complete.
fn save(client: &mut Client) {
    let started = Reply::Simple("Background saving started".into());
    assert_eq!(client.call(&["BGSAVE"]), started);
    poll_until(Instant::now() + PATIENCE, "the snapshot is complete", || {
        (info(client, "rdb_bgsave_in_progress") == "0").then_some(())
    });
    assert_eq!(info(client, "rdb_last_bgsave_status"), "ok");
}

#[test]
fn snapshots_are_asked_for_as_in_redis_and_a_damaged_one_has_another_behind_it() {
    let world = World::new("snapshots", 1, 2);
    let mut node = world.serve(1);
    let mut client = world.client(1);
    set_all(&mut client, 0..100);
    let Reply::Int(before) = client.call(&["LASTSAVE"]) else { panic!("no time") };
    save(&mut client);
    let Reply::Int(after) = client.call(&["LASTSAVE"]) else { panic!("no time") };
    assert!(after >= before && before > 1_600_000_000, "{before}, {after}");
    set_all(&mut client, 100..200);
    save(&mut client);
    set_all(&mut client, 200..300);
    assert_eq!(info(&mut client, "aof_enabled"), "1");
    let parameters = client.call(&["CONFIG", "GET", "append*"]);
    let expected = ["appendfsync", "always", "appendonly", "yes"].map(Reply::bulk);
    assert_eq!(parameters, Reply::Array(expected.to_vec()));
    let on_disks = Reply::Array(vec![Reply::Int(1), Reply::Int(0)]);
    assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), on_disks);
    let Reply::Error(why) = client.call(&["SAVE"]) else { panic!("it would hold everything up") };
    assert!(why.contains("BGSAVE"), "{why}");
    // A byte of the newest snapshot of a lane changes.
    kill(std::slice::from_mut(&mut node));
    let newest = world.node(1).join("lane-0001-00000001.snapshot");
    let file = fs::File::options().read(true).write(true).open(&newest).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 4096 + 30).unwrap();
    file.write_all_at(&[!byte[0]], 4096 + 30).unwrap();
    let node = world.cluster.serve(1);
    let said = node.logged("put aside");
    assert!(
        said.contains("lane-0001-00000001.snapshot") && said.contains("one before it"),
        "{said}"
    );
    node.line(|line| line.starts_with("ready"));
    let mut client = world.client(1);
    has_all(&mut client, 0..300);
    assert_eq!(client.call(&["DBSIZE"]), Reply::Int(300));
}

#[test]
fn a_full_disk_refuses_updates_serves_reads_and_recovers() {
    let world = World::new("full", 1, 1);
    let dir = world.node(1);
    fs::create_dir_all(&dir).unwrap();
    let file = world.cluster.file.to_str().unwrap();
    let node = Process::start_on_tmpfs(&dir, "8m", &["serve", "--config", file, "--node", "1"]);
    node.line(|line| line.starts_with("ready"));
    let mut client = world.client(1);
    set_all(&mut client, 0..10);
    // Others take the rest of the disk.
    let other = node.seen(&dir).join("other");
    let _ = fs::write(&other, vec![1; 8 << 20]);
    let value = "x".repeat(10_000);
    let refused = poll_until(Instant::now() + PATIENCE, "the disk is full", || {
        match client.call(&["SET", "large", &value]) {
            Reply::Error(error) => Some(error),
            _ => None,
        }
    });
    assert!(refused.starts_with("MISCONF "), "{refused}");
    node.logged("the disk is full");
    has_all(&mut client, 0..10);
    fs::remove_file(&other).unwrap();
    poll_until(Instant::now() + PATIENCE, "updates are taken again", || {
        matches!(client.call(&["SET", "large", "small"]), Reply::Simple(_)).then_some(())
    });
    node.logged("the disk has room again");
    has_all(&mut client, 0..10);
}

#[test]
fn a_full_disk_at_a_follower_refuses_updates_everywhere() {
    let world = World::new("follower", 3, 1);
    let dir = world.node(2);
    fs::create_dir_all(&dir).unwrap();
    let file = world.cluster.file.to_str().unwrap();
    let others = [1, 3].map(|node| world.cluster.serve(node));
    let node = Process::start_on_tmpfs(&dir, "8m", &["serve", "--config", file, "--node", "2"]);
    others.iter().chain([&node]).for_each(|node| {
        node.line(|line| line.starts_with("ready"));
    });
    let mut clients = [1, 2, 3].map(|node| world.client(node));
    set_all(&mut clients[0], 0..10);
    let other = node.seen(&dir).join("other");
    let _ = fs::write(&other, vec![1; 8 << 20]);
    let value = "x".repeat(10_000);
    let refused = poll_until(Instant::now() + PATIENCE, "the disk is full", || {
        match clients[0].call(&["SET", "large", &value]) {
            Reply::Error(error) => Some(error),
            _ => None,
        }
    });
    assert!(refused.starts_with("MISCONF "), "{refused}");
    clients.iter_mut().for_each(|client| has_all(client, 0..10));
    fs::remove_file(&other).unwrap();
    poll_until(Instant::now() + PATIENCE, "updates are taken again", || {
        match clients[2].call(&["SET", "large", "small"]) {
            Reply::Error(error) => assert!(error.starts_with("MISCONF "), "{error}"),
            _ => return Some(()),
        }
        None
    });
    has_all(&mut clients[1], 0..10);
}

#[test]
fn a_node_whose_disk_hangs_stays_a_member_and_answers_reads() {
    let world = World::new("hangs", 3, 1);
    let dir = world.node(1);
    fs::create_dir_all(&dir).unwrap();
    let file = world.cluster.file.to_str().unwrap();
    let others = [2, 3].map(|node| world.cluster.serve(node));
    let args = ["serve", "--config", file, "--node", "1"];
    // There a batch takes so little time that the lane writes it itself.
    let mut node = Process::start_on_tmpfs(&dir, "64m", &args);
    others.iter().chain([&node]).for_each(|node| {
        node.line(|line| line.starts_with("ready"));
    });
    let (mut writer, mut other) = (world.client(1), world.client(2));
    set_all(&mut writer, 0..10);
    let epoch = |client: &mut Client| match client.call(&["INFO", "quorate"]) {
        Reply::Bulk(Some(text)) => {
            let text = String::from_utf8(text).unwrap();
            text.lines().find(|line| line.starts_with("epoch:")).expect("an epoch").to_owned()
        }
        other => panic!("{other:?}"),
    };
    let before = epoch(&mut other);
    // A pipe in place of a segment: opening it to write waits for a reader, and none comes.
    for file in segments(&node.seen(&dir)) {
        fs::remove_file(&file).unwrap();
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    }
    let mut hung = (0..5000).map(|_| writer.call(&["SET", "key", "value"]));
    let hung = hung.find(|set| *set != Reply::Simple("OK".into()));
    assert!(matches!(hung, Some(Reply::Error(_))), "the lane has written to its disk: {hung:?}");
    has_all(&mut world.client(1), 0..10);
    poll_until(Instant::now() + PATIENCE, "the disk is said to be slow", || {
        let (_, metrics) = http_get(world.cluster.admins[0], "/metrics");
        let is_slow = |line: &str| line.contains("\"slow\"") && line.ends_with(" 1");
        metrics
            .lines()
            .filter(|line| line.starts_with("quorate_disk_alarm"))
            .find(|line| is_slow(line))?;
        Some(())
    });
    let refused = other.ask(&["SET", "key", "value"]).unwrap();
    assert!(matches!(refused, Reply::Error(_)), "it waits for every live replica: {refused:?}");
    has_all(&mut other, 0..10);
    assert_eq!(epoch(&mut other), before, "nobody was taken for dead");
    // The others go on once the node is told to stop, which it can, too.
    node.signal(Signal::TERM);
    node.wait();
    poll_until(Instant::now() + PATIENCE, "the others go on", || {
        matches!(other.call(&["SET", "key", "value"]), Reply::Simple(_)).then_some(())
    });
}

#[test]
fn a_flush_that_fails_ends_the_process() {
    let world = World::new("flush", 1, 1);
    let dir = world.node(1);
    fs::create_dir_all(&dir).unwrap();
    // It takes everything, and can't be flushed.
    symlink("/dev/null", dir.join("lane-0000-00000000.segment")).unwrap();
    let mut node = world.cluster.serve(1);
    let said = node.logged("error: ");
    assert!(said.contains("the disk has failed") && said.contains("00000000.segment"), "{said}");
    assert_eq!(node.wait().code(), Some(EXIT_DISK));
}

#[test]
fn dev_brings_back_what_it_had() {
    let dir = directory("dev");
    let path = dir.to_str().unwrap().to_owned();
    let options = ["--engine", "hermes", "--dir", &path];
    for kind in [Signal::KILL, Signal::TERM] {
        let mut dev = Dev::start(&options);
        let mut client = Client::new(dev.clients[0]);
        set_all(&mut client, 0..100);
        dev.process.signal(kind);
        dev.process.wait();
        let mut dev = Dev::start(&options);
        (0..3).for_each(|node| has_all(&mut Client::new(dev.clients[node]), 0..100));
        dev.process.signal(Signal::KILL);
        dev.process.wait();
    }
    fs::remove_dir_all(dir).unwrap();
}
