//! The sweeps of the paper's figures 4 to 7, and their findings.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use quorate_workloads::Workload;
use serde::Serialize;

use super::inputs::{Contention, Measured, Model, System};
use super::model::{Point, Setup, simulate};

/// How contention of more than two lanes is derived from the measurement with two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Extrapolation {
    /// A contended use costs the measured time of two cores, whatever the number of lanes.
    Measured,
    /// It costs more by the factor by which the counter of the paper's figure 1 does.
    Figure1,
}

impl Extrapolation {
    /// The name that users give.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Figure1 => "figure1",
        }
    }
}

impl FromStr for Extrapolation {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = [Self::Measured, Self::Figure1].into_iter().find(|one| one.name() == name);
        found
            .ok_or_else(|| format!("there is no extrapolation {name:?}: it is measured or figure1"))
    }
}

/// The points of a sweep.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Sweep {
    /// Lanes of figures 4 and 5.
    pub(crate) lanes: Vec<usize>,
    /// Coefficients of figures 6 and 7.
    pub(crate) zipfs: Vec<f64>,
    /// Lanes of figures 6 and 7.
    pub(crate) zipf_lanes: usize,
    /// Clients of each lane in figures 4 and 5: enough to keep it busy.
    pub(crate) clients: usize,
    /// Clients of each lane in figures 6 and 7: the number that commits most counts (the paper
    /// shows peaks).
    pub(crate) zipf_clients: Vec<usize>,
    /// Commits that are counted at each point.
    pub(crate) commits: u64,
}

impl Sweep {
    /// Commits at each point, by default.
    pub(crate) const COMMITS: u64 = 15_000;

    /// All of the paper's range.
    pub(crate) fn full() -> Self {
        Self {
            lanes: vec![1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 56, 64, 72, 80],
            zipfs: vec![0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.84, 0.87, 0.9, 0.95, 1.0],
            zipf_lanes: 64,
            clients: 16,
            zipf_clients: vec![4, 16],
            commits: Self::COMMITS,
        }
    }
}

/// One system's line in a figure.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Curve {
    /// The system.
    pub(crate) system: System,
    /// The points, from left to right.
    pub(crate) points: Vec<Point>,
}

impl Curve {
    fn peak(&self) -> f64 {
        self.points.iter().map(|point| point.goodput).fold(0.0, f64::max)
    }

    fn last(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.goodput)
    }

    /// The fewest lanes that give 95% of the most.
    fn saturation(&self) -> usize {
        let enough = self.peak() * 0.95;
        let found = self.points.iter().find(|point| point.goodput >= enough);
        found.map_or(0, |point| point.lanes)
    }
}

/// The sweeps; two figures each show one quantity of the same runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Figures {
    /// Figure 4: YCSB-T over lanes, even keys.
    pub(crate) fig4: Vec<Curve>,
    /// Figure 5: Retwis over lanes, even keys.
    pub(crate) fig5: Vec<Curve>,
    /// Figures 6a and 7a: YCSB-T over Zipf coefficients.
    pub(crate) fig6a_7a: Vec<Curve>,
    /// Figures 6b and 7b: Retwis over Zipf coefficients.
    pub(crate) fig6b_7b: Vec<Curve>,
}

/// One statement of the paper, and the projection's result on it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Finding {
    /// Its subject.
    pub(crate) what: String,
    /// The paper's result.
    pub(crate) paper: &'static str,
    /// The projection's result.
    pub(crate) here: String,
}

/// A whole projection.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Projection {
    /// Costs measured on this machine, in nanoseconds.
    pub(crate) measured: Measured,
    /// Costs assumed, in nanoseconds.
    pub(crate) modelled: Model,
    /// How contention was extrapolated, which is a model too.
    pub(crate) extrapolation: Extrapolation,
    /// The resulting costs of contention, in nanoseconds.
    pub(crate) contention_used: Contention,
    /// The curves.
    pub(crate) figures: Figures,
    /// The findings, beside the paper's.
    pub(crate) findings: Vec<Finding>,
}

struct Job {
    workload: Workload,
    system: System,
    lanes: usize,
    zipf: f64,
    clients: Vec<usize>,
}

/// Simulates all points, on all processors. `progress` hears how many of how many are done. The
/// same inputs give the same projection.
pub(crate) fn project(
    measured: &Measured,
    model: &Model,
    extrapolation: Extrapolation,
    sweep: &Sweep,
    progress: &mut dyn FnMut(usize, usize),
) -> Projection {
    let contention_used = match extrapolation {
        Extrapolation::Measured => measured.contention,
        Extrapolation::Figure1 => measured.contention.as_in_the_paper(),
    };
    let jobs = jobs(sweep);
    let points = run(&jobs, measured, &contention_used, model, sweep.commits, progress);
    let mut rest = points.into_iter();
    let mut curves = |count: usize| -> Vec<Curve> {
        System::ALL
            .into_iter()
            .map(|system| Curve { system, points: rest.by_ref().take(count).collect() })
            .collect()
    };
    let figures = Figures {
        fig4: curves(sweep.lanes.len()),
        fig5: curves(sweep.lanes.len()),
        fig6a_7a: curves(sweep.zipfs.len()),
        fig6b_7b: curves(sweep.zipfs.len()),
    };
    let findings = findings(&figures);
    Projection {
        measured: measured.clone(),
        modelled: *model,
        extrapolation,
        contention_used,
        figures,
        findings,
    }
}

fn jobs(sweep: &Sweep) -> Vec<Job> {
    let mut jobs = Vec::new();
    for workload in [Workload::YcsbT, Workload::Retwis] {
        for system in System::ALL {
            jobs.extend(sweep.lanes.iter().map(|&lanes| Job {
                workload,
                system,
                lanes,
                zipf: 0.0,
                clients: vec![sweep.clients],
            }));
        }
    }
    for workload in [Workload::YcsbT, Workload::Retwis] {
        for system in System::ALL {
            jobs.extend(sweep.zipfs.iter().map(|&zipf| Job {
                workload,
                system,
                lanes: sweep.zipf_lanes,
                zipf,
                clients: sweep.zipf_clients.clone(),
            }));
        }
    }
    jobs
}

fn run(
    jobs: &[Job],
    measured: &Measured,
    contention: &Contention,
    model: &Model,
    commits: u64,
    progress: &mut dyn FnMut(usize, usize),
) -> Vec<Point> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = &AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    let mut points: Vec<Option<Point>> = vec![None; jobs.len()];
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some((index, job)) = take(next, jobs) {
                    let point = best(job, measured, contention, model, commits);
                    // The collector lives until all points are done.
                    let _ = sender.send((index, point));
                }
            });
        }
        drop(sender);
        for (done, (index, point)) in results.iter().enumerate() {
            points[index] = Some(point);
            progress(done + 1, jobs.len());
        }
    });
    points.into_iter().map(|point| point.expect("every job was done")).collect()
}

fn take<'a>(next: &AtomicUsize, jobs: &'a [Job]) -> Option<(usize, &'a Job)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(index).map(|job| (index, job))
}

/// The point with the most commits.
fn best(
    job: &Job,
    measured: &Measured,
    contention: &Contention,
    model: &Model,
    commits: u64,
) -> Point {
    let costs = match job.workload {
        Workload::Retwis => &measured.retwis,
        _ => &measured.ycsb_t,
    };
    let points = job.clients.iter().map(|&clients_per_lane| {
        simulate(Setup {
            system: job.system,
            workload: job.workload,
            handlers: costs.of(job.system),
            contention,
            model,
            lanes: job.lanes,
            zipf: job.zipf,
            clients_per_lane,
            commits,
        })
    });
    points.max_by(|a, b| a.goodput.total_cmp(&b.goodput)).expect("there is a number of clients")
}

fn curve(curves: &[Curve], system: System) -> &Curve {
    curves.iter().find(|curve| curve.system == system).expect("every system has a curve")
}

fn millions(goodput: f64) -> String {
    format!("{:.2} M/s", goodput / 1e6)
}

fn findings(figures: &Figures) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut say = |what: &str, paper: &'static str, here: String| {
        findings.push(Finding { what: what.to_owned(), paper, here });
    };
    let scaling = |curves: &[Curve], system: System| {
        let curve = curve(curves, system);
        format!("{} lanes, {}", curve.saturation(), millions(curve.peak()))
    };
    let paper4 = ["80, 8.3 M/s", "64 threads, 7 times KuaFu++", "8 cores, 0.8 M/s", "6, 0.6 M/s"];
    for (system, paper) in System::ALL.into_iter().zip(paper4) {
        let what = format!("YCSB-T: {} scales to", system.name());
        say(&what, paper, scaling(&figures.fig4, system));
    }
    let paper5 = ["80, 2.7 M/s", "nearly Meerkat", "32 cores, at most 0.7 M/s", "32, 0.7 M/s"];
    for (system, paper) in System::ALL.into_iter().zip(paper5) {
        let what = format!("Retwis: {} scales to", system.name());
        say(&what, paper, scaling(&figures.fig5, system));
    }
    say("YCSB-T, most lanes: order", "meerkat > meerkat-pb > tapir > kuafu", order(&figures.fig4));
    say("Retwis, most lanes: order", "meerkat > meerkat-pb > tapir, kuafu", order(&figures.fig5));
    let over = |curves: &[Curve], system: System| {
        let ratio = curve(curves, System::Meerkat).last() / curve(curves, system).last().max(1.0);
        format!("{ratio:.1} times")
    };
    say("YCSB-T: Meerkat over PB", "1.7 times at most", over(&figures.fig4, System::MeerkatPb));
    say("YCSB-T: Meerkat over TAPIR-style", "10 times", over(&figures.fig4, System::Tapir));
    say("YCSB-T: Meerkat over KuaFu++", "12 times", over(&figures.fig4, System::KuaFu));
    say("YCSB-T: PB overtakes Meerkat at Zipf", "0.87", crossing(&figures.fig6a_7a));
    say("Retwis: PB overtakes Meerkat at Zipf", "high skew", crossing(&figures.fig6b_7b));
    for (name, curves) in [("YCSB-T", &figures.fig6a_7a), ("Retwis", &figures.fig6b_7b)] {
        let rate = |system| {
            let last = curve(curves, system).points.last().copied();
            last.map_or(0.0, |point| point.abort_rate * 100.0)
        };
        let here = format!("{:.0}% and {:.0}%", rate(System::Meerkat), rate(System::MeerkatPb));
        let what = format!("{name}: aborts at the largest Zipf, Meerkat and PB");
        say(&what, "Meerkat's slightly higher", here);
    }
    findings
}

/// The systems, in the order of their commits at the right end.
fn order(curves: &[Curve]) -> String {
    let mut sorted: Vec<&Curve> = curves.iter().collect();
    sorted.sort_by(|a, b| b.last().total_cmp(&a.last()));
    let names: Vec<&str> = sorted.iter().map(|curve| curve.system.name()).collect();
    names.join(" > ")
}

/// The first coefficient at which Meerkat commits less than Meerkat-PB.
fn crossing(curves: &[Curve]) -> String {
    let pairs =
        curve(curves, System::Meerkat).points.iter().zip(&curve(curves, System::MeerkatPb).points);
    let mut below: Vec<f64> = Vec::new();
    for (meerkat, pb) in pairs {
        match meerkat.goodput < pb.goodput {
            true => below.push(meerkat.zipf),
            false => below.clear(),
        }
    }
    below.first().map_or_else(|| "never".to_owned(), |zipf| format!("{zipf}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::{Network, fixed};

    fn sweep() -> Sweep {
        Sweep {
            lanes: vec![2, 24, 80],
            zipfs: vec![0.0, 0.8, 1.0],
            zipf_lanes: 16,
            clients: 8,
            zipf_clients: vec![8],
            commits: 3_000,
        }
    }

    fn projection() -> Projection {
        let model = Model::new(Network::TESTBED, 1);
        project(&fixed(), &model, Extrapolation::Measured, &sweep(), &mut |_, _| {})
    }

    /// With made-up inputs, in which one use of the log costs as much as one of the record: with
    /// the measured costs, the two systems that share something may come in the other order.
    #[test]
    fn the_papers_orderings_come_out() {
        let projection = projection();
        let last = |system| curve(&projection.figures.fig4, system).last();
        let [meerkat, pb, tapir, kuafu] = System::ALL.map(last);
        assert!(meerkat >= pb && pb > tapir && tapir > kuafu, "{:?}", projection.findings);
        // A system that shares nothing goes on growing; a mutex or a log stops the systems that
        // share it.
        for curve in &projection.figures.fig4 {
            let growth = curve.points[2].goodput / curve.points[1].goodput;
            let scales = matches!(curve.system, System::Meerkat | System::MeerkatPb);
            assert_eq!(growth > 3.0, scales, "{:?} grew {growth} times", curve.system);
            assert_eq!(growth < 1.2, !scales, "{:?} grew {growth} times", curve.system);
        }
    }

    #[test]
    fn aborts_rise_with_skew_and_most_where_every_replica_votes() {
        let projection = projection();
        for curves in [&projection.figures.fig6a_7a, &projection.figures.fig6b_7b] {
            for curve in curves {
                let rates: Vec<f64> = curve.points.iter().map(|point| point.abort_rate).collect();
                assert!(rates[0] < 0.01, "{:?}: {rates:?}", curve.system);
                assert!(
                    rates[0] < rates[1] && rates[1] < rates[2],
                    "{:?}: {rates:?}",
                    curve.system
                );
            }
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_projection() {
        let short = Sweep { lanes: vec![3], zipfs: vec![0.9], ..sweep() };
        let model = Model::new(Network::TESTBED, 7);
        let once = || project(&fixed(), &model, Extrapolation::Figure1, &short, &mut |_, _| {});
        assert_eq!(once(), once());
        let other = Model::new(Network::TESTBED, 8);
        let other = project(&fixed(), &other, Extrapolation::Figure1, &short, &mut |_, _| {});
        assert_ne!(once().figures, other.figures);
    }

    #[test]
    fn a_crossing_is_where_it_stays_below() {
        let point = |zipf, goodput| Point {
            lanes: 1,
            zipf,
            clients_per_lane: 1,
            goodput,
            abort_rate: 0.0,
            slow_share: 0.0,
            busy: 0.0,
            latency_us: 0.0,
        };
        let curve = |system, goodputs: [f64; 3]| Curve {
            system,
            points: [0.0, 0.5, 1.0].into_iter().zip(goodputs).map(|(x, y)| point(x, y)).collect(),
        };
        let pb = curve(System::MeerkatPb, [2.0, 2.0, 2.0]);
        let crossing_of = |goodputs| crossing(&[curve(System::Meerkat, goodputs), pb.clone()]);
        assert_eq!(crossing_of([3.0, 1.0, 1.0]), "0.5");
        assert_eq!(crossing_of([1.0, 3.0, 1.0]), "1");
        assert_eq!(crossing_of([3.0, 3.0, 3.0]), "never");
    }
}
