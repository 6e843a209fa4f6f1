"""Which commands need a session."""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Kind(enum.Enum):
    """How a command is tried again."""

    #: Changes nothing: simply repeated.
    READ = enum.auto()
    #: May change a key: a call of the session, under its number.
    CALL = enum.auto()
    #: May change something, and a session is of no use to it: repeated only while it is certain
    #: that no try had an effect.
    PLAIN = enum.auto()


# What is in neither set is a call: a node says so if it can't be one, and nothing runs twice.
_READ_FIRST_KEY = set(
    "GET STRLEN GETRANGE SUBSTR GETBIT BITCOUNT BITPOS BITFIELD_RO DUMP TYPE TTL PTTL EXPIRETIME "
    "PEXPIRETIME".split()
)
_READ_ALL_KEYS = set("MGET EXISTS TOUCH".split())
_READ = _READ_FIRST_KEY | _READ_ALL_KEYS | set(
    "LCS OBJECT MEMORY COMMAND DBSIZE ECHO INFO KEYRANGE KEYS LOLWUT PING RANDOMKEY SCAN TIME WAIT".split()
)
_PLAIN = set(
    "AUTH CLIENT CONFIG DISCARD EXEC FLUSHALL FLUSHDB HELLO MULTI QUIT RESET SELECT SESSION "
    "SHUTDOWN UNWATCH WATCH".split()
)


#: Commands over several keys that may be done one by one.
KEY_BY_KEY = {"DEL", "UNLINK"}


def name_of(command: Sequence[object]) -> str:
    """The first word of a command, in capitals; redis-py writes "CONFIG GET" as one argument."""
    first = command[0]
    text = bytes(first).decode() if isinstance(first, (bytes, bytearray, memoryview)) else str(first)
    return text.split()[0].upper()


def kind_of(command: Sequence[object]) -> Kind:
    """How a command is tried again."""
    name = name_of(command)
    if name in _READ:
        return Kind.READ
    return Kind.PLAIN if name in _PLAIN else Kind.CALL


def keys_read(command: Sequence[object]) -> Sequence[object]:
    """The keys of a command that only reads; none if it looks at the whole keyspace."""
    name = name_of(command)
    if name in _READ_FIRST_KEY:
        return command[1:2]
    if name in _READ_ALL_KEYS:
        return command[1:]
    return command[1:3] if name == "LCS" else ()
