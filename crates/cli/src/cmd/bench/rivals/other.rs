//! Rivals that use the engine in another way: on a single rail, with another number of channels, with memory in one
//! piece, or with a change to try.

use polyrail::{Config, Engine};

use super::standing::{CONTIGUOUS, Rival, RivalKind, Turn};
use crate::cmd::bench::options::{
    Against, Change, Schedule, Server, Verify, changed_config, lone_rail_config, other_config,
};
use crate::cmd::bench::talk::{Answer, Ask, Link, unexpected};
use crate::cmd::bench::trial::Trial;
use crate::fault::Fault;
use crate::interrupt::Interrupt;

/// Other pair of engines: the local engine, and the address of the remote one.
pub(crate) struct Other {
    kind: RivalKind,
    engine: Engine,
    server: Server,
}

pub(crate) struct TrialRival<'l> {
    pub(crate) trial: Trial<'l>,
    pub(crate) verify: Verify,
    pub(crate) transfers: u64,
    /// Whether only one transfer is outstanding at a time.
    pub(crate) is_alone: bool,
}

impl Rival for TrialRival<'_> {
    fn turn(&mut self, round: u64) -> Result<Turn, Fault> {
        let sample = self.trial.sample(self.verify, self.transfers, round)?.sample;
        Ok(Turn {
            gb_per_s: sample.gb_per_s(),
            cpu_seconds_per_gb: Some(sample.cpu_seconds_per_gb()),
            p50_us: sample.p50_us.filter(|_| self.is_alone),
        })
    }

    fn finish(self: Box<Self>) -> Result<(), Fault> {
        self.trial.tear_down()
    }
}

impl Other {
    /// Opens the other engines that a schedule needs, at both ends.
    pub(crate) fn open_all(schedule: &Schedule, link: &Link<'_>) -> Result<Vec<Self>, Fault> {
        let mut others = Vec::new();
        if schedule.against.contains(&Against::Alone) {
            for (near, rail) in link.pairs() {
                let config = lone_rail_config(link.engine, &near)?;
                others.push(Self::open(
                    link,
                    RivalKind::Rail(near),
                    Ask::OpenRail { rail },
                    config,
                )?);
            }
        }
        for &channels in &schedule.channels {
            let config = other_config(link.engine, Some(channels))?;
            let ask = Ask::OpenOther { channels: Some(channels) };
            let kind = RivalKind::Channels { channels, flows: 0 };
            others.push(Self::open(link, kind, ask, config)?);
        }
        if schedule.against.contains(&Against::Contiguous) {
            let config = other_config(link.engine, None)?;
            let ask = Ask::OpenOther { channels: None };
            others.push(Self::open(link, RivalKind::Baseline(CONTIGUOUS.into()), ask, config)?);
        }
        Ok(others)
    }

    /// Opens engines with a change.
    pub(crate) fn open_changed(link: &Link<'_>, change: &Change) -> Result<Self, Fault> {
        let config = changed_config(link.engine, change)?;
        let kind = RivalKind::Baseline(change.to_string());
        Self::open(link, kind, Ask::OpenChanged { change: change.clone() }, config)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Connects the two engines, which determines the number of flows.
    pub(crate) fn connect(&self, interrupt: &Interrupt) -> Result<(RivalKind, Link<'_>), Fault> {
        let peer = self.server.connect(&self.engine, interrupt)?;
        let link = Link::new(&self.engine, peer, interrupt.clone());
        let kind = match &self.kind {
            RivalKind::Channels { channels, .. } => {
                RivalKind::Channels { channels: *channels, flows: link.peer.flows().total }
            }
            kind => kind.clone(),
        };
        Ok((kind, link))
    }

    fn open(link: &Link<'_>, kind: RivalKind, ask: Ask, config: Config) -> Result<Self, Fault> {
        let answer = link.ask(&ask)?;
        let Answer::Opened { address, invitation } = &answer else {
            return Err(unexpected(&ask, &answer));
        };
        let Ok(invitation) = invitation.parse() else { return Err(unexpected(&ask, &answer)) };
        let server = Server { addresses: vec![*address], invitation: Some(invitation) };
        let engine = Engine::builder().config(config).build()?;
        debug_assert_eq!(polyrail_profiler::drive::moved_bytes(&engine), 0);
        Ok(Self { kind, engine, server })
    }
}
