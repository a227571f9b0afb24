//! `bench --listen`: the serving end by itself.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use polyrail::{Config, Engine, LostReason};
use polyrail_report::exit;

use super::serve::serve;
use crate::cmd::bench::error::BenchError;
use crate::cmd::bench::interrupt::Interrupt;
use crate::cmd::bench::memory::Bank;
use crate::stdout::{say, tell};

/// Serves clients until Ctrl-C, which is the usual end and no failure. `threads` says where they were placed.
pub(crate) fn listen(
    config: Config,
    bank: Bank,
    address: Option<SocketAddr>,
    threads: &str,
) -> Result<u8, BenchError> {
    let interrupt = Interrupt::install()?;
    let engine = Engine::builder().config(config).build()?;
    tell!("threads: {threads}");
    let addresses = engine.addresses();
    let wanted = address.filter(|address| !address.ip().is_unspecified());
    if let Some(address) = wanted
        && !addresses.iter().any(|rail| rail.ip() == address.ip())
    {
        let rails: Vec<String> = addresses.iter().map(|rail| rail.ip().to_string()).collect();
        return Err(BenchError::NotARail { address, rails: rails.join(", ") });
    }
    let first = wanted.and_then(|wanted| addresses.iter().find(|rail| rail.ip() == wanted.ip()));
    if let Some(address) = first.or(addresses.first()) {
        let invitation = engine.invitation();
        say!(
            "listening on {address}\n\
             on this host: polyrail bench --connect {address}\n\
             elsewhere:    polyrail bench --connect {address}/{invitation}"
        );
        tell!(
            "the line with `elsewhere` lets in whoever has it, until this process ends; end with Ctrl-C"
        );
    }
    let lost = RefCell::new(None);
    serve(&engine, &Arc::new(bank), &interrupt, |peer, result| {
        match result {
            Ok(()) => tell!("served {}", peer.name()),
            // What hosts it serves nobody any more.
            Err(error @ BenchError::Gone { why: LostReason::Plugin { .. }, .. }) => {
                lost.replace(Some(error));
                return false;
            }
            Err(BenchError::Gone { why, .. }) => {
                tell!("served {}, which went away before it was done: {why}", peer.name());
            }
            Err(error) => tell!("served {}, which ended early: {error}", peer.name()),
        }
        true
    });
    lost.into_inner().map_or(Ok(exit::OK), Err)
}
