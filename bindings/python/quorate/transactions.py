"""WATCH, MULTI and EXEC: what the pipelines with and without asyncio have in common."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    RedisError,
    ResponseError,
    TimeoutError,
    WatchError,
)

from .calls import Call, Caller, Hint, Part, Patience, Refused, anchor, hint_of, is_refusal
from .commands import Kind, keys_read, kind_of, name_of
from .errors import Failed
from .routes import key_of

T = TypeVar("T")


class Watching:
    """A connection that watches keys."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._node = 0
        self._connection: Any = None
        self.keys: list[bytes] = []

    async def command(
        self, args: Sequence[Any], options: Mapping[str, Any], watch: Sequence[Any] = ()
    ) -> Any:
        """The answer of a command that changes no key, through this connection, which watches these
        keys from before it on. Raises WatchError if what was watched is lost."""
        caller = self._caller
        call = caller.new([(args, options)])
        if call.is_settled:
            return await caller.result(call)
        keys = [bytes(caller.encode(key)) for key in watch]
        keys = [key for key in dict.fromkeys(keys) if key not in self.keys]
        wire = [(b"WATCH", *keys), *call.commands] if keys else call.commands
        name = name_of(call.commands[0])
        if name == "WATCH":
            keys = list(call.commands[0][1:])
        patience = Patience(caller)
        while True:
            is_first = self._connection is None
            key = keys[0] if keys else key_of(call.commands[0])
            hint, failure = await self._try(wire, keys, call.raw, key)
            if isinstance(failure, ResponseError) and not is_refusal(failure):
                raise failure
            if failure is None:
                break
            await self.close()
            if not is_first:
                raise WatchError(f"the watches are lost: {failure}")
            if not await patience.wait(hint, self._node):
                raise Failed(f"{call!r} did not happen: {failure}")
        if name == "UNWATCH":
            self.keys = []
        return await caller.translate(self._answer, args, options)

    async def _try(
        self, wire: Sequence[tuple[bytes, ...]], keys: Sequence[bytes], raw: bool, key: bytes | None
    ) -> tuple[Hint, Exception | None]:
        caller, question = self._caller, None
        try:
            if self._connection is None:
                # Where its first key lives.
                self._node = caller.node_for(key)
                self._connection = await caller.port.acquire(self._node)
                question = caller.routes.question(self._node, key)
        except AuthenticationError:
            raise
        except (ConnectionError, TimeoutError, OSError) as error:
            return Hint.OTHER_NODE, error
        # If WATCH succeeds and the command does not, the keys are watched as well.
        self.keys += keys
        raws = [raw] * len(wire)
        replies, lost = await caller.exchange(self._node, self._connection, list(wire), raws, question)
        if lost is not None:
            self.keys = []
            return Hint.OTHER_NODE, lost
        self._answer = replies[-1]
        failure = next((reply for reply in replies if isinstance(reply, Exception)), None)
        return (Hint.GO_ON, None) if failure is None else (hint_of(failure), failure)

    async def commit(self, parts: Sequence[Part]) -> Call:
        """Executes a block under the watches. Raises WatchError if it has not happened: a key has
        changed, or the try did nothing."""
        call = self._caller.new(parts, is_block=True)
        call.watched = self.keys
        try:
            why = await self._execute(call)
            if call.in_doubt and not call.is_settled:
                await self._caller.resolve(call)
            if not (call.is_settled or call.is_held):
                raise WatchError(f"the block did not happen: {why}")
        except BaseException:
            call.abandon()
            raise
        return call

    async def _execute(self, call: Call) -> object:
        """One try at a block; why it may not have happened."""
        try:
            batch = await self._caller.prepare(self._connection, [call])
        except Refused as refused:
            return refused.why
        if not batch:
            return "its session has too many calls whose outcome is open"
        _, why = await self._caller.send(self._node, self._connection, batch, anchor(batch))
        # EXEC ends the watches, whatever it answers.
        self.keys = []
        return why

    async def close(self) -> None:
        """Ends the watches and gives the connection back."""
        connection, self._connection = self._connection, None
        keys, self.keys = self.keys, []
        if connection is None:
            return
        try:
            if keys:
                await self._caller.port.exchange(connection, [(b"UNWATCH",)], [False])
        finally:
            await self._caller.port.release(self._node, connection)


class Steps:
    """What a pipeline does, as coroutines. It is mixed into redis-py's pipelines."""

    _caller: Caller
    _watching: Watching | None = None
    command_stack: Any
    watching: bool

    async def immediate(self, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """A command between WATCH and MULTI."""
        name = name_of(args)
        if kind_of(args) is not Kind.READ and name not in ("WATCH", "UNWATCH"):
            return await self._caller.command(args, options)
        return await self._watch(args, options)

    async def read(self, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """A read of a transaction, which watches what it reads."""
        keys = keys_read(args)
        if not keys:
            raise RedisError(f"{name_of(args)} is no part of a transaction: no key of it can be watched")
        if self.command_stack:
            raise RedisError("a transaction reads before it writes: its writes wait for the commit")
        return await self._watch(args, options, keys)

    async def _watch(self, args: Sequence[Any], options: Mapping[str, Any], keys: Sequence[Any] = ()) -> Any:
        watching = self._watching = self._watching or Watching(self._caller)
        try:
            return await watching.command(args, options, keys)
        finally:
            self.watching = bool(watching.keys)

    async def execute_all(self, is_block: bool, raise_on_error: bool) -> list[Any]:
        """The answers of all that is queued."""
        parts, watching = list(self.command_stack), self._watching
        if watching is not None and not watching.keys:
            watching = None
        if self.watching and watching is None:
            raise WatchError("the watches are lost")
        if not parts and watching is None:
            return []
        caller = self._caller
        if not is_block:
            calls = [caller.new([part]) for part in parts]
            await caller.perform(calls)
            results = [await _outcome(caller, call) for call in calls]
        else:
            if watching is not None:
                call = await watching.commit(parts)
            else:
                call = caller.new(parts, is_block=True)
                await caller.perform([call])
            results = await caller.result(call, raise_on_error=False)
        if raise_on_error:
            for number, (result, (args, _)) in enumerate(zip(results, parts), 1):
                if isinstance(result, ResponseError):
                    self.annotate_exception(result, number, args)  # type: ignore[attr-defined]
                if isinstance(result, Exception):
                    raise result
        return results

    async def unpin(self) -> None:
        """Gives up the connection that watches."""
        watching, self._watching = self._watching, None
        self.watching = False
        if watching is not None:
            await watching.close()


async def _outcome(caller: Caller, call: Call) -> Any:
    """A call's answer, or its exception as a value."""
    try:
        return await caller.result(call)
    except RedisError as error:
        return error


async def transact(caller: Caller, pipeline: Steps, body: Callable[[Any], Awaitable[T]], pause: float | None) -> T:
    """Runs a transaction from its beginning until nothing that it watches changes under it.
    `pause`: seconds between tries, in place of pauses that grow."""
    patience = Patience(caller)
    while True:
        try:
            return await body(pipeline)
        except WatchError as conflict:
            if patience.is_over:
                text = f"the transaction did not happen before the deadline: {conflict}"
                raise Failed(text) from conflict
            if pause is None:
                await patience.wait(Hint.PAUSE, caller.node)
            else:
                await caller.port.pause(pause)
        finally:
            await pipeline.unpin()
            # What it queued belongs to the try that is over.
            pipeline.command_stack = []
            pipeline.explicit_transaction = False  # type: ignore[attr-defined]


async def settled(value: Any) -> Any:
    """A value, or what it is to become."""
    return await value if inspect.isawaitable(value) else value


def watched_body(
    function: Callable[[Any], Any], watches: Sequence[Any], value_from_callable: bool
) -> Callable[[Any], Awaitable[Any]]:
    """redis-py's transaction: with keys to watch, the function calls `multi` of the pipeline it is given."""

    async def body(pipeline: Any) -> Any:
        if watches:
            await pipeline.immediate(("WATCH", *watches), {})
        value = await settled(function(pipeline))
        answers = await pipeline.execute_all(True, True)
        return value if value_from_callable else answers

    return body


def whole_body(
    function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
) -> Callable[[Any], Awaitable[Any]]:
    """A decorated function: all that it does through its first argument is one transaction."""

    async def body(transaction: Any) -> Any:
        value = await settled(function(transaction, *args, **options))
        answers = await transaction.execute_all(True, True)
        return answers if value is transaction else value

    return body
