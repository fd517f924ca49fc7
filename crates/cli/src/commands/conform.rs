//! `myelin conform`: checks the traffic of an interface against a rate and a burst, and a chain
//! over nodes against its whole contract.

mod contract;
mod report;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use myelin_api::{ApiError, Client, RunDir};
use myelin_kernel::{ConformConfig, ConformReport, Conformance, TrafficDirection};
use myelin_linux::capability;
use myelin_linux::link::Link;
use myelin_linux::netlink::Netlink;
use myelin_linux::netns::Netns;
use myelin_packet::Match;
use myelin_packet::traffic::Profile;
use myelin_spec::arguments;
use myelin_spec::suggest::nearest;

use self::contract::MeasuredChain;
use self::report::Report;
use super::interrupt;
use crate::output;

/// Arguments of `myelin conform`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
        sudo myelin conform eth1 --rate 20kpps --burst 32 --duration 10s\n  \
        sudo myelin conform eth0 --host server --rate 20kpps --match destinationPort=9000\n  \
        sudo myelin conform eth0 --rate 20kpps,100Mbit --burst 32,64kbit -v\n  \
        sudo myelin conform eth1 --direction out --rate 1kpps --tolerance 100us --follow\n  \
        sudo myelin conform --chain over --tolerance 1ms --duration 10s\n\n\
        A leaky bucket in an eBPF program sees every packet and changes none. It shares no code with\n\
        the policer and the shaper. Traffic conforms if at most rate * t + burst passes in any time t.\n\
        The program sees packets after XDP (`in`) or before the queueing discipline (`out`).\n\
        Without --duration and --count it runs until Ctrl-C.\n\
        With --chain it watches the egress host of a chain over nodes, with rate, burst and match of\n\
        the chain, and judges loss and latency from the first node to the last.\n\n\
        Exit status: 0 conforms; 5 does not; 2 bad usage; 1 failed, or no packet was seen.")]
pub(crate) struct Arguments {
    /// The interface.
    #[arg(value_name = "IFACE", required_unless_present = "chain")]
    interface: Option<String>,
    /// The chain over nodes whose whole contract is checked.
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["interface", "rate", "burst", "direction", "netns", "host"]
    )]
    chain: Option<String>,
    /// Rate of the profile, in packets, bits or both a second: `20kpps`, `100Mbit`,
    /// `20kpps,100Mbit`.
    #[arg(long, required_unless_present = "chain")]
    rate: Option<String>,
    /// Burst of the profile: `32`, `64kbit`, `32,64kbit` [default: 32 packets or full frames, or
    /// the rate times a millisecond if that is more].
    #[arg(long)]
    burst: Option<String>,
    /// Check incoming or outgoing packets.
    #[arg(long, value_parser = ["in", "out"], default_value = "in")]
    direction: String,
    /// The network namespace of the interface, as in `ip netns list`.
    #[arg(long, value_name = "NAME", conflicts_with = "host")]
    netns: Option<String>,
    /// The host of the interface: `client`, `server`, the host or node of a topology, or one of
    /// them after `CHAIN/` or `TOPOLOGY/`.
    #[arg(long)]
    host: Option<String>,
    /// Count matching packets only. Keys of a chain file's `match`: `protocol=udp,sourcePort=9000`.
    #[arg(long = "match", value_name = "KEY=VALUE,...")]
    filter: Option<String>,
    /// How early a packet may be. Allows for jitter between the policer or shaper and this
    /// interface.
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = output::parse_duration)]
    tolerance: Duration,
    /// Stop after this time.
    #[arg(long, value_name = "TIME", value_parser = output::parse_duration)]
    duration: Option<Duration>,
    /// Stop after this number of packets.
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print a line each second.
    #[arg(long)]
    follow: bool,
    /// Show more: the time and size of each violation.
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON; with --follow an object a line.
    #[arg(long)]
    json: bool,
}

/// Interval between two checks of the end conditions.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The traffic that is watched.
struct Watched {
    interface: String,
    /// The network namespace; `None`: this process's own.
    netns: Option<String>,
    direction: String,
    /// The packets that count, as `--match` takes them; `None`: all.
    filter: Option<String>,
    config: ConformConfig,
}

/// Watches the interface, then prints the verdict.
pub(crate) fn execute(run_dir: &RunDir, arguments: &Arguments) -> Result<ExitCode, ApiError> {
    let (profile, filter) = parse_traffic(arguments)?;
    if !capability::is_root() {
        return Err(ApiError::failed(
            "only root can attach to an interface: use sudo",
        ));
    }
    let chain = arguments.chain.as_deref();
    let chain = chain.map(|name| MeasuredChain::begin(run_dir, name));
    let chain = chain.transpose()?;
    let watched = choose_watched(run_dir, arguments, (profile, filter), chain.as_ref())?;
    let namespace = watched.netns.as_deref();
    let namespace = namespace.map_or_else(Netns::current, Netns::open);
    let namespace = namespace.map_err(ApiError::usage)?;
    // Without tcx, only a thread in the namespace can remove the filter.
    let measured = namespace
        .enter(|| watch_interface(arguments, &watched))
        .map_err(ApiError::failed)??;
    let contract = chain.map(MeasuredChain::end).transpose()?;
    let report = Report::new(&watched, &measured, contract);
    if arguments.json && arguments.follow {
        output::print_json_line(&report)?;
    } else if arguments.json {
        output::print_json(&report)?;
    } else {
        report.print(arguments.verbose);
    }
    if measured.packets == 0 {
        return Err(ApiError::failed(no_packet_error(&watched)));
    }
    Ok(output::exit_status(
        report.is_kept(),
        output::NOT_MET_STATUS,
    ))
}

/// Parses profile and match of the arguments. With a chain, the profile is that of its contract.
fn parse_traffic(arguments: &Arguments) -> Result<(Option<Profile>, Option<Match>), ApiError> {
    let burst = arguments.burst.as_deref();
    let rate = arguments.rate.as_deref();
    let sla = rate.map(|rate| arguments::parse_profile(rate, burst));
    let sla = sla.transpose().map_err(ApiError::usage)?;
    let filter = arguments.filter.as_deref().map(arguments::parse_match);
    let filter = filter.transpose().map_err(ApiError::usage)?;
    Ok((sla.map(|sla| sla.profile()), filter))
}

/// Chooses the interface, and the traffic there.
fn choose_watched(
    run_dir: &RunDir,
    arguments: &Arguments,
    (profile, filter): (Option<Profile>, Option<Match>),
    chain: Option<&MeasuredChain>,
) -> Result<Watched, ApiError> {
    let config = |profile, filter| ConformConfig {
        profile,
        tolerance_ns: u64::try_from(arguments.tolerance.as_nanos()).unwrap_or(u64::MAX),
        filter,
        most_packets: arguments.count,
    };
    let direction = arguments.direction.clone();
    if let Some(chain) = chain {
        let (interface, netns) = chain.egress()?;
        let traffic = arguments.filter.clone().or_else(|| chain.traffic());
        let filter = traffic.as_deref().map(arguments::parse_match);
        let filter = filter.transpose().map_err(ApiError::failed)?;
        return Ok(Watched {
            interface,
            netns: Some(netns),
            direction,
            filter: traffic,
            config: config(chain.profile()?, filter),
        });
    }
    let host = match &arguments.host {
        Some(name) => Some(find_netns(run_dir, name)?),
        None => None,
    };
    Ok(Watched {
        interface: arguments.interface.clone().unwrap_or_default(),
        netns: arguments.netns.clone().or(host),
        direction,
        filter: arguments.filter.clone(),
        config: config(profile.unwrap_or_default(), filter),
    })
}

/// Returns the network namespace of a host.
fn find_netns(run_dir: &RunDir, host: &str) -> Result<String, ApiError> {
    let client = Client::connect(run_dir)?.ok_or_else(|| {
        ApiError::failed(
            "no agent runs, so there is no host: `myelin up FILE` deploys a chain and its hosts, or a topology",
        )
    })?;
    client.host(host).map(|host| host.netns)
}

fn no_packet_error(watched: &Watched) -> String {
    let matching = watched
        .filter
        .as_ref()
        .map_or_else(String::new, |filter| format!(" that matches `{filter}`"));
    format!(
        "the monitor saw no packet{matching} at {} ({}), so there is no verdict: check --direction and --match, \
         and check that no XDP program takes the packets first",
        watched.interface, watched.direction
    )
}

/// Attaches the monitor in the current namespace, waits for an end condition, reads the result.
fn watch_interface(arguments: &Arguments, watched: &Watched) -> Result<ConformReport, ApiError> {
    let config = &watched.config;
    let mut netlink = Netlink::open().map_err(ApiError::failed)?;
    let netns = watched.netns.as_deref();
    let link = find_link(&mut netlink, &watched.interface, netns)?;
    let interrupted = interrupt::catch_signals()?;
    let direction = match watched.direction.as_str() {
        "out" => TrafficDirection::Out,
        _ => TrafficDirection::In,
    };
    let monitor =
        Conformance::attach(&link.name, link.index, direction, config).map_err(ApiError::failed)?;
    // Scripts wait for this line before they send packets.
    eprintln!(
        "watching {} ({}){}",
        link.name,
        watched.direction,
        if arguments.duration.is_none() && arguments.count.is_none() {
            "; Ctrl-C ends the measurement"
        } else {
            ""
        }
    );
    let progress =
        (std::io::stderr().is_terminal() && !arguments.follow).then(ProgressBar::new_spinner);
    let started = Instant::now();
    let mut last_progress = started;
    let mut previous = monitor.read().map_err(ApiError::failed)?;
    let measured = loop {
        let measured = monitor.read().map_err(ApiError::failed)?;
        let elapsed = started.elapsed();
        let is_complete = interrupted.load(Ordering::Relaxed)
            || arguments.duration.is_some_and(|limit| elapsed >= limit)
            || config
                .most_packets
                .is_some_and(|limit| measured.packets >= limit);
        if is_complete {
            break measured;
        }
        if last_progress.elapsed() >= PROGRESS_INTERVAL {
            let report = Report::new(watched, &measured, None);
            let line = report.format_progress(elapsed, &previous, last_progress.elapsed());
            match &progress {
                Some(bar) => bar.set_message(line),
                None if arguments.follow && arguments.json => output::print_json_line(&report)?,
                None if arguments.follow => println!("{line}"),
                None => {}
            }
            (last_progress, previous) = (Instant::now(), measured);
            // The kernel detaches the monitor from a removed interface.
            if netlink.link_by_index(link.index).is_err() {
                eprintln!("interface {} was removed", link.name);
                break previous;
            }
        }
        let remaining = arguments
            .duration
            .map(|limit| limit.saturating_sub(elapsed));
        std::thread::sleep(remaining.map_or(CHECK_INTERVAL, |time| time.min(CHECK_INTERVAL)));
    };
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    Ok(measured)
}

/// Finds the interface. The error suggests a similar name.
fn find_link(netlink: &mut Netlink, name: &str, netns: Option<&str>) -> Result<Link, ApiError> {
    let links = netlink.links().map_err(ApiError::failed)?;
    let names: Vec<_> = links.iter().map(|link| link.name.clone()).collect();
    if let Some(link) = links.into_iter().find(|link| link.name == name) {
        return Ok(link);
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let suggestion =
        nearest(name, &names).map_or_else(String::new, |near| format!(" did you mean `{near}`?"));
    let (place, list) = netns.map_or_else(
        || (String::new(), "ip link".to_owned()),
        |netns| {
            (
                format!(" in network namespace `{netns}`"),
                format!("ip -n {netns} link"),
            )
        },
    );
    Err(ApiError::usage(format!(
        "no interface `{name}`{place}:{suggestion} `{list}` lists the interfaces; --netns and --host \
         choose another namespace"
    )))
}
