//! Role of the command, chosen by the options: a server, a client, or both.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use polyrail::{ConnectReason, Engine, Invitation, InvitationError, Peer, PeerError};
use polyrail_lab::Rate;
use polyrail_report::exit;

use super::args::Args;
use super::listeners::elsewhere;
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::stdout::tell;
use crate::values::{Rates, Refusal, address};

/// Parsed connect string of a `bench --listen`.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// Addresses of one engine in the order in which to try them; at least one.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Key for this bench, if neither a secret file nor being this user on this host gives access.
    pub(crate) invitation: Option<Invitation>,
}

impl Server {
    /// Returns the connect string of an engine of this process.
    pub(crate) fn of(engine: &Engine) -> Option<Self> {
        let addresses = vec![engine.addresses().first().copied()?];
        Some(Self { addresses, invitation: Some(engine.invitation()) })
    }

    /// Checks the form of a connect string: addresses separated by commas, and a key that may follow after a slash.
    /// Never shows the key.
    pub(crate) fn check(text: &str) -> Result<String, Refusal> {
        let allowed = "an address and a port, like 10.0.0.1:34567 or [fd00::1]:34567";
        if let Some((scheme, _)) = text.split_once("://")
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
        {
            let fault = format!("begins with {scheme}://, which is not part of an address");
            return Err(Refusal::new(fault, allowed).showing(scheme));
        }
        let (at, invitation) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        for one in at.split(',') {
            address(one).map_err(|refusal| refusal.showing(at))?;
            if one.ends_with(":0") {
                let fault = "has port 0, on which nothing can listen";
                return Err(Refusal::new(fault, allowed).showing(at));
            }
        }
        let parsed = invitation.map(str::parse::<Invitation>).transpose();
        parsed.map_err(|error: InvitationError| {
            if invitation == Some(PLACEHOLDER) {
                let fault =
                    format!("is followed by `{PLACEHOLDER}`, which stands for an invitation");
                return Refusal::new(
                    fault,
                    "the line that `bench --listen` printed behind `elsewhere:`",
                )
                .showing(at);
            }
            let fault = format!("is followed by what is no invitation: {error}");
            Refusal::new(fault, "what `bench --listen` printed, whole and unchanged").showing(at)
        })?;
        Ok(text.to_owned())
    }

    /// Parses a connect string that passed [`check`](Self::check).
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let (at, invitation) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let invitation = invitation.and_then(|invitation| invitation.parse().ok());
        let each = at.split(',').map(|at| resolve("--connect", at));
        let mut addresses = each.collect::<Result<Vec<_>, _>>()?.concat();
        if let Some(found) = elsewhere(&addresses) {
            let shown: Vec<_> = found.addresses.iter().map(ToString::to_string).collect();
            let shown = shown.join(", ");
            if !found.is_one_program {
                let reason = format!("is {shown} here, which may be several programs");
                return Err(Fault::usage("--connect", at, reason, "one of these addresses"));
            }
            tell!("{at} is {shown} here");
            addresses = found.addresses;
        }
        Ok(Self { addresses, invitation })
    }

    /// Connects to the server, unless an interrupt ends the run first.
    pub(crate) fn connect(&self, engine: &Engine, interrupt: &Interrupt) -> Result<Peer, Fault> {
        let connecting = engine.connect_any(&self.addresses, self.invitation.as_ref());
        loop {
            if let Some(answer) = connecting.wait(Interrupt::LOOK) {
                return answer.map_err(|error| self.unreached(&engine.addresses(), error));
            }
            interrupt.check()?;
        }
    }

    /// Returns the failure at one of the addresses, and names the others that were tried.
    fn unreached(&self, rails: &[SocketAddr], error: PeerError) -> Fault {
        let PeerError::Connect { address, why } = &error else { return error.into() };
        let is_before = matches!(why, ConnectReason::NoProof | ConnectReason::NoAnswer);
        let others: Vec<_> = self.addresses.iter().filter(|other| *other != address).collect();
        if others.is_empty() || is_before {
            return error.into();
        }
        let shown: Vec<_> = others.iter().take(SHOWN - 1).map(ToString::to_string).collect();
        let more = others.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let has = |is_it: fn(&SocketAddr) -> bool| {
            let mut others = self.addresses.iter().filter(|one| !one.ip().is_loopback());
            others.any(is_it) && !rails.iter().any(is_it)
        };
        let family = match (has(SocketAddr::is_ipv6), has(SocketAddr::is_ipv4)) {
            (true, _) => Some("ipv6"),
            (_, true) => Some("ipv4"),
            _ => None,
        };
        let text = format!("{error}; nor to {}{more}", shown.join(", "));
        let mut fault = Fault::explained(text, &error);
        if let Some(family) = family {
            let first = fault.help.map_or_else(String::new, |help| format!("{help}; "));
            fault.help = Some(format!(
                "{first}no rail here has an address of the family {family}, so those addresses were not tried: \
                 where interfaces here have such addresses, `--set address_family={family}` has the rails take them"
            ));
        }
        fault
    }
}

/// Maximum number of addresses that an error names.
const SHOWN: usize = 4;
/// Returns the rails for a server on this host: its loopback addresses that exist on this host, separated by commas.
/// Returns `None` if the first address is not a loopback address.
pub(super) fn loopback_rails(addresses: &[SocketAddr]) -> Option<String> {
    let first = addresses.first().map(SocketAddr::ip).filter(IpAddr::is_loopback)?;
    let ips = addresses.iter().map(SocketAddr::ip).filter(IpAddr::is_loopback);
    // `localhost` has an IPv6 address even if the kernel has no IPv6.
    let mut rails: Vec<_> = ips.filter(|ip| UdpSocket::bind((*ip, 0)).is_ok()).collect();
    rails.sort_unstable();
    rails.dedup();
    if rails.is_empty() {
        rails.push(first);
    }
    Some(rails.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        f.write_str(&addresses.join(","))?;
        self.invitation.as_ref().map_or(Ok(()), |invitation| write!(f, "/{invitation}"))
    }
}

/// Placeholder for a key in help texts and documentation pages.
const PLACEHOLDER: &str = "pr2-KEY";

pub(crate) enum Role {
    /// Serves clients until Ctrl-C.
    Listen {
        /// All addresses of the given name. If empty, the addresses of the rails.
        addresses: Vec<SocketAddr>,
    },
    /// Serves the process that started this one.
    ServeParent,
    /// Runs as one of NCCL's two processes.
    NcclRank,
    /// Measures against a server that is already running.
    Connect(Server),
    /// Starts the server itself.
    Both,
    /// Starts server and client inside a lab.
    Lab { rates: Vec<Rate> },
}

impl Role {
    /// Whether all addresses that the user gave are IPv6 addresses of other hosts.
    pub(super) fn is_ipv6(&self) -> bool {
        let addresses = match self {
            Self::Listen { addresses } => addresses,
            Self::Connect(server) => &server.addresses,
            Self::ServeParent | Self::NcclRank | Self::Both | Self::Lab { .. } => return false,
        };
        let is_it = |one: &SocketAddr| {
            one.is_ipv6() && !one.ip().is_loopback() && !one.ip().is_unspecified()
        };
        !addresses.is_empty() && addresses.iter().all(is_it)
    }
}

impl Args {
    pub(crate) fn role(&self) -> Result<Role, Fault> {
        if self.serve_parent {
            return Ok(Role::ServeParent);
        }
        if self.nccl_rank {
            return Ok(Role::NcclRank);
        }
        if let Some(address) = self.inside_lab {
            return Ok(Role::Connect(Server { addresses: vec![address], invitation: None }));
        }
        if let Some(listen) = &self.listen {
            let addresses = listen.as_deref().map(|at| resolve("--listen", at)).transpose()?;
            return Ok(Role::Listen { addresses: addresses.unwrap_or_default() });
        }
        if let Some(connect) = &self.connect {
            return Ok(Role::Connect(Server::parse(connect)?));
        }
        Ok(match &self.lab {
            Some(Rates(rates)) => Role::Lab { rates: rates.clone() },
            None => Role::Both,
        })
    }
}

/// Maximum number of addresses of one name that count.
const PER_NAME: usize = 16;

/// Returns the addresses of a name in the system's order; at least one.
fn resolve(option: &'static str, text: &str) -> Result<Vec<SocketAddr>, Fault> {
    let allowed = "an address and a port, like 10.0.0.1:34567 or [fd00::1]:34567";
    let bad = |reason: String| Fault::usage(option, text, reason, allowed);
    let found = text.to_socket_addrs().map_err(|error| match option {
        "--connect" => {
            let fault = Fault::new(exit::PEER, format!("can't connect to {text}: {error}"));
            let help = "check the name, or use an address that `bench --listen` printed";
            fault.with_help(help)
        }
        _ => bad(error.to_string()),
    })?;
    let addresses: Vec<_> = found.take(PER_NAME).collect();
    if addresses.is_empty() { Err(bad("has no address".into())) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use polyrail::{ConnectReason, PeerError};

    use super::{Server, loopback_rails};

    #[test]
    fn all_addresses_that_were_tried_are_named_and_many_are_counted() {
        let told = |addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|one| one.parse().unwrap()).collect();
            let why = ConnectReason::Closed;
            let error = PeerError::Connect { address: addresses[0], why };
            Server { addresses, invitation: None }.unreached(&[], error).to_string()
        };
        let closed = "can't connect to 10.0.0.1:7: closed by the other side without a word";
        assert_eq!(told(&["10.0.0.1:7"]), closed);
        assert_eq!(told(&["10.0.0.1:7", "10.0.1.1:7"]), format!("{closed}; nor to 10.0.1.1:7"));
        let many = ["10.0.0.1:7", "10.0.1.1:7", "10.0.2.1:7", "10.0.3.1:7", "10.0.4.1:7"];
        assert_eq!(
            told(&many),
            format!("{closed}; nor to 10.0.1.1:7, 10.0.2.1:7, 10.0.3.1:7 and 1 more")
        );
    }

    #[test]
    fn all_loopback_addresses_of_a_name_that_this_host_has_are_its_rails() {
        let rails = |addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|one| one.parse().unwrap()).collect();
            loopback_rails(&addresses)
        };
        assert_eq!(rails(&["127.0.0.2:7", "127.0.0.1:7"]).unwrap(), "127.0.0.1,127.0.0.2");
        assert_eq!(rails(&["127.0.0.1:7", "10.0.0.1:7"]).unwrap(), "127.0.0.1");
        assert_eq!(rails(&["10.0.0.1:7", "127.0.0.1:7"]), None);
        assert_eq!(rails(&[]), None);
    }

    #[test]
    fn an_invitation_follows_the_address_and_is_not_shown_if_it_is_garbled() {
        let good = format!("pr2-{}", "0f".repeat(32));
        let server = Server::parse(&format!("10.0.0.1:7000/{good}")).unwrap();
        assert_eq!(server.addresses, ["10.0.0.1:7000".parse().unwrap()]);
        let several = format!("10.0.0.1:7000,[fd00::1]:7001/{good}");
        let server = Server::parse(&Server::check(&several).unwrap()).unwrap();
        assert_eq!((server.addresses.len(), server.to_string()), (2, several));
        assert!(Server::check("10.0.0.1:7000,10.0.1.1").is_err());
        let server = Server::parse(&format!("10.0.0.1:7000/{good}")).unwrap();
        assert_eq!(server.invitation.unwrap().to_string(), good);
        let refusal = Server::check(&format!("10.0.0.1:7000/{}", &good[..60])).unwrap_err();
        let error = refusal.to_string();
        assert!(error.contains("has 60 characters") && !error.contains("0f0f"), "{error}");
        assert_eq!(refusal.shown_value(), Some("10.0.0.1:7000"));
        let pasted = Server::check("10.0.0.1:7000/pr2-KEY").unwrap_err().to_string();
        assert!(pasted.contains("`pr2-KEY`, which stands for an invitation"), "{pasted}");
    }
}
