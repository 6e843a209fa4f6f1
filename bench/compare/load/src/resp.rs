//! Requests and answers in the Redis protocol.

use quorate_workloads::redis::{Reply, scan};
use quorate_workloads::{Answer, Dialect, Misunderstood, Step};

use crate::KeyDialect;
use crate::keys::Key;

/// One op as the Redis protocol spells it.
pub(crate) struct Redis {
    /// The request, cut where the key goes.
    parts: Vec<Vec<u8>>,
    /// How many replies an op has.
    replies: usize,
    /// Of these, how many have come.
    come: usize,
    /// The least that the last reply must say, if it is that of a `WAIT`.
    replicas: Option<u8>,
    /// The op's answer so far: that of its worst reply.
    answer: Answer,
    /// The number of the session's next call, if ops are calls that say theirs.
    call: Option<u64>,
    /// What is sent first.
    greeting: &'static [u8],
    /// Replies to the greeting that are still to come.
    greetings: usize,
}

const OPEN: &[u8] = b"*2\r\n$7\r\nSESSION\r\n$4\r\nOPEN\r\n";
const OPEN_AND_NUMBER: &[u8] = b"*2\r\n$7\r\nSESSION\r\n$4\r\nOPEN\r\n\
                                 *3\r\n$7\r\nSESSION\r\n$4\r\nAUTO\r\n$1\r\n0\r\n";

impl Redis {
    /// `GET key`.
    pub(crate) fn get() -> Box<KeyDialect> {
        Self::boxed(&["*2\r\n$3\r\nGET\r\n$16\r\n", "\r\n"], b"", 1, None)
    }

    /// `SET key value`.
    pub(crate) fn set(value: &[u8]) -> Box<KeyDialect> {
        Self::boxed(&["*3\r\n$3\r\nSET\r\n$16\r\n", ""], &with_value(value), 1, None)
    }

    /// Any command, whose words may have `{key}` and `{value}` in them, and `WAIT replicas 0` if there are
    /// any.
    pub(crate) fn command(words: &[String], value: &[u8], replicas: Option<u8>) -> Box<KeyDialect> {
        let mut parts = vec![format!("*{}\r\n", words.len()).into_bytes()];
        for word in words {
            let value = String::from_utf8_lossy(value);
            let pieces: Vec<String> =
                word.split("{key}").map(|piece| piece.replace("{value}", &value)).collect();
            let keys = (pieces.len() - 1) * size_of::<Key>();
            let bytes = pieces.iter().map(String::len).sum::<usize>() + keys;
            for (number, piece) in pieces.iter().enumerate() {
                let part = match number {
                    0 => parts.last_mut().expect("there is a head"),
                    _ => parts.push_mut(Vec::new()),
                };
                if number == 0 {
                    part.extend_from_slice(format!("${bytes}\r\n").as_bytes());
                }
                part.extend_from_slice(piece.as_bytes());
            }
            parts.last_mut().expect("there is a head").extend_from_slice(b"\r\n");
        }
        let parts: Vec<String> =
            parts.into_iter().map(|part| String::from_utf8(part).expect("it was text")).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let end = replicas.map(wait).unwrap_or_default();
        Self::boxed(&parts, &end, 1 + usize::from(replicas.is_some()), replicas)
    }

    /// `SET key value` and `WAIT replicas 0`.
    pub(crate) fn set_wait(value: &[u8], replicas: u8) -> Box<KeyDialect> {
        let mut end = with_value(value);
        end.extend_from_slice(&wait(replicas));
        Self::boxed(&["*3\r\n$3\r\nSET\r\n$16\r\n", ""], &end, 2, Some(replicas))
    }

    /// `MULTI`, `GET key`, `SET key value`, `EXEC`, and `WAIT replicas 0` if there are any.
    pub(crate) fn multi(value: &[u8], replicas: Option<u8>) -> Box<KeyDialect> {
        let mut end = with_value(value);
        end.extend_from_slice(b"*1\r\n$4\r\nEXEC\r\n");
        end.extend(replicas.map(wait).unwrap_or_default());
        let parts = [
            "*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nGET\r\n$16\r\n",
            "\r\n*3\r\n$3\r\nSET\r\n$16\r\n",
            "",
        ];
        Self::boxed(&parts, &end, 4 + usize::from(replicas.is_some()), replicas)
    }

    /// `SET key value` behind `SESSION AUTO 0`.
    pub(crate) fn call(value: &[u8]) -> Box<KeyDialect> {
        let parts = ["*3\r\n$3\r\nSET\r\n$16\r\n", ""];
        let mut redis = Self::new(&parts, &with_value(value), 1, None);
        (redis.greeting, redis.greetings) = (OPEN_AND_NUMBER, 2);
        Box::new(redis)
    }

    /// `SESSION CALL n n SET key value`, where n is the next number.
    pub(crate) fn spelt(value: &[u8]) -> Box<KeyDialect> {
        let parts = ["\r\n$3\r\nSET\r\n$16\r\n", ""];
        let mut redis = Self::new(&parts, &with_value(value), 1, None);
        (redis.call, redis.greeting, redis.greetings) = (Some(0), OPEN, 1);
        Box::new(redis)
    }

    /// `SESSION OPEN`, `SESSION CALL 0 0 SET key value`, and perhaps `SESSION CLOSE`.
    pub(crate) fn open(value: &[u8], close: bool) -> Box<KeyDialect> {
        let mut end = with_value(value);
        if close {
            end.extend_from_slice(b"*2\r\n$7\r\nSESSION\r\n$5\r\nCLOSE\r\n");
        }
        let parts = [
            "*2\r\n$7\r\nSESSION\r\n$4\r\nOPEN\r\n*7\r\n$7\r\nSESSION\r\n$4\r\nCALL\r\n\
             $1\r\n0\r\n$1\r\n0\r\n$3\r\nSET\r\n$16\r\n",
            "",
        ];
        Self::boxed(&parts, &end, 2 + usize::from(close), None)
    }

    fn boxed(parts: &[&str], end: &[u8], replies: usize, replicas: Option<u8>) -> Box<KeyDialect> {
        Box::new(Self::new(parts, end, replies, replicas))
    }

    fn new(parts: &[&str], end: &[u8], replies: usize, replicas: Option<u8>) -> Self {
        let mut parts: Vec<Vec<u8>> = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
        if let Some(last) = parts.last_mut() {
            last.extend_from_slice(end);
        }
        let answer = Answer::Good;
        let (call, greeting, greetings) = (None, b"".as_slice(), 0);
        Self { parts, replies, come: 0, replicas, answer, call, greeting, greetings }
    }

    /// The op's answer, once its last reply has come.
    fn judge(&mut self, reply: &Reply<'_>) -> Option<Answer> {
        self.come += 1;
        let last = self.come == self.replies;
        let answer = match (reply.error, self.replicas.filter(|_| last), reply.number) {
            (Some(error), ..) => Answer::Failed(format!("-{}", String::from_utf8_lossy(error))),
            (_, Some(least), Some(reached)) if reached < i64::from(least) => Answer::Weak,
            _ if reply.is_null => Answer::Missed,
            _ => Answer::Good,
        };
        if self.answer == Answer::Good {
            self.answer = answer;
        }
        if !last {
            return None;
        }
        self.come = 0;
        Some(std::mem::replace(&mut self.answer, Answer::Good))
    }
}

fn wait(replicas: u8) -> Vec<u8> {
    let digits = replicas.to_string();
    format!("*3\r\n$4\r\nWAIT\r\n${}\r\n{digits}\r\n$1\r\n0\r\n", digits.len()).into_bytes()
}

fn with_value(value: &[u8]) -> Vec<u8> {
    let mut out = format!("\r\n${}\r\n", value.len()).into_bytes();
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    out
}

impl Dialect for Redis {
    type Request = Key;

    fn greet(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.greeting);
    }

    fn request(&mut self, key: &Key, out: &mut Vec<u8>) {
        if let Some(number) = &mut self.call {
            let digits = number.to_string();
            *number += 1;
            let length = digits.len();
            let head = "*7\r\n$7\r\nSESSION\r\n$4\r\nCALL";
            let numbers = format!("{head}\r\n${length}\r\n{digits}\r\n${length}\r\n{digits}");
            out.extend_from_slice(numbers.as_bytes());
        }
        for (index, part) in self.parts.iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(key);
            }
            out.extend_from_slice(part);
        }
    }

    fn answer(&mut self, input: &[u8], _out: &mut Vec<u8>) -> Result<Option<Step>, Misunderstood> {
        let Some(reply) = scan(input)? else { return Ok(None) };
        if let Some(left) = self.greetings.checked_sub(1) {
            self.greetings = left;
            return match reply.error {
                None => Ok(Some(Step { used: reply.bytes, answer: None })),
                Some(error) => {
                    let error = String::from_utf8_lossy(error);
                    Err(Misunderstood(format!("opens no session: -{error}")))
                }
            };
        }
        let answer = self.judge(&reply);
        Ok(Some(Step { used: reply.bytes, answer }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(mut dialect: Box<KeyDialect>, input: &[u8]) -> Vec<Option<Answer>> {
        let mut rest = input;
        let mut out = Vec::new();
        while let Some(step) = dialect.answer(rest, &mut Vec::new()).expect("a reply") {
            rest = &rest[step.used..];
            out.push(step.answer);
        }
        assert!(rest.is_empty() || rest == b"$3\r\nab");
        out
    }

    #[test]
    fn replies_are_counted_whole() {
        let input = b"$3\r\nabc\r\n$-1\r\n-ERR no\r\n$3\r\nab";
        let failed = Answer::Failed("-ERR no".to_owned());
        let expected = [Some(Answer::Good), Some(Answer::Missed), Some(failed)];
        assert_eq!(answers(Redis::get(), input), expected);
    }

    #[test]
    fn a_wait_that_reached_too_few_is_weak() {
        let input = b"+OK\r\n:2\r\n+OK\r\n:1\r\n";
        let expected = [None, Some(Answer::Good), None, Some(Answer::Weak)];
        assert_eq!(answers(Redis::set_wait(b"v", 2), input), expected);
    }

    #[test]
    fn a_block_is_one_op() {
        let good = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$-1\r\n+OK\r\n";
        let input = [&good[..], b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*-1\r\n"].concat();
        let expected =
            [None, None, None, Some(Answer::Good), None, None, None, Some(Answer::Missed)];
        assert_eq!(answers(Redis::multi(b"v", None), &input), expected);
        let input = [&good[..], b":1\r\n"].concat();
        assert_eq!(answers(Redis::multi(b"v", Some(2)), &input)[4], Some(Answer::Weak));
    }

    #[test]
    fn calls_are_numbered_and_follow_the_opening() {
        let mut call = Redis::spelt(b"v");
        let mut out = Vec::new();
        call.greet(&mut out);
        call.request(b"key:000000000001", &mut out);
        call.request(b"key:000000000001", &mut out);
        let request = |number: u8| {
            format!(
                "*7\r\n$7\r\nSESSION\r\n$4\r\nCALL\r\n$1\r\n{number}\r\n$1\r\n{number}\r\n\
                 $3\r\nSET\r\n$16\r\nkey:000000000001\r\n$1\r\nv\r\n"
            )
        };
        let expected = format!("*2\r\n$7\r\nSESSION\r\n$4\r\nOPEN\r\n{}{}", request(0), request(1));
        assert_eq!(String::from_utf8(out).expect("ASCII"), expected);
        assert_eq!(answers(call, b"*0\r\n+OK\r\n"), [None, Some(Answer::Good)]);
        let mut call = Redis::call(b"v");
        call.greet(&mut Vec::new());
        assert!(call.answer(b"-ERR no\r\n", &mut Vec::new()).is_err());
    }

    #[test]
    fn a_call_looks_like_its_command_behind_the_opening() {
        let mut call = Redis::call(b"v");
        let (mut out, mut plain) = (Vec::new(), Vec::new());
        call.greet(&mut out);
        assert!(out.ends_with(b"$7\r\nSESSION\r\n$4\r\nAUTO\r\n$1\r\n0\r\n"));
        out.clear();
        call.request(b"key:000000000001", &mut out);
        Redis::set(b"v").request(b"key:000000000001", &mut plain);
        assert_eq!(out, plain);
        assert_eq!(answers(call, b"*0\r\n+OK\r\n+OK\r\n"), [None, None, Some(Answer::Good)]);
    }

    #[test]
    fn words_take_the_key_and_the_value() {
        let words = ["HSET", "h:{key}:{key}", "f", "{value}"].map(String::from);
        let mut out = Vec::new();
        Redis::command(&words, b"abc", Some(2)).request(b"key:000000000001", &mut out);
        let expected = "*4\r\n$4\r\nHSET\r\n$35\r\nh:key:000000000001:key:000000000001\r\n\
                        $1\r\nf\r\n$3\r\nabc\r\n*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$1\r\n0\r\n";
        assert_eq!(String::from_utf8(out).expect("ASCII"), expected);
    }

    #[test]
    fn requests_are_well_formed() {
        let mut out = Vec::new();
        Redis::multi(b"abc", None).request(b"key:000000000001", &mut out);
        let expected = "*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000001\r\n\
                        *3\r\n$3\r\nSET\r\n$16\r\nkey:000000000001\r\n$3\r\nabc\r\n\
                        *1\r\n$4\r\nEXEC\r\n";
        assert_eq!(String::from_utf8(std::mem::take(&mut out)).expect("ASCII"), expected);
        Redis::set_wait(b"abc", 2).request(b"key:000000000001", &mut out);
        let expected = "*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000001\r\n$3\r\nabc\r\n\
                        *3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$1\r\n0\r\n";
        assert_eq!(String::from_utf8(out).expect("ASCII"), expected);
    }
}
