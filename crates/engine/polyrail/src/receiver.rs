//! Receiving: a flow reads payload into its place and acknowledges it; what came whole is
//! delivered. `polyrail_proto::Receiver` decides which chunks are due; the registry
//! (`memory/registry.rs`) checks key, bounds and access.

pub(crate) mod flow;
pub(crate) mod serve;
