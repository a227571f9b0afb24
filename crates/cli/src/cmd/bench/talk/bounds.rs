//! Bounds on a client's requests: the limits of the client's own options. No request can end the server, which other
//! clients wait for.

use super::messages::{End, SetUp};
use super::raw_spec::RawSpec;
use crate::cmd::bench::options::{
    DEPTH_MAX, Layout, OUTSTANDING_SEGMENTS_MAX, POSTERS_MAX, SEGMENTS_MAX,
};
use crate::fault::Fault;

/// Maximum number of connections of the baseline in each direction: eight rails with 128 sockets each. Each has a
/// thread at both ends.
const RAW_FLOWS_MAX: u64 = 1024;
/// More bytes than any machine has. The sum of two such numbers does not overflow.
const BYTES_MAX: u64 = 1 << 56;

impl SetUp {
    /// Returns the bytes of memory that this end needs.
    pub(crate) fn memory_bytes(&self, end: End) -> u64 {
        let regions = u64::from(self.sends(end)) + u64::from(self.receives(end));
        self.layout.region_bytes().saturating_mul(regions)
    }

    /// Refuses a request that a client with valid options can't make.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let Layout { size, segments, slots } = self.layout;
        within("segments", segments, 1, SEGMENTS_MAX)?;
        within("slots", slots, 1, OUTSTANDING_SEGMENTS_MAX / segments)?;
        within("size", size, 0, BYTES_MAX / slots)?;
        if !size.is_multiple_of(segments) {
            let allowed = format!("multiples of segments ({segments})");
            return Err(refused("size", size, allowed));
        }
        within("depth", self.depth, 1, DEPTH_MAX)?;
        within("posters", self.posters, 1, slots.min(POSTERS_MAX))
    }
}

impl RawSpec {
    /// Refuses a baseline that a client with valid options can't request.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        within("flows", self.flows as u64, 1, RAW_FLOWS_MAX)?;
        within("area", self.area, 1, BYTES_MAX)?;
        within("piece", self.piece, 1, self.area)?;
        if self.area.is_multiple_of(self.piece) {
            return Ok(());
        }
        Err(refused("area", self.area, format!("multiples of piece ({})", self.piece)))
    }
}

fn within(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), Fault> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(refused(field, value, format!("{least} to {most}")))
}

fn refused(field: &'static str, value: u64, allowed: String) -> Fault {
    Fault::usage(field, value, "is nothing that a client asks for", allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::options::Op;

    fn set_up() -> SetUp {
        let layout = Layout::new(1 << 20, 16, 16);
        SetUp {
            op: Op::Send,
            layout,
            depth: 16,
            posters: 2,
            bidir: true,
            latency: false,
            seed: 1,
            process: 1,
            sample: false,
            regions: super::super::Regions::default(),
        }
    }

    fn refusal(change: impl FnOnce(&mut SetUp)) -> String {
        let mut asked = set_up();
        change(&mut asked);
        asked.check().unwrap_err().to_string()
    }

    #[test]
    fn what_no_client_asks_for_is_refused_with_field_value_and_what_is_allowed() {
        set_up().check().unwrap();
        let text = refusal(|asked| asked.posters = 0);
        assert!(
            text.contains("posters") && text.contains("`0`") && text.contains("1 to "),
            "{text}"
        );
        for (text, field) in [
            (refusal(|asked| asked.posters = 257), "posters"),
            (refusal(|asked| asked.depth = 0), "depth"),
            (refusal(|asked| asked.depth = u64::MAX), "depth"),
            (refusal(|asked| asked.layout.segments = 0), "segments"),
            (refusal(|asked| asked.layout.segments = 1 << 40), "segments"),
            (refusal(|asked| asked.layout.slots = 0), "slots"),
            (refusal(|asked| asked.layout.slots = u64::MAX), "slots"),
            (refusal(|asked| asked.layout.size = u64::MAX), "size"),
            (refusal(|asked| asked.layout.size = 17), "size"),
        ] {
            assert!(text.contains(field), "{field}: {text}");
        }
    }

    #[test]
    fn the_largest_that_options_allow_is_taken() {
        for (size, segments, depth) in [(8, 1, DEPTH_MAX), (1 << 30, SEGMENTS_MAX, 4), (0, 1, 1)] {
            let layout = Layout::new(size, segments, depth);
            SetUp { layout, depth, posters: 1, ..set_up() }.check().unwrap();
        }
    }

    #[test]
    fn scattered_segments_take_more_memory_than_the_message() {
        let layout = Layout::new(1 << 20, 16, 16);
        let asked = SetUp { layout, ..set_up() };
        assert!(layout.region_bytes() > layout.size * layout.slots);
        assert_eq!(asked.memory_bytes(End::Server), 2 * layout.region_bytes());
        let asked = SetUp { bidir: false, ..asked };
        assert_eq!(asked.memory_bytes(End::Server), layout.region_bytes());
    }

    #[test]
    fn a_baseline_has_flows_and_whole_pieces() {
        let spec = RawSpec {
            flows: 3,
            piece: 10,
            area: 50,
            to_peer: true,
            to_us: true,
            ping_pong: false,
            congestion: String::new(),
            send_buffer: 0,
            recv_buffer: 0,
            seed: 3,
        };
        spec.check().unwrap();
        for wrong in [
            RawSpec { flows: 0, ..spec.clone() },
            RawSpec { flows: 1025, ..spec.clone() },
            RawSpec { piece: 0, ..spec.clone() },
            RawSpec { piece: 60, ..spec.clone() },
            RawSpec { piece: 20, ..spec.clone() },
            RawSpec { area: u64::MAX, ..spec.clone() },
        ] {
            let text = wrong.check().unwrap_err().to_string();
            assert!(text.contains("allowed"), "{text}");
        }
        RawSpec { flows: 1024, ..spec.clone() }.check().unwrap();
        let text = RawSpec { flows: 1 << 16, ..spec }.check().unwrap_err().to_string();
        assert!(text.contains("flows `65536`") && text.ends_with("allowed: 1 to 1024"), "{text}");
    }
}
