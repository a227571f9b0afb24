//! Analyses of profiles: results, exports, and handling of damaged profiles.

mod broken;
mod browser;
mod common;
mod exports;
mod figures;
mod predictions;
