"""Transfers by twelve threads on a cluster whose nodes are killed and stopped meanwhile.

Arguments: the file for the history, then the client ports. Works until its input ends. Money only
moves: whoever reads all accounts at once finds the same sum, through every node, at any time.

There are two banks. In the first, a transfer is redis-py's optimistic loop: WATCH, GET, MULTI, SET,
EXEC. A balance is followed by a colon and something unique, so that the history tells who read what.
In the second, a transfer is one block of DECRBY and INCRBY; it also appends itself to the list of
either account, and what a list adds up to is what its account holds.
"""

import json
import random
import sys
import threading
import time

import redis

from nodes import connect, fate, patiently, text

HISTORY = sys.argv[1]
PORTS = [int(port) for port in sys.argv[2:]]
THREADS = 12
ACCOUNTS = 10
START = 1000
TOTAL = ACCOUNTS * START
PAUSE_SECONDS = 0.004

WATCHED = [f"account:{number}" for number in range(ACCOUNTS)]
COUNTED = [f"counter:{number}" for number in range(ACCOUNTS)]
LISTS = [f"list:{number}" for number in range(ACCOUNTS)]


def read(key, value):
    return {"op": "read", "key": key, "value": text(value)}


def write(key, value):
    return {"op": "write", "key": key, "value": value}


def append(key, element):
    return {"op": "append", "key": key, "value": element}


def read_list(key, value):
    # What comes before the first comma is nothing.
    return {"op": "list", "key": key, "values": (text(value) or "").split(",")[1:]}


def balance(value):
    return int(text(value).split(":")[0])


class Bank:
    """The transactions of one process: each method runs one and is a line of the history."""

    def __init__(self, number):
        self.number = number
        self.records = []
        self.wrong = []
        self.audits = 0
        self.unique = 0

    def transact(self, run):
        """Runs one attempt. `run` is given the list of its operations and fills it."""
        record = {"process": self.number, "txn": 0, "invoke": time.monotonic_ns(), "ops": []}
        record["txn"] = record["invoke"]
        try:
            run(record["ops"])
        except redis.RedisError as error:
            found = fate(error)
            if found == "unsent":
                return False
            record["outcome"] = "unknown"
            if found == "refused":
                record["outcome"] = "aborted"
                record["return"] = time.monotonic_ns()
        else:
            record["outcome"] = "committed"
            record["return"] = time.monotonic_ns()
        self.records.append(record)
        return record["outcome"] == "committed"

    def open(self, node):
        name = self.new_name()
        balances = {key: f"{START}:{name}" for key in WATCHED}
        counters = dict.fromkeys(COUNTED, START)

        def run(ops):
            ops.extend(write(key, value) for key, value in balances.items())
            node.mset({**balances, **counters})

        return self.transact(run)

    def new_name(self):
        self.unique += 1
        return f"{self.number}.{self.unique}"

    def transfer_watched(self, node, source, target, amount):
        with node.pipeline() as pipeline:
            def run(ops):
                pipeline.watch(source, target)
                found = [pipeline.get(source), pipeline.get(target)]
                ops.extend([read(source, found[0]), read(target, found[1])])
                name = self.new_name()
                after = [f"{balance(found[0]) - amount}:{name}", f"{balance(found[1]) + amount}:{name}"]
                pipeline.multi()
                pipeline.set(source, after[0])
                pipeline.set(target, after[1])
                ops.extend([write(source, after[0]), write(target, after[1])])
                pipeline.execute()

            return self.transact(run)

    def transfer_counted(self, node, source, target, amount):
        with node.pipeline(transaction=True) as pipeline:
            def run(ops):
                name = self.new_name()
                entries = [(source, f"{name}:{-amount}"), (target, f"{name}:{amount}")]
                pipeline.decrby(COUNTED[source], amount)
                pipeline.incrby(COUNTED[target], amount)
                for number, entry in entries:
                    pipeline.append(LISTS[number], f",{entry}")
                    ops.append(append(LISTS[number], entry))
                pipeline.execute()

            return self.transact(run)

    def audit(self, node):
        """Reads everything with one command."""
        def run(ops):
            found = node.mget(WATCHED + COUNTED)
            ops.extend(read(key, value) for key, value in zip(WATCHED, found))
            self.expect("the accounts hold", sum(balance(value) for value in found[:ACCOUNTS]), TOTAL)
            self.expect("the counters hold", sum(int(value) for value in found[ACCOUNTS:]), TOTAL)

        return self.transact(run)

    def audit_lists(self, node):
        """Reads counters and lists with one block, watched accounts among it."""
        with node.pipeline(transaction=True) as pipeline:
            def run(ops):
                pipeline.mget(COUNTED)
                pipeline.mget(LISTS)
                pipeline.mget(WATCHED)
                counters, lists, accounts = pipeline.execute()
                ops.extend(read_list(key, value) for key, value in zip(LISTS, lists))
                ops.extend(read(key, value) for key, value in zip(WATCHED, accounts))
                for number, counter in enumerate(counters):
                    entries = read_list(LISTS[number], lists[number])["values"]
                    moved = sum(int(entry.split(":")[1]) for entry in entries)
                    self.expect(f"{COUNTED[number]} is", int(counter), START + moved)
                self.expect("the counters hold", sum(int(counter) for counter in counters), TOTAL)
                self.expect("the accounts hold", sum(balance(value) for value in accounts), TOTAL)

            return self.transact(run)

    def expect(self, what, found, expected):
        self.audits += 1
        if found != expected:
            self.wrong.append(f"process {self.number}: {what} {found}, not {expected}")


class Worker(threading.Thread):
    def __init__(self, number, nodes, stop):
        super().__init__()
        self.bank = Bank(number)
        self.nodes = nodes
        self.stop = stop
        self.random = random.Random(number)
        self.failure = None

    def run(self):
        try:
            while not self.stop.is_set():
                time.sleep(PAUSE_SECONDS)
                self.once(self.random.choice(self.nodes))
        except Exception as failure:  # told by the main thread
            self.failure = failure

    def once(self, node):
        choice = self.random.random()
        source, target = self.random.sample(range(ACCOUNTS), 2)
        amount = self.random.randrange(1, 10)
        if choice < 0.4:
            # Again until nobody is in the way, as redis-py's `transaction` does it.
            keys = (WATCHED[source], WATCHED[target])
            while not self.bank.transfer_watched(node, *keys, amount) and not self.stop.is_set():
                node = self.random.choice(self.nodes)
                time.sleep(self.random.random() * PAUSE_SECONDS)
        elif choice < 0.8:
            self.bank.transfer_counted(node, source, target, amount)
        elif choice < 0.97:
            self.bank.audit(node)
        else:
            self.bank.audit_lists(node)


def main():
    nodes = [connect(port) for port in PORTS]
    auditor = Bank(THREADS)
    patiently(lambda: nodes[0].ping())
    while not auditor.open(nodes[0]):
        time.sleep(PAUSE_SECONDS)
    stop = threading.Event()
    workers = [Worker(number, nodes, stop) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    print("working", flush=True)
    sys.stdin.read()
    stop.set()
    for worker in workers:
        worker.join()
    for node in nodes:
        patiently(lambda: node.get(WATCHED[0]))
        while not (auditor.audit(node) and auditor.audit_lists(node)):
            time.sleep(PAUSE_SECONDS)
    banks = [auditor] + [worker.bank for worker in workers]
    wrong = [line for bank in banks for line in bank.wrong]
    failures = [repr(worker.failure) for worker in workers if worker.failure]
    records = [record for bank in banks for record in bank.records]
    with open(HISTORY, "w", encoding="utf-8") as file:
        header = {"format": "quorate-history", "version": 1, "initial": "absent",
                  "note": "redis-py, bank transfers, one node killed, another stopped"}
        for line in [header, *records, {"end": len(records)}]:
            file.write(json.dumps(line) + "\n")
    for line in [*wrong[:20], *failures[:3]]:
        print(f"wrong: {line}")
    outcomes = [record["outcome"] for record in records]
    kinds = ("committed", "aborted", "unknown")
    counts = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in kinds)
    print(f"ended: {counts}, {sum(bank.audits for bank in banks)} sums", flush=True)
    return 1 if wrong or failures else 0


sys.exit(main())
