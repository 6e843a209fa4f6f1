#!/usr/bin/env python3
"""Measures how fast a node has its data back: from the log, from a snapshot, and Redis from its RDB file.

    bench/compare/replay.py [--rounds 5] [--mib 1024] [--engine hermes] [--cold] [--out NAME]

Fills one node of one lane (and one Redis) with as many keys as give a log of --mib MiB, stops it, and
starts it again and again on copies of what it has left; the ways take turns. For each start:

    seconds    from the start of the process until it answers a GET with the value
    own        of these, what the node says it took: checking, then restoring
    mib_s      MiB of entries restored, for each second of `own`
    cpu        seconds on a processor, and of these `user`, outside of the system

With --before, another build comes back from the same files in the same rounds.
Files lie in the cache of the system, as after a restart of the process; with --cold they are dropped
from it before each start. Redis writes its file without compression, which is faster to load. The goals
that are judged: 250 MiB a second for each lane, 1 GiB in at most 5 s, and faster than Redis.
Needs only the standard library, Rust, and Redis. All traffic stays on 127.0.0.1.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import compare
import systems
from workloads import Runner

GOALS = {"mib_s": 250, "seconds": 5.0}
# Bytes of the log for each key of 16 bytes and value of 100, a little less than it takes.
ENTRY_BYTES = 160
VALUE_BYTES = 100
START_SECONDS_MAX = 120
ANSWER_POLL = 0.01


class Node(systems.Quorate):
    """one `quorate serve` process of one lane, on disk, alone"""

    name = "node"
    nodes = 1
    options = ['durability = "async"']
    extra = ["[disk]", 'dir = "{work}"', 'snapshot_after = "1000gb"']

    def __init__(self, places, engine, build="quorate"):
        self.build = build
        super().__init__(places)
        self.engine = engine
        if build != "quorate":
            self.name = f"{self.name}-{build}"

    def files(self):
        return self.directory()

    def begin(self):
        self.launch()

    def own(self):
        """What the last start has restored, and how long that took."""
        text = (self.places.work / f"{self.name}-node1.log").read_text()
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        sound = re.search(r"the log is sound.*? bytes=(\d+) millis=(\d+)", text)
        restored = re.search(r"restored .*?bytes=(\d+) millis=(\d+)", text)
        if not sound or not restored:
            self.fail("the node has restored nothing")
        seconds = (int(sound[2]) + int(restored[2])) / 1000
        mib = int(restored[1]) / 2**20
        return {"mib": round(mib, 1), "checking": int(sound[2]) / 1000,
                "restoring": int(restored[2]) / 1000, "own": seconds, "mib_s": round(mib / seconds, 1)}


class Rdb(systems.Redis):
    """one redis-server that loads its RDB file"""

    name = "rdb"

    def files(self):
        return self.places.work / self.name

    def begin(self):
        self.files().mkdir(exist_ok=True)
        self.ports = self.ports or [self.places.port()]
        self.server(self.ports[0], "--dir", self.files(), "--rdbcompression", "no")

    def start(self):
        self.begin()
        self.wait_until("PONG", lambda: systems.command(self.ports[0], "PING") == "PONG")

    def own(self):
        size = sum(file.stat().st_size for file in self.files().glob("*.rdb"))
        return {"mib": round(size / 2**20, 1)}


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    binaries = compare.build(options)
    cells = []
    with tempfile.TemporaryDirectory(prefix="quorate-replay-", dir=options.dir) as work:
        work = pathlib.Path(work)
        places = systems.Places(work, options.port_base, binaries)
        node, redis = Node(places, options.engine), Rdb(places)
        before = Node(places, options.engine, "before") if options.before else None
        try:
            ways = prepare(options, node, redis, before)
            for number in range(options.rounds):
                for shift in range(len(ways)):
                    name = list(ways)[(number + shift) % len(ways)]
                    system, kept = ways[name]
                    cell = start(options, system, kept, len(cells))
                    cells.append({"way": name, "round": number} | cell)
                    print(f"round {number + 1}: {json.dumps(cells[-1])}", file=sys.stderr)
        finally:
            for system in filter(None, (node, before, redis)):
                system.stop()
    result = {"rounds": options.rounds, "mib": options.mib, "engine": options.engine, "cold": options.cold,
              "cells": cells, "machine": compare.facts([node, redis]), "goals": goals(options, cells)}
    compare.publish(options, result, table(result))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--mib", type=int, default=1024, help="MiB of the log (default 1024)")
    parser.add_argument("--engine", default="hermes", help="hermes, meerkat, zeus or local")
    parser.add_argument("--cold", action="store_true", help="drop files from the system's cache")
    parser.add_argument("--dir", help="where the files lie (default: the system's temporary directory)")
    parser.add_argument("--quorate", help="a built binary instead of a release build")
    parser.add_argument("--before", help="another build's binary, to compare two builds in one run")
    parser.add_argument("--port-base", type=int, default=17200,
                        help="first of 7 ports on 127.0.0.1 (default 17200)")
    parser.add_argument("--out", metavar="NAME", help="write results/NAME.json and results/NAME.md")
    options = parser.parse_args()
    options.systems, options.seconds = "quorate", 0
    options.value_bytes, options.keys = VALUE_BYTES, options.mib * 2**20 // ENTRY_BYTES
    return options


def prepare(options, node, redis, before):
    """Fills both, and keeps what they leave. Gives each way to come back: a system and its files."""
    runner = Runner(options, [node, redis])
    node.start()
    runner.generate(node, "fill", connections=8, pipeline=64, seconds=0)
    node.stop()
    log = keep(node, "log")
    node.begin()
    node.wait_until("the data", lambda: holds(options, node))
    save(node)
    node.stop()
    snapshot = keep(node, "snapshot")
    redis.start()
    runner.generate(redis, "fill", connections=8, pipeline=64, seconds=0)
    save(redis)
    redis.stop()
    ways = {"log": (node, log), "snapshot": (node, snapshot), "redis": (redis, keep(redis, "rdb"))}
    if before:
        before.configure()
        before.files().mkdir()
        ways |= {"log-before": (before, log), "snapshot-before": (before, snapshot)}
    return ways


def save(system):
    systems.command(system.ports[0], "BGSAVE")
    system.wait_until("a snapshot", lambda: "rdb_bgsave_in_progress:0" in
                      systems.command(system.ports[0], "INFO", "persistence"))


def keep(system, name):
    kept = system.places.work / f"kept-{name}"
    shutil.copytree(system.files(), kept)
    return kept


def start(options, system, kept, number):
    """One start on a copy of what was kept."""
    shutil.rmtree(system.files())
    subprocess.run(["cp", "-r", "--reflink=auto", kept, system.files()], check=True)
    os.sync()
    for file in system.files().rglob("*"):
        if file.is_file():
            with open(file, "rb") as opened:
                if options.cold:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while opened.read(1 << 20):
                        pass
    begun = time.monotonic()
    system.begin()
    deadline = begun + START_SECONDS_MAX
    while not holds(options, system):
        if time.monotonic() > deadline:
            system.fail(f"no data after {START_SECONDS_MAX} s")
        time.sleep(ANSWER_POLL)
    cell = {"seconds": round(time.monotonic() - begun, 3), "cpu": round(system.cpu_seconds(), 3),
            "user": round(user_seconds(system), 3)}
    cell |= system.own()
    system.stop()
    return cell


def user_seconds(system):
    """Seconds on a processor outside of the system, of all processes."""
    def of(process):
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) / os.sysconf("SC_CLK_TCK")
    return sum(of(process) for process in system.processes)


def holds(options, system):
    """Whether the last key that was written is there."""
    if any(process.poll() is not None for process in system.processes):
        system.fail("the process has ended")
    try:
        key = f"key:{options.keys - 1:012}"
        return len(systems.command(system.ports[0], "GET", key)) == VALUE_BYTES
    except OSError:
        return False


def goals(options, cells):
    def of(way, field):
        return statistics.median(cell[field] for cell in cells if cell["way"] == way)
    found = []
    for way in ("log", "snapshot"):
        pace, seconds = of(way, "mib_s"), of(way, "seconds")
        # A data set of another size is judged by its share of 1 GiB.
        scaled = seconds * 1024 / options.mib
        found += [{"goal": f"{way}: at least {GOALS['mib_s']} MiB a second for each lane",
                   "figure": pace, "met": pace >= GOALS["mib_s"]},
                  {"goal": f"{way}: 1 GiB in at most {GOALS['seconds']} s",
                   "figure": round(scaled, 2), "met": scaled <= GOALS["seconds"]},
                  {"goal": f"{way}: faster than Redis loads the same keys from its RDB file, times",
                   "figure": round(of("redis", "seconds") / seconds, 2),
                   "met": seconds < of("redis", "seconds")}]
    return found


def table(result):
    fields = ("mib", "seconds", "own", "checking", "restoring", "mib_s", "cpu", "user")
    lines = ["| from | " + " | ".join(fields) + " |", "| --- |" + " ---: |" * len(fields)]
    for way in dict.fromkeys(cell["way"] for cell in result["cells"]):
        row = []
        for field in fields:
            of = [cell[field] for cell in result["cells"] if cell["way"] == way and field in cell]
            row.append(f"{statistics.median(of):.2f} ({min(of):.2f}-{max(of):.2f})" if of else "-")
        lines.append(f"| {way} | " + " | ".join(row) + " |")
    lines += [f"{goal['goal']}: {goal['figure']}, {'met' if goal['met'] else 'MISSED'}"
              for goal in result["goals"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
