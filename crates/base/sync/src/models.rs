//! loom models of parkers and post: every interleaving of the steps of two or three threads, weak
//! memory included. Schedules of threads that really sleep are in `tests/schedules.rs`.

use std::sync::Arc;

use loom::thread;

use crate::primitives::{AtomicBool, Ordering};
use crate::{Parker, Post, Wake};

/// Whether the bell has rung.
#[derive(Default)]
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Bell {
    fn rang(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[test]
fn who_lies_down_sees_the_work_or_is_woken() {
    loom::model(|| {
        let parker = Arc::new(Parker::new(Bell::default()));
        let work = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let others = work.clone().map(|work| {
            let parker = Arc::clone(&parker);
            thread::spawn(move || {
                work.store(true, Ordering::Relaxed);
                parker.unpark();
            })
        });
        let has_work = || work.iter().any(|work| work.load(Ordering::Relaxed));
        let sleeps = parker.park(has_work);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(!sleeps || parker.bell().rang(), "asleep for ever");
    });
}

#[test]
fn who_lies_down_again_is_woken_again() {
    loom::model(|| {
        let parker = Arc::new(Parker::new(Bell::default()));
        let work = Arc::new(AtomicBool::new(false));
        let other = thread::spawn({
            let (parker, work) = (Arc::clone(&parker), Arc::clone(&work));
            move || {
                // An unpark that has nothing to do with the sleeper's work.
                parker.unpark();
                work.store(true, Ordering::Relaxed);
                parker.unpark();
            }
        });
        let _ = parker.park(|| false);
        parker.get_up();
        let sleeps = parker.park(|| work.load(Ordering::Relaxed));
        other.join().unwrap();
        assert!(!sleeps || parker.bell().rang(), "asleep for ever");
    });
}

#[test]
fn mail_is_taken_whole_and_in_order_or_its_receiver_is_woken() {
    loom::model(|| {
        let parkers = [(); 2].map(|()| Arc::new(Parker::new(Bell::default())));
        let mut posts = Post::connect(&parkers);
        let mut receiver = posts.pop().unwrap();
        let mut sender = posts.pop().unwrap();
        // The ring has room for one: the second may have to wait.
        let other = thread::spawn(move || {
            sender.send(1, 1);
            sender.unpark();
            sender.send(1, 2);
            sender.unpark();
            sender
        });
        let mut taken: Vec<u64> = core::iter::from_fn(|| receiver.take()).collect();
        let sleeps = parkers[1].park(|| receiver.has_mail());
        let mut sender = other.join().unwrap();
        assert!(!sleeps || taken.len() == 2 || parkers[1].bell().rang() || sender.is_stuck());
        while sender.is_stuck() || receiver.has_mail() {
            taken.extend(core::iter::from_fn(|| receiver.take()));
            sender.unpark();
        }
        assert_eq!(taken, [1, 2]);
    });
}
