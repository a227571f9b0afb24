//! Proof of which process a peer is. [`PeerProcess::prove`] alone decides that, on the kernel's word, and everything
//! that reaches into a process of this host takes its result: shared memory, rings, streams, single copies,
//! descriptors.
//!
//! A peer says itself which host and which process it is on. An engine that believed that could be made to read or
//! write any process that it may trace. So each engine takes a name in the kernel, made of its instance number, which
//! only the owner of a key pair can prove over the network. The kernel then says which process, and which user, has
//! that name.
//!
//! An engine that copies also checks two words in the other process: one of the region, one of the peer. They are
//! random, and their owner clears them when it ends the region or gives the peer up. So a process that has become
//! another program does not pass for the peer. Each write also writes to the pages of these words, in the same system
//! call, and the owner closes the pages. So a process that was stopped meanwhile, even just before that call, is
//! refused when it goes on.

use std::borrow::Cow;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_proto::budget::WaitAllowance;
use polyrail_proto::message::{HostOffer, Offer};
use polyrail_proto::{InstanceId, Time};
use polyrail_sys::process::{Process, namespace};
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{
    Badge, ForeignMemory, Guard, GuardPage, Memory, Poller, ProvenProcess, Unproven,
    may_copy_between_processes,
};

/// The poller's token for the engine's name in the kernel.
pub(crate) const LOOKED_AT: u64 = 1 << 34;
/// Time for which the kernel is not asked again after it could not tell: a peer may cause a question with each message.
const ASKED_AGAIN: Duration = Duration::from_millis(10);

/// Right of other processes to copy, until it is revoked.
pub(crate) struct Lease {
    page: GuardPage,
    value: u64,
}

impl Lease {
    pub(crate) fn new() -> Result<Self, String> {
        let value = getrandom::u64().map_err(|error| format!("no random bits: {error}"))?;
        let page = GuardPage::new(value).map_err(|error| format!("no memory: {error}"))?;
        Ok(Self { page, value })
    }

    /// Returns the lease in `place`, made now if there was none.
    pub(crate) fn of(place: &OnceLock<Self>) -> Result<&Self, String> {
        if place.get().is_none()
            && let Err(late) = place.set(Self::new()?)
        {
            // Another thread was first, and no process knows this lease.
            late.allow_reuse();
        }
        place.get().ok_or_else(|| "there is no lease".to_owned())
    }

    /// Revokes the lease: from now on no process may begin to copy.
    pub(crate) fn revoke(&self) {
        if let Err(error) = self.page.close() {
            tracing::error!(target: "polyrail::share", %error, "a process that is stopped just before it \
                writes here can't be kept from it when it goes on");
        }
    }

    /// Allows reuse of the lease's page, once all processes that could copy have confirmed that they do not any more.
    pub(crate) fn allow_reuse(&self) {
        self.page.allow_reuse();
    }
}

/// Proofs for other processes of which process this engine is, made when they are needed.
pub(crate) struct Proofs {
    instance: InstanceId,
    /// Wakes a thread by [`LOOKED_AT`] when other processes look at the badge.
    poller: Arc<Poller>,
    badge: Mutex<Option<Arc<Badge>>>,
    process: Mutex<Option<Arc<HostProof>>>,
    /// Limits the waits for peers whose names are crowded: a peer may crowd its own name on purpose.
    patience: Mutex<WaitAllowance>,
}

/// Facts that offers of host memory need.
pub(crate) struct HostProof {
    process: Process,
}

/// Process of a peer, once the kernel has said which one it is.
pub(crate) struct PeerProcess {
    instance: InstanceId,
    /// Reason why the kernel is not even asked.
    obstacle: Option<&'static str>,
    proven: OnceLock<Arc<ProvenProcess>>,
    /// Time at which the kernel could not tell.
    unproven: Mutex<Option<Instant>>,
}

impl Proofs {
    /// Proofs of the engine with this number. `poller` belongs to a thread that calls [`Self::forget_who_looked`].
    pub(crate) fn new(instance: InstanceId, poller: Arc<Poller>) -> Self {
        let patience = Mutex::new(WaitAllowance::new(Time(monotonic_ns())));
        Self { instance, poller, badge: Mutex::default(), process: Mutex::default(), patience }
    }

    /// Returns the engine's name in the kernel, by which peers find its process. Take it before a peer has a reason to
    /// look. An attempt that fails now may succeed for the next peer.
    pub(crate) fn badge(&self) -> Result<Arc<Badge>, String> {
        let mut known = self.badge.lock();
        if let Some(badge) = &*known {
            return Ok(badge.clone());
        }
        let taken = Badge::take(&name_of(self.instance));
        let badge = taken
            .and_then(|badge| self.poller.add(badge.as_fd(), LOOKED_AT).map(|()| badge))
            .map_err(|error| format!("this process can't show which one it is: {error}"))?;
        Ok(known.insert(Arc::new(badge)).clone())
    }

    /// Forgets the processes that have looked at the name: any process may look, and the kernel has room for a limited
    /// number.
    pub(crate) fn forget_who_looked(&self) {
        if let Some(badge) = &*self.badge.lock() {
            badge.make_room();
        }
    }

    /// Waits for a peer whose name is crowded, unless this engine has waited too long before.
    fn wait_for(&self, badge: &Badge, name: &str) -> Result<ProvenProcess, Unproven> {
        let began = Time(monotonic_ns());
        let allowed = self.patience.lock().take(began);
        loop {
            // Any process may look, as often as it likes. The peer forgets those, and so does this engine, because the
            // peer may be waiting for it.
            badge.make_room();
            let found = ProvenProcess::with_name(name);
            let waited = Time(monotonic_ns()).since(began);
            if !matches!(found, Err(Unproven::Crowded)) || waited >= allowed {
                self.patience.lock().give_back(allowed.saturating_sub(waited));
                return found;
            }
            std::thread::yield_now();
        }
    }

    /// Returns the proof for offers of host memory.
    pub(crate) fn own(&self) -> Result<Arc<HostProof>, String> {
        let mut known = self.process.lock();
        if let Some(proof) = &*known {
            return Ok(proof.clone());
        }
        may_copy_between_processes().map_err(|error| {
            format!("a seccomp filter forbids this process to copy between processes: {error}")
        })?;
        self.badge()?;
        let process = Process::own().ok_or("/proc is not mounted")?;
        Ok(known.insert(Arc::new(HostProof { process })).clone())
    }
}

impl PeerProcess {
    /// The process of the peer with this number; `obstacle`: why it can't be on this host, or need not be.
    pub(crate) fn new(instance: InstanceId, obstacle: Option<&'static str>) -> Self {
        Self { instance, obstacle, proven: OnceLock::new(), unproven: Mutex::default() }
    }

    /// Returns why the peer can't even claim to be reached by other paths than the rails: it says itself that it is on
    /// another host, or the settings here leave only the rails.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        self.obstacle
    }

    /// Returns the peer's process if it runs on this host as this user, in the same network and PID namespace, or the
    /// reason why that is not known. A success is remembered. From now on the peer can find out the same about this
    /// engine.
    pub(crate) fn prove(&self, own: &Proofs) -> Result<&Arc<ProvenProcess>, Cow<'static, str>> {
        if let Some(why) = self.obstacle {
            return Err(why.into());
        }
        if let Some(proven) = self.proven.get() {
            return Ok(proven);
        }
        let badge = own.badge()?;
        let name = name_of(self.instance);
        let proven = match ProvenProcess::with_name(&name) {
            Err(Unproven::Crowded) => own.wait_for(&badge, &name),
            found => found,
        };
        *self.unproven.lock() = proven.is_err().then(Instant::now);
        let proven = Arc::new(proven.map_err(|why| why.to_string())?);
        // Another thread may have been first, and has found the same.
        Ok(self.proven.get_or_init(|| proven))
    }
}

impl PeerProcess {
    /// Like [`Self::prove`] where the peer decides how often to ask: for [`ASKED_AGAIN`] after a failure the kernel is
    /// not asked again.
    pub(crate) fn is_proven(&self, own: &Proofs) -> bool {
        let has_failed = self.unproven.lock().is_some_and(|at| at.elapsed() < ASKED_AGAIN);
        !has_failed && self.prove(own).is_ok()
    }
}

impl HostProof {
    /// Returns the offer with which a proven peer copies from and to this memory, until one of the leases is revoked.
    pub(crate) fn offer(
        &self,
        _to: &ProvenProcess,
        memory: &Memory,
        leases: [&Lease; 2],
    ) -> Result<Offer, String> {
        let base = memory.address(0, 0).map_err(|error| error.to_string())?;
        let Process { number, namespace, started } = self.process;
        let places = leases.map(|lease| lease.page.place());
        let (base, values) = (base as u64, leases.map(|lease| lease.value));
        let host = HostOffer { started, base, len: memory.len(), places, values };
        Ok(host.encode(number, namespace))
    }
}

/// Opens the memory that a peer has offered.
pub(crate) fn open(process: &Arc<ProvenProcess>, offer: &Offer) -> Result<ForeignMemory, String> {
    let host = HostOffer::decode(offer).ok_or("the peer offers something else")?;
    must_be(process, offer.process, offer.namespace)?;
    let (number, namespace, started) = (offer.process, offer.namespace, host.started);
    let claimed = Process { number, namespace, started };
    if Process::of(process.number()) != Some(claimed) || process.has_ended() {
        return Err("the peer's process has ended".to_owned());
    }
    let guard = Guard { places: host.places, values: host.values };
    let memory = process.memory(host.base, host.len, guard);
    let memory = memory.map_err(|error| error.to_string())?;
    memory.check().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => why_not(&error),
        io::ErrorKind::StaleNetworkFileHandle => {
            "the peer's process is not what the peer says, or the region has ended".to_owned()
        }
        _ => format!("the peer's memory can't be read: {error}"),
    })?;
    Ok(memory)
}

/// Checks that the peer's process is the one that it says it is: a number of this PID namespace.
pub(crate) fn must_be(process: &ProvenProcess, number: u32, place: u64) -> Result<(), String> {
    match (namespace() == Some(place), process.number() == number) {
        (true, true) => Ok(()),
        (false, _) => Err("the processes are in different PID namespaces (containers)".to_owned()),
        (true, false) => Err("the peer says that it is another process".to_owned()),
    }
}

/// Returns why the kernel refuses although the user is the same.
fn why_not(error: &io::Error) -> String {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => format!(
            "the kernel forbids copying from the peer's process, which may have made itself \
             untraceable (PR_SET_DUMPABLE), or have capabilities that this one lacks, or a filter \
             forbids it: {error}"
        ),
        scope => format!(
            "the kernel forbids copying from the peer's process, and \
             kernel.yama.ptrace_scope is {scope}: {error}"
        ),
    }
}

fn name_of(instance: InstanceId) -> String {
    format!("polyrail-{:032x}", instance.0)
}

/// Returns a name of this process, and the process as a peer would know it.
#[cfg(test)]
pub(crate) fn neighbours() -> (Arc<Badge>, Arc<ProvenProcess>) {
    use std::sync::atomic::{AtomicU64, Ordering};

    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let low = u128::from(std::process::id()) << 32 | u128::from(number);
    let instance = InstanceId(0x7e57 << 100 | low);
    let proofs = Proofs::new(instance, Arc::new(Poller::new().unwrap()));
    let badge = proofs.badge().unwrap();
    let process = PeerProcess::new(instance, None).prove(&proofs).unwrap().clone();
    (badge, process)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Option<&str> = None;

    /// An engine of this process that has its name, and a peer that knows it.
    fn pair(number: u128) -> (Proofs, PeerProcess) {
        let instance = InstanceId(0x5eed_0000 + number);
        let poller = Arc::new(Poller::new().unwrap());
        (Proofs::new(instance, poller), PeerProcess::new(instance, HERE))
    }

    #[test]
    fn an_offer_says_what_it_was_made_of_and_this_process_is_no_other_one() {
        let ((proofs, peer), (others, _)) = (pair(1), pair(2));
        assert!(peer.prove(&others).unwrap_err().contains("network namespace"));
        let proof = proofs.own().unwrap();
        assert!(Arc::ptr_eq(&proof, &proofs.own().unwrap()));
        let process = peer.prove(&others).unwrap();
        assert_eq!(process.number(), std::process::id());
        let memory = Memory::from(vec![1; 100]);
        let leases = [Lease::new().unwrap(), Lease::new().unwrap()];
        let offer = proof.offer(process, &memory, leases.each_ref()).unwrap();
        let host = HostOffer::decode(&offer).unwrap();
        let (number, namespace, started) = (offer.process, offer.namespace, host.started);
        let said = Process { number, namespace, started };
        assert_eq!((said, host.len), (Process::own().unwrap(), 100));
        assert_eq!(host.base, memory.address(0, 100).unwrap() as u64);
        let why = open(process, &offer).unwrap_err();
        assert!(why.contains("it is this process"), "{why}");
    }

    #[test]
    fn what_a_peer_says_of_another_process_is_not_believed() {
        let (proofs, peer) = pair(3);
        let leases = [Lease::new().unwrap(), Lease::new().unwrap()];
        let proof = proofs.own().unwrap();
        let process = peer.prove(&proofs).unwrap();
        let offer = proof.offer(process, &Memory::from(vec![1; 8]), leases.each_ref()).unwrap();
        let why = open(process, &Offer { process: 1, ..offer.clone() }).unwrap_err();
        assert!(why.contains("says that it is another process"), "{why}");
        let why = open(process, &Offer { namespace: 1, ..offer.clone() }).unwrap_err();
        assert!(why.contains("PID namespaces"), "{why}");
        let mut later = offer.clone();
        later.export[4] ^= 1;
        assert_eq!(open(process, &later).unwrap_err(), "the peer's process has ended");
        for wrong in [Vec::new(), vec![0; offer.export.len()], offer.export[1..].to_vec()] {
            let why = open(process, &Offer { export: wrong, ..offer.clone() }).unwrap_err();
            assert_eq!(why, "the peer offers something else");
        }
    }

    #[test]
    fn a_peer_that_crowds_its_own_name_is_waited_for_a_few_times_only() {
        // A name whose queue is full and that never makes room.
        let (proofs, liar) = pair(5);
        let badge = Badge::take(&name_of(liar.instance)).unwrap();
        while !matches!(ProvenProcess::with_name(&name_of(liar.instance)), Err(Unproven::Crowded)) {
        }
        let own = Proofs::new(InstanceId(0x5eed_1005), proofs.poller.clone());
        let began = Instant::now();
        for _ in 0..200 {
            let why = liar.prove(&own).unwrap_err();
            assert_eq!(why, Unproven::Crowded.to_string());
        }
        let most = WaitAllowance::MAX * 4;
        assert!(began.elapsed() < most, "{:?}", began.elapsed());
        badge.make_room();
        liar.prove(&own).unwrap();
    }

    #[test]
    fn the_kernel_is_not_asked_again_at_once_after_it_could_not_tell() {
        let (proofs, peer) = pair(6);
        let own = Proofs::new(InstanceId(0x5eed_1006), proofs.poller.clone());
        assert!(!peer.is_proven(&own));
        proofs.badge().unwrap();
        let failed = peer.unproven.lock().unwrap();
        assert!(!peer.is_proven(&own) || failed.elapsed() >= ASKED_AGAIN);
        let later = failed.checked_sub(ASKED_AGAIN).unwrap();
        *peer.unproven.lock() = Some(later);
        assert!(peer.is_proven(&own));
    }

    #[test]
    fn a_peer_of_another_host_is_not_even_looked_for() {
        let (proofs, _) = pair(4);
        let peer = PeerProcess::new(proofs.instance, Some("the peer is on another host"));
        proofs.badge().unwrap();
        assert_eq!(peer.prove(&proofs).unwrap_err(), "the peer is on another host");
        assert!(PeerProcess::new(proofs.instance, HERE).prove(&proofs).is_ok());
    }
}
