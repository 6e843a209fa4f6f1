#!/usr/bin/env python3
"""Measures what figures 7 to 12 of Zeus's paper show (5.8 to 5.13 of the thesis), and prints the
paper's shape and numbers beside what came out here.

    cargo build --release -p quorate --features baselines
    bench/locality/figures.py 8                          # Smallbank, all engines that there are
    bench/locality/figures.py 8 --out NAME               # also results/NAME.json and NAME.png
    bench/locality/figures.py 10 --engines fasst,meerkat --rounds 3
    bench/locality/figures.py --draw results/NAME.json   # the picture again

Each figure is one command. Its cells, an engine with a share of remote transactions each, are
measured in turn in every round, and the medians of all rounds are printed: on a machine that others
use, only what is measured side by side can be compared. The measure is the processor time of all
nodes for each committed transaction, less what the load generator costs; throughput beside it.
What the paper's machines would do is projected from it: nodes of ten threads each, none of which
disturbs another, over a network that costs nothing. That is an upper bound and no measurement.

Needs matplotlib for pictures: `pip install matplotlib`, or `apt-get install python3-matplotlib`.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Engines in the order of tables, if the program has them.
ENGINES = ["zeus", "fasst", "meerkat", "meerkat-pb", "tapir", "kuafu"]
# Percentages of write transactions whose keys were used at another node last. 0.7 and 1.2 are those
# of payments on 3 and 6 nodes.
REMOTE = [0, 0.7, 1.2, 2, 5, 10, 20, 40]
REMOTE_QUICK = [0, 1.2, 5, 20]


# Threads of each of the paper's servers that run transactions.
THREADS = 10


class Figure:
    """What is measured for one figure, and what the paper says of it."""

    def __init__(self, title, thesis, paper, cells, judge, seconds=1.0):
        self.title, self.thesis, self.paper = title, thesis, paper
        # From options to a list of (series, x, arguments of `quorate bench`).
        self.cells = cells
        # From medians to sentences.
        self.judge = judge
        self.seconds = seconds


def handovers(options):
    for engine in options.engines:
        for nodes in options.nodes:
            for share in (2.5, 5):
                for remote, name in (((), "geography"), (("--remote", "0"), "all-local")):
                    arguments = ["handovers", "--handovers", str(share), *remote]
                    series = f"{engine}, {nodes} nodes, {name}"
                    yield series, share, cell(options, engine, nodes, arguments)


def sweep(workload):
    def cells(options):
        for engine in options.engines:
            for nodes in options.nodes:
                for remote in REMOTE_QUICK if options.quick else REMOTE:
                    arguments = [workload, "--remote", str(remote)]
                    yield f"{engine}, {nodes} nodes", remote, cell(options, engine, nodes, arguments)

    return cells


def voter(moves, movers):
    def cells(options):
        for engine in options.engines:
            arguments = ["voter", "--move-at", moves]
            if movers:
                arguments += ["--movers", str(max(1, options.units // 10))]
            yield f"{engine}, 3 nodes", 0, cell(options, engine, 3, arguments)

    return cells


def cell(options, engine, nodes, arguments):
    arguments = [*arguments, "--engine", engine, "--nodes", str(nodes)]
    if engine == "meerkat":
        # In strict order it waits for the skew of clocks, which the rivals don't.
        arguments += ["--isolation", "serializable"]
        if nodes > 3:
            arguments += ["--replicas", "3"]
    return arguments


def judge_handovers(medians):
    for (series, share), median in sorted(medians.items()):
        ideal = medians.get((series.replace("geography", "all-local"), share))
        if "geography" in series and ideal:
            loss = 1 - ideal["cpu_us"] / median["cpu_us"]
            moves = moved(median)
            yield f"{series}, {share}% handovers: {loss:+.1%} of all-local's rate per core lost{moves}"


def moved(median):
    count = median["counters"].get("acquired")
    return "" if count is None else f"; {count / median['committed']:.2%} needed ownership"


def judge_sweep(paper_series):
    def judge(medians):
        rates = {key: 1 / median["cpu_us"] for key, median in medians.items()}
        xs = sorted({x for _, x in rates})
        for series in sorted({series for series, _ in rates if series.startswith("zeus")}):
            for rival in paper_series:
                other = series.replace("zeus", rival)
                both = [x for x in xs if (series, x) in rates and (other, x) in rates]
                if not both:
                    continue
                ratios = {x: rates[series, x] / rates[other, x] for x in both}
                told = ", ".join(f"{ratios[x]:.2f} at {x}%" for x in both)
                even = next((x for x in both if ratios[x] < 1), None)
                end = f"even below {even}%" if even is not None else f"ahead up to {both[-1]}%"
                yield f"{series} beside {rival}: {told}; {end}"
        if not any(series.startswith("zeus") for series, _ in rates):
            yield "this program has no zeus: only the rivals' curves were measured"

    return judge


def judge_voter(medians):
    for (series, _), median in sorted(medians.items()):
        tenths = median["committed_by_tenths"]
        whole = tenths[1:-1]
        if whole:
            usual, least = statistics.median(whole), min(whole)
            yield (
                f"{series}: {usual * 10:,.0f} votes a second, {least * 10:,.0f} in the worst tenth "
                f"of a second ({least / max(usual, 1):.0%})"
            )


def judge_latency(medians):
    for (series, _), median in sorted(medians.items()):
        latency = median["latency_us"]
        told = ", ".join(f"{name} {latency[name]:.0f}" for name in ("mean", "p50", "p99", "p999", "max"))
        yield f"{series}: µs of a vote, with its wait for ownership if it had one: {told}"


FIGURES = {
    7: Figure(
        "Handovers", "5.8",
        "4 to 9% below all-local at 2.5 and 5% handovers on 3 and 6 nodes; fewer than 0.5% of "
        "transactions need ownership; twice the nodes, twice the rate. Refuted in part: the 6.2% of "
        "handovers that are remote on 6 nodes lie between two ways to cut the grid, 4.8% (blocks) and "
        "8.1% (strips).",
        handovers, judge_handovers,
    ),
    8: Figure(
        "Smallbank", "5.9",
        "Zeus about 35% above FaSST at 0.7 and 1.2% remote writes (up to 40% elsewhere in the text), "
        "ahead below 5%; 3 and 6 nodes alike. The paper took FaSST's numbers from FaSST's paper, as "
        "constants; here it runs.",
        sweep("smallbank"), judge_sweep(["fasst", "meerkat"]),
    ),
    9: Figure(
        "TATP", "5.10",
        "Zeus up to 2 times FaSST at few remote writes, ahead below 20%. FaSST's numbers are from its "
        "paper there; here it runs.",
        sweep("tatp"), judge_sweep(["fasst", "meerkat"]),
    ),
    10: Figure(
        "Voter: all voters move to the next node at 2 and 7 s", "5.11",
        "4 million votes a second; a move of a million voters takes 4 s, that is 250,000 objects a "
        "second and server, 25,000 for each of ten threads.",
        voter("2,7", False), judge_voter, seconds=12.0,
    ),
    11: Figure(
        "Voter: the fans of one contestant move at 2, 6 and 10 s", "5.12",
        "700,000 votes a second for the popular contestant beside 5.3 million for others, which the "
        "moves of 100,000 voters in 4 s each don't disturb; 25,000 objects a second by one thread.",
        voter("2,6,10", True), judge_voter, seconds=14.0,
    ),
    12: Figure(
        "Voter: how long ownership takes", "5.13",
        "17 µs on average and 36 µs in the tail when all move, 29 and 83 µs when one contestant's fans "
        "move under load; which percentile, the text has lost (99.9 fits). Here: the latency of the "
        "votes of both experiments, which an engine without ownership has, too.",
        lambda options: [
            (f"{series}, {name}", x, arguments)
            for name, cells in (("all", voter("2,7", False)), ("popular", voter("2,6,10", True)))
            for series, x, arguments in cells(options)
        ],
        judge_latency, seconds=12.0,
    ),
}


def engines_of(binary):
    """What the program can run, from its own list."""
    said = subprocess.run(
        [binary, "bench", "smallbank", "--embedded", "--engine", "?"],
        capture_output=True, text=True, check=False,
    ).stderr
    found = re.search(r"\[possible values: ([^\]]*)\]", said)
    if not found:
        sys.exit(f"{binary} says no engines: {said.strip()}")
    return found.group(1).split(", ")


def measure(options, seconds, arguments):
    command = [
        str(options.quorate), "bench", *arguments, "--embedded", "--json",
        "--keys", str(options.units), "--clients", str(options.clients),
        "--lanes", str(options.lanes), "--seconds", str(seconds), "--seed", str(options.seed),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr.strip()}")
    result = json.loads(done.stdout)
    result["cpu_us"] = result["cpu_us_per_commit"] - result["generator_us_per_commit"]
    return result


def run(figure, options):
    """Every sample of every cell, interleaved."""
    cells = list(figure.cells(options))
    seconds = options.seconds or figure.seconds
    samples = [{"series": series, "x": x, "arguments": arguments, "results": []}
               for series, x, arguments in cells]
    total = options.rounds * len(cells)
    for round_number in range(options.rounds):
        # The order rotates, so that no cell always follows the same one.
        for place in range(len(cells)):
            sample = samples[(place + round_number) % len(cells)]
            progress(round_number * len(cells) + place, total, sample)
            sample["results"].append(measure(options, seconds, sample["arguments"]))
    progress(total, total, None)
    return samples


def progress(done, total, sample):
    if not sys.stderr.isatty():
        return
    width = 30
    filled = done * width // max(total, 1)
    what = f"{sample['series']}, {sample['x']}%" if sample else ""
    sys.stderr.write(f"\r[{'#' * filled}{' ' * (width - filled)}] {done}/{total} {what:<50}")
    sys.stderr.write("\n" if sample is None else "")
    sys.stderr.flush()


def medians_of(samples):
    medians = {}
    for sample in samples:
        results = sorted(sample["results"], key=lambda result: result["cpu_us"])
        middle = dict(results[(len(results) - 1) // 2])
        middle["range"] = (results[0]["cpu_us"], results[-1]["cpu_us"])
        medians[sample["series"], sample["x"]] = middle
    return medians


def table(medians):
    lines = [
        "| engine | x, % | CPU µs | range | k/s | projected, M/s | remote, % | aborted, % | audit |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for (series, x), median in medians.items():
        low, high = median["range"]
        local = median["local"]
        lines.append(
            f"| {series} | {x} | {median['cpu_us']:.2f} | {low:.2f}-{high:.2f} "
            f"| {median['committed_per_second'] / 1000:.0f} | {projected(series, median):.1f} "
            f"| {local['remote_share'] * 100:.2f} "
            f"| {median['aborted_share'] * 100:.2f} | {'holds' if local['audit']['holds'] else 'FAILS'} |"
        )
    return lines


def projected(series, median):
    """Million transactions a second of the paper's machines, if nothing but processors bounds them."""
    nodes = int(re.search(r"(\d+) nodes", series).group(1))
    return nodes * THREADS / median["cpu_us"]


def draw(number, samples, path):
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        sys.exit("a picture needs matplotlib: pip install matplotlib (or apt-get install python3-matplotlib)")
    figure, medians = FIGURES[number], medians_of(samples)
    picture, axes = plt.subplots(figsize=(7, 4.6))
    for series in dict.fromkeys(series for series, _ in medians):
        points = sorted((x, median) for (other, x), median in medians.items() if other == series)
        tenths = [median["committed_by_tenths"] for _, median in points if "committed_by_tenths" in median]
        if number == 12:
            latency = points[0][1]["latency_us"]
            names = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
            axes.plot([latency[name] for name in names], list(names.values()), "o-", label=series)
        elif tenths:
            axes.plot([tenth / 10 for tenth in range(len(tenths[0]))],
                      [count * 10 / 1000 for count in tenths[0]], label=series)
        else:
            axes.plot([x for x, _ in points], [1000 / median["cpu_us"] for _, median in points],
                      "o-", markersize=4, label=series)
    labels = {
        7: ("handovers, % of requests", "thousand transactions per core and second"),
        8: ("remote write transactions, %", "thousand transactions per core and second"),
        9: ("remote write transactions, %", "thousand transactions per core and second"),
        12: ("µs of a vote", "share of votes"),
    }
    x_label, y_label = labels.get(number, ("seconds", "thousand votes per second"))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if number in (8, 9):
        axes.set_xscale("symlog", linthresh=1)
        xs = sorted({x for _, x in medians})
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
    if number == 12:
        axes.set_xscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(f"{figure.title} (Zeus, figure {number})")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=7)
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    print(path)


def report(number, samples):
    figure, medians = FIGURES[number], medians_of(samples)
    print(f"{figure.title}: figure {number} of the paper, {figure.thesis} of the thesis")
    print(f"the paper: {figure.paper}")
    print("\n".join(table(medians)))
    for sentence in figure.judge(medians):
        print(f"here: {sentence}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("figure", type=int, nargs="?", choices=sorted(FIGURES))
    parser.add_argument("--quorate", type=pathlib.Path, default=ROOT / "target/release/quorate")
    parser.add_argument("--engines", help="separated by commas; without it, those of the papers that there are")
    parser.add_argument("--nodes", default="3,6", help="of figures 7 to 9 [default: 3,6]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="of each run")
    parser.add_argument("--units", type=int, default=100_000, help="accounts, subscribers, voters or phones")
    parser.add_argument("--clients", type=int, default=64, help="of each lane")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="fewer shares of remote transactions")
    parser.add_argument("--out", help="writes results/NAME.json and results/NAME.png")
    parser.add_argument("--draw", type=pathlib.Path, help="draws a result again, and measures nothing")
    options = parser.parse_args()
    if options.draw:
        data = json.loads(options.draw.read_text(encoding="utf-8"))
        report(data["figure"], data["samples"])
        return draw(data["figure"], data["samples"], options.draw.with_suffix(".png"))
    if options.figure is None:
        parser.error("say which figure, 7 to 12")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if not options.quorate.exists():
        sys.exit(f"{options.quorate} is not there: cargo build --release -p quorate --features baselines")
    known = engines_of(options.quorate)
    wanted = options.engines.split(",") if options.engines else [e for e in ENGINES[:3] if e in known]
    unknown = [engine for engine in wanted if engine not in known]
    if unknown:
        parser.error(f"no engine {', '.join(unknown)} in {options.quorate}; it has {', '.join(known)}")
    options.engines = wanted
    options.nodes = [int(nodes) for nodes in options.nodes.split(",")]
    samples = run(FIGURES[options.figure], options)
    report(options.figure, samples)
    if options.out:
        results = HERE / "results"
        results.mkdir(exist_ok=True)
        path = results / f"{options.out}.json"
        setting = {name: getattr(options, name) for name in ("rounds", "units", "clients", "lanes", "seed")}
        data = {"figure": options.figure, "setting": setting, "samples": samples}
        path.write_text(json.dumps(data, indent=1), encoding="utf-8")
        print(path)
        draw(options.figure, samples, path.with_suffix(".png"))
    return None


if __name__ == "__main__":
    main()
