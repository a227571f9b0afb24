//! Memory of GPUs moves by the same calls as the host's. `--fake` takes devices that need no GPU, as
//! the tests of this crate do; leave that out in a program of your own.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use polyrail::{Config, Cuda, DeviceMemory, Engine, Request};
use polyrail_gpu::fake::FakeDevice;

const BYTES: usize = 4 << 20;

fn main() -> ExitCode {
    polyrail::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let memory = if std::env::args().any(|argument| argument == "--fake") {
        let device = |index| FakeDevice::new(index, Duration::from_micros(100), index.into());
        [device(0).memory(&[0; BYTES]), device(1).memory(&[0; BYTES])]
    } else {
        of_gpus()?
    };
    move_between(memory)
}

/// Memory of the first GPU and of the last, which may be the same. A pointer that the program has
/// already, as of PyTorch's tensor, is taken by `Cuda::memory_at`.
fn of_gpus() -> Result<[DeviceMemory; 2], polyrail::GpuError> {
    let cuda = Cuda::load()?;
    let last = cuda.count().saturating_sub(1);
    Ok([cuda.device(0)?.allocate(BYTES as u64)?, cuda.device(last)?.allocate(BYTES as u64)?])
}

fn move_between([here, there]: [DeviceMemory; 2]) -> Result<(), Box<dyn Error>> {
    let config = Config::builder().set("rails", "127.0.0.1")?.build()?;
    let a = Engine::builder().config(config.clone()).build()?;
    let b = Engine::builder().config(config).build()?;
    let (local, target) = (a.register(here)?, b.register(there)?);
    // Stands for a kernel. What the GPU was given to do must be done before a transfer is posted.
    let want: Vec<u8> = (0..BYTES).map(|at| (at / 3) as u8).collect();
    local.write_at(0, &want)?;

    let peer = a.add_peer(&b.metadata())?;
    let remote = a.import(&target.describe())?;
    let write = Request::write(&peer).segment(local.all(), remote.all());
    // Prepared once: the way is chosen here, and posting takes it any number of times.
    let prepared = a.prepare(write.notification(b"tensor".to_vec()))?;
    println!("{}", prepared.path());
    let outcome = prepared.post()?.join()?;
    let notification = b.wait_notification(Duration::from_secs(10)).ok_or("nothing came")?;
    assert_eq!(notification.data, b"tensor");
    let mut got = vec![0; BYTES];
    target.read_at(0, &mut got)?;
    assert!(got == want, "bytes differ");
    println!("{} bytes are right after {:?}", outcome.bytes, outcome.duration);
    Ok(())
}
