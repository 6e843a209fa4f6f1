#!/usr/bin/env python3
"""Measures what a SET costs in the log, beside the same without one: bytes, flushes, processor, sleeps.

    bench/compare/log_costs.py [--rounds 5] [--seconds 3] [--connections 50,1] [--before BINARY]
                               [--systems quorate,quorate-async,...] [--out NAME]

Systems are measured one after the other in each round, and the order rotates. Counted over a whole
run of the load generator, per SET, medians over the rounds:

    bytes      appended to the log of one node: entries and what the log adds to each
    written    written to the disk by one node: the same with heads and padding of batches
    flushes    of all nodes together
    cpu        microseconds of all threads of all nodes on a processor
    sleeps     how often a thread of any node went to sleep
    p50        microseconds from sending to the answer; says little on a machine that others use

Of Redis, `written` is the growth of its append-only file, and it does not count flushes. A goal is
judged: of a SET of 100 bytes under a key of 16, the log has at most 1.6 times as many bytes.
Needs only the standard library, Rust, and Redis where its systems are named. All traffic stays on
127.0.0.1.
"""

import argparse
import json
import pathlib
import signal
import statistics
import sys
import tempfile
import time

import compare
import systems
from workloads import Runner

KEY_BYTES = 16
GOAL = 1.6
SYSTEMS = "quorate,quorate-async,quorate-sync,quorate-meerkat-sync,redis-always"
FIELDS = ("bytes", "written", "flushes", "cpu", "sleeps", "p50")
SETTLE_SECONDS_MAX = 10


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    binaries = compare.build(options)
    cells = []
    with tempfile.TemporaryDirectory(prefix="quorate-log-costs-") as work:
        places = systems.Places(pathlib.Path(work), options.port_base, binaries)
        chosen, absent = compare.choose(options, places)
        runner = Runner(options, chosen)
        try:
            for system in chosen:
                runner.fill(system)
            for number in range(options.rounds):
                for connections in options.connections:
                    for system in runner.order(number):
                        cell = measure(runner, system, connections)
                        cells.append(cell | {"round": number})
                        print(f"round {number + 1}: {json.dumps(cell)}", file=sys.stderr)
        finally:
            for system in chosen:
                system.stop()
    result = {"rounds": options.rounds, "seconds": options.seconds, "keys": options.keys,
              "key_bytes": KEY_BYTES, "value_bytes": options.value_bytes, "cells": cells,
              "machine": compare.facts(chosen), "absent": absent, "goals": goals(options, cells)}
    compare.publish(options, result, table(result))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured seconds of each cell")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--connections", default="50,1", help="comma-separated (default 50,1)",
                        type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--systems", default=SYSTEMS, help=f"comma-separated (default {SYSTEMS})")
    parser.add_argument("--quorate", help="a built binary instead of a release build")
    parser.add_argument("--before", help="another build's binary, for the systems named -before")
    parser.add_argument("--port-base", type=int, default=17100,
                        help="first of 40 ports on 127.0.0.1 (default 17100)")
    parser.add_argument("--out", metavar="NAME", help="write results/NAME.json and results/NAME.md")
    return parser.parse_args()


def measure(runner, system, connections):
    before = counts(system)
    report = runner.generate(system, system.set_op, connections=connections)
    after = counts(system)
    ops = report["ops_total"]
    if report["failed"] or not ops:
        raise SystemExit(f"{system.name}: {report['failed']} SETs failed: {report['first_failure']}")
    cell = {name: round((after[name] - before[name]) / ops, 3) for name in after}
    return {"system": system.name, "connections": connections, "ops": ops,
            "throughput": report["throughput"], "p50": report["p50_us"], **cell}


def counts(system):
    """What a system has counted so far, once its logs are durable."""
    cpu, sleeps = system.cpu_seconds() * 1e6, system.sleeps()
    if not isinstance(system, systems.Quorate):
        sizes = [file.stat().st_size for file in system.places.work.glob(f"{system.name}*/**/*.aof")]
        return {"written": sum(sizes), "cpu": cpu, "sleeps": sleeps}
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while any(system.metric("log_lag_bytes")):
        if time.monotonic() > deadline:
            raise SystemExit(f"{system.name}: the log is not durable after {SETTLE_SECONDS_MAX} s")
        time.sleep(0.1)
    # Facts are published a quarter of a second later at the latest.
    time.sleep(0.5)
    return {"bytes": statistics.mean(system.metric("log_bytes_total")),
            "written": statistics.mean(system.metric("log_written_bytes_total")),
            "flushes": sum(system.metric("log_flushes_total")), "cpu": cpu, "sleeps": sleeps}


def goals(options, cells):
    payload = KEY_BYTES + options.value_bytes
    found = []
    for system in dict.fromkeys(cell["system"] for cell in cells):
        share = median(cells, "bytes", system=system)
        if share:
            share /= payload
            found.append({"goal": f"{system}: log bytes per SET at most {GOAL} times key and value",
                          "figure": round(share, 3), "met": share <= GOAL})
    return found


def median(cells, field, **where):
    of = [cell[field] for cell in cells
          if field in cell and all(cell[name] == value for name, value in where.items())]
    return statistics.median(of) if of else None


def table(result):
    cells = result["cells"]
    lines = ["| connections | system | thousand a second | " + " | ".join(FIELDS) + " |",
             "| ---: | --- | ---: |" + " ---: |" * len(FIELDS)]
    for connections in dict.fromkeys(cell["connections"] for cell in cells):
        for system in dict.fromkeys(cell["system"] for cell in cells):
            where = {"connections": connections, "system": system}
            of = [median(cells, field, **where) for field in FIELDS]
            row = " | ".join("-" if figure is None else f"{figure:.2f}" for figure in of)
            pace = median(cells, "throughput", **where) / 1000
            lines.append(f"| {connections} | {system} | {pace:.1f} | {row} |")
    lines += [f"{goal['goal']}: {goal['figure']}, {'met' if goal['met'] else 'MISSED'}"
              for goal in result["goals"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
