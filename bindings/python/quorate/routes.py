"""Which node a request goes to, in keyspaces whose keys move to where they are used.

A request goes where its first key lives: the first that it may change, or else the first. Keys of one
unit, a hash tag or else a whole key, live together. Where a unit is used that nothing is known of, its
default owner serves it, which a client computes from the nodes' ids as nodes do. A unit may be elsewhere:
so the client asks now and then (PLACEMENT GET), in front of a request that it sends anyhow, and keeps a
hint of the answer. A wrong hint costs a move, or the node that was asked forwards the request. The client
for Rust has the same rules (`routes.rs`)."""

from __future__ import annotations

import binascii
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

#: The most units that a client remembers the places of.
HINTS_MAX = 16 * 1024
#: With which request for a unit it asks where the unit lives.
HINT_USES = 4
#: After how many seconds at most it asks again; after half of them at least.
HINT_AGE = 10.0
#: For how many seconds a node that failed is left alone while others serve: at first, and at most.
REST_MIN = 0.5
REST_MAX = 30.0
#: What is asked of each node with the first request to it.
INTRODUCTION = (b"INFO", b"quorate", b"placement")

SHARDS = 256
_MASK = 2**64 - 1
_SECRETS = 0x2D358DCCAA6C78A5, 0x8BB84B93962EACC9, 0x4B33A62ED433D4A3


def unit_of(key: bytes) -> bytes:
    """The hash tag of a key, or else the key."""
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1) if begin >= 0 else -1
    return key[begin + 1 : end] if end > begin + 1 else key


def shard_of(key: bytes) -> int:
    """The shard of a key: 64 slots of a Redis cluster."""
    return (binascii.crc_hqx(unit_of(key), 0) % 16384) * SHARDS // 16384


def _folded(one: int, other: int) -> int:
    product = one * other
    return (product & _MASK) ^ (product >> 64)


def rank(shard: int, node: int) -> int:
    """Of the nodes of a shard the one with the largest is its default owner: rapidhash (v3) of three
    bytes, as nodes compute it."""
    low, high = node & 255, node >> 8
    product = ((shard << 45 | high) ^ _SECRETS[1]) * (low ^ _folded(_SECRETS[2], _SECRETS[1]))
    return _folded((product & _MASK) ^ 0xAAAAAAAAAAAAAAAA, (product >> 64) ^ _SECRETS[1] ^ 3)


# Where the first key of a command stands, if not behind its name.
_PLACES = {
    **dict.fromkeys("EVAL EVALSHA EVAL_RO EVALSHA_RO FCALL FCALL_RO BLMPOP BZMPOP".split(), 3),
    **dict.fromkeys(
        "BITOP OBJECT XGROUP XINFO MEMORY PLACEMENT LMPOP ZMPOP SINTERCARD ZUNION ZINTER ZDIFF ZINTERCARD".split(), 2
    ),
    **dict.fromkeys(
        "ACL AUTH CLIENT CLUSTER COMMAND CONFIG DEBUG ECHO FLUSHALL FLUSHDB FUNCTION HELLO INFO KEYRANGE KEYS "
        "LATENCY LOLWUT PING PSUBSCRIBE PUBLISH PUBSUB SCAN SCRIPT SELECT SESSION SLOWLOG SPUBLISH SSUBSCRIBE "
        "SUBSCRIBE WAIT WAITAOF".split()
    ),
}


def key_of(command: Sequence[bytes]) -> bytes | None:
    """The key that says where a command goes, if it names one."""
    name = command[0].decode(errors="replace").upper()
    place = _PLACES.get(name, 1)
    if name in ("XREAD", "XREADGROUP"):
        words = [word.upper() for word in command]
        place = words.index(b"STREAMS") + 1 if b"STREAMS" in words else None
    elif name.startswith(("EVAL", "FCALL")) and len(command) > 2 and command[2] == b"0":
        return None
    return command[place] if place is not None and place < len(command) else None


class Hint:
    """What is known of one unit."""

    __slots__ = ("node", "old_at", "uses")

    def __init__(self) -> None:
        #: The id of the node where it was.
        self.node: int | None = None
        #: Requests for it.
        self.uses = 0
        #: When to ask about it again.
        self.old_at: float | None = None


class Routes:
    """What one client knows of nodes and of where keys live. Threads may share it."""

    def __init__(self, nodes: int, wanted: bool) -> None:
        self._nodes = nodes
        #: Whether keys move; None until a node has said it.
        self.moves: bool | None = None if wanted and nodes > 1 else False
        # The id of the node at each address.
        self._ids: dict[int, int] = {}
        self._orders: dict[int, list[int]] = {}
        # Units used lately, and before that.
        self._hints: dict[bytes, Hint] = {}
        self._older: dict[bytes, Hint] = {}
        # Until when a node that failed rests, and how long its next rest is.
        self._rests: dict[int, tuple[float, float]] = {}

    def rests(self, node: int) -> bool:
        """Whether others are to be tried before this node."""
        rest = self._rests.get(node)
        return rest is not None and rest[0] > time.monotonic()

    def failed(self, node: int) -> None:
        """The node at this address can't be reached, or does not serve."""
        length = self._rests.get(node, (0.0, REST_MIN))[1]
        self._rests[node] = time.monotonic() + length, min(2 * length, REST_MAX)

    def served(self, node: int) -> None:
        """The node at this address has answered."""
        if self._rests:
            self._rests.pop(node, None)

    def node_for(self, key: bytes | None) -> int | None:
        """The address for a request with this key; None if any is as good as another."""
        if key is None or not self.moves:
            return None
        order = self._order(shard_of(key))
        hint = self._hints.get(unit := unit_of(key)) or self._older.get(unit)
        if hint is not None and (place := hint.node) is not None:
            # Behind those that were never met.
            order = sorted(order, key=lambda at: self._ids.get(at, place) != place)
        fresh = next((at for at in order if not self.rests(at)), None)
        return min(order, key=lambda at: self._rests.get(at, (0.0, 0.0))) if fresh is None else fresh

    def _order(self, shard: int) -> list[int]:
        # Another thread may learn of another id meanwhile, and then begins new orders.
        orders, ids = self._orders, dict(self._ids)
        order = orders.get(shard)
        if order is None:

            def place(at: int) -> tuple[bool, int]:
                # Who was never met comes first, once: without all ids there is no default owner.
                return at in ids, -rank(shard, ids[at]) if at in ids else 0

            order = orders[shard] = sorted(range(self._nodes), key=place)
        return order

    def question(self, node: int, key: bytes | None) -> tuple[bytes, ...] | None:
        """What a request with this key to this node asks besides."""
        if self.moves is False:
            return None
        if node not in self._ids:
            return INTRODUCTION
        if key is None:
            return None
        hint = self._used(unit_of(key))
        hint.uses += 1
        now = time.monotonic()
        if hint.uses < HINT_USES if hint.old_at is None else now < hint.old_at:
            return None
        # Whatever the answer, the next question is for later.
        hint.old_at = now + HINT_AGE * random.uniform(0.5, 1.0)
        return b"PLACEMENT", b"GET", key

    def learn(self, node: int, question: tuple[bytes, ...], answer: Any) -> None:
        """Takes the answer of the node at this address."""
        if isinstance(answer, Exception):
            # Refusals say nothing; other servers know no such command.
            if _is_about_the_command(answer):
                self.moves = False
        elif question == INTRODUCTION:
            text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
            found = re.search(r"^node:(\d+)", text, re.MULTILINE)
            self.moves = found is not None and "# Placement" in text
            if found is not None:
                self._ids[node] = int(found[1])
                # Behind the id, for threads that make orders.
                self._orders = {}
        else:
            told = _pairs(answer)
            place = told.get(b"pinned")
            place = told.get(b"owner") if place is None else place
            # Of a node without an address here the default owner will do.
            known = isinstance(place, int) and place in self._ids.values()
            self._used(unit_of(question[2])).node = place if known else None

    def _used(self, unit: bytes) -> Hint:
        hint = self._hints.get(unit)
        if hint is None:
            if len(self._hints) >= HINTS_MAX // 2:
                # What was not used since is forgotten.
                self._older, self._hints = self._hints, {}
            hint = self._hints[unit] = self._older.pop(unit, None) or Hint()
        return hint


def _is_about_the_command(error: Exception) -> bool:
    """Whether no node of this keyspace answers such a command. redis-py leaves the word ERR away."""
    is_other = type(error) is not ResponseError or str(error).partition(" ")[0].isupper()
    return isinstance(error, NoPermissionError) or not is_other


def _pairs(answer: Any) -> Mapping[bytes, Any]:
    """A map, which is a list in RESP2."""
    if isinstance(answer, Mapping):
        return answer
    return dict(zip(answer[::2], answer[1::2])) if isinstance(answer, list) else {}
