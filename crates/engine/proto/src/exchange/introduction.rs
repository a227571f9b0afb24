//! Metadata requests to an engine at the addresses that the user gives. If one engine has several addresses, the first
//! that answers counts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use polyrail_secure::{Certified, Proof, Secret};

use crate::hello::RefusedCode;
use crate::id::{InstanceId, Time};
use crate::invitation::Invitation;
use crate::liveness::STAGGER;
use crate::reason::{ConnectReason, Refusal, Unmet};

/// Refusal text for a connect string that leads to an engine other than its issuer.
const UNINVITED: &str = "another engine gave the invitation: this one was started again since, or \
                         the address leads elsewhere";

/// A metadata request to an engine.
pub struct Introduction {
    /// The requested engine, if it is known.
    pub to: Option<InstanceId>,
    /// The first credential that this engine uses.
    pub proof: (Proof, Secret),
    /// Addresses not tried yet.
    ahead: VecDeque<SocketAddr>,
    /// When to try the next address even though none has failed.
    next: Time,
    stagger: Duration,
    /// Connections that may still succeed.
    under_way: usize,
    failed: Vec<Unmet>,
}

impl Introduction {
    /// Requests the metadata of the engine at any of these addresses, each of which may take up to `limit`.
    /// `to_stranger`: the credential for an engine without a connect string.
    ///
    /// # Errors
    /// There is no address, or no credential.
    pub fn new(
        addresses: Vec<SocketAddr>,
        invitation: Option<Invitation>,
        to_stranger: impl FnOnce() -> Option<(Proof, Secret)>,
        limit: Duration,
        now: Time,
    ) -> Result<Self, Unmet> {
        let (to, proof) = match invitation {
            Some(invitation) => {
                let secret = invitation.capability().secret();
                (Some(invitation.instance()), Some((Proof::Capability, secret)))
            }
            None => (None, to_stranger()),
        };
        let Some(&address) = addresses.first() else {
            return Err(Unmet::most_telling(Vec::new()));
        };
        let proof = proof.ok_or(Unmet { address, why: ConnectReason::NoProof })?;
        // All of them are tried within half of the time that one may take.
        let stagger = STAGGER.min(limit / 2 / u32::try_from(addresses.len()).unwrap_or(u32::MAX));
        let ahead = addresses.into();
        Ok(Self { to, proof, ahead, next: now, stagger, under_way: 0, failed: Vec::new() })
    }

    /// Returns when to try the next address; `None` if none is left.
    pub fn due(&self) -> Option<Time> {
        (!self.ahead.is_empty()).then_some(self.next)
    }

    /// Returns the next address, to be tried now.
    pub fn next_address(&mut self, now: Time) -> Option<SocketAddr> {
        let address = self.ahead.pop_front()?;
        self.next = now.after(self.stagger);
        self.under_way += 1;
        Some(address)
    }

    /// Records that an address failed, which makes the next one due now. Returns the failure to report if none is left.
    pub fn handle_failed(&mut self, failed: Unmet, now: Time) -> Option<Unmet> {
        self.failed.push(failed);
        self.under_way -= 1;
        self.next = now;
        let is_over = self.ahead.is_empty() && self.under_way == 0;
        is_over.then(|| Unmet::most_telling(std::mem::take(&mut self.failed)))
    }
}

/// Returns whether an engine that refuses a credential with this code may accept a secret.
pub fn may_take_a_secret(by: Proof, code: RefusedCode) -> bool {
    // An engine of an older version does not know which credential was used.
    by == Proof::Certificate && matches!(code, RefusedCode::NoCertificates | RefusedCode::Unproven)
}

/// Returns the refusal that an engine answered with. `own`: this engine's certificate and its file, which are named
/// where the refusal is about them.
pub fn refusal_of_introduction(
    by: Proof,
    code: RefusedCode,
    reason: String,
    own: Option<(&Certified, &Path)>,
) -> Refusal {
    let text = match own {
        _ if by == Proof::Capability && code == RefusedCode::Unproven => UNINVITED.to_owned(),
        Some((certified, file)) if code.is_about_certificate() => {
            let (names, file) = (certified.names().join(", "), file.display());
            format!("{reason}; it is that of {names}, from certificate_file {file}")
        }
        _ => reason,
    };
    Refusal::new(code, text, Some(by))
}

#[cfg(test)]
mod tests {
    use polyrail_secure::Capability;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn unmet(port: u16, why: ConnectReason) -> Unmet {
        Unmet { address: at(port), why }
    }

    fn introduction(addresses: Vec<SocketAddr>, now: Time) -> Result<Introduction, Unmet> {
        let proof = || Some((Proof::Capability, Capability::new([1; 16]).secret()));
        Introduction::new(addresses, None, proof, LIMIT, now)
    }

    #[test]
    fn addresses_are_tried_one_after_another_and_at_once_where_one_fails() {
        let now = Time(1 << 40);
        let mut asked = introduction(vec![at(1), at(2), at(3)], now).unwrap();
        assert_eq!(asked.due(), Some(now));
        assert_eq!(asked.next_address(now), Some(at(1)));
        let stagger = LIMIT / 2 / 3;
        assert_eq!(asked.due(), Some(now.after(stagger)));
        assert_eq!(asked.handle_failed(unmet(1, ConnectReason::Closed), now), None);
        assert_eq!(asked.due(), Some(now));
        assert_eq!([(); 3].map(|()| asked.next_address(now)), [Some(at(2)), Some(at(3)), None]);
        assert_eq!(asked.due(), None);
        assert_eq!(asked.handle_failed(unmet(3, ConnectReason::NoRail), now), None);
        let last = asked.handle_failed(unmet(2, ConnectReason::NoRail), now);
        assert_eq!(last, Some(unmet(1, ConnectReason::Closed)));
    }

    #[test]
    fn without_an_address_or_a_proof_there_is_no_introduction() {
        assert!(introduction(Vec::new(), Time(1)).is_err());
        let none = Introduction::new(vec![at(1)], None, || None, LIMIT, Time(1)).err();
        assert_eq!(none, Some(unmet(1, ConnectReason::NoProof)));
    }

    #[test]
    fn a_refusal_tells_of_an_invitation_that_leads_elsewhere() {
        let refused = |by, code| refusal_of_introduction(by, code, "no".to_owned(), None).text;
        assert_eq!(refused(Proof::Capability, RefusedCode::Unproven), UNINVITED);
        assert_eq!(refused(Proof::Secret, RefusedCode::Unproven), "no");
        assert!(may_take_a_secret(Proof::Certificate, RefusedCode::NoCertificates));
        assert!(!may_take_a_secret(Proof::Secret, RefusedCode::Unproven));
    }
}
