//! The gate: what must pass before a change is in. What CI runs is this and nothing else.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use crate::ahead::Ahead;
use crate::{docs, fuzz, model, mutants, target_dir, threads, tidy};

/// One step of the gate.
struct Step {
    name: &'static str,
    run: Run,
}

/// How a step runs.
enum Run {
    /// `cargo` with these arguments and these environment variables.
    Cargo(&'static [&'static str], &'static [(&'static str, &'static str)]),
    /// A function of this program; the words say what it does.
    Own(&'static str, fn(&Path) -> anyhow::Result<()>),
}

/// The arguments of the simulation whose trace must not depend on anything but its seed.
const TRACE: &[&str] = &["sim", "--engine", "hermes", "--seed", "7", "--trace"];

/// The programs that the gate runs, and its tests, in one build: programs alone would have other
/// features of what they share, and that would be built twice. Not for release, which takes five
/// minutes; and debug assertions hold in the programs, too.
const BUILD: &[&str] = &["build", "--workspace", "--bins", "--tests", "--locked"];

/// Cheap ones first, and those that build something of their own last: while others wait for real
/// processes, that is built ahead.
const STEPS: &[Step] = &[
    Step { name: "fmt", run: Run::Cargo(&["fmt", "--all", "--check"], &[]) },
    Step { name: "tidy", run: Run::Own("layering, banned calls, leftovers", tidy::run) },
    Step { name: "docs-links", run: Run::Own("links between the documents", docs::run) },
    Step {
        name: "clippy",
        run: Run::Cargo(
            &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
            &[],
        ),
    },
    Step {
        name: "licences",
        run: Run::Own("licences of everything linked", tidy::dependencies::check_licences),
    },
    Step {
        name: "doc",
        run: Run::Cargo(
            &["doc", "--no-deps", "--workspace", "--locked"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        ),
    },
    Step { name: "build", run: Run::Cargo(BUILD, &[]) },
    Step { name: "test", run: Run::Cargo(&["test", "--workspace", "--locked"], &[]) },
    Step { name: "rig", run: Run::Own("real processes under real faults, each once", rig) },
    Step { name: "redis-suite", run: Run::Own("Redis's own tests, on each engine", redis_suite) },
    Step { name: "python", run: Run::Own("the Python package: its wheel, and its tests", python) },
    Step { name: "sim", run: Run::Own("seeds of each engine, side by side", sim) },
    Step { name: "same-trace", run: Run::Own("one seed twice, one trace", same_trace) },
    Step { name: "loom", run: Run::Own("models of primitives under --cfg loom", threads::loom) },
    Step {
        name: "shuttle",
        run: Run::Own("what lanes share under --cfg shuttle", threads::shuttle),
    },
    Step { name: "fuzz", run: Run::Own("the fuzz targets can be built", fuzz::gate) },
    Step { name: "model", run: Run::Own("cargo xtask model", model::gate) },
    Step { name: "mutants", run: Run::Own("cargo xtask mutants --gate", gate_mutants) },
];

/// What takes too long for the gate, or needs what comes from other people's servers.
const NIGHTLY: &[Step] = &[
    Step {
        name: "applications",
        run: Run::Own("the libraries of real applications, on each engine", applications),
    },
    Step {
        name: "rig",
        run: Run::Own(
            "every fault, with zeus on three and on six nodes, and loss of power",
            rig_nightly,
        ),
    },
    Step {
        name: "redis-suite",
        run: Run::Own("all of Redis's own tests, with zeus", suite_nightly),
    },
    Step {
        name: "random",
        run: Run::Cargo(
            &[
                "test",
                "--package",
                "quorate-hermes",
                "--package",
                "quorate-meerkat",
                "--package",
                "quorate-zeus",
                "--package",
                "quorate-membership",
                "--locked",
                "--",
                "random",
                "chaos",
            ],
            // So many times the seeds of the gate.
            &[("TIMES", "20")],
        ),
    },
    Step { name: "sim", run: Run::Own("thousands of seeds of each engine", sim_of_a_night) },
    Step {
        name: "sim-zeus",
        run: Run::Own("10,000 seeds on each of 3, 5, 6 and 7 nodes, for release", sim_nightly),
    },
    Step {
        name: "sim-disks",
        run: Run::Own(
            "10,000 seeds of nodes with disks on each engine that keeps a log",
            disks_nightly,
        ),
    },
    Step {
        name: "shuttle",
        run: Run::Own("cargo xtask shuttle --times 10", threads::shuttle_of_a_night),
    },
    Step { name: "fuzz", run: Run::Own("cargo xtask fuzz --seconds 1200", fuzz::night) },
    Step { name: "model", run: Run::Own("cargo xtask model --nightly", model::night) },
    Step { name: "mutants", run: Run::Own("cargo xtask mutants", every_mutant) },
];

/// Prints the steps.
pub fn list() {
    print(STEPS);
}

/// Prints the steps of a night.
pub fn list_nightly() {
    print(NIGHTLY);
}

fn print(steps: &[Step]) {
    for step in steps {
        println!("{:<12} {}", step.name, step.describe());
    }
}

/// The named steps of these, or all of them.
fn choose(steps: &'static [Step], names: &[&str]) -> anyhow::Result<Vec<&'static Step>> {
    for name in names {
        let known = steps.iter().any(|step| step.name == *name);
        ensure!(known, "there is no step {name:?}; `--list` shows them");
    }
    Ok(steps.iter().filter(|step| names.is_empty() || names.contains(&step.name)).collect())
}

/// Runs the named steps of a night, or all of them, up to the first that fails.
pub fn run_nightly(root: &Path, names: &[&str]) -> anyhow::Result<()> {
    run_steps(root, &choose(NIGHTLY, names)?, |_| ())
}

/// Runs the named steps, or all of them, up to the first that fails.
pub fn run(root: &Path, names: &[&str]) -> anyhow::Result<()> {
    let chosen = choose(STEPS, names)?;
    let ahead = Ahead::default();
    std::thread::scope(|scope| {
        let whole = names.is_empty();
        let passed = run_steps(root, &chosen, |next| {
            ahead.leave(next);
            if whole && next == "test" {
                ahead.start(scope, root);
            }
        });
        ahead.stop();
        passed
    })
}

/// Runs these steps up to the first that fails, and says which have passed.
fn run_steps(root: &Path, chosen: &[&Step], begins: impl Fn(&'static str)) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut times = Vec::new();
    for step in chosen {
        let passed = begin.elapsed().as_secs();
        println!("=== {}, after {passed} s: {}", step.name, step.describe());
        begins(step.name);
        let step_begin = Instant::now();
        let result = step.run(root);
        let seconds = step_begin.elapsed().as_secs_f64();
        if let Err(error) = result {
            let (done, all) = (times.len(), chosen.len());
            println!("=== {} FAILED after {seconds:.1} s: {error:#}", step.name);
            println!("gate: FAILED at {} ({done} of {all} steps passed)", step.name);
            bail!("once mended: cargo xtask ci {}", step.name);
        }
        println!("=== {} ok, {seconds:.1} s", step.name);
        times.push(format!("{} {seconds:.0}", step.name));
    }
    println!("seconds: {}", times.join(", "));
    println!("gate: passed, {} steps in {:.0} s", times.len(), begin.elapsed().as_secs_f64());
    Ok(())
}

impl Step {
    fn describe(&self) -> String {
        match &self.run {
            Run::Cargo(arguments, variables) => {
                let variables: String =
                    variables.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
                format!("{variables}cargo {}", arguments.join(" "))
            }
            Run::Own(what, _) => (*what).to_owned(),
        }
    }

    fn run(&self, root: &Path) -> anyhow::Result<()> {
        match &self.run {
            Run::Cargo(arguments, variables) => {
                let mut command = cargo(root);
                succeed(command.args(*arguments).envs(variables.iter().copied()))
            }
            Run::Own(_, function) => function(root),
        }
    }
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null());
    command
}

fn quorate(root: &Path) -> Command {
    let mut command = Command::new(target_dir(root).join("debug/quorate"));
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// A step may run alone, so it makes sure of the program it needs. Nothing to do in a whole run.
fn build(root: &Path) -> anyhow::Result<()> {
    succeed(cargo(root).args(BUILD).arg("--quiet"))
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// The runs of the rig in the gate: what they are called, and their arguments. Hermes and Meerkat meet
/// each fault once, and Zeus those that have to do with keys that move.
const RIG: &[(&str, &[&str])] = &[
    ("hermes", &["--engine", "hermes"]),
    ("meerkat", &["--engine", "meerkat"]),
    ("zeus", ZEUS_IN_GATE),
    ("disks", &["--disks", "plain", "--only", "kill-all"]),
    ("async", KILL_MOST_IN_GATE),
];
#[rustfmt::skip]
const KILL_MOST_IN_GATE: &[&str] = &[
    "--engine", "hermes", "--engine", "zeus", "--disks", "plain",
    "--durability", "async", "--only", "kill-most",
];
#[rustfmt::skip]
const ZEUS_IN_GATE: &[&str] = &[
    "--engine", "zeus", "--nodes", "6", "--only", "kill-owner", "--only", "kill-directory",
    "--only", "kill-requester", "--only", "cut-link", "--only", "replace-busy", "--only", "exchange",
];
/// And those of a night: each fault with Zeus, where every node has every key, and where some have; and
/// the power goes.
const RIG_NIGHTLY: &[(&str, &[&str])] = &[
    ("zeus-3", &["--engine", "zeus"]),
    ("zeus-6", &["--engine", "zeus", "--nodes", "6"]),
    ("power", POWER),
    ("async", ASYNC),
];
#[rustfmt::skip]
const POWER: &[&str] = &[
    "--engine", "hermes", "--engine", "meerkat", "--engine", "zeus", "--disks", "volatile",
    "--times", "20", "--only", "power", "--only", "power-again", "--only", "power-most",
    "--only", "power-one", "--only", "power-but-one", "--only", "kill-most", "--only", "kill-all", "--only", "rot", "--only", "disk-full",
    "--only", "flush-fails", "--only", "slow-disk",
];

#[rustfmt::skip]
const ASYNC: &[&str] = &[
    "--engine", "hermes", "--engine", "meerkat", "--engine", "zeus", "--disks", "volatile",
    "--durability", "async", "--times", "10", "--only", "kill", "--only", "kill-most",
    "--only", "power-but-one", "--only", "power-one", "--only", "flush-fails", "--only", "slow-disk",
];

fn rig(root: &Path) -> anyhow::Result<()> {
    run_rig(root, RIG)
}

fn rig_nightly(root: &Path) -> anyhow::Result<()> {
    run_rig(root, RIG_NIGHTLY)
}

/// Runs the rig several times at once: each spends most of its time waiting for leases.
fn run_rig(root: &Path, runs: &[(&str, &[&str])]) -> anyhow::Result<()> {
    if !may_have_namespaces() {
        println!("NOT RUN: no network namespaces are allowed here, and the rig lives in some");
        return Ok(());
    }
    build(root)?;
    let started = runs.iter().map(|(name, arguments)| {
        let mut rig = Command::new(target_dir(root).join("debug/quorate-rig"));
        rig.current_dir(root).stdin(Stdio::null()).arg("faults").args(*arguments).arg("--work");
        rig.arg(target_dir(root).join("rig").join(name));
        (name, rig.spawn())
    });
    let started: Vec<_> = started.collect();
    let mut failed = Vec::new();
    for (name, child) in started {
        let mut child = child.context("cannot run quorate-rig")?;
        if !child.wait().context("cannot wait for quorate-rig")?.success() {
            failed.push(name);
        }
    }
    ensure!(failed.is_empty(), "the rig found something wrong with {failed:?}");
    Ok(())
}

/// Whether this process may have namespaces as the rig makes them.
fn may_have_namespaces() -> bool {
    let spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "true"];
    [&[][..], &["--user", "--map-root-user"]].into_iter().any(|user| {
        let tried = Command::new("unshare").args(user).args(spaces).output();
        tried.is_ok_and(|output| output.status.success())
    })
}

/// Redis's own tests against three nodes. The script fetches them unless they are there.
fn redis_suite(root: &Path) -> anyhow::Result<()> {
    run_redis_suite(root, &[])
}

/// All of them, on the engine that has few in the gate.
fn suite_nightly(root: &Path) -> anyhow::Result<()> {
    run_redis_suite(root, &["--engine", "zeus", "--nightly"])
}

fn run_redis_suite(root: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    build(root)?;
    let mut command = Command::new("python3");
    command
        .arg(root.join("crates/server/quorate/tests/redis_suite/run"))
        .arg("--program")
        .arg(target_dir(root).join("debug/quorate"))
        .args(arguments)
        .env("CARGO_TARGET_DIR", target_dir(root))
        .current_dir(root)
        .stdin(Stdio::null());
    succeed(&mut command)
}

/// The scenarios of real libraries, which its script fetches from PyPI and npm.
fn applications(root: &Path) -> anyhow::Result<()> {
    build(root)?;
    let mut command = Command::new("python3");
    command
        .arg(root.join("crates/server/quorate/tests/applications/run"))
        .env("CARGO_TARGET_DIR", target_dir(root))
        .current_dir(root)
        .stdin(Stdio::null());
    succeed(&mut command)
}

/// Builds the wheel of the Python package, and runs its tests on what is in the wheel, some of them
/// with real nodes.
fn python(root: &Path) -> anyhow::Result<()> {
    build(root)?;
    let package = root.join("bindings/python");
    let wheels = target_dir(root).join("python");
    let interpreter = target_dir(root).join("venv/bin/python");
    ensure!(interpreter.exists(), "there is no Python for the tests; run tools/setup");
    let python = || {
        let mut command = Command::new(&interpreter);
        command.arg("-B").stdin(Stdio::null());
        command
    };
    let mut build = python();
    build.args(["-m", "hatchling", "build", "-c", "-t", "wheel", "-d"]).arg(&wheels);
    succeed(build.current_dir(&package))?;
    let mut found = std::fs::read_dir(&wheels).context("hatchling has built no wheel")?;
    let wheel = found.next().context("hatchling has built no wheel")??.path();
    let program = target_dir(root).join("debug/quorate");
    for tests in [package.join("tests"), root.join("examples/session-store")] {
        let mut test = python();
        test.args(["-m", "unittest", "discover", "-s"]).arg(tests);
        test.env("PYTHONPATH", &wheel).env("QUORATE", &program).current_dir(&wheels);
        succeed(&mut test)?;
    }
    Ok(())
}

/// What the gate simulates: each of these is one thread.
const SIMULATIONS: &[&[&str]] = &[
    &["--engine", "hermes", "--seeds", "100"],
    &["--engine", "meerkat", "--seeds", "30"],
    &["--beside", "hermes,meerkat", "--seeds", "20"],
    &["--engine", "zeus", "--seeds", "16"],
    &["--engine", "local", "--seeds", "30"],
    &["--engine", "local", "--disks", "--seeds", "40"],
];

/// Runs the simulations of the gate at once, and says what each has said when it has ended.
fn sim(root: &Path) -> anyhow::Result<()> {
    build(root)?;
    simulate(SIMULATIONS, &|| quorate(root))
}

/// What a night simulates beside Zeus and disks, with the build for release.
const SIMULATIONS_OF_A_NIGHT: &[&[&str]] = &[
    &["--engine", "hermes", "--seeds", "10000", "--from", "10001"],
    &["--engine", "meerkat", "--seeds", "2000", "--from", "10001"],
    &["--beside", "hermes,meerkat", "--seeds", "2000", "--from", "10001"],
    &["--engine", "local", "--seeds", "2000", "--from", "10001"],
];

fn sim_of_a_night(root: &Path) -> anyhow::Result<()> {
    succeed(cargo(root).args(["build", "--release", "--locked", "--package", "quorate"]))?;
    simulate(SIMULATIONS_OF_A_NIGHT, &|| {
        let mut program = Command::new(target_dir(root).join("release/quorate"));
        program.current_dir(root).stdin(Stdio::null());
        program
    })
}

fn simulate(
    simulations: &'static [&'static [&'static str]],
    program: &(impl Fn() -> Command + Sync),
) -> anyhow::Result<()> {
    let run = |arguments: &'static [&'static str]| {
        let output = program().arg("sim").args(arguments).output();
        output.with_context(|| format!("cannot run quorate sim {}", arguments.join(" ")))
    };
    let mut failed = Vec::new();
    std::thread::scope(|scope| {
        let started: Vec<_> =
            simulations.iter().map(|one| (one, scope.spawn(move || run(one)))).collect();
        for (arguments, thread) in started {
            let output = thread.join().expect("no simulation's thread panics")?;
            println!("quorate sim {}", arguments.join(" "));
            print!("{}", String::from_utf8_lossy(&output.stdout));
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            if !output.status.success() {
                failed.push(arguments.join(" "));
            }
        }
        anyhow::Ok(())
    })?;
    ensure!(failed.is_empty(), "the simulator found something wrong with {failed:?}");
    Ok(())
}

/// Where each node has every key, and where groups are some of the nodes, with three and four members.
fn sim_nightly(root: &Path) -> anyhow::Result<()> {
    succeed(cargo(root).args(["build", "--release", "--locked", "--package", "quorate"]))?;
    for nodes in ["3", "5", "6", "7"] {
        let mut sim = Command::new(target_dir(root).join("release/quorate"));
        sim.current_dir(root).stdin(Stdio::null()).args(["sim", "--engine", "zeus"]);
        succeed(sim.args(["--nodes", nodes, "--seeds", "10000", "--from", "10001"]))?;
    }
    Ok(())
}

/// Engines that keep a log, with as many seeds for a night as that takes.
fn disks_nightly(root: &Path) -> anyhow::Result<()> {
    succeed(cargo(root).args(["build", "--release", "--locked", "--package", "quorate"]))?;
    for engine in ["hermes", "meerkat", "zeus", "local"] {
        let mut sim = Command::new(target_dir(root).join("release/quorate"));
        sim.current_dir(root).stdin(Stdio::null()).args(["sim", "--engine", engine, "--disks"]);
        succeed(sim.args(["--seeds", "10000", "--from", "10001"]))?;
    }
    Ok(())
}

fn same_trace(root: &Path) -> anyhow::Result<()> {
    build(root)?;
    let trace = || -> anyhow::Result<Vec<u8>> {
        let mut command = quorate(root);
        let output = command.args(TRACE).output().context("cannot run quorate")?;
        ensure!(
            output.status.success(),
            "quorate {} ended with {}",
            TRACE.join(" "),
            output.status
        );
        Ok(output.stdout)
    };
    let (first, second) = (trace()?, trace()?);
    ensure!(!first.is_empty(), "quorate {} wrote no trace", TRACE.join(" "));
    let differs = first.split(|byte| *byte == b'\n').zip(second.split(|byte| *byte == b'\n'));
    let line = differs.take_while(|(one, other)| one == other).count() + 1;
    ensure!(first == second, "the traces of one seed differ from line {line} on");
    println!("{} lines, twice the same", line - 1);
    Ok(())
}

fn every_mutant(root: &Path) -> anyhow::Result<()> {
    mutants::run(root, |_| true)
}

fn gate_mutants(root: &Path) -> anyhow::Result<()> {
    mutants::run(root, |mutant| mutant.in_gate)
}
