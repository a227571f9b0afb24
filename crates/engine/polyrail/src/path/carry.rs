//! Setup of a hosted plugin's connection for the payload of a flow: the sender asks, the peer listens and sends its
//! address, the sender connects, the peer confirms that its end is there. Until that is done, and where it fails,
//! payload takes the flow's own connection.

use std::sync::{Arc, Weak};

use polyrail_carrier::{Host, Lane};
use polyrail_config::Payload;
use polyrail_proto::message::{Carried, Message};
use polyrail_proto::peer::carriers::{Coming, End};
use polyrail_proto::{FlowIndex, Time};
use polyrail_sys::threads::monotonic_ns;

use crate::device::conduit::{Conduit, Plugin};
use crate::engine::pass::Pass;
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;
use crate::path::asking::ask;
use crate::wake::ALL;

/// Asks the peer for a carrier of the flow's connection. Returns whether one may come.
pub(crate) fn want(engine: &Arc<EngineShared>, peer: &Arc<PeerShared>, of: Carried) -> bool {
    let Some(host) = &engine.host else { return false };
    let (_, to_rail) = peer.layout.pair_of(of.flow);
    let plugin = host.name().to_owned();
    // An index of the rails in the engine info, of which there are at most 64.
    let question = Message::CarrierWanted { of, rail: to_rail as u16, plugin };
    let until = Time(monotonic_ns()).after(engine.settings.connect_timeout);
    let may_come = peer.beside.carriers.lock().begin(End::Sending, of, Coming::Asked(until));
    may_come && ask(engine, peer, question)
}

/// Handles a peer's request for a carrier of a flow to this engine.
pub(crate) fn wanted(
    pass: &mut Pass<'_>,
    peer: &Arc<PeerShared>,
    of: Carried,
    (rail, plugin): (u16, &str),
) {
    let engine = pass.engine;
    if !peer.account.quotas.of_messages.may_answer() {
        tracing::debug!(target: "polyrail::carrier", peer = peer.name(), "takes no answers");
        return;
    }
    let refuse = |why: String| {
        let message = Message::CarrierOffered { of, offered: Err(why) };
        peer.tx().answer(Time(pass.now), &message);
        engine.announce(peer);
    };
    let Some(host) = &engine.host else {
        return refuse("the peer hosts no plugin".to_owned());
    };
    if host.name() != plugin {
        return refuse(format!("the peer hosts plugin {}, not {plugin}", host.name()));
    }
    let on_rail = engine.rails.get(usize::from(rail)).and_then(|rail| rail.hosted);
    let Some(device) = host.devices().get(on_rail.unwrap_or_default()) else {
        return refuse("the peer's plugin has no devices".to_owned());
    };
    let listening = peer.beside.carriers.lock().listen();
    let Some(listening) = listening
        .filter(|_| peer.beside.carriers.lock().begin(End::Arriving, of, Coming::Connecting))
    else {
        return refuse("the peer waits for too many connections of the plugin".to_owned());
    };
    let told = Told { engine: Arc::downgrade(engine), peer: Arc::downgrade(peer), of };
    let [asked, offers] = [(); 2].map(|()| told.clone());
    host.accept(
        device.number,
        engine.settings.connect_timeout,
        move || asked.is_wanted(End::Arriving),
        move |offered| offers.offer(offered),
        move |came| {
            drop(listening);
            told.came(End::Arriving, came);
        },
    );
}

/// Handles the peer's answer.
pub(crate) fn offered(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    of: Carried,
    offered: Result<Vec<u8>, String>,
) {
    if !peer.beside.carriers.lock().connects(of) {
        tracing::debug!(target: "polyrail::carrier", peer = peer.name(), "answers what nobody asked");
        return;
    }
    let told = Told { engine: Arc::downgrade(engine), peer: Arc::downgrade(peer), of };
    let (from_rail, _) = peer.layout.pair_of(of.flow);
    let number = engine.host.as_ref().and_then(|host| {
        let device = host.devices().get(engine.rails[from_rail].hosted?)?;
        Some((host, device.number))
    });
    match (number, offered) {
        (Some((host, device)), Ok(handle)) => {
            let (limit, asked) = (engine.settings.connect_timeout, told.clone());
            let is_wanted = move || asked.is_wanted(End::Sending);
            host.connect(device, &handle, limit, is_wanted, move |came| {
                told.came(End::Sending, came);
            });
        }
        (None, _) => told.came(End::Sending, Err("the rail is none of a plugin's".to_owned())),
        (_, Err(why)) => told.came(End::Sending, Err(why)),
    }
}

/// Handles the peer's message that its plugin has accepted the connection, or failed to.
pub(crate) fn accepted(peer: &PeerShared, of: Carried, accepted: Result<(), String>) {
    peer.beside
        .carriers
        .lock()
        .accepted(of, accepted.map_err(|why| format!("the peer's plugin: {why}")));
    // The flow reads the result at its next visit.
    peer.wake.announce(ALL);
}

/// Wraps the plugin's connection of a flow to the peer.
pub(crate) fn outgoing(
    engine: &EngineShared,
    peer: &PeerShared,
    flow: FlowIndex,
    lane: Lane,
) -> Box<dyn Conduit> {
    let (rail, _) = peer.layout.pair_of(flow);
    let device = engine.host.as_ref().zip(engine.rails[rail].hosted);
    let device = device.and_then(|(host, at)| host.devices().get(at));
    // A GPU's bytes have no checksum here.
    let takes_cuda =
        device.is_some_and(|device| device.takes_cuda) && peer.payload != Payload::Crc32c;
    let max_bytes = device.map_or(0, |device| device.max_bytes);
    Box::new(Plugin::new(lane, takes_cuda, max_bytes))
}

/// Wraps the plugin's connection of a flow from a peer. The peer minds the length of messages.
pub(crate) fn incoming(engine: &EngineShared, lane: Lane) -> Box<dyn Conduit> {
    let mut devices = engine.host.iter().flat_map(Host::devices);
    let takes_cuda = devices.all(|device| device.takes_cuda);
    Box::new(Plugin::new(lane, takes_cuda, u64::MAX))
}

/// Receiver of a connection's events, on the plugin's thread, as long as the engine and the peer exist.
#[derive(Clone)]
struct Told {
    engine: Weak<EngineShared>,
    peer: Weak<PeerShared>,
    of: Carried,
}

impl Told {
    fn is_wanted(&self, end: End) -> bool {
        self.peer.upgrade().is_some_and(|peer| peer.beside.carriers.lock().is_awaited(end, self.of))
    }

    fn offer(self, offered: Result<Vec<u8>, String>) {
        let (Some(engine), Some(peer)) = (self.engine.upgrade(), self.peer.upgrade()) else {
            return;
        };
        let message = Message::CarrierOffered { of: self.of, offered };
        peer.tx().answer(Time(monotonic_ns()), &message);
        engine.announce(&peer);
    }

    fn came(self, end: End, came: Result<Lane, String>) {
        let (Some(engine), Some(peer)) = (self.engine.upgrade(), self.peer.upgrade()) else {
            if let Ok(lane) = came {
                lane.close();
            }
            return;
        };
        let accepted = came.as_ref().map(drop).map_err(Clone::clone);
        peer.beside.carriers.lock().came(end, self.of, came);
        match end {
            // The flow reads the result at its next visit.
            End::Sending => peer.wake.announce(ALL),
            End::Arriving => {
                let message = Message::CarrierAccepted { of: self.of, accepted };
                peer.tx().answer(Time(monotonic_ns()), &message);
                engine.announce(&peer);
            }
        }
    }
}
