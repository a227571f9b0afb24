//! Introductions: engines at addresses that the user names are asked for their metadata. Of several addresses of one
//! engine the first that answers counts.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_proto::InstanceId;
use polyrail_proto::exchange::FirstWords;
use polyrail_proto::hello::{Hello, Metadata, RefusedCode};
use polyrail_proto::invitation::Invitation;
use polyrail_proto::liveness::Way;
use polyrail_proto::reason::{ConnectReason, Refusal, Unmet};
use polyrail_secure::{Proof, Secret};
use polyrail_sys::tcp;

use super::Control;
use crate::control::handshake::{Cause, Handshake};
use crate::control::second_way::{Dialed, STAGGER};
use crate::engine::tasks::Answer;

/// Why nobody is welcome where an invitation should have led.
const UNINVITED: &str = "another engine gave the invitation: this one was started again since, or \
                         the address leads elsewhere";

/// An engine that is asked for its metadata.
pub(super) struct Introduction {
    /// Which engine, if that is known.
    to: Option<InstanceId>,
    proof: (Proof, Secret),
    /// Addresses that were not tried yet.
    ahead: VecDeque<SocketAddr>,
    /// When the next of them is tried, though none has failed.
    next: Instant,
    stagger: Duration,
    /// Connections that may still lead there.
    under_way: usize,
    failed: Vec<Unmet>,
    answer: Answer<Result<Metadata, Unmet>>,
}

impl Control {
    /// Asks the engine at any of these addresses.
    pub(super) fn introduce(
        &mut self,
        addresses: Vec<SocketAddr>,
        invitation: Option<Invitation>,
        answer: Answer<Result<Metadata, Unmet>>,
    ) {
        self.engine.credentials.renew();
        let (to, proof) = match invitation {
            Some(invitation) => {
                let secret = invitation.capability().secret();
                (Some(invitation.instance()), Some((Proof::Capability, secret)))
            }
            None => (None, self.engine.credentials.keyring.read().to_stranger()),
        };
        let Some(&first) = addresses.first() else {
            return answer.give(Err(Unmet::most_telling(Vec::new())));
        };
        let Some(proof) = proof else {
            return answer.give(Err(Unmet { address: first, why: ConnectReason::NoProof }));
        };
        // All of them have had their turn within half of the time that one may take.
        let most = self.engine.settings.connect_timeout / 2;
        let stagger = STAGGER.min(most / u32::try_from(addresses.len()).unwrap_or(u32::MAX));
        let of = self.introductions.insert(Introduction {
            to,
            proof,
            ahead: addresses.into(),
            next: Instant::now(),
            stagger,
            under_way: 0,
            failed: Vec::new(),
            answer,
        });
        self.try_next_address(of);
    }

    /// When the next address of an introduction is to be tried.
    pub(super) fn introduction_due(&self) -> Option<Instant> {
        let ahead = self.introductions.iter().filter(|(_, asked)| !asked.ahead.is_empty());
        ahead.map(|(_, asked)| asked.next).min()
    }

    /// Tries further addresses beside those that have not answered.
    pub(super) fn go_on_introducing(&mut self, now: Instant) {
        let is_due = |asked: &Introduction| !asked.ahead.is_empty() && asked.next <= now;
        let due = self.introductions.iter().filter(|(_, asked)| is_due(asked));
        let due: Vec<usize> = due.map(|(of, _)| of).collect();
        due.into_iter().for_each(|of| self.try_next_address(of));
    }

    fn try_next_address(&mut self, of: usize) {
        let Some(asked) = self.introductions.get_mut(of) else { return };
        let Some(address) = asked.ahead.pop_front() else { return };
        asked.next = Instant::now() + asked.stagger;
        asked.under_way += 1;
        let proof = asked.proof.clone();
        self.ask_at(of, address, proof);
    }

    /// Asks there, and proves this.
    fn ask_at(&mut self, of: usize, address: SocketAddr, (by, secret): (Proof, Secret)) {
        let Some(asked) = self.introductions.get(of) else { return };
        let to = asked.to;
        match self.greet_at(address, to, (by, &secret)) {
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

    /// An address came to nothing: another one is tried next, by the control thread's loop. Hundreds may fail at once.
    pub(super) fn not_introduced(&mut self, of: usize, address: SocketAddr, why: ConnectReason) {
        let Some(asked) = self.introductions.get_mut(of) else { return };
        asked.failed.push(Unmet { address, why });
        asked.under_way -= 1;
        if !asked.ahead.is_empty() {
            asked.next = Instant::now();
        } else if asked.under_way == 0 {
            self.end_introduction(of, |failed| Err(Unmet::most_telling(failed)));
        }
    }

    /// The engine there refuses. If it takes no certificates, a secret may do.
    pub(super) fn introduction_refused(
        &mut self,
        of: usize,
        by: Proof,
        address: SocketAddr,
        (code, reason): (RefusedCode, String),
    ) {
        // An engine of an older version does not know what was tried.
        let takes_none = [RefusedCode::NoCertificates, RefusedCode::Unproven];
        if by == Proof::Certificate
            && takes_none.contains(&code)
            && let Some(secret) = self.first_secret()
        {
            tracing::info!(target: "polyrail::peer", remote = %address,
                "no certificates are taken there: tries secret_file");
            return self.ask_at(of, address, (Proof::Secret, secret));
        }
        let is_other = by == Proof::Capability && code == RefusedCode::Unproven;
        let text = if is_other { UNINVITED.to_owned() } else { self.of_own(code, reason) };
        let refusal = Refusal::new(code, text, Some(by));
        self.not_introduced(of, address, ConnectReason::Refused(refusal));
    }

    pub(super) fn end_introduction(
        &mut self,
        of: usize,
        result: impl FnOnce(Vec<Unmet>) -> Result<Metadata, Unmet>,
    ) {
        let Some(Introduction { failed, answer, .. }) = self.introductions.try_remove(of) else {
            return;
        };
        // The others are asked no more; their sockets leave the poller as they close.
        let is_of =
            |cause: &Cause| matches!(cause, Cause::Introduction { of: it, .. } if *it == of);
        self.handshakes.retain(|_, handshake| !is_of(&handshake.cause));
        answer.give(result(failed));
    }

    /// The words of the engine that refuses; where they are about this engine's certificate, with which
    /// one that is.
    fn of_own(&self, code: RefusedCode, reason: String) -> String {
        let own = &self.engine.credentials;
        let (Some(certified), Some(files)) = (own.certified(), &own.certificates) else {
            return reason;
        };
        match code {
            RefusedCode::CertificateUntrusted
            | RefusedCode::CertificateExpired
            | RefusedCode::CertificateNotYetValid
            | RefusedCode::CertificateUsage
            | RefusedCode::NameNotAllowed
            | RefusedCode::CertificateMalformed
            | RefusedCode::CertificateStatement => {
                let (names, file) = (certified.names().join(", "), files.file().display());
                format!("{reason}; it is that of {names}, from certificate_file {file}")
            }
            _ => reason,
        }
    }

    /// What is proven where certificates are not taken.
    fn first_secret(&self) -> Option<Secret> {
        self.engine.credentials.keyring.read().shared.first().cloned()
    }
}
