//! Carriers of an operation other than the rails.

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
    /// Sets the carrier, before any thread carries the operation or looks for its end. If CPUs copy a send, the caller
    /// holds the lock of the peer's sender: the thread that cancels the send looks for the carrier under that lock.
    pub(crate) fn set_carriage(&self, carriage: Carriage) {
        // The first carrier stays: an operation is begun once.
        let _ = self.carriage.set(carriage);
    }

    /// The current carrier; `None` if the rails carry it.
    fn carriage(&self) -> Option<&Carriage> {
        let is_given_up =
            |carriage: &&Carriage| matches!(carriage, Carriage::Cpus(it) if it.is_given_up());
        self.carriage.get().filter(|carriage| !is_given_up(carriage))
    }

    /// The end-to-end copy by CPUs, also if it failed.
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

    /// Path that its bytes took.
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

    /// Whether the operation is over for this end once it is copied. Messages and notifications must reach the peer
    /// first.
    pub(crate) fn ends_with_copies(&self) -> bool {
        !self.notifies() && !matches!(self.prepared.kind, OpKind::Send { .. })
    }

    /// Whether it is copied end to end.
    pub(crate) fn is_copying(&self) -> bool {
        use Carriage::{Caller, Cpus, Devices};
        matches!(self.carriage(), Some(Devices(_) | Cpus(_) | Caller))
    }

    /// Whether CPUs are still copying it end to end.
    pub(crate) fn is_copying_by_cpus(&self) -> bool {
        matches!(self.carriage(), Some(Carriage::Cpus(copies)) if copies.job.ended().is_none())
    }

    /// Stops the copy if CPUs make it, and returns whether they do. The operation is over soon.
    pub(crate) fn stop_copying(&self, failure: Failure) -> bool {
        let Some(Carriage::Cpus(copies)) = self.carriage() else { return false };
        copies.job.stop(Stop::For(failure));
        true
    }

    /// Reason why CPUs can't copy it, once they no longer touch any of it. The operation must take the rails.
    pub(crate) fn copy_trouble(&self) -> Option<Stop> {
        let Some(Carriage::Cpus(copies)) = self.carriage() else { return None };
        copies.job.ended()?.err().filter(|stop| !matches!(stop, Stop::For(_)))
    }

    /// Gives the operation to the rails after all, before any thread is asked to send it.
    pub(crate) fn take_rails(&self) {
        if let Some(copies) = self.cpu_copies() {
            copies.give_up();
        }
    }

    /// Whether the copies are done. If they failed, the operation ends with that error, unless the rails take it.
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

    /// Ends the operation if the copies are done. An operation with a notification ends when that has arrived.
    pub(crate) fn end_if_copied(&self) {
        if self.ends_with_copies() && !self.is_over() && self.is_copied() {
            let bytes = self.prepared.plan.bytes();
            self.bytes.store(bytes, Ordering::Relaxed);
            self.end(Ok(Outcome { bytes, duration: self.age() }));
        }
    }
}
