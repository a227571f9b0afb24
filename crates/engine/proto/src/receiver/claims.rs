//! Claims of a peer's flows.

use super::landing::Claim;
use crate::id::FlowIndex;

/// A claim for each flow that is in the middle of a chunk. Iterating over all costs time by the number of these flows:
/// not by the peer's number of flows, nor by the numbers that it gives them.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By flow number: the position in `held`.
    places: Vec<Option<u32>>,
    held: Vec<Claim>,
}

impl Claims {
    pub(super) fn get_mut(&mut self, flow: FlowIndex) -> Option<&mut Claim> {
        let place = (*self.places.get(flow.0 as usize)?)?;
        self.held.get_mut(place as usize)
    }

    /// Starts a claim for a chunk that begins. An unfinished claim of the same flow is replaced.
    pub(super) fn begin(&mut self, claim: Claim) {
        let number = claim.flow.0 as usize;
        if self.places.len() <= number {
            self.places.resize(number + 1, None);
        }
        match self.places[number] {
            Some(place) => self.held[place as usize] = claim,
            None => {
                // A peer has fewer flows than that.
                self.places[number] = Some(self.held.len() as u32);
                self.held.push(claim);
            }
        }
    }

    /// Ends the claim of a flow whose chunk has ended, or that is gone.
    pub(super) fn end(&mut self, flow: FlowIndex) -> Option<Claim> {
        let place = self.places.get_mut(flow.0 as usize)?.take()?;
        let ended = self.held.swap_remove(place as usize);
        if let Some(moved) = self.held.get(place as usize) {
            self.places[moved.flow.0 as usize] = Some(place);
        }
        Some(ended)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.held.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Claim> {
        self.held.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TransferId;
    use crate::proof::Proofs;
    use crate::proof::tests::head;

    fn claim(flow: u32) -> Claim {
        let target = Some((TransferId(u64::from(flow)), 0));
        let head = head(&Proofs::new(1, 1), u64::from(flow), 0);
        Claim {
            flow: FlowIndex(flow),
            target,
            head,
            reading: false,
            verdict: None,
            is_orphan: false,
        }
    }

    #[test]
    fn there_are_as_many_claims_as_flows_in_the_middle_of_a_chunk() {
        let mut claims = Claims::default();
        for flow in [4095, 7, 4095, 2000] {
            claims.begin(claim(flow));
        }
        assert_eq!(claims.iter().count(), 3);
        let ended = claims.end(FlowIndex(4095)).unwrap();
        assert_eq!(ended.flow, FlowIndex(4095));
        assert!(claims.end(FlowIndex(4095)).is_none() && claims.get_mut(FlowIndex(9)).is_none());
        for flow in [7, 2000] {
            let claim = claims.get_mut(FlowIndex(flow)).unwrap();
            assert_eq!(claim.target, Some((TransferId(flow.into()), 0)), "it has moved");
        }
        assert_eq!(claims.iter_mut().count(), 2);
        for flow in [2000, 7] {
            claims.end(FlowIndex(flow)).unwrap();
        }
        assert!(claims.is_empty() && claims.iter().count() == 0);
    }
}
