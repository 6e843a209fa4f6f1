//! Sockets against small servers of the test's own.

use std::io::{BufRead, BufReader};
use std::net::{Shutdown, TcpListener};
use std::thread;

use super::*;
use crate::{Plan, Report, Source, run};

/// Asks `?` and is answered with a line.
struct Lines {
    heard: Option<String>,
}

struct Questions;

impl Source for Questions {
    type Request = ();

    fn next(&mut self) -> &() {
        &()
    }
}

impl Dialect for Lines {
    type Request = ();

    fn greet(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"hello\n");
    }

    fn request(&mut self, (): &(), out: &mut Vec<u8>) {
        out.extend_from_slice(b"?\n");
    }

    fn answer(&mut self, input: &[u8], _out: &mut Vec<u8>) -> Result<Option<Step>, Misunderstood> {
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = String::from_utf8_lossy(&input[..end]).into_owned();
        let answer = match line.as_str() {
            "yes" => Some(Answer::Good),
            "what" => return Err(Misunderstood("asks back".into())),
            _ => None,
        };
        self.heard = Some(line);
        Ok(Some(Step { used: end + 1, answer }))
    }

    fn complaint(&self) -> Option<&str> {
        self.heard.as_deref()
    }
}

/// A server that gives these answers on each connection, one to each question, and closes it then.
fn serve(answers: &'static [&'static str]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                assert_eq!(lines.next().unwrap().unwrap(), "hello");
                for answer in answers {
                    if lines.next().is_none_or(|line| line.is_err()) {
                        return;
                    }
                    // The client may have gone.
                    let _ = (&stream).write_all(format!("{answer}\n").as_bytes());
                }
                // Further input is read, so that the end doesn't overtake the answers.
                let _ = stream.shutdown(Shutdown::Write);
                lines.map_while(Result::ok).for_each(drop);
            });
        }
    });
    address
}

fn plan(requests_max: u64) -> Plan {
    let nothing = Duration::ZERO;
    let requests_max = Some(requests_max);
    Plan { clients: 3, pipeline: 2, warmup: nothing, measured: nothing, requests_max }
}

fn drive(targets: &[SocketAddr], requests: u64) -> Result<Report, LoadError> {
    let mut sockets = Sockets::connect(targets, 3, || Lines { heard: None })?;
    run(&plan(requests), &mut Questions, &mut sockets, &mut |_| {})
}

#[test]
fn every_request_is_answered() {
    let report = drive(&[serve(&["yes"; 100]), serve(&["yes"; 100])], 100).unwrap();
    assert_eq!((report.measured.done, report.measured.failed), (100, 0));
}

#[test]
fn a_lost_connection_fails_what_it_had_under_way_and_is_replaced() {
    let report = drive(&[serve(&["yes", "yes", "yes"])], 60).unwrap();
    let counts = report.measured;
    assert_eq!(counts.answered(), 60);
    // The server answers three of four requests on each connection, less those of the last
    // connections.
    assert!(counts.failed >= 10 && counts.done >= 40, "{counts:?}");
    assert_eq!(report.first_failure.as_deref(), Some("yes"));
}

#[test]
fn a_target_that_refuses_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = drive(&[address], 10).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot reach {address}: Connection refused")), "{error}");
}

#[test]
fn a_target_that_closes_every_connection_ends_the_run() {
    let address = serve(&["no"]);
    let error = drive(&[address], 100).unwrap_err().to_string();
    assert_eq!(error, format!("{address} closes every connection without an answer: no"));
}

#[test]
fn a_target_that_is_misunderstood_ends_the_run() {
    let address = serve(&["what"]);
    let error = drive(&[address], 10).unwrap_err().to_string();
    assert_eq!(error, format!("{address} asks back"));
}
