//! Progress of a copy that several threads share.

use std::fmt::Display;
use std::io;

use super::pieces::{CopyPart, Cursor, after};
use crate::sender::Failure;

/// Reason why a job was not copied to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The transfer ended early, for this reason.
    For(Failure),
    /// A region has ended. The rails find out at which end.
    RegionEnded,
    /// The job can't be copied this way, for this reason. The rails may still carry it.
    Impossible(String),
    /// A device of this process failed with this error. The rails may still carry the bytes.
    Device(String),
}

/// Pieces of a job that threads have claimed, and the reason if the job has stopped.
#[derive(Debug)]
pub struct Progress {
    parts: usize,
    at: Cursor,
    /// Pieces that are being copied.
    under_way: u32,
    stopped: Option<Stop>,
}

impl Stop {
    /// Returns the stop for a device error.
    pub fn device(error: impl Display) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        // The peer has ended the region, or has given up this process, which does not know yet.
        match error.kind() {
            io::ErrorKind::StaleNetworkFileHandle => Self::RegionEnded,
            _ => Self::Impossible(error.to_string()),
        }
    }
}

impl Progress {
    /// Starts a job of `parts` parts, all unclaimed.
    pub fn new(parts: usize) -> Self {
        Self { parts, at: Cursor::default(), under_way: 0, stopped: None }
    }

    /// Claims the next piece for the calling thread, and returns its start and its bytes. Returns `None` if all pieces
    /// are claimed or the job has stopped. While a piece is left, `reason_to_stop` may stop the job.
    pub fn claim<R>(
        &mut self,
        parts: &[CopyPart<R>],
        reason_to_stop: impl FnOnce() -> Option<Stop>,
    ) -> Option<(Cursor, u64)> {
        if self.stopped.is_none() && !self.is_all_claimed() {
            self.stopped = reason_to_stop();
        }
        if self.stopped.is_some() || self.is_all_claimed() {
            return None;
        }
        let from = self.at;
        let (next, bytes) = after(parts, from);
        self.at = next;
        self.under_way += 1;
        Some((from, bytes))
    }

    /// Records the result of copying a claimed piece.
    #[inline]
    pub fn copied(&mut self, result: Result<(), Stop>) {
        self.under_way -= 1;
        if let Err(stop) = result {
            // Unlike after `stop`, bytes are missing even if all pieces are claimed.
            self.stopped.get_or_insert(stop);
        }
    }

    /// Stops the job. Threads finish the pieces that they are copying; if no other pieces are left, the job completes.
    pub fn stop(&mut self, why: Stop) {
        if !self.is_all_claimed() {
            self.stopped.get_or_insert(why);
        }
    }

    /// Returns whether threads have claimed all pieces.
    #[inline]
    pub fn is_all_claimed(&self) -> bool {
        self.at.part >= self.parts
    }

    /// Returns whether no thread touches the memory any longer.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.under_way == 0 && (self.stopped.is_some() || self.is_all_claimed())
    }

    /// Returns the result of the job, once it is over.
    pub fn result(&self) -> Result<(), Stop> {
        self.stopped.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pieces::{PIECE_BYTES, PIECE_PARTS, pieces};
    use super::*;

    const CANCELLED: Stop = Stop::For(Failure::Cancelled);

    fn parts(lens: &[u64]) -> Vec<CopyPart<()>> {
        let part = |len| CopyPart { from: (), from_offset: 0, to: (), to_offset: 0, len };
        lens.iter().copied().map(part).collect()
    }

    #[test]
    fn pieces_cover_all_parts_once_and_in_order() {
        let many = vec![1; PIECE_PARTS + 1];
        for lens in [&[1, PIECE_BYTES, 0, 2 * PIECE_BYTES - 1, 7][..], &many, &[]] {
            let parts = parts(lens);
            let mut progress = Progress::new(parts.len());
            let mut copied = vec![0; lens.len()];
            while let Some((at, bytes)) = progress.claim(&parts, || None) {
                assert!(bytes <= PIECE_BYTES);
                let mut sum = 0;
                for piece in pieces(&parts, at, bytes) {
                    let part = parts.iter().position(|part| std::ptr::eq(part, piece.part));
                    let copied = &mut copied[part.unwrap()];
                    assert_eq!(*copied, piece.offset);
                    (*copied, sum) = (*copied + piece.len, sum + piece.len);
                }
                assert_eq!(sum, bytes);
                assert!(!progress.is_over());
                progress.copied(Ok(()));
            }
            assert_eq!(copied, lens);
            assert!(progress.is_over() && progress.result().is_ok());
        }
    }

    #[test]
    fn a_stop_matters_while_something_is_unclaimed_and_an_error_always() {
        let parts = parts(&[PIECE_BYTES, 1]);
        let mut progress = Progress::new(parts.len());
        assert!(progress.claim(&parts, || None).is_some());
        progress.stop(CANCELLED);
        progress.stop(Stop::RegionEnded);
        assert!(progress.claim(&parts, || panic!("it has stopped")).is_none());
        assert!(!progress.is_over(), "a piece is under way");
        progress.copied(Ok(()));
        assert!(progress.is_over());
        assert_eq!(progress.result(), Err(CANCELLED));

        let mut progress = Progress::new(parts.len());
        let claimed: Vec<_> = (0..2).map_while(|_| progress.claim(&parts, || None)).collect();
        assert!(claimed.len() == 2 && progress.is_all_claimed());
        progress.stop(CANCELLED);
        progress.copied(Ok(()));
        assert!(!progress.is_over() && progress.result().is_ok());
        progress.copied(Err(Stop::RegionEnded));
        assert_eq!(progress.result(), Err(Stop::RegionEnded));
    }

    #[test]
    fn a_reason_to_stop_ends_a_job_of_which_nothing_is_under_way() {
        let parts = parts(&[1]);
        let mut progress = Progress::new(parts.len());
        assert!(progress.claim(&parts, || Some(CANCELLED)).is_none());
        assert!(progress.is_over());
        assert_eq!(progress.result(), Err(CANCELLED));
    }
}
