//! What the steps between functions cost, from inline round trips through chains that differ in one step. The
//! ways are measured in turn, round by round, so that a drifting clock hits all alike.

use std::net::SocketAddr;
use std::time::Duration;

use myelin_api::ApiError;
use myelin_linux::netns::Netns;
use myelin_packet::sojourn::Histogram;
use myelin_planner::{Cost, StepCosts};

use super::deployed::{Deployed, hosts};
use super::direct::{CLIENT, DirectLink, SERVER};
use super::programs::Programs;
use super::{Chains, FRAMES, Monitor, Result, at_least_nothing, median, unmeasured};
use crate::{Config, Control, Cores, Sockets, probe};

/// Round trips of one way in one round; their median counts.
const COUNT: u32 = 200;
/// The probe's server.
const PORT: u16 = 9000;

/// The ways: what a chain's `spec` says beside its functions, and the spaces of these, which all forward.
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
const LINKS_XDP: &str = "mapping: distributed, hook: xdp";
const LINKS_TCX: &str = "mapping: distributed, hook: tcx";

/// A way from the client to the server.
struct Way {
    name: &'static str,
    /// The chain that it leads through.
    chain: Option<String>,
    sockets: Sockets,
}

/// Round trips of every way by frame, ns. The way back is the same for all chains, so two of them differ by what the way
/// there differs.
struct Times {
    ways: Vec<(&'static str, [f64; 2])>,
    /// From the front door to the worker's transmit, of `user`.
    user_sojourn: [f64; 2],
    /// The 99th percentile of that and its median, in the middle of the rounds.
    slowest: [(f64, f64); 2],
}

/// What the crossings cost.
pub(super) struct Crossings {
    pub(super) steps: StepCosts,
    /// From a frame's arrival at XDP to the front door's end, by frame, ns.
    pub(super) to_door: [f64; FRAMES.len()],
    /// By frame, the 99th percentile of the way through a worker and its median, ns.
    pub(super) slowest_ns: [(f64, f64); FRAMES.len()],
}

/// Measures.
pub(super) fn measure(
    chains: &dyn Chains,
    rounds: usize,
    programs: &Programs,
    dispatch: Cost,
    monitor: &Monitor<'_>,
) -> Result<Crossings> {
    let times = round_trips(chains, rounds, monitor)?;
    let of_way = |name: &str| {
        let way = times.ways.iter().find(|(way, _)| *way == name);
        way.map(|(_, ns)| *ns).unwrap_or_default()
    };
    let sub = |a: [f64; 2], b: [f64; 2]| [a[0] - b[0], a[1] - b[1]];
    let add = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
    let of = |cost: Cost| FRAMES.map(|bytes| cost.at_ns(bytes as u64));
    let hop = of(programs.hop);
    let (door_tcx, door_xdp) = (of(programs.door_tcx), of(programs.door_xdp));
    // Over the direct link a round trip through a chain pays door, hop and egress on the way there, and a door that
    // finds nothing and an egress on the way back: about the same again. So one egress is half of what remains.
    let over_direct = sub(of_way("tcx"), of_way("direct"));
    let egress_tcx_peer = sub(sub(over_direct, door_tcx), hop).map(|ns| (ns / 2.0).max(0.0));
    // What every chain pays until its way back begins, by the tcx chain: all others are told by their distance to it.
    let tcx_way = add(add(door_tcx, hop), egress_tcx_peer);
    let way = |round_trip: [f64; 2]| add(sub(round_trip, of_way("tcx")), tcx_way);
    let (xdp_way, user_way, back_way) =
        (way(of_way("xdp")), way(of_way("user")), way(of_way("back")));
    // Taking the frame from the skb and sending it off again cannot be told apart by a round trip: the frame's share
    // is what the built-in costs say it is.
    let built_in = StepCosts::default();
    let xdp_rest = sub(sub(xdp_way, door_xdp), hop);
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
    let enter_user = sub(sub(times.user_sojourn, door_xdp), of(dispatch));
    let user_egress = sub(sub(user_way, xdp_frame), times.user_sojourn);
    let user_to_kernel = sub(
        sub(sub(add(back_way, user_egress), user_way), hop),
        egress_xdp,
    );
    let steps = StepCosts {
        // No crossing: measured by itself.
        ring: built_in.ring,
        link: at_least_nothing(sub(of_way("two-links"), of_way("one-link"))),
        link_tcx: at_least_nothing(sub(of_way("two-links-tcx"), of_way("one-link-tcx"))),
        door_tcx: programs.door_tcx,
        door_xdp: programs.door_xdp,
        xdp_frame: at_least_nothing(xdp_frame),
        tcx_skb: unmeasured(),
        hop: programs.hop,
        egress_tcx_peer: at_least_nothing(egress_tcx_peer),
        // The frame goes through the egress' transmit path instead of past it.
        egress_redirect: at_least_nothing(add(
            egress_tcx_peer,
            of(Cost::new(
                built_in.egress_redirect.per_packet_ns - built_in.egress_tcx_peer.per_packet_ns,
                0.0,
            )),
        )),
        egress_xdp: at_least_nothing(egress_xdp),
        enter_user: at_least_nothing(enter_user),
        dispatch,
        user_egress: at_least_nothing(user_egress),
        user_to_kernel: at_least_nothing(user_to_kernel),
        wake_up: at_least_nothing(sub(of_way("sleep"), of_way("user"))),
    };
    let to_door = add(door_xdp, of(steps.xdp_frame));
    Ok(Crossings {
        steps,
        to_door,
        slowest_ns: times.slowest,
    })
}

fn round_trips(chains: &dyn Chains, rounds: usize, monitor: &Monitor<'_>) -> Result<Times> {
    let direct = DirectLink::create()?;
    let mut deployed = Deployed::new(chains);
    let mut ways = vec![Way {
        name: "direct",
        chain: None,
        sockets: bind(&direct.client, &direct.server)?,
    }];
    for (name, spec, spaces) in CHAINS {
        ways.push(deploy(&mut deployed, name, spec, spaces)?);
    }
    // By way and frame.
    let mut figures = vec![[Vec::new(), Vec::new()]; ways.len()];
    let mut sojourns = [Vec::new(), Vec::new()];
    let mut slowest = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        monitor.progress("crossings", round as u64, rounds as u64);
        for (way, figures) in ways.iter().zip(&mut figures) {
            for (frame, bytes) in FRAMES.iter().enumerate() {
                if monitor.is_cancelled() {
                    return Err(ApiError::failed("cancelled").into());
                }
                // The sleeping worker is only woken when the probe pauses.
                let pause = Duration::from_micros(if way.name == "sleep" { 500 } else { 0 });
                let before = way.sojourn(chains)?;
                figures[frame].push(round_trip(&way.sockets, bytes - 42, pause)?);
                if way.name == "user" {
                    let sojourn = way.sojourn(chains)?.since(&before);
                    let at = |quantile| sojourn.quantile(quantile).unwrap_or_default() as f64;
                    sojourns[frame].push(at(0.5));
                    slowest[frame].push(at(0.99));
                }
            }
        }
    }
    let names = ways.iter().map(|way| way.name);
    let figures = figures.into_iter().map(|by_frame| by_frame.map(median));
    Ok(Times {
        ways: names.zip(figures).collect(),
        slowest: std::array::from_fn(|frame| {
            (
                median(slowest[frame].clone()),
                median(sojourns[frame].clone()),
            )
        }),
        user_sojourn: sojourns.map(median),
    })
}

impl Way {
    fn sojourn(&self, chains: &dyn Chains) -> Result<Histogram> {
        let Some(chain) = &self.chain else {
            return Ok(Histogram::new());
        };
        // No black box cuts its way.
        Ok(chains.sojourn(chain)?.pop().unwrap_or_default())
    }
}

fn deploy(
    deployed: &mut Deployed<'_>,
    name: &'static str,
    spec: &str,
    spaces: &[&str],
) -> Result<Way> {
    let chain = format!("calibrate-{name}");
    let functions = spaces.iter().enumerate();
    let functions: Vec<String> = functions
        .map(|(place, space)| format!("{{ name: f{place}, kind: forward, space: {space} }}"))
        .collect();
    let functions = functions.join(", ");
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: {chain} }}\nspec: {{ \
         match: {{ protocol: udp, destination: {SERVER}, destinationPort: {PORT} }}, {spec}, functions: [ {functions} ] }}\n"
    );
    let up = deployed.up([chain.clone()], text)?;
    let [client, server] = hosts(&up)?;
    Ok(Way {
        name,
        chain: Some(chain),
        sockets: bind(&client, &server)?,
    })
}

fn bind(client: &Netns, server: &Netns) -> Result<Sockets> {
    let (from, to) = (SocketAddr::new(CLIENT, 0), SocketAddr::new(SERVER, PORT));
    Ok(Sockets::bind((Some(client), from), (Some(server), to))?)
}

/// Median round trip of a round, ns.
fn round_trip(sockets: &Sockets, payload_bytes: usize, interval: Duration) -> Result<f64> {
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
        ApiError::failed("a calibration chain answered nothing; `myelin doctor` may say why")
    })?;
    Ok(rtt.p50_us * 1e3)
}
