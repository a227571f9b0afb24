//! Rails near a GPU: those whose devices share most of the path through the PCI bus with it, or otherwise its NUMA
//! node.

/// Position on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciPlace {
    /// Host bridge, bridges and the function itself: `pci0000:07`, `0000:07:00.0`, ….
    way: Vec<String>,
    node: Option<u32>,
}

impl PciPlace {
    /// Returns the position at the end of this path in sysfs; `None` if it does not lead through the PCI bus.
    pub fn new<'a>(steps: impl Iterator<Item = &'a str>, node: Option<u32>) -> Option<Self> {
        let way = steps.skip_while(|step| !step.starts_with("pci")).map(str::to_owned).collect();
        Some(Self { way, node }).filter(|place| !place.way.is_empty())
    }

    /// Returns how many steps of the path both share, and whether they share a node.
    fn shares(&self, other: &Self) -> (usize, bool) {
        let way = self.way.iter().zip(&other.way).take_while(|(one, two)| one == two).count();
        (way, self.node.is_some() && self.node == other.node)
    }
}

/// Returns the positions of the set bits.
pub fn numbers(bits: u64) -> impl Iterator<Item = usize> {
    (0..u64::BITS as usize).filter(move |at| bits >> at & 1 == 1)
}

/// Returns the rails at the least distance, as bits; 0 if all have that distance.
pub fn nearest(rails: &[(usize, PciPlace)], to: &PciPlace) -> u64 {
    let shared = |(_, place): &(usize, PciPlace)| place.shares(to);
    let most = rails.iter().map(shared).max();
    let near = rails.iter().filter(|rail| Some(shared(rail)) == most);
    let bits = near.clone().fold(0, |bits, (rail, _)| bits | 1 << rail);
    if near.count() == rails.len() { 0 } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(way: &str, node: Option<u32>) -> PciPlace {
        PciPlace::new(way.split('/'), node).unwrap()
    }

    #[test]
    fn the_rails_that_share_the_most_of_the_way_are_near() {
        let rails = [
            (0, place("pci0000:00/0000:00:0b.0", Some(0))),
            (2, place("pci0000:01/0000:01:00.0/0000:02:00.0/0000:06:00.0", Some(0))),
            (3, place("pci0000:01/0000:01:00.0/0000:02:01.0/0000:07:00.0", Some(0))),
            (5, place("pci0000:81/0000:81:00.0/0000:82:00.0/0000:86:00.0", Some(1))),
            (6, place("pci0000:91/0000:91:00.0", Some(1))),
        ];
        let near = |way, node| numbers(nearest(&rails, &place(way, node))).collect::<Vec<_>>();
        let switch = "pci0000:01/0000:01:00.0/0000:02:00.0/0000:04:00.0";
        assert_eq!(near(switch, Some(0)), [2]);
        assert_eq!(near("pci0000:01/0000:01:00.0/0000:02:05.0", Some(0)), [2, 3]);
        assert_eq!(near("pci0000:a1/0000:a1:00.0", Some(1)), [5, 6], "of its node");
        assert_eq!(near("pci0000:a1/0000:a1:00.0", None), [0usize; 0]);
        assert_eq!(nearest(&rails[1..3], &place("pci0000:01/0000:01:01.0", None)), 0, "all are");
    }
}
