//! One module per subcommand; each has `Args` (syntax only) and `run`.

pub(crate) mod bench;
pub(crate) mod config;
pub(crate) mod lab;
