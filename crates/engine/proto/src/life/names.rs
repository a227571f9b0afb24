//! Names of engines on their certificates.
//!
//! An engine shows its certificate in a metadata request; its flows then prove by metadata that they belong to the same
//! engine. So its names are stored by its instance, which no other engine can claim.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::id::InstanceId;

/// Names proven by a certificate; empty without one.
pub type Names = Arc<[String]>;

/// Maximum number of remembered engines. Beyond it, the oldest engine of the most frequent names is forgotten: a client
/// that requests metadata as one engine after another displaces only its own entries.
const KNOWN_MAX: usize = 1024;

/// Names of engines that have shown a certificate, within bounds.
#[derive(Debug, Default)]
pub struct ProvenNames {
    names: BTreeMap<InstanceId, Names>,
    order: VecDeque<InstanceId>,
}

impl ProvenNames {
    /// Records that the engine has shown a certificate with these names.
    pub fn note(&mut self, instance: InstanceId, names: Names) {
        if self.names.insert(instance, names).is_some() {
            return;
        }
        self.order.push_back(instance);
        if self.order.len() > KNOWN_MAX {
            self.forget_one();
        }
    }

    /// Returns the names of an engine; empty if it has shown no certificate.
    pub fn of(&self, instance: InstanceId) -> Names {
        self.names.get(&instance).cloned().unwrap_or_default()
    }

    fn forget_one(&mut self) {
        let mut counts: BTreeMap<&Names, usize> = BTreeMap::new();
        self.names.values().for_each(|names| *counts.entry(names).or_default() += 1);
        let most = counts.values().max().copied();
        let is_of_most = |one: &InstanceId| {
            self.names.get(one).and_then(|names| counts.get(names)).copied() == most
        };
        if let Some(oldest) = self.order.iter().position(is_of_most)
            && let Some(instance) = self.order.remove(oldest)
        {
            self.names.remove(&instance);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut known = ProvenNames::default();
        let names = |name: &str| Names::from([name.to_owned()]);
        for number in 0..=KNOWN_MAX as u128 {
            known.note(InstanceId(number), names("first"));
            known.note(InstanceId(number), names("then"));
        }
        assert!(known.of(InstanceId(0)).is_empty());
        assert_eq!(known.of(InstanceId(1)), names("then"));
        assert_eq!(known.of(InstanceId(KNOWN_MAX as u128)), names("then"));
    }

    #[test]
    fn who_introduces_itself_again_and_again_has_nobody_else_forgotten() {
        let mut known = ProvenNames::default();
        let names = |name: &str| Names::from([name.to_owned()]);
        let others = 0..100;
        others.clone().for_each(|number| known.note(InstanceId(number), names("other")));
        let many = 1000..1000 + 3 * KNOWN_MAX as u128;
        many.clone().for_each(|number| known.note(InstanceId(number), names("many")));
        assert!(others.into_iter().all(|number| known.of(InstanceId(number)) == names("other")));
        let kept = many.clone().filter(|number| !known.of(InstanceId(*number)).is_empty()).count();
        assert_eq!(kept, KNOWN_MAX - 100);
        assert_eq!(known.of(InstanceId(many.end - 1)), names("many"));
    }
}
