"""How commands are tried until their outcome is known: all that `quorate.Client` and
`quorate.asyncio.Client` have in common.

It is written as coroutines over a `Port`, which does input and output. The port of the client
without asyncio never suspends, so `run` ends each of its coroutines in one step.
"""

from __future__ import annotations

import enum
import inspect
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import redis
from redis.client import EMPTY_RESPONSE, NEVER_DECODE
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    ExecAbortError,
    RedisError,
    ResponseError,
    TimeoutError,
    WatchError,
)

from .commands import KEY_BY_KEY, Kind, kind_of, name_of
from .errors import Failed, Unknown
from .routes import Routes, key_of
from .scripts import Scripts
from .session import ClientLease, Session

T = TypeVar("T")
#: A command with redis-py's options for it.
Part = tuple[Sequence[Any], Mapping[str, Any]]
Wire = list[tuple[bytes, ...]]

#: Pauses between tries in seconds: the first, and the longest. They double, and up to a half of
#: each is left to chance.
PAUSE_MIN = 0.001
PAUSE_MAX = 0.1
#: What pools want to know: older ones ask for the name of a command.
ACQUIRE = ("_",) if tuple(map(int, redis.__version__.split(".")[:2])) < (5, 3) else ()
#: Without these two, nobody would notice a node that hangs. In seconds.
TIMEOUTS = {"socket_timeout": 5.0, "socket_connect_timeout": 1.0}


class Port(Protocol):
    """Input and output of a client. `lock` is an asynchronous context manager."""

    nodes: int
    lock: Any

    async def acquire(self, node: int) -> Any:
        """A connection to this node; raises what redis-py raises if there is none."""

    async def release(self, node: int, connection: Any) -> None:
        """Gives a connection back."""

    async def exchange(
        self, connection: Any, wire: Wire, raw: Sequence[bool]
    ) -> tuple[list[Any], Exception | None]:
        """Sends commands and reads their replies, errors as values; if it breaks on the way, the
        replies that came and what broke it. `raw`, for each: as bytes, whatever the settings."""

    async def pause(self, seconds: float) -> None:
        """Lets time pass."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine whose port never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the port without asyncio suspended")


class Hint(enum.IntEnum):
    """What to do before the next try; of several, the largest."""

    GO_ON = 0
    OTHER_NODE = 1
    PAUSE = 2


class Call:
    """A command, or the block of a transaction, on its way: what `Unknown.call` gives."""

    def __init__(
        self, parts: Sequence[Part], encode: Callable[[Any], Any], is_block: bool, sessions: bool
    ) -> None:
        self.parts = parts
        # Encoded once: every try sends the same bytes.
        self.commands: Wire = [
            tuple(bytes(encode(word)) for word in _words(args))
            for args, options in parts
            if EMPTY_RESPONSE not in options
        ]
        self.is_block = is_block
        self.kind = _kind([kind_of(command) for command in self.commands], sessions)
        self.session: Session | None = None
        self.sequence = 0
        #: Keys whose change undoes the block.
        self.watched: list[bytes] = []
        #: Whether a try may have had an effect.
        self.in_doubt = False
        self.is_settled = False
        #: Whether it only finds out whether its number was used.
        self.is_probe = False
        #: Whether somebody has it as `Unknown.call`, and may ask for it.
        self.is_held = False
        self.answer: Any = None
        if not self.commands and not is_block:
            self.settle(parts[0][1][EMPTY_RESPONSE])

    def __repr__(self) -> str:
        words = b" ".join(self.commands[0][:2]).decode(errors="replace") if self.commands else ""
        text = f"{words} and {len(self.commands) - 1} more" if len(self.commands) > 1 else words
        number = f"{self.sequence} of session {self.session.id}" if self.session else "without a session"
        return f"<call {number}: {text}>"

    @property
    def raw(self) -> bool:
        """Whether the reply must not be decoded."""
        return not self.is_block and NEVER_DECODE in self.parts[0][1]

    def wire(self, is_numbered: bool = False) -> Wire:
        """What a try sends; as it is if its place says its number."""
        last = (b"EXEC",) if self.is_block else self.commands[0]
        if self.session is not None and not is_numbered:
            last = (b"SESSION", b"CALL", *self.session.numbers(self.sequence), *last)
        if not self.is_block:
            return [last]
        return [(b"MULTI",), *self.commands, last]

    def settle(self, answer: Any) -> None:
        """This is the answer, be it an error, and nobody will ask for it again."""
        self.answer = answer
        self.is_settled = True
        if self.session is not None and not self.is_probe:
            self.session.complete(self.sequence)

    def lose(self, why: object) -> None:
        """Nobody can say any more whether it happened."""
        self.settle(Unknown(f"{self!r} may or may not have happened: {why}"))

    def give_up(self, why: object) -> None:
        """No further try is made."""
        if not self.in_doubt:
            self.settle(Failed(f"{self!r} did not happen: {why}"))
        elif self.session is None:
            self.lose(why)
        else:
            # Its number stays open: it can be asked for.
            self.is_held = True
            self.answer = Unknown(f"{self!r} may or may not have happened: {why}", self)

    def abandon(self) -> None:
        """Its tries have ended without an outcome, and nobody is told. Unless somebody has a handle
        from before, nobody can ask for it."""
        if self.session is not None and not (self.is_settled or self.is_held or self.is_probe):
            self.session.complete(self.sequence)

    def restart(self) -> None:
        """It needs a new number, as its session is over and no try had an effect."""
        self.session = None


class Row(list[Call]):
    """New calls, and what reads between them, whose numbers their node counts (SESSION AUTO)."""

    def __init__(self, calls: Iterable[Call], session: Session, numbers: range) -> None:
        super().__init__(calls)
        self._session = session
        self._numbers = numbers

    def frame(self) -> tuple[Wire, Wire]:
        """What is sent before and behind it. Nothing is numbered that others send over the
        connection later: who counts wrong tries calls under the numbers of others."""
        begin = (b"SESSION", b"AUTO", *self._session.row(self._numbers))
        return [begin], [(b"SESSION", b"AUTO", b"OFF")]


def _words(args: Sequence[Any]) -> list[Any]:
    """redis-py writes "CONFIG GET" as one argument."""
    first = args[0]
    return [*(first.split() if isinstance(first, (str, bytes)) else [first]), *args[1:]]


def _is_row(pending: Sequence[Call], numbered: Sequence[Call]) -> bool:
    """Whether a node can count these: several commands of which none was tried before, and which do
    no more than read and update keys."""
    is_known = {Kind.CALL, Kind.READ}.issuperset(call.kind for call in pending)
    is_new = all(call.session is None for call in numbered)
    return len(numbered) > 1 and is_known and is_new and not any(call.is_block for call in pending)


def anchor(calls: Iterable[Call]) -> bytes | None:
    """The key that says where calls go: the first that one of them may change, or else the first."""
    commands = [command for call in calls for command in call.commands]
    updates = (command for command in commands if kind_of(command) is not Kind.READ)
    keys = (key_of(command) for command in (*updates, *commands))
    return next((key for key in keys if key is not None), None)


def _kind(kinds: Iterable[Kind], sessions: bool) -> Kind:
    found = set(kinds)
    if Kind.PLAIN in found or (Kind.CALL in found and not sessions):
        return Kind.PLAIN
    return Kind.CALL if Kind.CALL in found else Kind.READ


# --- what an error says -----------------------------------------------------------------------

# redis-py has classes for some, and takes the word out of their text.
_CLASSES = {
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "OutOfMemoryError": "OOM",
    "ExecAbortError": "EXECABORT",
}
_HINTS = {
    "TRYAGAIN": Hint.PAUSE,
    "CLUSTERDOWN": Hint.OTHER_NODE,
    "MAXSESSIONS": Hint.OTHER_NODE,
    "NOSESSION": Hint.PAUSE,
    "UNKNOWN": Hint.OTHER_NODE,
    "EXPIRED": Hint.PAUSE,
}
_MISTAKES = {"STALE", "WINDOW", "DIFFERENT"}
# These say nothing of earlier tries either, but are answers to a first one.
_REFUSALS = ("the session holds ", "a transaction reads and writes at most ")


def code_word(error: Exception) -> str:
    """The first word of an error reply."""
    return _CLASSES.get(type(error).__name__) or str(error).partition(" ")[0]


def is_refusal(error: Exception) -> bool:
    """Whether an error says that the cluster could not do it now, rather than what came of it."""
    return code_word(error) in _HINTS


def hint_of(error: Exception) -> Hint:
    """What to do about an error that is a refusal."""
    return _HINTS.get(code_word(error), Hint.GO_ON)


class Refused(Exception):
    """A try ended before the commands were sent."""

    def __init__(self, hint: Hint, why: Exception) -> None:
        super().__init__(str(why))
        self.hint = hint
        self.why = why


class Patience:
    """The time that an operation has: until its deadline, with pauses that double. redis-py's `Retry`, if
    there is one, bounds the tries besides, and says how long the pauses are."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._failures = 0
        self._end = time.monotonic() + caller.deadline
        self._moves = 0
        self._pauses = 0

    @property
    def is_over(self) -> bool:
        """Whether no further try may begin."""
        retry = self._caller.retry
        # redis-py counts the tries after the first; less than none are as many as it takes.
        tried_enough = retry is not None and 0 <= retry.get_retries() < self._failures
        return tried_enough or time.monotonic() >= self._end

    async def wait(self, hint: Hint, node: int) -> bool:
        """Prepares the next try after one at this node; False if the time is over."""
        if hint is Hint.GO_ON:
            return True
        self._failures += 1
        if hint is Hint.OTHER_NODE:
            # Also for operations to come.
            self._caller.leave(node)
        if self.is_over:
            return False
        if self._caller.retry is not None:
            await self._caller.port.pause(self._caller.retry._backoff.compute(self._failures))
            return True
        if hint is Hint.OTHER_NODE:
            self._moves += 1
            if self._moves % self._caller.port.nodes:
                return True
        pause = min(PAUSE_MAX, PAUSE_MIN * 2 ** min(self._pauses, 20))
        self._pauses += 1
        await self._caller.port.pause(pause * random.uniform(0.5, 1.0))
        return True


class Caller:
    """Tries calls at the nodes until their outcome is known or the deadline is over."""

    def __init__(
        self,
        port: Port,
        encode: Callable[[Any], Any],
        callbacks: Mapping[Any, Callable[..., Any]],
        sessions: bool,
        deadline: float,
        retry: Any = None,
        routes: bool = True,
    ) -> None:
        self.port = port
        self.encode = encode
        self.callbacks = callbacks
        self.sessions = sessions
        self.deadline = deadline
        self.retry = retry
        #: The node that is tried first where keys don't move: the last one that served.
        self.node = 0
        #: Which node is tried first where they do.
        self.routes = Routes(port.nodes, routes)
        #: The scripts that were loaded through this client.
        self.scripts = Scripts()
        self._session: Session | None = None
        # Which session each connection makes the calls of, and what it was told of its lease last. Others
        # may have been told of a later renewal.
        self._attached: dict[Any, tuple[Session, ClientLease]] = {}
        # The connections whose nodes count commands if they are asked to.
        self._counting: set[Any] = set()

    def new(self, parts: Sequence[Part], is_block: bool = False) -> Call:
        """A call that nobody has tried."""
        spelt = [(self.scripts.spelt(args), options) for args, options in parts]
        return Call(spelt, self.encode, is_block, self.sessions)

    def leave(self, node: int) -> None:
        """Others may have left it as well."""
        self.routes.failed(node)
        if self.node == node:
            self.node = (node + 1) % self.port.nodes

    def node_for(self, key: bytes | None) -> int:
        """The node that a request with this key is sent to."""
        node = self.routes.node_for(key)
        return self.node if node is None else node

    async def command(self, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """The answer of one command."""
        call = self.new([(args, options)])
        await self.perform([call])
        is_crosskey = isinstance(call.answer, ResponseError) and code_word(call.answer) == "CROSSKEY"
        if is_crosskey and name_of(args) in KEY_BY_KEY:
            return await self._key_by_key(args, options)
        return await self.result(call)

    async def _key_by_key(self, args: Sequence[Any], options: Mapping[str, Any]) -> int:
        """The sum of a command's answers for each of its keys: where the engine changes one key at a
        time, nodes do it so without a session."""
        calls = [self.new([((args[0], key), options)]) for key in args[1:]]
        await self.perform(calls)
        failures = [call.answer for call in calls if isinstance(call.answer, Exception)]
        if len(failures) == len(calls) and all(isinstance(failure, Failed) for failure in failures):
            raise failures[0]
        if failures:
            text = f"{name_of(args)} happened for some of its keys, and not or perhaps not for others"
            raise Unknown(f"{text}: {failures[0]}") from failures[0]
        return sum(call.answer for call in calls)

    async def ask_again(self, call: Call) -> Any:
        """The answer of a call whose outcome was unknown."""
        if call.session is None or call.is_settled:
            raise ValueError(f"{call!r} can't be asked for: its outcome is settled, or it has no number")
        if call.watched:
            await self.resolve(call)
        else:
            await self.perform([call])
        return await self.result(call)

    async def perform(self, calls: Sequence[Call]) -> None:
        """Tries these calls, in a row, until all are settled or the time is over. Those that had
        to be tried again come after those that follow them."""
        patience = Patience(self)
        pending = [call for call in calls if not call.is_settled]
        why: object = "the deadline is over"
        try:
            while pending:
                key = anchor(pending)
                node = self.node_for(key)
                try:
                    hint, error = await self._round(node, pending, key)
                except RedisError as refused:
                    # A password or a database that is wrong, say, is an error at once.
                    if not any(call.in_doubt for call in pending):
                        raise
                    hint, error = Hint.OTHER_NODE, refused
                why = error or why
                pending = [call for call in pending if not call.is_settled]
                if pending and not await patience.wait(hint, node):
                    break
        except BaseException:
            for call in pending:
                call.abandon()
            raise
        for call in pending:
            call.give_up(why)

    async def _round(
        self, node: int, pending: Sequence[Call], key: bytes | None
    ) -> tuple[Hint, Exception | None]:
        try:
            connection = await self.port.acquire(node)
        except AuthenticationError:
            raise
        except (ConnectionError, TimeoutError, OSError) as error:
            return Hint.OTHER_NODE, error
        try:
            return await self._attempt(node, connection, pending, key)
        finally:
            await self.port.release(node, connection)

    async def _attempt(
        self, node: int, connection: Any, pending: Sequence[Call], key: bytes | None
    ) -> tuple[Hint, Exception | None]:
        """One try at as many of these calls as one session has numbers for."""
        try:
            batch = await self.prepare(connection, pending)
            await self._watch_again(connection, batch)
        except Refused as refused:
            return refused.hint, refused.why
        return await self.send(node, connection, batch, key)

    async def send(
        self, node: int, connection: Any, batch: Sequence[Call], key: bytes | None
    ) -> tuple[Hint, Exception | None]:
        """Makes these calls, and hears what comes of them. In front of them may be a question about
        where this key lives."""
        question = self.routes.question(node, key)
        is_row = isinstance(batch, Row)
        before, behind = batch.frame() if isinstance(batch, Row) else ([], [])
        wires = [call.wire(is_row) for call in batch]
        wire = [*before, *(command for commands in wires for command in commands), *behind]
        raw = [call.raw for call, commands in zip(batch, wires) for _ in commands]
        raw = [*(False for _ in before), *raw, *(False for _ in behind)]
        replies, lost = await self.exchange(node, connection, wire, raw, question)
        # If numbering was refused, so are the calls: that says enough.
        replies = replies[len(before) :]
        hint, why = Hint.GO_ON, lost
        for call, commands in zip(batch, wires):
            own, replies = replies[: len(commands)], replies[len(commands) :]
            if len(own) == len(commands):
                heard, error = self._hear(connection, call, own)
                hint, why = max(hint, heard), error or why
            elif call.kind is not Kind.READ:
                call.in_doubt = True
                if call.session is None:
                    call.lose(lost)
        if lost is not None:
            self._attached.pop(connection, None)
            hint = max(hint, Hint.OTHER_NODE)
        return hint, why

    async def exchange(
        self,
        node: int,
        connection: Any,
        wire: Wire,
        raw: Sequence[bool],
        question: tuple[bytes, ...] | None,
    ) -> tuple[list[Any], Exception | None]:
        """The port's `exchange`, behind a question if there is one."""
        if question is not None:
            wire, raw = [question, *wire], [True, *raw]
        replies, lost = await self.port.exchange(connection, wire, raw)
        if lost is None:
            self.routes.served(node)
        if question is not None and replies:
            self.routes.learn(node, question, replies.pop(0))
        return replies, lost

    def _hear(
        self, connection: Any, call: Call, replies: Sequence[Any]
    ) -> tuple[Hint, Exception | None]:
        """What a node says to one try at a call."""
        last = replies[-1]
        if isinstance(last, ExecAbortError):
            # A block that was not executed: the command that was refused says why.
            last = next((r for r in replies[:-1] if isinstance(r, Exception)), last)
        if not isinstance(last, Exception):
            call.settle(last)
            return Hint.GO_ON, None
        word = code_word(last)
        if word == "EXECABORT" and "CLUSTERDOWN" in str(last):
            word = "CLUSTERDOWN"
        if call.session is None and word in ("NOSESSION", "EXPIRED", "MAXSESSIONS"):
            # The answer to somebody's own SESSION.
            call.settle(last)
            return Hint.GO_ON, None
        if word == "NOSESSION":
            self._attached.pop(connection, None)
        elif word == "UNKNOWN" and call.kind is not Kind.READ:
            call.in_doubt = True
            if call.session is None:
                call.lose(last)
        elif word == "EXPIRED":
            assert call.session is not None, "looked at above"
            _, told = self._attached.get(connection, (None, None))
            if told is None or call.session.is_later_than(told):
                # The node judges by what it was shown, if it has not known the lease from the beginning.
                # Another connection has been told of a later renewal: this one shows that next.
                self._attached.pop(connection, None)
                return _HINTS["NOSESSION"], last
            self._expired(call.session, [call], last)
        elif word in _MISTAKES and call.session is not None and not call.is_probe:
            if call.in_doubt:
                call.lose(last)
            else:
                call.give_up(last)
        elif word not in _HINTS:
            says_nothing = word in ("OOM", "MISCONF") or str(last).startswith(_REFUSALS)
            if not (call.in_doubt and says_nothing):
                call.settle(last)
                return Hint.GO_ON, None
            return Hint.PAUSE, last
        return _HINTS.get(word, Hint.GO_ON), last

    def _expired(self, session: Session, calls: Sequence[Call], why: Exception) -> None:
        session.is_over = True
        for call in calls:
            if call.session is session:
                if call.in_doubt:
                    call.lose(why)
                else:
                    call.restart()

    # --- sessions ------------------------------------------------------------------------------

    async def prepare(self, connection: Any, pending: Sequence[Call]) -> Sequence[Call]:
        """Those of these calls that this connection can make now, with their numbers. Raises Refused
        if a node does not let it."""
        numbered = [call for call in pending if call.kind is Kind.CALL]
        if not numbered:
            return pending
        session = next((call.session for call in numbered if call.session is not None), None)
        if session is None:
            session = await self._current(connection)
        await self._attach(connection, session, numbered)
        if connection in self._counting and _is_row(pending, numbered):
            return self._row(session, pending)
        batch: list[Call] = []
        for call in pending:
            if call.kind is Kind.CALL:
                if call.session is None:
                    sequence = session.begin()
                    if sequence is None:
                        break
                    call.session, call.sequence = session, sequence
                elif call.session is not session:
                    break
            batch.append(call)
        return self._or_replace(session, batch)

    def _row(self, session: Session, pending: Sequence[Call]) -> Sequence[Call]:
        """As many of these new calls as the session has numbers for. What only reads takes one too:
        the node counts it."""
        numbers = session.begin_row(len(pending))
        row = Row(pending[: len(numbers)], session, numbers)
        for call, number in zip(row, numbers):
            if call.kind is Kind.CALL:
                call.session, call.sequence = session, number
            else:
                session.complete(number)
        return self._or_replace(session, row)

    def _or_replace(self, session: Session, batch: Sequence[Call]) -> Sequence[Call]:
        if not batch and self._session is session:
            # Its oldest call holds up the window. It can still be asked for; others go on in
            # another session.
            self._session = None
        return batch

    async def _current(self, connection: Any) -> Session:
        """The session of new calls: opened when the first needs it."""
        session = self._session
        if session is not None and session.may_begin(time.monotonic()):
            return session
        async with self.port.lock:
            # Another thread or task may have been here.
            session = self._session
            if session is None or not session.may_begin(time.monotonic()):
                sent = time.monotonic()
                reply = await self._ask_lease(connection, b"OPEN")
                self._session = session = Session(reply, sent)
                self._attached[connection] = session, session.opened
        return session

    async def _attach(self, connection: Any, session: Session, calls: Sequence[Call]) -> None:
        """Lets the connection make the session's calls, and renews the lease when that is due for it."""
        sent = time.monotonic()
        attached, told = self._attached.get(connection, (None, None))
        if attached is session and told is not None and not told.is_due(sent):
            return
        # Calls wait for the answer: without it, they might run in the session before.
        self._attached.pop(connection, None)
        shown = session.lease
        try:
            reply = await self._ask_lease(connection, b"RENEW", *shown)
        except Refused as refused:
            if code_word(refused.why) == "EXPIRED" and shown == session.lease:
                self._expired(session, calls, refused.why)
            raise
        self._attached[connection] = session, session.renewed(reply, sent)

    async def _watch_again(self, connection: Any, batch: Sequence[Call]) -> None:
        """A block that watched keys is asked for with them: they are among the keys that say where
        its record lies."""
        keys = [key for call in batch for key in call.watched]
        if keys:
            await self._ask(connection, b"WATCH", *keys)

    async def _ask_lease(self, connection: Any, *words: bytes) -> Any:
        """The answer to a request for a session. And whether the node counts commands: one that does
        not would take those behind SESSION AUTO for plain ones."""
        self._counting.discard(connection)
        wire = [(b"SESSION", *words), (b"SESSION", b"AUTO", b"OFF")]
        reply, counting = await self._ask_all(connection, wire)
        if not isinstance(counting, Exception):
            self._counting.add(connection)
        return self._checked(reply)

    async def _ask(self, connection: Any, *words: bytes) -> Any:
        return self._checked((await self._ask_all(connection, [words]))[0])

    async def _ask_all(self, connection: Any, wire: Wire) -> list[Any]:
        replies, lost = await self.port.exchange(connection, wire, [False for _ in wire])
        if lost is not None:
            self._attached.pop(connection, None)
            raise Refused(Hint.OTHER_NODE, lost)
        return replies

    def _checked(self, reply: Any) -> Any:
        if not isinstance(reply, Exception):
            return reply
        if is_refusal(reply):
            raise Refused(hint_of(reply), reply)
        if str(reply).lower().startswith("unknown command"):
            raise Failed("this server has no sessions; if it is meant, pass sessions=False") from reply
        raise reply

    async def close(self) -> None:
        """Ends the session if nobody can ask for anything in it. Its lease ends by itself if no
        node can be asked now."""
        session, self._session = self._session, None
        if session is None or not session.may_close():
            return
        try:
            connection = await self.port.acquire(self.node)
            try:
                words = (b"SESSION", b"CLOSE", *session.lease)
                await self.port.exchange(connection, [words], [False])
                self._attached.pop(connection, None)
            finally:
                await self.port.release(self.node, connection)
        except (RedisError, OSError):
            pass

    # --- answers -------------------------------------------------------------------------------

    async def result(self, call: Call, raise_on_error: bool = True) -> Any:
        """The answer of a call as redis-py gives it."""
        answer = call.answer
        if isinstance(answer, Exception):
            raise answer
        if not call.is_block:
            args, options = call.parts[0]
            return answer if EMPTY_RESPONSE in options else await self.translate(answer, args, options)
        if answer is None:
            raise WatchError("Watched variable changed.")
        answers, results = iter(answer), []
        for args, options in call.parts:
            if EMPTY_RESPONSE in options:
                results.append(options[EMPTY_RESPONSE])
                continue
            one = next(answers)
            if isinstance(one, Exception) and raise_on_error:
                raise one
            results.append(one if isinstance(one, Exception) else await self.translate(one, args, options))
        return results

    async def translate(self, answer: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """What redis-py makes of an answer."""
        callback = self.callbacks.get(args[0])
        if callback is None:
            return answer
        own = {NEVER_DECODE, EMPTY_RESPONSE, "keys"}
        result = callback(answer, **{name: options[name] for name in options if name not in own})
        return await result if inspect.isawaitable(result) else result

    # --- transactions --------------------------------------------------------------------------

    async def resolve(self, call: Call) -> None:
        """Finds out about a block that watched keys. It must not simply be tried again: if no try
        arrived, it would run without its watches. So something harmless is called under its number.
        If that finds the number used, the block has an answer, which can be asked for. If not, the
        block has not happened and never will."""
        assert call.session is not None, "a block in doubt has its number"
        probe = self.new([((b"SETRANGE", key, 0, b""), {}) for key in await self._keys(call)], True)
        probe.session, probe.sequence, probe.watched = call.session, call.sequence, call.watched
        probe.in_doubt = probe.is_probe = True
        await self.perform([probe])
        if not probe.is_settled:
            call.give_up(probe.answer)
        elif isinstance(probe.answer, Unknown):
            call.lose(probe.answer)
        elif isinstance(probe.answer, Exception) and code_word(probe.answer) == "DIFFERENT":
            await self.perform([call])
        else:
            call.settle(None)

    async def _keys(self, call: Call) -> list[bytes]:
        """The keys that a block's commands name."""
        asked = [self.new([((b"COMMAND", b"GETKEYS", *command), {})]) for command in call.commands]
        await self.perform(asked)
        found: dict[bytes, None] = {}
        for one in asked:
            if isinstance(one.answer, Failed):
                call.give_up(one.answer)
                raise call.answer
            if not isinstance(one.answer, Exception):
                found.update(dict.fromkeys(bytes(self.encode(key)) for key in one.answer))
        return list(found)
