"""Scripts by their digests."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from .commands import name_of

#: Scripts that are remembered.
SCRIPTS_MAX = 1000

_WITH_SOURCE = {"EVALSHA": "EVAL", "EVALSHA_RO": "EVAL_RO"}


class Scripts:
    """The sources of the scripts that a client has loaded.

    A node that has just started knows no script. So EVALSHA of a script that was loaded through this
    client is sent as EVAL, which every node can run.
    """

    def __init__(self) -> None:
        self._sources: OrderedDict[str, Any] = OrderedDict()

    def spelt(self, args: Sequence[Any]) -> Sequence[Any]:
        """The command as it is sent."""
        name = name_of(args)
        if name == "SCRIPT":
            self._hear(args)
        elif name in _WITH_SOURCE and len(args) > 1:
            source = self._sources.get(_text(args[1]).lower())
            if source is not None:
                return (_WITH_SOURCE[name], source, *args[2:])
        return args

    def _hear(self, args: Sequence[Any]) -> None:
        words = " ".join(_text(word) for word in args[:2]).upper().split()
        if words[:2] != ["SCRIPT", "LOAD"]:
            return
        source = args[-1]
        content = source.encode() if isinstance(source, str) else bytes(source)
        self._sources[hashlib.sha1(content, usedforsecurity=False).hexdigest()] = source
        while len(self._sources) > SCRIPTS_MAX:
            self._sources.popitem(last=False)


def _text(word: Any) -> str:
    return bytes(word).decode(errors="replace") if isinstance(word, (bytes, bytearray)) else str(word)
