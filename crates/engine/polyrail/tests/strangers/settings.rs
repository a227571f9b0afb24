//! Settings that forbid something also hold at the end that is asked: a peer with other settings, or none, may ask
//! anyway.

use std::collections::BTreeSet;
use std::path::Path;

/// The end that a setting concerns.
enum Concerns {
    /// Actions of peers here. This engine checks them whatever is requested, as the test of this name shows.
    Peers(&'static str),
    /// Actions of this engine.
    Own,
}

use Concerns::{Own, Peers};

const OFFERS: &str =
    "memory_is_offered_to_no_peer_that_only_says_that_it_is_here_or_against_the_settings";
const CERTIFICATES: &str = "a_certificate_of_another_ca_is_refused_by_either_end";

const SETTINGS: &[(&str, Concerns)] = &[
    // Paths other than the rails.
    ("path", Peers(OFFERS)),
    // Proofs.
    ("auth", Peers("auth_none_needs_both_ends")),
    ("secret_file", Peers("a_secret_file_lets_in_who_has_one_of_its_secrets")),
    ("certificate_file", Peers(CERTIFICATES)),
    ("certificate_key_file", Peers(CERTIFICATES)),
    ("trust_file", Peers(CERTIFICATES)),
    ("allowed_names", Peers("a_name_that_is_not_allowed_is_refused_by_either_end")),
    ("payload", Peers("payload_as_it_is_changes_nothing_where_it_has_to_be_sealed")),
    // Quotas, shares and times that an engine gives its peers.
    ("flow_limit", Peers("one_that_takes_every_connection_leaves_some_to_others")),
    ("connect_timeout_ms", Peers("a_stranger_that_says_nothing_is_dropped_in_time")),
    (
        "notification_queue",
        Peers("long_notifications_that_nobody_takes_hold_back_their_sender_alone"),
    ),
    ("ops_pool", Peers("one_that_posts_receives_without_end_is_refused_the_rest")),
    ("peer_timeout_ms", Peers("a_peer_that_acknowledges_nothing_new_is_given_up")),
    ("staging_limit_bytes", Peers("less_than_one_slot_is_an_error_that_says_so")),
    // Settings for this engine's own transfers, listeners and logs.
    ("address_family", Own),
    ("append_batch", Own),
    ("append_freq", Own),
    ("channels", Own),
    ("chunk_bytes", Own),
    ("congestion", Own),
    ("dump_signal", Own),
    ("gpu_chunk_bytes", Own),
    ("inline_bytes", Own),
    ("listen_port", Own),
    ("log_file", Own),
    ("log_format", Own),
    ("log_level", Own),
    ("log_subsystems", Own),
    ("metrics_listen", Own),
    ("nccl_devices", Own),
    ("nccl_express_bytes", Own),
    ("preset", Own),
    ("progress", Own),
    ("proxies", Own),
    ("proxy_layout", Own),
    ("rail_stall_ms", Own),
    ("rails", Own),
    ("reconnect_max_ms", Own),
    ("rendezvous", Own),
    ("rx_bindings", Own),
    ("socket_buffer_bytes", Own),
    ("sockets", Own),
    ("spin", Own),
    ("staging_bytes", Own),
    ("trace_file", Own),
    ("tx_bindings", Own),
    ("verbose_bindings", Own),
    ("window_chunks", Own),
];

fn sources(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn each_setting_that_forbids_peers_something_has_a_test_at_the_end_that_is_asked() {
    let known: BTreeSet<&str> = polyrail_config::names().collect();
    let listed: BTreeSet<&str> = SETTINGS.iter().map(|(name, _)| *name).collect();
    assert_eq!(known, listed, "say in `SETTINGS` which end a new setting concerns");
    let mut tests = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), &mut tests);
    for (name, concerns) in SETTINGS {
        if let Peers(test) = concerns {
            assert!(tests.contains(&format!("#[test]\nfn {test}()")), "{name}: no test {test}");
        }
    }
}
