"""The two outcomes of a command that are not its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis

if TYPE_CHECKING:
    from .calls import Call


class Error(redis.RedisError):
    """What `quorate` raises itself. An answer that is an error is redis-py's `ResponseError`.

    It is no `redis.ConnectionError` on purpose: there is code that repeats whatever raises one.
    """


class Failed(Error):
    """It did not happen, and never will: no try at it had any effect before the deadline. Whoever
    still wants it may do it again."""


class Unknown(Error):
    """It may have happened, once, or not at all.

    `call` is what `Client.ask_again` takes: the same call under the same number, so that asking
    never makes it happen twice. It is None if nobody can know any more: the session's lease is
    over, or the command was sent without a session; and if it was several calls.
    """

    def __init__(self, message: str, call: Call | None = None) -> None:
        super().__init__(message)
        self.call = call
