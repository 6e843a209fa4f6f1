//! What is due when.

use quorate_machine::{Deadlines, Timeouts};
use quorate_types::Instant;

use crate::at;

#[test]
fn nothing_is_due_before_its_time() {
    let (mut timeouts, mut deadlines) = (Timeouts::default(), Deadlines::default());
    assert_eq!((timeouts.next_deadline(), timeouts.pop_due(at(9))), (Instant::NEVER, None));
    for (time, key) in [(3, 'c'), (5, 'b'), (5, 'a')] {
        timeouts.push(Instant(time), key);
        deadlines.insert(Instant(time), key);
    }
    assert_eq!((timeouts.next_deadline(), deadlines.next_deadline()), (Instant(3), Instant(3)));
    assert_eq!((timeouts.pop_due(at(2)), deadlines.pop_due(at(2))), (None, None));
    assert_eq!(timeouts.pop_due(at(4)), Some((Instant(3), 'c')));
    assert_eq!(deadlines.first_due(at(3)), Some((Instant(3), 'c')));
    assert_eq!(deadlines.pop_due(at(4)), Some((Instant(3), 'c')));
    assert_eq!((timeouts.pop_due(at(4)), deadlines.first_due(at(4))), (None, None));
    assert_eq!(timeouts.pop_due(at(5)), Some((Instant(5), 'b')), "in the order of entry");
    assert_eq!(deadlines.pop_due(at(5)), Some((Instant(5), 'a')), "in the order of keys");
}

#[test]
fn what_no_longer_counts_is_passed_over_or_taken_back() {
    let mut timeouts = Timeouts::default();
    (1..=4).for_each(|key| timeouts.push(Instant(key), key));
    assert_eq!(timeouts.oldest(|key| *key > 2), Some(3));
    assert_eq!(timeouts.next_deadline(), Instant(3));
    assert_eq!(timeouts.oldest(|_| false), None);
    assert_eq!(timeouts, Timeouts::default());
    let mut deadlines = Deadlines::default();
    deadlines.insert(Instant(1), 'a');
    deadlines.remove(Instant(1), 'a');
    assert_eq!(deadlines, Deadlines::default());
}
