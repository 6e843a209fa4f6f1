#!/usr/bin/env python3
"""Measures what sessions cost: the same writes with and without one, and a million sessions.

One run, interleaved: `SET`, the same `SET` as a session's call (behind `SESSION AUTO`), and as one
that says its number (`SESSION CALL`), each on a cluster of its own and on one that holds a million
sessions with one record each; round after round, CPU time summed over
all nodes. Figures are medians over the rounds. What one costs more than another is the median of
their quotients in each round, in which they ran within seconds of each other, with the quartiles:
the machine's pace changes between rounds. Both clusters have the same keys. Needs only the standard
library and Rust. All traffic stays on 127.0.0.1.
"""

import argparse
import pathlib
import signal
import statistics
import sys
import tempfile
import time
import types

import systems
from compare import build, publish
from workloads import Runner

# The goals of sessions, and what the thesis measured (section 2.6): 530 ns on 13.5 us, 116 bytes.
THROUGHPUT_LOSS_MAX, LATENCY_MORE_MAX = 0.02, 0.04
OPS = ("set", "call", "spelt-call")
SESSION_BYTES_MAX, CROWDED_LATENCY_MORE_MAX = 120, 0.05


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    binaries = build(options)
    result = {"command": "bench/compare/sessions.py " + " ".join(sys.argv[1:]), "engines": {}}
    with tempfile.TemporaryDirectory(prefix="quorate-sessions-") as work:
        places = systems.Places(pathlib.Path(work), options.port_base, binaries)
        for name in ("quorate", "quorate-meerkat"):
            alone, crowded = (systems.BY_NAME[name](places) for _ in range(2))
            crowded.name += "-crowded"
            try:
                result["engines"][alone.engine] = measure(options, alone, crowded)
            finally:
                alone.stop()
                crowded.stop()
    publish(options, result, table(result))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default 9)")
    parser.add_argument("--seconds", type=float, default=2.0, help="measured seconds of each cell")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=1_000_000, help="sessions that are opened")
    parser.add_argument("--quorate", help="a built binary instead of a release build")
    parser.add_argument("--port-base", type=int, default=17400,
                        help="first of 40 ports on 127.0.0.1 (default 17400)")
    parser.add_argument("--out", metavar="NAME", help="write results/NAME.json and results/NAME.md")
    options = parser.parse_args()
    options.systems = "quorate"
    return options


def measure(options, alone, crowded):
    clusters = {"alone": alone, "crowded": crowded}
    runner = Runner(types.SimpleNamespace(**vars(options)), list(clusters.values()))
    for system in clusters.values():
        system.start()
        # As many keys as sessions write to: what more keys cost is no cost of sessions.
        runner.generate(system, "fill", connections=8, pipeline=64, seconds=0,
                        keys=options.sessions)
    memory = open_sessions(options, runner, crowded)
    cells = {c: compare(options, runner, clusters, c) for c in (50, 1)}
    figures = {name: {c: cells[c][name] for c in cells} for name in clusters}
    return {"memory": memory, **figures}


def compare(options, runner, clusters, connections):
    cells = {(name, op): [] for name in clusters for op in OPS}
    for number in range(options.rounds):
        # A B C D, then D C B A: none always comes after the same other.
        for name, op in list(cells)[::1 if number % 2 == 0 else -1]:
            system = clusters[name]
            before = system.cpu_seconds()
            report = runner.generate(system, op, connections=connections)
            cpu = system.cpu_seconds() - before
            report["cpu_us_per_op"] = cpu / report["ops_total"] * 1e6
            if report["failed"]:
                raise SystemExit(f"{op}: {report['first_failure']}")
            cells[name, op].append(report)
    names = ("throughput", "p50_us", "p99_us", "cpu_us_per_op")
    rounds = {cell: {name: [report[name] for report in reports] for name in names}
              for cell, reports in cells.items()}
    return {name: {op: rounds[name, op] for op in OPS} for name in clusters}


def open_sessions(options, runner, system):
    """Bytes of each node for each session with one record, and what remains of closed ones."""
    keys = options.sessions
    # What is allocated for good.
    runner.generate(system, "open-close", connections=50, seconds=0, keys=10_000)
    time.sleep(1)
    begin = system.resident_bytes()
    runner.generate(system, "open-close", connections=50, seconds=0, keys=keys)
    time.sleep(1)
    closed = system.resident_bytes()
    runner.generate(system, "open", connections=50, seconds=0, keys=keys)
    time.sleep(1)
    opened = system.resident_bytes()
    per = lambda before, after: [round((b - a) / keys, 1) for a, b in zip(before, after)]
    return {"sessions": keys, "bytes_per_session": per(closed, opened),
            "bytes_per_closed_session": per(begin, closed)}


def table(result):
    lines = ["| engine | connections | sessions beside | op | ops/s | p50 us | p99 us | CPU us/op |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    verdicts = []
    for engine, figures in result["engines"].items():
        sessions = figures["memory"]["sessions"]
        for beside, cells in ((0, figures["alone"]), (sessions, figures["crowded"])):
            for connections, ops in cells.items():
                for op, cell in ops.items():
                    middle = {name: statistics.median(rounds) for name, rounds in cell.items()}
                    lines.append(f"| {engine} | {connections} | {beside} | {op} | "
                                 f"{middle['throughput']:.0f} | {middle['p50_us']:.0f} | "
                                 f"{middle['p99_us']:.0f} | {middle['cpu_us_per_op']:.2f} |")
        alone, crowded = figures["alone"], figures["crowded"]
        loss = quotients(alone[50]["set"], alone[50]["call"], "throughput", lambda x: 1 - 1 / x)
        more = quotients(alone[1]["call"], alone[1]["set"], "p50_us")
        crowd = quotients(crowded[1]["call"], alone[1]["call"], "p50_us")
        crowd_set = quotients(crowded[1]["set"], alone[1]["set"], "p50_us")
        cpu = quotients(alone[50]["call"], alone[50]["set"], "cpu_us_per_op")
        spelt = quotients(alone[50]["spelt-call"], alone[50]["set"], "cpu_us_per_op")
        crowded_cpu = quotients(crowded[50]["call"], alone[50]["call"], "cpu_us_per_op")
        most = max(figures["memory"]["bytes_per_session"])
        verdicts += [
            goal(engine, "throughput lost by sessions, 50 connections", loss, THROUGHPUT_LOSS_MAX),
            goal(engine, "median latency added, 1 connection", more, LATENCY_MORE_MAX),
            goal(engine, f"median latency of a call added by {sessions} other sessions", crowd,
                 CROWDED_LATENCY_MORE_MAX),
            figure(engine, "the same of a SET", crowd_set),
            figure(engine, "CPU time of all nodes added by sessions, 50 connections", cpu),
            figure(engine, "the same of calls that say their numbers", spelt),
            figure(engine, f"the same of a call by {sessions} other sessions", crowded_cpu),
            f"- {engine}: {most} bytes per session and node (goal: {SESSION_BYTES_MAX}), "
            f"{'met' if most <= SESSION_BYTES_MAX else 'MISSED'}; of a closed one "
            f"{max(figures['memory']['bytes_per_closed_session'])}",
        ]
    return "\n".join([*lines, "", *verdicts])


def quotients(cell, base, name, of=lambda quotient: quotient - 1):
    """The quartiles of what a cell has more than another, round by round."""
    each = [of(a / b) for a, b in zip(cell[name], base[name])]
    return statistics.quantiles(each, n=4, method="inclusive")


def figure(engine, what, quartiles):
    low, middle, high = quartiles
    return f"- {engine}: {what}: {middle:+.1%} ({low:+.1%} to {high:+.1%})"


def goal(engine, what, quartiles, most):
    verdict = "met" if quartiles[1] <= most else "MISSED"
    return f"{figure(engine, what, quartiles)}, goal {most:.0%}: {verdict}"


if __name__ == "__main__":
    sys.exit(main())
