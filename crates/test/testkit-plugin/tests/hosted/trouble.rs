//! Faults of a plugin: an engine that can't host it reports that, and one that hosts it continues.

use polyrail::Explain;

use crate::{carried, double, engine, inside, pair, pattern, wait_for};

/// All cases, each for a separate process, or the one of this process.
fn cases<const N: usize>(variable: &str, all: [&'static str; N]) -> Vec<&'static str> {
    match std::env::var(variable) {
        Ok(one) => all.into_iter().filter(|case| *case == one).collect(),
        Err(_) => all.to_vec(),
    }
}

/// Checks that an engine refuses the test plugin with these variables, with this text.
fn refused(test: &str, variables: &[(&str, &str)], text: &str) {
    inside(test, variables, || {
        let error = engine(&double(), &[]).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert!(
            error.help().is_some_and(|help| help.contains("polyrail nccl try")),
            "{:?}",
            error.help()
        );
    });
}

#[test]
fn no_devices() {
    refused("trouble::no_devices", &[("SCATTER_DEVICES", "none")], "has no devices");
}

#[test]
fn too_many_devices_are_refused_before_the_plugin_is_asked_for_each() {
    let addresses: Vec<String> = (1..=65).map(|last| format!("127.0.0.{last}")).collect();
    let devices = addresses.join(",");
    let variables = [("SCATTER_DEVICES", devices.as_str()), ("SCATTER_FAIL_CALL", "getProperties")];
    let test = "trouble::too_many_devices_are_refused_before_the_plugin_is_asked_for_each";
    inside(test, &variables, || {
        let error = engine(&double(), &[]).unwrap_err();
        assert!(error.to_string().contains("these are 65 rails; allowed: 1 to 64"), "{error}");
    });
}

#[test]
fn more_devices_than_an_engine_has_rails() {
    let addresses: Vec<String> = (1..=65).map(|last| format!("127.0.0.{last}")).collect();
    let devices = addresses.join(",");
    inside(
        "trouble::more_devices_than_an_engine_has_rails",
        &[("SCATTER_DEVICES", &devices)],
        || {
            let error = engine(&double(), &[]).unwrap_err();
            assert!(error.to_string().contains("are 65 rails; allowed: 1 to 64"), "{error}");
            assert!(error.help().unwrap().contains("plugin:LIBRARY@NAME+NUMBER"));
            let one = engine(&format!("{}@64", double()), &[]).unwrap();
            assert_eq!(one.rails().len(), 1);
        },
    );
}

#[test]
fn devices_of_one_name_are_told_apart_by_their_numbers() {
    let test = "trouble::devices_of_one_name_are_told_apart_by_their_numbers";
    inside(test, &[("SCATTER_DEVICES", "lo,lo,127.0.0.2")], || {
        let names = |rails: &str| {
            let engine = engine(rails, &[]).unwrap();
            engine.rails().iter().map(|rail| rail.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&double()), ["Scatter:lo#0", "Scatter:lo#1", "Scatter:scatter2"]);
        assert_eq!(names(&format!("{}@lo#1", double())), ["Scatter:lo#1"]);
        let error = engine(&format!("{}@lo", double()), &[]).unwrap_err();
        assert!(error.to_string().contains("0 (lo#0), 1 (lo#1)"), "{error}");
    });
}

#[test]
fn a_device_that_does_not_know_its_speed_and_lies_nowhere_is_a_rail_all_the_same() {
    let variables = [("SCATTER_SPEED", "0"), ("SCATTER_PCI", "/sys/devices/none")];
    let test =
        "trouble::a_device_that_does_not_know_its_speed_and_lies_nowhere_is_a_rail_all_the_same";
    inside(test, &variables, || {
        let (one, _two, _peer) = pair(&[]);
        assert_eq!(one.rails()[0].speed_mbps, None);
    });
    arrives_nevertheless(test, &variables);
}

#[test]
fn a_plugin_that_fails_in_each_call_before_it_carries() {
    let test = "trouble::a_plugin_that_fails_in_each_call_before_it_carries";
    for call in cases("SCATTER_FAIL_CALL", ["init", "devices", "getProperties"]) {
        refused(test, &[("SCATTER_FAIL_CALL", call)], call);
    }
}

#[test]
fn a_device_that_is_not_there_or_named_twice() {
    inside("trouble::a_device_that_is_not_there_or_named_twice", &[], || {
        let double = double();
        for (devices, part) in [
            ("9", "has no device \"9\"; it has 0 (scatter0)"),
            ("0+scatter0", "device scatter0 of plugin Scatter is named twice"),
        ] {
            let error = engine(&format!("{double}@{devices}"), &[]).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.help().is_some_and(|help| help.contains("plugin:LIBRARY@")), "{error:?}");
        }
    });
}

#[test]
fn settings_that_no_plugin_goes_with() {
    inside("trouble::settings_that_no_plugin_goes_with", &[], || {
        for (name, value) in [("payload", "aead"), ("progress", "caller")] {
            let error = engine(&double(), &[(name, value)]).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(&format!("{name} = {value}")), "{error}");
        }
    });
}

/// All bytes arrive even if the plugin fails from some call on: payload then uses the TCP connections.
fn arrives_nevertheless(test: &str, variables: &[(&str, &str)]) {
    inside(test, variables, || {
        const SIZE: usize = 2 << 20;
        let (one, two, peer) = pair(&[("chunk_bytes", "128KiB")]);
        let (from, to) =
            (one.register(vec![0; SIZE]).unwrap(), two.register(vec![0; SIZE]).unwrap());
        let remote = one.import(&to.describe()).unwrap();
        for round in 0..12 {
            let bytes = pattern(SIZE, round);
            from.write_at(0, &bytes).unwrap();
            one.write(&peer, &from.all(), &remote.all()).unwrap().join().unwrap();
            let mut landed = vec![0; SIZE];
            to.read_at(0, &mut landed).unwrap();
            assert!(landed == bytes, "round {round}");
        }
        assert_eq!(peer.lost(), None);
    });
}

#[test]
fn a_plugin_that_fails_in_each_call_of_a_connection() {
    let test = "trouble::a_plugin_that_fails_in_each_call_of_a_connection";
    let calls = [
        "listen",
        "connect",
        "accept",
        "regMr",
        "isend:3",
        "irecv:3",
        "test:20",
        "closeSend",
        "deregMr",
    ];
    for call in cases("SCATTER_FAIL_CALL", calls) {
        arrives_nevertheless(test, &[("SCATTER_FAIL_CALL", call)]);
    }
}

#[test]
fn a_device_that_dies_in_mid_transfer_loses_nothing() {
    let variables =
        [("SCATTER_DEVICES", "127.0.0.1,127.0.0.2"), ("SCATTER_FAIL_AFTER", "1:3000000")];
    arrives_nevertheless("trouble::a_device_that_dies_in_mid_transfer_loses_nothing", &variables);
}

#[test]
fn metadata_that_nobody_may_follow() {
    let test = "trouble::metadata_that_nobody_may_follow";
    for wrong in cases("SCATTER_BAD_METADATA", ["count", "target", "source", "twice"]) {
        arrives_nevertheless(test, &[("SCATTER_MODE", "unpack"), ("SCATTER_BAD_METADATA", wrong)]);
    }
}

#[test]
fn a_bounce_buffer_that_overflows() {
    let variables = [("SCATTER_MODE", "unpack"), ("SCATTER_BOUNCE_BYTES", "65536")];
    arrives_nevertheless("trouble::a_bounce_buffer_that_overflows", &variables);
}

#[test]
fn unpacking_of_another_version() {
    let variables = [("SCATTER_MODE", "unpack"), ("SCATTER_UNPACK_VERSION", "8")];
    refused("trouble::unpacking_of_another_version", &variables, "netDeviceType is 1 of version 8");
}

#[test]
fn a_plugin_that_never_connects() {
    arrives_nevertheless(
        "trouble::a_plugin_that_never_connects",
        &[("SCATTER_NEVER_CONNECTS", "1")],
    );
}

#[test]
fn a_listener_of_another_version() {
    arrives_nevertheless(
        "trouble::a_listener_of_another_version",
        &[("SCATTER_HANDLE_VERSION", "2")],
    );
}

#[test]
fn a_peer_that_goes_while_the_plugin_carries_ends_with_an_error_and_no_hang() {
    inside(
        "trouble::a_peer_that_goes_while_the_plugin_carries_ends_with_an_error_and_no_hang",
        &[],
        || {
            const SIZE: usize = 16 << 20;
            let (one, two, peer) = pair(&[]);
            let from = one.register(pattern(SIZE, 1)).unwrap();
            let to = two.register(vec![0; SIZE]).unwrap();
            let remote = one.import(&to.describe()).unwrap();
            wait_for("something is carried", || {
                one.write(&peer, &from.all(), &remote.all()).unwrap().join().unwrap();
                carried(&one.stats()).iter().any(|bytes| *bytes > 0)
            });
            let pending: Vec<_> =
                (0..8).map(|_| one.write(&peer, &from.all(), &remote.all()).unwrap()).collect();
            drop((to, two));
            for transfer in pending {
                let _ = transfer.join();
            }
            wait_for("the peer is gone", || peer.lost().is_some());
        },
    );
}
