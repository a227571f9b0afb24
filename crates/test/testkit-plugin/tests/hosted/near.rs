//! Devices near GPUs: on a machine with four devices and eight GPUs, each GPU's payload prefers the device behind its
//! own switch.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use polyrail::{Engine, Peer, PreparedTransfer, Region, Request};
use polyrail_gpu::Device;
use polyrail_gpu::fake::FakeDevice;
use polyrail_host::fixtures::{Fixture, a3_high};
use polyrail_host::{Gpu, Nic, Sysroot, Topology};

use crate::{INSIDE, carried, inside, pair, pattern, wait_for};

const SIZE: usize = 64 << 10;
const POSTS: u64 = 20;
const FOUR: (&str, &str) = ("SCATTER_DEVICES", "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4");

/// Runs a body whose test plugin has the machine's four data interfaces.
fn on_a3_high(test: &str, body: impl FnOnce(&Path)) {
    if std::env::var_os(INSIDE).is_some() {
        let root = std::env::var_os("NEAR_ROOT").unwrap();
        return inside(test, &[], || body(Path::new(&root)));
    }
    let machine: Fixture = a3_high();
    let topology = Topology::read(&machine.root()).unwrap();
    let of = |nic: &Nic| {
        let address = nic.pci.as_ref().unwrap().address;
        machine.path().join(format!("sys/bus/pci/devices/{address}")).display().to_string()
    };
    let names = ["eth1", "eth2", "eth3", "eth4"];
    let paths: Vec<String> = names.iter().map(|name| of(topology.nic(name).unwrap())).collect();
    let (paths, root) = (paths.join(","), machine.path().display().to_string());
    inside(test, &[FOUR, ("SCATTER_PCI", &paths), ("NEAR_ROOT", &root)], || {});
}

/// GPUs of the machine, in the order of their addresses.
fn gpus(root: &Path) -> Vec<Arc<FakeDevice>> {
    let topology = Topology::read(&Sysroot::at(root)).unwrap();
    let gpu = |gpu: &Gpu| {
        let device = FakeDevice::new(gpu.index as u32, Duration::ZERO, 1);
        let address = gpu.pci.address;
        device.set_pci_folder(root.join(format!("sys/bus/pci/devices/{address}")));
        device
    };
    topology.gpus.iter().map(gpu).collect()
}

/// Memory of a GPU, and its target at the other end.
fn regions(engines: (&Engine, &Engine), gpu: &Arc<FakeDevice>) -> (Region, Region) {
    let content = pattern(SIZE, gpu.identity().index.into());
    let memory = gpu.memory(&content);
    (engines.0.register(memory).unwrap(), engines.1.register(vec![0; SIZE]).unwrap())
}

fn write(one: &Engine, peer: &Peer, (from, to): &(Region, Region)) -> PreparedTransfer {
    let remote = one.import(&to.describe()).unwrap();
    one.prepare(Request::write(peer).segment(from.all(), remote.all())).unwrap()
}

/// Bytes sent by each rail.
fn sent(engine: &Engine) -> Vec<u64> {
    let stats = engine.stats();
    stats.peers[0].rails.iter().map(|rail| rail.tx_bytes).collect()
}

#[test]
fn each_gpu_prefers_the_device_behind_its_switch() {
    let test = "near::each_gpu_prefers_the_device_behind_its_switch";
    on_a3_high(test, |root| {
        let (one, two, peer) = pair(&[]);
        wait_for("all rails are up", || {
            let stats = one.stats();
            stats
                .peers
                .iter()
                .flat_map(|peer| &peer.rails)
                .all(|rail| !rail.flows.is_empty() && rail.flows.iter().all(|flow| flow.up))
        });
        for (index, gpu) in gpus(root).iter().enumerate() {
            let regions = regions((&one, &two), gpu);
            let prepared = write(&one, &peer, &regions);
            let near = format!("scatter{}", index / 2);
            let names = prepared.near_rails();
            assert!(names.len() == 1 && names[0].ends_with(&near), "GPU {index}: {names:?}");
            let before = sent(&one);
            // One post at a time, so that its rail has no other work.
            (0..POSTS).for_each(|_| assert!(prepared.post().unwrap().join().is_ok()));
            let more: Vec<u64> = sent(&one).iter().zip(before).map(|(a, b)| a - b).collect();
            // A flow may be reconnecting at that moment.
            let least = SIZE as u64 * POSTS * 3 / 4;
            assert!(more[index / 2] >= least, "GPU {index}: {more:?}");
        }
    });
}

#[test]
fn a_gpu_that_is_alone_uses_all_devices() {
    on_a3_high("near::a_gpu_that_is_alone_uses_all_devices", |root| {
        let (one, two, peer) = pair(&[]);
        let gpu = &gpus(root)[0];
        let regions = regions((&one, &two), gpu);
        let prepared = write(&one, &peer, &regions);
        wait_for("all devices carry", || {
            let transfers: Vec<_> = (0..32).map(|_| prepared.post().unwrap()).collect();
            transfers.into_iter().for_each(|transfer| assert!(transfer.join().is_ok()));
            sent(&one).iter().all(|bytes| *bytes > SIZE as u64)
        });
        assert!(carried(&one.stats()).len() >= 4);
    });
}
