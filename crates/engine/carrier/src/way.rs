//! A plugin connection, which has one direction.

use std::sync::Arc;

use polyrail_nccl_abi::{NetError, Part, RecvComm, Region, Request, SendComm};

use crate::bytes::Bytes;

pub(crate) enum Way {
    Sends(SendComm),
    Receives(RecvComm),
}

impl Way {
    pub(crate) fn register(&mut self, bytes: Bytes) -> Result<Region, NetError> {
        self.register_any(Arc::new(bytes))
    }

    pub(crate) fn register_any(
        &mut self,
        memory: Arc<dyn polyrail_nccl_abi::Memory>,
    ) -> Result<Region, NetError> {
        match self {
            Self::Sends(comm) => comm.register(memory),
            Self::Receives(comm) => comm.register(memory),
        }
    }

    pub(crate) fn deregister(&mut self, region: Region) -> Result<(), NetError> {
        match self {
            Self::Sends(comm) => comm.deregister(region),
            Self::Receives(comm) => comm.deregister(region),
        }
    }

    pub(crate) fn begin(&mut self, part: Part) -> Result<Option<Request>, NetError> {
        match self {
            Self::Sends(comm) => comm.isend(part),
            Self::Receives(comm) => comm.irecv(&[part]),
        }
    }

    pub(crate) fn close(self) -> Result<(), NetError> {
        match self {
            Self::Sends(comm) => comm.close(),
            Self::Receives(comm) => comm.close(),
        }
    }
}
