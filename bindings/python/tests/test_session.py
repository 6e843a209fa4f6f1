"""The state of a session: the same cases as in `crates/protocols/rifl/src/client.rs`."""

import unittest

from quorate.session import WINDOW, Requests, Session, ClientLease


class RequestsTest(unittest.TestCase):
    def test_the_first_incomplete_call_follows_the_oldest_open_one(self):
        requests = Requests()
        self.assertEqual([requests.begin() for _ in range(4)], [0, 1, 2, 3])
        requests.complete(1)
        requests.complete(2)
        self.assertEqual((requests.first_incomplete, requests.open), (0, 2))
        requests.complete(0)
        self.assertEqual((requests.first_incomplete, requests.open), (3, 1))
        requests.complete(0)
        requests.complete(3)
        self.assertEqual((requests.first_incomplete, requests.open), (4, 0))

    def test_the_window_is_held_up_by_its_oldest_call(self):
        requests = Requests()
        for _ in range(WINDOW):
            self.assertIsNotNone(requests.begin())
        for sequence in range(1, WINDOW):
            requests.complete(sequence)
        self.assertIsNone(requests.begin())
        requests.complete(0)
        self.assertEqual(requests.begin(), WINDOW)

    def test_a_row_takes_the_numbers_that_there_are(self):
        requests = Requests()
        self.assertEqual(requests.begin_row(3), range(3))
        self.assertEqual(requests.begin_row(WINDOW), range(3, WINDOW))
        self.assertEqual(len(requests.begin_row(2)), 0)
        requests.complete(0)
        self.assertEqual(requests.begin_row(2), range(WINDOW, WINDOW + 1))


class TenureTest(unittest.TestCase):
    def test_a_term_counts_from_the_sending(self):
        client_lease = ClientLease(100, 1800)
        self.assertFalse(client_lease.is_due(999))
        self.assertTrue(client_lease.is_due(1000))
        self.assertTrue(client_lease.may_begin(1839))
        self.assertFalse(client_lease.may_begin(1840))
        self.assertTrue(client_lease.renewed(1000, 1800))
        self.assertFalse(client_lease.renewed(500, 1800))
        self.assertTrue(client_lease.may_begin(2739))
        self.assertFalse(client_lease.may_begin(2740))

    def test_a_late_answer_does_not_bring_back_an_older_until(self):
        session = Session([b"id", b"7", b"until", b"1", b"term", 1_800_000], 0)
        session.renewed({"id": "7", "until": "3", "term": 1_800_000}, 20)
        session.renewed([b"id", b"7", b"until", b"2", b"term", 1_800_000], 10)
        self.assertEqual(session.lease, (b"7", b"3"))


if __name__ == "__main__":
    unittest.main()
