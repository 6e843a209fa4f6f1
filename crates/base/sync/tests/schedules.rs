//! Parkers and post under many schedules, with threads that really sleep, and rings of one
//! envelope: `RUSTFLAGS="--cfg shuttle" cargo test -p quorate-sync --test schedules`.
#![cfg(shuttle)]

use std::sync::Arc;

use quorate_sync::primitives::{Condvar, Mutex, thread};
use quorate_sync::schedules::explore;
use quorate_sync::{Parker, Post, Wake};

/// The promise of a system's waker of a poll: a ring before the sleep ends the sleep, too.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.heard.wait(rung).unwrap();
        }
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_one();
    }
}

/// As a lane waits: one last look, then sleep until another thread unparks it. A thread that is
/// never woken waits for ever, which shuttle finds.
fn wait(parker: &Parker<Bell>, has_work: impl FnOnce() -> bool) {
    if parker.park(has_work) {
        parker.bell().sleep();
    }
    parker.get_up();
}

/// Three lanes that all write to each other, through rings of one envelope.
#[test]
fn a_mesh_loses_nothing_and_keeps_the_order_of_each_sender() {
    const LANES: usize = 3;
    const COUNT: u64 = 4;
    explore(10_000, || {
        let parkers = [(); LANES].map(|()| Arc::new(Parker::new(Bell::default())));
        let posts = Post::connect(&parkers);
        let lane = |(number, mut post): (usize, Post<u64, Bell>)| {
            let parker = Arc::clone(&parkers[number]);
            thread::spawn(move || {
                let mut received: Vec<u64> = Vec::new();
                let all = (LANES as u64 - 1) * COUNT;
                let mut sent = 0;
                while sent < COUNT || post.is_stuck() || (received.len() as u64) < all {
                    received.extend(core::iter::from_fn(|| post.take()));
                    if sent < COUNT {
                        let others = (0..LANES).filter(|&other| other != number);
                        others.for_each(|to| post.send(to, number as u64 * 100 + sent));
                        sent += 1;
                    }
                    post.unpark();
                    // As in a lane's loop: a lane with more to send comes back at once.
                    if sent < COUNT || post.is_stuck() {
                        thread::yield_now();
                    } else if (received.len() as u64) < all {
                        wait(&parker, || post.has_mail());
                    }
                }
                for sender in (0..LANES).filter(|&other| other != number) {
                    let from = received.iter().filter(|&&number| number / 100 == sender as u64);
                    let expected: Vec<u64> = (0..COUNT).map(|n| sender as u64 * 100 + n).collect();
                    assert_eq!(from.copied().collect::<Vec<_>>(), expected);
                }
                assert!(!post.has_mail(), "more mail than was sent");
            })
        };
        let lanes: Vec<_> = posts.into_iter().enumerate().map(lane).collect();
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
    });
}
