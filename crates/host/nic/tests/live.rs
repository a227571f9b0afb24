//! Tests against the running kernel: read-only, or with a test's own file.

use std::fs;

use polyrail_nic::{
    Ethtool, Events, Netdev, NicError, Setting, WriteWatch, driver_info, driver_stats, offloads,
    require_right_to_change,
};
use polyrail_skip::skip;

const NO_DEVICE: &str = "no network device here";
const ELSEWHERE: &str = "cargo test -p polyrail-nic on a machine with one";

fn ifindex(nic: &str) -> u32 {
    let text = fs::read_to_string(format!("/sys/class/net/{nic}/ifindex")).unwrap();
    text.trim().parse().unwrap()
}

/// Returns an interface with a device, if this machine has one.
fn device() -> Option<String> {
    let names = fs::read_dir("/sys/class/net").unwrap();
    let names = names.map(|entry| entry.unwrap().path());
    let mut real = names.filter(|path| path.join("device").exists());
    real.next().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
}

#[test]
fn an_interface_that_is_not_there_is_refused_by_its_name() {
    let mut ethtool = Ethtool::open().unwrap();
    let error = ethtool.channels("none0").unwrap_err();
    assert!(error.is_absent() && error.to_string().contains("channels of none0"), "{error}");
    assert!(error.help().unwrap().contains("ip -br link"));
    assert!(driver_info("none0").unwrap_err().is_absent());
    assert!(driver_stats(&"x".repeat(99)).unwrap_err().is_absent());
}

/// Root may, unless a container removed the right; an ordinary user may not.
#[test]
fn the_right_to_change_interfaces_is_that_of_the_process() {
    const CAP_NET_ADMIN: u32 = 12;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let may = u64::from_str_radix(rights.trim(), 16).unwrap() >> CAP_NET_ADMIN & 1 == 1;
    match require_right_to_change() {
        Ok(()) => assert!(may),
        Err(error) => assert!(error.is_permission() && !may, "{error}"),
    }
}

#[test]
fn loopback_has_its_offloads_on() {
    let found = offloads("lo").unwrap();
    // Loopback's checksums can't be switched off, and segmentation needs them.
    assert!(found.tx_checksum && found.rx_checksum && found.gso, "{found:?}");
    assert!(offloads("none0").unwrap_err().is_absent());
}

#[test]
fn loopback_has_no_queues_to_set_and_that_is_no_fault() {
    let error = Ethtool::open().unwrap().channels("lo").unwrap_err();
    assert!(error.is_unsupported(), "{error}");
}

#[test]
fn a_device_tells_its_driver_queues_and_rings() {
    let Some(nic) = device() else { return skip(NO_DEVICE, ELSEWHERE) };
    let info = driver_info(&nic).unwrap();
    let driver = fs::read_link(format!("/sys/class/net/{nic}/device/driver")).unwrap();
    assert_eq!(info.driver, driver.file_name().unwrap().to_str().unwrap());

    let mut ethtool = Ethtool::open().unwrap();
    let folders = fs::read_dir(format!("/sys/class/net/{nic}/queues")).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let receiving = names.filter(|name| name.starts_with("rx-")).count();
    match ethtool.channels(&nic) {
        Ok(channels) => {
            let now = channels.combined.now.or(channels.rx.now).unwrap();
            assert!(now as usize <= receiving, "{now} queues, {receiving} in /sys");
        }
        Err(error) => assert!(error.is_unsupported(), "{error}"),
    }
    match ethtool.value(&nic, Setting::parse("rings.rx").unwrap()) {
        Ok(ring) => assert!(ring.now <= ring.max),
        Err(error) => assert!(error.is_unsupported(), "{error}"),
    }
    for (name, _) in driver_stats(&nic).unwrap() {
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_graphic() || c == ' '));
    }
}

#[test]
fn queues_of_a_device_name_napis_that_are_listed() {
    let Some(nic) = device() else { return skip(NO_DEVICE, ELSEWHERE) };
    let mut netdev = match Netdev::open() {
        Ok(netdev) => netdev,
        Err(NicError::NoFamily { .. }) => {
            let run = "cargo test -p polyrail-nic on Linux 6.8 or later";
            return skip("this kernel has no netdev family", run);
        }
        Err(error) => panic!("{error}"),
    };
    let napis = netdev.napis(ifindex(&nic)).unwrap();
    for queue in netdev.queues(ifindex(&nic)).unwrap() {
        let known = |id| napis.iter().any(|napi| napi.id == id);
        assert!(queue.napi.is_none_or(known), "{queue:?} of {napis:?}");
    }
    assert!(netdev.napis(u32::MAX).is_err());
}

#[test]
fn a_subscription_has_two_sources_and_never_waits() {
    let mut events = Events::open().unwrap();
    assert_eq!(events.sources().len(), 2);
    // Other tests may make interfaces meanwhile; the call must return either way.
    for event in events.take().unwrap() {
        assert!(!format!("{event:?}").is_empty());
    }
}

#[test]
fn the_process_that_writes_to_a_watched_file_is_named() {
    let path = std::env::temp_dir().join(format!("polyrail-watched-{}", std::process::id()));
    fs::write(&path, "0").unwrap();
    let watch = match WriteWatch::open(&[&path]) {
        Ok(watch) => watch,
        Err(error) if error.is_permission() => {
            return skip(error, "sudo -E cargo test -p polyrail-nic");
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(watch.take().unwrap(), []);
    // Reading causes no event, and neither does another file.
    fs::read(&path).unwrap();
    assert_eq!(watch.take().unwrap(), []);
    fs::write(&path, "1").unwrap();
    let found = watch.take().unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(found[0].path, path);
    assert_eq!(found[0].pid, std::process::id());
    assert!(!found[0].command.is_empty());
}
