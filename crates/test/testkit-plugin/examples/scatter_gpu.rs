//! Moves messages from one GPU to another over the test plugin, and gathers them there. Checks every byte, and prints
//! each rate as a line of JSON.
//!
//! ```text
//! cargo run --release -p polyrail-testkit-plugin --example scatter_gpu
//! ```
//!
//! With one GPU both ends use it. Exit codes: 0 for success, 1 for a failure, with its reason.

use std::collections::VecDeque;
use std::error::Error;
use std::ffi::c_void;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nccl_net_scatter::{ncclNetPlugin_v8, set_variables};
use polyrail_gpu::cuda::{Cuda, CudaDevice};
use polyrail_gpu::{CopyPlace, Device, DeviceMemory, Fragment, Queue};
use polyrail_nccl_abi::{DeviceHandle, Memory, MemoryKind, Net, Part, RecvComm, SendComm, Table};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const LIMIT: Duration = Duration::from_secs(20);
const MESSAGE: usize = 4 << 20;
/// Messages that have their own memory.
const SLOTS: usize = 32;
const MESSAGES: usize = 512;
const SENDS: usize = 8;
/// As in `struct netUnpackMeta` of NCCL.
const DEPTH: usize = 16;
const FRAGMENTS: usize = 2048;

struct OnGpu(DeviceMemory);

// SAFETY: the value owns the allocation, and there are no references to a GPU's memory.
unsafe impl Memory for OnGpu {
    fn address(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.0.address(0, 0).unwrap_or(0) as usize)
    }

    fn bytes(&self) -> usize {
        self.0.len() as usize
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Cuda
    }
}

/// Metadata and bounce buffer of a connection.
struct Bounce {
    metadata: polyrail_sys::Memory,
    memory: DeviceMemory,
    head: u64,
}

fn main() -> ExitCode {
    match all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn all() -> Outcome<()> {
    let cuda = Cuda::load()?;
    let other = 1 % cuda.count();
    let gpus = format!("0,{other}");
    for jitter in ["1023", "0"] {
        set_variables(&[
            ("SCATTER_DEVICES", "127.0.0.1,127.0.0.2"),
            ("SCATTER_MODE", "unpack-gpu"),
            ("SCATTER_GPUS", &gpus),
            ("SCATTER_JITTER_BYTES", jitter),
        ]);
        // SAFETY: the test plugin's functions do what NCCL expects of them.
        let net = unsafe { Net::from_table(Table::V8(&ncclNetPlugin_v8)) }?;
        for connections in [1, 2, 4] {
            let mut rates = Vec::new();
            for _ in 0..3 {
                rates.push(run(&net, &cuda, other, connections)?);
            }
            rates.sort_by(f64::total_cmp);
            let (least, median, most) = (rates[0], rates[1], rates[2]);
            println!(
                "{{\"gpus\":\"{gpus}\",\"connections\":{connections},\"jitter_bytes\":{jitter},\
                 \"verified\":true,\"gb_per_s\":{median:.3},\"least\":{least:.3},\"most\":{most:.3}}}"
            );
        }
    }
    Ok(())
}

/// Returns the rate in GB/s. Fails if a byte is wrong.
fn run(net: &Net, cuda: &Arc<Cuda>, other: u32, connections: usize) -> Outcome<f64> {
    let (from, to) = (cuda.device(0)?, cuda.device(other)?);
    let mut ends = Vec::new();
    for connection in 0..connections {
        let (sender, receiver) = connect(net)?;
        let bytes = (SLOTS * MESSAGE) as u64;
        let (source, target) = (from.allocate(bytes)?, to.allocate(bytes)?);
        let pattern = pattern(connection as u64);
        write(&from, &source, &pattern)?;
        write(&to, &target, &vec![0xa5; pattern.len()])?;
        let handle = receiver.device_handle().ok_or("there is no device handle")?;
        let bounce = Bounce::open(cuda, &to, &handle)?;
        ends.push((sender, source, receiver, target, bounce, pattern));
    }
    let begin = Instant::now();
    let targets = std::thread::scope(|scope| -> Outcome<Vec<_>> {
        let mut threads = Vec::new();
        let mut senders = Vec::new();
        for (sender, source, receiver, target, bounce, pattern) in ends {
            senders.push(scope.spawn(move || send(sender, source)));
            let device = to.clone();
            threads.push(scope.spawn(move || -> Outcome<_> {
                Ok((receive(&device, receiver, target, bounce)?, pattern))
            }));
        }
        for sender in senders {
            sender.join().map_err(|_| "a sender panicked")??;
        }
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a receiver panicked")?)
            .collect()
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    for (target, pattern) in targets {
        let found = read(&to, &target)?;
        if let Some(place) = found.iter().zip(&pattern).position(|(a, b)| a != b) {
            return Err(format!("a byte is wrong: the first at {place}").into());
        }
    }
    Ok((connections * MESSAGES * MESSAGE) as f64 / seconds / 1e9)
}

fn connect(net: &Net) -> Outcome<(SendComm, RecvComm)> {
    let mut listener = net.listen(1)?;
    let mut connector = net.connect(0, *listener.handle())?;
    let (mut sender, mut receiver) = (None, None);
    let begin = Instant::now();
    loop {
        if sender.is_none() {
            sender = connector.poll()?;
        }
        if receiver.is_none() {
            receiver = listener.accept()?;
        }
        match (sender, receiver) {
            (Some(sender), Some(receiver)) => return Ok((sender, receiver)),
            _ if begin.elapsed() > LIMIT => return Err("no connection".into()),
            rest => (sender, receiver) = rest,
        }
    }
}

fn send(mut comm: SendComm, source: DeviceMemory) -> Outcome<SendComm> {
    let region = comm.register(Arc::new(OnGpu(source)))?;
    let mut posted = 0;
    let mut under_way = VecDeque::new();
    while posted < MESSAGES || !under_way.is_empty() {
        if posted < MESSAGES && under_way.len() < SENDS {
            let part = Part { region, offset: posted % SLOTS * MESSAGE, bytes: MESSAGE, tag: 0 };
            if let Some(request) = comm.isend(part)? {
                under_way.push_back(request);
                posted += 1;
            }
        }
        if let Some(request) = under_way.front_mut()
            && comm.test(request)?.is_some()
        {
            under_way.pop_front();
        }
    }
    // The caller closes it when the receiver has all messages.
    Ok(comm)
}

fn receive(
    device: &Arc<CudaDevice>,
    mut comm: RecvComm,
    target: DeviceMemory,
    mut bounce: Bounce,
) -> Outcome<DeviceMemory> {
    let region = comm.register(Arc::new(OnGpu(target.clone())))?;
    let mut queue = Queue::from(device.clone().open_gather_queue()?);
    let (mut posted, mut came, mut consumed) = (0, 0, 0);
    let (mut under_way, mut gathering) = (VecDeque::new(), VecDeque::new());
    while consumed < MESSAGES {
        if posted < MESSAGES {
            let part = Part { region, offset: posted % SLOTS * MESSAGE, bytes: MESSAGE, tag: 0 };
            if let Some(request) = comm.irecv(&[part])? {
                under_way.push_back(request);
                posted += 1;
            }
        }
        if let Some(request) = under_way.front_mut()
            && let Some(sizes) = comm.test(request)?
        {
            let fragments = bounce.next(sizes.first())?;
            let to = CopyPlace::Device(&target, (came % SLOTS * MESSAGE) as u64);
            let from = CopyPlace::Device(&bounce.memory, 0);
            gathering.push_back((queue.gather(to, from, &fragments)?, under_way.pop_front()));
            came += 1;
        }
        if let Some((ticket, _)) = gathering.front()
            && ticket.is_done()?
            && let Some((_, Some(request))) = gathering.pop_front()
        {
            comm.consume(request)?;
            consumed += 1;
        }
    }
    Ok(target)
}

impl Bounce {
    fn open(cuda: &Arc<Cuda>, device: &Arc<CudaDevice>, handle: &DeviceHandle) -> Outcome<Self> {
        // SAFETY: the plugin keeps it while the connection is open.
        let control = unsafe { cuda.memory_at(handle.handle.addr() as u64, handle.size as u64) }?;
        let words: Vec<u64> = read(device, &control)?
            .chunks_exact(8)
            .map(|word| word.try_into().map(u64::from_ne_bytes))
            .collect::<Result<_, _>>()?;
        let [metadata, bounce, head] = words[..] else { return Err("no device handle".into()) };
        let bytes = DEPTH * FRAGMENTS * 16 + DEPTH * 8;
        let metadata = std::ptr::with_exposed_provenance_mut::<u8>(metadata as usize);
        // SAFETY: as above; it is host memory, which the GPU reaches by the same address.
        let metadata = unsafe { polyrail_sys::Memory::from_raw(metadata, bytes as u64) };
        // SAFETY: as above.
        let memory = unsafe { cuda.memory_from(bounce) }?;
        Ok(Self { metadata, memory, head })
    }

    /// Fragments of the next message.
    fn next(&mut self, bytes: usize) -> Outcome<Vec<Fragment>> {
        self.head = self.head.wrapping_add(1);
        let slot = self.head as usize % DEPTH;
        let mut count = [0; 8];
        self.metadata.read_at((DEPTH * FRAGMENTS * 16 + slot * 8) as u64, &mut count)?;
        let count = usize::try_from(u64::from_ne_bytes(count))?;
        if count > FRAGMENTS {
            return Err(format!("{count} fragments").into());
        }
        let mut entries = vec![0; count * 16];
        self.metadata.read_at((slot * FRAGMENTS * 16) as u64, &mut entries)?;
        let fragments: Vec<Fragment> = entries
            .chunks_exact(16)
            .map(|entry| entry.try_into().map(Fragment::from_bytes))
            .collect::<Result<_, _>>()?;
        Fragment::check(&fragments, bytes as u64)?;
        Ok(fragments)
    }
}

fn pattern(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; SLOTS * MESSAGE];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn write(device: &Arc<CudaDevice>, memory: &DeviceMemory, bytes: &[u8]) -> Outcome<()> {
    let host = device.pinned(memory.len())?;
    host.write_at(0, bytes)?;
    copy(device, CopyPlace::Device(memory, 0), CopyPlace::Host(&host, 0), memory.len())
}

fn read(device: &Arc<CudaDevice>, memory: &DeviceMemory) -> Outcome<Vec<u8>> {
    let host = device.pinned(memory.len())?;
    copy(device, CopyPlace::Host(&host, 0), CopyPlace::Device(memory, 0), memory.len())?;
    let mut bytes = vec![0; memory.len() as usize];
    host.read_at(0, &mut bytes)?;
    Ok(bytes)
}

fn copy(device: &Arc<CudaDevice>, to: CopyPlace<'_>, from: CopyPlace<'_>, len: u64) -> Outcome<()> {
    let any: Arc<dyn Device> = device.clone();
    let mut queue = Queue::new(&any)?;
    queue.push(to, from, len)?;
    match queue.begin()?.wait(LIMIT)? {
        true => Ok(()),
        false => Err("a copy did not end".into()),
    }
}
