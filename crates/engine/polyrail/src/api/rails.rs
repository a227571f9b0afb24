//! Rails as users see them: those of an engine, and those that an engine would have.

use std::net::SocketAddr;

use polyrail_config::Config;
use polyrail_proto::rails::Interface;
use polyrail_proto::rails::{self, ChosenRail, LeftOut};

use crate::api::error::EngineError;
use crate::engine::hosted_rails::select_all;
use crate::engine::left_out::wanted;

/// Returns the rails that an engine with this configuration would have. Their addresses have port 0. If a plugin is
/// among the rails, it is loaded. See [`crate::Engine`].
pub fn rails(config: &Config) -> Result<Vec<RailInfo>, EngineError> {
    let (_, rails) = chosen(config)?;
    Ok(rails.iter().map(|rail| RailInfo::new(rail, SocketAddr::new(rail.address, 0))).collect())
}

/// Returns the interfaces that an engine with this configuration would not use as rails, with the reasons. If a plugin
/// is among the rails, it is loaded. See [`crate::Engine`].
pub fn left_out(config: &Config) -> Result<Vec<LeftOut>, EngineError> {
    let (interfaces, rails) = chosen(config)?;
    Ok(rails::left_out(wanted(config), &interfaces, &rails))
}

fn chosen(config: &Config) -> Result<(Vec<Interface>, Vec<ChosenRail>), EngineError> {
    let system = |source| EngineError::System { what: "interfaces", source };
    let interfaces = polyrail_sys::interfaces::survey().map_err(system)?;
    let (rails, _host) = select_all(config, &interfaces)?;
    Ok((interfaces, rails))
}

/// A rail of an [`crate::Engine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailInfo {
    /// The interface, with the address if it has several rails.
    pub name: String,
    /// The interface.
    pub interface: String,
    /// Address on which the engine listens.
    pub address: SocketAddr,
    /// Speed of the link in Mbit/s, if the driver reports it.
    pub speed_mbps: Option<u32>,
}

impl RailInfo {
    pub(super) fn new(rail: &ChosenRail, address: SocketAddr) -> Self {
        Self {
            name: rail.name.clone(),
            interface: rail.interface.clone(),
            address,
            speed_mbps: rail.speed_mbps.filter(|speed| *speed > 0),
        }
    }
}
