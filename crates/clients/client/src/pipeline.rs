//! Commands that are sent together.

use std::fmt;

use crate::calls::{Command, Effect};
use crate::client::{Client, check_stateless};
use crate::error::Error;
use crate::reply::Reply;
use crate::request::{check_key, check_value};

/// Commands that are sent together, in one round trip, each with an answer of its own
/// ([`Client::pipeline`]).
///
/// ```no_run
/// # async fn example(client: quorate_client::Client) -> Result<(), quorate_client::Error> {
/// let answers = client.pipeline().incr("visits").set("last", "now").get("name").send().await;
/// for answer in answers {
///     println!("{:?}", answer?);
/// }
/// # Ok(())
/// # }
/// ```
///
/// It is no transaction: commands of other clients may run in between, and each command succeeds or
/// fails by itself. Updates are calls of one session under numbers of their own, so each happens at
/// most once; after a failure, only commands without an answer are asked for again. Then commands
/// may take effect in another order: one that was refused for the moment runs after those that came
/// behind it.
///
/// Updates beyond the 512 that a session keeps open wait for the answers of those before. The
/// timeout holds for each exchange as a whole, the other limits for the pipeline.
#[must_use = "a pipeline sends nothing before `send`"]
pub struct Pipeline {
    client: Client,
    commands: Vec<Command>,
}

impl Pipeline {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client, commands: Vec::new() }
    }

    /// The value of a key (`GET`): [`Reply::Bulk`], or [`Reply::Null`] if it has none.
    pub fn get(self, key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        self.push(check_key(key), &[b"GET", key], Effect::Read)
    }

    /// Sets a key, without an expiry (`SET`).
    pub fn set(self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        let (key, value) = (key.as_ref(), value.as_ref());
        let checked = check_key(key).and_then(|()| check_value(value));
        self.push(checked, &[b"SET", key, value], Effect::Update)
    }

    /// Deletes a key (`DEL`): [`Reply::Integer`] with 1 if it had a value.
    pub fn del(self, key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        self.push(check_key(key), &[b"DEL", key], Effect::Update)
    }

    /// Adds one to a key that holds an integer (`INCR`): [`Reply::Integer`] with the sum.
    pub fn incr(self, key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        self.push(check_key(key), &[b"INCR", key], Effect::Update)
    }

    /// Any other command, its name first, as for [`Client::command`].
    pub fn command<W: AsRef<[u8]>>(self, words: impl IntoIterator<Item = W>) -> Self {
        let words: Vec<W> = words.into_iter().collect();
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        self.push(check_stateless(&words), &words, Effect::Update)
    }

    fn push(mut self, checked: Result<(), Error>, words: &[&[u8]], kind: Effect) -> Self {
        self.commands.push(match checked {
            Ok(()) => Command::new(words, kind),
            Err(error) => Command::refused(error),
        });
        self
    }

    /// Sends the commands, and waits until each has its answer or its error, in their order. The
    /// errors are those of [`Client::command`]. A command that can't be sent at all, such as one
    /// whose key is too long, has its error among the answers, and the others are sent.
    pub async fn send(mut self) -> Vec<Result<Reply, Error>> {
        self.client.perform(&mut self.commands).await;
        self.commands.into_iter().map(Command::end).collect()
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("commands", &self.commands.len()).finish_non_exhaustive()
    }
}
