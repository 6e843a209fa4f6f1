"""What a client keeps of its session: the numbers of its calls, and how long its lease lasts.

A session is RIFL's client with a lease (S. J. Park, "Achieving Both Low Latency and Strong
Consistency in Large-Scale Systems", chapter 2). Nothing here does input or output; times are
seconds of `time.monotonic`.
"""

from __future__ import annotations

import os
import threading

#: A call's number is less than this above the first incomplete one's.
WINDOW = 512
#: No call begins in the last seconds of a lease: its answer might come too late to be asked for.
DANGER = 60.0


class Requests:
    """Numbers a session's calls (the thesis's RequestTracker)."""

    def __init__(self) -> None:
        self._next = 0
        self._first = 0
        self._over: set[int] = set()

    def begin(self) -> int | None:
        """The number of a new call; None while the oldest open call holds up the window."""
        numbers = self.begin_row(1)
        return numbers[0] if numbers else None

    def begin_row(self, count: int) -> range:
        """As many numbers in a row, or as many of them as the window has."""
        first = self._next
        self._next = min(first + count, self._first + WINDOW)
        return range(first, self._next)

    def complete(self, sequence: int) -> None:
        """The answer to a call is known, or nobody will ask for it."""
        assert sequence < self._next, f"call {sequence} was never begun"
        if sequence >= self._first:
            self._over.add(sequence)
        while self._first in self._over:
            self._over.remove(self._first)
            self._first += 1

    @property
    def first_incomplete(self) -> int:
        """All calls below this one are over."""
        return self._first

    @property
    def open(self) -> int:
        """How many calls are not over."""
        return self._next - self._first - len(self._over)


class ClientLease:
    """How long a lease lasts, as far as the client can be sure: the term counts from the *sending*
    of its request, as nothing is known of when it was granted."""

    def __init__(self, sent: float, term: float) -> None:
        self._from = sent
        self._term = term

    def renewed(self, sent: float, term: float) -> bool:
        """The answer to a renewal has come; whether it is the latest. Answers may overtake."""
        if sent + term <= self._from + self._term:
            return False
        self._from, self._term = sent, term
        return True

    @property
    def ends(self) -> float:
        """The time from which the lease may have ended."""
        return self._from + self._term

    def is_due(self, now: float) -> bool:
        """Whether to renew: at half of the term."""
        return now >= self._from + self._term / 2

    def may_begin(self, now: float) -> bool:
        """Whether a new call may begin."""
        return now < self._from + self._term - min(DANGER, self._term / 4)


class Session:
    """A session of this process. Threads may share it."""

    def __init__(self, reply: object, sent: float) -> None:
        self.id, self.until, term = _lease(reply)
        self._requests = Requests()
        self._tenure = ClientLease(sent, term)
        #: What the connection was told at which the session was opened.
        self.opened = ClientLease(sent, term)
        self._lock = threading.Lock()
        # After a fork, both processes would give the same numbers to different calls.
        self._process = os.getpid()
        #: The cluster has said that it is over.
        self.is_over = False

    @property
    def lease(self) -> tuple[bytes, bytes]:
        """What SESSION RENEW and SESSION CLOSE take: the id, and until when it was last granted."""
        return self.id.encode(), self.until.encode()

    def renewed(self, reply: object, sent: float) -> ClientLease:
        """The cluster has answered a renewal that was sent at this time. What its connection was told."""
        _, until, term = _lease(reply)
        with self._lock:
            if self._tenure.renewed(sent, term):
                self.until = until
        return ClientLease(sent, term)

    def is_later_than(self, told: ClientLease) -> bool:
        """Whether the cluster has told of a later renewal than this one."""
        return told.ends < self._tenure.ends

    def begin(self) -> int | None:
        """The number of a new call; None if the window is full."""
        with self._lock:
            return self._requests.begin()

    def begin_row(self, count: int) -> range:
        """As many numbers in a row, or as many of them as the window has."""
        with self._lock:
            return self._requests.begin_row(count)

    def complete(self, sequence: int) -> None:
        """The answer to this call is known, or nobody will ask for it."""
        with self._lock:
            self._requests.complete(sequence)

    def row(self, numbers: range) -> tuple[bytes, bytes]:
        """The first number of a row, and how many commands up to its last one may be without an
        answer, as they are sent: all from the first incomplete call on, whoever makes it."""
        with self._lock:
            return b"%d" % numbers.start, b"%d" % (numbers.stop - self._requests.first_incomplete)

    def numbers(self, sequence: int) -> tuple[bytes, bytes]:
        """A call's number and the first incomplete one, as they are sent."""
        with self._lock:
            return b"%d" % sequence, b"%d" % self._requests.first_incomplete

    def may_begin(self, now: float) -> bool:
        """Whether new calls may begin in this session."""
        return not self.is_over and self._process == os.getpid() and self._tenure.may_begin(now)

    def may_close(self) -> bool:
        """Whether nobody can ask for anything any more."""
        return not self.is_over and self._process == os.getpid() and self._requests.open == 0


def _lease(reply: object) -> tuple[str, str, float]:
    """The id, the opaque `until` and the term in seconds of an answer to SESSION OPEN or RENEW,
    which is a map in RESP3 and a list in RESP2."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2])  # type: ignore[index]
    facts = {_text(name): value for name, value in pairs}
    return _text(facts["id"]), _text(facts["until"]), int(facts["term"]) / 1000


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
