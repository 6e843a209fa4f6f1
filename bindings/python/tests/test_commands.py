"""Which commands only read, and which keys they read."""

import unittest

from quorate.commands import Kind, keys_read, kind_of


class CommandsTest(unittest.TestCase):
    def test_keys_of_commands_that_read(self):
        for command, keys in (
            (["GET", "a"], ["a"]),
            (["hget", "a", "field"], ["a"]),
            (["SUNION", "a", "b"], ["a", "b"]),
            (["ZUNION", 2, "a", "b", "WITHSCORES"], ["a", "b"]),
            ([b"ZINTERCARD", b"1", b"a", b"LIMIT", b"2"], [b"a"]),
            (["XREAD", "COUNT", 2, "streams", "a", "b", "0", "0-1"], ["a", "b"]),
            (["XREAD", "COUNT", " "], []),
            (["XINFO", "STREAM", "a"], ["a"]),
            (["LCS", "a", "b", "LEN"], ["a", "b"]),
            (["DBSIZE"], []),
        ):
            with self.subTest(command=command):
                self.assertEqual(kind_of(command), Kind.READ)
                self.assertEqual(list(keys_read(command)), keys)

    def test_what_changes_a_key_is_a_call(self):
        for name in ("SET", "HSET", "LPOP", "SUNIONSTORE", "XREADGROUP", "EVAL", "SORT", "GEORADIUS"):
            self.assertEqual(kind_of([name]), Kind.CALL, name)

    def test_what_waits_is_no_call(self):
        self.assertEqual(kind_of(["XREADGROUP", "GROUP", "g", "c", "block", 0, "STREAMS", "a", ">"]), Kind.PLAIN)
        self.assertEqual(kind_of(["BLPOP", "a", 0]), Kind.PLAIN)


if __name__ == "__main__":
    unittest.main()
