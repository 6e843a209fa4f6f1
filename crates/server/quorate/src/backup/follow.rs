//! What changes while keys are read: a node tells it to a client that tracks every key.
//!
//! [`Follow::catch_up`] returns when everything has been told that a read before it could have seen. A lane
//! of the node lists a change before a read can see it; the lane that takes the list hands it to the lane of
//! the listener at the end of its turn. A prefix that is new makes a round through all lanes: behind one,
//! each lane has begun a turn after the read; behind two, it has ended the turn in which the change was made,
//! so some lane has taken the list; behind three, that lane has begun another turn, and behind four that turn
//! has ended, and the listener's lane has it. An answer to the listener comes behind what was told before.
//!
//! Changes are coalesced, since a push for each of them would cost other clients more than all the reading: a
//! key is told once until the node is armed again, as each such round does, and with others. So what is taken
//! to be read again must be taken first, then the node be armed, and only then may it be read: what changes
//! behind that read is told anew, or has been told since the list was taken.

use std::collections::HashSet;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use quorate_machine::mutant;

use super::nodes;
#[cfg(test)]
use crate::transfer::TargetOptions;
use crate::transfer::{Connection, Reply, Target, Trouble, ask, ask_all, command};

/// Rounds through the lanes, and answers to the listener, until everything was told.
const ROUNDS: usize = 4;
const ANSWERS: u64 = 2;
/// Most bytes of names that are remembered until they are taken.
const TOLD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// What a name takes besides its bytes.
const NAME_BYTES: usize = 48;
/// How long the listener may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

#[derive(Default)]
struct State {
    told: HashSet<Vec<u8>>,
    bytes: usize,
    /// Why not everything was told.
    lost: Option<String>,
    answers: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    answered: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listener to the changes at one node. Ends with this value.
pub(super) struct Follow {
    shared: Arc<Shared>,
    /// The listener's socket.
    socket: TcpStream,
    listener: Option<JoinHandle<()>>,
    /// Has rounds made through the lanes.
    asker: Connection,
    rounds: u64,
    /// The answers that the listener was asked for.
    asked: u64,
    /// The node's life that is followed, and how often it had not told key by key what has changed.
    pub(super) followed: nodes::Followed,
}

/// Has a round made through the lanes of a node, as the prefix is new there: the command behind it waits
/// until all lanes have answered.
pub(super) const END_OF_ROUND: [&str; 3] = ["CLIENT", "TRACKING", "OFF"];

/// See [`END_OF_ROUND`].
pub(super) fn round(prefix: &str) -> [&str; 6] {
    ["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", prefix]
}

/// A prefix that no key has and no other backup uses.
pub(super) fn prefix(number: u64) -> String {
    format!("\0quorate: backup {} {number}", std::process::id())
}

impl Follow {
    /// Listens at the node that is used now. Or says why that node can't tell everything.
    pub(super) fn begin(target: &Target) -> Result<Result<Self, String>, Trouble> {
        let mut listener = target.open(target.address())?;
        let mut asker = target.open(target.address())?;
        let followed = nodes::followed(&mut listener)?;
        if followed != nodes::followed(&mut asker)? {
            return Ok(Err(format!(
                "{} leads to several nodes, or the keyspaces are being emptied; give the address of one with \
                 --target",
                target.address()
            )));
        }
        ask(&mut listener, &["HELLO", "3"])?;
        match ask(&mut listener, &["CLIENT", "TRACKING", "ON", "BCAST", "COALESCE"])? {
            Reply::Status(_) => {}
            Reply::Error(error) => return Ok(Err(error)),
            other => return Err(anyhow!("the target answered CLIENT with {other:?}").into()),
        }
        listener.socket().set_read_timeout(None)?;
        let socket = listener.socket().try_clone()?;
        let shared = Arc::<Shared>::default();
        let listener = std::thread::Builder::new().name("changes".into()).spawn({
            let shared = Arc::clone(&shared);
            move || listen(listener, &shared)
        })?;
        let listener = Some(listener);
        Ok(Ok(Self { shared, socket, listener, asker, rounds: 0, asked: 0, followed }))
    }

    /// Waits until everything was told that what was read by now can have seen.
    pub(super) fn catch_up(&mut self) -> Result<(), Trouble> {
        if mutant!("quorate_backup_told_late") {
            return Ok(());
        }
        self.rounds(ROUNDS)?;
        for _ in 0..ANSWERS {
            self.asked += 1;
            let mut ping = Vec::new();
            command([&b"PING"[..]].into_iter(), &mut ping);
            std::io::Write::write_all(&mut self.socket, &ping)?;
            self.wait_for_answer()?;
        }
        Ok(())
    }

    /// Has so many rounds made through the lanes, each of which arms the node.
    fn rounds(&mut self, count: usize) -> Result<(), Trouble> {
        self.rounds += 1;
        // One prefix does: nobody has it between the rounds.
        let prefix = prefix(self.rounds);
        let both: [&[&str]; 2] = [&round(&prefix), &END_OF_ROUND];
        ask_all(&mut self.asker, &both.repeat(count))?;
        Ok(())
    }

    fn wait_for_answer(&self) -> Result<(), Trouble> {
        let deadline = Instant::now() + ANSWER_MAX;
        let mut state = self.shared.state();
        while state.answers < self.asked && state.lost.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Trouble::Later(format!("no answer for {} s", ANSWER_MAX.as_secs())));
            }
            let waited = self.shared.answered.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// The keys that were told of since this was asked last, or why not all were. They may be read now: what
    /// changes behind that is told anew.
    pub(super) fn take(&mut self) -> Result<HashSet<Vec<u8>>, Trouble> {
        let mut state = self.shared.state();
        if let Some(why) = &state.lost {
            return Err(Trouble::Later(why.clone()));
        }
        state.bytes = 0;
        let told = std::mem::take(&mut state.told);
        drop(state);
        if !mutant!("quorate_backup_taken_unarmed") {
            self.rounds(1)?;
        }
        Ok(told)
    }

    /// How many keys were told of since they were taken last, or why not all were.
    pub(super) fn told(&self) -> Result<usize, String> {
        let state = self.shared.state();
        match &state.lost {
            Some(why) => Err(why.clone()),
            None => Ok(state.told.len()),
        }
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        // It may be closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

fn listen(mut connection: Connection, shared: &Shared) {
    loop {
        let reply = connection.reply();
        let mut state = shared.state();
        match reply {
            Ok(Reply::Push(parts)) => {
                // Or else anything may have changed. If that is so, the node has counted it; if its lease
                // has lapsed, nothing was missed once it serves again in the same life.
                if let Some(Reply::Array(keys)) = parts.into_iter().nth(1) {
                    for key in keys {
                        let Reply::Bulk(key) = key else { continue };
                        state.bytes += key.len() + NAME_BYTES;
                        state.told.insert(key);
                    }
                    if state.bytes > TOLD_BYTES_MAX {
                        state.lost = Some("too many keys have changed to remember them".into());
                    }
                }
            }
            Ok(_) => {
                state.answers += 1;
                shared.answered.notify_all();
            }
            Err(error) => state.lost = Some(format!("the connection was lost: {error}")),
        }
        if state.lost.is_some() {
            shared.answered.notify_all();
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// Answers as a node does that tells of a change only when it has to, in front of an answer. Whether it
    /// is armed then.
    fn serve(stream: &TcpStream, armed: &AtomicBool) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let mut is_listener = false;
        while let Some(count) = lines.next() {
            let count: usize = count.trim_start_matches('*').parse().expect("a command");
            let words: Vec<_> = lines.by_ref().take(2 * count).skip(1).step_by(2).collect();
            is_listener |= words[0] == "HELLO";
            let is_told = words[0] == "PING" && is_listener;
            armed.store(
                !is_told && (armed.load(Relaxed) || words.contains(&"BCAST".into())),
                Relaxed,
            );
            let answer = match words[0].as_str() {
                "INFO" => "$29\r\nrun_id:abc\ntracking_untold:7\n\r\n",
                "HELLO" => "%0\r\n",
                _ if is_told => ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n+PONG\r\n",
                _ => "+OK\r\n",
            };
            let mut stream = stream;
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    #[test]
    fn everything_is_told_before_anything_rests_on_it() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        static ARMED: AtomicBool = AtomicBool::new(false);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || serve(&stream, &ARMED));
            }
        });
        let target = Target::new(&TargetOptions::at(&address)).expect("an address");
        let Ok(Ok(mut follow)) = Follow::begin(&target) else { panic!("it can be followed") };
        assert_eq!(follow.followed.life, "abc");
        assert_eq!(follow.told(), Ok(0));
        assert!(follow.catch_up().is_ok());
        assert_eq!(follow.told(), Ok(1));
        assert!(!ARMED.load(Relaxed), "the key was told, and would not be again");
        let Ok(taken) = follow.take() else { panic!("it is followed") };
        assert_eq!(taken, HashSet::from([b"k".to_vec()]));
        assert!(ARMED.load(Relaxed), "it is told again if it changes behind the next read");
        assert_eq!(follow.told(), Ok(0), "it was taken");
        // Without the node nobody knows what has changed.
        follow.socket.shutdown(Shutdown::Both).expect("it is open");
        follow.listener.take().expect("it listens").join().expect("it ends");
        assert!(follow.told().is_err() && follow.take().is_err());
    }
}
