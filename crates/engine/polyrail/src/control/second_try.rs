//! Second attempts of clients whose certificate is not accepted here; see `polyrail_proto::liveness::SecondTries`.

use std::net::SocketAddr;
use std::time::Duration;

use polyrail_proto::Time;
use polyrail_proto::liveness::First;
use polyrail_proto::reason::ConnectReason;
use polyrail_secure::{HandshakeError, Proof};
use polyrail_sys::threads::monotonic_ns;

use super::Control;

impl Control {
    /// Whether a client that is refused for `why` may come again with a secret that this engine has.
    pub(super) fn awaits_second_try(
        &mut self,
        rail: usize,
        remote: SocketAddr,
        why: &HandshakeError,
    ) -> bool {
        if *why != HandshakeError::NotAccepted(Proof::Certificate)
            || self.engine.credentials.keyring.read().shared.is_empty()
        {
            return false;
        }
        let until = Time(monotonic_ns()).after(self.engine.settings.hello_timeout);
        self.second_tries.begin(rail, remote, until)
    }

    /// Notes that a client has authenticated.
    pub(super) fn note_proven(&mut self, remote: SocketAddr, by: Option<Proof>) {
        if by == Some(Proof::Secret) {
            self.second_tries.succeeds(remote.ip());
        }
    }

    /// Reports a refusal when the client has not come again.
    pub(super) fn end_second_tries(&mut self, now: Time) {
        while let Some(First { rail, remote, .. }) = self.second_tries.overdue(now) {
            let why = ConnectReason::from(HandshakeError::NotAccepted(Proof::Certificate));
            self.turn_away(rail, remote, &why);
        }
    }

    /// Reports all of them, as the engine ends.
    pub(super) fn give_up_second_tries(&mut self) {
        // The maximum of `connect_timeout_ms` bounds every wait.
        const HOUR: Duration = Duration::from_secs(3600);
        self.end_second_tries(Time(monotonic_ns()).after(HOUR));
    }
}
