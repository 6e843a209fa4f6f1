//! Explores scopes and prints a table of them.

use std::process::ExitCode;

use quorate_model::explore::Limits;
use quorate_model::scopes::{Size, all};

const USAGE: &str = "\
usage: quorate-model [--nightly] [--threads N] [--steps N] [NAME...]

Explores the scopes of the gate, or those of the night, or those whose names begin like this.";

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
    let mut fine = true;
    println!(
        "{:<28} {:>11} {:>12} {:>6} {:>8} {:>7}",
        "scope", "states", "steps", "depth", "seconds", "MB"
    );
    for entry in all() {
        let named = names.iter().any(|name| entry.name.starts_with(name.as_str()));
        let chosen = if names.is_empty() { (entry.size == Size::Night) == nightly } else { named };
        if !chosen {
            continue;
        }
        let report = entry.explore(limits);
        println!(
            "{:<28} {:>11} {:>12} {:>6} {:>8.1} {:>7}{}",
            report.name,
            report.states,
            report.steps,
            report.depth,
            report.seconds,
            peak_megabytes(),
            if report.cut { "  cut off" } else { "" }
        );
        if let Err(reason) = entry.judge(&report, true) {
            println!("{reason}");
            fine = false;
        }
    }
    Ok(fine)
}

/// The most memory that this process has had, as the system reports it.
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|text| text.trim().trim_end_matches("kB").trim().parse().ok());
    kilobytes.unwrap_or(0u64) / 1024
}
