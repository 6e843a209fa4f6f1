"""What the scripts share: connections to nodes that may be killed or stopped, and what errors mean."""

import time

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

# Longer than a node is stopped, so that somebody waits for what it says afterwards.
PATIENCE_SECONDS = 1
SETTLE_SECONDS = 20


def connect(port, host="127.0.0.1"):
    # A client library that sends an increment again would count twice.
    pool = redis.ConnectionPool(
        host=host,
        port=port,
        socket_timeout=PATIENCE_SECONDS,
        socket_connect_timeout=PATIENCE_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    return redis.Redis(connection_pool=pool)


def fate(error):
    """What became of a command that ended with an error: refused, unknown, or never sent."""
    if isinstance(error, redis.WatchError):
        # redis-py says so too if it lost the connection while EXEC was under way.
        return "refused" if str(error) == "Watched variable changed." else "unknown"
    # redis-py has classes for some errors, and takes their word out of the text.
    if isinstance(error, (exceptions.ExecAbortError, exceptions.ClusterDownError, exceptions.TryAgainError)):
        return "refused"
    if isinstance(error, redis.ResponseError):
        # Of a command behind MULTI, redis-py says which one first.
        code = str(error).split("caused error: ")[-1].split(" ")[0]
        if code == "UNKNOWN":
            return "unknown"
        if code in ("CLUSTERDOWN", "TRYAGAIN", "MISCONF"):
            return "refused"
    elif isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
        # Nobody was there to send it to.
        return "unsent" if "Error 111" in str(error) else "unknown"
    raise error


def text(value):
    return None if value is None else value.decode()


def patiently(call):
    """For reads at the end, when a node may still be coming back."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            return call()
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
