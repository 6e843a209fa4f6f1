//! loom models of doors and post: every interleaving of what two or three threads do, weak memory
//! included. Schedules of threads that really sleep are in `tests/schedules.rs`.

use std::sync::Arc;

use loom::thread;

use crate::primitives::{AtomicBool, Ordering};
use crate::{Door, Post, Wake};

/// Whether somebody rang.
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
        let door = Arc::new(Door::new(Bell::default()));
        let work = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let others = work.clone().map(|work| {
            let door = Arc::clone(&door);
            thread::spawn(move || {
                work.store(true, Ordering::Relaxed);
                door.knock();
            })
        });
        let has_work = || work.iter().any(|work| work.load(Ordering::Relaxed));
        let sleeps = door.lie_down(has_work);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(!sleeps || door.bell().rang(), "asleep for ever");
    });
}

#[test]
fn who_lies_down_again_is_woken_again() {
    loom::model(|| {
        let door = Arc::new(Door::new(Bell::default()));
        let work = Arc::new(AtomicBool::new(false));
        let other = thread::spawn({
            let (door, work) = (Arc::clone(&door), Arc::clone(&work));
            move || {
                // For something that is none of the sleeper's business now.
                door.knock();
                work.store(true, Ordering::Relaxed);
                door.knock();
            }
        });
        let _ = door.lie_down(|| false);
        door.get_up();
        let sleeps = door.lie_down(|| work.load(Ordering::Relaxed));
        other.join().unwrap();
        assert!(!sleeps || door.bell().rang(), "asleep for ever");
    });
}

#[test]
fn mail_is_taken_whole_and_in_order_or_its_receiver_is_woken() {
    loom::model(|| {
        let doors = [(); 2].map(|()| Arc::new(Door::new(Bell::default())));
        let mut posts = Post::connect(&doors);
        let mut receiver = posts.pop().unwrap();
        let mut sender = posts.pop().unwrap();
        // The ring has room for one: the second may have to wait.
        let other = thread::spawn(move || {
            sender.send(1, 1);
            sender.knock();
            sender.send(1, 2);
            sender.knock();
            sender
        });
        let mut taken: Vec<u64> = core::iter::from_fn(|| receiver.take()).collect();
        let sleeps = doors[1].lie_down(|| receiver.has_mail());
        let mut sender = other.join().unwrap();
        assert!(!sleeps || taken.len() == 2 || doors[1].bell().rang() || sender.is_stuck());
        while sender.is_stuck() || receiver.has_mail() {
            taken.extend(core::iter::from_fn(|| receiver.take()));
            sender.knock();
        }
        assert_eq!(taken, [1, 2]);
    });
}
