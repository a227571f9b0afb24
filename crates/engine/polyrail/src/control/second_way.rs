//! Connections by two ways: bound to the rail's device, or to its address alone.
//!
//! A connection that is bound to a device receives nothing that arrives on another one. So it can't come up, or stalls
//! later, where another NIC answers ARP for the rail's address, or where `rp_filter` drops packets that the routes
//! would send by another NIC. After [`STAGGER`], or at once if the first way fails, the connection is tried by the
//! other way too, and the first that comes up is used (as RFC 8305 does for addresses).
//!
//! The device comes first, because the routes of several NICs in one network send all packets by one of them. A bound
//! connection also asks for the peer's hardware address by its own NIC, and the peer learns the right one from that
//! (`neighbours.rs`). Where the peer learns another one later, the connection stalls, the next one by the device does
//! not come up, and the one by the address does.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use polyrail_proto::liveness::{STAGGER, Way};
use polyrail_proto::rails::ChosenRail;
use polyrail_proto::reason::ConnectReason;
use polyrail_sys::tcp::{self, FlowOptions};
use socket2::Socket;

use super::Control;
use crate::control::build::{device, is_forbidden};
use crate::engine::peer::PeerShared;
use crate::engine::settings::EngineSettings;

/// A connection by its first way, and the other way if there is one.
pub(crate) struct Dialed {
    pub(crate) socket: Socket,
    pub(crate) way: Way,
    pub(crate) second: Option<SecondWay>,
}

/// The way that is left to try.
pub(crate) struct SecondWay {
    due: Instant,
    way: Way,
    source: IpAddr,
    device: Option<String>,
    target: SocketAddr,
    options: FlowOptions,
}

impl SecondWay {
    fn start(self) -> io::Result<(Socket, Way)> {
        let device = self.device.as_deref();
        let socket = tcp::start_connect(self.source, device, self.target, &self.options)?;
        Ok((socket, self.way))
    }
}

/// Begins to connect the pair of rails, by the way that last worked.
pub(super) fn dial(
    peer: &PeerShared,
    pair: (usize, usize),
    rail: &ChosenRail,
    settings: &EngineSettings,
    patience: Duration,
) -> io::Result<Dialed> {
    let target = peer.card.rails[pair.1].address;
    let options = settings.flow_options(peer.says_same_host);
    let begin = |device| tcp::start_connect(rail.address, device, target, &options);
    let bound = device(rail);
    if bound.is_none() {
        return Ok(Dialed { socket: begin(None)?, way: Way::Address, second: None });
    }
    let of = |way| bound.filter(|_| way == Way::Device);
    let way = peer.links.ways.lock().first(pair);
    match begin(of(way)) {
        Ok(socket) => {
            let second = SecondWay {
                // In time for the shortest connection that is waited for.
                due: Instant::now() + STAGGER.min(patience / 2),
                way: way.other(),
                source: rail.address,
                device: of(way.other()).map(str::to_owned),
                target,
                options,
            };
            Ok(Dialed { socket, way, second: Some(second) })
        }
        Err(first) => match begin(of(way.other())) {
            Ok(socket) => Ok(Dialed { socket, way: way.other(), second: None }),
            Err(second) => Err(if is_forbidden(&first) { second } else { first }),
        },
    }
}

/// The ways of a connection that has not come up yet, besides its socket.
pub(crate) struct Race {
    pub(crate) way: Way,
    second: Option<SecondWay>,
    /// The other way, once it is tried.
    rival: Option<(Socket, Way)>,
    /// The reason why one of them failed.
    failed: Option<ConnectReason>,
}

impl Race {
    pub(crate) fn new(way: Way, second: Option<SecondWay>) -> Self {
        Self { way, second, rival: None, failed: None }
    }

    /// Time at which the other way must be tried, unless the first one is up by then.
    fn due(&self) -> Option<Instant> {
        self.second.as_ref().map(|second| second.due)
    }

    /// Checks both ways. Once one is up, `socket` is that one, and the other is closed.
    pub(crate) fn connect(&mut self, socket: &mut Socket) -> io::Result<bool> {
        match (is_up(socket), &self.rival) {
            (Ok(false), None) => return Ok(false),
            (Ok(false), Some((rival, _))) => match is_up(rival) {
                Ok(false) => return Ok(false),
                Ok(true) => self.take_rival(socket),
                Err(error) => {
                    self.failed = Some(error.into());
                    self.rival = None;
                    return Ok(false);
                }
            },
            (Ok(true), _) => {}
            (Err(error), None) => return Err(error),
            (Err(error), Some(_)) => {
                self.failed = Some(error.into());
                self.take_rival(socket);
                return self.connect(socket);
            }
        }
        (self.second, self.rival) = (None, None);
        Ok(true)
    }

    /// The reason to report when the last way fails for `why`. A refusal by a kernel counts only if both ways met it.
    pub(crate) fn reason(&mut self, why: ConnectReason) -> ConnectReason {
        match self.failed.take() {
            Some(failed) if why.is_nobody() && !failed.is_nobody() => failed,
            _ => why,
        }
    }

    fn take_rival(&mut self, socket: &mut Socket) {
        if let Some((rival, way)) = self.rival.take() {
            (*socket, self.way) = (rival, way);
        }
    }
}

fn is_up(socket: &Socket) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

impl Control {
    /// Time at which the next connection must be tried by its other way.
    pub(super) fn second_way_due(&self) -> Option<Instant> {
        let seconds = self.handshakes.iter().filter_map(|(_, handshake)| handshake.race.due());
        seconds.min()
    }

    /// Tries the other way of connections that have not come up by the first one.
    pub(super) fn begin_second_ways(&mut self, now: Instant) {
        let is_due = |race: &Race| race.due().is_some_and(|due| due <= now);
        let due = self.handshakes.iter().filter(|(_, handshake)| is_due(&handshake.race));
        let due: Vec<usize> = due.map(|(key, _)| key).collect();
        due.into_iter().for_each(|key| _ = self.begin_second_way(key));
    }

    /// Continues by the other way after the first has failed. Returns whether there is one.
    pub(super) fn goes_another_way(&mut self, key: usize, why: &ConnectReason) -> bool {
        let begun = self.begin_second_way(key);
        if let Some(handshake) = self.handshakes.get_mut(key)
            && begun
        {
            handshake.race.failed = Some(why.clone());
            handshake.race.take_rival(&mut handshake.socket);
        }
        begun
    }

    fn begin_second_way(&mut self, key: usize) -> bool {
        let Some(handshake) = self.handshakes.get_mut(key) else { return false };
        let Some(second) = handshake.race.second.take() else { return false };
        let poller = &self.engine.control.poller;
        let begun = second.start().and_then(|(socket, way)| {
            poller.add(socket.as_fd(), key as u64)?;
            Ok((socket, way))
        });
        match begun {
            Ok(rival) => handshake.race.rival = Some(rival),
            // A forbidden way says nothing of the peer.
            Err(error) if is_forbidden(&error) => {}
            // The first way may still come up.
            Err(error) => handshake.race.failed = Some(error.into()),
        }
        handshake.race.rival.is_some()
    }

    /// Notes the way by which a flow has connected. Later flows of its rails take that way first.
    pub(super) fn note_way(&self, peer: &PeerShared, pair: (usize, usize), way: Way) {
        let rail = &self.engine.rails[pair.0];
        if device(rail).is_none() || !peer.links.ways.lock().prefer(pair, way) {
            return;
        }
        let (rail, target) = (&rail.name, peer.card.rails[pair.1].address);
        tracing::info!(target: "polyrail::rail", peer = peer.name(), rail, %target, "reached {way}");
    }

    /// Makes a connection that came to a rail send by the rail's device, where that is known to be harmless: the peer
    /// is in the rail's network, and the connection arrived on the device. Elsewhere the routes choose.
    pub(super) fn bind_arrival(&self, socket: &Socket, rail: usize, remote: SocketAddr) {
        let rail = &self.engine.rails[rail];
        if let Some(device) = device(rail)
            && rail.network().contains(remote.ip())
            && matches!(tcp::arrived_on(socket, device), Ok(true))
        {
            // On failure the routes choose, too.
            let _ = tcp::bind_to_device(socket, device);
        }
    }

    /// Notes that a connection came up and was useless, so that the other way is tried first next time.
    pub(super) fn note_dead_end(&self, peer: &PeerShared, pair: (usize, usize), way: Way) {
        peer.links.ways.lock().prefer(pair, way.other());
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpListener;

    use super::*;

    fn connecting(to: SocketAddr) -> Socket {
        let source = "127.0.0.1".parse().unwrap();
        tcp::start_connect(source, None, to, &FlowOptions::default()).unwrap()
    }

    /// An address that refuses while the returned socket lives: nothing else takes its port.
    fn refusing() -> (Socket, SocketAddr) {
        let held = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = held.local_addr().unwrap().as_socket().unwrap();
        (held, address)
    }

    fn until_known(race: &mut Race, socket: &mut Socket) -> io::Result<bool> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            match race.connect(socket) {
                Ok(false) if Instant::now() < end => std::thread::yield_now(),
                known => return known,
            }
        }
    }

    #[test]
    fn the_way_that_comes_up_is_taken_whichever_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = listener.local_addr().unwrap();
        let (_held, bad) = refusing();
        for (first, second, way) in
            [(good, bad, Way::Device), (bad, good, Way::Address), (good, good, Way::Device)]
        {
            let mut race = Race::new(Way::Device, None);
            race.rival = Some((connecting(second), Way::Address));
            let mut socket = connecting(first);
            assert!(until_known(&mut race, &mut socket).unwrap());
            assert_eq!((race.way, race.rival.is_some()), (way, false));
            assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(good));
        }
    }

    #[test]
    fn nobody_listens_only_if_both_ways_say_so() {
        let refused = || ConnectReason::from(io::Error::from(ErrorKind::ConnectionRefused));
        let no_way = || ConnectReason::from(io::Error::from(ErrorKind::HostUnreachable));
        for (first, last, said) in [
            (Some(refused()), refused(), refused()),
            (Some(no_way()), refused(), no_way()),
            (Some(refused()), no_way(), no_way()),
            (None, refused(), refused()),
        ] {
            let mut race = Race::new(Way::Device, None);
            race.failed = first;
            assert_eq!(race.reason(last), said);
        }
        let (_held, bad) = refusing();
        let mut race = Race::new(Way::Device, None);
        race.rival = Some((connecting(bad), Way::Address));
        let error = until_known(&mut race, &mut connecting(bad)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}
