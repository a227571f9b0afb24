//! How spans get to the collector: plain HTTP, on the exporter's own thread.

use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};

/// The longest that one batch may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes of an answer that are read.
const MOST_BYTES: u64 = 64 << 10;

/// Sends a batch and waits for the answer. The exporter's thread does nothing else.
#[derive(Debug)]
pub(crate) struct Client {
    agent: ureq::Agent,
}

impl Client {
    pub(crate) fn new() -> Self {
        let config = ureq::Agent::config_builder();
        // The collector is near; a proxy for the internet would not reach it.
        let config = config.timeout_global(Some(TIMEOUT)).http_status_as_error(false).proxy(None);
        Self { agent: config.build().into() }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let answer = self.agent.run(Request::from_parts(head, body.to_vec()))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(MOST_BYTES).read_to_vec()?;
        Ok(Response::from_parts(head, Bytes::from(body)))
    }
}
