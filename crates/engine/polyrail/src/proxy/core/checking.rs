//! Checks that only time calls for: stalled flows, and pinned memory that others wait for.

use super::{CHECK_NS, Core, streams};
use crate::engine::pass::Pass;
use crate::engine::peer::Down;
use crate::proxy::Proxy;
use crate::proxy::flow::Flow;
use crate::sender::flow::TxFlow;

impl Core {
    /// Excuses peers for the time in which no thread drove this proxy although the check was due: their bytes may
    /// be unread.
    fn excuse_absence(&self, pass: &Pass<'_>) {
        for (_, flow) in &self.flows {
            if let Some(tx) = judged(flow, pass) {
                tx.excuse(self.next_check, pass);
            }
        }
    }

    /// Frees idle rings, and ends flows in the middle of a payload that does not come, because a peer waits for pinned
    /// memory.
    pub(super) fn give_back(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) {
        let stalled =
            |(key, flow): (usize, &mut Flow)| flow.holds_memory_in_vain(pass).then_some(key);
        let late: Vec<usize> = self.flows.iter_mut().filter_map(stalled).collect();
        // Bytes may have come that this thread has not read.
        if !late.is_empty() {
            late.iter().for_each(|key| self.mark_readable(*key));
            self.read_ready(proxy, pass, false);
        }
        for key in late {
            if let Some(flow) = self.flows.get_mut(key)
                && !(pass.hasty && flow.peer.is_held())
                && flow.holds_memory_in_vain(pass)
            {
                let why = "its payload does not come, and other peers wait for pinned memory";
                self.drop_flow(key, Down(why.into()), proxy, pass);
            }
        }
        self.flows.iter_mut().for_each(|(_, flow)| flow.give_back());
        pass.copiers.let_go();
    }

    /// Ends stalled flows. Returns whether it read anything.
    pub(in crate::proxy) fn check_stalls(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) -> bool {
        let mut worked = false;
        // While this thread polls streams, nothing reports that a peer of one has died.
        streams(&self.streamed, &self.flows).for_each(|(_, _, stream)| stream.note_event());
        for place in 0..self.streamed.len() {
            self.mark_readable(self.streamed[place]);
        }
        if pass.now.saturating_sub(self.next_check) > CHECK_NS {
            self.excuse_absence(pass);
        }
        // Read what has come before judging any flow: this thread may be the late one.
        let seems_late = |(_, flow): &(usize, &Flow)| {
            judged(flow, pass).is_some_and(|tx| tx.seems_stalled(pass))
        };
        let late: Vec<usize> = self.flows.iter().filter(seems_late).map(|(key, _)| key).collect();
        if !late.is_empty() {
            late.iter().for_each(|key| self.mark_readable(*key));
            worked |= self.read_ready(proxy, pass, false);
        }
        let mut broken = Vec::new();
        for key in late {
            if let Some(Flow { connection, tx: Some(tx), .. }) = self.flows.get_mut(key)
                && !(pass.hasty && tx.peer.is_tx_held())
                && let Err(down) = tx.check_stall(&connection.wire, pass)
            {
                broken.push((key, down));
            }
        }
        for (key, down) in broken {
            self.drop_flow(key, down, proxy, pass);
        }
        for (key, flow) in &mut self.flows {
            if let Some(rx) = &mut flow.rx
                && !(pass.hasty && rx.peer.is_held())
            {
                rx.show_life(pass);
                if rx.owes_acks() && !self.owing.contains(&key) {
                    self.owing.push(key);
                }
            }
        }
        worked
    }
}

/// The sending side, if the pass may judge it: a hasty one waits for no lock.
fn judged<'a>(flow: &'a Flow, pass: &Pass<'_>) -> Option<&'a TxFlow> {
    flow.tx.as_deref().filter(|tx| !(pass.hasty && tx.peer.is_tx_held()))
}
