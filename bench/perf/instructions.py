#!/usr/bin/env python3
"""Counts the instructions that a SET, a GET and an EXEC take, and a SET as a session's call.

    bench/perf/instructions.py [--program call_costs] [--sessions N] [--json FILE]

Runs `call_costs` under valgrind's callgrind, once for each engine and kind of op: `set`, `get`, `exec`
(MULTI, SET, GET, EXEC), `auto` (a SET as a call behind SESSION AUTO), `call` (one that says its
number). That example of `quorate-runtime` has three nodes (the engine `local` one) and fifty clients
in one thread; counted is what the nodes do, from the bytes of a command
to those of its answer. Prints instructions for each op on all nodes together, place by place
and summed up, and what a call adds. Counts differ by less than a tenth of a percent from run to run,
whatever else the machine does; they are no times.

Needs valgrind and Rust. `--program` counts a program that is built already; with `--sessions`, so
many other sessions with one record each are there.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("set", "get", "exec", "auto", "call")
ENGINES = ("hermes", "meerkat", "zeus", "local")
CLIENTS = "(clients)"
# What the places are parts of; what is named here by its crate alone is the rest of that.
PARTS = {
    "trackers": ("rifl", "hermes::calls", "meerkat::calls", "zeus::calls", "local::calls"),
    "engine": ("hermes", "meerkat", "zeus", "local", "engine", "machine", "wire", "storage", "types"),
    "commands": ("commands",),
    "lane": ("node", "node::sessions"),
    "front end": ("resp", "rifl::numbering"),
    "libraries and allocator": ("(libraries)", "(allocator)"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, help="call_costs, built in release mode")
    parser.add_argument("--sessions", type=int, default=0, help="other sessions (default none)")
    parser.add_argument("--json", type=pathlib.Path, help="also write what is printed to this file")
    options = parser.parse_args()
    program = options.program or build()
    cells = lambda engine: {kind: count(program, engine, kind, options.sessions) for kind in KINDS}
    result = {engine: cells(engine) for engine in ENGINES}
    for engine, kinds in result.items():
        print(table(engine, kinds))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def build():
    command = ["cargo", "build", "--release", "-p", "quorate-runtime", "--example", "call_costs"]
    subprocess.run(command, cwd=ROOT, check=True)
    return ROOT / "target/release/examples/call_costs"


def count(program, engine, kind, sessions):
    """Instructions for each op, by place: the crate, or the module of one that sessions concern."""
    with tempfile.TemporaryDirectory() as work:
        out = pathlib.Path(work) / "out"
        valgrind = ["valgrind", "--tool=callgrind", "--toggle-collect=*call_costs*measured*",
                    "--collect-atstart=no", f"--callgrind-out-file={out}", "--quiet"]
        command = [*valgrind, program, engine, kind, "--sessions", str(sessions)]
        run = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
        ops = int(re.match(r"(\d+) ops", run.stdout).group(1))
        return {place: costs / ops for place, costs in places(out).items() if place != CLIENTS}


def places(path):
    """Sums a callgrind profile by place. What a library's code costs that is inlined into a function
    of ours is that function's; what of ours is inlined elsewhere stays its file's."""
    names, costs, here, function, is_call = {}, Counter(), "?", "?", False
    for line in path.read_text().splitlines():
        if file := re.match(r"(fl|fi|fe|cfi|cfl)=(\(\d+\))(?: (.*))?", line):
            # A name stands where its number occurs first, which may be at a call.
            kind, number, name = file.groups()
            names.setdefault(number, name)
            place = place_of(names[number])
            if kind == "fl":
                function = here = place
            elif not kind.startswith("c"):
                here = function if place.startswith("(") else place
        elif line.startswith("calls="):
            # What follows is the cost of the function that is called, which has lines of its own.
            is_call = True
        elif re.match(r"[\d+*-]", line):
            if not is_call:
                costs[here] += int(line.split()[1])
            is_call = False
    return costs


def place_of(name):
    """The crate, or the module in a crate or module that sessions concern; libraries in brackets."""
    own = re.search(r"crates/[a-z]+/([a-z]+)/(src|examples)/(?:.*/)?([a-z_]+)\.rs$", name)
    if not own:
        is_allocator = "mimalloc" in name or "malloc" in name
        return "(allocator)" if is_allocator else "(libraries)"
    crate, folder, module = own.groups()
    if folder == "examples":
        return CLIENTS
    is_fine = crate in ("resp", "rifl") or module in ("calls", "sessions")
    return f"{crate}::{module}" if is_fine else crate


def table(engine, kinds):
    rows = sorted({place for cell in kinds.values() for place in cell},
                  key=lambda place: (-abs(kinds["auto"].get(place, 0) - kinds["set"].get(place, 0)),
                                     place))
    lines = [f"{engine:<24}" + "".join(f"{kind:>8}" for kind in KINDS) + f"{'auto-set':>10}"]
    total = {kind: sum(cell.values()) for kind, cell in kinds.items()}
    line = lambda name, cell: (f"{name:<24}" + "".join(f"{cell[kind]:>8.0f}" for kind in KINDS)
                               + f"{cell['auto'] - cell['set']:>+10.0f}")
    lines.append(line("all", total))
    for place in rows:
        cell = {kind: kinds[kind].get(place, 0) for kind in KINDS}
        if max(cell.values()) >= 1:
            lines.append(line(place, cell))
    lines.append("")
    for part, members in PARTS.items():
        cell = {kind: sum(cost for place, cost in kinds[kind].items() if part_of(place) == part)
                for kind in KINDS}
        lines.append(line(part, cell))
    share = total["auto"] / total["set"] - 1
    lines.append(f"a call behind SESSION AUTO: {share:+.1%}; one that says its number: "
                 f"{total['call'] / total['set'] - 1:+.1%}\n")
    return "\n".join(lines)


def part_of(place):
    """The part that names the place, or else its crate."""
    for name in (place, place.partition("::")[0]):
        for part, members in PARTS.items():
            if name in members:
                return part
    return "engine"


if __name__ == "__main__":
    sys.exit(main())
