//! Measures the costs of the steps between functions, by inline round trips through chains that
//! differ in one step. Each round measures all chains in turn, so a drift affects all chains
//! equally.

use std::net::SocketAddr;
use std::time::Duration;

use myelin_api::ApiError;
use myelin_linux::netns::Netns;
use myelin_packet::sojourn::Histogram;
use myelin_planner::{Cost, StepCosts};

use super::deployed::{DeployedChains, open_hosts};
use super::direct::{CLIENT, DirectLink, SERVER};
use super::own_links::OwnLinks;
use super::programs::ProgramCosts;
use super::{Chains, FRAMES, Monitor, Result, built_in_tcx_skb, fit_clamped, median};
use crate::{Config, Control, Cores, Sockets, probe};

/// Number of round trips of one chain in one round. The result is their median.
const COUNT: u32 = 200;
/// UDP port of the probe's server.
const PORT: u16 = 9000;

/// The chains: name, keys of `spec`, and the space of each function. All functions are of kind
/// `forward`.
const CHAINS: [(&str, &str, &[&str]); 9] = [
    ("tcx", "hook: tcx", &["kernel"]),
    ("xdp", "hook: xdp", &["kernel"]),
    ("user", "worker: { idle: spin }", &["user"]),
    ("back", "worker: { idle: spin }", &["user", "kernel"]),
    ("sleep", "worker: { idle: sleep }", &["user"]),
    ("one-link", LINKS_XDP, &["kernel"]),
    ("two-links", LINKS_XDP, &["kernel", "kernel"]),
    ("one-link-tcx", LINKS_TCX, &["kernel"]),
    ("two-links-tcx", LINKS_TCX, &["kernel", "kernel"]),
];
/// The chain `user` behind an entry link.
const ENTRY: &str = "entry-link";
const LINKS_XDP: &str = "mapping: distributed, hook: xdp";
const LINKS_TCX: &str = "mapping: distributed, hook: tcx";

/// A path from the client to the server.
struct ProbedPath {
    name: &'static str,
    /// The chain's name. `None` for the direct link.
    chain: Option<String>,
    sockets: Sockets,
}

/// Round trips of every path by frame, ns. All chains share the reverse path, so two chains differ
/// only by the forward path.
struct RoundTrips {
    paths: Vec<(&'static str, [f64; 2])>,
    /// Sojourn in chain `user`: from the front door to the worker's transmission.
    user_sojourn: [f64; 2],
    /// Sojourn in the same chain behind an entry link: from the port to the worker's transmission.
    entry_sojourn: [f64; 2],
    /// The 99th percentile and the median of the sojourn in chain `user`, each as the median of all
    /// rounds.
    slowest: [(f64, f64); 2],
}

/// Costs of the steps between functions.
pub(super) struct Crossings {
    pub(super) steps: StepCosts,
    /// Cost from a frame's arrival at XDP to the end of the front door, by frame, ns.
    pub(super) to_door: [f64; FRAMES.len()],
    /// By frame, the 99th percentile and the median of the time through a worker, ns.
    pub(super) slowest_ns: [(f64, f64); FRAMES.len()],
}

/// Measures the costs.
pub(super) fn measure(
    chains: &dyn Chains,
    rounds: usize,
    programs: &ProgramCosts,
    dispatch: Cost,
    monitor: &Monitor<'_>,
) -> Result<Crossings> {
    let times = measure_paths(chains, rounds, monitor)?;
    let rtt = |name: &str| {
        let path = times.paths.iter().find(|(path, _)| *path == name);
        path.map(|(_, ns)| *ns).unwrap_or_default()
    };
    let sub = |a: [f64; 2], b: [f64; 2]| [a[0] - b[0], a[1] - b[1]];
    let add = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
    let ns_of = |cost: Cost| FRAMES.map(|bytes| cost.at_ns(bytes as u64));
    let hop = ns_of(programs.hop);
    let (door_tcx, door_xdp) = (ns_of(programs.door_tcx), ns_of(programs.door_xdp));
    // Compared with the direct link, a round trip through a chain also pays for door, hop and
    // egress on the forward path. The reverse path pays for a front door without a match, and for
    // an egress. So one egress is half of the rest.
    let over_direct = sub(rtt("tcx"), rtt("direct"));
    let egress_tcx_peer = sub(sub(over_direct, door_tcx), hop).map(|ns| (ns / 2.0).max(0.0));
    // The forward path of the tcx chain, the reference of the other chains.
    let tcx_forward = add(add(door_tcx, hop), egress_tcx_peer);
    let forward = |chain| add(sub(rtt(chain), rtt("tcx")), tcx_forward);
    let [xdp_forward, user_forward, back_forward] = ["xdp", "user", "back"].map(forward);
    // A round trip cannot separate the conversion from the skb and the sending. The built-in costs
    // give the shares of both.
    let built_in = StepCosts::default();
    let xdp_rest = sub(sub(xdp_forward, door_xdp), hop);
    let share = |bytes: usize| {
        let (frame, egress) = (
            built_in.xdp_frame.at_ns(bytes as u64),
            built_in.egress_xdp.at_ns(bytes as u64),
        );
        frame / (frame + egress)
    };
    let xdp_frame = [
        xdp_rest[0] * share(FRAMES[0]),
        xdp_rest[1] * share(FRAMES[1]),
    ];
    let egress_xdp = sub(xdp_rest, xdp_frame);
    let enter_user = sub(sub(times.user_sojourn, door_xdp), ns_of(dispatch));
    let user_egress = sub(sub(user_forward, xdp_frame), times.user_sojourn);
    let user_to_kernel = sub(
        sub(sub(add(back_forward, user_egress), user_forward), hop),
        egress_xdp,
    );
    let steps = StepCosts {
        // Measured separately.
        ring: built_in.ring,
        // Behind the link, the conversion to a frame is within the sojourn.
        entry_link: fit_clamped(sub(sub(times.entry_sojourn, times.user_sojourn), xdp_frame)),
        link: fit_clamped(sub(rtt("two-links"), rtt("one-link"))),
        link_tcx: fit_clamped(sub(rtt("two-links-tcx"), rtt("one-link-tcx"))),
        door_tcx: programs.door_tcx,
        door_xdp: programs.door_xdp,
        xdp_frame: fit_clamped(xdp_frame),
        tcx_skb: built_in_tcx_skb(),
        hop: programs.hop,
        egress_tcx_peer: fit_clamped(egress_tcx_peer),
        // The frame takes the egress' transmit path instead of bypassing it.
        egress_redirect: fit_clamped(add(
            egress_tcx_peer,
            ns_of(Cost::new(
                built_in.egress_redirect.per_packet_ns - built_in.egress_tcx_peer.per_packet_ns,
                0.0,
            )),
        )),
        egress_xdp: fit_clamped(egress_xdp),
        enter_user: fit_clamped(enter_user),
        dispatch,
        user_egress: fit_clamped(user_egress),
        user_to_kernel: fit_clamped(user_to_kernel),
        wake_up: fit_clamped(sub(rtt("sleep"), rtt("user"))),
    };
    let to_door = add(door_xdp, ns_of(steps.xdp_frame));
    Ok(Crossings {
        steps,
        to_door,
        slowest_ns: times.slowest,
    })
}

fn measure_paths(chains: &dyn Chains, rounds: usize, monitor: &Monitor<'_>) -> Result<RoundTrips> {
    let direct = DirectLink::create()?;
    let mut deployed = DeployedChains::new(chains);
    let mut paths = vec![ProbedPath {
        name: "direct",
        chain: None,
        sockets: bind_sockets(&direct.client, &direct.server)?,
    }];
    for (name, spec, spaces) in CHAINS {
        paths.push(deploy_chain(&mut deployed, name, spec, spaces)?);
    }
    let own_links = OwnLinks::create()?;
    paths.push(deploy_between(&mut deployed, &own_links)?);
    // Round trips by path and frame.
    let mut figures = vec![[Vec::new(), Vec::new()]; paths.len()];
    let mut sojourns = [Vec::new(), Vec::new()];
    let mut entry_sojourns = [Vec::new(), Vec::new()];
    let mut slowest = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        monitor.progress("crossings", round as u64, rounds as u64);
        for (path, figures) in paths.iter().zip(&mut figures) {
            for (frame, bytes) in FRAMES.iter().enumerate() {
                if monitor.is_cancelled() {
                    return Err(ApiError::failed("the calibration was cancelled").into());
                }
                // The worker sleeps only if the probe pauses.
                let pause = Duration::from_micros(if path.name == "sleep" { 500 } else { 0 });
                let before = path.sojourn(chains)?;
                figures[frame].push(measure_round_trip(&path.sockets, bytes - 42, pause)?);
                let sojourn = path.sojourn(chains)?.since(&before);
                let at = |quantile| sojourn.quantile(quantile).unwrap_or_default() as f64;
                match path.name {
                    "user" => {
                        sojourns[frame].push(at(0.5));
                        slowest[frame].push(at(0.99));
                    }
                    ENTRY => entry_sojourns[frame].push(at(0.5)),
                    _ => {}
                }
            }
        }
    }
    let names = paths.iter().map(|path| path.name);
    let figures = figures.into_iter().map(|by_frame| by_frame.map(median));
    Ok(RoundTrips {
        paths: names.zip(figures).collect(),
        slowest: std::array::from_fn(|frame| {
            (
                median(slowest[frame].clone()),
                median(sojourns[frame].clone()),
            )
        }),
        user_sojourn: sojourns.map(median),
        entry_sojourn: entry_sojourns.map(median),
    })
}

impl ProbedPath {
    fn sojourn(&self, chains: &dyn Chains) -> Result<Histogram> {
        let Some(chain) = &self.chain else {
            return Ok(Histogram::new());
        };
        // Without a black box, a chain has one section.
        Ok(chains.sojourn(chain)?.pop().unwrap_or_default())
    }
}

fn deploy_chain(
    deployed: &mut DeployedChains<'_>,
    name: &'static str,
    spec: &str,
    spaces: &[&str],
) -> Result<ProbedPath> {
    let chain = format!("calibrate-{name}");
    let functions = spaces.iter().enumerate();
    let functions: Vec<String> = functions
        .map(|(position, space)| format!("{{ name: f{position}, kind: forward, space: {space} }}"))
        .collect();
    let functions = functions.join(", ");
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {chain} }}\nspec: {{ \
         match: {{ protocol: udp, destination: {SERVER}, destinationPort: {PORT} }}, {spec}, functions: [ {functions} ] }}\n"
    );
    let up = deployed.up([chain.clone()], text)?;
    let [client, server] = open_hosts(&up)?;
    Ok(ProbedPath {
        name,
        chain: Some(chain),
        sockets: bind_sockets(&client, &server)?,
    })
}

/// Deploys the chain `user` between links with default offloads, and a chain back.
fn deploy_between(deployed: &mut DeployedChains<'_>, links: &OwnLinks) -> Result<ProbedPath> {
    let chain = |name: &str, rule: &str, space: &str, [ingress, egress]: [&String; 2]| {
        format!(
            "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: calibrate-{name} }}\nspec: {{ \
             match: {{ protocol: udp, {rule} }}, ports: {{ ingress: {ingress}, egress: {egress} }}, \
             worker: {{ idle: spin }}, functions: [ {{ name: f0, kind: forward, space: {space} }} ] }}\n"
        )
    };
    let [a, b] = &links.ports;
    let there = format!("destination: {SERVER}, destinationPort: {PORT}");
    let back = format!("source: {SERVER}, sourcePort: {PORT}");
    let text = [
        chain(ENTRY, &there, "user", [a, b]),
        chain("back-over-own-links", &back, "kernel", [b, a]),
    ]
    .join("---\n");
    let names = [ENTRY, "back-over-own-links"].map(|name| format!("calibrate-{name}"));
    let [name, _] = names.clone();
    deployed.up(names, text)?;
    Ok(ProbedPath {
        name: ENTRY,
        chain: Some(name),
        sockets: bind_sockets(&links.client, &links.server)?,
    })
}

fn bind_sockets(client: &Netns, server: &Netns) -> Result<Sockets> {
    let (from, to) = (SocketAddr::new(CLIENT, 0), SocketAddr::new(SERVER, PORT));
    Ok(Sockets::bind((Some(client), from), (Some(server), to))?)
}

/// Measures the round trips of one round. Returns their median, ns.
fn measure_round_trip(sockets: &Sockets, payload_bytes: usize, interval: Duration) -> Result<f64> {
    let config = Config {
        payload_bytes,
        interval,
        count: COUNT,
        repeats: 1,
        warm_up: 20,
        cores: Some(Cores {
            client: 0,
            server: 0,
        }),
        deadline: Duration::from_secs(10),
        ..Config::new(SocketAddr::new(SERVER, PORT))
    };
    let result = probe(&config, sockets, Control::default())?;
    let rtt = result.rtt.ok_or_else(|| {
        ApiError::failed(
            "no packet came back through a calibration chain; `myelin doctor` may show the cause",
        )
    })?;
    Ok(rtt.p50_us * 1e3)
}
