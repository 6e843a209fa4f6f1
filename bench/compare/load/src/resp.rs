//! Requests and answers in the Redis protocol.

use quorate_workloads::redis::{Reply, scan};
use quorate_workloads::{Answer, Dialect, Misunderstood, Step};

use crate::KeyDialect;
use crate::keys::Key;

/// One op as the Redis protocol spells it.
pub(crate) struct Redis {
    before_key: Vec<u8>,
    after_key: Vec<u8>,
    /// The least `WAIT` must answer, if each op ends with one.
    replicas: Option<u8>,
    /// The answer to the `SET` of an op whose `WAIT` is not answered yet.
    set_answered: Option<Answer>,
}

impl Redis {
    /// `GET key`.
    pub(crate) fn get() -> Box<KeyDialect> {
        Self::boxed(b"*2\r\n$3\r\nGET\r\n$16\r\n", b"\r\n".to_vec(), None)
    }

    /// `SET key value`.
    pub(crate) fn set(value: &[u8]) -> Box<KeyDialect> {
        Self::boxed(b"*3\r\n$3\r\nSET\r\n$16\r\n", with_value(value), None)
    }

    /// `SET key value` and `WAIT replicas 0`.
    pub(crate) fn set_wait(value: &[u8], replicas: u8) -> Box<KeyDialect> {
        let mut after_key = with_value(value);
        let digits = replicas.to_string();
        let wait = format!("*3\r\n$4\r\nWAIT\r\n${}\r\n{digits}\r\n$1\r\n0\r\n", digits.len());
        after_key.extend_from_slice(wait.as_bytes());
        Self::boxed(b"*3\r\n$3\r\nSET\r\n$16\r\n", after_key, Some(replicas))
    }

    fn boxed(before_key: &[u8], after_key: Vec<u8>, replicas: Option<u8>) -> Box<KeyDialect> {
        Box::new(Self { before_key: before_key.to_vec(), after_key, replicas, set_answered: None })
    }

    fn judge(&mut self, reply: &Reply<'_>) -> Option<Answer> {
        let answer = match reply.error {
            Some(error) => Answer::Failed(format!("-{}", String::from_utf8_lossy(error))),
            None if reply.is_null => Answer::Missed,
            None => Answer::Good,
        };
        let Some(replicas) = self.replicas else { return Some(answer) };
        let Some(set) = self.set_answered.take() else {
            self.set_answered = Some(answer);
            return None;
        };
        Some(match (set, reply.number) {
            (Answer::Good, Some(reached)) if reached < i64::from(replicas) => Answer::Weak,
            (Answer::Good, _) => answer,
            (set, _) => set,
        })
    }
}

fn with_value(value: &[u8]) -> Vec<u8> {
    let mut out = format!("\r\n${}\r\n", value.len()).into_bytes();
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    out
}

impl Dialect for Redis {
    type Request = Key;

    fn greet(&mut self, _out: &mut Vec<u8>) {}

    fn request(&mut self, key: &Key, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.before_key);
        out.extend_from_slice(key);
        out.extend_from_slice(&self.after_key);
    }

    fn answer(&mut self, input: &[u8], _out: &mut Vec<u8>) -> Result<Option<Step>, Misunderstood> {
        let Some(reply) = scan(input)? else { return Ok(None) };
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
    fn requests_are_well_formed() {
        let mut out = Vec::new();
        Redis::set_wait(b"abc", 2).request(b"key:000000000001", &mut out);
        let expected = "*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000001\r\n$3\r\nabc\r\n\
                        *3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$1\r\n0\r\n";
        assert_eq!(String::from_utf8(out).expect("ASCII"), expected);
    }
}
