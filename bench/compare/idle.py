#!/usr/bin/env python3
"""Measures what an idle cluster takes: three `quorate serve` processes that nobody asks anything.

Binaries (such as those of two commits) are measured one after the other in each round, as the
machine's pace changes between rounds. Printed are the time of all processes on a processor, as a
share of one core, and how often their threads went to sleep, medians and ranges over the rounds.
Every wake-up finds the processor asleep only if nothing else runs. Needs only the standard library
and Rust. All traffic stays on 127.0.0.1.
"""

import argparse
import pathlib
import signal
import statistics
import sys
import tempfile
import time

import systems

HERE = pathlib.Path(__file__).resolve().parent
RELEASE = HERE.parent.parent / "target" / "release" / "quorate"
# Until connections stand and what a start leaves to do is done.
SETTLE_SECONDS = 2


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    samples = {binary: [] for binary in options.binaries}
    with tempfile.TemporaryDirectory(prefix="quorate-idle-") as work:
        for number in range(options.rounds):
            for binary in options.binaries:
                places = systems.Places(pathlib.Path(work), options.port_base,
                                        {"quorate": binary})
                samples[binary].append(measure(options, systems.BY_NAME[options.system](places)))
                print(f"round {number + 1}: {binary}: {brief(samples[binary][-1:])}",
                      file=sys.stderr)
    for binary, taken in samples.items():
        print(f"{binary}: {brief(taken)}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", nargs="*", type=lambda name: pathlib.Path(name).resolve(),
                        help="built binaries (default target/release/quorate)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each sample (default 60)")
    parser.add_argument("--system", default="quorate", help="or quorate-meerkat")
    parser.add_argument("--port-base", type=int, default=17000,
                        help="first of 9 ports on 127.0.0.1 (default 17000)")
    options = parser.parse_args()
    options.binaries = options.binaries or [RELEASE]
    return options


def measure(options, system):
    """Percent of one core and sleeps a second, of the whole system."""
    try:
        system.start()
        time.sleep(SETTLE_SECONDS)
        before = system.cpu_seconds(), system.sleeps()
        time.sleep(options.seconds)
        after = system.cpu_seconds(), system.sleeps()
    finally:
        system.stop()
    cpu, sleeps = ((now - then) / options.seconds for then, now in zip(before, after))
    return cpu * 100, sleeps


def brief(taken):
    """Medians, with ranges if there is more than one sample."""
    def figure(values, digits):
        text = f"{statistics.median(values):.{digits}f}"
        if len(values) > 1:
            text += f" ({min(values):.{digits}f}-{max(values):.{digits}f})"
        return text
    cpu, sleeps = zip(*taken)
    return f"{figure(cpu, 2)}% of a core, {figure(sleeps, 0)} sleeps a second"


if __name__ == "__main__":
    main()
