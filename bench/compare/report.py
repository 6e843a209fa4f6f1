"""From measured cells to medians, goals and a table."""

import statistics

# Noise of a median that is not held against "lose nothing".
NOISE = 0.05


def brief(cell):
    text = (f"{cell['throughput'] / 1000:.1f} k/s, p50 {cell['p50_us']:.0f} us, "
            f"p99 {cell['p99_us']:.0f} us, {cell['cpu_us_per_op']:.2f} us of CPU per op")
    for kind in ("failed", "weak", "missed"):
        if cell[kind]:
            text += f", {cell[kind]} {kind} {cell['first_failure']}"
    return text


def values(result, workload, system, field):
    """One figure of each round, in the order of rounds."""
    return [cell[field] for cell in result["cells"]
            if cell["workload"] == workload and cell["system"] == system]


def ratio(result, field, ours, theirs):
    """The median over the rounds of ours divided by theirs in the same round."""
    pairs = list(zip(values(result, *ours, field), values(result, *theirs, field)))
    return statistics.median(a / b for a, b in pairs) if pairs else None


def goals(result):
    """Every goal that the measured systems allow to judge."""
    found = []

    def goal(text, figure, met, unit="x"):
        if figure is not None:
            found.append({"goal": text, "figure": round(figure, 3), "unit": unit,
                          "met": bool(met(figure))})

    def against(text, field, workload, rival, met):
        goal(text, ratio(result, field, (workload, "quorate"), (workload, rival)), met)

    for workload, most, words in (("get-c50", 1.0, "GET, 50 connections"),
                                  ("get-c50-p16", 0.7, "GET, 50 connections, pipeline 16")):
        against(f"{words}: throughput at least Redis's", "throughput", workload, "redis",
                lambda x: x >= 1.0)
        against(f"{words}: CPU per op at most {most} times Redis's", "cpu_us_per_op", workload,
                "redis", lambda x, most=most: x <= most)
    against("SET, 50 connections: at least 1.5 times Redis with WAIT 2", "throughput", "set-c50",
            "redis-wait2", lambda x: x >= 1.5)
    against("SET, 50 connections: at least 0.7 times unreplicated Redis", "throughput", "set-c50",
            "redis", lambda x: x >= 0.7)
    against("SET, 50 connections: at least 5 times etcd", "throughput", "set-c50", "etcd",
            lambda x: x >= 5.0)
    against("SET, 1 connection: p50 no higher than WAIT 2", "p50_us", "set-c1", "redis-wait2",
            lambda x: x <= 1.0)
    for rival, least, words in (("redis", 0.5, "unreplicated Redis"),
                                ("redis-wait2", 1.0, "Redis with WAIT 2"), ("etcd", 5.0, "etcd")):
        goal(f"MULTI GET SET EXEC on meerkat, 50 connections: at least {least} times {words}",
             ratio(result, "throughput", ("txn-c50", "quorate-meerkat"), ("txn-c50", rival)),
             lambda x, least=least: x >= least)
    for workload, words in (("txn-c50", "MULTI GET SET EXEC"), ("set-c50", "SET")):
        goal(f"{words} on zeus, 50 connections: at least 1.4 times Redis with WAIT 2",
             ratio(result, "throughput", (workload, "quorate-zeus"), (workload, "redis-wait2")),
             lambda x: x >= 1.4)
    costs = values(result, "txn-c50", "quorate-zeus", "cpu_us_per_op")
    goal("MULTI GET SET EXEC on zeus, 50 connections: at most 12 us of CPU",
         statistics.median(costs) if costs else None, lambda x: x <= 12.0, " us")
    for ours, rival, least, words in (
            ("quorate-async", "quorate", 0.9, "`async`, 50 connections: at least 0.9 times `memory`"),
            ("quorate-async", "redis-everysec-wait2", 1.3, "`async`, 50 connections: at least 1.3 times "
             "Redis with appendfsync everysec and WAIT 2"),
            ("quorate-sync", "redis-always", 0.7, "`sync`, 50 connections: at least 0.7 times one Redis "
             "with appendfsync always"),
            ("quorate-sync", "etcd-disk", 5.0, "`sync`, 50 connections: at least 5 times etcd")):
        goal(f"SET on {words}", ratio(result, "throughput", ("set-c50", ours), ("set-c50", rival)),
             lambda x, least=least: x >= least)
    goal("SET on `async`, 1 connection: p50 within 5% of `memory`",
         ratio(result, "p50_us", ("set-c1", "quorate-async"), ("set-c1", "quorate")),
         lambda x: x <= 1.05)
    per_cpu = ratio(result, "cpu_us_per_op", ("get-c50", "quorate"),
                    ("get-3-generators", "quorate"))
    goal(f"GET on three nodes: ops per CPU second against one node (at least 1, {NOISE:.0%} "
         "noise)", per_cpu, lambda x: x >= 1.0 - NOISE)
    memory = result["memory"]
    if "quorate" in memory and "redis" in memory:
        ours = statistics.mean(memory["quorate"]["resident_per_key"])
        theirs = memory["redis"]["resident_per_key"][0]
        goal("Memory per key and node at most 1.3 times Redis's", ours / theirs,
             lambda x: x <= 1.3)
    if "quorate" in result["idle"]:
        goal("Idle cluster under 0.8% of a core", result["idle"]["quorate"], lambda x: x < 0.8, "%")
    return found


def spread(numbers, scale=1.0, digits=1):
    low, middle, high = min(numbers), statistics.median(numbers), max(numbers)
    text = f"{middle / scale:.{digits}f}"
    if len(numbers) > 1:
        text += f" ({low / scale:.{digits}f}-{high / scale:.{digits}f})"
    return text


def markdown(result):
    machine = result["machine"]
    lines = [
        f"{machine['date']}, commit {machine['commit']}: {machine['cores']} cores, "
        f"{machine['cpu']}, {machine['memory_gb']} GB, Linux {machine['kernel']}, load average "
        f"{machine['load_average']:.1f}.",
        f"{result['rounds']} interleaved round(s) of {result['seconds']} s a cell; medians (and "
        f"ranges); {result['keys']} keys, {result['value_bytes']}-byte values, uniform.",
        f"Command: `{result['command'].strip()}`", "",
    ]
    lines += [f"- **{name}**: {text} ({machine['versions'][name]})"
              for name, text in result["systems"].items()]
    lines += [f"- {sentence}" for sentence in result["absent"]]
    lines += ["", "| workload | system | k ops/s | p50 us | p99 us | server CPU us/op | wrong |",
              "| --- | --- | ---: | ---: | ---: | ---: | --- |"]
    seen = []
    for cell in result["cells"]:
        key = (cell["workload"], cell["system"])
        if key not in seen:
            seen.append(key)
    for workload, system in sorted(seen, key=lambda key: [k[0] for k in seen].index(key[0])):
        def of(field, workload=workload, system=system):
            return values(result, workload, system, field)
        wrong = ", ".join(f"{sum(of(kind))} {kind}" for kind in ("failed", "weak", "missed")
                          if sum(of(kind)))
        lines.append(f"| {workload} | {system} | {spread(of('throughput'), 1000)} | "
                     f"{spread(of('p50_us'), 1, 0)} | {spread(of('p99_us'), 1, 0)} | "
                     f"{spread(of('cpu_us_per_op'), 1, 2)} | {wrong or '-'} |")
    lines += ["", "| system | resident bytes per key, each process | its own figure | idle, % of "
              "a core |", "| --- | --- | --- | ---: |"]
    for name, memory in result["memory"].items():
        lines.append(f"| {name} | {', '.join(map(str, memory['resident_per_key']))} | "
                     f"{', '.join(map(str, memory['used_memory_per_key'])) or '-'} | "
                     f"{result['idle'][name]} |")
    if result["goals"]:
        lines += ["", "| goal | measured | |", "| --- | ---: | --- |"]
        lines += [f"| {g['goal']} | {g['figure']} {g['unit']} | {'met' if g['met'] else 'MISSED'} |"
                  for g in result["goals"]]
    return "\n".join(lines)
