"""A cluster in this process, for what real nodes do too seldom: it keeps strings and the records of
sessions, and a test says which commands it is to refuse, or to lose before or after their effect."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections import deque

TERM_MS = 30 * 60 * 1000


class Cluster:
    """Nodes on ports of this machine, which share keys and records."""

    def __init__(
        self,
        nodes: int = 3,
        password: str | None = None,
        has_sessions: bool = True,
        counts: bool = True,
    ) -> None:
        self.lock = threading.Lock()
        self.password = password
        self.has_sessions = has_sessions
        #: Whether nodes know SESSION AUTO.
        self.counts = counts
        self.keys: dict[bytes, bytes] = {}
        self.versions: dict[bytes, int] = {}
        # (session, number): the commands and their answer.
        self.records: dict[tuple[bytes, int], tuple[object, object]] = {}
        self.acknowledged: dict[bytes, int] = {}
        self.sessions: set[bytes] = set()
        self.opened = 0
        self.renewed = 0
        # What to do about the next commands with these first words, in order; an "always" stays.
        self.faults: deque[tuple[tuple[bytes, ...], str]] = deque()
        self.always: dict[tuple[bytes, ...], str] = {}
        # (node, command); a call as if it had said its number.
        self.log: list[tuple[int, tuple[bytes, ...]]] = []
        # Commands as they arrived.
        self.sent: list[tuple[bytes, ...]] = []
        # Where keys move: the node of each key that was written, how often one has moved, and a node
        # that all units are pinned to.
        self.owners: dict[bytes, int] | None = None
        self.moves = 0
        self.pin: int | None = None
        self._servers = [_Server(self, node) for node in range(nodes)]
        self.nodes = [f"127.0.0.1:{server.server_address[1]}" for server in self._servers]

    def close(self) -> None:
        for server in self._servers:
            server.stop()

    def stop(self, node: int) -> None:
        self._servers[node].stop()

    def fail(self, words: str, *actions: str) -> None:
        """Each action once, for commands that begin with these words: "lose" (before it has its
        effect), "drop" (after it), or an error to answer instead."""
        self.faults += [(tuple(words.encode().split()), action) for action in actions]

    def calls(self) -> list[tuple[int, int, bytes]]:
        """Node, number and name of each call that has arrived."""
        found = [(node, words) for node, words in self.log if words[:2] == (b"SESSION", b"CALL")]
        return [(node, int(words[2]), words[4]) for node, words in found]

    def arrived(self, name: str) -> int:
        """How often a command has arrived, outside of calls."""
        return sum(words[0] == name.encode() for _, words in self.log)

    def place(self, node: int, words: tuple[bytes, ...]) -> object:
        """Moves a key to the node that writes it, and answers questions about keys. The ids of nodes are
        one above their places."""
        if self.owners is None:
            return None
        words = words[4:] if words[:2] == (b"SESSION", b"CALL") else words
        if words[0].upper() in UPDATES:
            at = node if self.pin is None else self.pin
            self.moves += self.owners.get(words[1], at) != at
            self.owners[words[1]] = at
        if words[0] == b"INFO":
            return b"# Quorate\r\nnode:%d\r\n\r\n# Placement\r\n" % (node + 1)
        if words[0] == b"PLACEMENT":
            owner, pin = self.owners.get(words[2]), self.pin
            ids = [None if at is None else at + 1 for at in (owner, pin)]
            return {b"owner": ids[0], b"pinned": ids[1]}
        return None

    def fault(self, words: tuple[bytes, ...]) -> str | None:
        for known, action in self.always.items():
            if words[: len(known)] == known:
                return action
        if self.faults and words[: len(self.faults[0][0])] == self.faults[0][0]:
            return self.faults.popleft()[1]
        return None


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, cluster: Cluster, node: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.cluster = cluster
        self.node = node
        self.connections: set[_Connection] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
            self.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.connection.shutdown(socket.SHUT_RDWR)


class Lost(Exception):
    pass


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.server.connections.add(self)
        self.cluster = self.server.cluster
        self.session: bytes | None = None
        self.block: list[tuple[bytes, ...]] | None = None
        self.watched: dict[bytes, int] = {}
        self.authenticated = self.cluster.password is None
        self.protocol = 2
        # The number of the next command and the depth, or why they have none though they should.
        self.numbers: tuple[int, int] | Error | None = None
        try:
            while (words := self._read()) is not None:
                with self.cluster.lock:
                    # What a client asks besides is no matter of most tests.
                    if words[0] not in (b"INFO", b"PLACEMENT"):
                        self.cluster.sent.append(words)
                    words = self._with_number(words)
                    self.cluster.log.append((self.server.node, words))
                    fault = self.cluster.fault(words)
                    if fault == "lose":
                        return
                    is_auto = words[:2] == (b"SESSION", b"AUTO")
                    if isinstance(self.numbers, Error) and words[0].upper() in UPDATES:
                        answer: object = self.numbers
                    elif fault in (None, "drop"):
                        placed = self.cluster.place(self.server.node, words)
                        answer = self._run(words) if placed is None else placed
                    else:
                        answer = Error(fault)
                        if is_auto:
                            self.numbers = NO_NUMBERS
                    if fault is not None and words[-1] == b"EXEC":
                        self.block = None
                    if fault == "drop":
                        return
                self.wfile.write(encode(answer, self.protocol))
        except (OSError, ValueError):
            pass
        finally:
            self.server.connections.discard(self)

    def _read(self) -> tuple[bytes, ...] | None:
        line = self.rfile.readline()
        if not line:
            return None
        words = []
        for _ in range(int(line[1:])):
            length = int(self.rfile.readline()[1:])
            words.append(self.rfile.read(length + 2)[:-2])
        return tuple(words)

    def _with_number(self, words: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """An update behind SESSION AUTO as the call that it is."""
        if not isinstance(self.numbers, tuple):
            return words
        number, depth = self.numbers
        self.numbers = number + 1, depth
        if words[0].upper() not in UPDATES:
            return words
        return (b"SESSION", b"CALL", b"%d" % number, b"%d" % max(0, number + 1 - depth), *words)

    def _run(self, words: tuple[bytes, ...]) -> object:
        name = words[0].upper()
        if name == b"HELLO":
            if b"AUTH" in words and words[4].decode() != self.cluster.password:
                return Error("WRONGPASS no such password")
            self.authenticated = self.authenticated or b"AUTH" in words
            if not self.authenticated:
                return Error("NOAUTH Authentication required.")
            self.protocol = int(words[1])
            return {b"proto": self.protocol}
        if name == b"CLIENT":
            return "OK"
        if name == b"AUTH":
            self.authenticated = words[-1].decode() == self.cluster.password
            return "OK" if self.authenticated else Error("WRONGPASS no such password")
        if not self.authenticated:
            return Error("NOAUTH Authentication required.")
        if name == b"SESSION":
            return self._session(words)
        if name == b"MULTI":
            self.block = []
            return "OK"
        if name == b"EXEC":
            return self._exec()
        if self.block is not None:
            self.block.append(words)
            return "QUEUED"
        if name == b"WATCH":
            self.watched.update({key: self.cluster.versions.get(key, 0) for key in words[1:]})
            return "OK"
        if name == b"UNWATCH":
            self.watched = {}
            return "OK"
        return self._apply(words)

    def _session(self, words: tuple[bytes, ...]) -> object:
        cluster, name = self.cluster, words[1]
        if not cluster.has_sessions:
            return Error("ERR unknown command 'SESSION'")
        if name == b"OPEN":
            cluster.opened += 1
            self.session = b"%d" % (2**63 + cluster.opened)
            cluster.sessions.add(self.session)
            return self._lease()
        if name in (b"RENEW", b"CLOSE"):
            if words[2] not in cluster.sessions:
                return Error("EXPIRED the session's lease is over")
            if name == b"CLOSE":
                cluster.sessions.remove(words[2])
                return "OK"
            cluster.renewed += 1
            self.session = words[2]
            return self._lease()
        if name == b"AUTO":
            return self._auto(words)
        if self.session is None:
            return Error("NOSESSION no session is attached to this connection")
        if self.session not in cluster.sessions:
            return Error("EXPIRED the session's lease is over")
        return self._call(int(words[2]), int(words[3]), words[4:])

    def _auto(self, words: tuple[bytes, ...]) -> object:
        if not self.cluster.counts:
            return Error("ERR unknown subcommand 'AUTO'")
        if words[2] == b"OFF":
            self.numbers = None
            return "OK"
        depth = int(words[3])
        assert 1 <= depth <= 512, f"a depth of {depth}"
        self.numbers = (int(words[2]), depth) if self.session else NO_NUMBERS
        return "OK" if self.session else NO_NUMBERS

    def _lease(self) -> object:
        return {b"id": self.session, b"until": b"%d" % self.cluster.renewed, b"term": TERM_MS}

    def _call(self, number: int, first: int, words: tuple[bytes, ...]) -> object:
        records, key = self.cluster.records, (self.session, number)
        body = tuple(self.block or ()) if words == (b"EXEC",) else words
        known = self.cluster.acknowledged.get(self.session, 0)
        acknowledged = self.cluster.acknowledged[self.session] = max(known, first)
        try:
            if number < acknowledged:
                return Error("STALE this session has acknowledged the call's number")
            if number >= first + 512:
                return Error("WINDOW the call's number is 512 or more above")
            if key in records and records[key][0] != body:
                return Error("DIFFERENT another command was called under this number")
            if key not in records:
                records[key] = (body, self._exec() if words == (b"EXEC",) else self._apply(words))
            return records[key][1]
        finally:
            if words == (b"EXEC",):
                self.block, self.watched = None, {}

    def _exec(self) -> object:
        block, self.block = self.block, None
        watched, self.watched = self.watched, {}
        if any(self.cluster.versions.get(key, 0) != version for key, version in watched.items()):
            return None
        return [self._apply(words) for words in block or ()]

    def _apply(self, words: tuple[bytes, ...]) -> object:
        keys, name = self.cluster.keys, words[0].upper()
        if name == b"GET":
            return keys.get(words[1])
        if name == b"COMMAND":
            return [words[3]]
        if name == b"PING":
            return "PONG"
        if name == b"SETRANGE":
            assert words[3] == b"", "only the harmless one"
            return len(keys.get(words[1], b""))
        if name == b"FLUSHALL":
            keys.clear()
            return "OK"
        self.cluster.versions[words[1]] = self.cluster.versions.get(words[1], 0) + 1
        if name == b"DEL":
            return int(keys.pop(words[1], None) is not None)
        if name == b"SET":
            keys[words[1]] = words[2]
            return "OK"
        if name in (b"INCR", b"INCRBY"):
            try:
                number = int(keys.get(words[1], b"0")) + (int(words[2]) if len(words) > 2 else 1)
            except ValueError:
                return Error("ERR value is not an integer or out of range")
            keys[words[1]] = b"%d" % number
            return number
        return Error(f"ERR unknown command '{name.decode()}'")


class Error(str):
    """An error reply."""


UPDATES = {b"SET", b"INCR", b"INCRBY", b"DEL", b"SETRANGE"}
NO_NUMBERS = Error("NOSESSION the session that SESSION AUTO was to number the calls of is not attached")


def encode(answer: object, protocol: int) -> bytes:
    """An answer in RESP2 or RESP3."""
    if isinstance(answer, Error):
        return b"-%s\r\n" % answer.encode()
    if isinstance(answer, str):
        return b"+%s\r\n" % answer.encode()
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    if isinstance(answer, bytes):
        return b"$%d\r\n%s\r\n" % (len(answer), answer)
    if isinstance(answer, list):
        return b"*%d\r\n%s" % (len(answer), b"".join(encode(item, protocol) for item in answer))
    if isinstance(answer, dict):
        items = b"".join(encode(item, protocol) for pair in answer.items() for item in pair)
        return (b"%%%d\r\n" % len(answer) if protocol == 3 else b"*%d\r\n" % (2 * len(answer))) + items
    assert answer is None, answer
    return b"_\r\n" if protocol == 3 else b"*-1\r\n"
