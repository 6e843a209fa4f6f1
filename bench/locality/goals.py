#!/usr/bin/env python3
"""Measures what a transaction of zeus costs all nodes together, and what a move of a key costs, beside
the goals for them.

    cargo build --release -p quorate
    bench/locality/goals.py                        # five rounds
    bench/locality/goals.py --before BINARY        # another build's binary in turn with it

Three or six nodes in one process, without sockets. Cells are measured in turn in every round, and the
medians of all rounds are printed: processor time of all nodes for each committed transaction, less what
the load generator costs. A move costs what `ycsb-t` costs more if its clients are at all nodes than if
they are at one, for each key that was acquired. On three nodes every node has every key. On six, half of
the moves bring the value, of 64 bytes, to a node that is not of the key's group, and what such an owner
sends to three followers instead of two counts as part of the move.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Workload, engine, nodes, further options, and the most microseconds that it may take.
CELLS = [
    ("ycsb-t", "zeus", 3, ("--ask", "1"), 3.5),
    ("bank", "zeus", 3, ("--ask", "1"), 4.5),
    ("mget", "zeus", 3, ("--ask", "1"), 1.2),
    ("ycsb-t", "zeus", 3, (), None),
    ("ycsb-t", "meerkat", 3, (), None),
    ("ycsb-t", "zeus", 6, ("--ask", "1"), None),
    ("ycsb-t", "zeus", 6, (), None),
]
# A cell without moves, one with moves, and the least moves for each core and second.
MOVES = [(CELLS[0], CELLS[3], 150_000), (CELLS[5], CELLS[6], 80_000)]


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
        workload, engine, nodes, more, most = cell
        middle = statistics.median(cost)
        goal = "" if most is None else f", goal {most}: {'met' if middle <= most else 'MISSED'}"
        print(f"{name:<6} {workload} --engine {engine} --nodes {nodes} {' '.join(more)}: {middle:.2f} us "
              f"({min(cost):.2f}-{max(cost):.2f}){goal}")
    for name, (still, moving, least) in itertools.product(programs, MOVES):
        keys = statistics.median(acquired[moving, name])
        pairs = zip(costs[moving, name], costs[still, name])
        move = statistics.median(moved - stayed for moved, stayed in pairs) / keys
        rate = 1e6 / move
        print(f"{name:<6} a move, {moving[2]} nodes: {move:.1f} us, {rate:,.0f} for each core and second, "
              f"goal {least:,}: {'met' if rate >= least else 'MISSED'}")


def run(program, cell, seconds):
    workload, engine, nodes, more, _ = cell
    command = [program, "bench", workload, "--embedded", "--engine", engine, "--nodes", str(nodes),
               "--seconds", str(seconds), "--json", *more]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
