"""Twenty threads on a cluster whose nodes are killed and stopped meanwhile.

Arguments: the file for the history, then the client ports. Works until its input ends. Then every
acknowledged write must be there, through every node.
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
THREADS = 20
COUNTERS = 16
PAUSE_SECONDS = 0.002


class Worker(threading.Thread):
    def __init__(self, number, nodes, stop):
        super().__init__()
        self.number = number
        self.nodes = nodes
        self.stop = stop
        self.random = random.Random(number)
        self.operations = []
        self.failure = None

    def run(self):
        try:
            unique = 0
            while not self.stop.is_set():
                time.sleep(PAUSE_SECONDS)
                node = self.random.choice(self.nodes)
                choice = self.random.random()
                counter = f"counter:{self.random.randrange(COUNTERS)}"
                if choice < 0.5:
                    self.do(lambda: node.incr(counter), op="incr", key=counter, by=1)
                elif choice < 0.7:
                    self.do(lambda: text(node.get(counter)), op="get", key=counter)
                else:
                    unique += 1
                    key, value = f"unique:{self.number}:{unique}", f"{self.number}.{unique}"
                    self.do(lambda: "OK" if node.set(key, value) else None,
                            op="set", key=key, value=value)
        except Exception as failure:  # told by the main thread
            self.failure = failure

    def do(self, call, **operation):
        operation["process"] = self.number
        operation["invoke"] = time.monotonic_ns()
        try:
            result = call()
        except redis.RedisError as error:
            found = fate(error)
            if found == "unsent":
                return
            if found == "refused":
                operation["return"] = time.monotonic_ns()
            operation["outcome"] = found
        else:
            operation["return"] = time.monotonic_ns()
            operation["outcome"] = "done"
            operation["result"] = result
        self.operations.append(operation)


def judge(operations, nodes):
    wrong = []
    writes = [o for o in operations if o["op"] == "set" and o["outcome"] == "done"]
    for number, node in enumerate(nodes, 1):
        for start in range(0, len(writes), 500):
            part = writes[start:start + 500]
            found = patiently(lambda: node.mget([write["key"] for write in part]))
            for write, value in zip(part, found):
                if text(value) != write["value"]:
                    wrong.append(f"node {number}: {write['key']} is {value!r}, not {write['value']}")
        for counter in range(COUNTERS):
            key = f"counter:{counter}"
            mine = [o for o in operations if o["op"] == "incr" and o["key"] == key]
            done = sum(o["outcome"] == "done" for o in mine)
            unknown = sum(o["outcome"] == "unknown" for o in mine)
            begin = time.monotonic_ns()
            value = text(patiently(lambda: node.get(key)))
            operations.append({"process": THREADS, "op": "get", "key": key, "invoke": begin,
                               "return": time.monotonic_ns(), "outcome": "done", "result": value})
            if not done <= int(value or 0) <= done + unknown:
                wrong.append(f"node {number}: {key} is {value}, "
                             f"with {done} done and {unknown} unknown")
    return wrong


def main():
    nodes = [connect(port) for port in PORTS]
    stop = threading.Event()
    workers = [Worker(number, nodes, stop) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    print("working", flush=True)
    sys.stdin.read()
    stop.set()
    for worker in workers:
        worker.join()
    failures = [worker.failure for worker in workers if worker.failure]
    operations = [operation for worker in workers for operation in worker.operations]
    wrong = judge(operations, nodes)
    with open(HISTORY, "w", encoding="utf-8") as file:
        header = {"format": "quorate-history", "version": 1, "initial": "absent",
                  "note": "redis-py, one node killed, another stopped"}
        for line in [header, *operations, {"end": len(operations)}]:
            file.write(json.dumps(line) + "\n")
    for line in [*wrong[:20], *failures[:3]]:
        print(f"wrong: {line}")
    outcomes = [operation["outcome"] for operation in operations]
    counts = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("done", "refused", "unknown"))
    print(f"ended: {counts}", flush=True)
    return 1 if wrong or failures else 0


sys.exit(main())
