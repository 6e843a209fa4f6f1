"""Locks that hand out fencing tokens."""

from __future__ import annotations

from typing import Any

import redis.asyncio.lock
import redis.lock

# A lock is a hash: `owner` (empty if nobody has it), `until` (milliseconds of the cluster's clock, 0 for
# ever) and `fence`, the token that was handed out last. It stays for a day after its owner has gone, so
# that tokens go on rising; then they go on from the clock, which is ahead of them unless the lock changes
# hands more than once in a millisecond.
_BEGIN = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', KEYS[1], 'owner', 'until', 'fence')
local ends = tonumber(held[2] or '0')
local is_held = held[1] and held[1] ~= '' and (ends == 0 or ends > now)
local function keep(ends)
    redis.call('HSET', KEYS[1], 'until', string.format('%.0f', ends))
    if ends == 0 then
        redis.call('PERSIST', KEYS[1])
    else
        redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', ends + 86400000))
    end
end
"""

_ACQUIRE = _BEGIN + """
local fence = tonumber(held[3] or '0')
if is_held then
    return held[1] == ARGV[1] and held[3] or false
end
fence = string.format('%.0f', math.max(now, fence + 1))
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', fence)
keep(ARGV[2] == '0' and 0 or now + ARGV[2])
return fence
"""

_RELEASE = _BEGIN + """
if not is_held or held[1] ~= ARGV[1] then
    return 0
end
redis.call('HSET', KEYS[1], 'owner', '')
keep(now)
return 1
"""

_EXTEND = _BEGIN + """
if not is_held or held[1] ~= ARGV[1] or ends == 0 then
    return 0
end
keep((ARGV[3] == '1' and now or ends) + ARGV[2])
return 1
"""

_REACQUIRE = _BEGIN + """
if not is_held or held[1] ~= ARGV[1] then
    return 0
end
keep(now + ARGV[2])
return 1
"""

_OWNER = _BEGIN + "return is_held and held[1] or false"


class _Scripts:
    """What a lock is to the cluster, with and without asyncio."""

    LUA_RELEASE_SCRIPT = _RELEASE
    LUA_EXTEND_SCRIPT = _EXTEND
    LUA_REACQUIRE_SCRIPT = _REACQUIRE
    lua_release = None
    lua_extend = None
    lua_reacquire = None
    lua_acquire: Any = None
    lua_owner: Any = None
    redis: Any
    local: Any

    def register_scripts(self) -> None:
        super().register_scripts()  # type: ignore[misc]
        cls = type(self)
        if cls.lua_acquire is None:
            cls.lua_acquire = self.redis.register_script(_ACQUIRE)
            cls.lua_owner = self.redis.register_script(_OWNER)

    @property
    def fence(self) -> int | None:
        """The fencing token of the last `acquire` that succeeded; `None` before one did. Whoever acquires
        the lock later has a larger one. Send it along with what the lock protects, and let the receiver
        refuse a token that is smaller than one that it has seen: a holder that was stopped for longer than
        the lock's timeout can then do no harm."""
        return getattr(self.local, "fence", None)

    def _arguments(self, token: bytes, timeout: float | None) -> list[Any]:
        return [token, int(timeout * 1000) if timeout else 0]

    def _acquired(self, fence: Any) -> bool:
        if fence is not None:
            self.local.fence = int(fence)
        return fence is not None

    def _is_own(self, owner: Any) -> bool:
        token = self.local.token
        return token is not None and owner is not None and self.redis.get_encoder().encode(owner) == token


class Lock(_Scripts, redis.lock.Lock):  # type: ignore[misc]
    """redis-py's lock, as one key of the cluster, so that it works on every engine, keeps no second owner
    through a failover, and hands out fencing tokens (`fence`)."""

    def do_acquire(self, token: Any) -> bool:
        arguments = self._arguments(token, self.timeout)
        return self._acquired(self.lua_acquire(keys=[self.name], args=arguments, client=self.redis))

    def locked(self) -> bool:
        """Whether anybody has the lock."""
        return self.lua_owner(keys=[self.name], client=self.redis) is not None

    def owned(self) -> bool:
        """Whether this lock has it."""
        return self._is_own(self.lua_owner(keys=[self.name], client=self.redis))


class AsyncLock(_Scripts, redis.asyncio.lock.Lock):  # type: ignore[misc]
    """See `Lock`."""

    async def do_acquire(self, token: Any) -> bool:
        arguments = self._arguments(token, self.timeout)
        return self._acquired(await self.lua_acquire(keys=[self.name], args=arguments, client=self.redis))

    async def locked(self) -> bool:
        """Whether anybody has the lock."""
        return await self.lua_owner(keys=[self.name], client=self.redis) is not None

    async def owned(self) -> bool:
        """Whether this lock has it."""
        return self._is_own(await self.lua_owner(keys=[self.name], client=self.redis))
