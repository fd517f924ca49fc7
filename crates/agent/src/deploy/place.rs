//! Step 4 of the road: the ports that a chain lies between, and the end hosts behind them where the file names no interfaces.

use myelin_spec::ServiceChain;

use crate::api::ApiError;
use crate::deploy::about;
use crate::deploy::plan::{Location, Planned};
use crate::node::Parts;
use crate::node::chains::Place;
use crate::node::circuit::Circuit;
use crate::node::ports::Bound;
use crate::node::workers::Key;

/// A chain with its ports.
pub(crate) struct Placed {
    pub(crate) planned: Planned,
    pub(crate) place: Place,
    /// Claims on the queues of its ports, until its worker has sockets there.
    pub(crate) claims: Vec<Bound>,
}

/// Places a chain, or finds the place that it has.
///
/// # Errors
/// What the system refused; then nothing that was made is left.
pub(crate) fn place(parts: &Parts, planned: Planned) -> Result<Placed, ApiError> {
    let found = || {
        let place = match &planned.running {
            Some(running) => running.place.clone(),
            None => make(parts, &planned.chain, &planned.location)?,
        };
        let claims = claim(&planned, &place)?;
        Ok((place, claims))
    };
    let (place, claims) = found().map_err(|error| about(&planned.chain, error))?;
    Ok(Placed {
        planned,
        place,
        claims,
    })
}

/// Claims the queues of the ports for the worker of a chain, as planned.
fn claim(planned: &Planned, place: &Place) -> Result<Vec<Bound>, ApiError> {
    if !planned.plan.binds_ports() || planned.chain.is_over_dpdk() {
        return Ok(Vec::new());
    }
    let key = Key::of(&planned.chain, &place.made_by);
    let (_, ingress, egress) = place.ports()?;
    let ports = [ingress, egress].into_iter();
    ports.map(|port| Bound::claim(port.clone(), &key)).collect()
}

/// Makes the circuit of a chain, or takes a share of the one that its reverse has.
///
/// # Errors
/// The system refused, or the circuit has gone.
fn make(parts: &Parts, chain: &ServiceChain, location: &Location) -> Result<Place, ApiError> {
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
