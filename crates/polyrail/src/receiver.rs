//! Receiving: a flow reads payload into its place and acknowledges it; what came whole is delivered.

pub(crate) mod flow;
pub(crate) mod landing;
pub(crate) mod serve;
