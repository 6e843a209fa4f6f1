"""What a program that uses redis-py does. Arguments: the cluster's engine, then its client ports."""

import sys
import threading
import time

import redis

# Whether transactions may span keys.
TRANSACTIONAL = sys.argv[1] != "hermes"
PORTS = [int(port) for port in sys.argv[2:]]
NODES = [redis.Redis(host="127.0.0.1", port=port) for port in PORTS]
TEXT = [redis.Redis(host="127.0.0.1", port=port, decode_responses=True) for port in PORTS]


def equal(found, expected):
    if found != expected:
        raise AssertionError(f"{found!r} instead of {expected!r}")


def refuses(code, call):
    try:
        found = call()
    except redis.ResponseError as error:
        if not str(error).startswith(code):
            raise AssertionError(f"{error} instead of {code}") from error
        return
    raise AssertionError(f"{found!r} instead of {code}")


def strings():
    first, second, third = NODES
    equal(first.set("greeting", "hello"), True)
    for node in NODES:
        equal(node.get("greeting"), b"hello")
    for node in TEXT:
        equal(node.get("greeting"), "hello")
    every_byte = bytes(range(256)) * 40
    second.set("bytes", every_byte)
    equal(third.get("bytes"), every_byte)
    equal(first.set("greeting", "no", nx=True), None)
    equal(first.set("greeting", "yes", xx=True, get=True), b"hello")
    equal(second.getset("greeting", "again"), b"yes")
    equal(second.append("greeting", " and again"), 15)
    equal(third.strlen("greeting"), 15)
    equal(third.getrange("greeting", 0, 4), b"again")
    equal(first.setrange("greeting", 6, "AND"), 15)
    equal(TEXT[1].get("greeting"), "again AND again")
    equal(third.getdel("greeting"), b"again AND again")
    equal(first.exists("greeting"), 0)
    equal(first.mset({"one": 1}), True)
    if not TRANSACTIONAL:
        refuses("CROSSKEY", lambda: first.mset({"one": 1, "two": 2}))
    equal(second.get("two"), None)
    equal([node.incr("n") for node in NODES], [1, 2, 3])
    equal(first.decrby("n", 5), -2)
    equal(second.incrbyfloat("float", 2.5), 2.5)
    refuses("value is not an integer", lambda: third.incr("float"))


def bits():
    first, second, third = NODES
    equal(first.setbit("bits", 7, 1), 0)
    equal(second.setbit("bits", 100, 1), 0)
    equal(third.setbit("bits", 7, 0), 1)
    equal([node.getbit("bits", 100) for node in NODES], [1, 1, 1])
    equal(first.bitcount("bits"), 1)
    equal(second.bitcount("bits", 0, 3), 0)


def expiry():
    first, second, third = NODES
    first.set("short", "v", ex=100)
    assert 95 <= second.ttl("short") <= 100
    equal(third.persist("short"), True)
    equal(first.ttl("short"), -1)
    equal(second.expire("short", 200), True)
    assert 190_000 <= third.pttl("short") <= 200_000
    equal(first.getex("short", persist=True), b"v")
    equal(first.ttl("absent"), -2)
    second.set("short", "v", px=30)
    deadline = time.monotonic() + 10
    while any(node.get("short") for node in NODES):
        assert time.monotonic() < deadline, "the key outlives its time"
    equal([node.exists("short") for node in NODES], [0, 0, 0])


def many_keys():
    names = [f"many:{number}" for number in range(1000)]
    pipeline = NODES[0].pipeline(transaction=False)
    for name in names:
        pipeline.set(name, name)
    equal(pipeline.execute(), [True] * len(names))
    equal(NODES[1].mget(names), [name.encode() for name in names])
    equal(NODES[1].mget(["absent", "many:1"]), [None, b"many:1"])
    for node in TEXT:
        equal(sorted(node.scan_iter(match="many:*", count=50)), sorted(names))
        equal(sorted(node.keys("many:*")), sorted(names))
    equal(NODES[2].exists(*names), len(names))
    equal(NODES[2].touch(*names[:10]), 10)
    equal(NODES[2].delete(*names, "absent"), len(names))
    equal([list(node.scan_iter(match="many:*")) for node in NODES], [[], [], []])
    equal(NODES[0].unlink("absent"), 0)


def transactions():
    for node in NODES:
        node.delete("t")
        pipeline = node.pipeline(transaction=True)
        pipeline.set("t", 1).incr("t").append("t", "0").get("t").expire("t", 100)
        equal(pipeline.execute(), [True, 2, 2, b"20", True])
        pipeline = node.pipeline(transaction=True)
        pipeline.set("t", "x").incr("t").get("t")
        results = pipeline.execute(raise_on_error=False)
        assert isinstance(results[1], redis.ResponseError), results
        equal([results[0], results[2]], [True, b"x"])
        pipeline = node.pipeline(transaction=True)
        pipeline.set("t", "y").set("other", 1)
        if TRANSACTIONAL:
            equal(pipeline.execute(), [True, True])
            equal(node.mget("t", "other"), [b"y", b"1"])
        else:
            refuses("CROSSKEY", pipeline.execute)
            equal(node.mget("t", "other"), [b"x", None])
    # A change through another node is seen.
    with NODES[0].pipeline() as pipeline:
        pipeline.watch("t")
        NODES[1].set("t", "changed")
        pipeline.multi()
        pipeline.set("t", "mine")
        try:
            pipeline.execute()
        except redis.WatchError:
            pass
        else:
            raise AssertionError("the watch missed a change")
    equal(NODES[2].get("t"), b"changed")


def several_keys():
    if not TRANSACTIONAL:
        return
    first, second, third = NODES
    equal(first.mset({"a": 1, "b": 2, "c": 3}), True)
    equal(second.mget("a", "b", "c", "absent"), [b"1", b"2", b"3", None])
    equal(third.msetnx({"d": 4, "a": 5}), False)
    equal(first.exists("a", "b", "c", "d"), 3)
    equal(second.msetnx({"d": 4, "e": 5}), True)
    equal(third.rename("a", "f"), True)
    equal(first.mget("a", "f"), [None, b"1"])
    equal(second.renamenx("b", "c"), False)
    equal(third.renamenx("b", "g"), True)
    refuses("no such key", lambda: first.rename("b", "c"))
    equal(first.copy("c", "d"), False)
    equal(second.copy("c", "d", replace=True), True)
    equal(third.mget("b", "g", "c", "d"), [None, b"2", b"3", b"3"])
    # A watch on one key guards a block on others.
    with first.pipeline() as pipeline:
        pipeline.watch("c", "d")
        sum_before = int(pipeline.get("c")) + int(pipeline.get("d"))
        pipeline.multi()
        pipeline.set("sum", sum_before).rename("c", "h")
        equal(pipeline.execute(), [True, True])
        pipeline.watch("d", "h")
        second.rename("h", "c")
        pipeline.multi()
        pipeline.set("sum", "wrong")
        try:
            pipeline.execute()
        except redis.WatchError:
            pass
        else:
            raise AssertionError("the watch missed a change")
    equal(third.get("sum"), b"6")
    equal(first.delete("a", "b", "c", "d", "e", "f", "g", "h", "sum"), 6)


def optimistic_counting():
    """Read, compute, write if nobody else has: redis-py's loop, through every node at once."""
    errors = []

    def add(pipeline):
        value = int(pipeline.get("optimistic") or 0)
        pipeline.multi()
        pipeline.set("optimistic", value + 1)

    def work(node):
        try:
            for _ in range(20):
                node.transaction(add, "optimistic")
        except Exception as error:  # told below
            errors.append(error)

    threads = [threading.Thread(target=work, args=[node]) for node in NODES for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(errors, [])
    equal([node.get("optimistic") for node in NODES], [b"120"] * 3)


def server():
    first = NODES[0]
    equal(first.ping(), True)
    equal(first.echo("x"), b"x")
    info = first.info()
    equal(info["redis_version"], "7.0.15")
    equal(info["role"], "master")
    assert info["db0"]["keys"] > 0, info["db0"]
    assert info["maxmemory"] == 0 and info["connected_clients"] >= 1
    equal(first.info("memory")["maxmemory_policy"], "noeviction")
    first.client_setname("me")
    first.client_getname()
    assert all("addr" in client for client in first.client_list())
    assert first.client_id() > 0
    assert first.client_info()["db"] == 0
    equal(first.config_get("maxmemory"), {"maxmemory": "0"})
    equal(first.config_set("timeout", 0), True)
    equal(first.config_resetstat(), True)
    assert first.dbsize() > 0
    assert first.randomkey() is not None
    assert first.memory_usage("bytes") > 10_000
    equal(first.object("encoding", "n"), b"int")
    equal(first.type("n"), b"string")
    equal(first.wait(2, 1000), 2)
    assert abs(first.time()[0] - time.time()) < 60
    assert b"Quorate" in first.lolwut()
    assert first.command_count() > 50
    assert "get" in first.command()
    refuses("Quorate has no 'MIGRATE' yet", lambda: first.execute_command("MIGRATE"))
    refuses("unknown command", lambda: first.execute_command("NOSUCH"))
    other = redis.Redis.from_url(f"redis://127.0.0.1:{PORTS[1]}/3")
    other.set("here", 1)
    equal(first.get("here"), None)
    equal(other.dbsize(), 1)
    equal(other.flushdb(), True)
    equal(redis.Redis(host="127.0.0.1", port=PORTS[2], db=3).dbsize(), 0)
    assert NODES[1].dbsize() > 0


def newest_protocol():
    if int(redis.__version__.split(".")[0]) < 5:
        return
    node = redis.Redis(host="127.0.0.1", port=PORTS[0], protocol=3, decode_responses=True)
    node.set("three", 3)
    equal(node.get("three"), "3")
    equal(node.mget("three", "absent"), ["3", None])
    equal(node.config_get("maxmemory"), {"maxmemory": "0"})


for check in [
    strings,
    bits,
    expiry,
    many_keys,
    transactions,
    several_keys,
    optimistic_counting,
    server,
    newest_protocol,
]:
    print(check.__name__, flush=True)
    check()
NODES[1].flushall()
equal([node.dbsize() for node in NODES], [0, 0, 0])
print("done", flush=True)
