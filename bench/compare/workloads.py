"""What is measured on each system, and how one cell is measured."""

import csv
import dataclasses
import json
import subprocess
import time

IDLE_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class Workload:
    """One row of the table."""

    name: str
    # "get", "set" or "txn" (a read and a write of one key at once), in the system's own terms.
    kind: str
    connections: int
    pipeline: int = 1
    # How many load generators, each on a node of its own.
    generators: int = 1
    # Whether one generator deals its connections out over all nodes.
    spread: bool = False
    # redis-benchmark instead of our load generator.
    second_opinion: bool = False
    # The words of a command, for the kinds "update" and "read"; {key} and {value} stand for both.
    command: tuple = ()
    # The words of a command that prepares each key.
    before: tuple = ()


WORKLOADS = [
    Workload("get-c50", "get", 50),
    Workload("get-c50-p16", "get", 50, pipeline=16),
    Workload("get-c1", "get", 1),
    Workload("set-c50", "set", 50),
    Workload("set-c50-p16", "set", 50, pipeline=16),
    Workload("set-c1", "set", 1),
    Workload("set-c50-spread", "set", 50, spread=True),
    Workload("txn-c50", "txn", 50),
    Workload("txn-c50-spread", "txn", 50, spread=True),
    Workload("txn-c1", "txn", 1),
    Workload("get-3-generators", "get", 50, generators=3),
    Workload("rb-get-c50", "get", 50, second_opinion=True),
    Workload("rb-get-c50-p16", "get", 50, pipeline=16, second_opinion=True),
    Workload("rb-set-c50", "set", 50, second_opinion=True),
]

ADD_TWICE = "redis.call('INCRBY', KEYS[1], ARGV[1]) return redis.call('EXPIRE', KEYS[1], 1000)"
# Left out unless they are asked for. Collections are small: one or a few elements for each key, a hundred
# for the ranges.
TYPES = [
    Workload("hset", "update", 50, command=("HSET", "h:{key}", "field", "{value}")),
    Workload("hget", "read", 50, command=("HGET", "h:{key}", "field")),
    Workload("lpush", "update", 50, command=("LPUSH", "l:{key}", "{value}")),
    Workload("lpop", "update", 50, command=("LPOP", "l:{key}")),
    Workload("sadd", "update", 50, command=("SADD", "s:{key}", "{key}")),
    Workload("zadd", "update", 50, command=("ZADD", "z:{key}", "1", "{key}")),
    Workload("zrange-100", "read", 50, command=("ZRANGE", "hundred", "0", "99"),
             before=("ZADD", "hundred", "0", "{key}")),
    Workload("xadd", "update", 50, command=("XADD", "x:{key}", "MAXLEN", "100", "*", "field", "{value}")),
    Workload("eval-2", "update", 50, command=("EVAL", ADD_TWICE, "1", "c:{key}", "1")),
]


class Runner:
    """Measures cells and keeps them."""

    def __init__(self, options, chosen):
        self.options, self.chosen = options, chosen
        self.cells = []

    def order(self, number):
        """A B C, then B C A: no system is always the one after a pause."""
        shift = number % len(self.chosen)
        return self.chosen[shift:] + self.chosen[:shift]

    def fill(self, system):
        """Starts the system, writes every key once, and says what a key costs in memory."""
        system.start()
        # What the first requests allocate for good is no cost of a key.
        self.generate(system, "set", seconds=0.2, keys=1000, connections=50, pipeline=16)
        before, used_before = system.resident_bytes(), system.used_memory()
        begin = time.monotonic()
        self.generate(system, "fill", connections=8, pipeline=64, seconds=0)
        seconds = time.monotonic() - begin
        time.sleep(1)
        after, used_after = system.resident_bytes(), system.used_memory()
        keys = self.options.keys
        return {
            "resident_per_key": [round((b - a) / keys, 1) for a, b in zip(before, after)],
            "used_memory_per_key":
                [round((b - a) / keys, 1) for a, b in zip(used_before, used_after)],
            "fill_seconds": round(seconds, 2),
        }

    def idle(self, system):
        """Percent of one core that the whole system takes when nobody asks anything."""
        time.sleep(1)
        before = system.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        return round((system.cpu_seconds() - before) / IDLE_SECONDS * 100, 3)

    def run(self, workload, system, number):
        """Measures one cell; nothing if the system knows no such workload."""
        if not applies(workload, system):
            return None
        if system.transient:
            system.start()
        try:
            before = system.cpu_seconds()
            begin = time.monotonic()
            reports = self.drive(workload, system)
            seconds = time.monotonic() - begin
            cpu = system.cpu_seconds() - before
        finally:
            if system.transient:
                system.stop()
        ops = sum(report["ops_total"] for report in reports)
        cell = {
            "workload": workload.name, "system": system.name, "round": number,
            "throughput": sum(report["throughput"] for report in reports),
            "p50_us": max(report["p50_us"] for report in reports),
            "p99_us": max(report["p99_us"] for report in reports),
            "cpu_us_per_op": cpu / ops * 1e6, "cores_busy": cpu / seconds,
            "missed": sum(report["missed"] for report in reports),
            "weak": sum(report["weak"] for report in reports),
            "failed": sum(report["failed"] for report in reports),
            "first_failure": next((r["first_failure"] for r in reports if r["first_failure"]), ""),
        }
        self.cells.append(cell)
        return cell

    def drive(self, workload, system):
        if workload.second_opinion:
            return [self.redis_benchmark(workload, system)]
        op = {"get": system.get_op, "set": system.set_op, "txn": system.txn_op,
              "update": "command-wait" if system.waits else "command", "read": "command"}[workload.kind]
        shape = {"connections": workload.connections, "pipeline": workload.pipeline,
                 "command": workload.command}
        if workload.before:
            self.generate(system, "fill-command", keys=100, command=workload.before)
        if workload.generators == 1:
            ports = system.ports if workload.spread else system.ports[:1]
            return [self.generate(system, op, ports=ports, **shape)]
        running = [self.spawn(system, op, ports=[port], seed=port, **shape)
                   for port in system.ports[:workload.generators]]
        return [collect(process) for process in running]

    def generate(self, system, op, **shape):
        return collect(self.spawn(system, op, **shape))

    def spawn(self, system, op, ports=None, connections=50, pipeline=1, seconds=None, keys=None,
              seed=1, command=()):
        options = self.options
        load = [
            str(system.places.binaries["load"]), "--op", op, "--connections", str(connections),
            "--pipeline", str(pipeline), "--keys", str(keys or options.keys),
            "--value-bytes", str(options.value_bytes), "--seed", str(seed),
            "--seconds", str(options.seconds if seconds is None else seconds),
        ]
        for port in ports or system.ports[:1]:
            load += ["--target", f"127.0.0.1:{port}"]
        if command:
            load += ["--command", *command]
        return subprocess.Popen(load, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def redis_benchmark(self, workload, system):
        ops = int(self.options.seconds * (80_000 if workload.pipeline == 1 else 500_000))
        done = subprocess.run(
            ["redis-benchmark", "-p", str(system.ports[0]), "-t", workload.kind, "--csv",
             "-n", str(ops), "-r", str(self.options.keys), "-d", str(self.options.value_bytes),
             "-c", str(workload.connections), "-P", str(workload.pipeline)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        rows = [line for line in done.stdout.splitlines() if line.startswith('"')]
        row = next(csv.DictReader(rows))
        return {
            "ops_total": ops, "throughput": float(row["rps"]),
            "p50_us": float(row["p50_latency_ms"]) * 1000,
            "p99_us": float(row["p99_latency_ms"]) * 1000,
            "missed": 0, "weak": 0, "failed": 0, "first_failure": "",
        }


def applies(workload, system):
    if workload.second_opinion and not (system.redis_protocol and system.set_op == "set"):
        return False
    name = system.name.removesuffix("-before")
    if workload.kind == "txn" and name in ("quorate", "quorate-o3", "valkey"):
        return False
    spread_over = "quorate-meerkat" if workload.kind == "txn" else "quorate"
    if (workload.spread or workload.generators > 1) and name != spread_over:
        return False
    if (workload.pipeline > 1 or workload.command) and not system.redis_protocol:
        return False
    return not (system.waits and workload.kind in ("get", "read"))


def collect(process):
    out, err = process.communicate(timeout=600)
    if process.returncode != 0:
        raise SystemExit(f"the load generator failed: {err.strip()}")
    return json.loads(out)
