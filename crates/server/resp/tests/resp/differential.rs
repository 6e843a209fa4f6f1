//! The same bytes to a real Redis and to the front end: the same bytes must come back.
//!
//! Needs redis-server 7.0 (Debian: `apt-get install redis-server`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use quorate_machine::Rng;
use quorate_resp::{Settings, Shared, limits};
use quorate_resp_harness::Harness;

struct Redis {
    process: Child,
    directory: PathBuf,
}

impl Redis {
    fn start(password: Option<&str>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("quorate-resp-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory of its own");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket", "redis.sock", "--dir"]);
        command.arg(&directory).current_dir(&directory).stdout(Stdio::piped());
        if let Some(password) = password {
            command.args(["--requirepass", password]);
        }
        let mut process = command.spawn().unwrap_or_else(|error| {
            panic!(
                "redis-server can't be started ({error}); on Debian: apt-get install redis-server"
            )
        });
        let mut lines =
            BufReader::new(process.stdout.take().expect("its output is a pipe")).lines();
        let ready = lines.any(|line| {
            line.is_ok_and(|line| {
                line.contains("ready to accept") || line.contains("Ready to accept")
            })
        });
        assert!(ready, "redis-server has not come up");
        // The pipe stays open and unread; what little Redis logs from here on fits into it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, directory }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.directory.join("redis.sock")).expect("Redis accepts")
    }

    fn answers(&self, input: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // Redis may close before it has read everything.
        let _ = stream.write_all(input);
        let _ = stream.shutdown(Shutdown::Write);
        let mut output = Vec::new();
        let _ = stream.read_to_end(&mut output);
        output
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Sends a line and reads what should be the whole answer, which has so many bytes; less if Redis
/// says no more. What is left unread shows with the next line.
fn exchange(stream: &mut UnixStream, line: &str, length: usize) -> Vec<u8> {
    stream.write_all(format!("{line}\r\n").as_bytes()).expect("Redis reads");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("a socket");
    let mut answer = vec![0; length];
    let mut read = 0;
    while read < length {
        match stream.read(&mut answer[read..]) {
            Ok(count) if count > 0 => read += count,
            _ => break,
        }
    }
    answer.truncate(read);
    answer
}

/// Makes the client id in a reply of HELLO equal.
fn normalize(mut output: Vec<u8>) -> Vec<u8> {
    let marker = b"$2\r\nid\r\n:";
    let mut from = 0;
    while let Some(at) = output[from..].windows(marker.len()).position(|w| w == marker) {
        let start = from + at + marker.len();
        let digits = output[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        output.splice(start..start + digits, *b"0");
        from = start;
    }
    output
}

/// Both sides, and where they differed.
struct Comparison {
    redis: Redis,
    shared: std::sync::Arc<Shared>,
    /// Whether every keyspace has transactions.
    transactional: bool,
    /// Draws what else must make no difference: the order of completions, local reads.
    rng: Rng,
    differences: Vec<String>,
}

impl Comparison {
    fn new(redis: Redis, shared: std::sync::Arc<Shared>) -> Self {
        Self { redis, shared, transactional: false, rng: Rng::new(1), differences: Vec::new() }
    }

    fn transactional(redis: Redis) -> Self {
        let mut both = Self::new(redis, Shared::new(Settings::default(), None));
        both.transactional = true;
        both
    }

    fn harness(&mut self) -> Harness {
        let mut harness = Harness::new(self.shared.clone());
        // A Redis on its own has no replicas.
        harness.backend.replicas = 0;
        harness.backend.transactional.clear();
        if self.transactional {
            harness.backend.transactional.extend(0..16);
            harness.backend.local_reads = self.rng.below(2) == 0;
            harness.backend.shuffle = Some(Rng::new(self.rng.next_u64()));
        }
        harness
    }

    fn feed(&mut self, input: &[u8]) {
        let mut harness = self.harness();
        let id = harness.connect();
        let mut ours = harness.send(id, input);
        if self.shared.has_password() {
            // Answers to wrong passwords are held back.
            for failures in 0..limits::AUTH_FAILURES_MAX - 1 {
                harness.pass(limits::AUTH_BACKOFF_MS << failures);
                ours.extend(harness.take(id));
            }
        }
        let ours = normalize(ours);
        let theirs = normalize(self.redis.answers(input));
        if ours != theirs {
            self.differences.push(format!(
                "input:   {}\nredis:   {}\nquorate: {}",
                input.escape_ascii(),
                theirs.escape_ascii(),
                ours.escape_ascii()
            ));
        }
        harness.frontend.close(id);
        self.redis.answers(b"FLUSHALL\r\n");
    }

    /// Lines of several clients, each answered before the next.
    fn feed_together(&mut self, lines: &[(usize, &str)]) {
        let mut harness = self.harness();
        let count = lines.iter().map(|(client, _)| client + 1).max().unwrap_or_default();
        let mut clients: Vec<_> =
            (0..count).map(|_| (harness.connect(), self.redis.connect())).collect();
        for (at, (client, line)) in lines.iter().enumerate() {
            let (id, stream) = &mut clients[*client];
            let ours = harness.talk(*id, line);
            let theirs = exchange(stream, line, ours.len());
            if normalize(ours.clone().into()) != normalize(theirs.clone()) {
                self.differences.push(format!(
                    "input:   {:?}\nredis:   {}\nquorate: {}",
                    &lines[..=at],
                    theirs.escape_ascii(),
                    ours.escape_debug()
                ));
                break;
            }
        }
        self.redis.answers(b"FLUSHALL\r\n");
    }

    fn feed_script(&mut self, script: &str) {
        self.feed(format!("{}\r\n", script.replace(';', "\r\n")).as_bytes());
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.differences.is_empty(), "{}", self.differences.join("\n\n"));
        }
    }
}

/// One connection each; commands are separated by semicolons.
const SCRIPTS: &[&str] = &[
    "PING;PING a;PING a b;ECHO;ECHO \"a b\";ECHO a b",
    "ping;PiNg;QUIT;PING",
    "MULTI;QUIT now;PING",
    "foo;foo a b c;foo 'a b' \"c\\n\";FOO \"\\r\\n\";get;get a b;set a;SeT;\"\" a",
    "foo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b",
    "client;client foo;client ID x;client setname;client setname 'a b';client getname;client setname me;client getname;client setname '';client getname",
    "client reply;client reply foo;client reply on;ping a;client reply off;ping b;foo;set a 1;client reply skip;client reply on;get a;client reply skip;ping c;ping d",
    "client reply skip;client reply skip;ping a;ping b;client reply skip;client reply foo;ping c;client reply skip;client reply on;ping d;client reply skip;multi;ping e;exec;client reply off;reset;ping f",
    "client reply skip;mget a b;set a 1;get a;client reply off;multi;set a 2;exec;watch a;client reply on;get a",
    "client reply off;foo;get;auth x;client reply on;client reply off;quit;ping",
    "client kill;client kill foo;client kill 1.2.3.4:5;client kill id x;client kill id 0;client kill id 99999;client kill type foo;client kill type pubsub;client kill addr x;client kill laddr x skipme yes;client kill user x;client kill user default type replica;client kill skipme x;client kill foo bar;client kill id 99999 skipme",
    "client kill type normal skipme yes;client kill type normal skipme no;ping",
    "client tracking;client tracking x;client tracking on foo;client tracking on prefix;client tracking on prefix a;client tracking on redirect;client tracking on redirect x;client tracking on redirect 99999999;client tracking on redirect -1;client tracking on bcast optin;client tracking on optin optout;client tracking off foo;client tracking off bcast;client getredir;client trackinginfo;client caching yes",
    "client tracking on optin;client tracking on optout;client tracking on bcast;client caching no;client caching x;client caching;client caching yes;client trackinginfo;get a;client trackinginfo;client caching yes;multi;get a;exec;client trackinginfo;client tracking on;client trackinginfo;client getredir;client getredir x;reset;client trackinginfo",
    "client tracking on bcast prefix ab prefix a;client tracking on bcast prefix a prefix ab;client tracking on bcast prefix ab prefix c noloop;client tracking on bcast prefix abc;client tracking on bcast prefix '';client tracking on;client trackinginfo;client tracking on bcast;client trackinginfo;hello 3;client trackinginfo;client tracking off;client trackinginfo;client tracking on bcast;client trackinginfo;client tracking on bcast prefix x",
    "client tracking on optout noloop;client caching yes;client caching no;client trackinginfo;client list type pubsub;client trackinginfo;ping;client trackinginfo;config get tracking-table-max-keys;config set tracking-table-max-keys x;config set tracking-table-max-keys 5;config get tracking-table-max-keys;config set tracking-table-max-keys 1000000",
    "client no-evict;client no-evict x;client no-evict on;client no-evict OFF",
    "client list type foo;client list type;client list id x;client list id;client list foo;client list type pubsub;client list type replica;client list id 99999999;client list id 99999998 99999999",
    "hello 1;hello 4;hello x;hello 2 foo;hello 2 setname;hello 2 setname 'a b';hello 2 auth a;hello 2 auth a b;hello 2 auth default x;hello 2 setname me;client getname",
    "hello 2 setname me foo;client getname;hello 9 setname you;client getname;hello 2 setname you auth default;client getname;hello 2 setname a setname b;client getname;hello 2 setname c setname 'd e';client getname",
    "hello;hello 2;hello 3;hello;get a;mget a b;client list type pubsub;client getname;command info foo;config get save;reset;get a",
    "hello 3;multi;get a;exec;watch a;set a 1;multi;get a;exec;scan 0;keys *;randomkey;object encoding nokey;memory usage nokey;time x;hello 2;get a",
    "hello 3;command info get foo client|id;command getkeys get a;command count x;info nosection;info nosection other",
    "auth;auth a;auth a b;auth a b c;auth default x;auth a b c d",
    "select;select 0;select 15;select 16;select -1;select x;select 99999999999;select 99999999999999999999;select 1 2",
    "select 3;set a 1;dbsize;select 0;dbsize;get a;select 3;get a;flushdb;get a",
    "set a 1;select 3;set b 1;flushall;dbsize;select 0;dbsize",
    "reset;reset x;multi;get a;reset;exec;select 3;reset;dbsize",
    "command foo;command count x;command getkeys;command getkeys get;command getkeys get a;command getkeys ping;command getkeys foo bar;command getkeys mset a 1 b 2;command getkeys ping x;command getkeys set a;command info get;command info foo;command docs foo",
    "command list foo;command list filterby;command list filterby pattern;command list filterby foo bar;command list filterby module nope;command list filterby aclcat nope;command list filterby pattern nope*;command list filterby pattern 'XGET';command list filterby pattern GETD?L;command list filterby pattern 'client|i*' foo;command list filterby pattern 'client|id'",
    "command getkeysandflags;command getkeysandflags get;command getkeysandflags get a;command getkeysandflags set a b get;command getkeysandflags ping x;command getkeysandflags mset a 1 b 2;hello 3;command getkeysandflags bitop and a b c",
    "config set client-output-buffer-limit 'slave 1mb 2 3 normal 0 0 0';config get client-output-buffer-limit;config set client-output-buffer-limit 'replica 4 5 6 pubsub 7 8 9';config get client-output-buffer-limit;config set client-output-buffer-limit 'slave 256mb 64mb 60 pubsub 32mb 8mb 60';config set daemonize yes;config get replicaof;config get daemonize",
    "config;config foo;config get;config set;config set a;config set foo 1;config set timeout;config set timeout x;config set timeout -1;config set timeout 1 timeout 2;config set timeout 1 maxmemory;config set maxclients 0;config set maxclients x;config set maxmemory abc;config set databases 5;config set client-output-buffer-limit x;config set client-output-buffer-limit 'foo 1 1 1';config set client-output-buffer-limit 'normal 1 1 x';config set proto-max-bulk-len x;config set client-query-buffer-limit x",
    "config set timeout 7;config get timeout;config set TimeOut 0;config get TIMEOUT;config get timeou?;config set maxmemory 1gb;config get maxmemory;config set maxmemory 0;config get nothing;config get maxmemory-policy;config get save;config get appendonly;config set save '';config resetstat;config resetstat x",
    "dbsize;dbsize x;set a 1;dbsize;time x;randomkey;randomkey x;keys;keys a b;keys *;keys ?;keys [b-z];keys [^b-z];keys a*;keys \\\\a;keys \"\"",
    "scan;scan x;scan -x;scan '';scan 0 match;scan 0 count 0;scan 0 count -1;scan 0 count x;scan 0 foo 1;scan 0 type string;scan 0 match a* count 10 type STRING;scan 18446744073709551616;scan ' 0'",
    "set a 1;scan 0;scan 0 match b;scan 0 match a;scan 0 type hash;scan 0 type string;scan 0 count 5",
    "wait;wait x 1;wait 1 x;wait 0 -1;wait -1 1;wait 0 0;wait 1 1;wait x x",
    "flushall foo;flushall sync async;flushdb foo;flushdb;flushall;flushdb async;flushdb SYNC;flushall async;flushdb a b",
    "shutdown foo;shutdown nosave save;shutdown abort;shutdown abort now;shutdown save nosave now",
    "memory;memory foo;memory usage;memory usage nokey;memory usage nokey samples;memory usage nokey samples x;memory usage nokey samples -1;memory usage nokey samples 5;memory usage nokey foo",
    "object;object foo;object encoding;object encoding nokey;set a 1;object encoding a;set a abc;object encoding a",
    "lolwut version x",
    "info nosection",
    "multi;multi;exec;exec;discard;multi;discard;multi;discard x;exec",
    "multi;watch a;exec;unwatch;watch;multi;watch;exec;watch a b;unwatch x;unwatch",
    "multi;get;exec;multi;foo;exec;multi;foo;discard;get a;multi;set a 1;exec x;exec;get a",
    "multi;set a 1;incr a;incr a;get a;append a x;incr a;exec;get a",
    "multi;ping;ping x;echo y;client getname;client setname me;client getname;select 2;exec;client getname",
    "multi;shutdown nosave;exec;multi;wait 0 0;wait 0 x;exec;multi;unwatch;exec;multi;config set foo 1;exec;multi;hello 3;exec;get a",
    "multi;dbsize;exec;multi;flushall;exec;multi;flushdb x;exec;multi;scan 0;keys *;exec;multi;randomkey;exec",
    "multi;hello 3;get a;exec;get a",
    "watch a;set a 1;multi;set a 2;exec;get a;watch a;multi;set a 3;exec;get a;watch a;unwatch;set a 4;multi;get a;exec",
    "watch a;multi;set a 1;exec;watch a;del a;multi;exec;watch a;multi;exec;watch a;set a 1;multi;discard;multi;get a;exec",
    "mget a b c;set a 1;mget a b a;exists a b a;del a b a;touch a b;unlink a;mget;del;exists",
    "bitop;bitop and a;bitop foo a a;bitop not a a;setbit a 9 1;bitop not a a;bitpos a 0;bitpos a 1;bitpos a 1 2 3 x;bitop or a a a;bitfield a;bitfield a get u4;bitfield a set u4 3 9 get i5 1 overflow fail incrby u2 0 9;hello 3;bitfield_ro a get u4 3;bitfield_ro a set u4 0 1;substr a 0 0",
    "lcs;lcs a;set a abc;lcs a a;lcs a a len;lcs a a idx;lcs a a idx len;lcs a a foo;hello 3;lcs a a idx withmatchlen minmatchlen 1;multi;lcs a a;bitfield a incrby u8 0 1;exec",
    "set a 1;get a;mset a 1;mset a;mset a 1 a 2;get a;copy a a;set a 1 ex 0;set a 1 foo;expire a x;incr a;incrby a x",
];

/// One connection each, for keyspaces with transactions; commands are separated by semicolons.
const SEVERAL_KEYS: &[&str] = &[
    "setbit a 3 1;setbit b 20 1;bitop or c a b;get c;bitop and c a b x;get c;bitop xor a a b;get a;bitop and d x y;exists d;bitop not b x;exists b;expire a 100;bitop or a a c;ttl a",
    "set a ohmytext;set b mynewtext;lcs a b;lcs a b len;lcs a b idx minmatchlen 4 withmatchlen;lcs b a idx;lcs a x;lcs x y idx;multi;lcs a b;bitop and c a b;lcs c a;exec;watch d;bitop not d x;multi;ping;exec",
    "mset a 1 b 2 c 3;mget a b c d;exists a b c d a;touch a d;del a b d;unlink c a;dbsize",
    "mset a 1 b;mset a;mset a 1 a 2 b 3;mget a b;mset a x b y;mget b a",
    "msetnx a 1 b 2;msetnx b 1 c 1;msetnx c 1 c 2;msetnx c;msetnx c 1 d;mget a b c d",
    "set a 1 ex 100;mset a 2 b 2;ttl a;set b 1 ex 100;msetnx b 1 c 1;ttl b;ttl c",
    "rename a b;set a 1;rename a b;mget a b;rename b b;get b;rename a a;rename a;rename a b c",
    "set a 1 ex 100;set b 2;rename a b;ttl b;ttl a;set c 3;rename c b;ttl b;get b",
    "set a 1;set b 2;renamenx a b;renamenx a c;mget a b c;renamenx a d;renamenx c c;renamenx x x;renamenx a",
    "set a 1;copy a b;copy a b;set a 2;copy a b;copy a b replace;mget a b;copy x b;copy x b replace;get b",
    "copy a a;set a 1;copy a a;copy a a replace;copy a b foo;copy a b db;copy a b db x;copy a b db 99;copy a b replace replace;copy a;hello 3;copy a c",
    "set a 1 ex 100;set b 2;copy a b replace;ttl b;copy b c;ttl c;persist a;ttl c;copy a c replace;ttl c",
    "multi;mset a 1 b 2;incr a;rename a c;mget a b c;del a b c;exists a b c;exec;dbsize",
    "multi;set a x;incr a;set b 1;rename no yes;msetnx b 1 c 1;incr b;copy a d;exec;mget a b c d",
    "multi;set a 1;mset a;set b 1;exec;mget a b;multi;rename a;set b 1;exec;get b",
    "multi;mset a 1 b 2 c;msetnx a 1 b;copy a b foo;renamenx x y;exec;dbsize",
    "multi;set a 1;foo;set b 1;discard;multi;set b 2;exec;mget a b;exec;discard",
    "watch a b;multi;set c 1;exec;watch a b c;set b 1;multi;set c 2;exec;get c",
    "watch a b;rename c a;multi;exec;watch a b;set c 1;rename c a;multi;exec;watch a b;mset a 1;multi;ping;exec;watch a b;get a;multi;ping;exec",
    "watch a b c d;msetnx a 1 b 1;multi;get a;exec;watch a b;msetnx a 1 c 1;multi;mget a b c;exec",
    "watch a;watch b;watch a b;multi;watch c;set c 1;exec;watch a;unwatch;set a 1;multi;get a;get b;exec",
    "set a 1;watch a b;del b;multi;ping;exec;watch a b;del a b;multi;ping;exec;watch a b;del a b;multi;ping;exec",
    "set a 1;watch a b;copy a b;multi;ping;exec;watch a b;copy a b;multi;ping;exec;watch a b;copy a b replace;multi;ping;exec",
    "set a 1;watch a b;rename a a;multi;ping;exec;watch a b;renamenx a b;multi;mget a b;exec",
    "set a 1;watch a b;expire a 100;multi;ping;exec;watch a b;persist b;multi;ping;exec;watch a b;persist a;multi;ping;exec",
    "watch a b;set a 1;multi;get;exec;multi;mget a b;exec;watch a b;set b 1;multi;discard;multi;mget a b;exec",
    "hello 3;watch a b;set b 1;multi;mget a b;exec;multi;mget a b;copy b a;rename x y;exec",
    "select 3;mset a 1 b 2;select 4;mget a b;dbsize;multi;mset c 1 d 2;exec;dbsize;select 3;dbsize",
    "multi;select 3;mset a 1 b 2;exec;mget a b;select 0;mget a b",
    "select 3;watch a b;select 0;multi;ping;exec;multi;mset a 1 b 1;exec",
    "mset a 1 b 2;multi;flushdb;exec;mget a b;mset a 1 b 2;multi;dbsize;exec;flushall;exists a b",
    "set a 1;set b 2;object encoding b;append b xyz;strlen b;setrange a 3 x;getrange a 0 -1;setbit c 7 1;bitcount c;getdel b;getset a 5;incrbyfloat a 1.5",
];

/// One connection each.
const RAW: &[&[u8]] = &[
    b"\r\n\r\nPING\r\n",
    b"PING\nPING\r\n\n",
    b"*0\r\n*-1\r\n*-5\r\nPING\r\n",
    b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
    b"*2\r\n$4\r\nECHO\r\n$6\r\na\r\nb\0\xff\r\n",
    b"*1xx$4xxPINGxx",
    b"*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n",
    b"PING\r\n*x\r\nPING\r\n",
    b"*+1\r\n",
    b"* 1\r\n",
    b"*\r\n",
    b"*01\r\n",
    b"*-0\r\n",
    b"*2147483648\r\n",
    b"*99999999999999999999999\r\n",
    b"*1\r\n$x\r\n",
    b"*1\r\n$-1\r\n",
    b"*1\r\n$\r\n",
    b"*1\r\n$99999999999999999999\r\n",
    b"*1\r\n$01\r\n",
    b"*1\r\nPING\r\n",
    b"*1\r\n:4\r\nPING\r\n",
    b"*1\r\n\r\n",
    b"*1\r\n\n\r\n",
    b"*1\r\n\xff\r\n",
    b"*2\r\n$4\r\nECHO\r\n*1\r\n$1\r\na\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n",
    b"SET a \"b\r\nPING\r\n",
    b"SET a \"b\"c\r\nPING\r\n",
    b"SET a 'b\r\n",
    b"SET a 'b'c\r\n",
    b"ECHO \"\\x41\\x4\\n\\q\"\r\nECHO 'a\\'b'\r\nECHO a\"b c\"\r\nECHO \"\"\r\n",
    b"ECHO a\x0bb\r\n\x0bECHO\x0bb\r\n",
    b"POST / HTTP/1.1\r\nPING\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nPING\r\n",
    b"SET a b\r\nGET a\r\nfoo ~\r\n",
    b"MULTI\r\n*1\r\n$-1\r\nEXEC\r\n",
];

#[test]
fn replies_are_those_of_redis() {
    let settings = Settings::default();
    // Redis's default, so that its errors come at the same lengths.
    settings.bulk_bytes_max.store(512 << 20, Ordering::Relaxed);
    let mut both = Comparison::new(Redis::start(None), Shared::new(settings, None));
    for script in SCRIPTS {
        both.feed_script(script);
    }
    for raw in RAW {
        both.feed(raw);
    }
    let long = "a".repeat(70_000);
    for raw in [format!("*{long}"), format!("*1\r\n${long}"), long.clone()] {
        both.feed(raw.as_bytes());
    }
    let key = "k".repeat(200);
    both.feed_script(&format!("{key} {key};client {key}"));
}

/// What the random scripts are made of. One key, since several in one transaction are refused here.
const WORDS: &[&str] = &[
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH a",
    "WATCH a a",
    "UNWATCH",
    "RESET",
    "GET a",
    "SET a 1",
    "SET a x",
    "INCR a",
    "APPEND a y",
    "DEL a",
    "DEL a a",
    "MGET a a",
    "EXISTS a a",
    "EXPIRE a 100",
    "PERSIST a",
    "GETDEL a",
    "SETNX a z",
    "STRLEN a",
    "TYPE a",
    "SET a 1 NX GET",
    "SET a 1 KEEPTTL",
    "GETEX a PERSIST",
    "SETRANGE a 3 q",
    "INCRBYFLOAT a 1.5",
    "PING",
    "ECHO x",
    "HELLO 2",
    "HELLO 3",
    "CLIENT GETNAME",
    "CLIENT SETNAME me",
    "CLIENT SETNAME ''",
    "CONFIG GET timeout",
    "WAIT 0 0",
    "GET",
    "FOO",
    "EXEC x",
    "SET a",
    "OBJECT ENCODING none",
    "COMMAND INFO get",
    "COPY a a",
    "MSET a 1 a 2",
    "UNWATCH x",
];

#[test]
fn transactional_replies_are_those_of_redis() {
    let mut both = Comparison::transactional(Redis::start(None));
    for script in SCRIPTS.iter().chain(SEVERAL_KEYS) {
        // Whatever is drawn.
        for _ in 0..3 {
            both.feed_script(script);
        }
    }
}

/// What the random scripts over several keys are made of, besides [`WORDS`].
const WORDS_OF_SEVERAL: &[&str] = &[
    "MULTI",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH a b",
    "WATCH b c",
    "WATCH a b c",
    "MGET a b c",
    "MGET c a",
    "MSET a 1 b 2",
    "MSET b x c y b z",
    "MSET a 1 b",
    "MSETNX a 1 c 2",
    "MSETNX b 1",
    "DEL a b",
    "DEL c",
    "UNLINK b c",
    "EXISTS a b c",
    "TOUCH b c",
    "COPY a b",
    "COPY b c REPLACE",
    "COPY c a foo",
    "RENAME a b",
    "RENAME b c",
    "RENAME c a",
    "RENAMENX a c",
    "RENAMENX b b",
    "SET b 1 EX 1000",
    "SET c 1",
    "PERSIST b",
    "TTL c",
    "INCR b",
    "GET c",
];

/// A command out of those on one key and those on several.
fn draw(rng: &mut Rng) -> &'static str {
    let words = if rng.below(4) == 0 { WORDS } else { WORDS_OF_SEVERAL };
    words[rng.below(words.len() as u64) as usize]
}

#[test]
fn random_transactional_sessions_are_those_of_redis() {
    let mut both = Comparison::transactional(Redis::start(None));
    let mut rng = Rng::new(2);
    for _ in 0..1000 {
        let count = 2 + rng.below(25);
        let mut script: Vec<&str> = (0..count).map(|_| draw(&mut rng)).collect();
        script.extend(["EXEC", "DBSIZE", "MGET a b c", "FLUSHDB", "MGET a b c"]);
        both.feed_script(&script.join(";"));
    }
}

#[test]
fn clients_on_the_same_keys_are_answered_as_by_redis() {
    let mut both = Comparison::transactional(Redis::start(None));
    let mut rng = Rng::new(3);
    for _ in 0..500 {
        let count = 10 + rng.below(30);
        let mut lines: Vec<_> =
            (0..count).map(|_| (rng.below(3) as usize, draw(&mut rng))).collect();
        // Its answer has an id whose length differs.
        lines.retain(|(_, line)| !line.starts_with("HELLO"));
        both.feed_together(&lines);
        // A missing answer takes long.
        if !both.differences.is_empty() {
            break;
        }
    }
}

/// Bodies of scripts whose messages and events somebody hears.
const TELLING: &[&str] = &[
    "redis.call('publish', 'c', 'm') redis.call('publish', 'd', 2^53) redis.call('publish', 'c', -0.5)",
    "redis.call('set', 'a', 1) redis.call('publish', 'c', 'm') redis.call('incr', 'a') error('x')",
    "redis.call('set', 'a', 1, 'ex', 100) redis.call('persist', 'a') redis.call('expire', 'a', 9)",
    "redis.call('lpush', 'l', 'x', 'y') redis.call('lmove', 'l', 'm', 'left', 'right') redis.call('rpop', 'l')",
    "redis.call('mset', 'a', 1, 'b', 2) redis.call('rename', 'a', 'd') redis.call('del', 'a', 'b', 'd')",
    "redis.call('sadd', 's', 1, 2) redis.call('smove', 's', 't', 1) redis.call('sinterstore', 'u', 's', 't')",
    "redis.call('hset', 'h', 'f', 1) redis.call('hincrby', 'h', 'f', 2) redis.call('hdel', 'h', 'f')",
    "redis.call('zadd', 'z', 1, 'm') redis.call('zincrby', 'z', 2, 'm') redis.call('zpopmin', 'z')",
    "redis.call('get', 'nokey') redis.call('set', 'a', 'x', 'xx') redis.pcall('incr', 'm') redis.call('del', 'm')",
    "redis.pcall('publish', 'c') redis.pcall('publish') redis.call('xadd', 'x', '1-1', 'f', 'v')",
    "for n = 1, 100 do redis.call('publish', n, n) redis.call('append', 'p', n) end",
];

#[test]
fn what_scripts_tell_is_that_of_redis() {
    let mut both = Comparison::transactional(Redis::start(None));
    let mut lines = vec![
        (0, "config set notify-keyspace-events KEAn".to_owned()),
        (1, "psubscribe *".to_owned()),
        (2, "subscribe c".to_owned()),
    ];
    for body in TELLING {
        let eval = format!("eval \"{body}\" 0");
        lines.extend([(0, eval.clone()), (1, "ping".to_owned()), (2, "ping".to_owned())]);
        let block = ["multi", "publish c 1", &eval, "publish c 2", "exec"];
        lines.extend(block.map(|line| (0, line.to_owned())));
        lines.push((1, "ping".to_owned()));
    }
    let lines: Vec<_> = lines.iter().map(|(client, line)| (*client, line.as_str())).collect();
    both.feed_together(&lines);
}

#[test]
fn random_sessions_are_those_of_redis() {
    let shared = Shared::new(Settings::default(), None);
    let mut both = Comparison::new(Redis::start(None), shared);
    let mut rng = Rng::new(1);
    for _ in 0..500 {
        let count = 2 + rng.below(16);
        let script: Vec<&str> =
            (0..count).map(|_| WORDS[rng.below(WORDS.len() as u64) as usize]).collect();
        both.feed_script(&script.join(";"));
    }
}

#[test]
fn authentication_is_that_of_redis() {
    let shared = Shared::new(Settings::default(), Some("secret".to_owned()));
    let mut both = Comparison::new(Redis::start(Some("secret")), shared);
    for script in [
        "ping;get a;foo;get;select 1;multi;exec;hello;hello 3;hello 2 setname me;client id;quit",
        "auth wrong;auth default wrong;auth other secret;auth default secret;ping;reset;ping",
        "auth secret;ping;hello 3 auth default wrong;get a;hello 3 auth default secret;get a;ping",
        "hello 2 auth default secret setname me;client getname;reset;client getname;reset",
        "hello 2 auth default secret foo;ping;reset;hello 2 setname me auth default wrong;ping;auth secret;client getname",
        "hello 3 auth default wrong;hello 5;hello x;hello 2 foo;ping",
        "auth secret;auth wrong;ping;auth a b c",
        "reset;watch a;unwatch;discard;command;info;config get requirepass",
        "auth secret;config get requirepass",
    ] {
        both.feed_script(script);
    }
    both.feed(b"*11\r\n");
    both.feed(b"*10\r\n$16385\r\n");
    both.feed(b"AUTH secret\r\n*11\r\n$16385\r\n");
}
