//! What refuses a session's call after an answer was lost: an earlier try may have happened.

#[expect(dead_code, reason = "this node loses answers, so it serves its clients itself")]
#[path = "support/node.rs"]
mod node;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use node::Cluster;
use quorate_client::{Client, Error, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A node that loses the first answer to `INCR`, and refuses the call from then on, as long as it has words
/// for that.
#[derive(Clone)]
struct Node {
    cluster: Cluster,
    has_lost: Arc<AtomicBool>,
    refusal: Arc<Mutex<Option<&'static str>>>,
}

impl Node {
    async fn serve(self, mut stream: TcpStream) -> io::Result<()> {
        let client = self.cluster.clone().open();
        let mut bytes = [0; 4096];
        loop {
            let count = stream.read(&mut bytes).await?;
            if count == 0 {
                return Ok(());
            }
            let mut answer = client.send(&bytes[..count]);
            if bytes[..count].windows(4).any(|word| word == b"INCR") {
                if !self.has_lost.swap(true, Relaxed) {
                    return Ok(());
                }
                // The call itself is made once, whatever this says.
                let refusal = *self.refusal.lock().expect("no test panics inside");
                if let Some((refusal, rest)) = refusal.zip(answer.strip_suffix(b":1\r\n")) {
                    answer = [rest, format!("-{refusal}\r\n").as_bytes()].concat();
                }
            }
            stream.write_all(&answer).await?;
        }
    }
}

#[tokio::test]
async fn a_refusal_after_a_lost_answer_leaves_the_outcome_unknown() {
    for refusal in ["OOM memory is full", "MISCONF the disk of a node is full"] {
        let node = Node {
            cluster: Cluster::new(),
            has_lost: Arc::default(),
            refusal: Arc::new(Mutex::new(Some(refusal))),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let serving = node.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        let client = Client::builder(&[address]).sessions(true).attempts(3).connect().await;
        let client = client.expect("somebody listens");
        let words: &[&[u8]] = &[b"INCR", b"a"];
        let error = client.command(words).await.expect_err("it is refused");
        let Error::Unknown { call: Some(call), .. } = error else { panic!("{refusal}: {error}") };
        *node.refusal.lock().expect("no test panics inside") = None;
        let answer = client.ask_again(*call).await.expect("it is answered");
        assert_eq!(answer, Reply::Integer(1), "{refusal}");
        assert_eq!(client.get("a").await.expect("it is there").as_deref(), Some(&b"1"[..]));
    }
}
