"""The node that a request goes to where keys move, without and with asyncio."""

import asyncio
import unittest
from unittest import mock

import fake
import quorate
import quorate.asyncio
from quorate import routes

NODES = 3


def order(key):
    """The nodes in the order in which they are good for a key."""
    return sorted(range(NODES), key=lambda node: -routes.rank(routes.shard_of(key.encode()), node + 1))


class Names(unittest.TestCase):
    def test_nodes_compute_the_same_places(self):
        # As in `placement.rs` and `key.rs`.
        self.assertEqual(sorted(range(1, 6), key=lambda node: -routes.rank(0, node)), [5, 2, 3, 1, 4])
        self.assertEqual(routes.shard_of(b"foo"), 12182 * 256 // 16384)
        self.assertEqual(routes.shard_of(b"{user1000}.following"), routes.shard_of(b"user1000"))
        for key, unit in [(b"foo{}{bar}", b"foo{}{bar}"), (b"a{b}c{d}", b"b"), (b"a}b{c", b"a}b{c")]:
            self.assertEqual(routes.unit_of(key), unit)

    def test_commands_name_their_keys_in_several_places(self):
        for command, key in [
            ("GET k", b"k"), ("eval s 2 k l", b"k"), ("EVAL s 0 k", None), ("BITOP AND k l", b"k"),
            ("XREADGROUP GROUP g c COUNT 1 streams k >", b"k"), ("ZUNION 1 k", b"k"),
            ("BLMPOP 1 1 k LEFT", b"k"), ("PING hello", None), ("DBSIZE", None), ("CONFIG GET a", None),
        ]:
            self.assertEqual(routes.key_of(command.encode().split()), key, command)

    def test_hints_are_bounded_and_those_in_use_stay(self):
        known = routes.Routes(2, True)
        for node in range(2):
            known.learn(node, routes.INTRODUCTION, b"node:%d\r\n# Placement" % (node + 1))
        asked = [known.question(0, b"hot") for _ in range(routes.HINT_USES)]
        self.assertEqual(asked[:-1] + [asked[-1][2]], [None] * (routes.HINT_USES - 1) + [b"hot"])
        for number in range(2 * routes.HINTS_MAX):
            known.question(0, b"%d" % number)
            self.assertIsNone(known.question(0, b"hot"), "it is known")
        self.assertLessEqual(len(known._hints) + len(known._older), routes.HINTS_MAX + 1)


class Scenarios:
    def setUp(self):
        self.cluster = fake.Cluster(NODES)
        self.addCleanup(self.cluster.close)
        self.cluster.owners = {}
        self.open_clients = []
        self.addCleanup(lambda: [self.wait(client.close()) for client in self.open_clients])

    def client(self, **options):
        options = {"nodes": self.cluster.nodes, "deadline": 60, "socket_timeout": 60, **options}
        self.open_clients.append(client := self.Client(**options))
        # Keys that it meets every node with.
        for number in range(NODES):
            self.wait(client.get(f"any{number}"))
        return client

    def nodes_of(self, name):
        """The nodes at which calls of such a command arrived."""
        return [node for node, _, called in self.cluster.calls() if called == name]

    def test_a_key_is_used_at_one_node_by_all_clients(self):
        clients = [self.client(), self.client()]
        for key in "abcdefghijklmnop":
            for client in clients:
                self.wait(client.incr(key))
                self.wait(client.transaction(lambda pipe, key=key: (pipe.multi(), pipe.incr(key)) and None, key))
                pipe = client.pipeline()
                pipe.get("elsewhere")
                pipe.incr(key)
                self.wait(pipe.execute())
            self.assertEqual(self.cluster.owners[key.encode()], order(key)[0], key)
            self.assertEqual(int(self.cluster.keys[key.encode()]), 6)
        self.assertEqual(self.cluster.moves, 0)
        self.assertEqual(len(set(self.cluster.owners.values())), NODES, "keys are everywhere")

    def test_requests_go_to_one_node_if_that_is_wanted_or_keys_stay(self):
        for moves in (True, False):
            self.cluster.owners = {} if moves else None
            client = self.client(routes=not moves)
            self.cluster.log.clear()
            for key in "abcdefgh":
                self.wait(client.incr(key))
            self.assertEqual(set(self.nodes_of(b"INCRBY")), {client._caller.node})
            self.assertEqual((self.cluster.arrived("INFO"), self.cluster.arrived("PLACEMENT")), (0, 0))

    def test_a_unit_that_is_pinned_is_used_there(self):
        client, key = self.client(), "{k}1"
        self.cluster.pin = order(key)[-1]
        for _ in range(routes.HINT_USES + 1):
            self.wait(client.incr(key))
        self.assertEqual(self.nodes_of(b"INCRBY")[-1], self.cluster.pin)
        asked = self.cluster.arrived("PLACEMENT")
        for _ in range(30):
            self.wait(client.incr("{k}2"))
        self.assertEqual(set(self.nodes_of(b"INCRBY")[-30:]), {self.cluster.pin}, "it is of the unit")
        self.assertEqual(self.cluster.arrived("PLACEMENT"), asked, "it is known for a while")
        self.cluster.pin = order(key)[1]
        with mock.patch.object(routes.time, "monotonic", lambda now=routes.time.monotonic: now() + routes.HINT_AGE):
            self.wait(client.incr(key))
        self.wait(client.incr(key))
        self.assertEqual(self.nodes_of(b"INCRBY")[-1], self.cluster.pin)

    def test_the_next_in_order_serves_while_a_node_is_down(self):
        client = self.client()
        self.wait(client.incr("a"))
        first, second, _ = order("a")
        self.cluster.stop(first)
        for number in range(2, 10):
            self.assertEqual(self.wait(client.incr("a")), number)
        self.assertEqual(set(self.nodes_of(b"INCRBY")[1:]), {second})

    def test_what_a_node_refuses_goes_to_the_next_and_its_rest_ends(self):
        client = self.client()
        self.cluster.fail("SESSION OPEN", "CLUSTERDOWN this node is not serving")
        self.wait(client.incr("a"))
        first, second, _ = order("a")
        self.assertEqual(self.nodes_of(b"INCRBY"), [second])
        with mock.patch.object(routes.time, "monotonic", lambda now=routes.time.monotonic: now() + 1):
            self.wait(client.incr("a"))
        self.assertEqual(self.nodes_of(b"INCRBY"), [second, first])

    def test_several_questions_keep_the_numbers_of_calls(self):
        client = self.client()
        for number in range(1, 30):
            if number % 4 == 0:
                self.cluster.fail("SESSION CALL", "drop")
            pipe = client.pipeline(transaction=False)
            pipe.incr("a")
            pipe.get("b")
            pipe.incr("c")
            ages = mock.patch.object(routes, "HINT_AGE", 0.0)
            with ages:
                self.assertEqual(self.wait(pipe.execute())[::2], [number, number])
        self.assertGreater(self.cluster.arrived("PLACEMENT"), 20)


class Blocking(Scenarios, unittest.TestCase):
    Client = quorate.Client

    def wait(self, value):
        return value


class Asynchronous(Scenarios, unittest.TestCase):
    Client = quorate.asyncio.Client

    def setUp(self):
        self.loop = asyncio.new_event_loop()
        self.addCleanup(self.loop.close)
        super().setUp()

    def wait(self, value):
        return self.loop.run_until_complete(value)


if __name__ == "__main__":
    unittest.main()
