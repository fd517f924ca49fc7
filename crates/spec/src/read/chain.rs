//! Reads a `ServiceChain`.

use super::field::{Field, Fields};
use super::{function, isolation, matching, name, ports, sla, worker};
use crate::catalogue::{ConfigKey, DURATION, TEXT, ValueType};
use crate::chain::{
    Classify, DEFAULT_NAMESPACE, Hook, Mapping, OnFailure, Places, ServiceChain, Sla, WorkerSpec,
};
use crate::error::{Place, Report};
use crate::isolation::Isolation;
use crate::keys::keys;
use crate::units::parse_duration_ns;

keys! {
    /// Keys of `metadata`.
    METADATA_KEYS {
        /// its name, unique on the node: a-z, 0-9 and `-`, at most 32 characters
        "name" = TEXT.required();
        /// its owner
        "namespace" = TEXT.or(DEFAULT_NAMESPACE);
        /// words for others; nothing here reads them
        "labels" = ConfigKey::new(ValueType::AnyMap);
        /// words for others; nothing here reads them
        "annotations" = ConfigKey::new(ValueType::AnyMap);
    }
}

keys! {
    /// Keys of `spec`.
    KEYS {
        /// the traffic that the chain takes; an empty mapping takes all
        "match" = ConfigKey::new(ValueType::Map(matching::KEYS)).required();
        /// the functions in order
        "functions" = ConfigKey::new(ValueType::Functions).required();
        /// what the chain is owed
        "sla" = ConfigKey::new(ValueType::Map(sla::KEYS));
        /// how its functions are laid out
        "mapping" = Mapping::KEY.or("auto");
        /// what each function's process stands in, with mapping distributed
        "isolation" = Isolation::KEY.or("process");
        /// how the space of a function is chosen
        "classify" = Classify::KEY.or("cost");
        /// where its packets are taken
        "hook" = Hook::KEY.or("auto");
        /// the interfaces that it lies between; without them it gets end hosts of its own
        "ports" = ConfigKey::new(ValueType::Map(ports::KEYS));
        /// the chain of this file that takes the traffic of the other direction
        "reverse" = TEXT;
        /// what happens to its packets when its functions cannot process them; left out: drop where a function guards something, else pass
        "onFailure" = OnFailure::KEY;
        /// how the worker of its user functions runs
        "worker" = ConfigKey::new(ValueType::Map(WorkerSpec::KEYS));
        /// the longest that a core of this machine may take to wake while the chain is up
        "cpuLatency" = DURATION;
    }
}

/// Reads the chain of one document; `None` when anything in it is wrong.
pub(super) fn read(top: &Fields<'_>, report: &mut Report<'_>) -> Option<ServiceChain> {
    let before = report.count();
    let metadata = metadata(top, report);
    let spec = top.required(
        report,
        "spec",
        "what the chain does",
        "{ match: {}, functions: [ ... ] }",
    )?;
    let fields = spec.map(report, KEYS)?;

    let matches = fields
        .required(
            report,
            "match",
            "the traffic that the chain takes (`match: {}` takes all)",
            "{ destination: 10.0.0.2, protocol: udp }",
        )
        .and_then(|field| matching::read(&field, report));
    let isolation = fields.get("isolation");
    let of_chain = fields.of(KEYS, "isolation", report);
    let functions = fields
        .required(
            report,
            "functions",
            "the functions in order",
            "[ { name: pass-on, kind: forward } ]",
        )
        .and_then(|field| function::read(&field, of_chain, report));
    let place = |key: &str, report: &Report<'_>| {
        report.place(fields.get(key).map_or(fields.span, |field| field.span))
    };
    let places = Places {
        chain: report.place(top.span),
        name: metadata
            .as_ref()
            .map_or(report.place(top.span), |metadata| metadata.place.clone()),
        matches: place("match", report),
        mapping: place("mapping", report),
        hook: place("hook", report),
        ports: place("ports", report),
        reverse: place("reverse", report),
        sla: place("sla", report),
        worker: place("worker", report),
    };
    let sla = fields
        .get("sla")
        .and_then(|field| sla::read(&field, report));
    let mapping = fields.of(KEYS, "mapping", report);
    let classify = fields.of(KEYS, "classify", report);
    let hook = fields.of(KEYS, "hook", report);
    let on_failure = fields.of(KEYS, "onFailure", report);
    let between = fields
        .get("ports")
        .and_then(|field| ports::read(&field, report));
    let reverse = fields
        .get("reverse")
        .and_then(|field| name::label(&field, report));
    let worker = fields
        .get("worker")
        .and_then(|field| worker::read(&field, report));
    ports::check(&fields, between.as_ref(), worker.as_ref(), report);
    let cpu_latency_ns = fields
        .get("cpuLatency")
        .and_then(|field| cpu_latency_ns(&field, report));

    let contains = isolation.filter(|_| of_chain == Isolation::Container);
    isolation::check(
        functions.as_deref().unwrap_or_default(),
        contains.as_ref(),
        mapping,
        between.as_ref(),
        report,
    );

    let Metadata {
        name, namespace, ..
    } = metadata?;
    let chain = ServiceChain {
        name,
        namespace,
        matches: matches?,
        functions: functions?,
        sla: sla.unwrap_or_else(Sla::default),
        mapping,
        classify,
        hook,
        ports: between,
        reverse,
        on_failure,
        worker: worker.unwrap_or_else(WorkerSpec::default),
        cpu_latency_ns,
        places,
    };
    (report.count() == before).then_some(chain)
}

/// Zero is a limit like others: a core then polls for work.
fn cpu_latency_ns(field: &Field<'_>, report: &mut Report<'_>) -> Option<u64> {
    let text = field.text(report, "a number with a unit", "write for example 0us")?;
    let value = parse_duration_ns(text).map_err(|error| field.unit_fault(report, error));
    value.ok()
}

struct Metadata {
    name: String,
    namespace: String,
    /// Where the name stands.
    place: Place,
}

/// Reads name and owner. Labels and annotations may stand there, as in any Kubernetes object; nothing here reads them.
fn metadata(top: &Fields<'_>, report: &mut Report<'_>) -> Option<Metadata> {
    let field = top.required(
        report,
        "metadata",
        "the name of the chain",
        "{ name: tactile }",
    )?;
    let fields = field.map(report, METADATA_KEYS)?;
    for key in ["labels", "annotations"] {
        if let Some(field) = fields.get(key) {
            field.any_map(report, "a mapping of words to words");
        }
    }
    let name = name::required(&fields, "name", "tactile", report);
    let place = report.place(fields.get("name").map_or(fields.span, |field| field.span));
    let namespace = match fields.get("namespace") {
        Some(field) => name::label(&field, report)?,
        None => DEFAULT_NAMESPACE.to_owned(),
    };
    Some(Metadata {
        name: name?,
        namespace,
        place,
    })
}
