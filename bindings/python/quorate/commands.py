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
    "GET STRLEN GETRANGE SUBSTR GETBIT BITCOUNT BITPOS BITFIELD_RO DUMP TYPE TTL PTTL EXPIRETIME PEXPIRETIME "
    "DIGEST SORT_RO "
    "HGET HMGET HLEN HSTRLEN HEXISTS HGETALL HKEYS HVALS HRANDFIELD HSCAN "
    "HTTL HPTTL HEXPIRETIME HPEXPIRETIME "
    "LLEN LINDEX LRANGE LPOS "
    "SCARD SISMEMBER SMISMEMBER SMEMBERS SRANDMEMBER SSCAN "
    "ZCARD ZCOUNT ZLEXCOUNT ZSCORE ZMSCORE ZRANK ZREVRANK ZRANGE ZREVRANGE ZRANGEBYSCORE ZREVRANGEBYSCORE "
    "ZRANGEBYLEX ZREVRANGEBYLEX ZRANDMEMBER ZSCAN "
    "GEODIST GEOHASH GEOPOS GEOSEARCH GEORADIUS_RO GEORADIUSBYMEMBER_RO "
    "XLEN XRANGE XREVRANGE XPENDING".split()
)
_READ_ALL_KEYS = set("MGET EXISTS TOUCH SINTER SUNION SDIFF PFCOUNT".split())
#: The argument of this index says how many keys follow.
_READ_COUNTED_KEYS = {"SINTERCARD": 1, "ZUNION": 1, "ZINTER": 1, "ZDIFF": 1, "ZINTERCARD": 1, "EVAL_RO": 2,
                      "EVALSHA_RO": 2, "FCALL_RO": 2}
_READ = _READ_FIRST_KEY | _READ_ALL_KEYS | set(_READ_COUNTED_KEYS) | set(
    "LCS XREAD XINFO OBJECT MEMORY COMMAND DBSIZE ECHO INFO KEYRANGE KEYS LOLWUT PING RANDOMKEY SCAN TIME "
    "WAIT WAITAOF".split()
)
_PLAIN = set(
    "AUTH CLIENT CONFIG DEBUG DISCARD EXEC FLUSHALL FLUSHDB HELLO MULTI QUIT RESET SELECT SESSION "
    "SHUTDOWN UNWATCH WATCH SCRIPT FUNCTION PUBLISH SPUBLISH SUBSCRIBE UNSUBSCRIBE PSUBSCRIBE PUNSUBSCRIBE "
    "SSUBSCRIBE SUNSUBSCRIBE PUBSUB MONITOR SLOWLOG LATENCY ACL CLUSTER PLACEMENT ROLE "
    # A node keeps a call's first answer, and "nothing came" must not stick.
    "BLPOP BRPOP BLMOVE BRPOPLPUSH BLMPOP BZPOPMIN BZPOPMAX BZMPOP "
    # What no node does.
    "ASKING BGREWRITEAOF BGSAVE FAILOVER LASTSAVE MODULE PSYNC READONLY READWRITE REPLCONF REPLICAOF "
    "SAVE SLAVEOF SYNC".split()
)


#: Commands over several keys that may be done one by one.
KEY_BY_KEY = {"DEL", "UNLINK"}


def name_of(command: Sequence[object]) -> str:
    """The first word of a command, in capitals; redis-py writes "CONFIG GET" as one argument."""
    return _text(command[0]).split()[0].upper()


def _text(word: object) -> str:
    is_bytes = isinstance(word, (bytes, bytearray, memoryview))
    return bytes(word).decode(errors="replace") if is_bytes else str(word)


def kind_of(command: Sequence[object]) -> Kind:
    """How a command is tried again."""
    name = name_of(command)
    if name in _READ:
        return Kind.READ
    waits = name == "XREADGROUP" and "BLOCK" in (_text(word).upper() for word in command[1:])
    return Kind.PLAIN if name in _PLAIN or waits else Kind.CALL


def keys_read(command: Sequence[object]) -> Sequence[object]:
    """The keys of a command that only reads; none if it looks at the whole keyspace."""
    name = name_of(command)
    if name in _READ_FIRST_KEY:
        return command[1:2]
    if name in _READ_ALL_KEYS:
        return command[1:]
    if name in _READ_COUNTED_KEYS:
        count = _READ_COUNTED_KEYS[name]
        return command[count + 1 : count + 1 + int(command[count])] if len(command) > count else ()
    if name == "XREAD":
        words = [_text(word).upper() for word in command]
        first = words.index("STREAMS") + 1 if "STREAMS" in words else len(words)
        return command[first : first + (len(words) - first) // 2]
    if name == "XINFO":
        return command[2:3]
    return command[1:3] if name == "LCS" else ()
