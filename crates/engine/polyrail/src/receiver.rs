//! Receiving: a flow reads payload into its place and acknowledges it; transfers that arrived whole are delivered.
//! `polyrail_proto::Receiver` decides which chunks are due; the registry (`memory/registry.rs`) checks key, bounds and
//! access.

pub(crate) mod flow;
pub(crate) mod serve;
