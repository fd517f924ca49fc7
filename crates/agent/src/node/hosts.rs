//! Finds emulated hosts by name: the end hosts of chains, and the hosts of topologies.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use myelin_linux::cgroup::Limits as GroupLimits;
use myelin_linux::netns::Netns;
use myelin_linux::process::command_in;
use myelin_linux::session::{self, User};
use myelin_spec::Limits;

use crate::api::{ApiError, ExecRequest, HostStatus};
use crate::control::actuator;
use crate::node::Node;
use crate::node::node_agents::programs_of;
use crate::node::topologies::RunningTopology;
use crate::pool::lock;

/// An emulated host.
#[derive(Clone)]
pub(crate) struct FoundHost {
    /// The chain or topology.
    pub(crate) object: String,
    /// The owner of a chain; topologies have none.
    pub(crate) owner: Option<String>,
    /// The host's name in the object.
    pub(crate) name: String,
    /// The name of the network namespace.
    pub(crate) netns: String,
    /// The control group of a host with limits.
    pub(crate) group: Option<String>,
    /// The cores of the host's programs; empty: all cores.
    cpus: Vec<u32>,
    pub(crate) limits: Limits,
    /// The host's topology. It cannot be removed as long as this reference exists.
    pub(crate) topology: Option<Arc<RunningTopology>>,
}

/// Finds a host by name: `client`, `server`, the name of a topology's host, or one of them after
/// `OBJECT/`.
///
/// # Errors
/// No object has such a host, or several objects have such a host.
pub(crate) fn find(node: &Node, name: &str) -> Result<FoundHost, ApiError> {
    let (object, host) = match name.split_once('/') {
        Some((object, host)) => (Some(object), host),
        None => (None, name),
    };
    let mut found = of_chains(node, object, host);
    // A chain and its reverse share their hosts.
    found.dedup_by(|host, previous| host.netns == previous.netns);
    found.extend(of_topologies(node, object, host));
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(ApiError::usage(format!(
            "no host `{name}`: the hosts are those of topologies, and `client` and `server` of a chain that runs \
             without `spec.ports` (`myelin ps` lists them)"
        ))),
        _ => Err(ApiError::usage(format!(
            "host `{name}` exists in several chains and topologies; write one of these names: {}",
            found
                .iter()
                .map(FoundHost::path)
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

fn of_chains(node: &Node, object: Option<&str>, host: &str) -> Vec<FoundHost> {
    let mut found = Vec::new();
    for running in node.chains.all() {
        if object.is_some_and(|object| running.name != object) {
            continue;
        }
        let generation = running.generation();
        let hosts = generation
            .ports
            .hosts
            .iter()
            .filter(|info| info.role == host);
        found.extend(hosts.map(|info| FoundHost {
            object: running.name.clone(),
            owner: Some(generation.chain.owner().to_owned()),
            name: info.role.clone(),
            netns: info.netns.clone(),
            group: None,
            cpus: Vec::new(),
            limits: Limits::default(),
            topology: None,
        }));
    }
    found
}

fn of_topologies(node: &Node, object: Option<&str>, host: &str) -> Vec<FoundHost> {
    let mut found = Vec::new();
    for topology in node.topologies.all() {
        if object.is_some_and(|object| topology.name != object) {
            continue;
        }
        let network = lock(&topology.network);
        let made = network.hosts().find(|made| made.name == host);
        let Some((spec, made)) = network.topology().host(host).zip(made) else {
            continue;
        };
        found.push(FoundHost {
            object: topology.name.clone(),
            owner: None,
            name: made.name,
            netns: made.netns,
            group: made.cgroup,
            cpus: spec.cpus.clone(),
            limits: spec.limits,
            topology: Some(Arc::clone(&topology)),
        });
    }
    found
}

impl FoundHost {
    /// A host `h1` that does not exist.
    #[cfg(test)]
    pub(crate) fn for_test(object: &str, owner: Option<&str>) -> Self {
        Self {
            object: object.to_owned(),
            owner: owner.map(str::to_owned),
            name: "h1".to_owned(),
            netns: String::new(),
            group: None,
            cpus: Vec::new(),
            limits: Limits::default(),
            topology: None,
        }
    }

    /// The host's full name, `OBJECT/HOST`.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.object, self.name)
    }

    /// Describes the host.
    pub(crate) fn status(&self) -> HostStatus {
        HostStatus {
            object: self.object.clone(),
            host: self.name.clone(),
            netns: self.netns.clone(),
        }
    }

    /// Makes the control group of the host's programs below the group of a host with limits, unless
    /// it exists. In cgroup v2 a group with processes has no subgroups, so programs and containers
    /// lie in groups side by side.
    ///
    /// # Errors
    /// A system error.
    pub(crate) fn make_programs_group(
        &self,
    ) -> Result<Option<myelin_linux::cgroup::Cgroup>, ApiError> {
        let Some(group) = &self.group else {
            return Ok(None);
        };
        let programs = actuator::create_group(&programs_of(group), &GroupLimits::default());
        let mut programs = programs.map_err(ApiError::failed)?;
        if !self.cpus.is_empty() {
            actuator::set_cores(&mut programs, &self.cpus).map_err(ApiError::failed)?;
        }
        Ok(Some(programs))
    }

    /// Prepares a program on this host, as the leader of a session of its own.
    ///
    /// # Errors
    /// No command, or the host's namespace or group cannot be used.
    pub(crate) fn prepare(
        &self,
        request: &ExecRequest,
        user: Option<&User>,
    ) -> Result<Command, ApiError> {
        let Some((program, arguments)) = request.command.split_first() else {
            let host = &request.host;
            return Err(ApiError::usage(format!(
                "host `{host}`: no program is given: write the program and its arguments"
            )));
        };
        let netns = Netns::open(&self.netns).map_err(ApiError::failed)?;
        let mut command = command_in(&netns, program).map_err(ApiError::failed)?;
        if let Some(programs) = self.make_programs_group()? {
            programs.join(&mut command).map_err(ApiError::failed)?;
        }
        command.args(arguments).env_clear().envs(&request.env);
        let directory = Path::new(&request.directory);
        session::lead(&mut command, directory, user, request.is_terminal)
            .map_err(ApiError::failed)?;
        Ok(command)
    }
}
