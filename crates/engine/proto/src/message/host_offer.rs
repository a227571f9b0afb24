//! Offer of a region in host memory, which CPUs of another process of the host copy from and to.

use super::Offer;
use crate::codec::Reader;

const MAGIC: [u8; 4] = *b"PRH2";

/// Host memory that an engine offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOffer {
    /// Start time of the owner's process, in the kernel's ticks since the machine started.
    pub started: u64,
    /// Address of the memory in that process.
    pub base: u64,
    /// Size of the memory in bytes.
    pub len: u64,
    /// Addresses there of two words that show whether copies may begin.
    pub places: [u64; 2],
    /// Values of the words as long as copies may begin.
    pub values: [u64; 2],
}

impl HostOffer {
    /// Returns the offer of the process with this number in this PID namespace.
    pub fn encode(&self, process: u32, namespace: u64) -> Offer {
        let ([one, two], [value, other]) = (self.places, self.values);
        let words = [self.started, self.base, self.len, one, two, value, other];
        let export = MAGIC.into_iter().chain(words.into_iter().flat_map(u64::to_le_bytes));
        Offer { process, namespace, descriptors: Vec::new(), export: export.collect() }
    }

    /// Reads the output of [`Self::encode`]; `None` if something else is offered.
    pub fn decode(offer: &Offer) -> Option<Self> {
        let mut from = Reader::new("offer", &offer.export);
        let is_host = from.bytes("magic").ok()? == MAGIC && offer.descriptors.is_empty();
        let mut word = || from.u64("word").ok();
        let (started, base, len) = (word()?, word()?, word()?);
        let (places, values) = ([word()?, word()?], [word()?, word()?]);
        let is_host = from.end().is_ok() && is_host;
        is_host.then_some(Self { started, base, len, places, values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_of_host_memory_is_read_and_nothing_else_passes_for_one() {
        let host = HostOffer { started: 1, base: 2, len: 3, places: [4, 5], values: [6, u64::MAX] };
        let offer = host.encode(7, 8);
        assert_eq!((offer.process, offer.namespace, offer.export.len()), (7, 8, 60));
        assert_eq!(HostOffer::decode(&offer), Some(host));
        let with_descriptor = Offer { descriptors: vec![0], ..offer.clone() };
        assert_eq!(HostOffer::decode(&with_descriptor), None);
        let longer = [&offer.export[..], b"x"].concat();
        for export in [Vec::new(), vec![0; 60], offer.export[..59].to_vec(), longer] {
            assert_eq!(HostOffer::decode(&Offer { export, ..offer.clone() }), None);
        }
    }
}
