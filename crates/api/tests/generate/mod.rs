//! Generates `crates/api/schema.json` from the Rust types.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Value, json};

use myelin_api::{
    AgentInfo, ApiError, CalibrateRequest, ChainStatus, ChainUp, DownReply, Event, FunctionFlows,
    PREFIX, ProbeRequest, RunRequest, STOP, SlaEvent, SlaSecond, UpRequest, VERSION,
    VERSION_HEADER,
};

/// The schema: the endpoints and their types.
pub(crate) fn schema() -> Value {
    let types = &mut SchemaSettings::draft2020_12().into_generator();
    let endpoints = [
        with_answer::<AgentInfo>(types, "GET", "/agent"),
        with_answer::<Vec<ChainStatus>>(types, "GET", "/chains"),
        with_request::<UpRequest>(types, with_answer::<Vec<ChainUp>>, "/chains"),
        with_answer::<DownReply>(types, "DELETE", "/chains"),
        with_answer::<DownReply>(types, "DELETE", "/chains/{chain}"),
        with_answer::<Vec<SlaEvent>>(types, "GET", "/events?after={serial}"),
        with_answer::<Vec<SlaEvent>>(types, "GET", "/events/{chain}?after={serial}"),
        with_answer::<Vec<SlaSecond>>(types, "GET", "/seconds/{chain}?last={count}"),
        with_answer::<Vec<FunctionFlows>>(types, "GET", "/flows"),
        with_answer::<Vec<FunctionFlows>>(types, "GET", "/flows/{chain}"),
        with_request::<ProbeRequest>(types, with_stream, "/probe"),
        with_request::<RunRequest>(types, with_stream, "/run"),
        with_request::<CalibrateRequest>(types, with_stream, "/calibrate"),
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

fn with_answer<A: JsonSchema>(types: &mut SchemaGenerator, method: &str, path: &str) -> Value {
    let answer = types.subschema_for::<A>();
    json!({ "method": method, "path": format!("{PREFIX}{path}"), "answer": answer })
}

fn with_stream(types: &mut SchemaGenerator, method: &str, path: &str) -> Value {
    let line = types.subschema_for::<Event>();
    json!({ "method": method, "path": format!("{PREFIX}{path}"), "lines": line })
}

fn with_request<R: JsonSchema>(
    types: &mut SchemaGenerator,
    answer: fn(&mut SchemaGenerator, &str, &str) -> Value,
    path: &str,
) -> Value {
    let mut endpoint = answer(types, "POST", path);
    endpoint["request"] = types.subschema_for::<R>().to_value();
    endpoint
}
