//! The peer's answers to chunks: acknowledged, refused, or refused for now. `postponed` keeps those that wait, `ending`
//! ends the transfer.

use super::rails::Load;
use super::{Failure, Sender, Source, TransferHandle};
use crate::id::{FlowIndex, Time};
use crate::wire::{AckFrame, RefusalCode, WireError};

/// Maximum refusals that ask to send a chunk again, plus [`RETRIES_OF_CHUNK_MAX`] for each chunk of the transfer;
/// beyond that the transfer fails. Such a chunk arrived damaged, in memory that the peer can't open, or on a flow that
/// the peer has no memory for. Each chunk may be refused on several flows, since all of them learn of the fault late.
const RETRIES_MAX: u32 = 1000;
const RETRIES_OF_CHUNK_MAX: u32 = 4;

impl<S: Source> Sender<S> {
    /// Handles the peer's acknowledgement or refusal of frames of `flow`. An error means that the peer violates the
    /// protocol: close the flow.
    pub fn handle_ack(
        &mut self,
        now: Time,
        flow: FlowIndex,
        ack: AckFrame,
    ) -> Result<(), WireError> {
        let (sequence, refused) = match ack {
            AckFrame::Ack { sequence } => (sequence, None),
            AckFrame::Refusal { sequence, code } => (sequence, Some(code)),
            AckFrame::Bye | AckFrame::Words(_) => return Ok(()),
        };
        let sent = self.flows[flow.0 as usize].pulled;
        if sequence > sent {
            return Err(WireError::AckBeyondSent { got: sequence, sent });
        }
        while self.flows[flow.0 as usize].acknowledged < sequence {
            let state = &mut self.flows[flow.0 as usize];
            let Some((handle, chunk, load)) = state.in_flight.pop_front() else { break };
            state.acknowledged += 1;
            if state.written < state.acknowledged {
                state.early.push_back(handle);
            }
            let last = state.acknowledged == sequence;
            let channel = self.channel_of(flow);
            self.channels[channel].in_flight -= 1;
            self.rails.landed(now, self.rail_of(flow), load);
            match refused {
                // A chunk that must be sent again does not count as progress.
                Some(code) if last => {
                    self.refused(now, handle, (chunk, load), code);
                    if !code.is_retryable() {
                        self.made_progress(now);
                    }
                }
                _ => {
                    self.acknowledged(handle);
                    self.made_progress(now);
                    // Other remaining chunks matter only while some rest.
                    let is_last = self.postponed.until().is_some() && self.is_nothing_else_left();
                    self.postponed.acknowledged((handle, chunk), is_last);
                }
            }
        }
        self.rails.heard(now, self.rail_of(flow));
        // An acknowledgement that repeats the last one counts, too: the peer lives and has a reason to take long. It is
        // a sign of life of the rail, but no progress.
        self.flows[flow.0 as usize].progress = now;
        Ok(())
    }

    /// Returns whether only chunks that the peer had no room for are left: nothing else is in flight or waits.
    fn is_nothing_else_left(&self) -> bool {
        self.given_back.is_empty()
            && self.small.is_empty()
            && self.bulk.is_empty()
            && self.channels.iter().all(|channel| channel.in_flight == 0)
    }

    fn acknowledged(&mut self, handle: TransferHandle) {
        self.highest = self.highest.max(handle.id);
        let Some(outgoing) = self.outgoing_mut(handle) else { return };
        outgoing.acknowledged += 1;
        self.finish_if_over(handle);
    }

    fn refused(
        &mut self,
        now: Time,
        handle: TransferHandle,
        (chunk, load): (u32, Load),
        code: RefusalCode,
    ) {
        let Some(outgoing) = self.outgoing_mut(handle) else { return };
        let ending = outgoing.ending.is_some();
        let again =
            matches!(code, RefusalCode::Checksum | RefusalCode::NoRing | RefusalCode::NoStaging);
        outgoing.retries += u32::from(again);
        let most = RETRIES_MAX.saturating_add(outgoing.chunk_count * RETRIES_OF_CHUNK_MAX);
        match code {
            _ if code.frees_itself() && !ending => {
                self.waits_again(handle, load);
                self.postponed.push(now, (handle, chunk), code);
            }
            // The driver stops using a bounce buffer that the peer can't open, and for a while a flow that the peer has
            // no memory for.
            _ if again && outgoing.retries <= most && !ending => {
                self.give_back(handle, chunk, load);
            }
            _ => self.end_outgoing(handle, Failure::Refused(code)),
        }
    }
}
