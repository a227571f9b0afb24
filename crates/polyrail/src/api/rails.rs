//! Rails as users see them: those of an engine, and those that one would have.

use std::net::SocketAddr;

use polyrail_config::Config;

use crate::api::error::EngineError;
use crate::engine::hosted_rails::select_all;
use crate::engine::rail_selection::ChosenRail;

/// The rails that an engine with this configuration would have. Their addresses have port 0. A plugin among
/// them is loaded for that. See
/// [`crate::Engine`].
pub fn rails(config: &Config) -> Result<Vec<RailInfo>, EngineError> {
    let system = |source| EngineError::System { what: "interfaces", source };
    let interfaces = polyrail_sys::interfaces::list().map_err(system)?;
    let (rails, _host) = select_all(config, &interfaces)?;
    Ok(rails.iter().map(|rail| RailInfo::new(rail, SocketAddr::new(rail.address, 0))).collect())
}

/// A rail of an [`crate::Engine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailInfo {
    /// The interface, with the address if it has several rails.
    pub name: String,
    /// The interface.
    pub interface: String,
    /// Where the engine listens.
    pub address: SocketAddr,
    /// Speed of the link in Mbit/s, if the driver tells.
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
