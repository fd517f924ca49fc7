//! Step 4: opens the ports of a chain, and makes end hosts where the file names no interfaces.

use myelin_spec::ServiceChain;

use crate::api::ApiError;
use crate::deploy::plan::{CircuitUse, PlannedChain};
use crate::deploy::with_chain_name;
use crate::node::Parts;
use crate::node::chains::ChainPorts;
use crate::node::circuit::{Circuit, key_of_circuit};
use crate::node::entrance::Entrance;
use crate::node::ports::QueueClaim;
use crate::node::workers::Key;

/// A planned chain with its ports.
pub(crate) struct PlacedChain {
    pub(crate) planned: PlannedChain,
    pub(crate) ports: ChainPorts,
    /// The way to the front door; `None` between DPDK devices.
    pub(crate) entrance: Option<Entrance>,
    pub(crate) spi: u32,
    /// Claims on the port queues, until the worker has its sockets there.
    pub(crate) claims: Vec<QueueClaim>,
}

/// Opens the ports of a new chain, and of a part with another path; other running chains keep their
/// ports.
///
/// # Errors
/// A system error. The step has then removed everything that it made.
pub(crate) fn place(parts: &Parts, planned: PlannedChain) -> Result<PlacedChain, ApiError> {
    let placed = || {
        let ports = match &planned.running {
            Some(running) if running.generation().ports.made_by == planned.circuit.made_by => {
                running.generation().ports.clone()
            }
            _ => make_ports(parts, &planned.chain, &planned.circuit)?,
        };
        let spi = match &planned.running {
            Some(running) => running.spi,
            None => parts.take_spi(),
        };
        let entrance = match ports.kernel_ports() {
            Ok((_, ingress, _)) => Some(Entrance::open(parts, ingress, &planned.plan, spi)?),
            Err(_) => None,
        };
        let claims = claim_queues(&planned, &ports, entrance.as_ref())?;
        Ok((ports, entrance, spi, claims))
    };
    let placed = placed().map_err(|error| with_chain_name(&planned.chain, error))?;
    let (ports, entrance, spi, claims) = placed;
    Ok(PlacedChain {
        planned,
        ports,
        entrance,
        spi,
        claims,
    })
}

/// Claims the port queues for the chain's worker, as planned.
fn claim_queues(
    planned: &PlannedChain,
    ports: &ChainPorts,
    entrance: Option<&Entrance>,
) -> Result<Vec<QueueClaim>, ApiError> {
    let worker = planned.plan.worker.as_ref();
    let worker = worker.filter(|_| planned.plan.binds_ports());
    let (Some(entrance), Some(worker)) = (entrance, worker) else {
        return Ok(Vec::new());
    };
    let key = Key::of(worker);
    let (_, _, egress) = ports.kernel_ports()?;
    let ports = [&entrance.door, egress].into_iter();
    ports
        .map(|port| QueueClaim::claim(port.clone(), &key))
        .collect()
}

/// Makes the circuit of a chain, or shares the circuit of its reverse chain.
///
/// # Errors
/// A system error, or the circuit no longer exists.
fn make_ports(
    parts: &Parts,
    chain: &ServiceChain,
    circuit: &CircuitUse,
) -> Result<ChainPorts, ApiError> {
    let CircuitUse {
        made_by,
        is_reversed,
    } = circuit;
    if let (Some(ports), true) = (&chain.ports, chain.is_driven_by_worker()) {
        return Ok(ChainPorts {
            circuit: None,
            is_reversed: false,
            made_by: made_by.clone(),
            ingress: ports.ingress.clone(),
            egress: ports.egress.clone(),
            hosts: Vec::new(),
        });
    }
    let circuit = parts.circuits.acquire(made_by, || {
        if *made_by == key_of_circuit(chain) {
            return Circuit::create(chain, parts);
        }
        Err(ApiError::failed(format!(
            "{}: chain `{}`: the interfaces of chain `{made_by}` no longer exist: try again",
            chain.places.reverse, chain.name
        )))
    })?;
    let hosts = circuit.host_infos();
    let mut chain_ports = ChainPorts {
        circuit: Some(circuit),
        is_reversed: *is_reversed,
        made_by: made_by.clone(),
        ingress: String::new(),
        egress: String::new(),
        hosts,
    };
    let (circuit, ingress, egress) = chain_ports.kernel_ports()?;
    (chain_ports.ingress, chain_ports.egress) = match (&chain.ports, &circuit.wires) {
        (Some(ports), Some(_)) => (ports.ingress.clone(), ports.egress.clone()),
        _ => (ingress.name.clone(), egress.name.clone()),
    };
    Ok(chain_ports)
}
