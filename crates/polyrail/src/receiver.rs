//! Receiving: a flow reads payload into its place and acknowledges it; what came whole is delivered.
//! `polyrail_proto::Receiver` decides what may land, and refuses the rest.

pub(crate) mod flow;
pub(crate) mod serve;
