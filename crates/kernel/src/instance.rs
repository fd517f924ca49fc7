//! Loads one kernel function of one chain. Each function is its own program, and the program's
//! read-only data names the next hop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use myelin_spec::{FunctionConfig, FunctionInstance, RouterConfig};

use crate::hop::Hop;
use crate::map::fds;
use crate::object::{FIREWALL, FLOW_TRACKER, LOAD_BALANCER, MONITOR, NAT, Program, ROUTER};
use crate::reports::REPORT_MAPS;
use crate::state::{FunctionState, FunctionStates};
use crate::{Error, Hook, firewall, flows, load_balancer, nat, router};

/// A loaded function. Empty the function's slot before you drop this value.
#[derive(Debug)]
pub(crate) struct LoadedFunction {
    pub(crate) fd: OwnedFd,
    /// Keeps the maps for the next generation.
    pub(crate) state: Option<Arc<FunctionState>>,
}

/// Converts a program without a state.
impl From<OwnedFd> for LoadedFunction {
    fn from(fd: OwnedFd) -> Self {
        Self { fd, state: None }
    }
}

/// Loads the function at `position`. `maps` are the common maps; `states` holds the maps of the
/// function.
pub(crate) fn load(
    hook: Hook,
    position: u8,
    function: &FunctionInstance,
    hop: Hop,
    maps: &[(&'static str, BorrowedFd<'_>)],
    states: &FunctionStates,
) -> Result<LoadedFunction, Error> {
    let mut state = None;
    let fd = match &function.config {
        FunctionConfig::Monitor(config) => {
            let key = function.state.as_ref();
            let own = states.get_or_create(key, &function.config, &flows::monitor_maps(*config))?;
            let fd = MONITOR.load(hook, bytemuck::bytes_of(&hop), &join_maps(maps, own.maps()));
            state = Some(own);
            fd
        }
        FunctionConfig::FlowTracker(config) => {
            let shape = FunctionConfig::FlowTracker(config.state_config());
            let own = states.get_or_create(
                function.state.as_ref(),
                &shape,
                &flows::tracker_maps(*config),
            )?;
            let instance = flows::TrackerInstance::new(hop, config);
            let maps = join_maps(maps, own.maps());
            let fd = FLOW_TRACKER.load(hook, bytemuck::bytes_of(&instance), &maps);
            state = Some(own);
            fd
        }
        FunctionConfig::Nat(config) => {
            let own = nat::get_or_create_state(states, function, config)?;
            let maps = join_maps(maps, own.maps());
            let instance = nat::NatInstance::new(hop, config, function.side);
            let fd = NAT.load(hook, bytemuck::bytes_of(&instance), &maps);
            state = Some(own);
            fd
        }
        FunctionConfig::Firewall(config) => {
            let tables = firewall::FirewallTables::new(config)
                .map_err(|cause| Error::function("firewall", position, cause.to_string()))?;
            let map = tables.create_map()?;
            let maps = join_maps(maps, [("tables", map.as_fd())]);
            FIREWALL.load(hook, bytemuck::bytes_of(&tables.instance(hop)), &maps)
        }
        FunctionConfig::LoadBalancer(config) => {
            let flows = load_balancer::get_or_create_state(states, function, config)?;
            let own = load_balancer::create_maps(config)?;
            let maps = join_maps(maps, fds(&own).chain(flows.maps()));
            let instance = load_balancer::LoadBalancerInstance::new(hop, config, function.side);
            let fd = LOAD_BALANCER.load(hook, bytemuck::bytes_of(&instance), &maps);
            state = Some(flows);
            fd
        }
        FunctionConfig::Router(config) => {
            let reports = states.get_or_create(None, &function.config, &REPORT_MAPS)?;
            let maps = join_maps(maps, reports.maps());
            let fd = load_router(hook, position, config, hop, &maps);
            state = Some(reports);
            fd
        }
        FunctionConfig::External(_) => Err(Error::function(
            "function",
            position,
            "a black box is a separate program, not a kernel function; write `mapping: distributed`, or remove \
             the function from the chain",
        )),
        config => {
            let kind = config.kind().name;
            match (Program::of_kind(kind), config.kernel_constants()) {
                (Some(program), Some(constants)) => {
                    let mut instance = bytemuck::bytes_of(&hop).to_vec();
                    instance.extend_from_slice(bytemuck::cast_slice(&constants));
                    program.load(hook, &instance, maps)
                }
                _ => Err(Error::function(
                    "function",
                    position,
                    format!(
                        "`{kind}` exists in user space only; write `space: user`, or remove the function from the chain"
                    ),
                )),
            }
        }
    }?;
    Ok(LoadedFunction { fd, state })
}

fn load_router(
    hook: Hook,
    position: u8,
    config: &RouterConfig,
    hop: Hop,
    maps: &[(&'static str, BorrowedFd<'_>)],
) -> Result<OwnedFd, Error> {
    let tables = router::RouterTables::new(config)
        .map_err(|cause| Error::function("router", position, cause.to_string()))?;
    let own = tables.create_maps()?;
    let instance = tables.instance(hop, config);
    let maps = join_maps(maps, fds(&own));
    ROUTER.load(hook, bytemuck::bytes_of(&instance), &maps)
}

/// Returns the common maps and the maps of one function, in one list.
fn join_maps<'m>(
    maps: &[(&'static str, BorrowedFd<'m>)],
    own: impl IntoIterator<Item = (&'static str, BorrowedFd<'m>)>,
) -> Vec<(&'static str, BorrowedFd<'m>)> {
    maps.iter().copied().chain(own).collect()
}
