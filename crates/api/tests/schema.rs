//! Compares the API's schema with the types.

mod generate;
mod validate;

use myelin_api::{
    AgentInfo, ApiError, BlackBoxStatus, CalibrateRequest, ChainSource, ChainState, ChainStatus,
    ChainUp, Change, CoreStatus, DownReply, Endpoint, Event, FloodRequest, FlowStatus,
    FunctionFlows, HopStatus, HostInfo, Lease, NamedFile, PacketAccount, PartStatus, ProbeOptions,
    ProbeRequest, ReportReply, RingStatus, RunRequest, SCHEMA, SandboxStatus, ShaperStatus,
    SlaCause, SlaContract, SlaEvent, SlaSecond, SlaSojourn, SlaState, SlaStatus, SlaTerm,
    SlaWindow, SojournStatus, TaskStatus, TextContents, TextRequest, UpRequest, VERSION,
    WorkerStatus,
};
use myelin_metrics::chain::{Flood, Hop};
use myelin_metrics::envelope::Claim;
use myelin_metrics::{ChainReport, Counts, Distribution, Matching, Mode, ProbeResult};
use myelin_planner::Costs;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The schema that `myelin schema api` prints.
fn schema() -> Value {
    serde_json::from_str(SCHEMA).expect("the schema is JSON")
}

/// `WRITE_SCHEMA=1 cargo test -p myelin-api` writes the file after a change of a type.
#[test]
fn the_schema_matches_the_types() {
    let generated = serde_json::to_string_pretty(&generate::generate_schema()).unwrap() + "\n";
    if std::env::var_os("WRITE_SCHEMA").is_some() {
        std::fs::write(
            concat!(env!("CARGO_MANIFEST_DIR"), "/schema.json"),
            &generated,
        )
        .unwrap();
    }
    let difference = generated
        .lines()
        .zip(SCHEMA.lines())
        .find(|(generated, stored)| generated != stored);
    assert!(
        generated == SCHEMA,
        "crates/api/schema.json does not match the types (first different line, of the types and of the file: {difference:?}): \
         `WRITE_SCHEMA=1 cargo test -p myelin-api` writes the file"
    );
}

#[test]
fn the_schema_is_valid_and_has_every_endpoint() {
    let schema = schema();
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        validate::assert_known_keywords(&schema, definition);
        assert!(
            !name.ends_with(|last: char| last.is_ascii_digit()),
            "{name}: schemars adds a digit if two types have the same name"
        );
    }
    validate::assert_known_keywords(&schema, &schema["error"]);
    let endpoints = schema["endpoints"].as_array().unwrap();
    assert_eq!(endpoints.len(), 32);
    for endpoint in endpoints {
        for key in ["request", "answer", "lines", "input"] {
            if let Some(part) = endpoint.get(key) {
                validate::assert_known_keywords(&schema, part);
            }
        }
    }
    assert!(schema["title"].as_str().unwrap().ends_with(VERSION));
}

fn core() -> CoreStatus {
    CoreStatus {
        core: 1,
        policy: "unis".into(),
        mechanism: Some("flip".into()),
        switches: 2,
        switch_us: Some(3.5),
        takeovers: 0,
        decisions: 3,
        decide_us: 1.5,
        tasks: vec![TaskStatus {
            worker: "466449a1-21586-0".into(),
            alive: true,
            turns: 1,
            run_us: 12.0,
            wait_us: 1.5,
            empty_reads: 4,
        }],
    }
}

/// Validates a value against its endpoint's schema, and parses it back.
fn check<T: Serialize + DeserializeOwned>(endpoint: &str, key: &str, sent: &T) -> Value {
    let schema = schema();
    let (method, path) = endpoint.split_once(' ').unwrap();
    let endpoints = schema["endpoints"].as_array().unwrap();
    let description = endpoints
        .iter()
        .find(|candidate| candidate["method"] == method && candidate["path"] == path)
        .unwrap_or_else(|| panic!("no endpoint {endpoint}"));
    let json = serde_json::to_value(sent).unwrap();
    if let Some(fault) = validate::find_fault(&schema, &description[key], &json) {
        panic!("{endpoint}, {key}: {fault}");
    }
    let back: T = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(&back).unwrap(), json, "{endpoint}");
    json
}

fn source() -> ChainSource {
    let text = "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: { name: c }\nspec:\n  \
                match: { protocol: udp, destination: 10.0.0.2/32 }\n  functions: [ { name: f, kind: forward }, \
                { name: x, kind: xor, config: { key: 7 }, space: user } ]\n  \
                sla: { rate: 2kpps, latency: 50ms, loss: 1% }\n";
    ChainSource {
        name: "c.yaml".into(),
        text: text.into(),
        files: [
            ("text".to_owned(), b"text".to_vec().into()),
            ("bytes".to_owned(), vec![0xff].into()),
        ]
        .into(),
    }
}

fn host() -> HostInfo {
    HostInfo {
        role: "client".into(),
        netns: "myelin-c-client".into(),
        address: "10.0.0.1".into(),
        interface: "eth0".into(),
        link: "my0".into(),
    }
}

/// A chain after `up`, with a real plan.
fn up() -> ChainUp {
    let chains = source().parse().unwrap();
    let machine = myelin_planner::Machine::with_end_hosts(2);
    let plan = myelin_planner::plan(&chains[0], &Costs::default(), &machine).unwrap();
    assert!(plan.bound.is_some() && plan.shaper.is_some(), "{plan:?}");
    ChainUp {
        chain: "c".into(),
        owner: "default".into(),
        change: Change::Changed,
        spi: 7,
        generation: 1,
        plan,
        ingress: "my0".into(),
        egress: "my1".into(),
        hosts: vec![host()],
        rendering_ms: 1.5,
        exchange_ms: Some(0.5),
        previous_packets_out: Some(9),
    }
}

fn window() -> SlaWindow {
    SlaWindow {
        lost_in: [("f".to_owned(), 3)].into(),
        bytes_out: Some(1),
        loss_percent: Some(0.5),
        sojourn: Some(SlaSojourn::default()),
        worker_cores: Some(0.25),
        out_bps: Some(8.0),
        ..SlaWindow::default()
    }
}

fn event() -> SlaEvent {
    SlaEvent {
        serial: 1,
        chain: "c".into(),
        start: "2026-01-01T00:00:00.000Z".into(),
        end: Some("2026-01-01T00:00:01.000Z".into()),
        seconds: 1,
        terms: vec![SlaTerm::Core, SlaTerm::Latency, SlaTerm::Loss],
        hop: "f".into(),
        cause: SlaCause::Neighbour,
        evidence: vec!["it".into()],
        lost: 3,
        worst_latency_us: Some(1.0),
        worst_loss_percent: None,
    }
}

#[expect(clippy::too_many_lines, reason = "every field once")]
fn status() -> ChainStatus {
    let worker = WorkerStatus {
        pid: 7,
        restarts: 1,
        resident_kib: 100,
        cpu_s: 0.5,
    };
    let hop = HopStatus {
        position: 0,
        name: "f".into(),
        kind: "external".into(),
        space: "user".into(),
        counted: myelin_api::HopCounters {
            bytes_in: Some(3),
            held: 1,
            ..Default::default()
        },
        cost_ns: Some(12.5),
        sandbox: Some(SandboxStatus {
            isolation: myelin_spec::Isolation::Container,
            cpu_limit_cores: Some(0.5),
            memory_limit_bytes: Some(1 << 20),
            cpu_s: 0.1,
            memory_bytes: 1,
            throttled_periods: 2,
            throttled_s: 0.01,
            oom_kills: 1,
            container: Some("box".into()),
        }),
        counters: [("replayed".to_owned(), 3)].into(),
        black_box: Some(BlackBoxStatus {
            pid: Some(8),
            restarts: 0,
            last_end: Some("exit status 1".into()),
            log: "box.log".into(),
            resident_kib: 1,
            cpu_s: 0.5,
            packets_out: 1,
            packets_back: 2,
        }),
    };
    let sla = SlaStatus {
        chain: "c".into(),
        contract: SlaContract {
            rate_pps: Some(2000),
            percentile: 99.0,
            ..SlaContract::default()
        },
        state: SlaState::NoContract,
        violated_s: 0,
        judged_s: 1,
        violated_now: false,
        lost_cores: vec![1],
        second: window(),
        minute: window(),
        life: window(),
        under_way: 1,
        last_event: Some(event()),
    };
    ChainStatus {
        chain: "c".into(),
        owner: "default".into(),
        spi: 7,
        generation: 1,
        state: ChainState::Active,
        best_effort: true,
        bound_ns: Some(1),
        plan: Box::new(up().plan),
        mapping: "compact".into(),
        hook: "xdp".into(),
        ingress: "my0".into(),
        egress: "my1".into(),
        port_faults: vec!["interface my1 (index 7) is down".into()],
        packets_in: 1,
        bytes_in: 64,
        policed: 0,
        policed_bytes: 0,
        dropped_fragments: 0,
        missed: 0,
        part: Some(PartStatus::default()),
        packets_out: 1,
        drops: 0,
        account: PacketAccount {
            dropped: [("f".to_owned(), 1)].into(),
            lost: [("ring".to_owned(), 2)].into(),
            ..PacketAccount::default()
        },
        last_packet_ms_ago: Some(1.5),
        hops: vec![hop],
        shaper: Some(ShaperStatus {
            by: "worker".into(),
            rate_pps: Some(2000),
            burst_packets: Some(32),
            rate_bps: None,
            burst_bits: None,
            queue: 64,
            delay_us: 10_000.0,
            delayed: Some(1),
            mean_wait_us: Some(3.5),
            drops_full: 0,
            drops_late: 0,
            drops_too_big: 0,
            lost: 0,
            waiting: 0,
            most_waiting: Some(1),
            in_sojourn: true,
        }),
        sojourn: Some(SojournStatus::default()),
        sojourn_sections: vec![SojournStatus::default()],
        worker: Some(worker.clone()),
        more_workers: vec![worker],
        rings: vec![RingStatus {
            from: Some(0),
            to: None,
            capacity: 64,
            occupancy: 1,
            enqueued: 5,
            dequeued: 4,
        }],
        hosts: vec![host()],
        sla: Some(Box::new(sla)),
        up_s: 1.5,
    }
}

#[test]
fn every_answer_fits_the_schema_and_parses_back() {
    let info = AgentInfo {
        version: VERSION.into(),
        pid: 7,
        run_dir: "/run/myelin".into(),
        orphans: vec!["link my0".into()],
        resident_kib: 1,
    };
    check("GET /v2/agent", "answer", &info);
    check("GET /v2/chains", "answer", &vec![status()]);
    check("POST /v2/chains", "answer", &vec![up()]);
    let down = DownReply {
        removed: vec!["c".into()],
        recovered: vec!["link my0".into()],
    };
    for path in ["/v2/chains", "/v2/chains/{chain}", "/v2/leases/{lease}"] {
        check(&format!("DELETE {path}"), "answer", &down);
    }
    for path in [
        "/v2/events?after={serial}",
        "/v2/events/{chain}?after={serial}",
    ] {
        check(&format!("GET {path}"), "answer", &vec![event()]);
    }
    let second = SlaSecond {
        end: "2026-01-01T00:00:00.000Z".into(),
        window: window(),
    };
    check(
        "GET /v2/seconds/{chain}?last={count}",
        "answer",
        &vec![second],
    );
    check("GET /v2/cores", "answer", &vec![core()]);
    let flow = FlowStatus {
        flow: "udp 10.0.0.1:5000 > 10.0.0.2:9000".into(),
        protocol: 17,
        source: "10.0.0.1".parse().unwrap(),
        source_port: Some(5000),
        destination: Some("fd00::2".parse().unwrap()),
        destination_port: None,
        translated: Some(Endpoint {
            address: "fd00::3".parse().unwrap(),
            port: 6000,
        }),
        backend: Some("10.0.0.11".parse().unwrap()),
        state: Some(myelin_api::FlowState::Established),
        packets: Some(1),
        bytes: Some(64),
        reply_packets: Some(0),
        reply_bytes: Some(0),
        age_ms: Some(1.5),
        last_packet_ms_ago: Some(0.5),
        expires_in_ms: Some(2.5),
    };
    let flows = FunctionFlows {
        chain: "c".into(),
        function: "m".into(),
        kind: "monitor".into(),
        space: "kernel".into(),
        begun: Some(1),
        evicted: Some(0),
        outside: None,
        flows: vec![flow],
    };
    let contents = TextContents {
        objects: vec![serde_json::json!({ "kind": "Topology" })],
        files: vec![NamedFile {
            path: "a.key".into(),
            is_secret: true,
        }],
    };
    check("POST /v2/texts", "answer", &contents);
    for path in ["/v2/flows", "/v2/flows/{chain}"] {
        check(&format!("GET {path}"), "answer", &vec![flows.clone()]);
    }
}

/// A report with a distribution.
fn report() -> ChainReport {
    let mut sojourn = Distribution::new();
    sojourn.record_many(12_000, 99);
    sojourn.record(450_000);
    let summary = sojourn.summary(Some(50.0));
    let probe = ProbeResult {
        mode: Mode::Inline,
        matching: Matching::ById,
        cores: None,
        payload_bytes: 256,
        interval_us: 1000.0,
        count: 100,
        repeats: 1,
        stopped: None,
        duration_s: 0.1,
        counts: Counts::default(),
        loss_ratio: 0.0,
        rtt: summary,
        forward: None,
        reply: None,
        samples: None,
        rtt_distribution: sojourn.clone(),
        forward_distribution: Distribution::new(),
        timeline: Vec::new(),
    };
    ChainReport {
        chain: "c".into(),
        claims: vec![Claim::figure_at_most("sla.latency", 0.45, 50.0)],
        probes: vec![("inline, 256 B".into(), probe)],
        sojourns: vec![("chain".into(), sojourn)],
        hops: vec![Hop::default()],
        floods: vec![Flood::default()],
        ..ChainReport::default()
    }
}

#[test]
fn every_request_and_every_line_fits_the_schema_and_parses_back() {
    let request = UpRequest {
        source: source(),
        force: true,
        lease: Some(1),
    };
    let json = check("POST /v2/chains", "request", &request);
    assert_eq!(
        json["name"], "c.yaml",
        "the source's fields are next to `force`"
    );
    let options = ProbeOptions::default();
    let probe = ProbeRequest {
        chain: "c".into(),
        options: options.clone(),
    };
    check("POST /v2/probe", "request", &probe);
    let floods = vec![FloodRequest {
        chain: "d".into(),
        times: 2.5,
    }];
    check(
        "POST /v2/run",
        "request",
        &RunRequest {
            source: source(),
            options,
            force: false,
            floods,
        },
    );
    let calibrate = CalibrateRequest {
        quick: true,
        file: "costs.json".into(),
        black_boxes: Some(source()),
    };
    check("POST /v2/calibrate", "request", &calibrate);
    let text = TextRequest {
        name: "c.yaml".into(),
        text: source().text,
    };
    check("POST /v2/texts", "request", &text);
    check("POST /v2/leases", "lines", &Lease { lease: 1 });
    let bad = ChainSource {
        text: "kind: Chain\n".into(),
        ..source()
    };
    let fault = bad.parse().unwrap_err();
    assert_eq!(fault.faults[0].line, 1, "{fault}");
    let lines = [
        Event::Progress {
            stage: "probing".into(),
            done: 1,
            total: 2,
        },
        Event::Up(Box::new(up())),
        Event::Report(Box::new(ReportReply {
            envelope: Value::Null,
            report: report(),
            status: Box::new(status()),
        })),
        Event::Costs(Box::default()),
        Event::Error(ApiError::refused("no core is left")),
        Event::Error(fault),
    ];
    for line in lines {
        for path in ["probe", "run", "calibrate"] {
            check(&format!("POST /v2/{path}"), "lines", &line);
        }
    }
}

#[test]
fn a_wrong_value_does_not_fit_the_schema() {
    let schema = schema();
    let chain_status = serde_json::json!({ "$ref": "#/$defs/ChainStatus" });
    let good = serde_json::to_value(status()).unwrap();
    assert_eq!(validate::find_fault(&schema, &chain_status, &good), None);
    for (key, wrong) in [
        ("spi", Value::from("7")),
        ("state", "asleep".into()),
        ("hops", Value::Null),
    ] {
        let mut bad = good.clone();
        bad[key] = wrong;
        assert!(
            validate::find_fault(&schema, &chain_status, &bad).is_some(),
            "{key}"
        );
        bad.as_object_mut().unwrap().remove(key);
        assert!(
            validate::find_fault(&schema, &chain_status, &bad).is_some(),
            "without {key}"
        );
    }
}
