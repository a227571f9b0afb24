//! A plugin whose connections become silent without breaking. Waits for their bytes must still end.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use polyrail::{Engine, Peer, Region, RemoteRegion, Request, Transfer};

use crate::{carried, double, engine, inside, pair, pattern, wait_for};

const SIZE: usize = 256 << 10;
/// Silent from the first byte on.
const SILENT: (&str, &str) = ("SCATTER_SILENT_AFTER", "0:0");
/// Longer than any test may take: this end never gives up first.
const PATIENT: &[(&str, &str)] =
    &[("rail_stall_ms", "60000"), ("peer_timeout_ms", "120000"), ("proxies", "1")];

/// Less than that, and far longer than needed on a machine that stalls for moments.
const SOON: Duration = Duration::from_secs(50);

/// An engine that gives up a rail after this time.
fn with_stall(stall_ms: &str) -> Engine {
    engine(&double(), &[("rail_stall_ms", stall_ms)]).unwrap()
}

fn patient() -> Engine {
    engine(&double(), PATIENT).unwrap()
}

/// A write that the plugin has taken and does not deliver.
struct Stuck {
    transfer: Transfer,
    from: Region,
    to: Region,
}

fn stuck(one: &Engine, two: &Engine) -> Stuck {
    let peer = one.add_peer(&two.metadata()).unwrap();
    let (from, to, remote) = regions(one, two);
    let transfer = until_stuck(|| one.write(&peer, &from.all(), &remote.all()).unwrap());
    Stuck { transfer, from, to }
}

/// Source of the first engine's writes, their target, and the target as known to the first engine.
fn regions(one: &Engine, two: &Engine) -> (Region, Region, RemoteRegion) {
    let (from, to) =
        (one.register(pattern(SIZE, 1)).unwrap(), two.register(vec![0; SIZE]).unwrap());
    let remote = one.import(&to.describe()).unwrap();
    (from, to, remote)
}

/// Writes until the plugin has carried something.
fn write_until_carried(one: &Engine, peer: &Peer, from: &Region, to: &RemoteRegion) {
    wait_for("something is carried", || {
        // The peer reports that all bytes are in place.
        one.write(peer, &from.all(), &to.all()).unwrap().join().unwrap();
        carried(&one.stats()).iter().any(|bytes| *bytes > 0)
    });
}

/// Posts until the last posted transfer is in the plugin.
fn until_stuck(post: impl Fn() -> Transfer) -> Transfer {
    let mut last = None;
    wait_for("the plugin has payload", || {
        let transfer = post();
        // Many short waits: a machine that stalls for a moment makes one of them longer, and the engine has the others.
        let mut waits = (0..70).map(|_| transfer.wait(Duration::from_millis(10)));
        let is_stuck = waits.all(|ended| ended.is_none());
        last = Some(transfer);
        is_stuck
    });
    last.unwrap()
}

/// Fails unless the work ends soon.
fn soon<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = channel();
    std::thread::spawn(move || done.send(work()));
    is_done.recv_timeout(SOON).unwrap_or_else(|_| panic!("{what}"))
}

#[test]
fn the_receiver_gives_up_a_silent_connection_and_all_arrives_without_it() {
    let test = "silent::the_receiver_gives_up_a_silent_connection_and_all_arrives_without_it";
    inside(test, &[SILENT], || {
        let (one, two) = (patient(), with_stall("1000"));
        let Stuck { transfer, from: _from, to } = stuck(&one, &two);
        soon("the write ends", move || transfer.join()).unwrap();
        let mut landed = vec![0; SIZE];
        to.read_at(0, &mut landed).unwrap();
        assert!(landed == pattern(SIZE, 1));
    });
}

#[test]
fn a_region_that_a_silent_connection_owes_bytes_ends() {
    inside("silent::a_region_that_a_silent_connection_owes_bytes_ends", &[SILENT], || {
        let (one, two) = (patient(), with_stall("1500"));
        let Stuck { transfer, from: _from, to } = stuck(&one, &two);
        soon("the region ends", move || to.end());
        soon("the write ends", move || transfer.join()).unwrap_err();
    });
}

#[test]
fn a_cancel_of_what_a_silent_connection_has_is_over() {
    inside("silent::a_cancel_of_what_a_silent_connection_has_is_over", &[SILENT], || {
        let (one, two) = (patient(), with_stall("1500"));
        let Stuck { transfer, from: _from, to: _to } = stuck(&one, &two);
        transfer.cancel();
        soon("the write ends", move || transfer.join()).unwrap_err();
    });
}

/// Side of an engine's progress threads on which a callback runs.
enum Half {
    Sends,
    Receives,
}

/// Runs `work` in a callback of a progress thread: of the only one that drives, or gives up, the plugin's connections.
fn in_callback(of: &Engine, half: &Half, work: impl Fn() + Clone + Send + Sync + 'static) {
    let third = patient();
    let peer = of.add_peer(&third.metadata()).unwrap();
    // Too short to be carried.
    let (near, far) = (of.register(vec![0; 100]).unwrap(), third.register(vec![0; 100]).unwrap());
    let remote = of.import(&far.describe()).unwrap();
    let (begun, ended) = (channel(), channel());
    let tell = move |_: &_| {
        begun.0.send(()).unwrap();
        work();
        ended.0.send(()).unwrap();
    };
    let write = |peer| Request::write(peer).segment(near.all(), remote.all()).on_end(tell.clone());
    let read = |peer| Request::read(peer).segment(near.all(), remote.all()).on_end(tell.clone());
    let posted = match half {
        Half::Sends => of.post(write(&peer)),
        Half::Receives => of.post(read(&peer)),
    };
    posted.unwrap().detach();
    begun.1.recv_timeout(SOON).expect("the callback is called");
    ended.1.recv_timeout(SOON).expect("the callback is over");
}

#[test]
fn a_region_that_a_silent_connection_sends_ends_in_a_callback() {
    let test = "silent::a_region_that_a_silent_connection_sends_ends_in_a_callback";
    inside(test, &[SILENT], || {
        let (one, two) = (patient(), patient());
        let Stuck { transfer, from, to: _to } = stuck(&one, &two);
        in_callback(&one, &Half::Sends, move || from.end());
        soon("the write ends", move || transfer.join()).unwrap_err();
    });
}

#[test]
fn a_region_that_a_silent_connection_owes_bytes_ends_in_a_callback() {
    let test = "silent::a_region_that_a_silent_connection_owes_bytes_ends_in_a_callback";
    inside(test, &[SILENT], || {
        let (one, two) = (patient(), patient());
        let Stuck { transfer, from: _from, to } = stuck(&one, &two);
        in_callback(&two, &Half::Receives, move || to.end());
        soon("the write ends", move || transfer.join()).unwrap_err();
    });
}

#[test]
fn a_read_that_a_silent_connection_is_to_bring_is_cancelled_in_a_callback() {
    let test = "silent::a_read_that_a_silent_connection_is_to_bring_is_cancelled_in_a_callback";
    inside(test, &[SILENT], || {
        let (one, two) = (patient(), patient());
        let peer = two.add_peer(&one.metadata()).unwrap();
        let (to, from) =
            (two.register(vec![0; SIZE]).unwrap(), one.register(pattern(SIZE, 1)).unwrap());
        let remote = two.import(&from.describe()).unwrap();
        let stuck = until_stuck(|| two.read(&peer, &to.all(), &remote.all()).unwrap());
        let stuck = Arc::new(stuck);
        let transfer = stuck.clone();
        in_callback(&two, &Half::Receives, move || transfer.cancel());
        soon("the read ends", move || stuck.join()).unwrap_err();
    });
}

#[test]
fn a_region_ends_whose_bytes_the_plugin_never_calls_sent() {
    let test = "silent::a_region_ends_whose_bytes_the_plugin_never_calls_sent";
    inside(test, &[("SCATTER_NEVER_SENT", "1")], || {
        let (one, two, peer) = pair(&[("peer_timeout_ms", "1500")]);
        let (from, _to, remote) = regions(&one, &two);
        write_until_carried(&one, &peer, &from, &remote);
        soon("the region ends", move || from.end());
        assert_eq!(peer.lost(), None);
    });
}

#[test]
fn a_region_ends_when_a_plugin_that_does_not_forget_it_is_closed() {
    let test = "silent::a_region_ends_when_a_plugin_that_does_not_forget_it_is_closed";
    let slow = ("SCATTER_SLOW_CALL", "closeSend:0:800");
    inside(test, &[("SCATTER_FAIL_CALL", "deregMr"), slow], || {
        let (one, two, peer) = pair(&[]);
        let (from, _to, remote) = regions(&one, &two);
        write_until_carried(&one, &peer, &from, &remote);
        let begin = Instant::now();
        from.end();
        assert!(begin.elapsed() >= Duration::from_millis(800), "{:?}", begin.elapsed());
    });
}

#[test]
fn failures_that_only_the_receiver_sees_are_not_tried_again_at_once() {
    let test = "silent::failures_that_only_the_receiver_sees_are_not_tried_again_at_once";
    inside(test, &[("SCATTER_FAIL_CALL", "irecv")], || {
        let (one, two, peer) = pair(&[]);
        let (from, _to, remote) = regions(&one, &two);
        let lost = || -> u64 {
            let stats = one.stats();
            stats.peers.iter().flat_map(|peer| &peer.rails).map(|rail| rail.down_count).sum()
        };
        let mut begin = Instant::now();
        wait_for("a connection fails", || {
            begin = Instant::now();
            one.write(&peer, &from.all(), &remote.all()).unwrap().join().unwrap();
            lost() > 0
        });
        let flows = carried(&one.stats()).len() as u64;
        let mut losses = 0;
        loop {
            one.write(&peer, &from.all(), &remote.all()).unwrap().join().unwrap();
            let now = lost();
            // Less than the shortest pause. Later counts may be due to a stall of the machine, and are ignored.
            if begin.elapsed() > Duration::from_millis(1500) {
                break;
            }
            losses = now;
        }
        assert!(losses <= flows, "{losses} losses of {flows} flows");
    });
}

#[test]
fn a_plugin_that_takes_long_to_accept_loses_no_connection() {
    let test = "silent::a_plugin_that_takes_long_to_accept_loses_no_connection";
    // The sender has its end long before.
    inside(test, &[("SCATTER_SLOW_CALL", "accept:0:1500")], || {
        let (one, two, peer) = pair(&[("channels", "1")]);
        let (from, _to, remote) = regions(&one, &two);
        write_until_carried(&one, &peer, &from, &remote);
        let stats = one.stats();
        let rails = stats.peers.iter().flat_map(|peer| &peer.rails);
        assert_eq!(rails.map(|rail| rail.down_count).sum::<u64>(), 0);
    });
}

#[test]
fn a_plugin_that_accepts_later_than_a_peer_may_be_silent_loses_no_peer() {
    let test = "silent::a_plugin_that_accepts_later_than_a_peer_may_be_silent_loses_no_peer";
    inside(test, &[("SCATTER_SLOW_CALL", "accept:0:4000")], || {
        let (one, two, peer) = pair(&[("channels", "1"), ("peer_timeout_ms", "2000")]);
        let (from, to, remote) = regions(&one, &two);
        let begin = Instant::now();
        // Each write succeeds, at first over the flows' own connections.
        write_until_carried(&one, &peer, &from, &remote);
        assert!(begin.elapsed() > Duration::from_secs(3), "before the plugin accepts");
        let mut landed = vec![0; SIZE];
        to.read_at(0, &mut landed).unwrap();
        assert!(landed == pattern(SIZE, 1));
        assert_eq!(peer.lost(), None);
        let stats = one.stats();
        let rails = stats.peers.iter().flat_map(|peer| &peer.rails);
        assert_eq!(rails.map(|rail| rail.down_count).sum::<u64>(), 0);
    });
}

#[test]
fn a_plugin_that_holds_up_its_peer_while_it_accepts_loses_no_connection() {
    let test = "silent::a_plugin_that_holds_up_its_peer_while_it_accepts_loses_no_connection";
    inside(test, &[("SCATTER_ACCEPT_HOLDS", "1500")], || {
        // The receiver waits for the plugin, and of the senders only the one that has a connection.
        let (one, two, peer) = pair(&[("channels", "2"), ("proxies", "2,1")]);
        let (from, _to, remote) = regions(&one, &two);
        wait_for("all flows are carried", || {
            let write = |_| one.write(&peer, &from.all(), &remote.all()).unwrap();
            let writes: Vec<Transfer> = (0..8).map(write).collect();
            for write in writes {
                write.join().unwrap();
            }
            carried(&one.stats()).iter().all(|bytes| *bytes > 0)
        });
        let stats = one.stats();
        let rails = stats.peers.iter().flat_map(|peer| &peer.rails);
        assert_eq!(rails.map(|rail| rail.down_count).sum::<u64>(), 0);
    });
}
