//! Measures a veth pair between two namespaces in every probe mode, as the baseline of chains.
//!
//! ```sh
//! cargo build --release -p myelin-measure --example direct_link
//! sudo target/release/examples/direct_link
//! ```

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use myelin_linux::affinity;
use myelin_linux::netns::{self, Netns};
use myelin_measure::cpu::CpuMeter;
use myelin_measure::{Config, Control, Cores, Mode, Sockets, probe};
use myelin_report::terminal::{Histogram, Style, latency_table};

const CLIENT: &str = "10.78.0.1";
const SERVER: &str = "10.78.0.2";

fn main() -> Result<(), Box<dyn Error>> {
    let link = Link::new()?;
    let sockets = Sockets::bind(
        (Some(&link.client), format!("{CLIENT}:0").parse()?),
        (Some(&link.server), format!("{SERVER}:9000").parse()?),
    )?;
    let cores = affinity::get(0)?;
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    let on_cores = |client, server| Some(Cores { client, server });
    let base = Config {
        interval: Duration::from_millis(1),
        repeats: 10,
        ..Config::new(format!("{SERVER}:9000").parse()?)
    };
    let mut variants = vec![
        ("inline 256 B", Mode::Inline, 256, on_cores(first, first)),
        ("inline 1400 B", Mode::Inline, 1400, on_cores(first, first)),
        (
            "blocking, one core",
            Mode::Blocking,
            256,
            on_cores(first, first),
        ),
    ];
    if cores.len() > 1 {
        variants.push(("spin", Mode::Spin, 256, on_cores(first, last)));
        variants.push((
            "blocking, two cores",
            Mode::Blocking,
            256,
            on_cores(first, last),
        ));
    }
    let meter = CpuMeter::start(&[("probe", std::process::id())])?;
    let mut results = Vec::new();
    for (name, mode, payload_bytes, cores) in variants {
        let config = Config {
            mode,
            payload_bytes,
            cores,
            rtt_bound: Some(Duration::from_micros(350)),
            ..base.clone()
        };
        results.push((name, probe(&config, &sockets, Control::default())?));
    }
    let columns: Vec<_> = results
        .iter()
        .filter_map(|(name, result)| Some((*name, result.rtt.as_ref()?)))
        .collect();
    println!("{}\n", latency_table(&columns, Style::default()));
    for (name, result) in &results {
        let histogram = Histogram {
            delays: &result.rtt_distribution,
            bound_us: Some(350.0),
        };
        println!("{name}\n{}\n", histogram.render(Style::default()));
    }
    println!("{}\n", serde_json::to_string(&meter.usage()?)?);
    Ok(())
}

/// Two namespaces and the veth pair between them. Dropping the value removes both.
struct Link {
    client: Netns,
    server: Netns,
}

impl Link {
    fn new() -> Result<Self, Box<dyn Error>> {
        let name = |end: &str| format!("myelin-t{}-direct-{end}", std::process::id());
        let link = Self {
            client: Netns::create(&name("client"))?,
            server: Netns::create(&name("server"))?,
        };
        let (client, server) = (name("client"), name("server"));
        ip(&format!(
            "-n {client} link add eth0 type veth peer name eth0 netns {server}"
        ))?;
        for (end, address) in [(client, CLIENT), (server, SERVER)] {
            ip(&format!("-n {end} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {end} link set eth0 up"))?;
        }
        Ok(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for end in [&self.client, &self.server] {
            let _ = end.name().map(netns::delete);
        }
    }
}

fn ip(arguments: &str) -> Result<(), Box<dyn Error>> {
    let status = Command::new("ip").args(arguments.split(' ')).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`ip {arguments}` ended with {status}").into())
    }
}
