//! Requests to the agent over its socket, and their answers.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::Client;
use crate::version::{PREFIX, VERSION, VERSION_HEADER, check_agent};
use crate::{ApiError, EXEC_PROTOCOL, Event};

impl Client {
    /// Asks for a value. The request only reads.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let answer = self.call_async(Method::GET, path, None::<&()>);
        self.runtime.block_on(self.within_limit(answer))
    }

    /// Makes a request that changes something.
    pub(super) fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ApiError> {
        self.runtime.block_on(self.call_async(method, path, body))
    }

    async fn call_async<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ApiError> {
        let body = self.request_body(method, path, body).await?;
        decode(&body.collect().await.map_err(connection_error)?.to_bytes())
    }

    /// Makes a request whose answer is a stream of events.
    pub(super) fn stream(
        &self,
        path: &str,
        request: &impl Serialize,
        on_event: &mut dyn FnMut(Event),
    ) -> Result<(), ApiError> {
        self.runtime.block_on(async {
            let mut body = self.request_body(Method::POST, path, Some(request)).await?;
            let mut pending = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(connection_error)?;
                pending.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = pending.drain(..=end).collect();
                    match decode(&line)? {
                        Event::Error(error) => return Err(error),
                        event => on_event(event),
                    }
                }
            }
            Ok(())
        })
    }

    /// Sends a request to an agent of this version, and returns the answer's body.
    async fn request_body(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Incoming, ApiError> {
        let path = format!("{PREFIX}{path}");
        let response = self.send(method, &path, body).await?;
        check_agent(version_of(&response))?;
        check_response(response).await
    }

    /// Sends a request and returns the answer, of an agent of any version.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Incoming>, ApiError> {
        let socket = UnixStream::connect(self.run_dir.socket())
            .await
            .map_err(connection_error)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket))
            .await
            .map_err(connection_error)?;
        tokio::spawn(connection.with_upgrades());
        let bytes = body.map_or(Ok(Vec::new()), serde_json::to_vec);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "myelin")
            .header("content-type", "application/json")
            .header(VERSION_HEADER, VERSION);
        if path.ends_with("/exec") {
            request = request
                .header("connection", "upgrade")
                .header("upgrade", EXEC_PROTOCOL);
        }
        let request = request
            .body(Full::new(Bytes::from(bytes.map_err(connection_error)?)))
            .map_err(connection_error)?;
        sender.send_request(request).await.map_err(connection_error)
    }
}

/// Returns the version of the agent that answered.
pub(super) fn version_of(response: &Response<Incoming>) -> Option<&str> {
    response.headers().get(VERSION_HEADER)?.to_str().ok()
}

/// Returns the body of a successful answer, or the error in another answer.
pub(super) async fn check_response(response: Response<Incoming>) -> Result<Incoming, ApiError> {
    let status = response.status();
    let body = response.into_body();
    if status.is_success() {
        return Ok(body);
    }
    let bytes = body.collect().await.map_err(connection_error)?.to_bytes();
    Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&bytes);
        ApiError::failed(format!("the agent answered {status}: {text}"))
    }))
}

pub(super) fn connection_error(error: impl std::fmt::Display) -> ApiError {
    ApiError::failed(format!(
        "lost the connection to the agent: {error}; check with `myelin ps` whether the agent still runs"
    ))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::failed(format!(
            "cannot parse the agent's answer ({error}): the agent may be another build of version {VERSION}; \
             `myelin down --all` stops the agent"
        ))
    })
}
