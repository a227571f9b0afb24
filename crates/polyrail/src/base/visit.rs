//! How much one flow may read before other flows get their turn.

/// One visit to a flow: it ends after so many bytes, or after [`VISIT_NS`].
pub(crate) struct Visit {
    left: usize,
    ends_at: u64,
}

/// Small frames take more time than their bytes tell.
const VISIT_NS: u64 = 2_000_000;

impl Visit {
    /// Of at most this many bytes, and the receive that goes over it; `now`: ns, monotonic.
    pub(crate) fn new(bytes: usize, now: u64) -> Self {
        Self { left: bytes, ends_at: now.saturating_add(VISIT_NS) }
    }

    /// Counts what was received. Says whether the visit is over.
    pub(crate) fn is_over_after(&mut self, bytes: usize, now: u64) -> bool {
        self.left = self.left.saturating_sub(bytes);
        self.left == 0 || now >= self.ends_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visit_ends_after_its_bytes_or_its_time() {
        let mut visit = Visit::new(100, 5);
        assert!(!visit.is_over_after(99, 5 + VISIT_NS - 1));
        assert!(visit.is_over_after(1, 5));
        let mut visit = Visit::new(100, 5);
        assert!(visit.is_over_after(0, 5 + VISIT_NS));
        assert!(Visit::new(100, u64::MAX).is_over_after(usize::MAX, 0));
    }
}
