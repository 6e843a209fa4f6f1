#!/usr/bin/env python3
"""Measures collections: bytes per element, what a change costs in a large one, what others notice.

One run, interleaved, on Quorate (`hermes` and `meerkat`), Redis, and Redis with two replicas:

- bytes per element of a large hash, list, set, sorted set and stream, and of small ones, as resident
  memory grows at one node (fields and members of 16 bytes, values and items of 32);
- a change and a read of a collection of half a million elements beside the same on one of a thousand:
  throughput, latency, CPU time summed over all processes of a system; and a change of the small one by
  clients of all nodes;
- `PUBLISH` to 50 subscribers, each of which reads everything;
- the latency of another client while a set grows to 30 MB, is scanned to its end, and is deleted.

Needs only the standard library, redis-server and Rust. All traffic stays on 127.0.0.1.
"""

import argparse
import pathlib
import random
import selectors
import signal
import socket
import statistics
import sys
import tempfile
import threading
import types

import systems
from compare import build, facts, publish
from workloads import Runner

LARGE, SMALL = 500_000, 1000
SYSTEMS = ("quorate", "quorate-meerkat", "redis", "redis-wait2")
# The command that adds elements, and the words of the element with this number; 16 and 32 bytes, and
# keys as the load generator spells them.
FIELD, VALUE = "key:%012d", "v" * 32
KINDS = {
    "hash": ("HSET", lambda number: (FIELD % number, VALUE)),
    "list": ("RPUSH", lambda number: (VALUE,)),
    "set": ("SADD", lambda number: (FIELD % number,)),
    "sorted set": ("ZADD", lambda number: ("1", FIELD % number)),
    "stream": ("XADD", lambda number: ("*", "field", VALUE)),
}
# Kinds of which a command adds one element.
ONE_AT_A_TIME = ("stream",)
ADDED_AT_ONCE = 200
# Small ones, and the elements of each.
PACKED_COLLECTIONS, PACKED_ELEMENTS = 60_000, 50
CHANGES = {
    "hset": ("update", ("HSET", "{of}:hash", "{key}", "{value}")),
    "hget": ("read", ("HGET", "{of}:hash", "{key}")),
    "lpush": ("update", ("LPUSH", "{of}:list", "{value}")),
    "zadd": ("update", ("ZADD", "{of}:sorted set", "2", "{key}")),
    "zrank": ("read", ("ZRANK", "{of}:sorted set", "{key}")),
    "sadd": ("update", ("SADD", "{of}:set", "{key}")),
    "xadd": ("update", ("XADD", "{of}:stream", "*", "field", "{value}")),
}
# What takes the elements away again that a command has added.
TRIMS = {"lpush": lambda of, keys: ("LTRIM", f"{of}:list", "0", str(keys - 1)),
         "xadd": lambda of, keys: ("XTRIM", f"{of}:stream", "MAXLEN", str(keys))}
SUBSCRIBERS = 50
GROWN_MEMBERS, GROWN_AT_ONCE = 3_000_000, 500
GOALS = {"large": 1.0, "packed": 1.1, "publish": 0.8, "others_p99_us": 5000}


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    binaries = build(options)
    result = {"command": "bench/compare/elements.py " + " ".join(sys.argv[1:])}
    with tempfile.TemporaryDirectory(prefix="quorate-elements-") as work:
        places = systems.Places(pathlib.Path(work), options.port_base, binaries)
        chosen = [systems.BY_NAME[name](places) for name in SYSTEMS]
        result["facts"] = facts(chosen)
        try:
            runner = Runner(types.SimpleNamespace(**vars(options)), chosen)
            for system in chosen:
                system.start()
            result["bytes"] = {system.name: measure_bytes(runner, system) for system in chosen}
            result["changes"] = measure_changes(options, runner, chosen)
            result["publish"] = measure_publish(options, runner, chosen)
            result["others"] = {system.name: measure_others(options, runner, system)
                                for system in chosen if not system.waits}
        finally:
            for system in chosen:
                system.stop()
    publish(options, result, table(result))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="measured seconds of each cell")
    parser.add_argument("--quorate", help="a built binary instead of a release build")
    parser.add_argument("--port-base", type=int, default=17500,
                        help="first of 40 ports on 127.0.0.1 (default 17500)")
    parser.add_argument("--out", metavar="NAME", help="write results/NAME.json and results/NAME.md")
    options = parser.parse_args()
    options.systems, options.before, options.value_bytes, options.keys = "quorate", None, 32, LARGE
    return options


def measure_bytes(runner, system):
    """Bytes of the first node for each element, over those of what no element needs."""
    grown = {}
    # What the first requests allocate for good is no cost of an element.
    runner.generate(system, "set", seconds=0.2, keys=1000, pipeline=16)
    for name in KINDS:
        fill(system.ports[0], name, f"small:{name}", range(SMALL))
        before = system.resident_bytes()[0]
        fill(system.ports[0], name, f"big:{name}", range(LARGE))
        say(system.name, "large", name)
        grown[f"large {name}"] = round((system.resident_bytes()[0] - before) / LARGE, 1)
    for name in KINDS:
        fill_packed(system.ports[0], name, "warm", PACKED_COLLECTIONS // 10)
        before = system.resident_bytes()[0]
        fill_packed(system.ports[0], name, "kept", PACKED_COLLECTIONS)
        say(system.name, "packed", name)
        elements = PACKED_COLLECTIONS * PACKED_ELEMENTS
        grown[f"packed {name}"] = round((system.resident_bytes()[0] - before) / elements, 1)
    return grown


def fill(port, kind, key, numbers):
    """Adds elements to one collection, in an order that has nothing to do with theirs."""
    name, element = KINDS[kind]
    shuffled = list(numbers)
    random.Random(7).shuffle(shuffled)
    at_once = 1 if kind in ONE_AT_A_TIME else ADDED_AT_ONCE
    with Client(port) as client:
        for at in range(0, len(shuffled), at_once):
            chosen = shuffled[at:at + at_once]
            client.ask(request(name, key, *(word for number in chosen for word in element(number))))
        client.finish()


def fill_packed(port, kind, prefix, count):
    """Many collections of some elements each."""
    name, element = KINDS[kind]
    at_once = 1 if kind in ONE_AT_A_TIME else PACKED_ELEMENTS
    with Client(port) as client:
        for number in range(count):
            for at in range(0, PACKED_ELEMENTS, at_once):
                elements = map(element, range(at, at + at_once))
                words = [word for words in elements for word in words]
                client.ask(request(name, f"{prefix}:{name}:{number:07d}", *words))
        client.finish()


def request(*words):
    text = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{text}".encode()


class Client:
    """A connection on which some requests are under way, whose replies are lines."""

    def __init__(self, port, ahead=16):
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.replies, self.ahead, self.open = self.connection.makefile("rb"), ahead, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def ask(self, request):
        self.connection.sendall(request)
        self.open += 1
        if self.open >= self.ahead:
            self.hear()

    def hear(self):
        line = self.replies.readline()
        if line[:1] == b"$":
            self.replies.readline()
        elif line[:1] not in (b":", b"+"):
            raise SystemExit(f"answered {line!r}")
        self.open -= 1
        return line

    def finish(self):
        while self.open:
            self.hear()


def measure_changes(options, runner, chosen):
    """Cells of each command, on the small and on the large collection, and of one through all nodes."""
    cells = []
    for number in range(options.rounds):
        for name, (kind, words) in CHANGES.items():
            for system in runner.order(number):
                if system.waits and kind == "read":
                    continue
                places = [("small", SMALL, system.ports[:1]), ("big", LARGE, system.ports[:1])]
                if name == "hset" and isinstance(system, systems.Quorate):
                    places.append(("spread", SMALL, system.ports))
                for of, keys, ports in places[:: 1 if number % 2 else -1]:
                    op = "command-wait" if system.waits and kind == "update" else "command"
                    command = [word.replace("{of}", of) for word in words]
                    before = system.cpu_seconds()
                    report = runner.generate(system, op, ports=ports, keys=keys, command=command)
                    cpu = (system.cpu_seconds() - before) / report["ops_total"] * 1e6
                    if report["failed"]:
                        raise SystemExit(f"{name} on {system.name}: {report['first_failure']}")
                    cells.append({"command": name, "of": of, "system": system.name, "round": number,
                                  "cpu_us_per_op": cpu,
                                  **{f: report[f] for f in ("throughput", "p50_us", "p99_us")}})
                    say(f"round {number + 1}", name, of, system.name, f"{cpu:.1f} us of CPU per op")
                    # What was added goes again: a list and a stream keep their sizes.
                    if name in TRIMS:
                        systems.command(system.ports[0], *TRIMS[name](of, keys))
    return cells


def measure_publish(options, runner, chosen):
    cells = []
    for number in range(options.rounds):
        for system in runner.order(number):
            if system.waits:
                continue
            with Subscribers(system.ports[0]) as subscribers:
                before = system.cpu_seconds()
                report = runner.generate(system, "command", command=("PUBLISH", "news", "{value}"))
                cpu = (system.cpu_seconds() - before) / report["ops_total"] * 1e6
                if report["failed"]:
                    raise SystemExit(f"PUBLISH on {system.name}: {report['first_failure']}")
                heard = subscribers.await_all(report["ops_total"])
            cells.append({"system": system.name, "round": number, "cpu_us_per_op": cpu,
                          "heard": heard / report["ops_total"] / SUBSCRIBERS,
                          **{f: report[f] for f in ("throughput", "p50_us", "p99_us")}})
            say(f"round {number + 1} publish", system.name, f"{report['throughput']:.0f} a second")
    return cells


class Subscribers:
    """Clients that read everything that one channel says."""

    def __init__(self, port):
        self.message = len(b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$32\r\n") + 32 + 2
        self.bytes, self.over, self.selector = 0, False, selectors.DefaultSelector()
        self.connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(SUBSCRIBERS)]
        for connection in self.connections:
            connection.sendall(b"SUBSCRIBE news\r\n")
            answer = connection.recv(1024)
            assert answer.endswith(b":1\r\n"), answer
            self.selector.register(connection, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self.read, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join()
        for connection in self.connections:
            connection.close()

    def read(self):
        room = bytearray(1 << 20)
        while not self.over:
            for key, _ in self.selector.select(0.05):
                self.bytes += key.fileobj.recv_into(room)

    def await_all(self, published):
        """How many messages came, once no more do."""
        before = -1
        while before != self.bytes and self.bytes < published * SUBSCRIBERS * self.message:
            before = self.bytes
            threading.Event().wait(0.5)
        return self.bytes / self.message


def measure_others(options, runner, system):
    """Latency of a client that sets strings, alone and beside a set that grows, is scanned and goes."""
    seconds = 3.0

    def other(what):
        report = runner.generate(system, "set", connections=1, keys=1000, seconds=seconds)
        found[what] = {f: report[f] for f in ("p50_us", "p99_us", "throughput")}
        say(system.name, what, found[what])

    found = {}
    other("alone")
    for what, work in (("while a small set grows", grow_small), ("while it grows", grow),
                       ("while it is scanned", scan)):
        over = threading.Event()
        thread = threading.Thread(target=work, args=(system.ports[0], over))
        thread.start()
        other(what)
        over.set()
        thread.join()
    grow(system.ports[0], threading.Event(), GROWN_MEMBERS)
    found["members"] = int(systems.command(system.ports[0], "SCARD", "grown"))
    timer = threading.Timer(1.0, systems.command, (system.ports[0], "DEL", "grown"))
    timer.start()
    other("while it is deleted")
    timer.join()
    return found


def grow_small(port, over):
    grow(port, over, GROWN_MEMBERS, GROWN_AT_ONCE)


def grow(port, over, members=GROWN_MEMBERS, modulus=None):
    """Adds members, some hundred at once, a few requests under way."""
    key = "grown" if modulus is None else "kept"
    with Client(port, ahead=4) as client:
        have = int(systems.command(port, "SCARD", key)) if modulus is None else 0
        while have < members and not over.is_set():
            numbers = range(have, have + GROWN_AT_ONCE)
            client.ask(request("SADD", key, *(f"m{n % (modulus or members):07d}" for n in numbers)))
            have += GROWN_AT_ONCE
        client.finish()


def scan(port, over):
    """Scans the set from its beginning to its end, again and again."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        replies, cursor = connection.makefile("rb"), b"0"
        while not over.is_set():
            connection.sendall(b"SSCAN grown " + cursor + b" COUNT 100\r\n")
            assert replies.readline() == b"*2\r\n"
            cursor = replies.read(int(replies.readline()[1:]) + 2)[:-2]
            for _ in range(int(replies.readline()[1:])):
                replies.read(int(replies.readline()[1:]) + 2)


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def median(cells, figure, **wanted):
    chosen = [c[figure] for c in cells if all(c[k] == v for k, v in wanted.items())]
    return statistics.median(chosen) if chosen else None


def table(result):
    lines = [f"`{result['command']}`, {result['facts']['date']}, {result['facts']['cores']} cores", "",
             "Bytes per element at one node:", "",
             "| | " + " | ".join(result["bytes"]) + " | hermes / redis |",
             "| --- |" + " ---: |" * (len(result["bytes"]) + 1)]
    for name in result["bytes"]["redis"]:
        figures = [result["bytes"][system][name] for system in result["bytes"]]
        share = result["bytes"]["quorate"][name] / result["bytes"]["redis"][name]
        goal = GOALS["large" if name.startswith("large") else "packed"]
        lines.append(f"| {name} | " + " | ".join(f"{f:.1f}" for f in figures)
                     + f" | {share:.2f} (goal {goal}) |")
    names = list(dict.fromkeys(cell["system"] for cell in result["changes"]))
    lines += ["", f"CPU microseconds of all processes per op (p99 in microseconds), 50 connections, on "
              f"collections of {SMALL:,} and of {LARGE:,} elements; `spread`: of {SMALL:,}, through all nodes:",
              "",
              "| | of | " + " | ".join(names) + " |", "| --- | --- |" + " ---: |" * len(names)]
    for command in CHANGES:
        for of in ("small", "big", "spread"):
            row = []
            for system in names:
                cpu = median(result["changes"], "cpu_us_per_op", command=command, of=of, system=system)
                p99 = median(result["changes"], "p99_us", command=command, of=of, system=system)
                row.append("" if cpu is None else f"{cpu:.1f} ({p99:.0f})")
            if any(row):
                lines.append(f"| {command} | {of} | " + " | ".join(row) + " |")
    lines += ["", f"`PUBLISH` to {SUBSCRIBERS} subscribers, 50 connections:", "",
              "| | a second | CPU us per op | heard | of Redis |", "| --- | ---: | ---: | ---: | ---: |"]
    for system in dict.fromkeys(cell["system"] for cell in result["publish"]):
        of = {c["round"]: c["throughput"] for c in result["publish"] if c["system"] == "redis"}
        share = statistics.median(c["throughput"] / of[c["round"]] for c in result["publish"]
                                  if c["system"] == system)
        figures = [median(result["publish"], f, system=system)
                   for f in ("throughput", "cpu_us_per_op", "heard")]
        lines.append(f"| {system} | {figures[0]:.0f} | {figures[1]:.1f} | {figures[2]:.3f} | {share:.2f} "
                     f"(goal {GOALS['publish']}) |")
    lines += ["", f"`SET` of one other connection beside work on a set, p50 and p99 in microseconds (goal: p99 "
              f"at most {GOALS['others_p99_us']}):", ""]
    whats = [what for what in result["others"]["redis"] if what != "members"]
    lines += ["| | " + " | ".join(result["others"]) + " |", "| --- |" + " ---: |" * len(result["others"])]
    for what in whats:
        row = [result["others"][system][what] for system in result["others"]]
        lines.append(f"| {what} | " + " | ".join(f"{r['p50_us']:.0f}, {r['p99_us']:.0f}" for r in row) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
