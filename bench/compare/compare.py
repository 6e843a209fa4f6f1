#!/usr/bin/env python3
"""Measures Quorate beside Redis and etcd in one run, interleaved, and judges the project's goals.

Needs only the standard library, Rust, and the rivals' Debian packages:
    apt-get install redis-server redis-tools etcd-server
See README.md beside this file for the method. All traffic stays on 127.0.0.1.
"""

import argparse
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import report
import systems
from workloads import TYPES, WORKLOADS, Runner

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def main():
    options = parse()
    # A plain `kill` must also end the servers that this process started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    binaries = build(options)
    with tempfile.TemporaryDirectory(prefix="quorate-compare-") as work:
        places = systems.Places(pathlib.Path(work), options.port_base, binaries)
        chosen, absent = choose(options, places)
        if not any(system.name == "quorate" for system in chosen):
            print("quorate is not among the systems: no goal can be judged", file=sys.stderr)
        try:
            result = measure(options, chosen)
        finally:
            for system in chosen:
                system.stop()
    result["absent"] = absent
    result["machine"] = facts(chosen)
    result["command"] = "bench/compare/compare.py " + " ".join(sys.argv[1:])
    publish(options, result, report.markdown(result))
    return 1 if options.strict and any(goal["met"] is False for goal in result["goals"]) else 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--quick", action="store_true", help="one short round, to try things out")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured seconds of each cell")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--systems", default="quorate,quorate-meerkat,redis,redis-wait2,etcd",
                        help="comma-separated; also quorate-zeus, quorate-o3, quorate-sync, "
                             "quorate-async, quorate-meerkat-sync, redis-always, redis-everysec, "
                             "redis-everysec-wait2, etcd-disk, valkey, and with "
                             "--before quorate-before, quorate-sync-before, quorate-async-before, "
                             "quorate-meerkat-before and quorate-zeus-before")
    parser.add_argument("--workloads", default="",
                        help="comma-separated: " + ",".join(load.name for load in WORKLOADS + TYPES)
                             + "; `types` for all from hset on")
    parser.add_argument("--no-redis-benchmark", action="store_true",
                        help="leave out the second opinion")
    parser.add_argument("--quorate", help="a built binary instead of a release build")
    parser.add_argument("--before", help="another build's binary, for the systems named -before")
    parser.add_argument("--port-base", type=int, default=17000,
                        help="first of 40 ports on 127.0.0.1 (default 17000)")
    parser.add_argument("--out", metavar="NAME", help="write results/NAME.json and results/NAME.md")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a goal is missed")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 1.0)
    return options


def build(options):
    """Builds the load generator, and Quorate unless a binary is given."""
    packages = ["-p", "quorate-load"]
    wants_quorate = any(name.startswith("quorate") for name in options.systems.split(","))
    if wants_quorate and not options.quorate:
        packages += ["-p", "quorate"]
    subprocess.run(["cargo", "build", "--release", "--quiet", *packages], cwd=ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    binaries = {"load": target / "quorate-load",
                "quorate": pathlib.Path(options.quorate or target / "quorate").resolve()}
    if options.before:
        binaries["before"] = pathlib.Path(options.before).resolve()
    return binaries


def choose(options, places):
    """The systems that are asked for and installed, and a sentence for each that is not."""
    chosen, absent = [], []
    for name in options.systems.split(","):
        if name not in systems.BY_NAME:
            sys.exit(f"no system {name!r}; there are {', '.join(systems.BY_NAME)}")
        system = systems.BY_NAME[name](places)
        missing = system.missing()
        if missing:
            absent.append(f"{name} was not measured: {missing}")
            print(absent[-1], file=sys.stderr)
        else:
            chosen.append(system)
    return chosen, absent


def measure(options, chosen):
    runner = Runner(options, chosen)
    say("starting and filling", ", ".join(system.name for system in chosen))
    memory = {system.name: runner.fill(system) for system in chosen if not system.transient}
    idle = {system.name: runner.idle(system) for system in chosen if not system.transient}
    names = options.workloads.replace("types", ",".join(load.name for load in TYPES))
    wanted = [name for name in names.split(",") if name]
    for number in range(options.rounds):
        for workload in WORKLOADS + TYPES:
            if workload.name not in wanted if wanted else workload in TYPES:
                continue
            for system in runner.order(number):
                cell = runner.run(workload, system, number)
                if cell:
                    say(f"round {number + 1}", f"{workload.name} on {system.name}:",
                        report.brief(cell))
    result = {
        "rounds": options.rounds, "seconds": options.seconds, "keys": options.keys,
        "value_bytes": options.value_bytes, "memory": memory, "idle": idle,
        "cells": runner.cells, "systems": {s.name: s.describe() for s in chosen},
    }
    result["goals"] = report.goals(result)
    return result


def facts(chosen):
    def first(command):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return done.stdout.strip().splitlines()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            return "unknown"

    cpu = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
    memory = pathlib.Path("/proc/meminfo").read_text().split()[1]
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu, "cores": os.cpu_count(), "memory_gb": round(int(memory) / 1024 / 1024, 1),
        "kernel": os.uname().release, "load_average": os.getloadavg()[0],
        "commit": first(["git", "-C", str(ROOT), "describe", "--always", "--dirty"]),
        "versions": {system.name: first(system.version) for system in chosen},
    }


def publish(options, result, text):
    """Prints the table of a result, and leaves both in results/ under the name that --out gives."""
    print(text)
    if options.out:
        (HERE / "results").mkdir(exist_ok=True)
        path = HERE / "results" / f"{options.out}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        path.with_suffix(".md").write_text(text + "\n")
        say(f"written: bench/compare/results/{options.out}.json and .md")


def say(*words):
    print(*words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
