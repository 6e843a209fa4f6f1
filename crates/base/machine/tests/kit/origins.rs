//! The order of what one origin asks for.

use quorate_machine::{Origins, Share};

#[test]
fn what_is_to_be_alone_has_its_origin_to_itself() {
    let mut origins = Origins::default();
    assert_eq!(origins.begin(1, Share::Together, 'a'), Some('a'));
    assert_eq!(origins.begin(1, Share::Together, 'b'), Some('b'));
    assert_eq!(origins.begin(1, Share::Alone, 'c'), None);
    assert_eq!(origins.begin(1, Share::Together, 'd'), None, "it does not overtake c");
    assert_eq!(origins.begin(2, Share::Alone, 'x'), Some('x'), "origins don't wait for others");
    assert!(origins.end(1).is_empty());
    assert_eq!(origins.end(1), ['c']);
    assert_eq!(origins.begin(1, Share::Together, 'e'), None);
    assert_eq!(origins.end(1), ['d', 'e']);
    origins.check_invariants();
    assert!(origins.end(1).is_empty() && origins.end(1).is_empty());
    assert!(origins.is_free(1) && !origins.is_free(2));
}

#[test]
fn what_waits_can_be_taken_back_and_what_has_begun_cannot() {
    let mut origins = Origins::default();
    for work in ['a', 'b', 'c'] {
        origins.begin(1, Share::Alone, work);
    }
    assert!(origins.waiting().eq(&['b', 'c']));
    assert_eq!(origins.withdraw(1, |work| *work == 'a'), None, "it has begun");
    assert_eq!(origins.withdraw(1, |work| *work == 'b'), Some('b'));
    assert_eq!(origins.withdraw(2, |work| *work == 'c'), None, "it is of another origin");
    assert_eq!(origins.end(1), ['c']);
    assert!(origins.end(1).is_empty() && origins.is_free(1));
}
