//! Queues: elements that clients put into collections and take out, each once.
//!
//! Every element is put in once. Whatever fails, one that was put in is still there, or one client
//! has it, or it may have gone with an answer that was lost. The order of real time plays no role,
//! so this judges histories of any length, and queues between which elements are moved.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::Bytes;
use crate::linearizability::Loss;

/// The ends of all puts and takes of a run.
#[derive(Debug, Default)]
pub struct Queues {
    /// The elements that were put in, and when the client waited for the answer, if one came.
    put: BTreeMap<Bytes, Option<Span>>,
    /// The elements that clients got, and when each waited for its answer.
    got: BTreeMap<Bytes, Vec<Span>>,
    /// Takes of unknown outcome: each may have taken one element.
    lost_answers: usize,
    /// When clients waited for elements to be moved.
    moves: Vec<Span>,
    /// Moves that may be half lost: each may have left its element in both places.
    torn_moves: usize,
    /// Entries that were added to streams, by stream.
    added: BTreeMap<String, Vec<Added>>,
}

/// When a client asked, and when it was answered or gave up.
type Span = (u64, u64);

/// An entry that was added to a stream.
#[derive(Debug)]
struct Added {
    element: Bytes,
    id: (u64, u64),
    /// When a client asked for it, and when it was told the id.
    began: u64,
    ended: u64,
}

impl Queues {
    /// Notes that an element was put in: for sure, while a client waited, or perhaps, if no answer came.
    pub fn put(&mut self, element: Bytes, acknowledged: Option<Span>) {
        self.put.insert(element, acknowledged);
    }

    /// Notes that a client got an element.
    pub fn got(&mut self, element: Bytes, span: Span) {
        self.got.entry(element).or_default().push(span);
    }

    /// Notes that an element may have been moved from one queue to another.
    pub fn moved(&mut self, span: Span) {
        self.moves.push(span);
    }

    /// What was answered last may be lost at these times; of a move one half, if a loss may be `torn`. What
    /// was put in may be gone then, and what was taken may be back.
    pub fn lose(&mut self, losses: &[Loss], torn: bool) {
        let lost = |(asked, answered): &Span| losses.iter().any(|it| it.takes(*asked, *answered));
        self.put.values_mut().for_each(|span| *span = span.filter(|span| !lost(span)));
        for spans in self.got.values_mut() {
            let before = spans.len();
            spans.retain(|span| !lost(span));
            self.lost_answers += before - spans.len();
        }
        for all in self.added.values_mut() {
            all.retain(|added| !lost(&(added.began, added.ended)));
        }
        let moves = self.moves.iter().filter(|span| torn && lost(span)).count();
        self.torn_moves += moves;
        self.lost_answers += moves;
    }

    /// Notes that a take had no answer.
    pub fn lost_answer(&mut self) {
        self.lost_answers += 1;
    }

    /// Notes that an element was added to a stream, which gave it this id between the times.
    pub fn added(
        &mut self,
        stream: &str,
        element: Bytes,
        id: (u64, u64),
        (began, ended): (u64, u64),
    ) {
        let all = self.added.entry(stream.to_owned()).or_default();
        all.push(Added { element, id, began, ended });
    }

    /// The streams to which elements were added, and these.
    pub fn all_added(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.added.iter().flat_map(|(stream, all)| {
            all.iter().map(move |added| (stream.as_str(), &added.element))
        })
    }

    /// Judges the ids of entries: one that was added behind another one has a larger id.
    fn check_ids(&self) -> Result<(), String> {
        for (stream, all) in &self.added {
            let mut by_end: Vec<&Added> = all.iter().collect();
            by_end.sort_by_key(|added| added.ended);
            let mut by_begin: Vec<&Added> = all.iter().collect();
            by_begin.sort_by_key(|added| added.began);
            let (mut earlier, mut largest) = (by_end.into_iter().peekable(), None);
            for added in by_begin {
                while let Some(before) = earlier.next_if(|before| before.ended < added.began) {
                    largest = largest.max(Some(before.id));
                }
                if largest.is_some_and(|largest| largest >= added.id) {
                    let (id, largest) = (added.id, largest.unwrap_or_default());
                    return Err(format!("{stream} gave the id {id:?} after {largest:?}"));
                }
            }
        }
        Ok(())
    }

    /// How many elements clients got.
    pub fn taken(&self) -> usize {
        self.got.len()
    }

    /// Judges what clients got.
    ///
    /// # Errors
    /// An element that two clients got, or that nobody put in, in a sentence.
    pub fn check(&self) -> Result<(), String> {
        self.check_ids()?;
        let mut again = self.got.iter().filter(|(_, spans)| spans.len() > 1);
        let extra: usize = again.clone().map(|(_, spans)| spans.len() - 1).sum();
        if let Some((element, spans)) = again.next().filter(|_| extra > self.torn_moves) {
            return Err(format!("{element} was taken {} times, and put in once", spans.len()));
        }
        match self.got.keys().find(|element| !self.put.contains_key(*element)) {
            Some(element) => Err(format!("{element} was taken, and nobody put it in")),
            None => Ok(()),
        }
    }

    /// Judges also what is left once all clients have ended.
    ///
    /// # Errors
    /// As [`Queues::check`]; an element that is there twice, was taken, or was never put in; more
    /// elements missing than answers were lost.
    pub fn check_left(&self, left: &[Bytes]) -> Result<(), String> {
        self.check()?;
        let (mut seen, mut copies) = (BTreeSet::new(), 0);
        let was_taken =
            |element: &Bytes| self.got.get(element).is_some_and(|spans| !spans.is_empty());
        for element in left {
            let (what, is_copy) = match element {
                element if !seen.insert(element) => ("is there twice", true),
                element if was_taken(element) => ("was taken, and is still there", true),
                element if !self.put.contains_key(element) => {
                    ("is there, and nobody put it in", false)
                }
                _ => continue,
            };
            copies += usize::from(is_copy);
            if !is_copy || copies > self.torn_moves {
                return Err(format!("{element} {what}"));
            }
        }
        let is_missing = |element: &&Bytes| !was_taken(element) && !seen.contains(element);
        let put = self.put.iter().filter(|(_, acknowledged)| acknowledged.is_some());
        let missing: Vec<&Bytes> = put.map(|(element, _)| element).filter(is_missing).collect();
        match missing.first() {
            Some(first) if missing.len() > self.lost_answers => Err(format!(
                "{} elements are gone, {first} the first, and only {} answers were lost",
                missing.len(),
                self.lost_answers
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(put: &[(&str, bool)], got: &[&str], lost_answers: usize) -> Queues {
        let mut queues = Queues::default();
        for (element, sure) in put {
            queues.put((*element).into(), sure.then_some((1, 2)));
        }
        got.iter().for_each(|element| queues.got((*element).into(), (3, 4)));
        (0..lost_answers).for_each(|_| queues.lost_answer());
        queues
    }

    fn verdict(queues: &Queues, left: &[&str]) -> Result<(), String> {
        let left: Vec<Bytes> = left.iter().map(|element| (*element).into()).collect();
        queues.check_left(&left)
    }

    #[test]
    fn each_element_is_there_or_taken_once() {
        let put = [("a", true), ("b", true), ("c", false)];
        assert_eq!(verdict(&queues(&put, &["a"], 0), &["b", "c"]), Ok(()));
        assert_eq!(verdict(&queues(&put, &["c"], 0), &["b", "a"]), Ok(()));
        // Nobody knows whether c was put in.
        assert_eq!(verdict(&queues(&put, &["a"], 0), &["b"]), Ok(()));
        for (got, left, said) in [
            (&["a", "a"][..], &["b"][..], "taken 2 times"),
            (&["x"], &["a", "b"], "nobody put it in"),
            (&["a"], &["a", "b"], "still there"),
            (&[], &["a", "b", "b"], "there twice"),
            (&[], &["a", "b", "x"], "nobody put it in"),
            (&["a"], &[], "1 elements are gone, \"b\" the first"),
        ] {
            let wrong = verdict(&queues(&put, got, 0), left).expect_err(said);
            assert!(wrong.contains(said), "{wrong}");
        }
    }

    #[test]
    fn ids_of_a_stream_grow() {
        let added = |ids: [u64; 3]| {
            let mut queues = Queues::default();
            // The first two at the same time, and the third after both.
            for ((id, times), name) in
                ids.into_iter().zip([(1, 5), (2, 4), (6, 7)]).zip(["a", "b", "c"])
            {
                queues.added("s", name.into(), (id, 0), times);
            }
            queues.check()
        };
        assert_eq!(added([1, 2, 3]), Ok(()));
        assert_eq!(added([2, 1, 3]), Ok(()));
        for ids in [[1, 2, 2], [1, 3, 2], [3, 1, 2]] {
            assert!(added(ids).is_err(), "{ids:?}");
        }
    }

    #[test]
    fn a_loss_takes_back_what_was_answered_last() {
        let loss = [Loss { from: 4, at: 6, all: false }];
        let (put, lost) = ([("a", true), ("b", true)], true);
        let after = |put: &[(&str, bool)], got: &[&str], torn| {
            let mut queues = queues(put, got, 0);
            queues.moved((3, 5));
            queues.lose(&loss, torn);
            queues
        };
        // What was taken is back, and is taken again, or stays taken.
        assert_eq!(verdict(&after(&put, &["a"], false), &["a", "b"]), Ok(()));
        assert_eq!(verdict(&after(&put, &["a"], false), &["b"]), Ok(()));
        let mut again = after(&put, &["a"], false);
        again.got("a".into(), (7, 8));
        assert_eq!(verdict(&again, &["b"]), Ok(()));
        // What was put in before is still there.
        assert!(verdict(&after(&put, &[], false), &["a"]).is_err());
        // A half of a move is lost, and no more than that.
        assert_eq!(verdict(&after(&put, &[], lost), &["a"]), Ok(()));
        assert_eq!(verdict(&after(&put, &[], lost), &["a", "b", "b"]), Ok(()));
        assert!(verdict(&after(&put, &[], lost), &["a", "a", "b", "b"]).is_err());
        assert!(verdict(&after(&put, &[], false), &["a", "b", "b"]).is_err());
    }

    #[test]
    fn a_lost_answer_explains_one_missing_element() {
        let put = [("a", true), ("b", true)];
        assert_eq!(verdict(&queues(&put, &["a"], 1), &[]), Ok(()));
        let wrong = verdict(&queues(&put, &[], 1), &[]).expect_err("two are gone");
        assert!(wrong.contains("2 elements are gone"), "{wrong}");
    }
}
