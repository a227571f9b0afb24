//! A device in use: its engine, and the setup of its connections.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use polyrail::{Connecting, Engine, InstanceId, Peer};
use polyrail_config::Config;
use polyrail_nccl_abi::HANDLE_BYTES;

use crate::error::CallError;
use crate::express::{Express, Way};
use crate::hub::{Any, Arrival, Hub, Listener};
use crate::recv::RecvEnd;
use crate::send::SendEnd;
use crate::wire::{Body, Handle, Message};

/// Maximum time for sent messages to arrive after everything is closed. Peers known to be dead are not waited for.
const FAREWELL: Duration = Duration::from_millis(500);

/// A device with its running engine.
pub(crate) struct Net {
    hub: Arc<Hub>,
    config: Config,
    engine: Engine,
    express: Option<Arc<Express>>,
    /// Connects to the engine above, for ranks that share a process: no engine can be its own peer.
    mirror: OnceLock<Engine>,
}

/// A connection being set up.
pub(crate) struct Attempt {
    handle: Handle,
    stage: Stage,
}

enum Stage {
    /// Connecting to any of the addresses.
    Asking { connecting: Connecting },
    /// The peer is known, but has not got the hello: the engine had no room for the message.
    Greeting { peer: Peer },
    /// The other side has the hello, and has to accept it.
    Waiting { send: Arc<SendEnd> },
}

impl Net {
    pub(crate) fn new(config: Config, hub: &Arc<Hub>) -> Result<Self, CallError> {
        let engine = build(&config, hub)?;
        hub.attach(&engine);
        let express = Express::new(&config, hub, &engine)?;
        Ok(Self { hub: hub.clone(), config, engine, express, mirror: OnceLock::new() })
    }

    pub(crate) fn listen(&self) -> Result<(Arc<Listener>, [u8; HANDLE_BYTES]), CallError> {
        let nonce = rand_u64()?;
        let (engine, express) = (self.engine.clone(), self.express.clone());
        let (key, listener) = self.hub.insert(|key| {
            let listener = Arc::new(Listener::new(engine, express, key, nonce));
            (Any::Listener(listener.clone()), listener)
        });
        let handle = Handle {
            listener: key,
            nonce,
            invitation: self.engine.invitation(),
            addresses: self.engine.addresses(),
        };
        Ok((listener, handle.encode()))
    }

    /// First step of connecting.
    pub(crate) fn begin(&self, handle: Handle) -> Result<Attempt, CallError> {
        let engine = self.engine_for(handle.invitation.instance())?;
        let stage = match engine.peer(handle.invitation.instance()) {
            Some(peer) => self.hello(engine, peer, &handle)?,
            None => {
                let invitation = Some(&handle.invitation);
                let connecting = engine.connect_any(&handle.addresses, invitation);
                Stage::Asking { connecting }
            }
        };
        Ok(Attempt { handle, stage })
    }

    /// Next step. Returns the connection once it is established.
    pub(crate) fn advance(&self, attempt: &mut Attempt) -> Result<Option<Arc<SendEnd>>, CallError> {
        match &mut attempt.stage {
            Stage::Asking { connecting } => match connecting.try_wait() {
                None => Ok(None),
                Some(Ok(peer)) => {
                    let engine = self.engine_for(peer.instance())?;
                    attempt.stage = self.hello(engine, peer, &attempt.handle)?;
                    Ok(None)
                }
                Some(Err(error)) => Err(CallError::Broken(error.to_string())),
            },
            Stage::Greeting { peer } => {
                let (peer, engine) =
                    (peer.clone(), self.engine_for(attempt.handle.invitation.instance())?);
                attempt.stage = self.hello(engine, peer, &attempt.handle)?;
                Ok(None)
            }
            Stage::Waiting { send } => {
                send.end.check()?;
                Ok(send.end.is_connected().then(|| send.clone()))
            }
        }
    }

    fn hello(&self, engine: &Engine, peer: Peer, handle: &Handle) -> Result<Stage, CallError> {
        // No engine can be its own peer, so ranks that share a process have no caller lane.
        let is_own = handle.invitation.instance() == self.engine.instance();
        let express = self.express.clone().filter(|_| !is_own);
        let (key, send) = self.hub.insert(|key| {
            let batches = self.hub.batches.clone();
            let send = SendEnd::new(engine.clone(), peer.clone(), key, express.clone(), batches);
            (Any::Send(send.clone()), send)
        });
        let express = express.as_ref().map(|express| express.card());
        let body = Body::Hello { nonce: handle.nonce, from: key, express };
        let message = Message { to: handle.listener, body }.encode();
        match send.end.tell(message) {
            Ok(()) => Ok(Stage::Waiting { send }),
            Err(error) => {
                drop(self.hub.remove(key));
                if error.is_busy() {
                    return Ok(Stage::Greeting { peer });
                }
                Err(CallError::Broken(error.to_string()))
            }
        }
    }

    fn engine_for(&self, instance: InstanceId) -> Result<&Engine, CallError> {
        if instance != self.engine.instance() {
            return Ok(&self.engine);
        }
        match self.mirror.get() {
            Some(mirror) => Ok(mirror),
            None => {
                let mirror = build(&self.config, &self.hub)?;
                Ok(self.mirror.get_or_init(|| mirror))
            }
        }
    }
}

impl Net {
    /// Waits until all sent messages have arrived. Small ones count as sent once they have left.
    pub(crate) fn drain(&self) {
        if let Some(express) = &self.express {
            express.drain(FAREWELL);
        }
        self.engine.drain(FAREWELL);
        if let Some(mirror) = self.mirror.get() {
            mirror.drain(FAREWELL);
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.drain();
        self.hub.detach(&self.engine);
    }
}

/// Accepts the next connection of a listener, if any.
pub(crate) fn accept(hub: &Hub, listener: &Listener) -> Result<Option<Arc<RecvEnd>>, CallError> {
    let Some(arrival) = listener.pop() else { return Ok(None) };
    let Arrival { peer, from, express } = arrival;
    let engine = &listener.engine;
    let batch = hub.batches.of(engine, &peer);
    let to = |(here, there)| Way::to(here, there, peer.instance());
    let way = listener.express.as_ref().zip(express).map(to);
    let (key, recv) = hub.insert(|key| {
        let recv = RecvEnd::new(engine.clone(), peer.clone(), key, way, batch);
        recv.end.set_remote(from);
        (Any::Recv(recv.clone()), recv)
    });
    let undo = || {
        recv.shut();
        drop(hub.remove(key));
    };
    let mailbox = recv.open().inspect_err(|_| undo())?;
    let welcome = Body::Welcome { from: key, mailbox: &mailbox, express: recv.express_card() };
    match recv.welcome(recv.end.encode(welcome)) {
        Ok(()) => Ok(Some(recv)),
        Err(error) => {
            undo();
            if error.is_busy() {
                listener.put_back(Arrival { peer, from, express });
                return Ok(None);
            }
            Err(CallError::Broken(error.to_string()))
        }
    }
}

impl Attempt {
    /// End to remove if the connection is never established.
    pub(crate) fn key(&self) -> Option<u64> {
        match &self.stage {
            Stage::Asking { .. } | Stage::Greeting { .. } => None,
            Stage::Waiting { send } => Some(send.end.key),
        }
    }

    /// Addresses of the listener.
    pub(crate) fn target(&self) -> String {
        let addresses: Vec<String> = self.handle.addresses.iter().map(|a| a.to_string()).collect();
        addresses.join(", ")
    }
}

fn build(config: &Config, hub: &Arc<Hub>) -> Result<Engine, CallError> {
    let builder = Engine::builder().config(config.clone()).observer(hub.clone());
    builder.build().map_err(|error| CallError::Engine(error.to_string()))
}

fn rand_u64() -> Result<u64, CallError> {
    getrandom::u64().map_err(|error| CallError::Engine(format!("random bits: {error}")))
}

#[cfg(test)]
mod tests;
