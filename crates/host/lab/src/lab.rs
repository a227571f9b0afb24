//! The public handle of a lab.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::LabError;
use crate::firewall::{self, Firewall};
use crate::life;
use crate::namespaces::Namespaces;
use crate::network::Network;
use crate::node::{Form, Node};
use crate::os;
use crate::privilege::Privilege;
use crate::rate::Rate;
use crate::registry::{Owned, Registry};
use crate::spec::{LabSpec, RailInfo, Side, rail_index};
use crate::wiring::Wiring;

/// A lab that is up.
///
/// Dropping the value leaves the lab as it is; [`Lab::down`] or [`Lab::guard`] remove it. All
/// methods may be called from any thread. The value holds the namespaces open, so after another
/// process has removed the lab, its methods fail rather than reach a new lab of the same name.
#[derive(Debug)]
pub struct Lab {
    pub(crate) name: String,
    pub(crate) privilege: Privilege,
    pub(crate) queue_ms: u32,
    pub(crate) mtu: u32,
    pub(crate) network: Network,
    pub(crate) form: Form,
    pub(crate) namespaces: Arc<Namespaces>,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) wiring: Wiring,
    pub(crate) rails: Vec<RailInfo>,
    pub(crate) replaced: Option<String>,
    pub(crate) abandoned: Vec<String>,
    pub(crate) _owned: Option<Owned>,
    pub(crate) used: Mutex<Option<Owned>>,
}

/// Removes its lab when dropped, also while a panic unwinds.
#[derive(Debug)]
pub struct LabGuard {
    /// Empty only after `down`, which consumes the guard.
    lab: Option<Lab>,
}

/// One line of [`Lab::list`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabInfo {
    pub name: String,
    /// State of the lab: whether it can be used.
    pub state: LabState,
    /// The privilege that the lab was built with.
    pub privilege: Privilege,
    /// The paths of the namespaces of the nodes, where they exist.
    pub namespaces: Vec<Option<PathBuf>>,
    /// Whether the nodes are connected by a switch.
    pub is_switched: bool,
    /// The path of the namespace of the switch, where it exists.
    pub switch: Option<PathBuf>,
    /// The addresses and routes that the rails have; the default where the record can't be read.
    pub network: Network,
    /// The rails that exist in the kernel now.
    pub rails: Vec<RailInfo>,
    /// Time that a full queue holds a packet, in milliseconds; `None` if not recorded.
    pub queue_ms: Option<u32>,
    /// The largest IP packet, in bytes; `None` if not recorded.
    pub mtu: Option<u32>,
    /// Number of processes that run inside.
    pub processes: usize,
}

/// State of a listed lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabState {
    /// Everything is in place.
    Ready,
    /// Another process is building or removing the lab right now.
    Changing,
    /// A crash or a reboot left a part of the lab; `down` removes that part, and `up` builds the
    /// lab again.
    Broken { because: String },
    /// The lab belongs to a process that is not visible from this process, for example in a container. The lab's
    /// namespaces may be invisible, too.
    Elsewhere,
}

impl Lab {
    /// Builds a lab. A failed build removes every part that it built.
    ///
    /// Removes the remains of a lab of the same name that a crash or reboot left, first; see
    /// [`Lab::replaced`].
    ///
    /// # Errors
    /// [`LabError::BadValue`] for a value out of range, [`LabError::AlreadyUp`],
    /// [`LabError::NotPermitted`], [`LabError::KernelLacks`], [`LabError::System`].
    pub fn up(spec: &LabSpec) -> Result<Self, LabError> {
        Self::up_unless(spec, &|| false)
    }

    /// Builds a lab as [`Lab::up`] does, but polls `is_stopped` while building: once it returns true, everything that
    /// was built is removed.
    ///
    /// # Errors
    /// As [`Lab::up`], and [`LabError::Interrupted`].
    pub fn up_unless(spec: &LabSpec, is_stopped: &dyn Fn() -> bool) -> Result<Self, LabError> {
        life::up(spec, is_stopped)
    }

    /// Finds a lab by name.
    ///
    /// # Errors
    /// [`LabError::UnknownLab`]; [`LabError::Broken`] for an incomplete lab.
    pub fn open(name: &str) -> Result<Self, LabError> {
        life::open(name)
    }

    /// Lists the labs of this user, by name, broken ones included.
    ///
    /// # Errors
    /// [`LabError::System`] when the records cannot be read.
    pub fn list() -> Result<Vec<LabInfo>, LabError> {
        life::list()
    }

    /// Removes a lab by name, also a broken one: ends the processes inside (SIGTERM, then SIGKILL a
    /// second later; never the calling process), then removes links, namespaces and records.
    ///
    /// # Errors
    /// [`LabError::UnknownLab`]; [`LabError::InUse`] for [`LabState::Elsewhere`]; [`LabError::StillInUse`] when a process
    /// does not end, after everything else was removed.
    pub fn remove(name: &str) -> Result<(), LabError> {
        life::remove(name, None)
    }

    /// Removes this lab as [`Lab::remove`] does, but not a later lab of the same name.
    ///
    /// # Errors
    /// As [`Lab::remove`].
    pub fn down(self) -> Result<(), LabError> {
        life::remove(&self.name, Some(&self.namespaces))
    }

    /// Ties the lab to the returned value: dropping that value removes the lab.
    pub fn guard(self) -> LabGuard {
        LabGuard { lab: Some(self) }
    }

    /// Takes exclusive use of the lab until this value is dropped or the process ends. The lock is advisory: it
    /// excludes only processes that call this method.
    ///
    /// # Errors
    /// [`LabError::InUse`] if another process has exclusive use.
    pub fn use_alone(&self) -> Result<(), LabError> {
        let mut used = self.used.lock();
        if used.is_none() {
            let taken = Registry::current().use_alone(&self.name)?;
            let in_use = |process| LabError::InUse { name: self.name.clone(), process };
            *used = Some(taken.map_err(in_use)?);
        }
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The privilege that the lab was built with.
    pub fn privilege(&self) -> Privilege {
        self.privilege
    }

    /// Time that a full queue at a shaper holds a packet, in milliseconds.
    pub fn queue_ms(&self) -> u32 {
        self.queue_ms
    }

    /// The largest IP packet, in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The addresses and routes that the rails have.
    pub fn network(&self) -> Network {
        self.network
    }

    /// Number of nodes; 2 without a switch.
    pub fn nodes(&self) -> usize {
        self.form.nodes()
    }

    /// Whether the nodes are connected by a switch.
    pub fn is_switched(&self) -> bool {
        self.form.switch().is_some()
    }

    /// Checks that this lab has the node.
    ///
    /// # Errors
    /// [`LabError::UnknownNode`] if this lab has no such node.
    pub fn node(&self, node: impl Into<Node>) -> Result<Node, LabError> {
        let node = node.into();
        if node.index() < self.nodes() {
            return Ok(node);
        }
        Err(self.unknown_node(&node.to_string()))
    }

    /// Reads a node's name (`a`, `b`, `node2`) or number (`2`).
    ///
    /// # Errors
    /// [`LabError::UnknownNode`] if this lab has no such node.
    pub fn node_named(&self, text: &str) -> Result<Node, LabError> {
        text.parse().map_or_else(|_| Err(self.unknown_node(text)), |node: Node| self.node(node))
    }

    /// Returns the path of the namespace of `node`, for `nsenter` and the like.
    ///
    /// # Panics
    /// If the lab has no such node.
    pub fn namespace_path(&self, node: impl Into<Node>) -> &Path {
        &self.paths[node.into().index()]
    }

    /// Returns the path of the namespace of the switch, where there is one.
    pub fn switch_path(&self) -> Option<&Path> {
        self.form.switch().map(|seat| self.paths[seat].as_path())
    }

    /// The defect of an earlier lab of this name whose remains [`Lab::up`] removed, if there was
    /// one.
    pub fn replaced(&self) -> Option<&str> {
        self.replaced.as_deref()
    }

    /// Names of abandoned labs that [`Lab::up`] removed before it built one with `ends_with_process`: those tied to
    /// another process, which had ended without removing them.
    pub fn abandoned(&self) -> &[String] {
        &self.abandoned
    }

    /// The rails as they were when this value was made; [`Lab::observe`] queries the kernel.
    pub fn rails(&self) -> &[RailInfo] {
        &self.rails
    }

    /// Queries the current rails from the kernel.
    ///
    /// # Errors
    /// [`LabError::System`] when the kernel does not answer.
    pub fn observe(&self) -> Result<Vec<RailInfo>, LabError> {
        self.wiring.observe()
    }

    /// Reads a rail's name (`rail2`) or number (`2`).
    ///
    /// # Errors
    /// [`LabError::UnknownRail`] if this lab has no such rail.
    pub fn rail(&self, text: &str) -> Result<usize, LabError> {
        let index = rail_index(text).filter(|index| *index < self.rails.len());
        index.ok_or_else(|| self.unknown_rail(text.to_owned()))
    }

    /// Returns a command that will run on `node`; the caller sets everything else, as usual.
    ///
    /// If the lab has no such node, starting the command fails; check with [`Lab::node`] first.
    ///
    /// The calling process stays where it is. The program sees the machine's `/sys`, in which the
    /// lab's interfaces do not appear.
    pub fn command(&self, node: impl Into<Node>, program: impl AsRef<OsStr>) -> Command {
        let seat = node.into().index();
        let namespaces = Arc::clone(&self.namespaces);
        let mut command = Command::new(program);
        let join = move || namespaces.enter(seat).map_err(io::Error::from);
        // SAFETY: `enter` makes bare system calls only.
        unsafe { os::before_exec(&mut command, join) };
        command
    }

    /// Moves the calling thread, and no other, to `node`, for the rest of the thread's life.
    ///
    /// Sockets made before stay where they were made. Call this in a dedicated thread: threads and
    /// processes that it starts begin on `node` too.
    ///
    /// # Errors
    /// [`LabError::ThreadCannotEnter`] for a lab made without root, which the kernel opens to
    /// single-threaded processes only; use [`Lab::command`] there. [`LabError::UnknownNode`].
    pub fn enter_thread(&self, node: impl Into<Node>) -> Result<(), LabError> {
        let seat = self.node(node)?.index();
        self.namespaces.enter(seat).map_err(|errno| LabError::ThreadCannotEnter {
            name: self.name.clone(),
            place: self.form.title(seat),
            errno: errno.into(),
        })
    }

    /// Changes a rail's speed, in both directions, while traffic flows.
    ///
    /// # Errors
    /// [`LabError::UnknownRail`], [`LabError::BadValue`] when the lab's queue would be too long
    /// for this speed, [`LabError::System`].
    pub fn set_rate(&self, rail: usize, rate: Rate) -> Result<(), LabError> {
        self.check(rail)?;
        self.wiring.set_rate(rail, rate, self.queue_ms)
    }

    /// Changes the speed at which one node sends on a rail; other nodes, and the switch, keep theirs.
    ///
    /// # Errors
    /// As [`Lab::set_rate`]; [`LabError::UnknownNode`].
    pub fn set_rate_at(
        &self,
        rail: usize,
        node: impl Into<Node>,
        rate: Rate,
    ) -> Result<(), LabError> {
        self.check(rail)?;
        self.wiring.set_rate_at(rail, self.node(node)?, rate, self.queue_ms)
    }

    /// Changes the largest IP packet, in bytes, that passes the switch on a rail. The nodes keep the MTU that the lab
    /// was built with, so larger packets are dropped silently: an MTU black hole.
    ///
    /// # Errors
    /// [`LabError::UnknownRail`], [`LabError::BadValue`] without a switch or outside 1280 to the lab's own MTU,
    /// [`LabError::System`].
    pub fn set_mtu(&self, rail: usize, mtu: u32) -> Result<(), LabError> {
        self.check(rail)?;
        if !(1280..=self.mtu).contains(&mtu) {
            let allowed = format!("1280 to {} bytes, the MTU of the lab", self.mtu);
            return Err(LabError::bad("mtu", mtu, allowed));
        }
        if !self.is_switched() {
            return Err(LabError::bad("mtu", mtu, "a lab with a switch: `lab up --nodes`"));
        }
        self.wiring.set_port_mtu(rail, mtu, mtu < self.mtu)
    }

    /// Sets the treatment of incoming new TCP connections at the end of a rail on `node`. The other direction stays as
    /// it is. Runs `nft`.
    ///
    /// # Errors
    /// [`LabError::UnknownRail`], [`LabError::UnknownNode`], [`LabError::ProgramMissing`], [`LabError::System`].
    pub fn set_firewall(
        &self,
        rail: usize,
        node: impl Into<Node>,
        firewall: Firewall,
    ) -> Result<(), LabError> {
        self.check(rail)?;
        firewall::set(self, rail, self.node(node)?, firewall)
    }

    /// Cuts or restores a rail. A cut switches off the end on side b, and side a loses the carrier,
    /// as if the far machine's port had died; packets in flight are lost. With a switch, node 1 is
    /// cut off, and the other nodes keep their carrier and reach each other.
    ///
    /// Restoring switches all ends on, with all addresses and routes, before this returns.
    ///
    /// # Errors
    /// [`LabError::UnknownRail`], [`LabError::System`].
    pub fn set_link(&self, rail: usize, up: bool) -> Result<(), LabError> {
        self.check(rail)?;
        if up { self.wiring.mend(rail) } else { self.wiring.cut(rail, Side::B.into()) }
    }

    /// Cuts a rail at the end of `node`. On `node`, the routes vanish and sends fail at once. The
    /// other end, or the port of the switch, loses the carrier, and its packets are dropped
    /// silently.
    ///
    /// # Errors
    /// As [`Lab::set_link`], which restores the rail; [`LabError::UnknownNode`].
    pub fn cut_at(&self, rail: usize, node: impl Into<Node>) -> Result<(), LabError> {
        self.check(rail)?;
        self.wiring.cut(rail, self.node(node)?)
    }

    fn check(&self, rail: usize) -> Result<(), LabError> {
        if rail < self.rails.len() { Ok(()) } else { Err(self.unknown_rail(rail.to_string())) }
    }

    fn unknown_node(&self, node: &str) -> LabError {
        let last = self.nodes() - 1;
        LabError::UnknownNode { lab: self.name.clone(), node: node.to_owned(), last }
    }

    fn unknown_rail(&self, rail: String) -> LabError {
        let last = self.rails.len().saturating_sub(1);
        LabError::UnknownRail { lab: self.name.clone(), rail, last }
    }
}

impl LabGuard {
    /// Removes the lab now and reports failures, which dropping only prints.
    ///
    /// # Errors
    /// As [`Lab::remove`].
    pub fn down(mut self) -> Result<(), LabError> {
        self.lab.take().map_or(Ok(()), Lab::down)
    }
}

impl Deref for LabGuard {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        match &self.lab {
            Some(lab) => lab,
            // `down` takes the lab and consumes the guard, so this is never reached.
            None => unreachable!("a guard without its lab"),
        }
    }
}

impl Drop for LabGuard {
    fn drop(&mut self) {
        if let Some(lab) = self.lab.take() {
            let name = lab.name.clone();
            match lab.down() {
                Ok(()) | Err(LabError::UnknownLab { .. }) => {}
                Err(error) => {
                    // A drop can't return an error, but a lab that remains must be reported.
                    let _ = writeln!(io::stderr(), "lab `{name}` was not removed: {error}");
                }
            }
        }
    }
}

impl fmt::Display for LabState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.pad("ready"),
            Self::Changing => f.pad("changing"),
            Self::Broken { because } => f.pad(&format!("broken: {because}")),
            Self::Elsewhere => {
                f.pad("in use by a process that can't be seen from here, in a container, say")
            }
        }
    }
}
