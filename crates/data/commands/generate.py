#!/usr/bin/env python3
"""Writes src/table/*.rs: the facts that a running Redis 7.0 states about its commands.

    redis-server --port 0 --unixsocket /tmp/redis.sock --daemonize yes
    crates/data/commands/generate.py /tmp/redis.sock
    cargo fmt -p quorate-commands

What this program adds itself is how each command runs here (RUN), the two CLIENT subcommands
that Redis has only since 7.2 (LATER), which common client libraries send when they connect, and
SESSION, which no Redis has (OWN).
"""

import pathlib
import socket
import sys

# How a command runs: the function over its key or keys and what it does to its key if it has one
# key only, or who executes it.
KEYED = {
    "get": ("string::get", "Read"),
    "set": ("string::set", "OfCall(string::set_access)"),
    "setnx": ("string::setnx", "Update"),
    "setex": ("string::setex", "OfCall(string::setex_access)"),
    "psetex": ("string::psetex", "OfCall(string::psetex_access)"),
    "getset": ("string::getset", "Update"),
    "getdel": ("string::getdel", "Update"),
    "getex": ("string::getex", "OfCall(string::getex_access)"),
    "mget": ("string::mget", "Read"),
    "mset": ("several::mset", "OfCall(several::mset_access)"),
    "msetnx": ("several::msetnx", "OfCall(several::msetnx_access)"),
    "append": ("string::append", "Update"),
    "strlen": ("string::strlen", "Read"),
    "getrange": ("string::getrange", "Read"),
    "substr": ("string::getrange", "Read"),
    "lcs": ("lcs::lcs", "Read"),
    "setrange": ("string::setrange", "Update"),
    "incr": ("numeric::incr", "Update"),
    "decr": ("numeric::decr", "Update"),
    "incrby": ("numeric::incrby", "Update"),
    "decrby": ("numeric::decrby", "Update"),
    "incrbyfloat": ("numeric::incrbyfloat", "Update"),
    "setbit": ("bitmap::setbit", "Update"),
    "getbit": ("bitmap::getbit", "Read"),
    "bitcount": ("bitmap::bitcount", "Read"),
    "bitpos": ("bitmap::bitpos", "Read"),
    "bitop": ("bitmap::bitop", "OfCall(bitmap::bitop_access)"),
    "bitfield": ("bitfield::bitfield", "OfCall(bitfield::bitfield_access)"),
    "bitfield_ro": ("bitfield::bitfield_ro", "Read"),
    "del": ("generic::del", "Update"),
    "unlink": ("generic::del", "Update"),
    "exists": ("generic::exists", "Read"),
    "touch": ("generic::exists", "Read"),
    "dump": ("dump::dump", "Read"),
    "restore": ("dump::restore", "Update"),
    "type": ("generic::type_of", "Read"),
    "copy": ("several::copy", "Read"),
    "rename": ("several::rename", "Read"),
    "renamenx": ("several::renamenx", "Read"),
    "object|encoding": ("generic::object_encoding", "Read"),
    "ttl": ("expiry::ttl", "Read"),
    "pttl": ("expiry::pttl", "Read"),
    "expiretime": ("expiry::expiretime", "Read"),
    "pexpiretime": ("expiry::pexpiretime", "Read"),
    "expire": ("expiry::expire", "Update"),
    "pexpire": ("expiry::pexpire", "Update"),
    "expireat": ("expiry::expireat", "Update"),
    "pexpireat": ("expiry::pexpireat", "Update"),
    "persist": ("expiry::persist", "Update"),
}
# Functions over all keys at once.
SEVERAL = ["bitmap::bitop", "lcs::lcs"]
SPLIT = {"mget": "Array", "del": "Sum", "unlink": "Sum", "exists": "Sum", "touch": "Sum"}
CONNECTION = """ping echo hello auth select quit reset multi exec discard watch unwatch
    client|id client|getname client|setname client|setinfo client|info client|list
    client|no-evict client|no-touch client|reply client|kill
    session|open session|renew session|close session|call session|auto session|info""".split()
SERVER = """command command|count command|docs command|info command|getkeys command|getkeysandflags
    command|list info config|get
    config|set config|resetstat dbsize time lolwut memory|usage scan keys randomkey flushdb
    flushall wait shutdown""".split()
CONTAINERS = "client config memory object command session".split()
HELP = [c + "|help" for c in CONTAINERS]

LATER = {
    "client|no-touch": (
        [3, ["noscript", "loading", "stale"], 0, 0, 0, ["@slow", "@connection"], [], [], []],
        {"summary": "Controls whether commands sent by the client affect the LRU/LFU of accessed keys.",
         "since": "7.2.0", "group": "connection", "complexity": "O(1)",
         "arguments": [{"name": "enabled", "type": "oneof", "arguments": [
             {"name": "on", "type": "pure-token", "token": "ON"},
             {"name": "off", "type": "pure-token", "token": "OFF"}]}]}),
    "client|setinfo": (
        [4, ["noscript", "loading", "stale"], 0, 0, 0, ["@slow", "@connection"], [], [], []],
        {"summary": "Sets information specific to the client or connection.",
         "since": "7.2.0", "group": "connection", "complexity": "O(1)",
         "arguments": [{"name": "attr", "type": "oneof", "arguments": [
             {"name": "libname", "type": "string", "token": "LIB-NAME"},
             {"name": "libver", "type": "string", "token": "LIB-VER"}]}]}),
}

LEASE = [
    {"name": "id", "type": "string", "summary": "As SESSION OPEN has answered it."},
    {"name": "until", "type": "string", "summary": "As the last SESSION OPEN or RENEW has answered it."}]
OPTIONAL_LEASE = [{"name": "lease", "type": "block", "flags": ["optional"], "arguments": LEASE}]


def own(arity, flags, summary, arguments=None):
    doc = {"summary": summary, "since": "0.1.0", "group": "connection", "complexity": "O(1)"}
    if arguments:
        doc["arguments"] = arguments
    return [arity, flags, 0, 0, 0, ["@slow", "@connection"], [], [], []], doc


OWN = {
    "session": own(-2, [], "A container for commands of sessions, whose calls run exactly once"),
    "session|open": own(2, ["noscript", "no_multi"], "Begins a session and attaches it to the connection"),
    "session|renew": own(
        -2, ["noscript", "no_multi"],
        "Attaches a session to the connection and lets it live for a full term from now on", OPTIONAL_LEASE),
    "session|close": own(
        -2, ["noscript", "no_multi"], "Ends a session and frees what is kept of its calls", OPTIONAL_LEASE),
    "session|call": own(
        -5, ["noscript", "no_multi"],
        "Runs a command, or the block of an EXEC, exactly once however often it is called", [
            {"name": "seq", "type": "integer", "summary": "The call's number, the same at every try."},
            {"name": "first-incomplete", "type": "integer",
             "summary": "The client has the answers of all calls below this one."},
            {"name": "command", "type": "string"},
            {"name": "arg", "type": "string", "flags": ["optional", "multiple"]}]),
    "session|auto": own(
        -3, ["noscript", "no_multi"],
        "Numbers the commands that follow: each that updates is a call of the session", [
            {"name": "numbering", "type": "oneof", "arguments": [
                {"name": "off", "type": "pure-token", "token": "OFF"},
                {"name": "on", "type": "block", "arguments": [
                    {"name": "seq", "type": "integer", "summary": "The number of the next command."},
                    {"name": "depth", "type": "integer", "flags": ["optional"],
                     "summary": "How many commands the client has without an answer at most; 1 by default."},
                ]}]}]),
    "session|info": own(2, ["noscript", "no_multi"], "Returns the session that is attached to the connection"),
    "session|help": own(2, [], "Show helpful text about the different subcommands"),
}


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


def text(value):
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def texts(values):
    return "&[" + ", ".join(map(text, values)) + "]"


def camel(name):
    return "".join(part.title() for part in name.replace("|", "-").replace("_", "-").split("-"))


def bits(module, names):
    names = [name.lstrip("@").replace("-", "_").upper() for name in names]
    return " | ".join(f"{module}::{name}" for name in names) or "0"


def key_spec(spec):
    assert spec["begin_search"]["type"] == "index" and spec["find_keys"]["type"] == "range"
    begin, find = spec["begin_search"]["spec"], spec["find_keys"]["spec"]
    notes = f"Some({text(spec['notes'])})" if "notes" in spec else "None"
    return (f"KeySpec {{ notes: {notes}, flags: {texts(spec['flags'])}, index: {begin['index']}, "
            f"last: {find['lastkey']}, step: {find['keystep']}, limit: {find['limit']} }}")


def argument(arg):
    fields = [f"name: {text(arg['name'])}", f"kind: {text(arg['type'])}"]
    if "key_spec_index" in arg:
        fields.append(f"key_spec: Some({arg['key_spec_index']})")
    for field in ("token", "summary", "since", "deprecated_since"):
        if field in arg:
            fields.append(f"{field}: Some({text(arg[field])})")
    if "flags" in arg:
        fields.append(f"flags: {texts(arg['flags'])}")
    if "arguments" in arg:
        fields.append("arguments: " + arguments(arg["arguments"]))
    return "Argument { " + ", ".join(fields) + ", ..ARGUMENT }"


def arguments(args):
    return "&[" + ", ".join(map(argument, args)) + "]"


def docs(doc):
    fields = [f"summary: {text(doc['summary'])}", f"since: {text(doc['since'])}",
              f"group: {text(doc['group'])}"]
    for field in ("complexity", "deprecated_since", "replaced_by"):
        if field in doc:
            fields.append(f"{field}: Some({text(doc[field])})")
    if "doc_flags" in doc:
        fields.append(f"flags: {texts(doc['doc_flags'])}")
    if "history" in doc:
        pairs = ", ".join(f"({text(a)}, {text(b)})" for a, b in doc["history"])
        fields.append(f"history: &[{pairs}]")
    if "arguments" in doc:
        fields.append("arguments: " + arguments(doc["arguments"]))
    return "Docs { " + ", ".join(fields) + ", ..DOCS }"


def run(name):
    if name in KEYED:
        function, access = KEYED[name]
        keys = "Several" if function in SEVERAL or function.startswith("several::") else "One"
        return f"Run::Key(Keyed::{keys}({function}))", f"AccessRule::{access}"
    if name in CONNECTION:
        return f"Run::Connection(ConnectionCommand::{camel(name)})", "AccessRule::Read"
    if name in HELP:
        return "Run::Help", "AccessRule::Read"
    if name in SERVER:
        return f"Run::Server(ServerCommand::{camel(name)})", "AccessRule::Read"
    return "Run::Container", "AccessRule::Read"


def spec(name, info, doc, number, subcommands):
    arity, flags, first, last, step, categories, tips, specs, _ = info
    function, access = run(name)
    subs = "&[" + ", ".join(subcommands) + "]"
    return (
        f"Spec {{ id: {number}, name: {text(name)}, arity: {arity}, "
        f"flags: Flags({bits('flag', flags)}), "
        f"keys: Keys {{ first: {first}, last: {last}, step: {step} }}, "
        f"categories: Categories({bits('category', categories)}), tips: {texts(tips)}, "
        f"key_specs: &[{', '.join(map(key_spec, specs))}], docs: {docs(doc)}, "
        f"subcommands: {subs}, access: {access}, split: Split::{SPLIT.get(name, 'None')}, "
        f"run: {function} }}")


def main():
    redis = Redis(sys.argv[1])
    names = sorted({n.split("|")[0] for n in list(KEYED) + CONNECTION + SERVER + CONTAINERS})
    everything = list(KEYED) + CONNECTION + SERVER + HELP
    files, rows = {}, []
    for index, name in enumerate(names):
        if name in OWN:
            info, doc = OWN[name]
        else:
            info = redis.call("COMMAND", "INFO", name)[0][1:]
            doc = redis.call("COMMAND", "DOCS", name)[name]
        subinfo = {sub[0]: sub[1:] for sub in info[8]}
        subcommands = []
        for number, sub in enumerate(sorted(n for n in everything if n.startswith(name + "|"))):
            facts, words = LATER.get(sub) or OWN.get(sub) or (subinfo[sub], doc["subcommands"][sub])
            subcommands.append(spec(sub, facts, words, (index + 1) * 256 + number, []))
        group = doc["group"]
        if group == "string":
            group = "string_write" if "write" in info[1] else "string_read"
        elif KEYED.get(name, [""])[0].startswith("expiry::"):
            group = "lifetime"
        elif name in OWN:
            group = "session"
        constant = name.upper()
        files.setdefault(group, []).append(
            f"pub(super) const {constant}: Spec = "
            + spec(name, info, doc, index, subcommands) + ";\n")
        rows.append(f"{group}::{constant}")
    folder = pathlib.Path(__file__).parent / "src" / "table"
    for group, constants in files.items():
        title = "Commands of Redis's group: " + group.replace("_", " ")
        if group == "lifetime":
            title = "Commands on how long keys live"
        if group == "session":
            title = "Sessions, which no Redis has"
        (folder / f"{group}.rs").write_text(
            f"//! {title}. Generated by `generate.py`.\n\n"
            "use super::vocabulary::*;\n\n" + "\n".join(constants))
    (folder / "rows.rs").write_text(
        "//! The rows of the table, by name. Generated by `generate.py`.\n\n"
        f"use super::{{{', '.join(sorted(files))}}};\nuse crate::spec::Spec;\n\n"
        f"pub(super) static TABLE: [Spec; {len(rows)}] = [\n    " + ",\n    ".join(rows) + ",\n];\n")


main()
