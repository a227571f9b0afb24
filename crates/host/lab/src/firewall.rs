//! Firewalls at the ends of rails, set with the system's `nft` program.

use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::str::FromStr;

use crate::error::{During, LabError};
use crate::lab::Lab;
use crate::node::Node;
use crate::spec::rail_name;

/// Treatment of incoming new TCP connections at an end of a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firewall {
    /// New connections are let in.
    Off,
    Drop,
    /// New connections are answered with a reset.
    Reject,
}

impl Firewall {
    const ALL: [Self; 3] = [Self::Off, Self::Drop, Self::Reject];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Drop => "drop",
            Self::Reject => "reject",
        }
    }

    /// Returns the `nft` script that sets this firewall at an end of the rail. The table has the
    /// rail's name.
    fn script(self, rail: usize) -> String {
        let (name, table) = (rail_name(rail), format!("polyrail_{}", rail_name(rail)));
        // Adding the table first makes its removal succeed even if it did not exist.
        let clean = format!("add table inet {table}\ndelete table inet {table}\n");
        let answer = match self {
            Self::Off => return clean,
            Self::Drop => "drop",
            Self::Reject => "reject with tcp reset",
        };
        format!(
            "{clean}table inet {table} {{\n chain in {{\n  type filter hook input priority 0;\n  \
             iifname \"{name}\" tcp flags & (syn | ack) == syn {answer}\n }}\n}}\n"
        )
    }
}

impl FromStr for Firewall {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let found = Self::ALL.into_iter().find(|firewall| firewall.name() == text);
        let allowed = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| LabError::bad("firewall", text, allowed()))
    }
}

/// Runs `nft` on the node.
pub(crate) fn set(lab: &Lab, rail: usize, node: Node, firewall: Firewall) -> Result<(), LabError> {
    let step = || format!("setting the firewall of {} on node {node} by `nft`", rail_name(rail));
    let mut command: Command = lab.command(node, "nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(LabError::ProgramMissing { program: "nft", package: "nftables" });
        }
        child => child.during(step)?,
    };
    if let Some(mut input) = child.stdin.take() {
        use std::io::Write;
        input.write_all(firewall.script(rail).as_bytes()).during(step)?;
    }
    let output = child.wait_with_output().during(step)?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    let first = told.lines().next().unwrap_or("it gave no reason").to_owned();
    Err(std::io::Error::other(first)).during(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firewall_is_read_by_its_name() {
        for firewall in Firewall::ALL {
            assert_eq!(firewall.name().parse::<Firewall>().unwrap(), firewall);
        }
        let error = "deny".parse::<Firewall>().unwrap_err().to_string();
        assert_eq!(error, "firewall `deny` is not valid; allowed: off, drop, reject");
        assert!(Firewall::Drop.script(3).contains("\"rail3\" tcp flags & (syn | ack) == syn drop"));
        assert!(!Firewall::Off.script(3).contains("chain"));
    }
}
