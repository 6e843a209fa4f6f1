"""The tour, with what it checks; and what it says in the documentation."""

import io
import pathlib
import re
import unittest

import redis
from nodes import Nodes
from store import Backend, QuotaExhausted
from tour import tour

CHAPTER = pathlib.Path(__file__).resolve().parents[2] / "docs/src/session-store.md"


def words(text):
    """What stays the same from run to run."""
    return re.sub(r"[\d.]+", "0", text).split()


class SessionStore(unittest.TestCase):
    def test_the_tour_is_as_documented(self):
        out = io.StringIO()
        tour(out)
        documented = re.search(r"<!-- tour -->\n```\n(.*?)```", CHAPTER.read_text(), re.DOTALL)[1]
        self.assertEqual(words(out.getvalue()), words(documented))

    def test_what_is_refused(self):
        nodes = Nodes()
        try:
            web = Backend("web", nodes.addresses, 0)
            client = web.clients[0]
            for node in ("9", "x", "-1"):
                with self.assertRaisesRegex(redis.ResponseError, r"no live node to pin to; choose one of 1 \("):
                    web.pin("carol", node)
            self.assertEqual(web.unpin("carol"), 0)
            with self.assertRaises(redis.ResponseError):
                client.execute_command("PLACEMENT PIN", "carol")
            client.set("{carol}quota", 0)
            with self.assertRaises(QuotaExhausted):
                web.add_to_cart("carol", "1", "book")
            self.assertIsNone(client.hget("{carol}session", "request"))
        finally:
            nodes.close()


if __name__ == "__main__":
    unittest.main()
