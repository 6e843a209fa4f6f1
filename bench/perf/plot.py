#!/usr/bin/env python3
"""Draws figures 4 to 7 of Meerkat's paper from the JSON of `quorate-projection --json FILE`.

    cargo run --release -p quorate-projection -- --json bench/perf/results/NAME.json
    bench/perf/plot.py bench/perf/results/NAME.json --out docs/src/figures

Needs matplotlib: `pip install matplotlib`, or `apt-get install python3-matplotlib`.
"""

import argparse
import json
import pathlib
import sys
import textwrap

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("plot.py needs matplotlib: pip install matplotlib (or apt-get install python3-matplotlib)")

STYLES = {
    "meerkat": ("Meerkat", "o-", "tab:blue"),
    "meerkat-pb": ("Meerkat-PB", "s-", "tab:orange"),
    "tapir": ("TAPIR-style", "^-", "tab:green"),
    "kuafu": ("KuaFu++", "v-", "tab:red"),
}
LANES = "lanes per replica"
ZIPF = "Zipf coefficient"
GOODPUT = "committed transactions, million/s"
ABORTS = "aborted attempts, %"


# Characters of the caption on an inch of a picture's width.
CAPTION_PER_INCH = 17


def caption(data, width):
    """What is measured and what is modelled, in lines that fit a picture of so many inches."""
    network = data["modelled"]["network"]
    contention = {
        "measured": "contention as measured with two cores",
        "figure1": "contention scaled to the counter of the paper's figure 1",
    }[data["extrapolation"]]
    parts = [
        "Projection. Measured: handler costs; a counter, lock, record and log under two cores.",
        f"Modelled: network {network['name']} ({network['delay'] / 1000:g} µs one way, "
        f"{network['message']:g} ns a message), {data['modelled']['replicas']} replicas, {contention}.",
    ]
    lines = [textwrap.wrap(part, int(width * CAPTION_PER_INCH)) for part in parts]
    return "\n".join(line for part in lines for line in part)


def draw(axes, curves, x, y, scale):
    for curve in curves:
        label, marks, colour = STYLES[curve["system"]]
        points = curve["points"]
        axes.plot(
            [point[x] for point in points],
            [point[y] * scale for point in points],
            marks,
            color=colour,
            label=label,
            markersize=4,
        )
    axes.grid(True, alpha=0.3)
    axes.set_ylim(bottom=0)


def figure(data, panels, path):
    """One picture with a panel for each (title, curves, x, label of x, y, label of y, scale)."""
    width = 5.6 * len(panels)
    picture, axes = plt.subplots(1, len(panels), figsize=(width, 4.8), squeeze=False)
    for at, (title, curves, x, x_label, y, y_label, scale) in zip(axes[0], panels):
        draw(at, curves, x, y, scale)
        at.set_title(title)
        at.set_xlabel(x_label)
        at.set_ylabel(y_label)
    # Beside the curves and never on top of one.
    curves = axes[0][0].get_legend_handles_labels()
    picture.legend(*curves, loc="upper center", ncols=len(STYLES), fontsize=8)
    picture.text(0.5, 0.01, caption(data, width), ha="center", va="bottom", fontsize=7)
    picture.tight_layout(rect=(0, 0.09, 1, 0.93))
    picture.savefig(path, dpi=120)
    plt.close(picture)
    print(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=pathlib.Path, help="from quorate-projection --json")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs/src/figures"))
    parser.add_argument("--name", default="", help="put before the names of the pictures")
    arguments = parser.parse_args()
    data = json.loads(arguments.json.read_text())
    figures = data["figures"]
    lanes = data["figures"]["fig6a_7a"][0]["points"][0]["lanes"]
    arguments.out.mkdir(parents=True, exist_ok=True)

    def path(name):
        return arguments.out / f"{arguments.name}{name}.png"

    uniform = ("lanes", LANES, "goodput", GOODPUT, 1e-6)
    figure(data, [("Figure 4: YCSB-T, even keys", figures["fig4"], *uniform)], path("fig4"))
    figure(data, [("Figure 5: Retwis, even keys", figures["fig5"], *uniform)], path("fig5"))
    both = [("a", "YCSB-T", figures["fig6a_7a"]), ("b", "Retwis", figures["fig6b_7b"])]
    for number, y in (6, ("goodput", GOODPUT, 1e-6)), (7, ("abort_rate", ABORTS, 100)):
        panels = [
            (f"Figure {number}{part}: {name}, {lanes} lanes", curves, "zipf", ZIPF, *y)
            for part, name, curves in both
        ]
        figure(data, panels, path(f"fig{number}"))


if __name__ == "__main__":
    main()
