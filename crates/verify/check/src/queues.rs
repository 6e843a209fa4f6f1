//! Queues: elements that clients put into collections and take out, each once.
//!
//! Every element is put in once. Whatever fails, one that was put in is still there, or one client
//! has it, or it may have gone with an answer that was lost. The order of real time plays no role,
//! so this judges histories of any length, and queues between which elements are moved.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::Bytes;

/// The ends of all puts and takes of a run.
#[derive(Debug, Default)]
pub struct Queues {
    /// The elements that were put in, and whether that was acknowledged.
    put: BTreeMap<Bytes, bool>,
    /// The elements that clients got, and how often.
    got: BTreeMap<Bytes, u32>,
    /// Takes of unknown outcome: each may have taken one element.
    lost_answers: usize,
    /// Entries that were added to streams, by stream.
    added: BTreeMap<String, Vec<Added>>,
}

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
    /// Notes that an element was put in: for sure, or perhaps, if no answer came.
    pub fn put(&mut self, element: Bytes, acknowledged: bool) {
        self.put.insert(element, acknowledged);
    }

    /// Notes that a client got an element.
    pub fn got(&mut self, element: Bytes) {
        *self.got.entry(element).or_default() += 1;
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
        if let Some((element, count)) = self.got.iter().find(|(_, count)| **count > 1) {
            return Err(format!("{element} was taken {count} times, and put in once"));
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
        let mut seen = BTreeSet::new();
        for element in left {
            let what = match element {
                element if !seen.insert(element) => "is there twice",
                element if self.got.contains_key(element) => "was taken, and is still there",
                element if !self.put.contains_key(element) => "is there, and nobody put it in",
                _ => continue,
            };
            return Err(format!("{element} {what}"));
        }
        let is_missing =
            |element: &&Bytes| !self.got.contains_key(element) && !seen.contains(element);
        let put = self.put.iter().filter(|(_, acknowledged)| **acknowledged);
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
        put.iter().for_each(|(element, sure)| queues.put((*element).into(), *sure));
        got.iter().for_each(|element| queues.got((*element).into()));
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
    fn a_lost_answer_explains_one_missing_element() {
        let put = [("a", true), ("b", true)];
        assert_eq!(verdict(&queues(&put, &["a"], 1), &[]), Ok(()));
        let wrong = verdict(&queues(&put, &[], 1), &[]).expect_err("two are gone");
        assert!(wrong.contains("2 elements are gone"), "{wrong}");
    }
}
