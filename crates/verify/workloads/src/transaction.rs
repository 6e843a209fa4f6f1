//! One transaction, as data.

/// The purpose of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TransactionKind {
    /// YCSB-T: reads and writes one key.
    ReadModifyWrite,
    /// Retwis: 1 get, 3 puts.
    AddUser,
    /// Retwis: follows or unfollows somebody, 2 gets, 2 puts.
    Follow,
    /// Retwis: 3 gets, 5 puts.
    PostTweet,
    /// Retwis: 1 to 10 gets.
    LoadTimeline,
    /// `GET` and `SET` of one key.
    GetSet,
    /// Reads several keys.
    ReadKeys,
    /// Moves money from one account to another.
    Transfer,
    /// Smallbank: moves all money of a customer to the checking account of another.
    Amalgamate,
    /// Smallbank: reads both accounts of a customer.
    Balance,
    /// Smallbank: pays into a checking account.
    Deposit,
    /// Smallbank: moves money from one checking account to another.
    SendPayment,
    /// Smallbank: pays into a savings account.
    TransactSavings,
    /// Smallbank: takes from a checking account, with a penalty for an overdraft.
    WriteCheck,
    /// TATP: reads a subscriber.
    GetSubscriberData,
    /// TATP: reads one of a subscriber's access infos.
    GetAccessData,
    /// TATP: reads where calls are forwarded to.
    GetNewDestination,
    /// TATP: changes a subscriber and one of its facilities.
    UpdateSubscriberData,
    /// TATP: changes where a subscriber is.
    UpdateLocation,
    /// TATP: forwards calls, unless they are already.
    InsertCallForwarding,
    /// TATP: ends that.
    DeleteCallForwarding,
    /// Voter: counts a vote for a contestant and for its voter.
    Vote,
    /// Handovers: a phone begins to be served.
    ServiceRequest,
    /// Handovers: its service ends.
    Release,
    /// Handovers: a phone is about to change its station.
    HandoverStart,
    /// Handovers: it has changed it.
    HandoverEnd,
    /// Venmo-like: one user pays another.
    Payment,
    /// Gives a key its first value.
    Fill,
    /// Reads a key after the run.
    Audit,
}

/// The new content of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A value of the layout's length that shows this number.
    Filler(u64),
    /// The same, unless the key has a value. Tells whether it had none.
    FillerIfAbsent(u64),
    /// No value. Tells whether it had one.
    Absent,
    /// This number, in decimal.
    Number(i64),
    /// The number that the key holds, plus this.
    Sum(i64),
    /// A hash with this load.
    Load(i64),
    /// The same hash with this added to its load, and its other bytes written anew.
    LoadSum(i64),
}

/// A write of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    /// The number of the key; [`Layout::key`](crate::Layout::key) spells it.
    pub key: u64,
    /// Its new content.
    pub content: Content,
}

/// How the puts of a transaction depend on its gets, for a client that waits for the gets before it
/// sends the puts ([`Transaction::decide`]). A client that sends everything at once leaves it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Not at all.
    Free,
    /// The first number that was read is at least this, or nothing is written.
    AtLeast(i64),
    /// The first number that was read is below this, or nothing is written.
    Below(i64),
    /// If the numbers that were read are less than the first of these together, the second is
    /// taken from the first put besides.
    Penalty(i64, i64),
    /// The puts take away the numbers that were read, each from its key, and the last put adds
    /// them up.
    Everything,
}

/// The number that a client is told about a transaction that was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tells {
    /// None.
    Nothing,
    /// The number in its only reply, which a value shows or a hash holds as its load.
    Value,
    /// The sum of all integers among its replies.
    Integers,
}

/// Keys to get and keys to put, together or not at all. Without a [`Rule`], no put depends on the
/// result of a get, so that a transaction can be sent whole. The keys of one list are distinct.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// Its purpose.
    pub kind: TransactionKind,
    /// Numbers of the keys to get.
    pub gets: Vec<u64>,
    /// The writes.
    pub puts: Vec<Put>,
    /// How the writes depend on what was read.
    pub rule: Rule,
    /// What its source wants to know of it.
    pub tells: Tells,
    /// The node that should run it, from 0, where the target can choose; otherwise it is the one
    /// of its client.
    pub node: Option<u16>,
}

impl Transaction {
    /// A transaction without keys.
    pub(crate) fn empty() -> Self {
        Self {
            kind: TransactionKind::Fill,
            gets: Vec::new(),
            puts: Vec::new(),
            rule: Rule::Free,
            tells: Tells::Nothing,
            node: None,
        }
    }

    /// Takes out everything, for another transaction of this kind.
    pub(crate) fn restart(&mut self, kind: TransactionKind) {
        self.kind = kind;
        self.gets.clear();
        self.puts.clear();
        self.rule = Rule::Free;
        self.tells = Tells::Nothing;
        self.node = None;
    }

    pub(crate) fn put(&mut self, key: u64, content: Content) {
        self.puts.push(Put { key, content });
    }

    /// The writes, when the gets have found these numbers; none if the rule forbids them.
    pub fn decide(&self, found: &[i64]) -> Vec<Put> {
        let first = found.first().copied().unwrap_or_default();
        let mut puts = self.puts.clone();
        match self.rule {
            Rule::Free => {}
            Rule::AtLeast(least) if first >= least => {}
            Rule::Below(bound) if first < bound => {}
            Rule::AtLeast(_) | Rule::Below(_) => puts.clear(),
            Rule::Penalty(least, penalty) => {
                if let (true, Some(Put { content: Content::Sum(sum), .. })) =
                    (found.iter().sum::<i64>() < least, puts.first_mut())
                {
                    *sum -= penalty;
                }
            }
            Rule::Everything => {
                let (last, others) = puts.split_last_mut().expect("somebody gets the money");
                for (put, number) in others.iter_mut().zip(found) {
                    put.content = Content::Sum(-number);
                }
                last.content = Content::Sum(found.iter().take(others.len()).sum());
            }
        }
        puts
    }

    /// The sum of everything that these puts add to numbers.
    pub fn added(puts: &[Put]) -> i64 {
        let added = puts.iter().map(|put| match put.content {
            Content::Sum(change) => change,
            _ => 0,
        });
        added.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(rule: Rule, sums: &[i64], found: &[i64]) -> Vec<i64> {
        let mut transaction = Transaction::empty();
        transaction.rule = rule;
        for (key, sum) in (0..).zip(sums) {
            transaction.put(key, Content::Sum(*sum));
        }
        let puts = transaction.decide(found);
        puts.iter().map(|put| Transaction::added(&[*put])).collect()
    }

    #[test]
    fn rules_decide_what_is_written() {
        assert_eq!(decided(Rule::Free, &[1, 2], &[]), [1, 2]);
        assert_eq!(decided(Rule::AtLeast(5), &[-5, 5], &[5, 0]), [-5, 5]);
        assert!(decided(Rule::AtLeast(5), &[-5, 5], &[4, 9]).is_empty());
        assert_eq!(decided(Rule::Below(3), &[1, 1], &[2]), [1, 1]);
        assert!(decided(Rule::Below(3), &[1, 1], &[3]).is_empty());
        assert_eq!(decided(Rule::Penalty(10, 1), &[-10], &[4, 6]), [-10]);
        assert_eq!(decided(Rule::Penalty(10, 1), &[-10], &[4, 5]), [-11]);
        assert_eq!(decided(Rule::Everything, &[-1, -1, 2], &[30, 7, 5]), [-30, -7, 37]);
    }
}
