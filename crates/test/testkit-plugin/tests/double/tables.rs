//! All tables, called by `nccl-abi` as hosts do, and the library that hosts load.

use std::collections::VecDeque;
use std::sync::Arc;

use nccl_net_scatter::{ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v11};
use polyrail_gpu::{Fragment, gather};
use polyrail_nccl_abi::{
    DEVICE_UNPACK, HostMemory, Library, Memory as _, Net, Part, RecvComm, SendComm, Table,
};
use polyrail_sys::Memory;

use crate::host::{Host, noise, until};

const LEN: usize = 300_001;
/// More messages than slots.
const MESSAGES: usize = 20;
const DEPTH: usize = 16;
const FRAGMENTS: usize = 2048;

/// Target of a connection's device handle.
struct Bounce {
    metadata: Memory,
    memory: Memory,
    head: u64,
}

impl Bounce {
    /// Reads the handle of a connection, which must stay open while this is used.
    fn of(comm: &RecvComm) -> Self {
        let handle = comm.device_handle().unwrap();
        // SAFETY: in host memory the plugin's handle points to four words, two of which are addresses: of the metadata,
        // and of `bytes` bytes.
        unsafe {
            let [metadata, bounce, head, bytes] = handle.handle.cast::<[u64; 4]>().read();
            let at = |word: u64| std::ptr::with_exposed_provenance_mut(word as usize);
            let metadata_bytes = (DEPTH * FRAGMENTS * 16 + DEPTH * 8) as u64;
            let metadata = Memory::from_raw(at(metadata), metadata_bytes);
            Self { metadata, memory: Memory::from_raw(at(bounce), bytes), head }
        }
    }

    fn next(&mut self) -> Vec<Fragment> {
        self.head = self.head.wrapping_add(1);
        let slot = self.head as usize % DEPTH;
        let mut count = [0; 8];
        self.metadata.read_at((DEPTH * FRAGMENTS * 16 + slot * 8) as u64, &mut count).unwrap();
        let mut entries = vec![0; u64::from_ne_bytes(count) as usize * 16];
        self.metadata.read_at((slot * FRAGMENTS * 16) as u64, &mut entries).unwrap();
        let entries = entries.chunks_exact(16).map(|entry| entry.try_into().unwrap());
        entries.map(Fragment::from_bytes).collect()
    }
}

fn connect(net: &Net) -> (SendComm, RecvComm) {
    let mut listener = net.listen(0).unwrap();
    let mut connector = net.connect(0, *listener.handle()).unwrap();
    let (mut sender, mut receiver) = (None, None);
    until("connecting", || {
        if sender.is_none() {
            sender = connector.poll().unwrap();
        }
        if receiver.is_none() {
            receiver = listener.accept().unwrap();
        }
        Ok((sender.is_some() && receiver.is_some()).then_some(()))
    })
    .unwrap();
    (sender.unwrap(), receiver.unwrap())
}

/// Moves messages and compares them.
fn move_messages(net: &Net) {
    let (mut sender, mut receiver) = connect(net);
    let unpacks = net.properties(0).unwrap().device_type == DEVICE_UNPACK;
    let mut bounce = unpacks.then(|| Bounce::of(&receiver));
    let source = Arc::new(HostMemory::new(LEN).unwrap());
    let bytes = noise(9, LEN);
    source.write(0, &bytes);
    let target = Arc::new(HostMemory::new(LEN).unwrap());
    let gathered = Memory::from(vec![0; LEN]);
    let from = sender.register(source).unwrap();
    let to = receiver.register(target.clone()).unwrap();
    assert!(target.bytes() >= LEN);
    let part = |region| Part { region, offset: 0, bytes: LEN, tag: 0 };
    let (mut sends, mut receives) = (VecDeque::new(), VecDeque::new());
    let (mut posted, mut came) = (0, 0);
    until("the messages", || {
        if posted < MESSAGES
            && let Some(request) = sender.isend(part(from)).unwrap()
        {
            sends.push_back(request);
            posted += 1;
        }
        if receives.is_empty() {
            receives.extend(receiver.irecv(&[part(to)]).unwrap());
        }
        if let Some(send) = sends.front_mut()
            && sender.test(send).unwrap().is_some()
        {
            sends.pop_front();
        }
        if let Some(receive) = receives.front_mut()
            && let Some(sizes) = receiver.test(receive).unwrap()
        {
            assert_eq!(sizes.first(), LEN);
            let mut found = vec![0; LEN];
            match &mut bounce {
                Some(bounce) => {
                    let fragments = bounce.next();
                    Fragment::check(&fragments, LEN as u64).unwrap();
                    gather((&gathered, 0), &bounce.memory, &fragments).unwrap();
                    gathered.read_at(0, &mut found).unwrap();
                    gathered.write_at(0, &vec![0; LEN]).unwrap();
                }
                None => {
                    target.read(0, &mut found);
                    target.write(0, &vec![0; LEN]);
                }
            }
            assert!(found == bytes, "message {came}");
            receiver.consume(receives.pop_front().unwrap()).unwrap();
            came += 1;
        }
        Ok((came == MESSAGES && sends.is_empty()).then_some(()))
    })
    .unwrap();
}

#[test]
fn messages_arrive_by_every_table_in_every_mode() {
    for mode in ["plain", "unpack"] {
        // Held for the settings; the tables read them again.
        let _host = Host::new(&[("SCATTER_MODE", mode)]).unwrap();
        for table in [
            Table::V7(&ncclNetPlugin_v7),
            Table::V8(&ncclNetPlugin_v8),
            Table::V11(&ncclNetPlugin_v11),
        ] {
            // SAFETY: the functions do what NCCL expects of them.
            let net = unsafe { Net::from_table(table) }.unwrap();
            move_messages(&net);
        }
    }
}

#[test]
fn the_library_that_hosts_load_is_the_same_plugin() {
    // Cargo puts it beside the tests, without a hash in its name.
    let path = std::env::current_exe().unwrap().with_file_name("libnccl_net_scatter.so");
    let library = Library::open(path.to_str().unwrap()).unwrap();
    assert_eq!(library.versions(), [7, 8, 11]);
    // The variables are not set in this process, so the mode is plain.
    let net = Net::open(&library, None, None).unwrap();
    assert_eq!((net.name().as_str(), net.version(), net.devices().unwrap()), ("Scatter", 11, 1));
    move_messages(&net);
}
