#!/usr/bin/env python3
"""Counts the instructions that it takes to move a key with `zeus`, and to read what is here.

    bench/perf/moves.py [--program move_costs] [--top N]

Runs `move_costs`, an example of `quorate-runtime` with three nodes in one thread and no clients, under
valgrind's callgrind: transactions that stay where their key is, such that bring it to another node,
and reads of three keys. Prints instructions for each on all nodes together, what a move adds, and with
`--top` the functions that take most. Counts differ by less than a tenth of a percent from run to run,
whatever else the machine does; they are no times, which `move_costs` without a word prints.

Needs valgrind and Rust. `--program` counts a program that is built already.
"""

import argparse
import pathlib
import re
import subprocess
import tempfile
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("stay", "move", "mget")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, help="move_costs, built in release mode")
    parser.add_argument("--top", type=int, default=0, help="list so many functions of each kind")
    options = parser.parse_args()
    program = options.program or build()
    costs = {kind: count(program, kind) for kind in KINDS}
    totals = {kind: sum(cost.values()) for kind, cost in costs.items()}
    for kind, cost in costs.items():
        print(f"{kind:<6} {totals[kind]:>8,.0f}")
        for function, part in cost.most_common(options.top):
            print(f"{part:>15,.0f} {function}")
    print(f"a move {totals['move'] - totals['stay']:>8,.0f}")


def build():
    command = ["cargo", "build", "--release", "-p", "quorate-runtime", "--example", "move_costs"]
    subprocess.run(command, cwd=ROOT, check=True)
    return ROOT / "target/release/examples/move_costs"


def count(program, kind):
    """Instructions for each transaction, by function."""
    with tempfile.TemporaryDirectory() as work:
        out = pathlib.Path(work) / "out"
        valgrind = ["valgrind", "--tool=callgrind", "--toggle-collect=*move_costs*measured*",
                    "--collect-atstart=no", f"--callgrind-out-file={out}", "--quiet"]
        run = subprocess.run([*valgrind, program, kind], check=True, text=True,
                             stdout=subprocess.PIPE)
        ops = int(re.match(r"(\d+) ops", run.stdout).group(1))
        return Counter({name: cost / ops for name, cost in functions(out).items()})


def functions(path):
    """Sums a callgrind profile by function, each without those that it calls."""
    names, costs, function, is_call = {}, Counter(), "?", False
    for line in path.read_text().splitlines():
        if named := re.match(r"(c?)fn=(\(\d+\))(?: (.*))?", line):
            # A name stands where its number occurs first, which may be at a call.
            is_callee, number, name = named.groups()
            names.setdefault(number, name)
            function = function if is_callee else names[number]
        elif line.startswith("calls="):
            # What follows is the cost of the function that is called, which has lines of its own.
            is_call = True
        elif re.match(r"[\d+*-]", line):
            if not is_call:
                costs[function] += int(line.split()[1])
            is_call = False
    return costs


if __name__ == "__main__":
    main()
