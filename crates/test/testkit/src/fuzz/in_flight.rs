//! Chunks that a sender may send again: they landed, and it may not know that.

use std::collections::VecDeque;

/// Chunks of a flow that a receiver remembers at most.
pub(super) const REMEMBERED: usize = 6;

/// The chunks of a flow. `C` is what all copies of a chunk have in common.
#[derive(Debug, Default)]
pub(super) struct InFlight<C> {
    /// Connections whose end is not known.
    connections: u32,
    /// Frames that the sender of the newest may have in flight.
    window: u64,
    frames: u64,
    /// Chunks that landed, the newest last, with the numbers of their frames.
    landed: VecDeque<(u64, C)>,
}

impl<C: Copy> InFlight<C> {
    /// Returns how many connections have no known end.
    pub(super) fn connections(&self) -> u32 {
        self.connections
    }

    /// A connection is up, whose sender has at most `window` frames in flight.
    pub(super) fn handle_flow_up(&mut self, window: u32) {
        self.forget_known();
        self.connections += 1;
        self.window = u64::from(window);
    }

    /// A connection is gone. Returns the chunks that its sender may send again on any flow.
    pub(super) fn handle_flow_down(&mut self) -> Vec<C> {
        self.forget_known();
        self.connections = self.connections.saturating_sub(1);
        self.landed.drain(..).map(|(_, copies)| copies).collect()
    }

    /// The next frame has come. Returns its number.
    pub(super) fn next_frame(&mut self) -> u64 {
        self.frames += 1;
        self.frames - 1
    }

    /// The chunk of the frame with this number landed.
    pub(super) fn handle_landed(&mut self, frame: u64, copies: C) {
        self.landed.push_back((frame, copies));
        if self.landed.len() > REMEMBERED {
            self.landed.pop_front();
        }
    }

    /// Returns the chunks that the sender may send again.
    pub(super) fn unknown(&self) -> impl Iterator<Item = C> {
        let unknown = self.landed.iter().filter(|(frame, _)| self.is_unknown(*frame));
        unknown.map(|(_, copies)| *copies)
    }

    /// Returns whether the acknowledgement of the frame may not have reached the sender.
    fn is_unknown(&self, frame: u64) -> bool {
        frame + self.window >= self.frames
    }

    fn forget_known(&mut self) {
        let mut landed = std::mem::take(&mut self.landed);
        landed.retain(|(frame, _)| self.is_unknown(*frame));
        self.landed = landed;
    }
}
