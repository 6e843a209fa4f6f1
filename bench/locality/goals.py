#!/usr/bin/env python3
"""Measures what a transaction of zeus costs all nodes together, and what a move of a key costs, beside
the goals for them.

    cargo build --release -p quorate
    bench/locality/goals.py                        # five rounds
    bench/locality/goals.py --before BINARY        # another build's binary in turn with it

Three nodes in one process, without sockets. Cells are measured in turn in every round, and the medians
of all rounds are printed: processor time of all nodes for each committed transaction, less what the
load generator costs. A move costs what `ycsb-t` costs more if its clients are at all nodes than if they
are at one, for each key that was acquired.
"""

import argparse
import json
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Workload, engine, further options, and the most microseconds that it may take.
CELLS = [
    ("ycsb-t", "zeus", ("--ask", "1"), 3.5),
    ("bank", "zeus", ("--ask", "1"), 4.5),
    ("mget", "zeus", ("--ask", "1"), 1.2),
    ("ycsb-t", "zeus", (), None),
    ("ycsb-t", "meerkat", (), None),
]
MOVES_MIN = 150_000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quorate", type=pathlib.Path, default=ROOT / "target/release/quorate")
    parser.add_argument("--before", type=pathlib.Path, help="another build's binary")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    options = parser.parse_args()
    programs = {"now": options.quorate} | ({"before": options.before} if options.before else {})
    costs, acquired = {}, {}
    for _ in range(options.rounds):
        for cell in CELLS:
            for name, program in programs.items():
                result = run(program, cell, options.seconds)
                cost = result["cpu_us_per_commit"] - result["generator_us_per_commit"]
                costs.setdefault((cell, name), []).append(cost)
                keys = result["counters"].get("acquired", 0) / result["committed"]
                acquired.setdefault((cell, name), []).append(keys)
    for (cell, name), cost in costs.items():
        workload, engine, more, most = cell
        middle = statistics.median(cost)
        goal = "" if most is None else f", goal {most}: {'met' if middle <= most else 'MISSED'}"
        print(f"{name:<6} {workload} --engine {engine} {' '.join(more)}: {middle:.2f} us "
              f"({min(cost):.2f}-{max(cost):.2f}){goal}")
    for name in programs:
        still, moving = CELLS[0], CELLS[3]
        keys = statistics.median(acquired[moving, name])
        pairs = zip(costs[moving, name], costs[still, name])
        move = statistics.median(moved - stayed for moved, stayed in pairs) / keys
        rate = 1e6 / move
        print(f"{name:<6} a move: {move:.1f} us, {rate:,.0f} for each core and second, goal "
              f"{MOVES_MIN:,}: {'met' if rate >= MOVES_MIN else 'MISSED'}")


def run(program, cell, seconds):
    workload, engine, more, _ = cell
    command = [program, "bench", workload, "--embedded", "--engine", engine, "--nodes", "3",
               "--seconds", str(seconds), "--json", *more]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
