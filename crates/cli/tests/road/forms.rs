//! A chain of each mapping.

use std::collections::BTreeMap;

use myelin_api::ChainSource;

use crate::common::Myelin;
use crate::common::chains::{KERNEL, MIXED};
use crate::common::port_pair::PortPair;

/// A chain to deploy.
pub(crate) struct Form {
    /// Its name in the file.
    pub(crate) name: &'static str,
    pub(crate) text: String,
    /// The interfaces that it lies between, where it makes none.
    pub(crate) ports: Option<PortPair>,
}

impl Form {
    fn new(name: &'static str, text: impl Into<String>) -> Self {
        Self {
            name,
            text: text.into(),
            ports: None,
        }
    }
}

fn chain(name: &str, spec: &str) -> String {
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

pub(crate) fn kernel_only() -> Form {
    Form::new("k", KERNEL)
}

pub(crate) fn mixed() -> Form {
    Form::new("m", MIXED)
}

pub(crate) fn pipeline() -> Form {
    let spec = "  mapping: pipeline
  functions:
    - { name: one, kind: forward, space: user }
    - { name: two, kind: xor, space: user, config: { key: 0x21 } }";
    Form::new("p", chain("p", spec))
}

pub(crate) fn distributed() -> Form {
    let spec = "  mapping: distributed
  functions:
    - { name: one, kind: xor, space: kernel, config: { key: 0x21 } }
    - { name: two, kind: xor, space: user, config: { key: 0x21 } }";
    Form::new("s", chain("s", spec))
}

/// A black box that is up after `startup`.
pub(crate) fn black_box(name: &'static str, port: u16, program: &str, startup: &str) -> Form {
    let spec = format!(
        "  functions:
    - {{ name: box, kind: external, config: {{ startup: {startup}, command: [ {program} ] }} }}"
    );
    let text = chain(name, &spec).replace("9000", &port.to_string());
    Form::new(name, text)
}

/// Devices that send nothing.
pub(crate) fn devices() -> Form {
    let spec = "  functions: [ { name: one, kind: forward } ]
  ports: { ingress: { dpdk: \"net_null0,no-rx=1\" }, egress: { dpdk: \"net_null1,no-rx=1\" } }
  worker: { idle: sleep }";
    Form::new("d", chain("d", spec))
}

/// Between interfaces that are somebody else's, shaped where it leaves.
pub(crate) fn between_interfaces() -> Form {
    let ports = PortPair::new();
    let text = KERNEL.replace(
        "  sla: { latency: 50ms }",
        "  hook: xdp
  sla: { rate: 100pps, burst: 4, shaper: { queue: 64 } }",
    );
    Form {
        text: ports.add_to(&text),
        ports: Some(ports),
        ..Form::new("k", "")
    }
}

/// A file as a client sends it, without what a client checks.
pub(crate) fn source(myelin: &Myelin, text: &str) -> ChainSource {
    let path = myelin.file(text);
    ChainSource {
        name: path.display().to_string(),
        text: std::fs::read_to_string(&path).expect("a file"),
        files: BTreeMap::default(),
    }
}

/// The files of the environments of this instance's workers over DPDK, and files of black boxes and
/// containers.
pub(crate) fn left_files(myelin: &Myelin) -> Vec<String> {
    let id = myelin_api::RunDir::resolve(Some(&myelin.run_dir())).id();
    let names = |directory: &std::path::Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        names.map(|name| name.to_string_lossy().into_owned())
    };
    let environments = names("/var/run/dpdk".as_ref()).filter(|name| name.contains(&id));
    let run_dir = myelin.run_dir();
    let kept = ["agent.lock", "agent.log"];
    let files = names(&run_dir).filter(|name| !kept.contains(&&**name));
    environments.chain(files.collect::<Vec<_>>()).collect()
}
