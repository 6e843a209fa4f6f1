#!/usr/bin/env python3
"""Draws how long clients wait after a fault, from the JSON of `quorate-rig failover --json FILE`.

    quorate-rig failover --json bench/failover/results/NAME.json
    bench/failover/plot.py bench/failover/results/NAME.json --out docs/src/figures/failover.png

Needs matplotlib: `pip install matplotlib`, or `apt-get install python3-matplotlib`.
"""

import argparse
import json
import pathlib
import sys

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("plot.py needs matplotlib: pip install matplotlib (or apt-get install python3-matplotlib)")

FAULTS = {"SIGKILL": "tab:blue", "cut off": "tab:orange", "SIGSTOP": "tab:green"}
# The goal for the median.
GOAL_MS = 250


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    data = json.loads(options.result.read_text(encoding="utf-8"))
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for panel, what in zip(panels, ("write", "read")):
        draw(panel, data, what)
    panels[0].set_ylabel("ms after the fault")
    panels[1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(options.out, dpi=110)


def draw(panel, data, what):
    for place, system in enumerate(data["systems"]):
        for shift, (fault, colour) in zip((-0.22, 0, 0.22), FAULTS.items()):
            times = sorted(shot[f"{what}_ms"] for shot in data["shots"]
                           if shot["system"] == system and shot["fault"] == fault)
            if not times:
                continue
            x = place + shift
            panel.plot([x] * len(times), times, ".", color=colour, alpha=0.35, markersize=5)
            panel.plot([x - 0.08, x + 0.08], [times[len(times) // 2]] * 2, "-", color=colour,
                       linewidth=2.5, label=fault if place == 0 else None)
    panel.axhline(GOAL_MS, color="grey", linewidth=0.8, linestyle="--")
    panel.set_yscale("log")
    panel.set_xticks(range(len(data["systems"])), data["systems"], fontsize=8, rotation=15)
    panel.set_title(f"first acknowledged {what}; bar: median")


main()
