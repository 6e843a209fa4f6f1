#!/usr/bin/env python3
"""Writes facts/*.json: what a running Redis 7.0 states about the commands of commands.txt.

    redis-server --port 0 --unixsocket /tmp/redis.sock --daemonize yes
    crates/data/commands/facts.py /tmp/redis.sock

A file for each of Redis's groups. What it doesn't state stays as it is: facts/own.json, of the commands
that no Redis has, and facts/later.json, of those that only newer ones have. It also writes redis.txt, the
names and groups of all commands of Redis 7.2, by which those that Quorate lacks are known.
"""

import json
import pathlib
import re
import socket
import sys

HERE = pathlib.Path(__file__).parent
FACTS = HERE / "facts"
OWN = ("own", "later")
SINCE_7_2 = {"waitaof": "generic", "cluster|myshardid": "cluster",
             "client|no-touch": "connection", "client|setinfo": "connection"}


class Redis:
    """Just enough of RESP3."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.input = self.socket.makefile("rb")
        self.call("HELLO", "3")

    def call(self, *args):
        parts = [b"*%d\r\n" % len(args)]
        parts += [b"$%d\r\n%s\r\n" % (len(a), a.encode()) for a in args]
        self.socket.sendall(b"".join(parts))
        return self.reply()

    def reply(self):
        line = self.input.readline()[:-2].decode()
        kind, rest = line[0], line[1:]
        if kind == "+":
            return rest
        if kind == ":":
            return int(rest)
        if kind == "$":
            return self.input.read(int(rest) + 2)[:-2].decode()
        if kind in "*~":
            return [self.reply() for _ in range(int(rest))]
        if kind == "%":
            return {self.reply(): self.reply() for _ in range(int(rest))}
        if kind == "_":
            return None
        raise SystemExit(f"unexpected reply: {line}")


def key_spec(spec):
    begin, find = spec["begin_search"], spec["find_keys"]
    names = {"index": "index", "keyword": "keyword", "startfrom": "from", "lastkey": "last",
             "keystep": "step", "limit": "limit", "keynumidx": "count", "firstkey": "first"}
    notes = {"notes": spec["notes"]} if "notes" in spec else {}
    said = (begin["spec"] | find["spec"]).items()
    return notes | {"flags": spec["flags"]} | {names[name]: value for name, value in said}


def facts(info, docs):
    arity, flags, first, last, step, categories, tips, specs, _ = info
    docs = {name: said for name, said in docs.items() if name != "subcommands"}
    return {"arity": arity, "flags": flags, "keys": [first, last, step], "categories": categories,
            "tips": tips, "key_specs": [key_spec(spec) for spec in specs], "docs": docs}


def pretty(commands):
    """JSON in which a list or an object that contains no other stands on one line."""
    leaf = re.compile(r"[\[{]\n\s+[^\[\]{}]*?\s+[\]}]")
    return leaf.sub(lambda match: re.sub(r"\n\s+", " ", match[0]), json.dumps(commands, indent=1))


def main():
    redis = Redis(sys.argv[1])
    lines = (HERE / "commands.txt").read_text().splitlines()
    names = sorted(line.split()[0] for line in lines if line and not line.startswith("#"))
    known = {name for own in OWN for name in json.loads((FACTS / f"{own}.json").read_text())}
    groups = {}
    for name in names:
        if name in known:
            continue
        container = name.split("|")[0]
        info = redis.call("COMMAND", "INFO", container)[0][1:]
        docs = redis.call("COMMAND", "DOCS", container)[container]
        if name != container:
            info = next(sub[1:] for sub in info[8] if sub[0] == name)
            docs = docs["subcommands"][name]
        groups.setdefault(docs["group"], {})[name] = facts(info, docs)
    docs = redis.call("COMMAND", "DOCS")
    all_names = {name: said["group"] for name, said in docs.items()} | SINCE_7_2
    for said in docs.values():
        all_names |= {name: sub["group"] for name, sub in said.get("subcommands", {}).items()}
    listed = [f"{name} {group}\n" for name, group in sorted(all_names.items())]
    (HERE / "redis.txt").write_text("".join(listed))
    for group, commands in groups.items():
        (FACTS / f"{group}.json").write_text(pretty(commands) + "\n")


if __name__ == "__main__":
    main()
