//! Metadata requests: asks engines at addresses that the user names for their metadata, in the order of
//! [`Introduction`].

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_proto::exchange::{
    FirstWords, Introduction, may_take_a_secret, refusal_of_introduction,
};
use polyrail_proto::hello::{Hello, Metadata, RefusedCode};
use polyrail_proto::invitation::Invitation;
use polyrail_proto::liveness::Way;
use polyrail_proto::reason::{ConnectReason, Unmet};
use polyrail_proto::{InstanceId, Time};
use polyrail_secure::{Proof, Secret};
use polyrail_sys::tcp;
use polyrail_sys::threads::monotonic_ns;

use super::Control;
use crate::base::certificate_files::CertificateFiles;
use crate::control::handshake::{Cause, Handshake};
use crate::control::second_way::Dialed;
use crate::engine::tasks::Answer;

impl Control {
    /// Asks the engine at these addresses for its metadata.
    pub(super) fn introduce(
        &mut self,
        addresses: Vec<SocketAddr>,
        invitation: Option<Invitation>,
        answer: Answer<Result<Metadata, Unmet>>,
    ) {
        self.engine.credentials.renew();
        let (limit, now) = (self.engine.settings.connect_timeout, Time(monotonic_ns()));
        let to_stranger = || self.engine.credentials.keyring.read().to_stranger();
        match Introduction::new(addresses, invitation, to_stranger, limit, now) {
            Ok(asked) => {
                let of = self.introductions.insert((asked, answer));
                self.try_next_address(of);
            }
            Err(unmet) => answer.give(Err(unmet)),
        }
    }

    /// Time at which the next address of an introduction must be tried.
    pub(super) fn introduction_due(&self) -> Option<Time> {
        self.introductions.iter().filter_map(|(_, (asked, _))| asked.due()).min()
    }

    /// Tries further addresses, in addition to those that have not answered.
    pub(super) fn go_on_introducing(&mut self, now: Time) {
        let is_due = |asked: &Introduction| asked.due().is_some_and(|due| due <= now);
        let due = self.introductions.iter().filter(|(_, (asked, _))| is_due(asked));
        let due: Vec<usize> = due.map(|(of, _)| of).collect();
        due.into_iter().for_each(|of| self.try_next_address(of));
    }

    fn try_next_address(&mut self, of: usize) {
        let Some((asked, _)) = self.introductions.get_mut(of) else { return };
        let Some(address) = asked.next_address(Time(monotonic_ns())) else { return };
        let proof = asked.proof.clone();
        self.ask_at(of, address, proof);
    }

    /// Asks at an address, with this proof.
    fn ask_at(&mut self, of: usize, address: SocketAddr, (by, secret): (Proof, Secret)) {
        let Some((asked, _)) = self.introductions.get(of) else { return };
        match self.greet_at(address, asked.to, (by, &secret)) {
            Ok((dialed, greeting)) => {
                let deadline = Instant::now() + self.engine.settings.connect_timeout;
                let (cause, times) = (Cause::Introduction { of, by }, (deadline, Duration::ZERO));
                self.begin(Handshake::connecting(dialed, cause, address, times, greeting));
            }
            Err(why) => self.not_introduced(of, address, why),
        }
    }

    fn greet_at(
        &self,
        address: SocketAddr,
        to: Option<InstanceId>,
        proof: (Proof, &Secret),
    ) -> Result<(Dialed, FirstWords), ConnectReason> {
        let engine = &self.engine;
        if !engine.rails.iter().any(|rail| rail.address.is_ipv4() == address.is_ipv4()) {
            return Err(ConnectReason::NoRail);
        }
        // The kernel's routes know best which way leads to a bare address.
        let source: IpAddr = match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let own = &engine.credentials;
        let hello = Hello::Introduction(own.metadata(&engine.card));
        let greeting = own.first_words(proof, to, hello)?;
        let options = engine.settings.flow_options(false);
        let socket = tcp::start_connect(source, None, address, &options)?;
        Ok((Dialed { socket, way: Way::Address, second: None }, greeting))
    }

    /// Handles a failed address. The control thread's loop tries another one next, because hundreds may fail at once.
    pub(super) fn not_introduced(&mut self, of: usize, address: SocketAddr, why: ConnectReason) {
        let Some((asked, _)) = self.introductions.get_mut(of) else { return };
        if let Some(unmet) = asked.handle_failed(Unmet { address, why }, Time(monotonic_ns())) {
            self.end_introduction(of, Err(unmet));
        }
    }

    /// Handles a refusal. If that engine takes no certificates, tries a secret.
    pub(super) fn introduction_refused(
        &mut self,
        of: usize,
        by: Proof,
        address: SocketAddr,
        (code, reason): (RefusedCode, String),
    ) {
        let own = &self.engine.credentials;
        let first_secret = || own.keyring.read().shared.first().cloned();
        if let Some(secret) = may_take_a_secret(by, code).then(first_secret).flatten() {
            tracing::info!(target: "polyrail::peer", remote = %address,
                "no certificates are taken there: tries secret_file");
            return self.ask_at(of, address, (Proof::Secret, secret));
        }
        let (certified, files) = (own.certified(), own.certificates.as_ref());
        let certificate = certified.as_deref().zip(files.map(CertificateFiles::file));
        let refusal = refusal_of_introduction(by, code, reason, certificate);
        self.not_introduced(of, address, ConnectReason::Refused(refusal));
    }

    pub(super) fn end_introduction(&mut self, of: usize, result: Result<Metadata, Unmet>) {
        let Some((_, answer)) = self.introductions.try_remove(of) else { return };
        // The other addresses are asked no more; their sockets leave the poller as they close.
        let is_of =
            |cause: &Cause| matches!(cause, Cause::Introduction { of: it, .. } if *it == of);
        self.handshakes.retain(|_, handshake| !is_of(&handshake.cause));
        answer.give(result);
    }
}
