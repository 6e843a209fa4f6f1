"""The client with asyncio. Everything is as in `quorate.client`, with `await`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.client import Pipeline as RedisPipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError, TimeoutError

from .calls import ACQUIRE, TIMEOUTS, Call, Caller, Wire
from .commands import Kind, kind_of
from .lock import AsyncLock as Lock
from .nodes import Node, parse_all, split_url, take_retry
from .transactions import Steps, transact, watched_body, whole_body


class Client(redis.asyncio.Redis):
    """A `redis.asyncio.Redis` over all nodes of a cluster, whose commands take effect exactly once.

    Arguments and exceptions are those of `quorate.Client`. Tasks of one event loop may share it. A
    command whose task is cancelled may have happened, and can't be asked for.
    """

    # redis-py looks at it when a client that was never made is collected.
    connection: Any = None

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
        connection_pools: Sequence[redis.asyncio.ConnectionPool] | None = None,
        **options: Any,
    ) -> None:
        retry = take_retry(options)
        pool = options.pop("connection_pool", None)
        pools = list(connection_pools or ([pool] if pool else []))
        if not pools:
            options = {**TIMEOUTS, **options, "retry": Retry(NoBackoff(), 0), "db": db, "password": password}
            pools = [
                redis.asyncio.Redis(host=host, port=port, **options).connection_pool
                for host, port in parse_all(host, port, nodes)
            ]
        super().__init__(connection_pool=pools[0])
        self._pools = pools
        encode = self.get_encoder().encode
        self._caller = Caller(_Port(pools), encode, self.response_callbacks, sessions, deadline, retry, routes)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Client:  # type: ignore[override]
        """See `quorate.Client.from_url`."""
        own = {name: options.pop(name) for name in ("sessions", "routes", "deadline") if name in options}
        own["retry"] = take_retry(options)
        options = {**TIMEOUTS, **options, "retry": Retry(NoBackoff(), 0)}
        pools = [redis.asyncio.ConnectionPool.from_url(one, **options) for one in split_url(url)]
        return cls(connection_pools=pools, **own)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """The answer of a command. Raises `Failed`, `Unknown`, or redis-py's `ResponseError`."""
        return await self._caller.command(args, options)

    async def ask_again(self, call: Call) -> Any:
        """See `quorate.Client.ask_again`."""
        return await self._caller.ask_again(call)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        """See `quorate.Client.pipeline`."""
        return Pipeline(self._caller, self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def transaction(  # type: ignore[override]
        self,
        func: Callable[[Any], Any],
        *watches: Any,
        shard_hint: Any = None,
        value_from_callable: bool = False,
        watch_delay: float | None = None,
    ) -> Awaitable[Any]:
        """See `quorate.Client.transaction`. The function may be a coroutine function."""
        body = watched_body(func, watches, value_from_callable)
        return transact(self._caller, self.pipeline(), body, watch_delay)

    def transactional(self, func: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """See `quorate.Client.transactional`. The function may be a coroutine function."""

        @functools.wraps(func)
        async def transacted(*args: Any, **options: Any) -> Any:
            transaction = Transaction(self._caller, self.connection_pool, self.response_callbacks, True, None)
            return await transact(self._caller, transaction, whole_body(func, args, options), None)

        return transacted

    def lock(self, name: Any, *args: Any, lock_class: Any = None, **options: Any) -> Any:
        """See `quorate.Client.lock`."""
        return super().lock(name, *args, lock_class=lock_class or Lock, **options)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Ends the session and closes all connections, unless `close_connection_pool` is False."""
        await self._caller.close()
        if close_connection_pool is not False:
            for pool in self._pools:
                await pool.disconnect()

    async def close(self, close_connection_pool: bool | None = None) -> None:
        """The name of `aclose` in older versions of redis-py."""
        await self.aclose(close_connection_pool)


class Pipeline(Steps, RedisPipeline):  # type: ignore[misc]
    """redis-py's pipeline; see `quorate.client.Pipeline`."""

    def __init__(
        self, caller: Caller, connection_pool: Any, callbacks: Any, transaction: bool, shard_hint: Any
    ) -> None:
        self._caller = caller
        super().__init__(connection_pool, callbacks, transaction, shard_hint)

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        """A command between `watch` and `multi`."""
        return await self.immediate(args, options)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """The answers of all that is queued; `WatchError` if a watched key has changed."""
        try:
            return await self.execute_all(self.is_transaction or self.explicit_transaction, raise_on_error)
        finally:
            await self.reset()

    async def reset(self) -> None:  # type: ignore[override]
        """Forgets what is queued and watched."""
        self.command_stack = []
        self.scripts = set()
        self.explicit_transaction = False
        await self.unpin()


class Transaction(Pipeline):
    """What a function decorated with `@client.transactional` is given; see
    `quorate.client.Transaction`."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """The answer of a read, to be awaited; the transaction itself for anything else."""
        kind = kind_of(args)
        if kind is Kind.READ:
            return self.read(args, options)
        if kind is Kind.PLAIN:
            raise RedisError(f"{args[0]} is no part of a transaction")
        return self.pipeline_execute_command(*args, **options)


class _Port:
    """Input and output of an event loop."""

    def __init__(self, pools: Sequence[redis.asyncio.ConnectionPool]) -> None:
        self._pools = pools
        self.nodes = len(pools)
        self.lock = asyncio.Lock()

    async def acquire(self, node: int) -> Any:
        return await self._pools[node].get_connection(*ACQUIRE)

    async def release(self, node: int, connection: Any) -> None:
        await self._pools[node].release(connection)

    async def exchange(
        self, connection: Any, wire: Wire, raw: Sequence[bool]
    ) -> tuple[list[Any], Exception | None]:
        replies: list[Any] = []
        try:
            await connection.send_packed_command(connection.pack_commands(wire))
            for is_raw in raw:
                try:
                    replies.append(await connection.read_response(disable_decoding=is_raw))
                except ResponseError as error:
                    replies.append(error)
        except AuthenticationError:
            await connection.disconnect()
            raise
        except (ConnectionError, TimeoutError, OSError) as error:
            await connection.disconnect()
            return replies, error
        except BaseException:
            # The replies to come would be taken for those of other commands.
            await connection.disconnect()
            raise
        return replies, None

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
