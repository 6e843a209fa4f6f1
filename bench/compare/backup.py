#!/usr/bin/env python3
"""Measures `quorate backup` and `quorate restore`, and what a backup costs a load that goes on.

Each engine has three `serve` processes that are filled once. In each round the same closed loop of SETs
runs alone and beside a backup, in turns of A B, B A, for as long as the backup takes: two generators, one
of which always runs while the other one starts anew. Throughput and latency are those of runs in which
both generators, and the backup, were there from begin to end. One more backup is written while nobody writes. The
last backup is restored into a second cluster. With --before, the same goes for a second build in the same
rounds, in turns. Figures are medians over the rounds with their ranges, as
the machine's pace changes between rounds. CPU per operation is that of the nodes alone; beside a backup, it
includes what they do for the backup. What the process of the backup takes itself is a figure of its own, in
percent of one core while it runs. Needs only the standard library and Rust. All traffic stays on 127.0.0.1.
"""

import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types

import systems
from compare import build, publish
from workloads import Runner

ENGINES = {"hermes": "quorate", "meerkat": "quorate-meerkat"}


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = options.quorate and options.load
    binaries = ({name: pathlib.Path(path).resolve() for name, path in
                 {"quorate": options.quorate, "load": options.load, "before": options.before}.items() if path}
                if given else build(options))
    result = {"command": "bench/compare/backup.py " + " ".join(sys.argv[1:]), "engines": {}}
    with tempfile.TemporaryDirectory(prefix="quorate-backup-") as work:
        places = systems.Places(pathlib.Path(work), options.port_base, binaries)
        for engine in options.engines.split(","):
            result["engines"] |= measure(options, places, engine)
    publish(options, result, table(result))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of the load alone (default 3)")
    parser.add_argument("--keys", type=int, default=250_000)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--written-bytes", type=int, default=100, help="of the load (default 100)")
    parser.add_argument("--connections", type=int, default=10, help="of the load (default 10)")
    parser.add_argument("--written", type=int, default=10_000,
                        help="keys that the load draws from (default 10000)")
    parser.add_argument("--pause-writes", type=int, default=5000, help="milliseconds (default 5000)")
    parser.add_argument("--rate", type=int, help="MiB a second that the backups beside the load keep to; "
                        "without it, as fast as they go")
    parser.add_argument("--engines", default="hermes,meerkat")
    parser.add_argument("--quorate", help="a built binary instead of a release build")
    parser.add_argument("--before", help="a binary of another build, to compare with")
    parser.add_argument("--load", help="a built quorate-load, if --quorate is given, too")
    parser.add_argument("--port-base", type=int, default=17500,
                        help="first of 40 ports on 127.0.0.1 (default 17500)")
    parser.add_argument("--out", metavar="NAME", help="write results/NAME.json and results/NAME.md")
    options = parser.parse_args()
    options.systems = "quorate"
    return options


def measure(options, places, engine):
    """What is measured of an engine, and of the same engine of the other build."""
    suffixes = ("", "-before") if options.before else ("",)
    clusters = {engine + suffix: Cluster(options, places, ENGINES[engine] + suffix) for suffix in suffixes}
    try:
        for cluster in clusters.values():
            cluster.start()
        for number in range(options.rounds):
            for name, cluster in list(clusters.items())[::1 if number % 2 == 0 else -1]:
                cluster.round(number)
                print(f"{name}, round {number + 1}: {brief(cluster.rounds[-1])}", file=sys.stderr)
        return {name: cluster.result() for name, cluster in clusters.items()}
    finally:
        for cluster in clusters.values():
            cluster.stop()


class Cluster:
    """A cluster that is backed up, and one into which the last backup is restored."""

    def __init__(self, options, places, name):
        self.options, self.rounds = options, []
        self.origin, self.copy = systems.BY_NAME[name](places), systems.BY_NAME[name](places)
        self.copy.name += "-copy"
        # Beside two commands and the load a node may be off its processor for longer than a lease lasts.
        self.origin.cluster = self.copy.cluster = ["lease_ms = 2000"]
        self.filler = Runner(types.SimpleNamespace(**vars(options)), [self.origin])
        written = vars(options) | {"value_bytes": options.written_bytes}
        self.runner = Runner(types.SimpleNamespace(**written), [self.origin])
        self.file = places.work / f"{name}.rdb"

    def start(self):
        self.origin.start()
        self.filler.generate(self.origin, "fill", connections=8, pipeline=64, seconds=0)

    def round(self, number):
        cells = {}
        for cell in ("alone", "beside")[::1 if number % 2 == 0 else -1]:
            file = self.file if cell == "beside" else None
            cells[cell] = load(self.options, self.runner, self.origin, file)
        cells["idle"] = backup(self.options, self.origin, self.file)
        self.rounds.append(cells)

    def result(self):
        self.copy.start()
        begin = time.monotonic()
        say(self.options, self.copy, "restore", str(self.file), "--target", f"127.0.0.1:{self.copy.ports[2]}")
        restored = time.monotonic() - begin
        self.copy.stop()
        return {"bytes": self.file.stat().st_size, "restore_seconds": restored, "rounds": self.rounds}

    def stop(self):
        self.origin.stop()
        self.copy.stop()


def load(options, runner, system, file):
    """One sample of the load, alone for a while or until a backup beside it has ended."""
    is_over, reports = threading.Event(), []

    def drive(delay):
        time.sleep(delay)
        while not is_over.is_set():
            begin = time.monotonic()
            report = runner.generate(system, "set", connections=options.connections // 2,
                                     keys=options.written)
            reports.append((begin, time.monotonic(), report))

    drivers = [threading.Thread(target=drive, args=(delay,)) for delay in (0, options.seconds / 2)]
    before = system.cpu_seconds()
    for driver in drivers:
        driver.start()
    time.sleep(options.seconds / 2 + 0.2)
    both = time.monotonic()
    rate = ["--rate", str(options.rate)] if options.rate else []
    try:
        if file:
            told = backup(options, system, file, "--pause-writes", str(options.pause_writes), *rate)
        else:
            told = time.sleep(3 * options.seconds)
    finally:
        over = time.monotonic()
        is_over.set()
        for driver in drivers:
            driver.join()
    cpu = system.cpu_seconds() - before
    for failure in {report["first_failure"] for _, _, report in reports if report["failed"]}:
        print(f"some operations failed: {failure}", file=sys.stderr)
    # A generator has more to itself while the other one is not there, or no backup.
    kept = [report for begin, end, report in reports if begin > both - 0.3 and end < over + 0.3]
    if not kept:
        system.fail("the backup was over before a generator was: more --keys, or fewer --seconds")
    # Those of the same number of connections, so what they did adds up.
    return {"throughput": 2 * statistics.mean(report["throughput"] for report in kept),
            "p50_us": statistics.median(report["p50_us"] for report in kept),
            "p99_us": max(report["p99_us"] for report in kept),
            "cpu_us_per_op": cpu / sum(report["ops_total"] for _, _, report in reports) * 1e6,
            "failed": sum(report["failed"] for _, _, report in reports), "backup": told}


def backup(options, system, file, *more):
    """What a backup came to: its time, and what it says of the moment."""
    before, begin = system.cpu_seconds(), time.monotonic()
    out, own = say(options, system, "backup", "--out", str(file), "--force", "--target",
                   f"127.0.0.1:{system.ports[2]}", *more)
    seconds, cpu = time.monotonic() - begin, system.cpu_seconds() - before
    paused = re.search(r"writes waited for (\d+) ms", out)
    return {"seconds": seconds, "bytes": file.stat().st_size, "cpu_seconds": cpu,
            "own_cpu_seconds": own, "one_moment": "all of it is of one moment" in out,
            "paused_ms": int(paused[1]) if paused else 0}


def say(options, system, *words):
    """What a command says, and its time on a processor."""
    command = subprocess.Popen([system.binary(), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
    out = command.stdout.read()
    _, status, used = os.wait4(command.pid, 0)
    command.returncode = os.waitstatus_to_exitcode(status)
    if command.returncode != 0:
        system.fail(f"quorate {words[0]} failed: {out}")
    return out, used.ru_utime + used.ru_stime


def brief(cells):
    alone, beside, told = cells["alone"], cells["beside"], cells["beside"]["backup"]
    return (f"alone {alone['cpu_us_per_op']:.1f} us, beside {beside['cpu_us_per_op']:.1f} us, "
            f"throughput {beside['throughput'] / alone['throughput']:.2f}, "
            f"backup {told['seconds']:.1f} s, itself {own_percent(told):.1f}% of a core, "
            f"paused {told['paused_ms']} ms, idle {cells['idle']['seconds']:.1f} s")


def own_percent(told):
    """What the process of a backup takes of one core while it runs."""
    return told["own_cpu_seconds"] / told["seconds"] * 100


def table(result):
    lines = [f"`{result['command']}`", "",
             "| engine | file, MiB | backup, idle, MiB/s | under load, MiB/s | writes waited, ms | "
             "restore, MiB/s | its own CPU under load, % of a core | load: CPU us per op, alone | beside | "
             "p99 us, alone | beside | "
             "throughput beside/alone | failed |",
             "| --- " + "| ---: " * 12 + "|"]
    for engine, cells in result["engines"].items():
        rounds, mib = cells["rounds"], cells["bytes"] / 2**20
        of = lambda cell, key: [taken[cell][key] for taken in rounds]
        rate = lambda told: told["bytes"] / 2**20 / told["seconds"]
        moments = all(taken[cell]["one_moment"] for taken in
                      [{"idle": r["idle"], "beside": r["beside"]["backup"]} for r in rounds]
                      for cell in ("idle", "beside"))
        lines.append("| " + " | ".join([
            engine, f"{mib:.0f}",
            figure([rate(taken["idle"]) for taken in rounds]),
            figure([rate(taken["beside"]["backup"]) for taken in rounds]),
            figure([taken["beside"]["backup"]["paused_ms"] for taken in rounds]),
            f"{mib / cells['restore_seconds']:.0f}",
            figure([own_percent(taken["beside"]["backup"]) for taken in rounds], 1),
            figure(of("alone", "cpu_us_per_op"), 1), figure(of("beside", "cpu_us_per_op"), 1),
            figure(of("alone", "p99_us")), figure(of("beside", "p99_us")),
            figure([r["beside"]["throughput"] / r["alone"]["throughput"] for r in rounds], 2),
            f"{sum(of('alone', 'failed'))} + {sum(of('beside', 'failed'))}",
        ]) + " |")
        if not moments:
            lines.append(f"\nNot every backup of {engine} was of one moment.")
    return "\n".join(lines)


def figure(values, digits=0):
    """The median, with the range."""
    return (f"{statistics.median(values):.{digits}f} "
            f"({min(values):.{digits}f}-{max(values):.{digits}f})")


if __name__ == "__main__":
    main()
