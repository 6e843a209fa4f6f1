//! Explores scopes and prints a table of them.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use quorate_model::explore::Limits;
use quorate_model::scopes::{Entry, Size, all};

const USAGE: &str = "\
usage: quorate-model [--nightly] [--threads N] [--steps N] [NAME...]

Explores the scopes of the gate, or those of the night, or those whose names begin like this. Each thread
explores a scope of its own; those of the night are explored one after the other, by all threads.";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("error: {reason}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run(mut words: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut names = Vec::new();
    let mut nightly = false;
    let mut limits = Limits { threads: 2, steps_max: None };
    while let Some(word) = words.next() {
        let mut number = || {
            let next = words.next().and_then(|text| text.parse().ok());
            next.ok_or_else(|| format!("{word} needs a number"))
        };
        match word.as_str() {
            "--nightly" => nightly = true,
            "--threads" => limits.threads = number()?,
            "--steps" => limits.steps_max = Some(number()?),
            _ if word.starts_with('-') => return Err(format!("what {word} means is not known")),
            _ => names.push(word),
        }
    }
    let named = |entry: &Entry| names.iter().any(|name| entry.name.starts_with(name.as_str()));
    let mut chosen = all();
    chosen.retain(|entry| match names.is_empty() {
        true => (entry.size == Size::Night) == nightly,
        false => named(entry),
    });
    println!(
        "{:<28} {:>11} {:>12} {:>6} {:>8} {:>7}",
        "scope", "states", "steps", "depth", "seconds", "MB"
    );
    let workers = match chosen.iter().any(|entry| entry.size == Size::Night) {
        true => 1,
        false => limits.threads.min(chosen.len()),
    };
    limits.threads = (limits.threads / workers.max(1)).max(1);
    let (next, fine) = (AtomicUsize::new(0), AtomicBool::new(true));
    let work = || {
        while let Some(entry) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            fine.fetch_and(explore(entry, limits), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| (0..workers).for_each(|_| _ = scope.spawn(work)));
    Ok(fine.into_inner())
}

/// Explores a scope and prints what it has found. Whether that is as it should be.
fn explore(entry: &Entry, limits: Limits) -> bool {
    let report = entry.explore(limits);
    let judgement = entry.judge(&report, true);
    let because = judgement.as_ref().err().map_or(String::new(), |reason| format!("\n{reason}"));
    println!(
        "{:<28} {:>11} {:>12} {:>6} {:>8.1} {:>7}{}{because}",
        report.name,
        report.states,
        report.steps,
        report.depth,
        report.seconds,
        peak_megabytes(),
        if report.cut { "  cut off" } else { "" },
    );
    judgement.is_ok()
}

/// The most memory that this process has had, as the system reports it.
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|text| text.trim().trim_end_matches("kB").trim().parse().ok());
    kilobytes.unwrap_or(0u64) / 1024
}
