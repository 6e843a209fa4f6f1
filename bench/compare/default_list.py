#!/usr/bin/env python3
"""Runs redis-benchmark's default list against Quorate and Redis, interleaved.

Every test that redis-benchmark runs when it is started without `-t`, with 50 connections, on three
`serve` processes with `hermes` and with `meerkat`, and on one unreplicated Redis. MSET writes ten keys
at once, which a `hermes` keyspace refuses; it is left out there.

Needs only the standard library, redis-server, redis-benchmark and Rust. All traffic stays on 127.0.0.1.
"""

import argparse
import csv
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import types

import systems
from compare import build, facts, publish
from workloads import Runner

SYSTEMS = ("quorate", "quorate-meerkat", "redis")
# As `-t` names them; LRANGE brings its own LPUSH.
TESTS = ("ping", "set", "get", "incr", "lpush", "rpush", "lpop", "rpop", "sadd", "hset", "spop", "zadd",
         "zpopmin", "lrange", "mset")
ONE_KEY_ONLY = {"quorate"}


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    binaries = build(options)
    result = {"command": "bench/compare/default_list.py " + " ".join(sys.argv[1:]), "cells": []}
    with tempfile.TemporaryDirectory(prefix="quorate-list-") as work:
        places = systems.Places(pathlib.Path(work), options.port_base, binaries)
        chosen = [systems.BY_NAME[name](places) for name in SYSTEMS]
        result["facts"] = facts(chosen)
        try:
            for system in chosen:
                system.start()
            runner = Runner(types.SimpleNamespace(**vars(options)), chosen)
            for number in range(options.rounds):
                for test in TESTS:
                    for system in runner.order(number):
                        if test == "mset" and system.name in ONE_KEY_ONLY:
                            continue
                        result["cells"] += measure(options, system, test, number)
        finally:
            for system in chosen:
                system.stop()
    publish(options, result, table(result))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--requests", type=int, default=40_000, help="requests of each test (default 40000)")
    parser.add_argument("--quorate", help="a built binary instead of a release build")
    parser.add_argument("--port-base", type=int, default=17700,
                        help="first of 40 ports on 127.0.0.1 (default 17700)")
    parser.add_argument("--out", metavar="NAME", help="write results/NAME.json and results/NAME.md")
    options = parser.parse_args()
    options.systems, options.before = "quorate", None
    return options


def measure(options, system, test, number):
    """One cell for each line that the test prints, in the order of the lines."""
    before = system.cpu_seconds()
    done = subprocess.run(
        ["redis-benchmark", "-p", str(system.ports[0]), "-t", test, "--csv", "-c", "50",
         "-n", str(options.requests), "-r", "100000"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')))
    if done.returncode or not rows:
        raise SystemExit(f"{test} on {system.name}: {done.stderr or done.stdout}")
    cpu = (system.cpu_seconds() - before) / (options.requests * len(rows)) * 1e6
    print(f"round {number + 1}", test, system.name, f"{cpu:.1f} us of CPU per op", file=sys.stderr)
    return [{"test": row["test"], "system": system.name, "round": number, "cpu_us_per_op": cpu,
             "throughput": float(row["rps"]), "p99_us": float(row["p99_latency_ms"]) * 1000}
            for row in rows]


def table(result):
    """Throughput of each test, and the median of its ratios to Redis within a round."""
    cells = result["cells"]
    names = [name for name in SYSTEMS if any(cell["system"] == name for cell in cells)]
    heads = [f"{name} (p99 us)" for name in names] + [f"{name} / redis" for name in names[:-1]]
    lines = [f"`{result['command']}`, {result['facts']['date']}, {result['facts']['cores']} cores; requests a "
             "second", "", "| | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for test in dict.fromkeys(cell["test"] for cell in cells):
        of = {(cell["system"], cell["round"]): cell for cell in cells if cell["test"] == test}
        rounds = sorted({number for _, number in of})

        def median(system, figure):
            found = [of[system, number] for number in rounds if (system, number) in of]
            return statistics.median(map(figure, found)) if found else None

        row = []
        for name in names:
            rate = median(name, lambda cell: cell["throughput"])
            p99 = median(name, lambda cell: cell["p99_us"])
            row.append("" if rate is None else f"{rate:.0f} ({p99:.0f})")
        for name in names[:-1]:
            share = median(name, lambda cell: cell["throughput"] / of["redis", cell["round"]]["throughput"])
            row.append("" if share is None else f"{share:.2f}")
        lines.append(f"| {test} | " + " | ".join(row) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
