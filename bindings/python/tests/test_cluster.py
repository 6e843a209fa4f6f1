"""The clients against real nodes, of which one is killed or stopped. QUORATE names the program; without it, that
of the target directory is taken."""

import asyncio
import contextlib
import io
import itertools
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import quorate
import quorate.asyncio
import redis
from quorate.commands import Kind, keys_read, kind_of

ROOT = pathlib.Path(__file__).resolve().parents[3]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Database 0 and 1.
ENGINES = ["meerkat", "hermes"]
# Seconds; it takes a fraction of one.
SERVES_WITHIN = 60
# Seconds.
LOCK_TIMEOUT = 5
# They write, and are no calls of a session.
NOT_CALLED = {"FLUSHALL", "FLUSHDB", "FUNCTION"}
#: Whose flags don't say that they may change something.
CALLED = {"EVAL", "EVALSHA", "FCALL", "XGROUP"}


def program() -> pathlib.Path:
    if "QUORATE" in os.environ:
        return pathlib.Path(os.environ["QUORATE"])
    built = [path for path in (TARGET / "release/quorate", TARGET / "debug/quorate") if path.exists()]
    if not built:
        raise unittest.SkipTest(f"no quorate in {TARGET}: build it, or name it in QUORATE")
    return built[0]


class Nodes:
    """Three processes."""

    def __init__(self) -> None:
        self.program = program()
        self.directory = tempfile.TemporaryDirectory()
        ports = free_ports(9)
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:3]]
        text = '[cluster]\nname = "python"\n'
        for node in range(3):
            text += f'[[node]]\nid = {node + 1}\nclient = "{self.addresses[node]}"\n'
            text += f'peer = "127.0.0.1:{ports[3 + node]}"\nadmin = "127.0.0.1:{ports[6 + node]}"\n'
        for database, engine in enumerate(ENGINES):
            text += f'[[keyspace]]\ndb = {database}\nname = "{engine}"\nengine = "{engine}"\n'
            # The record of a call lies in one of them.
            text += "partitions = 16\n" if engine == "meerkat" else ""
        self.file = pathlib.Path(self.directory.name, "quorate.toml")
        self.file.write_text(text)
        self.processes = [self.start(node) for node in range(3)]
        for process in self.processes:
            self.await_ready(process)

    def start(self, node: int) -> subprocess.Popen:
        command = [self.program, "serve", "--config", self.file, "--node", str(node + 1)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def await_ready(self, process: subprocess.Popen) -> None:
        for line in process.stdout:
            if line.startswith(b"ready"):
                return
        raise AssertionError("a node ended before it was ready")

    def restart(self, node: int) -> None:
        """Kills a node and waits until its successor serves."""
        self.processes[node].send_signal(signal.SIGKILL)
        self.processes[node].wait()
        self.processes[node].stdout.close()
        self.processes[node] = self.start(node)
        self.await_ready(self.processes[node])

    def pause(self, node: int, until) -> None:
        """Stops a node while the others do something, and waits until it serves again."""
        self.processes[node].send_signal(signal.SIGSTOP)
        try:
            until()
        finally:
            self.processes[node].send_signal(signal.SIGCONT)
        host, port = self.addresses[node].split(":")
        deadline = time.monotonic() + SERVES_WITHIN
        with redis.Redis(host, int(port)) as client:
            while time.monotonic() < deadline:
                with contextlib.suppress(redis.RedisError):
                    client.set("serves", node)
                    return
        raise AssertionError(f"node {node + 1} does not serve {SERVES_WITHIN} s after its stop")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
        self.directory.cleanup()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def is_exec(wire) -> bool:
    """Whether a try calls an EXEC."""
    return wire[-1][:2] + wire[-1][4:] == (b"SESSION", b"CALL", b"EXEC")


def is_row(wire) -> bool:
    """Whether a node is to count what a try sends."""
    return wire[0][:2] == (b"SESSION", b"AUTO") and wire[0][2] != b"OFF"


def lose(client: quorate.Client, is_it, arrives: bool) -> list[bool]:
    """Lets the connection break at the client's next try of a kind. The answer is empty after it."""
    port, losses = client._caller.port, [True]
    exchange = type(port).exchange

    async def lossy(connection, wire, raw):
        if not losses or not is_it(wire):
            return await exchange(port, connection, wire, raw)
        losses.clear()
        if arrives:
            await exchange(port, connection, wire, raw)
        connection.disconnect()
        return [], redis.ConnectionError("lost by the test")

    port.exchange = lossy
    return losses


class TimedLock(quorate.Lock):
    """A lock that remembers when it was asked for last: it is not lost before its timeout from then on."""

    def do_acquire(self, token):
        self.asked_at = time.monotonic()
        return super().do_acquire(token)


class ClusterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.nodes = Nodes()
        cls.addClassCleanup(cls.nodes.close)

    def client(self, database, **options):
        client = quorate.Client(nodes=self.nodes.addresses, db=database, **options)
        self.addCleanup(client.close)
        return client

    def under_faults(self, step, *faults):
        """Repeats a step in threads while each node in turn has these faults. How many steps were
        acknowledged, and how many are unknown."""
        acknowledged, unknown, broken = [], [], []
        is_over = threading.Event()

        def work():
            while not is_over.is_set():
                try:
                    step()
                    acknowledged.append(1)
                except quorate.Unknown:
                    unknown.append(1)
                except quorate.Failed:
                    pass
                except BaseException as error:
                    broken.append(error)
                    raise

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()

        def more():
            before = len(acknowledged)
            while len(acknowledged) < before + 50 and not broken:
                is_over.wait(0.01)

        try:
            for node, fault in itertools.product(range(3), faults):
                fault(node, more)
                more()
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        self.assertEqual(broken, [])
        return len(acknowledged), len(unknown)

    def kill(self, node, _more):
        self.nodes.restart(node)

    def stop(self, node, more):
        """The node is stopped until the others go on without it, which is past its lease."""
        self.nodes.pause(node, more)

    def test_increments_count_once_while_nodes_are_killed_or_stopped(self):
        for database, engine in enumerate(ENGINES):
            with self.subTest(engine=engine):
                client = self.client(database)
                acknowledged, unknown = self.under_faults(
                    lambda: client.incr("count"), self.kill, self.stop)
                count = int(client.get("count"))
                self.assertGreaterEqual(count, acknowledged)
                self.assertLessEqual(count, acknowledged + unknown)
                print(f"{engine}: {acknowledged} increments acknowledged, {unknown} unknown, counted {count}")

    def test_transfers_keep_the_sum_and_happen_once_while_nodes_are_killed(self):
        client = self.client(ENGINES.index("meerkat"))
        client.mset({"alice": 1000, "bob": 0, "transfers": 0})

        @client.transactional
        def transfer(transaction, amount):
            rest = int(transaction.get("alice")) - amount
            transaction.set("alice", rest).incrby("bob", amount).incr("transfers")
            return rest

        acknowledged, unknown = self.under_faults(lambda: transfer(3), self.kill)
        alice, bob, transfers = map(int, client.mget("alice", "bob", "transfers"))
        self.assertEqual((alice + bob, bob), (1000, 3 * transfers))
        self.assertGreaterEqual(transfers, acknowledged)
        self.assertLessEqual(transfers, acknowledged + unknown)

    def test_a_lock_has_one_owner_and_its_fences_rise_while_nodes_are_killed(self):
        for database, engine in enumerate(ENGINES):
            client = self.client(database)
            inside, fences = [], []

            def step():
                lock = client.lock("lock", timeout=LOCK_TIMEOUT, sleep=0.001, lock_class=TimedLock)
                try:
                    with lock:
                        inside.append(1)
                        self.assertEqual(len(inside), 1, "two hold the lock")
                        fences.append(lock.fence)
                        inside.pop()
                except redis.exceptions.LockNotOwnedError:
                    # A failover on a busy machine may last longer than the lock.
                    if time.monotonic() < lock.asked_at + LOCK_TIMEOUT:
                        raise

            self.under_faults(step, self.kill)
            self.assertEqual(fences, sorted(set(fences)), engine)

    def test_watched_blocks_whose_answers_are_lost(self):
        for database, engine in enumerate(ENGINES):
            keys = list("abcd") if engine == "meerkat" else ["a"]
            client = self.client(database)
            # Whichever key says where the record lies, one that is written is not that one.
            for key, arrives in itertools.product(keys, (True, False)):
                with self.subTest(engine=engine, key=key, arrives=arrives):
                    losses = lose(client, is_exec, arrives)
                    runs = []

                    @client.transactional
                    def add(transaction):
                        runs.append([transaction.get(key) for key in keys])
                        return transaction.incr(key)

                    before = int(client.get(key) or 0)
                    self.assertEqual(add(), [before + 1])
                    self.assertEqual((losses, len(runs)), ([], 1 if arrives else 2))
                    self.assertEqual(int(client.get(key)), before + 1)

    def test_rows_whose_answers_are_lost_count_once(self):
        for database, engine in enumerate(ENGINES):
            client = self.client(database)
            for number, arrives in enumerate((True, False)):
                with self.subTest(engine=engine, arrives=arrives):
                    losses = lose(client, is_row, arrives)
                    row = client.pipeline(transaction=False)
                    for _ in range(300):
                        row.incr("row").get("row").incr("other")
                    answers = row.execute()
                    self.assertEqual(losses, [])
                    expected = list(range(300 * number + 1, 300 * number + 301))
                    self.assertEqual([answers[0::3], answers[2::3]], [expected, expected])
                    self.assertEqual(int(client.get("row")), expected[-1])

    def test_the_examples_of_the_documents(self):
        for page, count in (("bindings/python/README.md", 3), ("docs/src/python.md", 5)):
            examples = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
            self.assertEqual(len(examples), count, page)
            names, printed = {}, io.StringIO()
            for example in examples:
                for port, address in zip((6379, 6380, 6381), self.nodes.addresses):
                    example = example.replace(f"127.0.0.1:{port}", address)
                with self.subTest(page=page, example=example), contextlib.redirect_stdout(printed):
                    exec(example, names)
                if "client" in names:
                    self.addCleanup(names["client"].close)
            self.assertIn("70\n", printed.getvalue())

    def test_every_command_is_of_the_kind_that_the_nodes_say(self):
        client = self.client(0)
        known = client.command()
        self.assertGreater(len(known), 60)
        for name, facts in known.items():
            name = name.upper()
            flags = set(map(str, facts["flags"]))
            if name in NOT_CALLED or {"write", "blocking"} <= flags and name != "XREADGROUP":
                expected = {Kind.PLAIN}
            elif "write" in flags or name in CALLED:
                expected = {Kind.CALL}
            else:
                expected = {Kind.READ} if "readonly" in flags else {Kind.READ, Kind.PLAIN}
            self.assertIn(kind_of([name]), expected, name)
            if "readonly" in flags and facts["first_key_pos"]:
                self.assertTrue(keys_read([name, "a", "b"]), name)

    def test_with_asyncio(self):
        async def main():
            client = quorate.asyncio.Client(nodes=self.nodes.addresses, db=1, decode_responses=True)
            async with client:
                answers = await asyncio.gather(*[client.incr("tasks") for _ in range(100)])
                self.assertEqual(sorted(answers), list(range(1, 101)))

                @client.transactional
                async def double(transaction):
                    value = int(await transaction.get("tasks"))
                    transaction.set("tasks", 2 * value)
                    return value

                self.assertEqual((await double(), await client.get("tasks")), (100, "200"))

        asyncio.run(main())

    def test_several_keys_are_deleted(self):
        for database, engine in enumerate(ENGINES):
            with self.subTest(engine=engine):
                client = self.client(database)
                for key in "xyz":
                    client.set(key, 1)
                self.assertEqual(client.delete(*"xyz", "w"), 3)

    def test_a_session_that_is_over_is_replaced(self):
        for database, engine in enumerate(ENGINES):
            with self.subTest(engine=engine):
                client = self.client(database)
                self.assertEqual(client.incr("over"), 1)
                lease = client._caller._session.lease
                self.client(database).execute_command("SESSION", "CLOSE", *lease)
                self.assertEqual(client.incr("over"), 2)
                self.assertNotEqual(client._caller._session.lease, lease)

    def test_sessions_are_closed(self):
        with quorate.Client(nodes=self.nodes.addresses) as client:
            client.incr("closed")
            lease = client._caller._session.lease
        with self.assertRaisesRegex(redis.ResponseError, "EXPIRED"):
            self.client(0).execute_command("SESSION", "RENEW", *lease)


if __name__ == "__main__":
    unittest.main()
