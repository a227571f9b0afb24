//! How processes of one host prove to each other that they are what they say, before one tells the
//! other an address of its memory, and before one copies from or to the other.
//!
//! A peer says itself which host it is on and which process it is. Whoever believed that could be
//! made to write into any process that it may trace. So each engine takes a name in the kernel, made
//! of its instance number: the kernel then says which process has that name, and which user that is.
//!
//! And whoever copies looks at two words in the other process: one of
//! the region, one of the peer. They are random, and their owner clears them when it ends the region
//! or gives the peer up. So a process that has become another program does not pass for the peer. Whoever writes
//! also writes to the pages of these words, in the same system call, and the owner closes the pages. So a process
//! that was stopped meanwhile, be it just before that call, goes on and finds that it may not.

use std::io;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use polyrail_proto::InstanceId;
use polyrail_proto::message::Offer;
use polyrail_sys::process::{Process, namespace, user};
use polyrail_sys::{
    Badge, Bearer, ForeignMemory, Guard, GuardPage, Memory, OtherProcess,
    may_copy_between_processes,
};

const MAGIC: [u8; 4] = *b"PRH2";
const WORDS: usize = 7;
const OFFER_BYTES: usize = 4 + 8 * WORDS;

/// Says whether others may still copy.
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

    /// The one that is kept there, new if there was none.
    pub(crate) fn of(place: &OnceLock<Self>) -> Result<&Self, String> {
        if place.get().is_none()
            && let Err(late) = place.set(Self::new()?)
        {
            // Another thread was first, and nobody knows of this one.
            late.allow_reuse();
        }
        place.get().ok_or_else(|| "there is no lease".to_owned())
    }

    /// From now on nobody may begin to copy.
    pub(crate) fn revoke(&self) {
        if let Err(error) = self.page.close() {
            tracing::error!(target: "polyrail::share", %error, "a process that is stopped just before it \
                writes here can't be kept from it when it goes on");
        }
    }

    /// All who could copy have said that they do not any more.
    pub(crate) fn allow_reuse(&self) {
        self.page.allow_reuse();
    }
}

/// What this engine proves itself with, once it is needed.
#[derive(Default)]
pub(crate) struct Proofs(Mutex<Option<Arc<HostProof>>>);

/// The name of an engine.
pub(crate) struct HostProof {
    badge: Badge,
    process: Process,
}

impl Proofs {
    /// The proof of the engine with this number. What fails now may succeed for the next peer.
    pub(crate) fn own(&self, instance: InstanceId) -> Result<Arc<HostProof>, String> {
        let mut known = self.0.lock();
        if let Some(proof) = &*known {
            return Ok(proof.clone());
        }
        let proof = Arc::new(HostProof::new(instance)?);
        *known = Some(proof.clone());
        Ok(proof)
    }
}

impl HostProof {
    fn new(instance: InstanceId) -> Result<Self, String> {
        may_copy_between_processes().map_err(|error| {
            format!("a seccomp filter forbids this process to copy between processes: {error}")
        })?;
        let process = Process::own().ok_or("/proc is not mounted")?;
        let badge = Badge::take(&name_of(instance))
            .map_err(|error| format!("this process can't show who it is: {error}"))?;
        Ok(Self { badge, process })
    }

    /// What a peer needs to copy from and to this memory, until one of the leases is revoked.
    pub(crate) fn offer(&self, memory: &Memory, leases: [&Lease; 2]) -> Result<Offer, String> {
        self.badge.make_room();
        let base = memory.address(0, memory.len()).map_err(|error| error.to_string())?;
        let [one, two] = leases;
        let words: [u64; WORDS] = [
            self.process.started,
            base as u64,
            memory.len(),
            one.page.place(),
            two.page.place(),
            one.value,
            two.value,
        ];
        let mut export = Vec::with_capacity(OFFER_BYTES);
        export.extend(MAGIC);
        words.iter().for_each(|word| export.extend(word.to_le_bytes()));
        let Process { number, namespace, .. } = self.process;
        Ok(Offer { process: number, namespace, descriptors: Vec::new(), export })
    }
}

/// Host memory that a peer has offered.
#[derive(Clone, Copy)]
struct HostOffer {
    process: Process,
    base: u64,
    len: u64,
    guard: Guard,
}

/// Whether an engine with this number runs here as the same user: nobody else is told addresses.
pub(crate) fn is_neighbour(instance: InstanceId) -> Result<Bearer, String> {
    let bearer = Bearer::of(&name_of(instance)).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "the other process is not in this network namespace".to_owned()
        }
        _ => format!("it can't be found out which process the other one is: {error}"),
    })?;
    let own = user();
    if bearer.user != own {
        let theirs = bearer.user;
        return Err(format!("the processes are of different users ({own} and {theirs})"));
    }
    Ok(bearer)
}

/// The memory that a peer has offered; `known`: its process, if that was checked before.
pub(crate) fn open(
    instance: InstanceId,
    offer: &Offer,
    known: Option<Arc<OtherProcess>>,
) -> Result<ForeignMemory, String> {
    let host = HostOffer::decode(offer).ok_or("the peer offers something else")?;
    let process = match known {
        Some(process) => process,
        None => Arc::new(open_process(instance, host)?),
    };
    let memory = process.memory(host.base, host.len, host.guard);
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

fn open_process(instance: InstanceId, host: HostOffer) -> Result<OtherProcess, String> {
    const OTHER_NAMESPACE: &str = "the processes are in different PID namespaces (containers)";
    if namespace() != Some(host.process.namespace) {
        return Err(OTHER_NAMESPACE.to_owned());
    }
    let bearer = is_neighbour(instance)?;
    match bearer.process {
        None => return Err(OTHER_NAMESPACE.to_owned()),
        Some(number) if number != host.process.number => {
            return Err("the peer says that it is another process".to_owned());
        }
        Some(_) => {}
    }
    let process = OtherProcess::open(host.process)
        .map_err(|error| format!("the peer's process can't be found: {error}"))?;
    if !bearer.has_it() {
        return Err("the peer's process has ended".to_owned());
    }
    Ok(process)
}

/// Why the kernel refuses though the user is the same.
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

impl HostOffer {
    fn decode(offer: &Offer) -> Option<Self> {
        let bytes: &[u8; OFFER_BYTES] = offer.export.as_slice().try_into().ok()?;
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        if *magic != MAGIC || !offer.descriptors.is_empty() {
            return None;
        }
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&rest[index * 8..index * 8 + 8]);
            u64::from_le_bytes(word)
        };
        let (number, namespace, started) = (offer.process, offer.namespace, word(0));
        let process = Process { number, namespace, started };
        let guard = Guard { places: [word(3), word(4)], values: [word(5), word(6)] };
        Some(Self { process, base: word(1), len: word(2), guard })
    }
}

fn name_of(instance: InstanceId) -> String {
    format!("polyrail-{:032x}", instance.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_says_what_it_was_made_of_and_this_process_is_no_other_one() {
        let (proofs, instance) = (Proofs::default(), InstanceId(0x5eed_0000 + 1));
        assert!(is_neighbour(instance).unwrap_err().contains("network namespace"));
        let proof = proofs.own(instance).unwrap();
        assert!(Arc::ptr_eq(&proof, &proofs.own(instance).unwrap()));
        let memory = Memory::from(vec![1; 100]);
        let leases = [Lease::new().unwrap(), Lease::new().unwrap()];
        let offer = proof.offer(&memory, leases.each_ref()).unwrap();
        let host = HostOffer::decode(&offer).unwrap();
        assert_eq!((host.process, host.len), (Process::own().unwrap(), 100));
        assert_eq!(host.base, memory.address(0, 100).unwrap() as u64);
        assert_eq!(is_neighbour(instance).unwrap().process, Some(std::process::id()));
        let why = open(instance, &offer, None).unwrap_err();
        assert!(why.contains("it is this process"), "{why}");
    }

    #[test]
    fn what_a_peer_says_of_another_process_is_not_believed() {
        let (proofs, instance) = (Proofs::default(), InstanceId(0x5eed_0000 + 2));
        let leases = [Lease::new().unwrap(), Lease::new().unwrap()];
        let proof = proofs.own(instance).unwrap();
        let offer = proof.offer(&Memory::from(vec![1; 8]), leases.each_ref()).unwrap();
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let other = Process::of(child.id()).unwrap();
        let mut claim = Offer { process: other.number, ..offer.clone() };
        claim.export[4..12].copy_from_slice(&other.started.to_le_bytes());
        let why = open(instance, &claim, None).unwrap_err();
        assert!(why.contains("says that it is another process"), "{why}");
        let why = open(instance, &Offer { namespace: 1, ..offer.clone() }, None).unwrap_err();
        assert!(why.contains("PID namespaces"), "{why}");
        // And if the kernel's word were got round, the words are not there.
        let process = Arc::new(OtherProcess::open(other).unwrap());
        let why = open(instance, &claim, Some(process)).unwrap_err();
        assert!(why.contains("can't be read") || why.contains("is not what"), "{why}");
        for wrong in [Vec::new(), vec![0; OFFER_BYTES], offer.export[1..].to_vec()] {
            let why = open(instance, &Offer { export: wrong, ..offer.clone() }, None).unwrap_err();
            assert_eq!(why, "the peer offers something else");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
