//! Step 4 of the road: the ports that a chain lies between, and the end hosts behind them where the file names no interfaces.

use myelin_spec::ServiceChain;

use crate::api::ApiError;
use crate::deploy::plan::Location;
use crate::node::Parts;
use crate::node::chains::Place;
use crate::node::circuit::Circuit;

/// Makes the circuit of a chain, or takes a share of the one that its reverse has.
///
/// # Errors
/// The system refused, or the circuit has gone.
pub(crate) fn place(
    parts: &Parts,
    chain: &ServiceChain,
    location: &Location,
) -> Result<Place, ApiError> {
    let Location { made_by, is_turned } = location;
    if let (Some(ports), true) = (&chain.ports, chain.is_over_dpdk()) {
        return Ok(Place {
            circuit: None,
            is_turned: false,
            made_by: made_by.clone(),
            ingress: ports.ingress.clone(),
            egress: ports.egress.clone(),
            hosts: Vec::new(),
        });
    }
    let circuit = parts.circuits.acquire(made_by, || {
        if *made_by == chain.name {
            let ports = (&*parts.plane, &parts.ports);
            return Circuit::create(chain, &parts.run_id, ports, &parts.journal);
        }
        Err(ApiError::failed(format!(
            "{}: chain `{}`: the interfaces of chain `{made_by}` are gone: try again",
            chain.places.reverse, chain.name
        )))
    })?;
    let hosts = circuit.host_infos();
    let mut place = Place {
        circuit: Some(circuit),
        is_turned: *is_turned,
        made_by: made_by.clone(),
        ingress: String::new(),
        egress: String::new(),
        hosts,
    };
    let (_, ingress, egress) = place.ports()?;
    (place.ingress, place.egress) = (ingress.name.clone(), egress.name.clone());
    Ok(place)
}
