//! Reads a `ServiceChain`.

use myelin_packet::Match;

use super::nodes;
use super::{function, isolation, ports, sla};
use crate::chain::{
    ChainLocations, Classify, DEFAULT_NAMESPACE, Hook, Idle, Mapping, OnFailure, ServiceChain,
    WorkerSpec,
};
use crate::error::FileLocation;
use crate::isolation::Isolation;
use crate::keys::field::Fields;
use crate::keys::{ConfigKey, DURATION, TEXT, ValueType, keys, matching, name};
use crate::part;
use crate::placement::PlacementAlgorithm;
use crate::sla::Sla;
use crate::units;

keys! {
    /// Keys of `metadata`.
    METADATA_KEYS {
        /// The name of the object, unique on the node: at most 32 of a-z, 0-9 and `-`.
        "name" = TEXT.required();
        /// The owner of the object. Chains of different owners share no worker.
        "namespace" = TEXT.with_default(DEFAULT_NAMESPACE);
        /// Labels for other tools. Myelin does not read them.
        "labels" = ConfigKey::new(ValueType::AnyMap);
        /// Annotations for other tools. Myelin does not read them.
        "annotations" = ConfigKey::new(ValueType::AnyMap);
    }
}

keys! {
    /// Keys of `spec`.
    KEYS {
        /// The traffic of the chain. An absent key matches every packet; `match: {}` matches all.
        /// Required, except in a part with `from`.
        "match" = ConfigKey::new(ValueType::Map(matching::KEYS));
        /// The functions in order: 1 to 32.
        "functions" = ConfigKey::new(ValueType::Functions(function::KEYS)).required();
        /// The contract of the chain. Without it, Myelin guarantees nothing and polices nothing.
        "sla" = ConfigKey::new(ValueType::Map(sla::KEYS));
        /// The processes of the functions: compact (one worker, run to completion), pipeline (a
        /// process per user function), distributed (a sandbox per function), or auto (least
        /// predicted delay).
        "mapping" = Mapping::KEY.with_default("auto");
        /// The sandbox of each function with `mapping: distributed`: a process or an OCI container.
        "isolation" = Isolation::KEY.with_default("process");
        /// The rule that chooses kernel or user space: calvin by the kind's class, cost by the
        /// least predicted cost of the chain.
        "classify" = Classify::KEY.with_default("cost");
        /// Where the front door takes packets: xdp in the driver, tcx at traffic control, auto at
        /// the cheaper of both.
        "hook" = Hook::KEY.with_default("auto");
        /// The two interfaces of the chain. Without them, Myelin makes two end hosts, client and
        /// server.
        "ports" = ConfigKey::new(ValueType::Map(ports::KEYS));
        /// The algorithm that places functions without `node` on the nodes of the ports' topology:
        /// delay by the least worst case, optimal by the least of all placements (small chains), lb
        /// by load, lc with few crossings, lblc by load and then fewest crossings, round-robin.
        /// Default: delay, if a function has `node` or `antiAffinity`; else the chain is on one
        /// node.
        "placement" = PlacementAlgorithm::KEY;
        /// The place of a part in a chain over several nodes, and its neighbours.
        "part" = part::PART;
        /// The chain of this file for the other direction.
        "reverse" = TEXT;
        /// The action on packets that the functions cannot process. Default: drop if a kind guards
        /// the chain, else pass.
        "onFailure" = OnFailure::KEY;
        /// The worker of the functions in user space.
        "worker" = ConfigKey::new(ValueType::Map(WorkerSpec::KEYS));
        /// The longest wake-up time of the machine's cores while the chain is up. 0us keeps them
        /// awake.
        "cpuLatency" = DURATION;
    }
}

/// Reads the chain of one document. Returns `None` after a fault.
pub(super) fn read(top: &Fields<'_>) -> Option<ServiceChain> {
    let faults = top.faults;
    let before = faults.count();
    let metadata = metadata(top);
    let example = "{ match: {}, functions: [ ... ] }";
    let fields = top
        .required(
            "spec",
            "traffic, functions and contract of the chain",
            example,
        )?
        .mapping(KEYS)?;
    let isolation = fields.read(KEYS, "isolation");
    let example = "[ { name: pass-on, kind: forward } ]";
    let functions = fields.required("functions", "the functions in order", example);
    let part = fields.get("part");
    let is_reply = part.is_some_and(|part| part.node.get("reverse").is_some());
    let functions = functions.and_then(|field| function::read(&field, isolation, is_reply));
    let mapping = fields.read(KEYS, "mapping");
    let worker = worker(&fields);
    let own = functions.as_deref().unwrap_or_default();
    let part = part::read(&fields, own, &worker);
    let matches: Match = fields.read::<Option<_>>(KEYS, "match").unwrap_or_default();
    let is_part = fields.get("part").is_some();
    let ports = match &part {
        Some(part) => ports::of_part(&fields, part),
        None if is_part => None,
        None => fields
            .get("ports")
            .and_then(|field| ports::read(&field, &matches)),
    };
    // Of a faulty part, it is unknown whether it needs a match.
    if !is_part || part.as_ref().is_some_and(|part| part.from.is_none()) {
        fields.required(
            "match",
            "the traffic that the chain takes (`match: {}` takes all)",
            "{ destination: 10.0.0.2, protocol: udp }",
        );
    }
    ports::check(&fields, ports.as_ref(), &worker);
    nodes::check(&fields, ports.as_ref());
    let container = fields
        .get("isolation")
        .filter(|_| isolation == Isolation::Container);
    isolation::check(own, container.as_ref(), mapping, ports.as_ref(), faults);
    // Zero is valid: idle cores then poll.
    let duration_ns = |text: &str| units::DURATION.parse(text);
    let cpu_latency_ns = fields
        .get("cpuLatency")
        .and_then(|field| field.unit(duration_ns, "a number with a unit", "0us"));
    // Read everything before the first return, to report all faults.
    let sla: Sla = fields.read(KEYS, "sla");
    let places = places(top, &fields, metadata.as_ref());
    let names = metadata.map(|metadata| (metadata.name, metadata.namespace));
    let (name, namespace) = names.unwrap_or_default();
    let chain = ServiceChain {
        name,
        namespace,
        sla: sla.for_protocol(matches.protocol),
        matches,
        functions: functions.unwrap_or_default(),
        mapping,
        classify: fields.read(KEYS, "classify"),
        hook: fields.read(KEYS, "hook"),
        ports,
        placement: fields.read(KEYS, "placement"),
        part,
        reverse: fields.read(KEYS, "reverse"),
        on_failure: fields.read(KEYS, "onFailure"),
        worker,
        cpu_latency_ns,
        places,
    };
    (faults.count() == before).then_some(chain)
}

fn worker(spec: &Fields<'_>) -> WorkerSpec {
    let Some(fields) = spec
        .get("worker")
        .and_then(|field| field.mapping(WorkerSpec::KEYS))
    else {
        return WorkerSpec::default();
    };
    let worker = WorkerSpec::from_fields(&fields);
    if let Some(spin) = fields.get("spin").filter(|_| worker.idle != Idle::Adaptive) {
        spin.fault(
            format!("`spin` has no effect with `idle: {}`", worker.idle),
            "`spin` only with `idle: adaptive`",
            "remove `spin`, or write `idle: adaptive`",
        );
    }
    if let Some(ring) = fields.get("ring").filter(|_| worker.super_packets) {
        ring.fault(
            "the sockets of super-packets have no ring",
            "no `ring` with `superPackets: true`",
            "remove `ring`, or `superPackets`",
        );
    }
    worker
}

fn places(top: &Fields<'_>, spec: &Fields<'_>, metadata: Option<&Metadata>) -> ChainLocations {
    let chain = top.faults.place(top.span);
    let place = |key| spec.place_of(key);
    ChainLocations {
        name: metadata.map_or_else(|| chain.clone(), |metadata| metadata.place.clone()),
        chain,
        matches: place("match"),
        mapping: place("mapping"),
        hook: place("hook"),
        ports: place("ports"),
        part: place("part"),
        reverse: place("reverse"),
        sla: place("sla"),
        worker: place("worker"),
    }
}

/// Name and owner of an object.
pub(super) struct Metadata {
    pub(super) name: String,
    namespace: String,
    /// The location of the name.
    pub(super) place: FileLocation,
}

/// Reads name and owner. Ignores labels and annotations, which Kubernetes objects have.
pub(super) fn metadata(top: &Fields<'_>) -> Option<Metadata> {
    let field = top.required("metadata", "the name of the object", "{ name: tactile }")?;
    let fields = field.mapping(METADATA_KEYS)?;
    for field in ["labels", "annotations"]
        .iter()
        .filter_map(|key| fields.get(key))
    {
        field.any_mapping("a mapping of words to words");
    }
    let namespace = fields.read(METADATA_KEYS, "namespace");
    Some(Metadata {
        name: name::read_required(&fields, "name", "tactile")?,
        namespace,
        place: fields.place_of("name"),
    })
}
