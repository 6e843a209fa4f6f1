//! Our verdicts on single keys, held against Porcupine's: simulated histories, each as it is and
//! with some answers replaced by others.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::target_dir;

/// Seeds that are simulated if nothing is said.
const SEEDS: u64 = 40;
/// Spoiled copies of each history.
const COPIES: u64 = 4;

/// Compares the verdicts on so many seeds.
pub fn run(root: &Path, words: &[&str]) -> anyhow::Result<()> {
    let seeds = match words {
        [] => SEEDS,
        ["--seeds", seeds] => seeds.parse().context("--seeds takes a number")?,
        _ => bail!("usage: cargo xtask porcupine [--seeds N]"),
    };
    let place = target_dir(root).join("porcupine");
    fs::create_dir_all(&place).with_context(|| format!("cannot make {place:?}"))?;
    let judge = place.join("judge");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&judge).arg(".").current_dir(root.join("xtask/porcupine"));
    let built = build.status().context("cannot run go: install it (Debian: golang-go)")?;
    ensure!(built.success(), "{build:?} ended with {built}");
    let mut release = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    release.args(["build", "--quiet", "--release", "--locked"]).current_dir(root);
    ensure!(release.status()?.success(), "{release:?} failed");

    let quorate = target_dir(root).join("release/quorate");
    let (mut agreed, mut violations) = (0, 0);
    for seed in 1..=seeds {
        let file = place.join(format!("{seed}.jsonl"));
        let mut simulate = Command::new(&quorate);
        simulate.args(["sim", "--engine", "hermes", "--quiet", "--seed", &seed.to_string()]);
        simulate.arg("--history").arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
        ensure!(simulate.status()?.success(), "{simulate:?} failed");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {file:?}"))?;
        let mut files = vec![file];
        for copy in 0..COPIES {
            let spoiled = place.join(format!("{seed}-{copy}.jsonl"));
            fs::write(&spoiled, spoil(&text, seed * COPIES + copy)?)?;
            files.push(spoiled);
        }
        let output = Command::new(&judge).args(&files).output().context("cannot run the judge")?;
        let theirs = String::from_utf8_lossy(&output.stdout).into_owned();
        for (file, theirs) in files.iter().zip(theirs.lines()) {
            let theirs = theirs.rsplit(' ').next().unwrap_or_default();
            let ours = verdict(&quorate, file)?;
            ensure!(
                ours == theirs || theirs == "undecided" || ours == "undecided",
                "{}: {ours} by ours, {theirs} by Porcupine",
                file.display()
            );
            agreed += u64::from(ours == theirs);
            violations += u64::from(ours == "violation");
        }
        ensure!(theirs.lines().count() == files.len(), "the judge stopped at seed {seed}");
    }
    let all = seeds * (COPIES + 1);
    println!("{agreed} of {all} verdicts agree, {violations} of them violations, none differ");
    ensure!(violations > all / 10, "too few histories were spoiled for this to mean anything");
    Ok(())
}

/// `quorate check`'s verdict, in Porcupine's words.
fn verdict(quorate: &Path, file: &PathBuf) -> anyhow::Result<&'static str> {
    let mut check = Command::new(quorate);
    check.arg("check").arg(file).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(match check.status()?.code() {
        Some(0) => "linearizable",
        Some(1) => "violation",
        Some(3) => "undecided",
        code => bail!("{check:?} ended with {code:?}"),
    })
}

/// The history with one answer replaced by another answer to the same kind of operation on the same
/// key.
fn spoil(text: &str, seed: u64) -> anyhow::Result<String> {
    let mut lines: Vec<Value> =
        text.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("no JSON")?;
    let mut answers: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        let [op, key, result] = ["op", "key", "result"].map(|name| line.get(name));
        if let (Some(op), Some(key), Some(_)) = (op, key, result) {
            answers.entry((op.to_string(), key.to_string())).or_default().push(at);
        }
    }
    let groups: Vec<&Vec<usize>> = answers.values().filter(|group| group.len() > 1).collect();
    ensure!(!groups.is_empty(), "no key was asked twice");
    // A step of a linear congruence (Knuth) is random enough to choose by.
    let mut state = seed;
    let mut below = |bound: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let group = groups[below(groups.len())];
    let (one, other) = (group[below(group.len())], group[below(group.len())]);
    lines[one]["result"] = lines[other]["result"].clone();
    Ok(lines.iter().map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_answer_is_replaced_by_another_of_its_kind() {
        let text = r#"{"format":"quorate-history","version":1}
{"op":"get","key":"a","result":"1"}
{"op":"get","key":"a","result":"2"}
{"op":"get","key":"b","result":"3"}
{"op":"set","key":"a","outcome":"unknown"}
{"end":4}
"#;
        let changed: Vec<String> =
            (0..20).map(|seed| spoil(text, seed).expect("it is a history")).collect();
        let differs = |new: &String| new.matches("\"1\"").count() != 1;
        assert!(changed.iter().any(differs), "{changed:?}");
        assert!(changed.iter().all(|new| new.lines().count() == 6 && new.contains("\"3\"")));
    }
}
