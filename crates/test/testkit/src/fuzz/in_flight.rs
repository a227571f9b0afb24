//! Chunks that a sender may send again: they landed, and the sender may not know that.

use std::collections::VecDeque;

/// Maximum number of a flow's chunks that a receiver remembers.
pub(super) const REMEMBERED: usize = 6;

/// Chunks of a flow. `C` is the part that all copies of a chunk share.
#[derive(Debug, Default)]
pub(super) struct InFlight<C> {
    /// Connections whose end is not known.
    connections: u32,
    /// Maximum frames in flight of the sender on the newest connection.
    window: u64,
    frames: u64,
    /// Chunks that landed, the newest last, with the numbers of their frames.
    landed: VecDeque<(u64, C)>,
}

impl<C: Copy> InFlight<C> {
    /// Number of connections without a known end.
    pub(super) fn connections(&self) -> u32 {
        self.connections
    }

    /// Records a new connection, whose sender has at most `window` frames in flight.
    pub(super) fn handle_flow_up(&mut self, window: u32) {
        self.forget_known();
        self.connections += 1;
        self.window = u64::from(window);
    }

    /// Records the end of a connection. Returns the chunks that its sender may send again on any flow.
    pub(super) fn handle_flow_down(&mut self) -> Vec<C> {
        self.forget_known();
        self.connections = self.connections.saturating_sub(1);
        self.landed.drain(..).map(|(_, copies)| copies).collect()
    }

    /// Records the next frame, and returns its number.
    pub(super) fn next_frame(&mut self) -> u64 {
        self.frames += 1;
        self.frames - 1
    }

    /// Records that the chunk of the frame with this number landed.
    pub(super) fn handle_landed(&mut self, frame: u64, copies: C) {
        self.landed.push_back((frame, copies));
        if self.landed.len() > REMEMBERED {
            self.landed.pop_front();
        }
    }

    /// Chunks that the sender may send again.
    pub(super) fn unknown(&self) -> impl Iterator<Item = C> {
        let unknown = self.landed.iter().filter(|(frame, _)| self.is_unknown(*frame));
        unknown.map(|(_, copies)| *copies)
    }

    /// True if the acknowledgement of the frame may not have reached the sender.
    fn is_unknown(&self, frame: u64) -> bool {
        frame + self.window >= self.frames
    }

    fn forget_known(&mut self) {
        let mut landed = std::mem::take(&mut self.landed);
        landed.retain(|(frame, _)| self.is_unknown(*frame));
        self.landed = landed;
    }
}
