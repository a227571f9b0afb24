//! The ranks of a job. Rank 0 runs a small engine at a port that all ranks know, and the other ranks register there.

mod hub;
mod job;
mod nodelist;
mod small;
mod spoke;

use std::net::{SocketAddr, ToSocketAddrs};

use polyrail::Engine;
use polyrail_config::Launcher;

use crate::backend::{Backend, Own};
use crate::error::RendezvousError;
use crate::names::Name;
use hub::Hub;
use job::Job;
use small::{Small, rails_of_rank_0};
use spoke::Spoke;

/// A rank's place in its job, as its launcher gives it.
pub(crate) struct Ranks {
    place: String,
    job: Job,
}

impl Ranks {
    pub(crate) fn of(
        place: &str,
        launcher: Launcher,
        host: Option<&str>,
        port: Option<u16>,
    ) -> Result<Self, RendezvousError> {
        let variable = |name: &str| std::env::var(name).ok();
        let job = Job::read(place, (launcher, host, port), &variable)?;
        Ok(Self { place: place.to_owned(), job })
    }

    /// Default name of this rank.
    pub(crate) fn name(&self) -> String {
        format!("rank-{}", self.job.rank)
    }

    pub(crate) fn size(&self) -> usize {
        self.job.size
    }

    pub(crate) fn backend(
        self,
        engine: &Engine,
        group: &Name,
        own: Own,
    ) -> Result<Box<dyn Backend>, RendezvousError> {
        let Self { place, job } = self;
        if job.rank > 0 {
            return Ok(Box::new(Spoke::new(&place, engine.config(), (group, &job), own)));
        }
        let rails = rails_of_rank_0(&job, &resolve(&place, &job)?);
        let small = Small::start(engine.config(), &job, &rails, Some(job.port));
        let small =
            small.map_err(|error| RendezvousError::Engine { place, source: Box::new(error) })?;
        Ok(Box::new(Hub::new(small, group, &job, own)))
    }
}

/// The addresses of rank 0.
fn resolve(place: &str, job: &Job) -> Result<Vec<SocketAddr>, RendezvousError> {
    let found = (job.host.as_str(), job.port).to_socket_addrs();
    let unknown = |error: std::io::Error| RendezvousError::Unreachable {
        place: place.to_owned(),
        why: format!("the host of rank 0, {}: {error}", job.host),
    };
    found.map(Iterator::collect).map_err(unknown)
}
