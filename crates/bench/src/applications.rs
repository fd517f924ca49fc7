//! TCP applications of the distribution that load a path: iperf3, nginx, wrk.
//!
//! The servers run in the server's network namespace for the time of a deployment. A client runs in
//! the client's for one measurement. All of them end with the thread that measures, even if it is
//! killed.

use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use myelin_linux::netns::Netns;
use myelin_linux::process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::installed::find_packaged;
use crate::network::EndHost;
use crate::owned_child::{OwnedChild, read_all};
use crate::scratch::ScratchDirectory;
use crate::{Error, Session};

/// Bytes of a large and of a small file.
const LARGE_FILE: usize = 100_000;
const SMALL_FILE: usize = 6;
/// Connections of the HTTP client.
const CONNECTIONS: u16 = 32;
const IPERF_PORT: u16 = 5201;
const HTTP_PORT: u16 = 80;
/// Bytes of the first transfer of a subject, before its rate is known.
const FIRST_TRANSFER: f64 = 16e6;
/// Least and most bytes of a transfer.
const TRANSFERS: (f64, f64) = (1e6, 16e9);
/// Longest time until a server listens.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Longest time of a client above its window.
const CLIENT_LIMIT: Duration = Duration::from_secs(20);
/// The HTTP client's own limit, seconds. It is interrupted at the end of the window.
const HTTP_CLIENT_LIMIT: &str = "20s";
/// Attempts until a request is answered, each with twice the window of the last one. A busy machine
/// starts a client late, and a slow path answers late.
const ATTEMPTS: u32 = 5;
const POLL: Duration = Duration::from_millis(2);

/// What clients ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    /// One TCP stream.
    Bulk,
    LargeFiles,
    SmallFiles,
    /// A connection for each small file.
    Connections,
}

impl Workload {
    pub(crate) const ALL: [Self; 4] = [
        Self::Bulk,
        Self::LargeFiles,
        Self::SmallFiles,
        Self::Connections,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bulk => "TCP bulk",
            Self::LargeFiles => "100 kB files",
            Self::SmallFiles => "6 B files",
            Self::Connections => "connections",
        }
    }

    /// Checks that its programs are installed. The error is the reason for the skipped row.
    pub(crate) fn check_installed(self) -> Result<(), Error> {
        if self == Self::Bulk {
            return find_packaged("iperf3", "iperf3").map(drop);
        }
        find_packaged("nginx", "nginx-light")?;
        find_packaged("wrk", "wrk").map(drop)
    }
}

/// The figures of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// Bits or requests a second.
    pub(crate) rate: f64,
    /// 99th percentile of the time of a request; NaN for bulk.
    pub(crate) p99_us: f64,
}

/// The servers of a deployment. A drop ends them.
#[derive(Debug)]
pub(crate) struct Servers {
    _processes: Vec<OwnedChild>,
    _files: ScratchDirectory,
}

impl Servers {
    /// Starts the servers of these workloads and waits until they listen.
    pub(crate) fn start(host: &EndHost, workloads: &[Workload]) -> Result<Self, Error> {
        let files = ScratchDirectory::new()?;
        let (mut processes, mut ports) = (Vec::new(), Vec::new());
        if workloads.contains(&Workload::Bulk) {
            let iperf = find_packaged("iperf3", "iperf3")?;
            let mut command = process::command_in(&host.netns, iperf)?;
            command.args(["--server", "--bind", &host.address.to_string()]);
            processes.push(OwnedChild::start_daemon(command)?);
            ports.push(IPERF_PORT);
        }
        if workloads.iter().any(|one| *one != Workload::Bulk) {
            write_site(&files, host.address)
                .map_err(|cause| Error::system("write the files of nginx", cause))?;
            let nginx = find_packaged("nginx", "nginx-light")?;
            let mut command = process::command_in(&host.netns, nginx)?;
            command.args(["-e", "stderr", "-c"]);
            command.arg(files.path().join("nginx.conf"));
            processes.push(OwnedChild::start_daemon(command)?);
            ports.push(HTTP_PORT);
        }
        wait_for_ports(&host.netns, &ports, &mut processes)?;
        Ok(Self {
            _processes: processes,
            _files: files,
        })
    }
}

/// Writes the configuration of nginx, with one process and all its files in the directory.
fn write_site(files: &ScratchDirectory, address: IpAddr) -> io::Result<()> {
    let root = files.path();
    let at = |name: &str| root.join(name).display().to_string();
    let kept = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {};\n", at(what)))
        .concat();
    let text = format!(
        "daemon off; master_process off; pid {pid}; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; keepalive_requests 1000000000;
{kept} server {{ listen {address}:{HTTP_PORT}; root {site}; }} }}
",
        pid = at("pid"),
        site = root.display(),
    );
    std::fs::write(root.join("nginx.conf"), text)?;
    std::fs::write(root.join("large"), vec![b'x'; LARGE_FILE])?;
    std::fs::write(root.join("small"), [b'x'; SMALL_FILE])
}

/// Waits until a process of the namespace listens at each port.
fn wait_for_ports(netns: &Netns, ports: &[u16], processes: &mut [OwnedChild]) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        let table = netns.enter(|| std::fs::read_to_string("/proc/thread-self/net/tcp"))?;
        let table = table.map_err(|cause| Error::system("list sockets", cause))?;
        if ports.iter().all(|port| is_listening(&table, *port)) {
            return Ok(());
        }
        let ended = processes.iter_mut().find_map(OwnedChild::end_reason);
        let late = (start.elapsed() > START_LIMIT)
            .then(|| format!("they do not listen after {START_LIMIT:?}"));
        if let Some(reason) = ended.or(late) {
            return Err(Error::Peer {
                peer: "a server of iperf3 or nginx".to_owned(),
                reason,
            });
        }
        std::thread::sleep(POLL);
    }
}

/// Whether `/proc/net/tcp` has a socket in state LISTEN at the port.
fn is_listening(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let at_port = fields.next().is_some_and(|local| local.ends_with(&end));
        at_port && fields.nth(1) == Some("0A")
    })
}

/// Loads a path for about `window`. `expected` is the rate of bulk in bits a second, if it is
/// known; it decides the length of the transfer.
pub(crate) fn load(
    workload: Workload,
    (client, server): (&EndHost, IpAddr),
    window: Duration,
    expected: Option<f64>,
    session: Session<'_>,
) -> Result<Load, Error> {
    if workload != Workload::Bulk {
        return request_files(workload, &client.netns, server, window, session);
    }
    let bytes = expected.map_or(FIRST_TRANSFER, |rate| rate / 8.0 * window.as_secs_f64());
    let iperf = find_packaged("iperf3", "iperf3")?;
    let mut command = process::command_in(&client.netns, iperf)?;
    command.args(["--json", "--client", &server.to_string()]);
    command.arg(format!(
        "--bytes={}",
        bytes.clamp(TRANSFERS.0, TRANSFERS.1).round()
    ));
    let run = Client::start(command)?;
    let (output, _) = run.finish(CLIENT_LIMIT, session)?;
    let rate = parse_iperf(&output).map_err(|reason| load_error("iperf3", &reason))?;
    Ok(Load {
        rate,
        p99_us: f64::NAN,
    })
}

/// Requests files, one after another on each connection, until the end of the window. The window
/// doubles until a request is answered.
fn request_files(
    workload: Workload,
    client: &Netns,
    server: IpAddr,
    window: Duration,
    session: Session<'_>,
) -> Result<Load, Error> {
    let wrk = find_packaged("wrk", "wrk")?;
    let file = match workload {
        Workload::LargeFiles => "large",
        _ => "small",
    };
    let mut last = (String::new(), String::new());
    for attempt in 0..ATTEMPTS {
        let mut command = process::command_in(client, &wrk)?;
        command.args(["--threads=1", "--latency", "--duration", HTTP_CLIENT_LIMIT]);
        command.arg(format!("--connections={CONNECTIONS}"));
        if workload == Workload::Connections {
            command.args(["--header", "Connection: close"]);
        }
        command.arg(format!("http://{server}:{HTTP_PORT}/{file}"));
        let run = Client::start(command)?;
        pause(window * 2_u32.pow(attempt), session)?;
        run.interrupt();
        last = run.finish(CLIENT_LIMIT, session)?;
        let load = parse_wrk(&last.0).map_err(|reason| load_error("wrk", &reason))?;
        if let Some(load) = load {
            return Ok(load);
        }
    }
    let (output, messages) = last;
    let reason = format!("no request was answered: {output}{messages}");
    Err(load_error("wrk", &reason))
}

fn load_error(program: &str, reason: &str) -> Error {
    Error::system(
        format!("load the path with {program}"),
        io::Error::other(reason.to_owned()),
    )
}

/// A running client.
struct Client {
    child: OwnedChild,
    output: std::fs::File,
}

impl Client {
    fn start(command: Command) -> Result<Self, Error> {
        let (child, output) = OwnedChild::start_printing(command)?;
        Ok(Self { child, output })
    }

    fn interrupt(&self) {
        // It may have ended.
        let _ = kill(
            Pid::from_raw(self.child.pid().cast_signed()),
            Signal::SIGINT,
        );
    }

    /// Waits for its end. Returns its output and its messages.
    fn finish(mut self, limit: Duration, session: Session<'_>) -> Result<(String, String), Error> {
        let start = Instant::now();
        loop {
            let ended = self.child.process.try_wait();
            let ended = ended.map_err(|cause| Error::system("wait for a client", cause))?;
            if ended.is_some() {
                break;
            }
            session.check()?;
            if start.elapsed() > limit {
                let reason = format!("it did not end within {limit:?}");
                return Err(load_error("a client", &reason));
            }
            std::thread::sleep(POLL);
        }
        let output =
            read_all(&self.output).map_err(|cause| Error::system("read a client", cause))?;
        Ok((output, self.child.last_messages()))
    }
}

/// Sleeps, but not after the caller cancels.
fn pause(duration: Duration, session: Session<'_>) -> Result<(), Error> {
    let start = Instant::now();
    while let Some(rest) = duration.checked_sub(start.elapsed()) {
        session.check()?;
        std::thread::sleep(rest.min(Duration::from_millis(50)));
    }
    Ok(())
}

/// The receiver's rate in the output of `iperf3 --json`, bits a second.
fn parse_iperf(output: &str) -> Result<f64, String> {
    let report: Value = serde_json::from_str(output)
        .map_err(|error| format!("its output is no JSON ({error}): {output}"))?;
    if let Some(error) = report["error"].as_str() {
        return Err(error.to_owned());
    }
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64();
    rate.filter(|rate| *rate > 0.0)
        .ok_or_else(|| "its output has no rate".to_owned())
}

/// The figures in the output of `wrk --latency`; `None` if no request was answered.
fn parse_wrk(output: &str) -> Result<Option<Load>, String> {
    let value = |label: &str| {
        let line = output
            .lines()
            .find_map(|line| line.trim().strip_prefix(label));
        line.map(str::trim)
    };
    if let Some(refused) = value("Non-2xx or 3xx responses:") {
        return Err(format!("the server refused {refused} requests"));
    }
    let rate = value("Requests/sec:").and_then(|rate| rate.parse().ok());
    Ok(match (rate, value("99%").and_then(parse_us)) {
        (Some(rate), Some(p99_us)) if rate > 0.0 => Some(Load { rate, p99_us }),
        _ => None,
    })
}

/// A time of wrk, such as `433.00us`.
fn parse_us(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let factor = match &text[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact by construction")]
mod tests {
    use super::*;

    #[test]
    fn figures_of_clients_are_found() {
        let output = "  Latency Distribution\n     50%  253.00us\n     99%    6.25ms\n\
                      Requests/sec: 102951.72\nTransfer/sec:     23.66MB\n";
        let load = parse_wrk(output).unwrap().unwrap();
        assert_eq!((load.rate, load.p99_us), (102_951.72, 6250.0));
        let refused = format!("{output}  Non-2xx or 3xx responses: 7\n");
        assert!(parse_wrk(&refused).unwrap_err().contains("refused 7"));
        let unanswered = output.replace("102951.72", "0.00");
        assert_eq!(parse_wrk(&unanswered), Ok(None));
        assert_eq!(parse_wrk(""), Ok(None));
        assert_eq!(parse_us("1.50s"), Some(1.5e6));
        assert_eq!(parse_us("3m"), None);

        let iperf = r#"{"end":{"sum_received":{"bits_per_second":2.5e9}}}"#;
        assert_eq!(parse_iperf(iperf), Ok(2.5e9));
        let failed = parse_iperf(r#"{"error":"unable to connect"}"#);
        assert_eq!(failed.unwrap_err(), "unable to connect");
        assert!(parse_iperf("{}").is_err() && parse_iperf("").is_err());
    }

    #[test]
    fn only_listening_sockets_count() {
        let table = "  sl  local_address rem_address   st\n\
                     0: 0200000A:0050 00000000:0000 0A 0\n\
                     1: 0200000A:1451 0100000A:9999 01 0\n";
        assert!(is_listening(table, 80));
        assert!(!is_listening(table, 5201) && !is_listening(table, 81));
    }
}
