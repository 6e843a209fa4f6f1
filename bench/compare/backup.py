#!/usr/bin/env python3
"""Measures `quorate backup` and `quorate restore`, and what a backup costs a load that goes on.

Each engine has three `serve` processes that are filled once. In each round the same closed loop of SETs
runs alone and beside a backup, in turns of A B, B A, for as long as the backup takes; and one backup is
written while nobody writes. The last backup is restored into a second cluster. Figures are medians over
the rounds with their ranges, and of quotients within each round, as the machine's pace changes between
rounds. CPU is that of the nodes alone. Needs only the standard library and Rust. All traffic stays on
127.0.0.1.
"""

import argparse
import json
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types

import systems
from compare import build
from workloads import Runner, collect

HERE = pathlib.Path(__file__).resolve().parent
ENGINES = {"hermes": "quorate", "meerkat": "quorate-meerkat"}


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = options.quorate and options.load
    binaries = ({"quorate": pathlib.Path(options.quorate).resolve(),
                 "load": pathlib.Path(options.load).resolve()} if given else build(options))
    result = {"command": "bench/compare/backup.py " + " ".join(sys.argv[1:]), "engines": {}}
    with tempfile.TemporaryDirectory(prefix="quorate-backup-") as work:
        places = systems.Places(pathlib.Path(work), options.port_base, binaries)
        for engine in options.engines.split(","):
            result["engines"][engine] = measure(options, places, engine)
    text = table(result)
    print(text)
    if options.out:
        (HERE / "results").mkdir(exist_ok=True)
        path = HERE / "results" / f"{options.out}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        path.with_suffix(".md").write_text(text + "\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of the load alone (default 3)")
    parser.add_argument("--keys", type=int, default=250_000)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=10, help="of the load (default 10)")
    parser.add_argument("--written", type=int, default=10_000,
                        help="keys that the load draws from (default 10000)")
    parser.add_argument("--pause-writes", type=int, default=5000, help="milliseconds (default 5000)")
    parser.add_argument("--engines", default="hermes,meerkat")
    parser.add_argument("--quorate", help="a built binary instead of a release build")
    parser.add_argument("--load", help="a built quorate-load, if --quorate is given, too")
    parser.add_argument("--port-base", type=int, default=17500,
                        help="first of 40 ports on 127.0.0.1 (default 17500)")
    parser.add_argument("--out", metavar="NAME", help="write results/NAME.json and results/NAME.md")
    options = parser.parse_args()
    options.systems, options.before = "quorate", None
    return options


def measure(options, places, engine):
    name = ENGINES[engine]
    origin, copy = systems.BY_NAME[name](places), systems.BY_NAME[name](places)
    copy.name += "-copy"
    runner = Runner(types.SimpleNamespace(**vars(options)), [origin, copy])
    file = places.work / f"{engine}.rdb"
    rounds = []
    try:
        origin.start()
        runner.generate(origin, "fill", connections=8, pipeline=64, seconds=0)
        for number in range(options.rounds):
            cells = {}
            for cell in ("alone", "beside")[::1 if number % 2 == 0 else -1]:
                cells[cell] = load(options, runner, origin, file if cell == "beside" else None)
            cells["idle"] = backup(options, origin, file)[1]
            rounds.append(cells)
            print(f"{engine}, round {number + 1}: {brief(cells)}", file=sys.stderr)
        copy.start()
        begin = time.monotonic()
        say(options, copy, "restore", str(file), "--target", f"127.0.0.1:{copy.ports[2]}")
        restored = time.monotonic() - begin
    finally:
        origin.stop()
        copy.stop()
    return {"bytes": file.stat().st_size, "restore_seconds": restored, "rounds": rounds}


def load(options, runner, system, file):
    """One sample of the load, alone or until a backup beside it has ended."""
    shape = {"connections": options.connections, "keys": options.written}
    before = system.cpu_seconds()
    if file is None:
        report, told = runner.generate(system, "set", **shape), None
    else:
        # The first backup says how long the load has to run.
        seconds = getattr(options, "beside_seconds", options.seconds)
        process = runner.spawn(system, "set", seconds=seconds, **shape)
        time.sleep(0.2)
        begin = time.monotonic()
        told = backup(options, system, file, "--pause-writes", str(options.pause_writes))[1]
        options.beside_seconds = max(options.seconds, time.monotonic() - begin + 0.4)
        report = collect(process)
    cpu = system.cpu_seconds() - before
    if report["failed"]:
        raise SystemExit(report["first_failure"])
    sample = {key: report[key] for key in ("throughput", "p50_us", "p99_us")}
    return sample | {"cpu_us_per_op": cpu / report["ops_total"] * 1e6, "backup": told}


def backup(options, system, file, *more):
    """What a backup came to: its time, and what it says of the moment."""
    before, begin = system.cpu_seconds(), time.monotonic()
    out = say(options, system, "backup", "--out", str(file), "--force", "--target",
              f"127.0.0.1:{system.ports[2]}", *more)
    seconds, cpu = time.monotonic() - begin, system.cpu_seconds() - before
    paused = re.search(r"writes waited for (\d+) ms", out)
    return out, {"seconds": seconds, "bytes": file.stat().st_size, "cpu_seconds": cpu,
                 "one_moment": "all of it is of one moment" in out,
                 "paused_ms": int(paused[1]) if paused else None}


def say(options, system, *words):
    done = subprocess.run([system.binary(), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        system.fail(f"quorate {words[0]} failed: {done.stdout}{done.stderr}")
    return done.stdout


def brief(cells):
    beside = cells["beside"]
    return (f"alone {cells['alone']['cpu_us_per_op']:.1f} us, beside {beside['cpu_us_per_op']:.1f} us, "
            f"backup {beside['backup']['seconds']:.1f} s, paused {beside['backup']['paused_ms']} ms, "
            f"idle {cells['idle']['seconds']:.1f} s")


def table(result):
    lines = [f"`{result['command']}`", "",
             "| engine | file, MiB | backup, idle, MiB/s | under load, MiB/s | writes waited, ms | "
             "restore, MiB/s | load: CPU us per op, alone | beside | p99 us, alone | beside | "
             "throughput beside/alone |",
             "| --- " + "| ---: " * 10 + "|"]
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
            figure(of("alone", "cpu_us_per_op"), 1), figure(of("beside", "cpu_us_per_op"), 1),
            figure(of("alone", "p99_us")), figure(of("beside", "p99_us")),
            figure([r["beside"]["throughput"] / r["alone"]["throughput"] for r in rounds], 2),
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
