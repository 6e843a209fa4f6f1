"""What a client makes of refusals, lost connections and unknown outcomes, without and with asyncio."""

import asyncio
import inspect
import os
import threading
import types
import unittest
from unittest import mock

import fake
import quorate
import quorate.asyncio
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from quorate import calls
from quorate.scripts import Scripts
from quorate.session import ClientLease

REFUSED = "TRYAGAIN this try did nothing"
NOT_SERVING = "CLUSTERDOWN this node is not serving"
FOR_GOOD = ("OOM command not allowed", "MISCONF the disk of a node is full")
UNKNOWN = "UNKNOWN the call may or may not have happened"


class Scenarios:
    """Each runs with either client: `wait` gives the value of what that answers, and `body` makes a
    function for transactions of a generator that yields its reads."""

    def setUp(self):
        self.cluster = fake.Cluster()
        self.addCleanup(self.cluster.close)
        self.open_clients = []
        self.addCleanup(self.close_clients)

    def client(self, **options):
        # Long enough for a machine that has much else to do.
        options = {"nodes": self.cluster.nodes, "deadline": 60, "socket_timeout": 60, **options}
        self.open_clients.append(self.Client(**options))
        return self.open_clients[-1]

    def close_clients(self):
        for client in self.open_clients:
            self.wait(client.close())

    def count(self, key=b"a"):
        return int(self.cluster.keys.get(key, b"0"))

    # --- single commands

    def test_a_call_whose_answer_is_lost_is_asked_for_at_the_next_node(self):
        client = self.client()
        self.assertEqual(self.wait(client.incr("a")), 1)
        self.cluster.fail("SESSION CALL", "drop")
        self.assertEqual(self.wait(client.incr("a")), 2)
        self.assertEqual(self.cluster.calls(), [(0, 0, b"INCRBY"), (0, 1, b"INCRBY"), (1, 1, b"INCRBY")])
        self.assertEqual(self.wait(client.incr("a")), 3)
        self.assertEqual(self.cluster.calls()[-1], (1, 2, b"INCRBY"), "it stays where it was served")
        self.assertEqual((self.count(), self.cluster.opened), (3, 1))

    def test_a_call_that_never_arrived_happens_once(self):
        client = self.client()
        self.cluster.fail("SESSION CALL", "lose", "lose", UNKNOWN, REFUSED, "drop")
        self.assertEqual(self.wait(client.incr("a")), 1)
        self.assertEqual({number for _, number, _ in self.cluster.calls()}, {0})
        self.assertEqual(len(self.cluster.calls()), 6)
        self.assertEqual(self.count(), 1)

    def test_nodes_that_are_gone_or_do_not_serve_are_passed_over(self):
        client = self.client()
        self.cluster.stop(0)
        self.cluster.fail("SESSION OPEN", NOT_SERVING)
        self.assertEqual(self.wait(client.incr("a")), 1)
        self.assertEqual(self.cluster.calls(), [(2, 0, b"INCRBY")])

    def test_a_node_that_is_gone_is_left_though_the_deadline_is_over(self):
        client = self.client(deadline=0)
        self.wait(client.incr("a"))
        self.cluster.stop(0)
        with self.assertRaises(quorate.Error):
            self.wait(client.incr("a"))
        self.assertEqual(self.wait(client.incr("b")), 1)
        self.assertEqual(self.cluster.calls()[-1][0], 1)

    def test_what_is_refused_until_the_deadline_has_failed(self):
        client = self.client(deadline=1)
        self.cluster.always[(b"SESSION", b"CALL")] = REFUSED
        with self.assertRaisesRegex(quorate.Failed, "did not happen: .*this try did nothing"):
            self.wait(client.incr("a"))
        self.assertGreater(len(self.cluster.calls()), 2)
        self.cluster.always.clear()
        self.assertEqual(self.wait(client.incr("a")), 1)
        self.assertEqual(self.cluster.log[-1][1][2:4], (b"1", b"1"), "the failed one's number is over")

    def test_a_refusal_after_a_lost_answer_leaves_the_outcome_unknown(self):
        for action, happened in (("drop", 1), ("lose", 0), (UNKNOWN, 0)):
            for refusal in (REFUSED, NOT_SERVING, *FOR_GOOD, "ERR the session holds 8 MiB"):
                with self.subTest(action=action, refusal=refusal):
                    self.cluster.keys.clear()
                    client = self.client(deadline=0.03)
                    self.cluster.fail("SESSION CALL", action)
                    self.wait(client.get("a"))
                    self.cluster.fail("SESSION CALL", *[refusal] * 1000)
                    with self.assertRaises(quorate.Unknown) as raised:
                        self.wait(client.incr("a"))
                    self.cluster.faults.clear()
                    call = raised.exception.call
                    self.assertEqual(self.count(), happened)
                    self.wait(client.incr("b"))
                    self.assertEqual(self.wait(client.ask_again(call)), 1)
                    self.assertEqual(self.count(), 1)
                    with self.assertRaises(ValueError):
                        self.wait(client.ask_again(call))

    def test_a_first_refusal_for_good_is_an_answer(self):
        client = self.client()
        for error in (*FOR_GOOD, "NOTSUPPORTED no sessions here", "CROSSKEY one key at a time"):
            self.cluster.fail("SESSION CALL", error)
            with self.assertRaises(redis.ResponseError):
                self.wait(client.incr("a"))
        self.assertEqual(len(self.cluster.calls()), 4)

    def test_an_answer_that_is_an_error_is_that_of_redis_py(self):
        client = self.client()
        self.wait(client.set("a", "x"))
        self.cluster.fail("SESSION CALL", "drop")
        with self.assertRaisesRegex(redis.ResponseError, "not an integer"):
            self.wait(client.incr("a"))
        self.assertEqual(len(self.cluster.calls()), 3)

    def test_reads_are_repeated_and_need_no_number(self):
        client = self.client()
        self.cluster.fail("GET", "lose", REFUSED, UNKNOWN, NOT_SERVING)
        self.assertIsNone(self.wait(client.get("a")))
        self.assertEqual((self.cluster.arrived("GET"), self.cluster.opened), (5, 0))
        self.cluster.always[(b"GET",)] = "lose"
        with self.assertRaises(quorate.Failed):
            self.wait(self.client(deadline=0.02).get("a"))

    def test_what_is_no_call_is_not_repeated_once_it_may_have_happened(self):
        client = self.client()
        self.cluster.fail("FLUSHALL", REFUSED, NOT_SERVING, "lose")
        with self.assertRaises(quorate.Unknown) as raised:
            self.wait(client.flushall())
        self.assertIsNone(raised.exception.call)
        self.assertEqual((self.cluster.arrived("FLUSHALL"), self.cluster.opened), (3, 0))

    def test_without_sessions_nothing_is_sent_twice(self):
        client = self.client(sessions=False)
        self.cluster.fail("INCRBY", REFUSED, NOT_SERVING, "drop")
        with self.assertRaises(quorate.Unknown) as raised:
            self.wait(client.incr("a"))
        self.assertIsNone(raised.exception.call)
        self.assertEqual((self.count(), self.cluster.arrived("INCRBY"), self.cluster.opened), (1, 3, 0))
        self.cluster.fail("EXEC", "drop")
        with self.assertRaises(quorate.Unknown):
            self.wait(client.pipeline().incr("a").execute())
        self.assertEqual(self.count(), 2)

    def test_keys_that_can_not_be_deleted_at_once_are_deleted_one_by_one(self):
        client = self.client(deadline=0)
        for key in "abc":
            self.wait(client.set(key, 1))
        crosskey = "CROSSKEY one key at a time"
        self.cluster.fail("SESSION CALL 3", crosskey)
        self.cluster.fail("SESSION CALL 5", "drop")
        with self.assertRaisesRegex(quorate.Unknown, "some of its keys") as raised:
            self.wait(client.delete("a", "b", "c"))
        self.assertIsNone(raised.exception.call)
        self.cluster.fail("SESSION CALL", crosskey)
        self.assertEqual(self.wait(client.delete("a", "b", "c")), 1)
        self.cluster.fail("SESSION CALL", crosskey, REFUSED, REFUSED)
        with self.assertRaises(quorate.Failed):
            self.wait(client.delete("a", "b"))

    # --- sessions

    def test_a_session_that_is_over_is_replaced_unless_something_is_in_doubt(self):
        client = self.client()
        self.wait(client.incr("a"))
        self.cluster.sessions.clear()
        self.assertEqual(self.wait(client.incr("a")), 2)
        self.assertEqual(self.cluster.opened, 2)
        self.cluster.fail("SESSION CALL", "drop", "EXPIRED the session's lease is over")
        with self.assertRaises(quorate.Unknown) as raised:
            self.wait(client.incr("a"))
        self.assertIsNone(raised.exception.call)
        self.assertEqual(self.wait(client.incr("a")), 4)
        self.assertEqual(self.cluster.opened, 3)

    def test_a_session_that_expires_while_a_connection_is_made_loses_what_is_in_doubt(self):
        client = self.client()
        self.wait(client.incr("a"))
        self.cluster.fail("SESSION CALL", "drop")
        self.cluster.fail("SESSION RENEW", "EXPIRED the session's lease is over")
        with self.assertRaises(quorate.Unknown) as raised:
            self.wait(client.incr("a"))
        self.assertIsNone(raised.exception.call)

    def tell_earlier(self, client, seconds):
        """As if other connections had been told of a renewal so long after this one."""
        attached = client._caller._attached
        ((connection, (session, told)),) = attached.items()
        attached[connection] = session, ClientLease(told.ends - 1800 - seconds, 1800)

    def test_each_connection_is_told_of_a_renewal_within_half_a_term(self):
        client = self.client()
        self.wait(client.incr("a"))
        self.tell_earlier(client, 600)
        self.wait(client.incr("a"))
        self.assertEqual(self.cluster.renewed, 0)
        self.tell_earlier(client, 301)
        self.wait(client.incr("a"))
        self.wait(client.incr("a"))
        self.assertEqual((self.cluster.opened, self.cluster.renewed), (1, 1))

    def test_an_end_that_a_connection_is_told_of_may_be_of_an_earlier_lease(self):
        client = self.client()
        self.wait(client.incr("a"))
        self.tell_earlier(client, 60)
        self.cluster.fail("SESSION CALL", "EXPIRED the session's lease is over")
        self.assertEqual(self.wait(client.incr("a")), 2)
        self.assertEqual((self.cluster.opened, self.cluster.renewed), (1, 1))
        # Shown the latest one, it is over.
        self.cluster.fail("SESSION CALL", "EXPIRED the session's lease is over")
        self.assertEqual(self.wait(client.incr("a")), 3)
        self.assertEqual((self.cluster.opened, self.cluster.renewed), (2, 1))

    def test_a_connection_without_the_session_is_given_it(self):
        client = self.client()
        self.wait(client.incr("a"))
        self.cluster.fail("SESSION CALL", "NOSESSION no session is attached")
        self.assertEqual(self.wait(client.incr("a")), 2)
        self.assertEqual((self.cluster.opened, self.cluster.renewed), (1, 1))

    def test_a_mistake_in_the_numbers_is_not_repeated(self):
        client = self.client()
        self.cluster.fail("SESSION CALL", "DIFFERENT another command")
        with self.assertRaises(quorate.Failed):
            self.wait(client.incr("a"))
        self.cluster.fail("SESSION CALL", "lose", "STALE acknowledged")
        with self.assertRaises(quorate.Unknown):
            self.wait(client.incr("a"))
        self.assertEqual(len(self.cluster.calls()), 3)

    def test_a_full_node_is_passed_over(self):
        client = self.client()
        self.cluster.fail("SESSION OPEN", "MAXSESSIONS as many as its limit")
        self.assertEqual(self.wait(client.incr("a")), 1)
        self.assertEqual(self.cluster.calls(), [(1, 0, b"INCRBY")])

    def test_a_server_without_sessions_is_named_as_such(self):
        self.cluster.has_sessions = False
        with self.assertRaisesRegex(quorate.Failed, "sessions=False"):
            self.wait(self.client().incr("a"))
        self.assertEqual(self.wait(self.client(sessions=False).incr("a")), 1)

    def test_a_wrong_password_is_an_error_at_once(self):
        cluster = fake.Cluster(password="right")
        self.addCleanup(cluster.close)
        for password in (None, "wrong"):
            with self.assertRaises((redis.exceptions.AuthenticationError, redis.ResponseError)):
                self.wait(self.client(nodes=cluster.nodes, password=password).incr("a"))
        self.assertEqual(self.wait(self.client(nodes=cluster.nodes, password="right").incr("a")), 1)

    def test_leases_are_renewed_at_half_of_their_term_and_not_used_in_their_last_minute(self):
        clock = types.SimpleNamespace(now=1000.0)
        with mock.patch.object(calls, "time", types.SimpleNamespace(monotonic=lambda: clock.now)):
            client = self.client()
            for passed, opened, renewed in ((0, 1, 0), (899, 1, 0), (1, 1, 1), (899, 1, 1), (842, 2, 1), (1, 2, 1)):
                clock.now += passed
                self.wait(client.incr("a"))
                self.assertEqual((self.cluster.opened, self.cluster.renewed), (opened, renewed), clock.now)

    def test_unknown_calls_do_not_hold_up_others(self):
        client = self.client(deadline=0)
        self.wait(client.incr("a"))
        self.cluster.fail("SESSION CALL", "drop")
        with self.assertRaises(quorate.Unknown) as raised:
            self.wait(client.incr("a"))
        for _ in range(520):
            self.wait(client.incr("b"))
        self.assertEqual((self.count(b"b"), self.cluster.opened), (520, 2))
        self.assertEqual(self.wait(client.ask_again(raised.exception.call)), 2)
        self.assertEqual(self.count(), 2)

    def test_closing_ends_the_session_unless_something_can_be_asked_for(self):
        client = self.client(deadline=0)
        self.wait(client.incr("a"))
        self.wait(client.close())
        self.assertEqual(self.cluster.sessions, set())
        self.cluster.fail("SESSION CALL", "drop")
        with self.assertRaises(quorate.Unknown) as raised:
            self.wait(client.incr("a"))
        self.wait(client.close())
        other = self.client()
        self.assertEqual(self.wait(other.ask_again(raised.exception.call)), 2)
        self.assertEqual(self.count(), 2)

    # --- pipelines

    def test_a_row_of_calls_is_asked_for_one_by_one(self):
        client = self.client()
        self.cluster.fail("SESSION CALL 1", REFUSED)
        self.cluster.fail("SESSION CALL 3", "drop")
        row = client.pipeline(transaction=False)
        for _ in range(6):
            row.incr("a")
        row.get("a")
        answers = self.wait(row.execute())
        self.assertEqual(sorted(answers[:6]), [1, 2, 3, 4, 5, 6])
        self.assertEqual(answers[6], b"6")
        self.assertEqual(self.count(), 6)

    def test_a_row_longer_than_the_window(self):
        client = self.client()
        row = client.pipeline(transaction=False)
        for _ in range(1200):
            row.incr("a")
        self.assertEqual(self.wait(row.execute()), list(range(1, 1201)))
        self.assertEqual(self.cluster.opened, 1)

    def test_the_node_numbers_the_calls_of_a_row(self):
        client = self.client()
        self.wait(client.incr("a"))
        begun = len(self.cluster.sent)
        row = client.pipeline(transaction=False)
        row.incr("a").get("a").incr("a")
        self.assertEqual(self.wait(row.execute()), [2, b"2", 3])
        incr = (b"INCRBY", b"a", b"1")
        auto = [(b"SESSION", b"AUTO", b"1", b"3"), (b"SESSION", b"AUTO", b"OFF")]
        self.assertEqual(self.cluster.sent[begun:], [auto[0], incr, (b"GET", b"a"), incr, auto[1]])
        self.assertEqual([number for _, number, _ in self.cluster.calls()], [0, 1, 3])
        self.assertEqual(self.wait(client.incr("a")), 4)
        self.assertEqual(self.cluster.sent[-1][:4], (b"SESSION", b"CALL", b"4", b"4"))

    def test_a_row_acknowledges_no_call_that_is_open(self):
        client = self.client(deadline=0.03)
        self.cluster.fail("SESSION CALL", "drop", *[REFUSED] * 1000)
        with self.assertRaises(quorate.Unknown) as raised:
            self.wait(client.incr("a"))
        self.cluster.faults.clear()
        row = client.pipeline(transaction=False)
        row.incr("b").incr("b")
        self.assertEqual(self.wait(row.execute()), [1, 2])
        self.assertIn((b"SESSION", b"AUTO", b"1", b"3"), self.cluster.sent)
        self.assertEqual(self.wait(client.ask_again(raised.exception.call)), 1)
        self.assertEqual(self.count(), 1)

    def test_a_row_on_a_connection_without_the_session_does_not_happen_before_it_is_there(self):
        client = self.client()
        self.wait(client.incr("a"))
        self.cluster.fail("SESSION AUTO 1", "NOSESSION no session is attached to this connection")
        self.cluster.fail("SESSION CALL 2", "drop")
        row = client.pipeline(transaction=False)
        row.incr("a").incr("a")
        self.assertEqual(sorted(self.wait(row.execute())), [2, 3])
        self.assertEqual(self.cluster.renewed, 2, "once for each connection that had to have it")
        self.assertEqual((self.count(), self.cluster.opened), (3, 1))

    def test_a_row_whose_connection_breaks_is_asked_for_by_its_numbers(self):
        client = self.client()
        self.cluster.fail("SESSION AUTO 0", "drop")
        row = client.pipeline(transaction=False)
        row.incr("a").incr("a")
        self.assertEqual(self.wait(row.execute()), [1, 2])
        self.assertEqual([number for _, number, _ in self.cluster.calls()], [0, 1])
        self.cluster.fail("SESSION CALL 3", "drop")
        row.incr("a").incr("a").incr("a")
        self.assertEqual(self.wait(row.execute()), [3, 4, 5])
        self.assertEqual([number for _, number, _ in self.cluster.calls()][2:], [2, 3, 3, 4])

    def test_a_node_that_does_not_count_is_told_the_numbers(self):
        self.cluster.close()
        self.cluster = fake.Cluster(counts=False)
        self.addCleanup(self.cluster.close)
        client = self.client()
        self.cluster.fail("SESSION CALL 1", "drop")
        row = client.pipeline(transaction=False)
        row.incr("a").incr("a")
        self.assertEqual(self.wait(row.execute()), [1, 2])
        self.assertEqual(len(self.cluster.calls()), 3)
        self.assertEqual(self.cluster.arrived("INCRBY"), 0)

    def test_a_row_says_of_each_command_what_became_of_it(self):
        client = self.client(deadline=0)
        self.wait(client.set("text", "x"))
        self.cluster.fail("SESSION CALL 3", REFUSED)
        self.cluster.fail("SESSION CALL 4", "drop")
        row = client.pipeline(transaction=False)
        row.incr("a").incr("text").incr("a").incr("a")
        answers = self.wait(row.execute(raise_on_error=False))
        kinds = [int, redis.ResponseError, quorate.Failed, quorate.Unknown]
        self.assertEqual([type(answer) for answer in answers], kinds)
        self.assertEqual(self.wait(client.ask_again(answers[3].call)), 2)
        with self.assertRaisesRegex(redis.ResponseError, "Command # 1 .*INCRBY text 1"):
            self.wait(client.pipeline(transaction=False).incr("text").execute())

    def test_a_block_is_one_call(self):
        client = self.client()
        for action in ("drop", "lose", UNKNOWN, REFUSED):
            self.cluster.fail("SESSION CALL", action)
            before = self.count()
            block = client.pipeline().incr("a").incr("b")
            self.assertEqual(self.wait(block.execute()), [before + 1, before + 1])
        numbers = [number for _, number, name in self.cluster.calls() if name == b"EXEC"]
        self.assertEqual(numbers, [0, 0, 1, 1, 2, 2, 3, 3])

    # --- what is watched

    def watching(self, client, key, value):
        """A pipeline that has read a key and is to set it."""
        block = client.pipeline()
        self.wait(block.watch(key))
        self.wait(block.get(key))
        block.multi()
        block.set(key, value)
        return block

    def test_a_watched_block_whose_answer_is_lost_is_not_executed_without_its_watch(self):
        client = self.client()
        for action, happens in (("drop", True), ("lose", False), (UNKNOWN, False)):
            with self.subTest(action=action):
                self.wait(client.set("a", "old"))
                block = self.watching(client, "a", "new")
                self.cluster.fail("SESSION CALL", action)
                if happens:
                    self.assertEqual(self.wait(block.execute()), [True])
                else:
                    with self.assertRaises(redis.WatchError):
                        self.wait(block.execute())
                self.assertEqual(self.cluster.keys[b"a"], b"new" if happens else b"old")

    def test_a_watched_block_in_doubt_can_be_asked_for(self):
        for action, happens in (("drop", True), ("lose", False)):
            with self.subTest(action=action):
                client = self.client(deadline=0.03)
                self.wait(client.set("a", "old"))
                block = self.watching(client, "a", "new")
                self.cluster.fail("SESSION CALL", action, *[REFUSED] * 1000)
                with self.assertRaises(quorate.Unknown) as raised:
                    self.wait(block.execute())
                self.cluster.faults.clear()
                if happens:
                    self.assertEqual(self.wait(client.ask_again(raised.exception.call)), [True])
                else:
                    with self.assertRaises(redis.WatchError):
                        self.wait(client.ask_again(raised.exception.call))
                self.assertEqual(self.cluster.keys[b"a"], b"new" if happens else b"old")

    def test_a_refused_watched_block_begins_again(self):
        client = self.client()
        block = self.watching(client, "a", "new")
        self.cluster.fail("SESSION CALL", REFUSED)
        with self.assertRaisesRegex(redis.WatchError, "did not happen: .*this try did nothing"):
            self.wait(block.execute())
        self.assertNotIn(b"a", self.cluster.keys)

    def test_a_lost_watch_is_a_watch_error(self):
        client = self.client()
        block = client.pipeline()
        self.cluster.fail("WATCH", NOT_SERVING, "lose")
        self.wait(block.watch("a"))
        self.cluster.fail("GET", "lose")
        with self.assertRaises(redis.WatchError):
            self.wait(block.get("a"))
        self.wait(block.reset())

    def test_a_changed_key_is_a_watch_error_and_the_connection_is_clean_afterwards(self):
        client = self.client(max_connections=2)
        block = self.watching(client, "a", "mine")
        self.wait(client.set("a", "theirs"))
        with self.assertRaises(redis.WatchError):
            self.wait(block.execute())
        block = self.watching(client, "a", "mine")
        self.wait(block.reset())
        self.wait(client.set("a", "theirs"))
        self.assertEqual(self.wait(client.pipeline().set("a", "again").execute()), [True])

    def test_a_transaction_runs_again_until_nothing_has_changed(self):
        client = self.client()
        runs = []

        def add(transaction, key, amount):
            value = yield transaction.get(key)
            runs.append(value)
            if len(runs) == 1:
                self.cluster.keys[b"a"] = b"10"
                self.cluster.versions[b"a"] = 77
                self.cluster.fail("SESSION CALL 0", REFUSED)
            return transaction.set(key, int(value or 0) + amount)

        transacted = client.transactional(self.body(add))
        self.cluster.fail("WATCH", REFUSED, "lose")
        self.assertEqual(self.wait(transacted("a", amount=5)), [True])
        self.assertEqual((runs[0], runs[-1], self.cluster.keys[b"a"]), (None, b"10", b"15"))

    def test_a_block_that_never_left_leaves_no_watches_behind(self):
        client = self.client()
        pipeline = client.pipeline()
        self.wait(pipeline.watch("a"))
        pipeline.multi()
        pipeline.set("a", 1)
        self.cluster.fail("SESSION OPEN", REFUSED)
        with self.assertRaises(redis.WatchError):
            self.wait(pipeline.execute())
        self.assertEqual((self.cluster.calls(), self.cluster.arrived("UNWATCH")), ([], 1))
        self.wait(client.set("a", 2))
        pipeline = client.pipeline()
        pipeline.set("b", 3)
        self.assertEqual(self.wait(pipeline.execute()), [True], "nothing is watched")

    def test_a_transaction_that_always_conflicts_fails(self):
        client = self.client(deadline=0.05)
        self.cluster.always[(b"SESSION", b"CALL")] = REFUSED

        def add(transaction):
            yield transaction.get("a")
            return transaction.set("a", 1)

        with self.assertRaisesRegex(quorate.Failed, "did not happen"):
            self.wait(client.transactional(self.body(add))())

    def test_a_transaction_says_what_it_can_not_do(self):
        client = self.client()

        def late(transaction):
            transaction.set("a", 1)
            yield transaction.get("b")

        def plain(transaction):
            yield transaction.flushall()

        def keyless(transaction):
            yield transaction.dbsize()

        for wrong in (late, plain, keyless):
            with self.assertRaises(redis.RedisError):
                self.wait(client.transactional(self.body(wrong))())
        self.assertEqual(self.cluster.keys, {})

    def test_the_transaction_of_redis_py(self):
        client = self.client()
        self.cluster.fail("SESSION CALL 0", REFUSED)

        def add(block):
            value = yield block.get("a")
            block.multi()
            block.set("a", int(value or 0) + 1)
            return "value"

        body = self.body(add)
        self.assertEqual(self.wait(client.transaction(body, "a", watch_delay=0.001)), [True])
        self.assertEqual(self.wait(client.transaction(body, "a", value_from_callable=True)), "value")
        self.assertEqual(self.count(), 2)

    def test_a_transaction_without_keys_to_watch_runs_at_once(self):
        client = self.client()

        def add(block):
            block.incr("a")
            block.incr("a")
            return "value"
            yield

        self.assertEqual(self.wait(client.transaction(self.body(add))), [1, 2])
        self.assertEqual(self.wait(client.transaction(self.body(add), value_from_callable=True)), "value")
        self.assertEqual(self.count(), 4)

    def test_a_script_that_was_loaded_is_sent_whole(self):
        for source in ("return 1", b"return 1"):
            scripts = Scripts()
            digest = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
            command = ("EVALSHA", digest.encode(), 1, "key")
            self.assertEqual(scripts.spelt(command), command)
            load = ("SCRIPT LOAD", source)
            self.assertEqual(scripts.spelt(load), load)
            self.assertEqual(scripts.spelt(command), ("EVAL", source, 1, "key"))
            self.assertEqual(scripts.spelt(("SCRIPT", "EXISTS", digest)), ("SCRIPT", "EXISTS", digest))
            self.assertEqual(scripts.spelt(("evalsha_ro", digest.upper(), 0)), ("EVAL_RO", source, 0))

    def test_a_script_that_is_not_known_has_not_run_at_an_earlier_try(self):
        # A node answers this from the call's record, or after it has found no record.
        client = self.client(deadline=1)
        self.cluster.fail("SESSION CALL", "drop", "NOSCRIPT No matching script. Please use EVAL.")
        with self.assertRaises(redis.exceptions.NoScriptError):
            self.wait(client.incr("a"))

    def test_tries_are_bounded_as_redis_py_says(self):
        self.cluster.always[(b"SESSION", b"CALL")] = REFUSED
        for retries, tries in ((0, 1), (2, 3)):
            pauses = []

            class Backoff(NoBackoff):
                def compute(self, failures):
                    pauses.append(failures)
                    return 0

            before = len(self.cluster.calls())
            client = self.client(retry=Retry(Backoff(), retries), retry_on_timeout=True, retry_on_error=[OSError])
            with self.assertRaises(quorate.Failed):
                self.wait(client.incr("a"))
            self.assertEqual(len(self.cluster.calls()) - before, tries)
            self.assertEqual(pauses, list(range(1, tries)))

    def test_options_that_would_have_no_effect_are_refused(self):
        with self.assertRaises(TypeError):
            self.Client(single_connection_client=True)
        for option in ("cache", "cache_config"):
            with self.assertRaises(TypeError):
                self.Client(**{option: object()})
        for nodes in ([], ["host:port"], ["user@host:1"], ["host:1/2"]):
            with self.assertRaises(ValueError):
                self.Client(nodes=nodes)

    def test_urls_with_several_hosts(self):
        url = "redis://" + ",".join(self.cluster.nodes) + "/0"
        client = self.Client.from_url(url, deadline=60, decode_responses=True)
        self.open_clients.append(client)
        self.cluster.stop(0)
        self.assertEqual(self.wait(client.set("a", "text")), True)
        self.assertEqual(self.wait(client.get("a")), "text")


class SyncTest(Scenarios, unittest.TestCase):
    Client = quorate.Client

    def wait(self, value):
        return value

    def body(self, function):
        def body(*args, **options):
            steps = function(*args, **options)
            value = None
            while True:
                try:
                    value = steps.send(value)
                except StopIteration as end:
                    return end.value

        return body

    def test_it_is_redis_py(self):
        self.assertIsInstance(self.client(), redis.Redis)
        self.assertIsInstance(self.client().pipeline(), redis.client.Pipeline)

    def test_threads_share_a_session(self):
        client = self.client()
        answers = []
        self.cluster.fail("SESSION CALL", "drop", "lose", UNKNOWN, REFUSED)
        threads = [threading.Thread(target=lambda: answers.append(client.incr("a"))) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(answers), list(range(1, 33)))
        self.assertEqual(self.cluster.opened, 1)

    def test_a_forked_process_has_a_session_of_its_own(self):
        client = self.client()
        client.incr("a")
        child = os.fork()
        if child == 0:
            os._exit(0 if client.incr("a") == 2 else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(client.incr("a"), 3)
        self.assertEqual(self.cluster.opened, 2)


class AsyncTest(Scenarios, unittest.TestCase):
    Client = quorate.asyncio.Client

    def setUp(self):
        self.loop = asyncio.new_event_loop()
        self.addCleanup(self.loop.close)
        super().setUp()

    def wait(self, value):
        if not inspect.isawaitable(value):
            return value

        async def awaited():
            return await value

        return self.loop.run_until_complete(awaited())

    def body(self, function):
        async def body(*args, **options):
            steps = function(*args, **options)
            value = None
            while True:
                try:
                    value = await steps.send(value)
                except StopIteration as end:
                    return end.value

        return body

    def test_it_is_redis_py(self):
        self.assertIsInstance(self.client(), redis.asyncio.Redis)
        self.assertIsInstance(self.client().pipeline(), redis.asyncio.client.Pipeline)

    def test_tasks_share_a_session(self):
        client = self.client()
        self.cluster.fail("SESSION CALL", "drop", "lose", UNKNOWN, REFUSED)

        async def all_of_them():
            return await asyncio.gather(*[client.incr("a") for _ in range(32)])

        self.assertEqual(sorted(self.wait(all_of_them())), list(range(1, 33)))
        self.assertEqual(self.cluster.opened, 1)

    def test_a_cancelled_call_is_acknowledged_and_its_connection_not_used_again(self):
        client = self.client()

        async def cancel():
            await client.set("a", "1")
            self.cluster.lock.acquire()
            try:
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.incr("a"), 0.5)
            finally:
                self.cluster.lock.release()
            return await client.get("a"), await client.incr("b")

        value, number = self.wait(cancel())
        self.assertIn(value, (b"1", b"2"))
        self.assertEqual(number, 1)
        self.assertEqual(self.cluster.log[-1][1][:5], (b"SESSION", b"CALL", b"2", b"2", b"INCRBY"))

    def test_asking_again_for_a_call_may_be_cancelled(self):
        def command(client):
            return client.incr("a")

        async def block(client):
            async with client.pipeline() as pipeline:
                await pipeline.watch("a")
                pipeline.multi()
                pipeline.incr("a")
                return (await pipeline.execute())[0]

        for doubtful in (command, block):
            with self.subTest(doubtful.__name__):
                self.cluster.keys.clear()
                client = self.client(deadline=0)

                async def cancel():
                    await client.incr("b")
                    self.cluster.fail("SESSION CALL", "drop")
                    # A block that watched is looked for at once.
                    self.cluster.fail("COMMAND", "drop")
                    with self.assertRaises(quorate.Unknown) as raised:
                        await doubtful(client)
                    self.cluster.faults.clear()
                    call = raised.exception.call
                    # So that it is the call under the block's own number that is cancelled.
                    client._caller._keys = mock.AsyncMock(return_value=[b"a"])
                    self.cluster.lock.acquire()
                    try:
                        with self.assertRaises(asyncio.TimeoutError):
                            await asyncio.wait_for(client.ask_again(call), 0.5)
                    finally:
                        self.cluster.lock.release()
                    # This would acknowledge a number that nobody asks for.
                    await client.incr("b")
                    answer = await client.ask_again(call)
                    return answer[0] if isinstance(answer, list) else answer

                self.assertEqual(self.wait(cancel()), 1)
                self.assertEqual(self.count(), 1)


if __name__ == "__main__":
    unittest.main()
