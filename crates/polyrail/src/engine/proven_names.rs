//! Whom certificates say that engines are.
//!
//! A certificate is shown when an engine is introduced; its flows prove by metadata that they are of the
//! same engine. So its names are kept by its instance, which nobody else can claim.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use polyrail_proto::InstanceId;

/// Names that a certificate has proven; none where there was no certificate.
pub(crate) type Names = Arc<[String]>;

/// Engines that are remembered; the oldest is forgotten first.
const KNOWN_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct ProvenNames(Mutex<Known>);

#[derive(Default)]
struct Known {
    names: HashMap<InstanceId, Names>,
    order: VecDeque<InstanceId>,
}

impl ProvenNames {
    /// The engine has shown a certificate with these names.
    pub(crate) fn note(&self, instance: InstanceId, names: Names) {
        let mut known = self.0.lock();
        if known.names.insert(instance, names).is_some() {
            return;
        }
        known.order.push_back(instance);
        if known.order.len() > KNOWN_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.names.remove(&oldest);
        }
    }

    pub(crate) fn of(&self, instance: InstanceId) -> Names {
        self.0.lock().names.get(&instance).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let known = ProvenNames::default();
        let names = |name: &str| Names::from([name.to_owned()]);
        for number in 0..=KNOWN_MAX as u128 {
            known.note(InstanceId(number), names("first"));
            known.note(InstanceId(number), names("then"));
        }
        assert!(known.of(InstanceId(0)).is_empty());
        assert_eq!(known.of(InstanceId(1)), names("then"));
        assert_eq!(known.of(InstanceId(KNOWN_MAX as u128)), names("then"));
    }
}
