//! What carries an operation, where it is not the rails.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyrail_proto::Failure;
use polyrail_proto::copying::Stop;
use polyrail_proto::error::TransferError;
use polyrail_proto::message::PostedReceive;
use polyrail_proto::path::PathKind;

use super::Op;
use crate::device::host_copy::job::HostJob;
use crate::engine::carriage::{Carriage, CpuCopies};
use crate::engine::outcome::Outcome;
use crate::engine::peer::OpKind;
use crate::memory::tickets::all_done;

impl Op {
    /// Before anybody is asked to carry it, or looks for its end. With the lock of the peer's sender held if
    /// CPUs copy a send: who cancels it looks for that with the same lock.
    pub(crate) fn set_carriage(&self, carriage: Carriage) {
        // The first holds: an operation is begun once.
        let _ = self.carriage.set(carriage);
    }

    /// What carries it as things stand; `None` if the rails do.
    fn carriage(&self) -> Option<&Carriage> {
        let is_given_up =
            |carriage: &&Carriage| matches!(carriage, Carriage::Cpus(it) if it.is_given_up());
        self.carriage.get().filter(|carriage| !is_given_up(carriage))
    }

    /// What CPUs copy of it from end to end, or could not.
    fn cpu_copies(&self) -> Option<&CpuCopies> {
        match self.carriage.get()? {
            Carriage::Cpus(copies) => Some(copies),
            Carriage::Devices(_) | Carriage::Caller | Carriage::Sender | Carriage::Shared => None,
        }
    }

    /// The job that copies a send, and the receive that it is copied into.
    pub(crate) fn message_job(&self) -> Option<(&Arc<HostJob>, &PostedReceive)> {
        let copies = self.cpu_copies()?;
        Some((&copies.job, copies.receive.as_ref()?))
    }

    /// Whether its payload lies in memory that the peer has open, while that works.
    pub(in crate::engine) fn is_shared(&self) -> bool {
        self.prepared.path.kind == PathKind::Shared
            || matches!(self.carriage.get(), Some(Carriage::Shared))
    }

    /// Which way its bytes went.
    pub(crate) fn path_taken(&self) -> PathKind {
        let planned = self.prepared.path.kind;
        match (self.carriage(), self.prepared.kind) {
            (Some(Carriage::Sender), _) => PathKind::SingleCopy,
            (Some(Carriage::Shared), _) => PathKind::Shared,
            (Some(Carriage::Cpus(_)), OpKind::Send { .. }) => PathKind::SingleCopy,
            (Some(Carriage::Cpus(_) | Carriage::Devices(_) | Carriage::Caller), _) => planned,
            (None, OpKind::Write | OpKind::Read | OpKind::Send { .. })
                if planned == PathKind::SingleCopy =>
            {
                PathKind::Tcp
            }
            (None, _) => planned,
        }
    }

    /// Whether it is over for this end once it is copied: of messages and notifications the peer has to
    /// hear first.
    pub(crate) fn ends_with_copies(&self) -> bool {
        !self.notifies() && !matches!(self.prepared.kind, OpKind::Send { .. })
    }

    /// Whether it is copied from end to end.
    pub(crate) fn is_copying(&self) -> bool {
        use Carriage::{Caller, Cpus, Devices};
        matches!(self.carriage(), Some(Devices(_) | Cpus(_) | Caller))
    }

    /// Whether CPUs copy it from end to end and are not done.
    pub(crate) fn is_copying_by_cpus(&self) -> bool {
        matches!(self.carriage(), Some(Carriage::Cpus(copies)) if copies.job.ended().is_none())
    }

    /// What CPUs copy can be stopped, and is over soon; says whether it is such.
    pub(crate) fn stop_copying(&self, failure: Failure) -> bool {
        let Some(Carriage::Cpus(copies)) = self.carriage() else { return false };
        copies.job.stop(Stop::For(failure));
        true
    }

    /// Why CPUs can't copy it, once they touch nothing of it any more: it is to take the rails.
    pub(crate) fn copy_trouble(&self) -> Option<Stop> {
        let Some(Carriage::Cpus(copies)) = self.carriage() else { return None };
        copies.job.ended()?.err().filter(|stop| !matches!(stop, Stop::For(_)))
    }

    /// It takes the rails after all. Before anybody is asked to send it.
    pub(crate) fn take_rails(&self) {
        if let Some(copies) = self.cpu_copies() {
            copies.give_up();
        }
    }

    /// Whether the copies are done; if they failed, the operation is over with that, unless the
    /// rails take it.
    pub(crate) fn is_copied(&self) -> bool {
        match self.carriage.get() {
            Some(Carriage::Caller) => true,
            Some(Carriage::Devices(tickets)) => all_done(tickets).unwrap_or_else(|error| {
                self.fail(TransferError::Device { why: error.to_string() });
                false
            }),
            Some(Carriage::Cpus(copies)) => match copies.job.ended() {
                Some(Ok(())) => true,
                Some(Err(Stop::For(failure))) if !self.is_over() => {
                    self.fail_for(failure);
                    false
                }
                Some(Err(_)) | None => false,
            },
            Some(Carriage::Sender | Carriage::Shared) | None => false,
        }
    }

    /// Looks whether the copies are done, and if so ends the operation. One with a notification
    /// ends when that has arrived.
    pub(crate) fn end_if_copied(&self) {
        if self.ends_with_copies() && !self.is_over() && self.is_copied() {
            let bytes = self.prepared.plan.bytes();
            self.bytes.store(bytes, Ordering::Relaxed);
            self.end(Ok(Outcome { bytes, duration: self.age() }));
        }
    }
}
