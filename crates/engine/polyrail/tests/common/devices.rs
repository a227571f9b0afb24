//! Devices that need no GPU: they copy late, and out of order between their queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use polyrail::{DeviceMemory, Engine, Region, Request};
use polyrail_gpu::fake::FakeDevice;

use super::{LONG, Pair, bytes, filled, finished, pattern, remote, zeroed};

const LATE: Duration = Duration::from_micros(300);

pub(crate) fn device(index: u32) -> Arc<FakeDevice> {
    FakeDevice::new(index, LATE, 7 + u64::from(index))
}

/// Makes a device that reaches no other.
pub(crate) fn lone_device(index: u32) -> Arc<FakeDevice> {
    let device = device(index);
    device.set_alone();
    device
}

/// Registers memory of a device. Returns the region and the memory.
pub(crate) fn on(
    device: &Arc<FakeDevice>,
    engine: &Engine,
    bytes: &[u8],
) -> (Region, DeviceMemory) {
    let memory = device.memory(bytes);
    (engine.register(memory.clone()).unwrap(), memory)
}

/// Runs `work`, which must not end before a device releases the copies that it holds back.
pub(crate) fn waits_for_copies(device: &FakeDevice, work: impl FnOnce()) {
    let goes_on = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Work that does not wait for the device is over long before.
            thread::sleep(Duration::from_millis(50));
            goes_on.store(true, Ordering::SeqCst);
            device.hold(false);
        });
        work();
        assert!(goes_on.load(Ordering::SeqCst), "the device was about to copy");
    });
}

/// Checks that nothing lands in the memory any more.
pub(crate) fn stays_as_it_is(memory: &DeviceMemory) {
    let before = FakeDevice::contents(memory);
    // A copy that is under way lands within this time.
    thread::sleep(LATE * 50);
    assert!(FakeDevice::contents(memory) == before, "something landed later");
}

/// Writes small pieces from two devices and the host to two devices and the host, mixed and in reverse order, and
/// compares them. Returns the path.
pub(crate) fn write_scattered(p: &Pair, devices: &[Arc<FakeDevice>; 2]) -> String {
    let (count, len) = (3000u64, 48u64);
    let want = pattern((count * len) as usize, 3);
    let zeros = vec![0; want.len()];
    let sources = [
        on(&devices[0], &p.a, &want).0,
        filled(&p.a, want.len(), 3),
        on(&devices[1], &p.a, &want).0,
    ];
    let (first, first_memory) = on(&devices[1], &p.b, &zeros);
    let (second, second_memory) = on(&devices[0], &p.b, &zeros);
    let third = zeroed(&p.b, want.len());
    let targets = [&first, &second, &third].map(|region| remote(&p.a, region));
    let segments = (0..count).map(|i| {
        let from = sources[(i % 3) as usize].slice(i * len, len).unwrap();
        (from, targets[(i / 2 % 3) as usize].slice((count - 1 - i) * len, len).unwrap())
    });
    let request = Request::write(&p.to_b).segments(segments).notification(b"all".to_vec());
    let prepared = p.a.prepare(request).unwrap();
    finished(&prepared.post().unwrap());
    assert_eq!(p.b.wait_notification(LONG).unwrap().data, b"all");
    let got =
        [FakeDevice::contents(&first_memory), FakeDevice::contents(&second_memory), bytes(&third)];
    for i in 0..count as usize {
        let (from, to) = (i * 48, (count as usize - 1 - i) * 48);
        assert_eq!(got[i / 2 % 3][to..to + 48], want[from..from + 48], "piece {i}");
    }
    prepared.path().to_string()
}
