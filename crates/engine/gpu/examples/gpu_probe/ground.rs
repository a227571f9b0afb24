//! State shared by checks and measurements: the devices, byte patterns, and the results.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_gpu::cuda::{Cuda, CudaDevice, Method, QueueOptions};
use polyrail_gpu::{CopyPlace, Device, DeviceMemory, Queue};
use polyrail_sys::Memory;
use serde_json::{Value, json};

/// Limit for a copy: far longer than any copy here takes, unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

pub(crate) struct Ground {
    pub(crate) cuda: Arc<Cuda>,
    pub(crate) device: Arc<CudaDevice>,
    pub(crate) peer: Arc<CudaDevice>,
    begun: Instant,
    checks: Vec<Value>,
    failed: u32,
    figures: Vec<Value>,
}

impl Ground {
    pub(crate) fn new(cuda: Arc<Cuda>, device: u32, peer: u32) -> Outcome<Self> {
        let (device, peer) = (cuda.device(device)?, cuda.device(peer)?);
        println!("{cuda:?}: {} to {}", device.identity(), peer.identity());
        let (begun, checks, figures) = (Instant::now(), Vec::new(), Vec::new());
        Ok(Self { cuda, device, peer, begun, checks, failed: 0, figures })
    }

    /// Records the result of a check; an error describes the failure.
    pub(crate) fn check(&mut self, name: &str, result: Outcome<()>) {
        let error = result.err().map(|error| error.to_string());
        match &error {
            None => println!("ok    {name}"),
            Some(error) => println!("WRONG {name}: {error}"),
        }
        self.failed += u32::from(error.is_some());
        self.checks.push(json!({ "check": name, "error": error }));
    }

    /// Records a result of a measurement.
    pub(crate) fn figure(&mut self, what: &str, how: &str, value: f64, unit: &str) {
        println!("{what:<44} {how:<26} {value:>12.3} {unit}");
        self.figures.push(json!({ "what": what, "how": how, "value": value, "unit": unit }));
    }

    pub(crate) fn failed(&self) -> u32 {
        self.failed
    }

    pub(crate) fn json(&self) -> String {
        let (major, minor) = self.cuda.version();
        let names = [&self.device, &self.peer].map(|device| device.identity().to_string());
        let all = json!({
            "schema_version": 1,
            "cuda_version": format!("{major}.{minor}"),
            "devices": names,
            "seconds": self.begun.elapsed().as_secs_f64(),
            "checks": self.checks,
            "figures": self.figures,
        });
        format!("{all:#}\n")
    }
}

/// Opens a queue that copies with the given method.
pub(crate) fn queue(device: &Arc<CudaDevice>, method: Method) -> Outcome<Queue> {
    queue_of(device, QueueOptions { method, ..QueueOptions::default() })
}

pub(crate) fn queue_of(device: &Arc<CudaDevice>, options: QueueOptions) -> Outcome<Queue> {
    Ok(Queue::from(device.open_queue_with(options)?))
}

/// Begins the pushed copies and waits for them.
pub(crate) fn finish(queue: &mut Queue) -> Outcome<()> {
    match queue.begin()?.wait(LIMIT)? {
        true => Ok(()),
        false => Err("a batch did not end in 20 s".into()),
    }
}

/// Writes bytes to device memory, through pinned memory and the copy engines.
pub(crate) fn upload(device: &Arc<CudaDevice>, memory: &DeviceMemory, bytes: &[u8]) -> Outcome<()> {
    let host = device.pinned(bytes.len() as u64)?;
    host.write_at(0, bytes)?;
    let mut queue = queue(device, Method::Engines)?;
    queue.push(CopyPlace::Device(memory, 0), CopyPlace::Host(&host, 0), bytes.len() as u64)?;
    finish(&mut queue)
}

/// Returns the content of device memory.
pub(crate) fn download(device: &Arc<CudaDevice>, memory: &DeviceMemory) -> Outcome<Vec<u8>> {
    let host = device.pinned(memory.len())?;
    let mut queue = queue(device, Method::Engines)?;
    queue.push(CopyPlace::Host(&host, 0), CopyPlace::Device(memory, 0), memory.len())?;
    finish(&mut queue)?;
    contents(&host)
}

pub(crate) fn contents(memory: &Memory) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; memory.len() as usize];
    memory.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Makes bytes that differ at every place, so that a swapped piece is detected.
pub(crate) fn pattern(seed: u64, len: u64) -> Vec<u8> {
    let word = |index: u64| (index ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = (0..len.div_ceil(8)).flat_map(|index| word(index).to_le_bytes());
    words.take(len as usize).collect()
}

/// Checks that bytes are as expected; the error says where they differ.
pub(crate) fn same(found: &[u8], expected: &[u8]) -> Outcome<()> {
    if found == expected {
        return Ok(());
    }
    let place = found.iter().zip(expected).position(|(a, b)| a != b);
    let wrong = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    Err(format!("{wrong} of {} bytes are wrong, the first at {place:?}", expected.len()).into())
}

/// Returns the median of some runs, in seconds.
pub(crate) fn median(seconds: Vec<f64>) -> f64 {
    polyrail_report::median(seconds).unwrap_or(f64::NAN)
}

/// Runs something a few times to warm up, then `times` times. Returns the median in seconds.
pub(crate) fn timed(times: usize, mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    for _ in 0..times.div_ceil(10) {
        run()?;
    }
    let mut seconds = Vec::with_capacity(times);
    for _ in 0..times {
        let begin = Instant::now();
        run()?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    Ok(median(seconds))
}

/// Numbers that look random and are the same in every run (xorshift, by Marsaglia).
pub(crate) struct Dice(pub u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}
