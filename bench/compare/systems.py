"""The systems under test: how each is started, watched and stopped."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time

START_SECONDS_MAX = 30
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Places:
    """Where things are: a scratch directory, ports, binaries."""

    def __init__(self, work, port_base, binaries):
        self.work, self.binaries = work, binaries
        self._next = port_base

    def port(self):
        self._next += 1
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self._next))
            except OSError as error:
                raise SystemExit(f"port {self._next} is taken ({error}); choose --port-base")
        return self._next


class System:
    """A set of server processes that together are one system."""

    name = ""
    program = ""
    package = ""
    version = []
    # Started for each cell and stopped after it, because it is busy even when idle.
    transient = False
    # The ops of the load generator that stand for a read and a durable write.
    get_op, set_op, txn_op = "get", "set", "multi"
    redis_protocol = True
    # Whether each write waits for replicas with a command of its own.
    waits = False

    def __init__(self, places):
        self.places = places
        self.processes = []
        self.ports = []

    def missing(self):
        if shutil.which(self.program):
            return None
        return f"{self.program} is not installed (apt-get install {self.package})"

    def describe(self):
        return self.__doc__.strip().splitlines()[0]

    def start(self):
        raise NotImplementedError

    def spawn(self, command, label):
        log = open(self.places.work / f"{self.name}-{label}.log", "wb")
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=subprocess.STDOUT, cwd=self.places.work)
        log.close()
        process.label = label
        self.processes.append(process)

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []

    def wait_until(self, what, holds):
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            for process in self.processes:
                if process.poll() is not None:
                    self.fail(f"{process.label} ended with {process.returncode}")
            try:
                if holds():
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.fail(f"no {what} within {START_SECONDS_MAX} s")

    def fail(self, message):
        log = "".join(path.read_text(errors="replace")[-2000:]
                      for path in sorted(self.places.work.glob(f"{self.name}-*.log")))
        raise SystemExit(f"{self.name}: {message}\n{log}")

    def cpu_seconds(self):
        """Time on a processor of all threads of all processes, from the scheduler's own count."""
        nanoseconds = 0
        for process in self.processes:
            for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
                nanoseconds += int((task / "schedstat").read_text().split()[0])
        return nanoseconds / 1e9

    def sleeps(self):
        """How often a thread of any process went to sleep, so far."""
        count = 0
        for process in self.processes:
            for status in pathlib.Path(f"/proc/{process.pid}/task").glob("*/status"):
                for line in status.read_text().splitlines():
                    if line.startswith("voluntary_ctxt_switches:"):
                        count += int(line.split()[1])
        return count

    def resident_bytes(self):
        """Resident memory of each process."""
        return [int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE_BYTES
                for process in self.processes]

    def used_memory(self):
        """What each server says it uses, where it says so."""
        used = []
        for port in self.ports:
            for line in command(port, "INFO", "memory").splitlines():
                if line.startswith("used_memory:"):
                    used.append(int(line.split(":")[1]))
        return used


class Quorate(System):
    """three `quorate serve` processes, one lane each; acknowledged by every live replica"""

    name = "quorate"
    program = "quorate"
    engine = "hermes"
    options = []
    # Of the cluster.
    cluster = []
    # What the file says beside the keyspace.
    extra = []
    build = "quorate"
    nodes = 3

    def __init__(self, places):
        super().__init__(places)
        self.version = [str(self.binary()), "--version"]

    def binary(self):
        return self.places.binaries.get(self.build, pathlib.Path("the binary of --before"))

    def missing(self):
        return None if self.binary().exists() else f"{self.binary()} does not exist"

    def start(self):
        self.configure()
        self.launch()
        for port in self.ports:
            self.wait_until(f"write through port {port}",
                            lambda port=port: command(port, "SET", "ready", "1") == "OK")
        command(self.ports[0], "DEL", "ready")

    def configure(self):
        """Writes the configuration, with ports of its own."""
        self.ports, self.admins = [], []
        lines = ["[cluster]", 'name = "compare"', "lanes = 1", *self.cluster, ""]
        for number in range(1, self.nodes + 1):
            client, peer, admin = (self.places.port() for _ in range(3))
            self.ports.append(client)
            self.admins.append(admin)
            lines += ["[[node]]", f"id = {number}", f'peer = "127.0.0.1:{peer}"',
                      f'client = "127.0.0.1:{client}"', f'admin = "127.0.0.1:{admin}"', ""]
        lines += ["[[keyspace]]", "db = 0", 'name = "default"', f'engine = "{self.engine}"',
                  *self.options, ""]
        lines += [line.format(work=self.directory()) for line in self.extra]
        self.config().write_text("\n".join(lines))

    def config(self):
        return self.places.work / f"{self.name}.toml"

    def directory(self):
        return self.places.work / self.name

    def launch(self):
        for number in range(1, self.nodes + 1):
            self.spawn([self.binary(), "serve", "--config", self.config(), "--node", number],
                       f"node{number}")

    def metric(self, name):
        """A counter or gauge, summed over lanes, of each node."""
        def of(text):
            lines = [line.split() for line in text.splitlines()]
            return sum(float(line[-1]) for line in lines
                       if len(line) > 1 and re.split(r"[{ ]", line[0])[0] == f"quorate_{name}")
        return [of(http_get(port, "/metrics").decode()) for port in self.admins]


class QuorateBroadcast(Quorate):
    """the same with ack_broadcast: followers acknowledge to everyone, and there are no VALs"""

    name = "quorate-o3"
    options = ["ack_broadcast = true"]


class QuorateMeerkat(Quorate):
    """the same with the engine for transactions: strictly serializable, decided by all replicas"""

    name = "quorate-meerkat"
    engine = "meerkat"


class QuorateZeus(Quorate):
    """the same with the engine whose keys move: strictly serializable, each key at its owner"""

    name = "quorate-zeus"
    engine = "zeus"


class QuorateSync(Quorate):
    """the same on disk: acknowledged once every live replica has flushed it"""

    name = "quorate-sync"
    options = ['durability = "sync"']
    extra = ["[disk]", 'dir = "{work}"']


class QuorateAsync(QuorateSync):
    """the same, flushed behind the acknowledgement"""

    name = "quorate-async"
    options = ['durability = "async"']


class QuorateMeerkatSync(QuorateSync):
    """the engine for transactions on disk: acknowledged once those that decide have flushed it"""

    name = "quorate-meerkat-sync"
    engine = "meerkat"


class QuorateBefore(Quorate):
    """the build that --before names, to compare two builds in one run"""

    name = "quorate-before"
    build = "before"


class QuorateSyncBefore(QuorateSync):
    """the same build on disk: acknowledged once every live replica has flushed it"""

    name = "quorate-sync-before"
    build = "before"


class QuorateAsyncBefore(QuorateAsync):
    """the same, flushed behind the acknowledgement"""

    name = "quorate-async-before"
    build = "before"


class QuorateMeerkatBefore(QuorateMeerkat):
    """the same build with the engine for transactions"""

    name = "quorate-meerkat-before"
    build = "before"


class QuorateZeusBefore(QuorateZeus):
    """the same build with the engine whose keys move"""

    name = "quorate-zeus-before"
    build = "before"


class Redis(System):
    """one redis-server, unreplicated, nothing on disk"""

    name = "redis"
    program = "redis-server"
    package = "redis-server redis-tools"
    version = ["redis-server", "--version"]

    def start(self):
        self.ports = [self.places.port()]
        self.server(self.ports[0])
        self.wait_until("PONG", lambda: command(self.ports[0], "PING") == "PONG")

    def server(self, port, *more):
        self.spawn([self.program, "--port", port, "--bind", "127.0.0.1", "--save", "",
                    "--appendonly", "no", "--dir", self.places.work, *more], f"port{port}")


class RedisAlways(Redis):
    """one redis-server whose append-only file is flushed before each acknowledgement"""

    name = "redis-always"
    policy = "always"

    def start(self):
        self.ports = [self.places.port()]
        self.server(self.ports[0], *self.file())
        self.wait_until("PONG", lambda: command(self.ports[0], "PING") == "PONG")

    def file(self):
        directory = self.places.work / self.name
        directory.mkdir(exist_ok=True)
        return ["--appendonly", "yes", "--appendfsync", self.policy, "--dir", directory]


class RedisEverySecond(RedisAlways):
    """one redis-server whose append-only file is flushed once a second"""

    name = "redis-everysec"
    policy = "everysec"


class RedisWait2(Redis):
    """a Redis master with two replicas; each write is SET, then WAIT 2"""

    name = "redis-wait2"
    set_op, txn_op = "set-wait", "multi-wait"
    waits = True

    def start(self):
        self.ports = [self.places.port() for _ in range(3)]
        master = self.ports[0]
        fast = ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]
        self.server(master, *fast)
        self.wait_until("PONG", lambda: command(master, "PING") == "PONG")
        for port in self.ports[1:]:
            self.server(port, "--replicaof", "127.0.0.1", master, *fast)
        self.wait_until("two replicas online",
                        lambda: command(master, "INFO", "replication").count("state=online") == 2)


class RedisEverySecondWait2(RedisWait2):
    """the same three servers, each with an append-only file that is flushed once a second"""

    name = "redis-everysec-wait2"

    def server(self, port, *more):
        directory = self.places.work / f"{self.name}-{port}"
        directory.mkdir(exist_ok=True)
        super().server(port, *more, "--appendonly", "yes", "--appendfsync", "everysec",
                       "--dir", directory)


class Valkey(Redis):
    """one valkey-server, unreplicated, nothing on disk"""

    name = "valkey"
    program = "valkey-server"
    package = "valkey-server, from trixie on"
    version = ["valkey-server", "--version"]


class Etcd(System):
    """three etcd members over gRPC, data directories in memory (/dev/shm)"""

    shelf = "/dev/shm"

    name = "etcd"
    program = "etcd"
    package = "etcd-server"
    version = ["etcd", "--version"]
    transient = True
    get_op, set_op, txn_op = "etcd-get", "etcd-put", "etcd-txn"
    redis_protocol = False
    _data = None

    def start(self):
        if not self.ports:
            self.ports = [self.places.port() for _ in range(3)]
            self._peers = [self.places.port() for _ in range(3)]
        self._data = tempfile.mkdtemp(prefix="quorate-compare-", dir=self.shelf or self.places.work)
        cluster = ",".join(f"m{i}=http://127.0.0.1:{p}" for i, p in enumerate(self._peers))
        for index, (port, peer) in enumerate(zip(self.ports, self._peers)):
            self.spawn(["etcd", "--name", f"m{index}", "--data-dir", f"{self._data}/m{index}",
                        "--listen-client-urls", f"http://127.0.0.1:{port}",
                        "--advertise-client-urls", f"http://127.0.0.1:{port}",
                        "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                        "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                        "--initial-cluster", cluster, "--initial-cluster-state", "new"],
                       f"m{index}")
        for port in self.ports:
            self.wait_until("health", lambda port=port: b'"true"' in http_get(port, "/health"))
        # Clients do better at the leader, and the load goes to the first port.
        self.ports.sort(key=lambda port: b"is_leader 1" not in http_get(port, "/metrics"))

    def stop(self):
        super().stop()
        if self._data:
            shutil.rmtree(self._data, ignore_errors=True)
            self._data = None


class EtcdDisk(Etcd):
    """the same with its data directories on the disk, flushed as it comes"""

    name = "etcd-disk"
    shelf = None


BY_NAME = {cls.name: cls for cls in
           (Quorate, QuorateBroadcast, QuorateMeerkat, QuorateZeus, QuorateSync, QuorateAsync,
            QuorateMeerkatSync, QuorateBefore, QuorateSyncBefore, QuorateAsyncBefore,
            QuorateMeerkatBefore, QuorateZeusBefore, Redis,
            RedisAlways, RedisEverySecond, RedisWait2, RedisEverySecondWait2, Etcd, EtcdDisk,
            Valkey)}


def command(port, *words):
    """One Redis command; the reply as text, an error raised."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(request.encode())
        stream = connection.makefile("rb")
        head = stream.readline().decode().rstrip()
        if head.startswith("-"):
            raise OSError(head)
        if head.startswith("$"):
            return stream.read(max(int(head[1:]), 0)).decode()
        return head[1:]


def http_get(port, path):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        return connection.makefile("rb").read()
