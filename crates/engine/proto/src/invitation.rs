//! Invitations, with which clients connect that know only an address.

use std::fmt;
use std::str::FromStr;

use polyrail_secure::{CAPABILITY_BYTES, Capability};
use polyrail_text::debug_as_text;
use thiserror::Error;

use crate::id::InstanceId;

/// The beginning of every invitation as a text.
pub const PREFIX: &str = "pr2-";

/// Lets its holder connect to one engine, by `Engine::connect_by`: an engine's metadata without its addresses. Pass
/// it on by private means only, as bytes or as text.
///
/// ```
/// use polyrail_proto::invitation::Invitation;
///
/// let invitation = Invitation::from_bytes(&[7; Invitation::BYTES]);
/// assert_eq!(invitation.to_string().parse(), Ok(invitation));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    instance: InstanceId,
    capability: Capability,
}

/// A text that isn't an invitation; [`Invitation`] has an example of one.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("an invitation has {}, allowed are {PREFIX} and 64 hexadecimal digits", found(*.characters))]
pub struct InvitationError {
    /// Number of characters; the text itself may be a secret.
    pub characters: usize,
}

impl InvitationError {
    /// Advice on how to correct it.
    pub fn help(&self) -> &'static str {
        "copy the whole invitation: `Engine::invitation` returns it, and `polyrail bench --listen` prints it behind the \
         address"
    }
}

debug_as_text!(InvitationError, |error| Some(error.help().to_owned()));

fn found(characters: usize) -> String {
    format!("{characters} characters")
}

impl Invitation {
    /// Size of an invitation in bytes.
    pub const BYTES: usize = 16 + CAPABILITY_BYTES;

    /// An invitation to the engine of this instance, which accepts holders of the capability.
    pub fn new(instance: InstanceId, capability: Capability) -> Self {
        Self { instance, capability }
    }

    /// Returns the capability that the holder proves.
    pub fn capability(&self) -> &Capability {
        &self.capability
    }

    /// Returns the run of the engine that the invitation leads to.
    pub fn instance(&self) -> InstanceId {
        self.instance
    }

    /// Encodes the invitation.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.instance.0.to_le_bytes());
        bytes[16..].copy_from_slice(self.capability.bytes());
        bytes
    }

    /// Decodes bytes that [`Self::to_bytes`] returned. Only connecting shows whether an engine made them.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (mut instance, mut capability) = ([0; 16], [0; CAPABILITY_BYTES]);
        instance.copy_from_slice(&bytes[..16]);
        capability.copy_from_slice(&bytes[16..]);
        let instance = InstanceId(u128::from_le_bytes(instance));
        Self { instance, capability: Capability::new(capability) }
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Invitation {
    type Err = InvitationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = InvitationError { characters: text.chars().count() };
        let digits = text.strip_prefix(PREFIX).ok_or(wrong.clone())?.as_bytes();
        let mut bytes = [0; Self::BYTES];
        if digits.len() != 2 * bytes.len() {
            return Err(wrong);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(wrong);
            };
            // Each is below 16.
            *byte = (high << 4 | low) as u8;
        }
        Ok(Self::from_bytes(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_invitation_is_refused_without_being_shown() {
        let bytes: Vec<u8> = (0..32).collect();
        let invitation = Invitation::from_bytes(bytes.as_slice().try_into().unwrap());
        let text = invitation.to_string();
        assert_eq!(text.parse(), Ok(invitation));
        for wrong in
            ["", "pr2-", &text[1..], &text[..67], &format!("{text}0"), &text.replace('1', "é")]
        {
            let error = wrong.parse::<Invitation>().unwrap_err();
            assert!(error.to_string().contains("allowed are pr2- and 64"), "{error}");
        }
    }
}
