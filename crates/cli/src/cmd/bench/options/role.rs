//! The role of the command: which options make it a server, a client, or both.

use std::net::{SocketAddr, ToSocketAddrs};

use polyrail_lab::Rate;

use super::args::{Args, Rates};
use crate::cmd::bench::error::BenchError;

/// The role of the command.
pub(crate) enum Role {
    /// Serves clients until Ctrl-C.
    Listen { address: Option<SocketAddr> },
    /// Serves the process that started this one.
    ServeParent,
    /// Is one of NCCL's two processes.
    NcclRank,
    /// Measures against a server elsewhere.
    Connect { address: SocketAddr },
    /// Starts the server itself.
    Both,
    /// Starts server and client inside a lab.
    Lab { rates: Vec<Rate> },
}

impl Args {
    pub(crate) fn role(&self) -> Result<Role, BenchError> {
        if self.serve_parent {
            return Ok(Role::ServeParent);
        }
        if self.nccl_rank {
            return Ok(Role::NcclRank);
        }
        if let Some(address) = self.inside_lab {
            return Ok(Role::Connect { address });
        }
        if let Some(listen) = &self.listen {
            let address = (!listen.is_empty()).then(|| resolve("--listen", listen)).transpose()?;
            return Ok(Role::Listen { address });
        }
        if let Some(connect) = &self.connect {
            return Ok(Role::Connect { address: resolve("--connect", connect)? });
        }
        Ok(match &self.lab {
            Some(Rates(rates)) => Role::Lab { rates: rates.clone() },
            None => Role::Both,
        })
    }
}

fn resolve(option: &'static str, text: &str) -> Result<SocketAddr, BenchError> {
    let allowed = "an address and a port, like 10.0.0.1:34567 or [fd00::1]:34567";
    let bad = |reason: String| BenchError::usage(option, text, reason, allowed);
    let mut addresses = text.to_socket_addrs().map_err(|error| {
        // Only a name that is well formed reaches the resolver.
        bad(match text.rsplit_once(':') {
            None => "has no port".into(),
            Some((_, port)) if port.parse::<u16>().is_err() => {
                format!("has the port `{port}`, which is not a number from 0 to 65535")
            }
            Some(_) => error.to_string(),
        })
    })?;
    addresses.next().ok_or_else(|| bad("has no address".into()))
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::args;

    #[test]
    fn an_address_without_a_port_is_refused() {
        let error = args("--connect 10.0.0.1").role().err().unwrap().to_string();
        assert!(
            error.starts_with("--connect `10.0.0.1` has no port; allowed: an address"),
            "{error}"
        );
    }
}
