"""Threads on a cluster under faults, half of them with redis-py and half with Quorate's client:
registers, counters, lists, unique elements, and a bank if there are transactions. Works until its
input ends, then writes what it saw as a history, and says how many calls it has asked about again.

Arguments: the file for the history, what keys begin with, `transactions` or `keys`, `sessions`
or `plain`, a seed, the number of the first thread, how many there are, how many keys and accounts, then
host:port of nodes.
"""

import functools
import json
import pathlib
import random
import sys
import threading
import time

import redis

ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path.extend([str(ROOT / "crates/server/quorate/tests/python"), str(ROOT / "bindings/python")])
import quorate  # noqa: E402
from nodes import connect, fate, text  # noqa: E402

HISTORY, PREFIX, MODE, CALLS, SEED = sys.argv[1:6]
FIRST, THREADS, KEYS, ACCOUNTS = (int(word) for word in sys.argv[6:10])
NODES = sys.argv[10:]
PAUSE_SECONDS = 0.006
# A client with a session makes one try, so that every second one is seen here.
ONE_TRY = {"deadline": 0.001, "socket_timeout": 1, "socket_connect_timeout": 0.3}
ASKING_SECONDS_MAX = 5


def ok(answer):
    return "OK" if answer else None


def balance(value):
    return int(text(value).split(":")[0]) if value else 0


class Worker(threading.Thread):
    def __init__(self, number, nodes, stop):
        super().__init__()
        self.number = number
        self.nodes = nodes
        self.stop = stop
        self.random = random.Random(f"{SEED}.{number}")
        self.lines = []
        self.unique = 0
        self.failure = None

    def run(self):
        try:
            while not self.stop.is_set():
                time.sleep(PAUSE_SECONDS)
                node = self.random.choice(self.nodes)
                if MODE == "transactions" and self.random.random() < 0.5:
                    self.transact(node)
                else:
                    self.operate(node)
        except Exception as failure:  # told by the main thread
            self.failure = failure

    def name(self):
        self.unique += 1
        return f"{self.number}.{self.unique}"

    def operate(self, node):
        number, name = self.random.randrange(KEYS), self.name()
        register, counter = f"{PREFIX}register:{number}", f"{PREFIX}counter:{number}"
        listed, unique = f"{PREFIX}list:{number}", f"{PREFIX}unique:{name}"
        choice = self.random.randrange(16)
        if choice < 3:
            self.do(lambda: node.get(register), text, op="get", key=register)
        elif choice < 6:
            self.do(lambda: node.set(register, name), ok, op="set", key=register, value=name)
        elif choice < 8:
            self.do(lambda: node.incr(counter), op="incr", key=counter, by=1)
        elif choice < 10:
            self.do(lambda: node.get(counter), text, op="get", key=counter)
        elif choice < 12:
            element = f",{name}"
            self.do(lambda: node.append(listed, element), op="append", key=listed, value=element)
        elif choice < 13:
            self.do(lambda: node.get(listed), text, op="get", key=listed)
        else:
            self.do(lambda: node.set(unique, name), ok, op="set", key=unique, value=name)

    def fate(self, error):
        return fate(error)

    def ask(self, call):
        """The answer of a call."""
        return call()

    def do(self, call, shape=lambda answer: answer, **line):
        line["process"] = self.number
        line["invoke"] = time.monotonic_ns()
        try:
            result = shape(self.ask(call))
        except redis.RedisError as error:
            line["outcome"] = found = self.fate(error)
            if found == "unsent":
                return
            if found == "refused":
                line["return"] = time.monotonic_ns()
        else:
            line["return"] = time.monotonic_ns()
            line["outcome"] = "done"
            line["result"] = result
        self.lines.append(line)

    def transact(self, node):
        line = {"process": self.number, "txn": time.monotonic_ns(), "ops": []}
        line["invoke"] = line["txn"]
        try:
            if self.random.random() < 0.3:
                self.audit(node, line["ops"])
            else:
                self.transfer(node, line["ops"])
        except redis.RedisError as error:
            found = self.fate(error)
            if found == "unsent":
                return
            line["outcome"] = "unknown"
            if found == "refused":
                line["outcome"] = "aborted"
                line["return"] = time.monotonic_ns()
        else:
            line["outcome"] = "committed"
            line["return"] = time.monotonic_ns()
        self.lines.append(line)

    def audit(self, node, ops):
        keys = [f"{PREFIX}account:{number}" for number in range(ACCOUNTS)]
        values = node.mget(keys)
        ops.extend({"op": "read", "key": key, "value": text(value)}
                   for key, value in zip(keys, values))

    def transfer(self, node, ops):
        numbers, amount, name = self.random.sample(range(ACCOUNTS), 2), 3, self.name()
        keys = [f"{PREFIX}account:{number}" for number in numbers]
        with node.pipeline() as pipeline:
            pipeline.watch(*keys)
            found = [pipeline.get(key) for key in keys]
            ops.extend({"op": "read", "key": key, "value": text(value)}
                       for key, value in zip(keys, found))
            pipeline.multi()
            for number, key, value, by in zip(numbers, keys, found, (-amount, amount)):
                after = f"{balance(value) + by}:{name}.{number}"
                pipeline.set(key, after)
                ops.append({"op": "write", "key": key, "value": after})
            self.ask(pipeline.execute)


class ExactlyOnce(Worker):
    """Its calls are a session's: it asks again while an outcome is unknown."""

    again = 0

    def fate(self, error):
        if isinstance(error, quorate.Unknown):
            return "unknown"
        if isinstance(error, (quorate.Failed, redis.WatchError)):
            return "refused"
        return fate(error)

    def ask(self, call):
        end = time.monotonic() + ASKING_SECONDS_MAX
        asked = False
        while True:
            try:
                return call()
            except quorate.Unknown as unknown:
                if unknown.call is None or time.monotonic() > end:
                    raise
                self.again += not asked
                asked = True
                call = functools.partial(self.nodes[0].ask_again, unknown.call)
                time.sleep(PAUSE_SECONDS)


def main():
    nodes = [connect(int(node.split(":")[1]), node.split(":")[0]) for node in NODES]
    client = quorate.Client(nodes=NODES, sessions=CALLS == "sessions", **ONE_TRY)
    stop = threading.Event()
    plain = [Worker(FIRST + number, nodes, stop) for number in range(THREADS // 2)]
    exact = [ExactlyOnce(FIRST + number, [client], stop) for number in range(THREADS // 2, THREADS)]
    workers = plain + exact
    for worker in workers:
        worker.start()
    sys.stdin.read()
    stop.set()
    for worker in workers:
        worker.join()
    lines = [line for worker in workers for line in worker.lines]
    with open(HISTORY, "w", encoding="utf-8") as file:
        header = {"format": "quorate-history", "version": 1, "initial": "absent"}
        for line in [header, *lines, {"end": len(lines)}]:
            file.write(json.dumps(line) + "\n")
    print(sum(worker.again for worker in exact))
    failures = [f"{worker.failure!r}: {worker.failure}" for worker in workers if worker.failure]
    for failure in failures[:3]:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


sys.exit(main())
