//! Runs programs on hosts. The request becomes a stream that carries the client's descriptors,
//! signals, and the program's end. The program ends with the stream.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{ConnectInfo, FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::upgrade::downcast;
use myelin_linux::process::Process;
use myelin_linux::session;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::peer::Peer;
use super::{HttpError, ServerState, program};
use crate::api::{
    ApiError, EXEC_PROTOCOL, ExecEvent, ExecRequest, ExecSignal, receive_descriptors,
};

/// Longest line of a client, bytes.
const MAX_LINE: usize = 256;
/// Longest wait for the end of a killed program.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The connection of a request that becomes a stream.
pub(super) struct Upgrade(OnUpgrade);

impl<S: Send + Sync> FromRequestParts<S> for Upgrade {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, HttpError> {
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        upgrade.map(Self).ok_or_else(|| {
            HttpError(ApiError::usage(format!(
                "this request becomes a stream: send the headers `connection: upgrade` and `upgrade: {EXEC_PROTOCOL}`"
            )))
        })
    }
}

/// Answers with the change of the protocol. The program starts when the descriptors arrive.
pub(super) async fn exec(
    State(state): State<Arc<ServerState>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Upgrade(upgrade): Upgrade,
    Json(request): Json<ExecRequest>,
) -> Result<Response, HttpError> {
    let (host, container) = (request.host.clone(), request.container.clone());
    let Json(()) = super::run_blocking(Arc::clone(&state), move |engine| match container {
        Some(name) => super::container::find(engine, peer, &host, &name).map(drop),
        None => peer.check_exec(&engine.find_host(&host)?),
    })
    .await?;
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else {
            return;
        };
        if let Ok(parts) = downcast::<TokioIo<UnixStream>>(upgraded) {
            serve_program(&state, peer, request, parts.io.into_inner()).await;
        }
    });
    let answer = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "upgrade")
        .header("upgrade", EXEC_PROTOCOL)
        .body(Body::empty());
    Ok(answer.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response()))
}

async fn serve_program(
    state: &ServerState,
    peer: Peer,
    request: ExecRequest,
    mut stream: UnixStream,
) {
    let mut is_ending = state.is_ending.subscribe();
    let descriptors = tokio::select! {
        descriptors = receive(&stream) => descriptors,
        () = wait_for_end(&mut is_ending) => return,
    };
    let Ok(descriptors) = descriptors else {
        // A client that sends something else, or that has ended, gets nothing.
        return;
    };
    let engine = Arc::clone(&state.engine);
    let started =
        tokio::task::spawn_blocking(move || program::start(&engine, peer, &request, descriptors));
    let started = started
        .await
        .map_err(ApiError::failed)
        .and_then(|started| started);
    let mut program = match started {
        Ok(program) => program,
        Err(error) => return send(&mut stream, &ExecEvent::Error(error)).await,
    };
    let pid = program.process.pid;
    send(&mut stream, &ExecEvent::Started { pid }).await;
    tokio::select! {
        () = program.wait() => {}
        () = follow_signals(&mut stream, program.process) => program.end().await,
        () = wait_for_end(&mut is_ending) => program.end().await,
    }
    // A killed program ends soon; one that the kernel keeps must not hold up the agent.
    let _ = tokio::time::timeout(END_LIMIT, program.wait()).await;
    let status = program.child.try_wait();
    let status = status.and_then(|status| status.ok_or_else(|| io::ErrorKind::TimedOut.into()));
    let ended = ExecEvent::Ended {
        code: status.as_ref().ok().and_then(ExitStatus::code),
        signal: status.as_ref().ok().and_then(ExitStatusExt::signal),
    };
    send(&mut stream, &ended).await;
}

/// Waits until the agent begins to stop.
async fn wait_for_end(is_ending: &mut watch::Receiver<bool>) {
    let _ = is_ending.wait_for(|is_ending| *is_ending).await;
}

async fn receive(stream: &UnixStream) -> io::Result<[OwnedFd; 3]> {
    loop {
        stream.readable().await?;
        match stream.try_io(Interest::READABLE, || receive_descriptors(stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => return received,
        }
    }
}

/// A client that has ended gets no line.
async fn send(stream: &mut UnixStream, event: &ExecEvent) {
    if let Ok(line) = serde_json::to_string(event) {
        let _ = stream.write_all(format!("{line}\n").as_bytes()).await;
    }
}

/// Passes the client's signals to the program's process group. Ends with the client's stream, or
/// with a line that is no signal.
async fn follow_signals(stream: &mut UnixStream, leader: Process) {
    let mut pending = Vec::new();
    let mut part = [0; MAX_LINE];
    loop {
        match stream.read(&mut part).await {
            Ok(count) if count > 0 => pending.extend_from_slice(&part[..count]),
            _ => return,
        }
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let Ok(ExecSignal { signal }) = serde_json::from_slice(&line) else {
                return;
            };
            if let Err(error) = session::signal_group(&leader, signal) {
                tracing::debug!(%error, "a client's signal had no effect");
            }
        }
        if pending.len() > MAX_LINE {
            return;
        }
    }
}
