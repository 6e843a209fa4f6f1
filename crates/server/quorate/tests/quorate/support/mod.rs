//! What the tests of the program share: child processes that end with their test, free ports, and
//! a Redis client of a page.

pub(crate) mod dev;
pub(crate) mod files;
pub(crate) mod redis;

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest that anything may take before the test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running `quorate`, ended with this value.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
    /// Lines of its log that were looked at.
    read: RefCell<Vec<String>>,
}

impl Process {
    /// Starts `quorate` with these arguments.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[], Stdio::piped())
    }

    /// As [`Process::start`], with more in its environment and another standard error, to which
    /// nobody listens here unless it is a pipe made for it.
    pub(crate) fn start_with(args: &[&str], environment: &[(&str, &str)], stderr: Stdio) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        Self::spawn(command.args(args).envs(environment.iter().copied()).stderr(stderr))
    }

    /// Starts `quorate` within one of the shell's limits: `-v` KiB of address space, `-n` files.
    pub(crate) fn start_within(limit: &str, args: &[&str]) -> Self {
        let limited = format!("ulimit {limit}; exec \"$0\" \"$@\"");
        let program = env!("CARGO_BIN_EXE_quorate");
        let mut command = Command::new("sh");
        Self::spawn(command.args(["-c", &limited, program]).args(args).stderr(Stdio::piped()))
    }

    /// Starts `quorate` where a directory is an empty disk of this size, which nobody else sees but by
    /// [`Process::seen`].
    pub(crate) fn start_on_tmpfs(dir: &Path, size: &str, args: &[&str]) -> Self {
        let mount = format!("mount -t tmpfs -o size={size} tmpfs \"$0\"; exec \"$@\"");
        let mut command = Command::new("unshare");
        let command = command.args(["--map-root-user", "--mount", "sh", "-ec", &mount]).arg(dir);
        let program = env!("CARGO_BIN_EXE_quorate");
        Self::spawn(command.arg(program).args(args).stderr(Stdio::piped()))
    }

    /// A path as the process sees it.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.child.id());
        Path::new(&root).join(path.strip_prefix("/").expect("an absolute path"))
    }

    fn spawn(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("quorate starts");
        let lines = follow(child.stdout.take().expect("stdout is piped"));
        let errors = match child.stderr.take() {
            Some(stderr) => follow(stderr),
            None => channel().1,
        };
        Self { child, lines, errors, read: RefCell::default() }
    }

    /// The next line of its output that `wanted` accepts.
    pub(crate) fn line(&self, wanted: impl Fn(&str) -> bool) -> String {
        match find(&self.lines, &wanted) {
            Some(line) => line,
            None => panic!("quorate did not say it; it logged:\n{}", self.log()),
        }
    }

    /// The next line of its log that contains `words`.
    pub(crate) fn logged(&self, words: &str) -> String {
        let keep = |line: &str| {
            self.read.borrow_mut().push(line.to_owned());
            line.contains(words)
        };
        find(&self.errors, &keep).unwrap_or_else(|| panic!("quorate did not log '{words}'"))
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        self.log_so_far().join("\n")
    }

    /// Every line of its log that has come.
    pub(crate) fn log_so_far(&self) -> Vec<String> {
        let mut read = self.read.borrow_mut();
        read.extend(self.errors.try_iter());
        read.clone()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a child has an id");
        kill_process(pid, signal).expect("a child can be signalled");
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        poll_until(deadline, "the process ends", || {
            self.child.try_wait().expect("a child can be waited for")
        })
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Descriptors it has open.
    pub(crate) fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Processor time it has used so far, in clock ticks (10 ms).
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1;
        fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn follow(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn find(lines: &Receiver<String>, wanted: &impl Fn(&str) -> bool) -> Option<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if wanted(&line) => return Some(line),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Asks again and again until there is an answer.
pub(crate) fn poll_until<T>(
    deadline: Instant,
    what: &str,
    mut ask: impl FnMut() -> Option<T>,
) -> T {
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Where [`free_ports`] looks: below the ports that the system gives to outgoing connections, of
/// which one could otherwise take a port between its choice and the start of its node.
const PORTS: std::ops::Range<u32> = 10_000..32_000;
/// How many of them a test process looks at before another one's.
const PORTS_PER_PROCESS: u32 = 200;

/// Ports that nobody has at the moment, other ones at each call.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(PORTS_PER_PROCESS);
    let candidates = std::iter::repeat_with(|| {
        let offset = first.wrapping_add(TAKEN.fetch_add(1, Relaxed)) % PORTS.len() as u32;
        (PORTS.start + offset) as u16
    });
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    candidates.take(PORTS.len()).filter(is_free).take(count).collect()
}

/// Every engine that a keyspace may have.
pub(crate) const ENGINES: [&str; 3] = ["hermes", "meerkat", "zeus"];
/// Those whose keyspaces have sessions.
pub(crate) const WITH_SESSIONS: [&str; 3] = ["hermes", "meerkat", "zeus"];

/// The lines of a configuration that make database 0 a keyspace of this engine, with more of its
/// keys.
pub(crate) fn keyspace(engine: &str, more: &str) -> String {
    format!("[[keyspace]]\ndb = 0\nname = \"default\"\nengine = \"{engine}\"\n{more}\n")
}

/// A configuration file for three nodes on free ports, removed with this value.
pub(crate) struct Cluster {
    pub(crate) file: PathBuf,
    pub(crate) peers: Vec<u16>,
    pub(crate) clients: Vec<u16>,
    pub(crate) admins: Vec<u16>,
}

impl Cluster {
    /// Writes the file. `name` tells the tests' files apart; `more` is appended.
    pub(crate) fn write(name: &str, nodes: usize, cluster: &str, more: &str) -> Self {
        let ports = free_ports(3 * nodes);
        let (peers, rest) = ports.split_at(nodes);
        let (clients, admins) = rest.split_at(nodes);
        let mut text = format!("[cluster]\nname = \"{name}\"\n{cluster}\n");
        for index in 0..nodes {
            text += &format!(
                "[[node]]\nid = {}\npeer = \"127.0.0.1:{}\"\nclient = \"127.0.0.1:{}\"\n\
                 admin = \"127.0.0.1:{}\"\n",
                index + 1,
                peers[index],
                clients[index],
                admins[index]
            );
        }
        text += more;
        static WRITTEN: AtomicU32 = AtomicU32::new(0);
        let number = WRITTEN.fetch_add(1, Relaxed);
        let file = format!("quorate-{name}-{}-{number}.toml", std::process::id());
        let file = std::env::temp_dir().join(file);
        std::fs::write(&file, text).unwrap();
        Self { file, peers: peers.to_vec(), clients: clients.to_vec(), admins: admins.to_vec() }
    }

    /// The file with the token of its nodes.
    pub(crate) fn token(&self) -> String {
        self.file.with_extension("token").to_str().expect("the path is text").to_owned()
    }

    /// Starts a node.
    pub(crate) fn serve(&self, node: usize) -> Process {
        let file = self.file.to_str().expect("the path is text");
        Process::start(&["serve", "--config", file, "--node", &node.to_string()])
    }

    /// Starts a node with more in its environment and another standard error.
    pub(crate) fn serve_with(
        &self,
        node: usize,
        environment: &[(&str, &str)],
        stderr: Stdio,
    ) -> Process {
        let file = self.file.to_str().expect("the path is text");
        let args = ["serve", "--config", file, "--node", &node.to_string()];
        Process::start_with(&args, environment, stderr)
    }

    /// Starts every node and waits until all serve.
    pub(crate) fn serve_all(&self) -> Vec<Process> {
        let nodes: Vec<Process> = (1..=self.peers.len()).map(|node| self.serve(node)).collect();
        for node in &nodes {
            node.line(|line| line.starts_with("ready"));
        }
        nodes
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
        let _ = std::fs::remove_file(self.file.with_extension("token"));
    }
}

/// What Redis answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
    /// What `EXEC` answers if a watched key has changed.
    NullArray,
}

impl Reply {
    /// A bulk string.
    pub(crate) fn bulk(text: &str) -> Self {
        Self::Bulk(Some(text.as_bytes().to_vec()))
    }
}

/// A Redis client.
pub(crate) struct Client {
    port: u16,
    reader: BufReader<TcpStream>,
}

impl Client {
    /// Connects, once.
    pub(crate) fn connect(port: u16, patience: Duration) -> io::Result<Self> {
        let address = ("127.0.0.1", port).to_socket_addrs()?.next().expect("it is an address");
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Self { port, reader: BufReader::new(stream) })
    }

    /// Connects to a node that runs.
    pub(crate) fn new(port: u16) -> Self {
        Self::connect(port, PATIENCE).expect("the node accepts clients")
    }

    /// Sends a command without waiting.
    pub(crate) fn send(&mut self, args: &[&str]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", args.len());
        for arg in args {
            bytes += &format!("${}\r\n{arg}\r\n", arg.len());
        }
        self.send_raw(bytes.as_bytes())
    }

    /// Sends bytes.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Says that nothing more will be sent.
    pub(crate) fn finish_sending(&self) {
        self.reader.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Reads a reply.
    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let bad = || io::Error::new(io::ErrorKind::InvalidData, line.to_owned());
        let number = || line[1..].parse::<i64>().map_err(|_| bad());
        match line.as_bytes().first() {
            Some(b'+') => Ok(Reply::Simple(line[1..].to_owned())),
            Some(b'-') => Ok(Reply::Error(line[1..].to_owned())),
            Some(b':') => Ok(Reply::Int(number()?)),
            Some(b'$') => match number()? {
                -1 => Ok(Reply::Bulk(None)),
                length => {
                    let mut bytes = vec![0; length as usize + 2];
                    self.reader.read_exact(&mut bytes)?;
                    bytes.truncate(length as usize);
                    Ok(Reply::Bulk(Some(bytes)))
                }
            },
            Some(b'*') => {
                let count = number()?;
                if count < 0 {
                    return Ok(Reply::NullArray);
                }
                (0..count).map(|_| self.receive()).collect::<io::Result<_>>().map(Reply::Array)
            }
            _ => Err(bad()),
        }
    }

    /// Sends a command and reads its reply.
    pub(crate) fn ask(&mut self, args: &[&str]) -> io::Result<Reply> {
        self.send(args)?;
        self.receive()
    }

    /// As [`Client::ask`], of a node that runs. On a crowded machine a node can be off the processor
    /// for longer than its lease: then it refuses for a moment, which is asked again, or drops the
    /// connection instead of giving an answer that may be old, after which a read is asked again.
    /// What may have happened is never sent twice: `-UNKNOWN` is an answer like any other, and a
    /// lost connection under anything but a read ends the test.
    pub(crate) fn call(&mut self, args: &[&str]) -> Reply {
        let deadline = Instant::now() + PATIENCE;
        poll_until(deadline, "the node answers", || match self.ask(args) {
            Ok(Reply::Error(text))
                if ["CLUSTERDOWN", "TRYAGAIN"].iter().any(|code| text.starts_with(code)) =>
            {
                None
            }
            Ok(reply) => Some(reply),
            Err(error) => {
                assert!(READS.contains(&args[0]), "{args:?} may have happened or not: {error}");
                *self = Self::connect(self.port, PATIENCE).ok()?;
                None
            }
        })
    }
}

/// Commands that change nothing, so that they may be sent again after a lost connection.
const READS: [&str; 8] =
    ["DBSIZE", "EXISTS", "GET", "INFO", "KEYRANGE", "MGET", "RANDOMKEY", "STRLEN"];

/// The body of an HTTP answer and its status.
pub(crate) fn http_get(port: u16, path: &str) -> (u16, String) {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    let agent: ureq::Agent = config.timeout_global(Some(PATIENCE)).build().into();
    let mut answer = agent.get(format!("http://127.0.0.1:{port}{path}")).call().unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
}
