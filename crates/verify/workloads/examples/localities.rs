//! How local workloads are, as Zeus §2.2 and §8 state it and as it comes out here: arithmetic and
//! draws, no cluster and no clock.
//!
//! ```text
//! cargo run --release -p quorate-workloads --example localities
//! ```

use std::time::Duration;

use quorate_workloads::{
    Answer, Benchmark, Geography, LocalGenerator, Part, Scenario, Source, Territories, Turn, tpcc,
};

/// Transactions that are drawn of each scenario.
const DRAWS: u64 = 2_000_000;
/// Units of each scenario.
const UNITS: u64 = 200_000;
const SEED: u64 = 1;

/// The share of steps of commuters that lead to another node, and that of transactions.
fn commuters(territories: Territories, nodes: u16) -> (f64, f64) {
    let handovers = 0.05;
    let scenario =
        Scenario { territories, handovers, ..Scenario::new(Benchmark::Handovers, nodes, UNITS) };
    let drawn = draw(&scenario);
    let share = |part: u64, of: u64| part as f64 / of as f64;
    (share(drawn.crossings, drawn.steps), share(drawn.remote, drawn.transactions))
}

fn draw(scenario: &Scenario) -> quorate_workloads::Drawn {
    let mut generator = LocalGenerator::new(scenario, Part::WHOLE, SEED);
    let clients = u64::from(scenario.nodes) * 4;
    for number in 0..DRAWS {
        let turn = Turn { client: (number % clients) as usize, elapsed: Duration::ZERO };
        generator.next_at(turn);
        generator.ended(turn.client, &Answer::Good);
    }
    generator.drawn()
}

fn main() {
    let percent = |share: f64| format!("{:.2}%", share * 100.0);
    println!("TPC-C, transactions of two warehouses: {}", percent(tpcc::cross_warehouse()));
    for nodes in [3, 6] {
        println!("  that span nodes, {nodes} nodes: {}", percent(tpcc::cross_node(nodes)));
    }
    println!("  the paper: {}, which does not follow", percent(tpcc::STATED));
    println!("Handovers to another node (the paper: 6.20% on 6 nodes)");
    for nodes in [3, 6] {
        for territories in Territories::ALL {
            let all = Geography::new(territories, nodes).crossing_share();
            let (steps, transactions) = commuters(territories, nodes);
            println!(
                "  {nodes} nodes, {}: {} of all steps, {} of commuters' steps; with 5% handovers, \
                 {} of transactions use keys of two nodes",
                territories.name(),
                percent(all),
                percent(steps),
                percent(transactions)
            );
        }
    }
    println!("Payments between nodes, synthetic graph (the paper: 0.70% on 3 nodes, 1.20% on 6)");
    for nodes in [3, 6] {
        let drawn = draw(&Scenario::new(Benchmark::Venmo, nodes, UNITS));
        println!("  {nodes} nodes: {}", percent(drawn.remote_share()));
    }
}
