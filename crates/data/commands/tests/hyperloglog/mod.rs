//! HyperLogLogs beside those of a real redis-server: the same answers, and the same bytes.

use quorate_machine::Rng;

use crate::redis::Redis;
use crate::workspace::{Answer, Store, Words, show};

/// Runs a command here and there.
fn both(store: &mut Store, redis: &mut Redis, words: &Words) -> Answer {
    let (ours, theirs) = (store.run(words), redis.pipeline([words]).remove(0));
    assert_eq!(ours, theirs, "{}", show(words));
    ours
}

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

struct Draw {
    rng: Rng,
}

impl Draw {
    fn key(&mut self) -> String {
        format!("h{}", self.rng.below(4))
    }

    fn command(&mut self) -> Words {
        let key = self.key();
        match self.rng.below(16) {
            0..8 => {
                let mut words = words(&format!("PFADD {key}"));
                let range = [10, 1_000, 100_000][self.rng.below(3) as usize];
                for _ in 0..[0, 1, 3, 60][self.rng.below(4) as usize] {
                    words.push(self.rng.below(range).to_string().into_bytes());
                }
                if self.rng.chance(1, 8) {
                    words.push((0..self.rng.below(40)).map(|byte| byte as u8).collect());
                }
                words
            }
            8..10 => {
                let sources = (0..self.rng.below(3)).map(|_| format!(" {}", self.key()));
                words(&format!("PFMERGE {key}{}", sources.collect::<String>()))
            }
            // A count of one key changes the value in Redis.
            10..12 => words(&format!("PFCOUNT {key} {}", self.key())),
            12 => words(&format!("PFDEBUG ENCODING {key}")),
            13 => words(&format!("PFDEBUG DECODE {key}")),
            14 if self.rng.chance(1, 8) => words(&format!("PFDEBUG GETREG {key}")),
            14 if self.rng.chance(1, 8) => words(&format!("PFDEBUG todense {key}")),
            14 => words(&format!("PFDEBUG what {key}")),
            _ if self.rng.chance(1, 4) => words(&format!("DEL {key}")),
            _ => words(&format!("EXPIRE {key} 1000")),
        }
    }
}

#[test]
fn values_have_the_bytes_that_redis_has() {
    let mut redis = Redis::start();
    let (mut sparse, mut dense) = (0, 0);
    for seed in 0..10 {
        redis.call(&["FLUSHALL"]);
        let mut store = Store::default();
        let mut draw = Draw { rng: Rng::new(seed) };
        for _ in 0..200 {
            let command = draw.command();
            both(&mut store, &mut redis, &command);
            for key in 0..4 {
                match both(&mut store, &mut redis, &words(&format!("GET h{key}"))) {
                    Answer::Bulk(bytes) if bytes[4] == 0 => dense += 1,
                    Answer::Bulk(_) => sparse += 1,
                    _ => {}
                }
            }
        }
        for key in 0..4 {
            both(&mut store, &mut redis, &words(&format!("PFCOUNT h{key}")));
        }
    }
    assert!(sparse > 1_000 && dense > 1_000, "{sparse} and {dense}");
}

/// The cached count that Redis wrote is the answer, also if it is not right.
#[test]
fn values_of_redis_are_taken_with_their_cached_counts() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    for line in ["PFADD h a b c", "PFCOUNT h", "PFADD h a", "PFCOUNT h"] {
        redis.pipeline([&words(line)]);
    }
    let Answer::Bulk(mut bytes) = redis.call(&["GET", "h"]) else { panic!("there is a value") };
    bytes[8] = 77;
    let set: Words = vec![b"SET".to_vec(), b"h".to_vec(), bytes];
    both(&mut store, &mut redis, &set);
    assert_eq!(both(&mut store, &mut redis, &words("PFCOUNT h")), Answer::Int(77));
    assert_eq!(both(&mut store, &mut redis, &words("PFCOUNT h h")), Answer::Int(3));
}

#[test]
fn values_that_are_none_are_refused_as_redis_does() {
    let mut redis = Redis::start();
    let mut store = Store::default();
    let valid = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\0\x7f\xff";
    let mut values: Vec<Vec<u8>> = (0..valid.len()).map(|cut| valid[..cut].to_vec()).collect();
    values.push([&b"HYLL\x02"[..], &valid[5..]].concat());
    values.push([&b"HYLL\x00"[..], &valid[5..]].concat());
    values.push([&valid[..16], b"\x7f\xfe"].concat());
    values.push([&valid[..], b"\0"].concat());
    values.push(b"12".to_vec());
    for value in values {
        // Redis reads the byte behind a string that ends within a run.
        let is_cut = value.last() == Some(&0x7f);
        let set: Words = vec![b"SET".to_vec(), b"h".to_vec(), value];
        for line in ["PFCOUNT h", "PFCOUNT h h", "PFMERGE h", "PFMERGE none h"] {
            both(&mut store, &mut redis, &set);
            if !is_cut {
                both(&mut store, &mut redis, &words(line));
            }
        }
    }
}
