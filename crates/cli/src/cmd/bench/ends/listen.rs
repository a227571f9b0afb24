//! `bench --listen`: the serving end by itself.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use polyrail::{Config, Engine, LeftOut, LostReason};
use polyrail_report::exit;

use super::serve::serve;
use crate::cmd::bench::error::BenchError;
use crate::cmd::bench::interrupt::Interrupt;
use crate::cmd::bench::memory::Bank;
use crate::cmd::bench::options::Server;
use crate::stdout::{say, tell};

/// Addresses in the line for the other machine: more make it hard to type.
const SHOWN_ADDRESSES: usize = 4;

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
        let left_out = left_out(&engine);
        return Err(BenchError::NotARail { address, rails: rails.join(", "), left_out });
    }
    let first = wanted.and_then(|wanted| addresses.iter().find(|rail| rail.ip() == wanted.ip()));
    if let Some(address) = first.or(addresses.first()) {
        say!("listening on {address}\non this host: polyrail bench --connect {address}");
        if addresses.iter().all(|rail| rail.ip().is_loopback()) {
            let why = match engine.config().names_rails() {
                true => "; `--rails auto` takes the interfaces that lead to other hosts",
                false => ", and no interface leads to other hosts",
            };
            say!(
                "elsewhere:    not possible: only this host can reach {}{why}{}",
                address.ip(),
                left_out(&engine)
            );
            tell!("end with Ctrl-C; `polyrail topo` lists the interfaces");
        } else {
            // The other machine may reach only some of them.
            let others = addresses.iter().filter(|other| *other != address);
            let mut all = vec![*address];
            all.extend(others);
            all.truncate(SHOWN_ADDRESSES);
            let server = Server { addresses: all, invitation: Some(engine.invitation()) };
            say!("elsewhere:    polyrail bench --connect {server}");
            tell!(
                "the line with `elsewhere` lets in whoever has it, until this process ends; end with Ctrl-C"
            );
        }
    }
    let lost = RefCell::new(None);
    serve(&engine, &Arc::new(bank), &interrupt, |peer, result| {
        match result {
            Ok(silent) => tell!("served {}{silent}", peer.name()),
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

/// `; left out: …`, if any interface is.
fn left_out(engine: &Engine) -> String {
    let line = LeftOut::line(&engine.left_out());
    line.map(|line| format!("; left out: {line}")).unwrap_or_default()
}
