"""The client without asyncio."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.client import Pipeline as RedisPipeline
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError, TimeoutError
from redis.retry import Retry

from .calls import ACQUIRE, TIMEOUTS, Call, Caller, Wire, run
from .commands import Kind, kind_of
from .lock import Lock
from .nodes import Node, parse_all, split_url, take_retry
from .transactions import Steps, transact, watched_body, whole_body


class Client(redis.Redis):
    """A `redis.Redis` over all nodes of a cluster, whose commands take effect exactly once.

    A command that may change something is a call of the client's session: it is tried under one
    number, at one node after the other, until its answer is known. A command that only reads is
    repeated. Threads may share a client, as they may a `redis.Redis`.

    Arguments besides those of `redis.Redis`:

    - `nodes`: addresses, as "host:port" or pairs. Any of them takes every command; the one that
      served last is tried first, or, where keys move, the one where a command's key lives.
    - `routes`: False has keys that move come to the node that served last.
    - `sessions`: False sends commands as they are. Then one that may have happened is not repeated,
      and raises `Unknown`.
    - `deadline`: seconds after which an operation begins no further try. One that is under way is
      waited for, at most `socket_timeout` (5 s if it is not given).

    redis-py's `retry` bounds the tries of an operation and says how long to pause between them, in place
    of pauses that double until the deadline. What `retry_on_timeout` and `retry_on_error` ask for happens
    without them.

    Commands raise `Failed` (it did not happen), `Unknown` (it may have), or what redis-py raises
    for an answer that is an error.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        password: str | None = None,
        *,
        nodes: Sequence[Node] | None = None,
        sessions: bool = True,
        routes: bool = True,
        deadline: float = 20.0,
        connection_pools: Sequence[redis.ConnectionPool] | None = None,
        **options: Any,
    ) -> None:
        retry = take_retry(options)
        pool = options.pop("connection_pool", None)
        pools = list(connection_pools or ([pool] if pool else []))
        if not pools:
            options = {**TIMEOUTS, **options, "retry": Retry(NoBackoff(), 0), "db": db, "password": password}
            pools = [
                redis.Redis(host=host, port=port, **options).connection_pool
                for host, port in parse_all(host, port, nodes)
            ]
        super().__init__(connection_pool=pools[0])
        self._pools = pools
        encode = self.get_encoder().encode
        self._caller = Caller(_Port(pools), encode, self.response_callbacks, sessions, deadline, retry, routes)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Client:  # type: ignore[override]
        """A client for a URL as `redis.Redis.from_url` takes it, with all hosts in it:
        `redis://:password@10.0.0.1:6379,10.0.0.2:6379/0`. Options are those of the constructor
        and of redis-py's connections."""
        own = {name: options.pop(name) for name in ("sessions", "routes", "deadline") if name in options}
        own["retry"] = take_retry(options)
        options = {**TIMEOUTS, **options, "retry": Retry(NoBackoff(), 0)}
        pools = [redis.ConnectionPool.from_url(one, **options) for one in split_url(url)]
        return cls(connection_pools=pools, **own)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """The answer of a command. Raises `Failed`, `Unknown`, or redis-py's `ResponseError`."""
        return run(self._caller.command(args, options))

    def ask_again(self, call: Call) -> Any:
        """The answer of a call that raised `Unknown`; may raise it again. The call is tried under
        its old number: if it has happened, this is its answer; if not, it happens now. A block that
        watched keys does not happen now: that raises redis-py's `WatchError`."""
        return run(self._caller.ask_again(call))

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        """A pipeline. With `transaction`, `execute` is one call: all or nothing, once. Otherwise
        each command is a call, and all are sent at once; one that has to be tried again comes after
        those that follow it. `execute(raise_on_error=False)` shows the outcome of each."""
        return Pipeline(self._caller, self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def transaction(  # type: ignore[override]
        self,
        func: Callable[[Any], Any],
        *watches: Any,
        shard_hint: Any = None,
        value_from_callable: bool = False,
        watch_delay: float | None = None,
    ) -> Any:
        """redis-py's `transaction`: runs the function at once, with a pipeline that watches these keys,
        and then what it has queued; again when they change meanwhile. `watch_delay` is in seconds."""
        body = watched_body(func, watches, value_from_callable)
        return run(transact(self._caller, self.pipeline(), body, watch_delay))

    def transactional(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """A decorator, `@client.transactional`: what the function does through its first argument,
        a `Transaction`, happens at one moment or not at all. It runs again when others change what
        it has read, so it must have no other effects. Its answer is what it returns; if that is the
        transaction itself, the answers of its writes.

        Raises `Failed` if others came first until the deadline, and `Unknown`.
        """

        @functools.wraps(func)
        def transacted(*args: Any, **options: Any) -> Any:
            transaction = Transaction(self._caller, self.connection_pool, self.response_callbacks, True, None)
            return run(transact(self._caller, transaction, whole_body(func, args, options), None))

        return transacted

    def lock(self, name: Any, *args: Any, lock_class: Any = None, **options: Any) -> Any:
        """redis-py's `lock`, whose locks are `quorate.Lock`s unless `lock_class` says otherwise."""
        return super().lock(name, *args, lock_class=lock_class or Lock, **options)

    def close(self) -> None:
        """Ends the session and closes all connections. The client can be used again: with a new
        session."""
        if hasattr(self, "_caller"):
            run(self._caller.close())
            for pool in self._pools:
                pool.disconnect()

    def __del__(self) -> None:
        """Connections end with their pools; a session that was not closed, with its lease."""


class Pipeline(Steps, RedisPipeline):
    """redis-py's pipeline. After `watch`, its connection stays with one node; if that is lost,
    `WatchError` says so, and nothing has happened."""

    def __init__(
        self, caller: Caller, connection_pool: Any, callbacks: Any, transaction: bool, shard_hint: Any
    ) -> None:
        self._caller = caller
        super().__init__(connection_pool, callbacks, transaction, shard_hint)

    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        """A command between `watch` and `multi`."""
        return run(self.immediate(args, options))

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """The answers of all that is queued; `WatchError` if a watched key has changed."""
        try:
            # redis-py has a flag where its clients have the method.
            is_block = bool(self.transaction) or self.explicit_transaction  # type: ignore[truthy-function]
            return run(self.execute_all(is_block, raise_on_error))
        finally:
            self.reset()

    def reset(self) -> None:  # type: ignore[override]
        """Forgets what is queued and watched."""
        self.command_stack: list[Any] = []
        self.scripts: set[Any] = set()
        self.explicit_transaction = False
        run(self.unpin())


class Transaction(Pipeline):
    """What a function decorated with `@client.transactional` is given.

    Commands that read answer at once, and watch their keys. Those that change something are queued
    until the function ends, and answer the transaction itself. Reads come first.
    """

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """The answer of a read; the transaction itself for anything else."""
        kind = kind_of(args)
        if kind is Kind.READ:
            return run(self.read(args, options))
        if kind is Kind.PLAIN:
            raise RedisError(f"{args[0]} is no part of a transaction")
        return self.pipeline_execute_command(*args, **options)


class _Lock:
    """A lock of threads, in the shape of an asynchronous one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class _Port:
    """Input and output that block, so that nothing here suspends."""

    def __init__(self, pools: Sequence[redis.ConnectionPool]) -> None:
        self._pools = pools
        self.nodes = len(pools)
        self.lock = _Lock()

    async def acquire(self, node: int) -> Any:
        return self._pools[node].get_connection(*ACQUIRE)

    async def release(self, node: int, connection: Any) -> None:
        self._pools[node].release(connection)

    async def exchange(
        self, connection: Any, wire: Wire, raw: Sequence[bool]
    ) -> tuple[list[Any], Exception | None]:
        replies: list[Any] = []
        try:
            connection.send_packed_command(connection.pack_commands(wire))
            for is_raw in raw:
                try:
                    replies.append(connection.read_response(disable_decoding=is_raw))
                except ResponseError as error:
                    replies.append(error)
        except AuthenticationError:
            connection.disconnect()
            raise
        except (ConnectionError, TimeoutError, OSError) as error:
            connection.disconnect()
            return replies, error
        except BaseException:
            # The replies to come would be taken for those of other commands.
            connection.disconnect()
            raise
        return replies, None

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)
