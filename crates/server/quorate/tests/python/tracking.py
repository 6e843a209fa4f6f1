"""redis-py with its client-side cache. Arguments: the client ports of a cluster."""

import random
import sys
import time

import redis
from redis.cache import CacheConfig
from redis.connection import CacheProxyConnection

# redis-py asks for the version with which it was tried, and the replies here are those of 7.0.
CacheProxyConnection.MIN_ALLOWED_VERSION = "7.0.0"

PORTS = [int(port) for port in sys.argv[1:]]
WRITERS = [redis.Redis(host="127.0.0.1", port=port) for port in PORTS]
READERS = [
    redis.Redis(host="127.0.0.1", port=port, protocol=3, cache_config=CacheConfig())
    for port in PORTS
]
KEYS = [f"cached:{number}" for number in range(20)]
PATIENCE = 20


def equal(found, expected):
    if found != expected:
        raise AssertionError(f"{found!r} instead of {expected!r}")


def reads(port):
    """How often the node has executed GET."""
    stats = WRITERS[port].info("commandstats")
    return stats.get("cmdstat_get", {"calls": 0})["calls"]


def becomes(reader, key, value):
    """Reads, mostly from the cache, until the value is there."""
    until = time.monotonic() + PATIENCE
    while reader.get(key) != value:
        if time.monotonic() > until:
            raise AssertionError(f"{key} is {reader.get(key)!r} in the cache, not {value!r}")


def kept():
    WRITERS[0].set("kept", "1")
    for port, reader in enumerate(READERS):
        becomes(reader, "kept", b"1")
        before = reads(port)
        for _ in range(100):
            equal(reader.get("kept"), b"1")
        equal(reads(port), before)


def told():
    for writer in WRITERS:
        for reader in READERS:
            value = str(random.random()).encode()
            writer.set("told", value)
            becomes(reader, "told", value)
            writer.delete("told")
            becomes(reader, "told", None)
    WRITERS[0].set("told", "soon gone", px=20)
    for reader in READERS:
        becomes(reader, "told", None)
    WRITERS[1].set("told", "flushed")
    for reader in READERS:
        becomes(reader, "told", b"flushed")
    WRITERS[2].flushdb()
    for reader in READERS:
        becomes(reader, "told", None)


def under_writes():
    values = {}
    for step in range(2000):
        key = random.choice(KEYS)
        if random.random() < 0.3:
            values[key] = str(step).encode()
            random.choice(WRITERS).set(key, values[key])
        else:
            random.choice(READERS).get(key)
    for key, value in values.items():
        for reader in READERS:
            becomes(reader, key, value)
    # What the caches hold now is what they are asked for.
    before = [reads(port) for port in range(len(PORTS))]
    for reader in READERS:
        for key, value in values.items():
            equal(reader.get(key), value)
    equal([reads(port) for port in range(len(PORTS))], before)


kept()
told()
under_writes()
print("done")
