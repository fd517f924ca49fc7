//! Chains of each mapping and of each kind of port.

use std::collections::BTreeMap;

use myelin_api::ChainSource;

use crate::common::Myelin;
use crate::common::chains::{KERNEL, MIXED};
use crate::common::port_pair::PortPair;

/// A chain that the tests deploy.
pub(crate) struct ChainFixture {
    /// Name of the chain in the file.
    pub(crate) name: &'static str,
    /// Text of the chain file.
    pub(crate) text: String,
    /// Interfaces of `spec.ports`, if the chain has any.
    pub(crate) ports: Option<PortPair>,
}

impl ChainFixture {
    fn new(name: &'static str, text: impl Into<String>) -> Self {
        Self {
            name,
            text: text.into(),
            ports: None,
        }
    }
}

fn format_chain(name: &str, spec: &str) -> String {
    format!(
        "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @{name} }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}
{spec}
"
    )
}

pub(crate) fn kernel_chain() -> ChainFixture {
    ChainFixture::new("k", KERNEL)
}

pub(crate) fn mixed_chain() -> ChainFixture {
    ChainFixture::new("m", MIXED)
}

/// Hosts with and without limits, two switches, and each kind of link.
pub(crate) fn topology() -> ChainFixture {
    let text = "
apiVersion: myelin.dev/v1alpha1
kind: Topology
metadata: { name: @net }
spec:
  hosts: [ h1, { name: h2, cpu: 500m, cpus: 0 } ]
  switches: [ s1, s2 ]
  links: [ { ends: [ h1, s1 ] }, { ends: [ s1, s2 ] }, { ends: [ s2, h2 ] }, { ends: [ h1, h2 ] } ]
";
    ChainFixture::new("net", text)
}

pub(crate) fn pipeline_chain() -> ChainFixture {
    let spec = "  mapping: pipeline
  functions:
    - { name: one, kind: forward, space: user }
    - { name: two, kind: xor, space: user, config: { key: 0x21 } }";
    ChainFixture::new("p", format_chain("p", spec))
}

pub(crate) fn distributed_chain() -> ChainFixture {
    let spec = "  mapping: distributed
  functions:
    - { name: one, kind: xor, space: kernel, config: { key: 0x21 } }
    - { name: two, kind: xor, space: user, config: { key: 0x21 } }";
    ChainFixture::new("s", format_chain("s", spec))
}

/// Returns a black box. The agent regards the program as started after `startup`.
pub(crate) fn black_box(
    name: &'static str,
    port: u16,
    program: &str,
    startup: &str,
) -> ChainFixture {
    let spec = format!(
        "  functions:
    - {{ name: box, kind: external, config: {{ startup: {startup}, command: [ {program} ] }} }}"
    );
    let text = format_chain(name, &spec).replace("9000", &port.to_string());
    ChainFixture::new(name, text)
}

/// Formats the argument of a `sleep` that only this test process starts.
pub(crate) fn unique_sleep(seconds: u32) -> String {
    format!("{seconds}.{}", std::process::id())
}

/// Returns a chain on DPDK devices that receive no packet.
pub(crate) fn chain_on_dpdk_devices() -> ChainFixture {
    let spec = "  functions: [ { name: one, kind: forward } ]
  ports: { ingress: { dpdk: \"net_null0,no-rx=1\" }, egress: { dpdk: \"net_null1,no-rx=1\" } }
  worker: { idle: sleep }";
    ChainFixture::new("d", format_chain("d", spec))
}

/// Returns a chain on existing interfaces, with a shaper at egress.
pub(crate) fn chain_on_interfaces() -> ChainFixture {
    let ports = PortPair::new();
    let text = KERNEL.replace(
        "  sla: { latency: 50ms }",
        "  hook: xdp
  sla: { rate: 100pps, burst: 4, shaper: { queue: 64 } }",
    );
    ChainFixture {
        text: ports.add_to(&text),
        ports: Some(ports),
        ..ChainFixture::new("k", "")
    }
}

/// Returns a chain file as a client sends it, without the checks of a client.
pub(crate) fn chain_source(myelin: &Myelin, text: &str) -> ChainSource {
    let path = myelin.write_file(text);
    ChainSource {
        name: path.display().to_string(),
        text: std::fs::read_to_string(&path).expect("the chain file is readable"),
        files: BTreeMap::default(),
    }
}

/// Lists the files of this instance that DPDK environments, black boxes and containers made.
pub(crate) fn list_leftover_files(myelin: &Myelin) -> Vec<String> {
    let id = myelin_api::RunDir::resolve(Some(&myelin.run_dir())).id();
    let list_names = |directory: &std::path::Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        names.map(|name| name.to_string_lossy().into_owned())
    };
    let environments = list_names("/var/run/dpdk".as_ref()).filter(|name| name.contains(&id));
    let run_dir = myelin.run_dir();
    let allowed = ["agent.lock", "agent.log"];
    let files = list_names(&run_dir).filter(|name| !allowed.contains(&&**name));
    environments.chain(files.collect::<Vec<_>>()).collect()
}
