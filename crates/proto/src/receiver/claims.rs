//! The claims of a peer's flows.

use super::landing::Claim;
use crate::id::FlowIndex;

/// A claim for each flow that has sent chunks and is not gone. Looking at all of them costs by the number of these
/// flows, whatever numbers the peer gives them.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By flow number: the position in `held`.
    places: Vec<Option<u32>>,
    held: Vec<Claim>,
    /// Positions that no flow has.
    free: Vec<u32>,
}

impl Claims {
    pub(super) fn get_mut(&mut self, flow: FlowIndex) -> Option<&mut Claim> {
        let place = (*self.places.get(flow.0 as usize)?)?;
        self.held.get_mut(place as usize)
    }

    /// The claim of a flow, which gets one if it has none.
    pub(super) fn enter(&mut self, flow: FlowIndex) -> &mut Claim {
        let number = flow.0 as usize;
        if self.places.len() <= number {
            self.places.resize(number + 1, None);
        }
        let place = *self.places[number].get_or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.held.push(Claim::NONE);
                // A peer has fewer flows than that.
                (self.held.len() - 1) as u32
            })
        });
        &mut self.held[place as usize]
    }

    /// The flow is gone.
    pub(super) fn leave(&mut self, flow: FlowIndex) {
        if let Some(place) = self.places.get_mut(flow.0 as usize).and_then(Option::take) {
            self.held[place as usize] = Claim::NONE;
            self.free.push(place);
        }
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

    #[test]
    fn a_look_at_all_claims_costs_by_the_flows_and_not_by_their_numbers() {
        let mut claims = Claims::default();
        for flow in [4095, 7, 4095, 2000] {
            claims.enter(FlowIndex(flow)).reading = true;
        }
        assert_eq!(claims.iter().count(), 3);
        claims.leave(FlowIndex(4095));
        assert!(claims.get_mut(FlowIndex(4095)).is_none());
        assert!(claims.get_mut(FlowIndex(9)).is_none());
        assert!(!claims.enter(FlowIndex(9)).reading, "it is free");
        assert_eq!(claims.iter_mut().filter(|claim| claim.reading).count(), 2);
        assert_eq!(claims.iter().count(), 3, "the place of the one that went is taken again");
    }
}
