"""Scenarios of Python libraries over Redis. Each is a function of the URL of a server; it raises if the
library does not do what its documentation says."""

import os
import pathlib
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 60


def eventually(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not (value := holds()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)
    return value


def client(url, **options):
    import redis

    return redis.Redis.from_url(url, **options)


class Worker:
    """A process of ours that works until it is ended."""

    def __init__(self, *words, **environment):
        self.process = subprocess.Popen(
            [sys.executable, *words], cwd=HERE, env={**os.environ, **environment},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def celery(url):
    """Tasks, retries, a chain, a chord, and a worker that is asked how it is."""
    os.environ["APPLICATION_URL"] = url
    import tasks_celery as tasks

    words = ("-m", "celery", "-A", "tasks_celery", "worker", "--pool", "threads", "--concurrency", "4",
             "--loglevel", "ERROR")
    with Worker(*words, APPLICATION_URL=url):
        results = [tasks.add.delay(n, n) for n in range(50)]
        assert [result.get(timeout=PATIENCE) for result in results] == [2 * n for n in range(50)]
        assert tasks.flaky.delay("flaky").get(timeout=PATIENCE) == 3
        assert tasks.chain_of().get(timeout=PATIENCE) == 16
        assert tasks.chord_of().get(timeout=PATIENCE) == sum(2 * n for n in range(10))
        assert tasks.app.control.ping(timeout=5), "no worker answers"
        late = tasks.add.apply_async((1, 2), countdown=1)
        assert late.get(timeout=PATIENCE) == 3


def rq(url):
    """Jobs, a failing one, one that waits for another, one for later."""
    import rq
    import tasks_rq as tasks

    connection = client(url)
    queue = rq.Queue("applications", connection=connection)
    jobs = [queue.enqueue(tasks.square, n) for n in range(20)]
    failing = queue.enqueue(tasks.fail)
    second = queue.enqueue(tasks.square, 3, depends_on=jobs[-1])
    worker = rq.SimpleWorker([queue], connection=connection)
    worker.work(burst=True, logging_level="ERROR")
    assert [job.return_value() for job in jobs] == [n * n for n in range(20)]
    assert second.return_value() == 9
    assert failing.id in queue.failed_job_registry
    assert queue.finished_job_registry.count == 21


def huey(url):
    """Tasks, a retry, a lock and a scheduled task of huey, with a consumer in this process."""
    import tasks_huey as tasks

    huey = tasks.make(url)
    consumer = huey.create_consumer(workers=2, periodic=False, initial_delay=0.01, max_delay=0.05)
    consumer.start()
    try:
        results = [tasks.add(n, 1) for n in range(20)]
        assert [result.get(blocking=True, timeout=PATIENCE) for result in results] == list(range(1, 21))
        assert tasks.add.schedule((1, 1), delay=1).get(blocking=True, timeout=PATIENCE) == 2
        with huey.lock_task("lock"):
            assert huey.is_locked("lock")
        assert not huey.is_locked("lock")
        huey.put("key", {"a": 1})
        assert huey.get("key") == {"a": 1}
    finally:
        consumer.stop(graceful=True)


def dramatiq(url):
    """Actors, results and a rate limit of dramatiq, whose broker is scripts."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.rate_limits import ConcurrentRateLimiter
    from dramatiq.rate_limits.backends import RedisBackend as Limits
    from dramatiq.results import Results
    from dramatiq.results.backends import RedisBackend

    broker = RedisBroker(url=url)
    broker.add_middleware(Results(backend=RedisBackend(url=url)))
    dramatiq.set_broker(broker)

    @dramatiq.actor(store_results=True)
    def double(number):
        return 2 * number

    worker = dramatiq.Worker(broker, worker_threads=4, worker_timeout=50)
    worker.start()
    try:
        messages = [double.send(n) for n in range(40)]
        values = [message.get_result(block=True, timeout=PATIENCE * 1000) for message in messages]
        assert values == [2 * n for n in range(40)]
        assert double.send_with_options(args=(5,), delay=500).get_result(block=True, timeout=30_000) == 10
        limiter = ConcurrentRateLimiter(Limits(url=url), "one-at-a-time", limit=1)
        with limiter.acquire():
            with limiter.acquire(raise_on_failure=False) as acquired:
                assert not acquired
    finally:
        worker.stop()
        broker.close()


def limits(url):
    """Every strategy of the library limits, which are scripts."""
    from limits import parse, storage, strategies

    store = storage.storage_from_string(url)
    for strategy in (strategies.FixedWindowRateLimiter, strategies.MovingWindowRateLimiter,
                     strategies.SlidingWindowCounterRateLimiter):
        limiter, item = strategy(store), parse("10/minute")
        name = strategy.__name__
        taken = []
        threads = [threading.Thread(target=lambda: taken.append(limiter.hit(item, name))) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(taken) == 10, f"{name} let {sum(taken)} of 10 pass"
        assert limiter.get_window_stats(item, name).remaining == 0
        limiter.clear(item, name)
        assert limiter.test(item, name)


def django(url):
    """django-redis as cache and for sessions: increments at the same time count."""
    import django
    from django.conf import settings

    settings.configure(
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        SESSION_ENGINE="django.contrib.sessions.backends.cache", SECRET_KEY="secret")
    django.setup()
    from django.contrib.sessions.backends.cache import SessionStore
    from django.core.cache import cache

    cache.set("count", 0)
    threads = [threading.Thread(target=lambda: [cache.incr("count") for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.get("count") == 400
    cache.set_many({f"many:{n}": n for n in range(20)}, timeout=60)
    assert cache.get_many([f"many:{n}" for n in range(20)]) == {f"many:{n}": n for n in range(20)}
    assert cache.add("many:0", 1) is False and 0 < cache.ttl("many:0") <= 60
    assert sorted(cache.keys("many:1*")) == sorted(f"many:{n}" for n in (1, *range(10, 20)))
    assert cache.delete_pattern("many:*") == 20
    with cache.lock("lock", timeout=5):
        assert not cache.lock("lock", timeout=5).acquire(blocking=False)
    session = SessionStore()
    session["user"] = 7
    session.save()
    assert SessionStore(session.session_key)["user"] == 7
    session.delete()
    assert not SessionStore().exists(session.session_key)


def flask(url):
    """Sessions and limits of a Flask application."""
    import flask
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address
    from flask_session import Session

    app = flask.Flask("applications")
    app.config.update(SESSION_TYPE="redis", SESSION_REDIS=client(url), SECRET_KEY="secret")
    Session(app)
    limiter = Limiter(get_remote_address, app=app, storage_uri=url)

    @app.get("/visits")
    def visits():
        flask.session["visits"] = flask.session.get("visits", 0) + 1
        return str(flask.session["visits"])

    @app.get("/limited")
    @limiter.limit("5/minute")
    def limited():
        return "in"

    visitor, other = app.test_client(), app.test_client()
    assert [visitor.get("/visits").text for _ in range(3)] == ["1", "2", "3"]
    assert other.get("/visits").text == "1"
    assert [other.get("/limited").status_code for _ in range(7)] == [200] * 5 + [429] * 2


def locks(url):
    """redlock-py, python-redis-lock and redis-py's own: one owner, and released by it alone."""
    import redis_lock
    from redlock import Redlock

    connection = client(url)
    parts = urlsplit(url)
    manager = Redlock([{"host": parts.hostname, "port": parts.port, "db": int(parts.path[1:] or 0)}])
    held = manager.lock("redlock", 5000)
    assert held and not manager.lock("redlock", 1000)
    manager.unlock(held)
    again = manager.lock("redlock", 1000)
    assert again, "unlock did not"
    manager.unlock(again)

    count, threads = [0], []
    kinds = (lambda: connection.lock("own", timeout=20),
             lambda: redis_lock.Lock(connection, "other", expire=20, auto_renewal=True))
    for make in kinds:
        def add(make=make):
            for _ in range(10):
                with make():
                    value = count[0]
                    time.sleep(0.001)
                    count[0] = value + 1
        count[0] = 0
        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert count[0] == 40, f"{count[0]} of 40 were counted: two had a lock"
    lock = connection.lock("extended", timeout=1)
    assert lock.acquire() and lock.extend(30) and lock.owned()
    assert 25 < connection.ttl("extended") <= 31
    lock.release()


def pottery(url):
    """pottery's containers, its lock, ids and filters."""
    from pottery import BloomFilter, NextID, RedisCounter, RedisDeque, RedisDict, RedisList, RedisSet, Redlock
    from pottery import HyperLogLog

    connection = client(url)
    tel = RedisDict({"jack": 4098}, redis=connection, key="tel")
    tel["guido"] = 4127
    del tel["jack"]
    assert dict(tel) == {"guido": 4127}
    basket = RedisSet({"apple", "orange"}, redis=connection, key="basket")
    assert "orange" in basket and "pear" not in basket
    numbers = RedisList([1, 4, 9, 16], redis=connection, key="numbers")
    numbers.append(25)
    numbers[1:3] = ["a", "b"]
    assert list(numbers) == [1, "a", "b", 16, 25]
    counter = RedisCounter(redis=connection, key="counter")
    counter.update("abracadabra")
    assert counter.most_common(1) == [("a", 5)]
    deque = RedisDeque("ghi", redis=connection, key="deque")
    deque.appendleft("f")
    deque.rotate(1)
    assert list(deque) == ["i", "f", "g", "h"]
    ids = NextID(key="ids", masters={connection})
    assert [next(ids) for _ in range(3)] == [1, 2, 3]
    with Redlock(key="pottery-lock", masters={connection}, auto_release_time=5):
        assert not Redlock(key="pottery-lock", masters={connection}).acquire(blocking=False)
    dilberts = BloomFilter(num_elements=100, false_positives=0.01, redis=connection, key="dilberts")
    dilberts.add("rajiv")
    assert "rajiv" in dilberts and "dan" not in dilberts
    visitors = HyperLogLog(redis=connection, key="visitors")
    visitors.update(str(n) for n in range(100))
    assert abs(len(visitors) - 100) < 5


def leaderboard(url):
    """Scores, ranks and neighbours, as tutorials of sorted sets have it."""
    connection = client(url, decode_responses=True)
    connection.zadd("board", {f"player:{n}": n * 10 for n in range(100)})
    assert connection.zincrby("board", 1000, "player:3") == 1030
    assert connection.zrevrange("board", 0, 2, withscores=True) == [
        ("player:3", 1030.0), ("player:99", 990.0), ("player:98", 980.0)]
    assert connection.zrevrank("board", "player:3") == 0
    assert connection.zcount("board", 100, 200) == 11
    assert connection.zrangebyscore("board", "(0", 40) == ["player:1", "player:2", "player:4"]
    assert connection.zremrangebyrank("board", 0, -4) == 97
    assert connection.zrange("board", 0, -1) == ["player:98", "player:99", "player:3"]
    connection.zadd("other", {"player:3": 5, "new": 1})
    assert connection.zunionstore("all", ["board", "other"], aggregate="MAX") == 4
    assert connection.zpopmin("all") == [("new", 1.0)]


def chat(url):
    """Messages, patterns and a second subscriber; and a stream as its history."""
    publisher, reader = client(url, decode_responses=True), client(url, decode_responses=True)
    subscriber = reader.pubsub(ignore_subscribe_messages=True)
    subscriber.subscribe("room:1")
    subscriber.psubscribe("room:*")
    eventually("both subscriptions are there", lambda: subscriber.get_message(timeout=0.01) is None
               and publisher.pubsub_numsub("room:1")[0][1] == 1 and publisher.pubsub_numpat() == 1)
    for number in range(20):
        assert publisher.publish("room:1", f"text {number}") == 2
        publisher.xadd("history", {"text": number}, maxlen=10, approximate=False)
    seen = []
    eventually("all messages came", lambda: (message := subscriber.get_message(timeout=1))
               and seen.append((message["type"], message["data"])) or len(seen) == 40)
    for kind in ("message", "pmessage"):
        assert [text for of, text in seen if of == kind] == [f"text {n}" for n in range(20)]
    subscriber.close()
    assert [fields["text"] for _, fields in publisher.xrange("history")] == [str(n) for n in range(10, 20)]


def streams(url):
    """A consumer group: each entry to one consumer, what it left is claimed by another."""
    connection = client(url, decode_responses=True)
    connection.xgroup_create("orders", "packers", id="0", mkstream=True)
    for number in range(30):
        connection.xadd("orders", {"order": number})
    first = connection.xreadgroup("packers", "ann", {"orders": ">"}, count=10)[0][1]
    second = connection.xreadgroup("packers", "bob", {"orders": ">"}, count=100)[0][1]
    assert (len(first), len(second)) == (10, 20)
    assert connection.xack("orders", "packers", *[entry for entry, _ in second]) == 20
    assert connection.xpending("orders", "packers")["pending"] == 10
    claimed = connection.xautoclaim("orders", "packers", "bob", min_idle_time=0, count=100)
    assert [entry for entry, _ in claimed[1]] == [entry for entry, _ in first]
    assert connection.xinfo_groups("orders")[0]["consumers"] == 2

    def add():
        time.sleep(0.2)
        client(url).xadd("orders", {"order": "late"})

    thread = threading.Thread(target=add)
    thread.start()
    late = connection.xreadgroup("packers", "ann", {"orders": ">"}, block=PATIENCE * 1000)
    assert late[0][1][0][1] == {"order": "late"}
    thread.join()


def queue(url):
    """A list as a queue with blocking consumers: each element to exactly one, moved with BLMOVE."""
    connection = client(url, decode_responses=True)
    taken = []

    def consume():
        mine = client(url, decode_responses=True)
        while (item := mine.blpop(["urgent", "jobs"], timeout=PATIENCE))[1] != "end":
            taken.append(item)

    threads = [threading.Thread(target=consume) for _ in range(5)]
    for thread in threads:
        thread.start()
    for number in range(100):
        connection.rpush("urgent" if number % 10 == 0 else "jobs", number)
    eventually("all jobs are taken", lambda: len(taken) == 100)
    connection.rpush("jobs", *["end"] * 5)
    for thread in threads:
        thread.join()
    assert sorted(int(number) for _, number in taken) == list(range(100))
    connection.rpush("from", "a")
    assert connection.blmove("from", "to", 1, "LEFT", "RIGHT") == "a"
    assert connection.brpoplpush("from", "to", 1) is None
    assert connection.lrange("to", 0, -1) == ["a"]


def objects(url):
    """What a tutorial of each type does: hashes, sets, bitmaps, geo, scripts, transactions."""
    connection = client(url, decode_responses=True)
    connection.hset("user:1", mapping={"name": "Ann", "visits": 1})
    assert connection.hincrby("user:1", "visits", 2) == 3
    assert connection.hgetall("user:1") == {"name": "Ann", "visits": "3"}
    connection.sadd("tags:1", "a", "b", "c")
    connection.sadd("tags:2", "b", "c", "d")
    assert connection.sinter("tags:1", "tags:2") == {"b", "c"}
    assert connection.smove("tags:1", "tags:2", "a") and connection.scard("tags:2") == 4
    connection.geoadd("places", (13.361389, 38.115556, "Palermo", 15.087269, 37.502669, "Catania"))
    assert connection.geodist("places", "Palermo", "Catania", unit="km") == 166.2742
    assert connection.geosearch("places", longitude=15, latitude=37, radius=100, unit="km") == ["Catania"]
    add = connection.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert [add(keys=["sum"], args=[n]) for n in (1, 2, 3)] == [1, 3, 6]
    assert connection.object("encoding", "user:1") == "listpack" and connection.type("tags:1") == "set"
    assert list(connection.scan_iter(match="tags:*", _type="set"))

    def transfer(pipe):
        left = int(pipe.hget("user:1", "visits"))
        pipe.multi()
        pipe.hset("user:1", "visits", left - 1)
        pipe.lpush("log", left)

    assert connection.transaction(transfer, "user:1") == [0, 1]
    assert connection.sort("tags:2", alpha=True) == ["a", "b", "c", "d"]
    assert connection.restore("copy", 0, client(url).dump("user:1"), replace=True) in (True, "OK", b"OK")
    assert connection.hget("copy", "name") == "Ann"


SCENARIOS = [objects, leaderboard, queue, streams, chat, locks, limits, flask, django, rq, huey, dramatiq,
             celery, pottery]


def main():
    url, name = sys.argv[1], sys.argv[2]
    {scenario.__name__: scenario for scenario in SCENARIOS}[name](url)


if __name__ == "__main__":
    main()
