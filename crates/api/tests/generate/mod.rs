//! Generates `crates/api/schema.json` from the Rust types.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Value, json};

use myelin_api::{
    AgentInfo, ApiError, CalibrateRequest, ChainStatus, ChainUp, ContainerLimitsRequest,
    ContainerLog, ContainerName, ContainerRequest, ContainerStatus, CoreStatus, DownReply, Event,
    ExecEvent, ExecRequest, ExecSignal, FunctionFlows, HostStatus, ImageRequest, ImageStatus,
    Lease, LinkRequest, NodeEvent, PREFIX, ProbeRequest, RunRequest, STOP, SlaEvent, SlaSecond,
    SpanStatus, TextContents, TextRequest, TopologyLink, TopologyStatus, UpRequest, VERSION,
    VERSION_HEADER,
};

/// Generates the schema: the endpoints and their types.
pub(crate) fn generate_schema() -> Value {
    let types = &mut SchemaSettings::draft2020_12().into_generator();
    let endpoints = [
        describe_answer::<AgentInfo>(types, "GET", "/agent"),
        describe_answer::<Vec<ChainStatus>>(types, "GET", "/chains"),
        describe_request::<UpRequest>(types, describe_answer::<Vec<ChainUp>>, "/chains"),
        describe_answer::<DownReply>(types, "DELETE", "/chains"),
        describe_answer::<DownReply>(types, "DELETE", "/chains/{chain}"),
        describe_answer::<Vec<SlaEvent>>(types, "GET", "/events?after={serial}"),
        describe_answer::<Vec<SlaEvent>>(types, "GET", "/events/{chain}?after={serial}"),
        describe_answer::<Vec<NodeEvent>>(types, "GET", "/node-events?after={serial}"),
        describe_answer::<Vec<SlaSecond>>(types, "GET", "/seconds/{chain}?last={count}"),
        describe_answer::<Vec<CoreStatus>>(types, "GET", "/cores"),
        describe_answer::<Vec<FunctionFlows>>(types, "GET", "/flows"),
        describe_answer::<Vec<FunctionFlows>>(types, "GET", "/flows/{chain}"),
        describe_answer::<Vec<TopologyStatus>>(types, "GET", "/topologies"),
        describe_answer::<Vec<SpanStatus>>(types, "GET", "/spans"),
        describe_answer::<HostStatus>(types, "GET", "/hosts/{host}"),
        describe_request::<LinkRequest>(types, describe_answer::<TopologyLink>, "/links"),
        describe_request::<TextRequest>(types, describe_answer::<TextContents>, "/texts"),
        describe_stream::<Lease>(types, "POST", "/leases"),
        describe_answer::<DownReply>(types, "DELETE", "/leases/{lease}"),
        describe_exec(types),
        describe_answer::<Vec<ContainerStatus>>(types, "GET", "/containers"),
        describe_request::<ContainerRequest>(
            types,
            describe_answer::<ContainerStatus>,
            "/containers",
        ),
        describe_request::<ContainerLimitsRequest>(
            types,
            describe_answer::<ContainerStatus>,
            "/containers/limits",
        ),
        describe_request::<ContainerName>(
            types,
            describe_answer::<ContainerLog>,
            "/containers/log",
        ),
        describe_request::<ContainerName>(
            types,
            describe_answer::<DownReply>,
            "/containers/remove",
        ),
        describe_answer::<Vec<ImageStatus>>(types, "GET", "/images"),
        describe_request::<ImageRequest>(types, describe_answer::<ImageStatus>, "/images"),
        describe_answer::<DownReply>(types, "DELETE", "/images/{image}"),
        describe_request::<ProbeRequest>(types, describe_stream::<Event>, "/probe"),
        describe_request::<RunRequest>(types, describe_stream::<Event>, "/run"),
        describe_request::<CalibrateRequest>(types, describe_stream::<Event>, "/calibrate"),
        json!({ "method": "DELETE", "path": STOP }),
    ];
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("API of the Myelin agent, version {VERSION}"),
        "description": format!(
            "JSON over HTTP/1.1 on a Unix stream socket. Each request has the header `{VERSION_HEADER}: {VERSION}`."
        ),
        "endpoints": endpoints,
        "error": types.subschema_for::<ApiError>(),
        "$defs": types.take_definitions(true),
    })
}

/// Describes the endpoint that becomes a stream in both directions.
fn describe_exec(types: &mut SchemaGenerator) -> Value {
    let mut endpoint =
        describe_request::<ExecRequest>(types, describe_stream::<ExecEvent>, "/exec");
    endpoint["input"] = types.subschema_for::<ExecSignal>().to_value();
    endpoint
}

/// Describes an endpoint with a single answer.
fn describe_answer<A: JsonSchema>(types: &mut SchemaGenerator, method: &str, path: &str) -> Value {
    let answer = types.subschema_for::<A>();
    json!({ "method": method, "path": format!("{PREFIX}{path}"), "answer": answer })
}

/// Describes an endpoint that answers with a stream of lines.
fn describe_stream<L: JsonSchema>(types: &mut SchemaGenerator, method: &str, path: &str) -> Value {
    let line = types.subschema_for::<L>();
    json!({ "method": method, "path": format!("{PREFIX}{path}"), "lines": line })
}

/// Describes an endpoint with a request body; `answer` describes its answer.
fn describe_request<R: JsonSchema>(
    types: &mut SchemaGenerator,
    answer: fn(&mut SchemaGenerator, &str, &str) -> Value,
    path: &str,
) -> Value {
    let mut endpoint = answer(types, "POST", path);
    endpoint["request"] = types.subschema_for::<R>().to_value();
    endpoint
}
