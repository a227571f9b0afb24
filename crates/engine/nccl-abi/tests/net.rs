//! Hosts a plugin built from C (`plugin.c`), by every version of its table.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use polyrail_nccl_abi::{
    Call, HostMemory, Library, LoadError, MAX_REQUESTS, Memory, Net, NetError, Part, RecvComm,
    Region, Request, SendComm,
};

const VERSIONS: std::ops::RangeInclusive<u32> = 5..=12;

/// Builds the plugin, once for each definition.
fn built(definition: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plugin.c");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("libnccl-net-test{definition}.so"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g"]);
    compiler.args(["-Wno-missing-field-initializers", "-fPIC", "-shared", "-fvisibility=hidden"]);
    compiler.arg("-I").arg(source.parent().unwrap().join("../../../faces/nccl/harness"));
    if !definition.is_empty() {
        compiler.args([format!("-D{definition}").as_str(), "-Wno-unused-function"]);
    }
    let status = compiler.arg(source).args(["-pthread", "-o"]).arg(&library).status();
    assert!(status.expect("a C compiler").success());
    library
}

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::open(built("").to_str().unwrap()).unwrap())
}

fn connected(net: &Net) -> (SendComm, RecvComm) {
    let mut listener = net.listen(1).unwrap();
    let mut connector = net.connect(1, *listener.handle()).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let sender = connector.poll().unwrap().expect("a connection");
    assert!(matches!(connector.poll(), Err(NetError::Misuse(_))));
    (sender, listener.accept().unwrap().expect("a connection"))
}

/// Memory that counts its live instances.
struct Counted(HostMemory, Arc<AtomicUsize>);

// SAFETY: as the inner memory, which it owns.
unsafe impl Memory for Counted {
    fn address(&self) -> *mut std::ffi::c_void {
        self.0.address()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

fn counted(bytes: usize, count: &Arc<AtomicUsize>) -> Arc<Counted> {
    count.fetch_add(1, Ordering::Relaxed);
    Arc::new(Counted(HostMemory::new(bytes).unwrap(), count.clone()))
}

fn part(region: Region, offset: usize, bytes: usize, tag: i32) -> Part {
    Part { region, offset, bytes, tag }
}

fn finish_send(comm: &mut SendComm, request: &mut Request) {
    assert!(comm.test(request).unwrap().is_some());
}

#[test]
fn messages_of_each_size_and_groups_arrive_by_every_version() {
    for version in VERSIONS {
        let net = Net::open(library(), Some(version), None).unwrap();
        assert_eq!((net.version(), net.name().as_str(), net.devices()), (version, "Test", Ok(2)));
        let props = net.properties(1).unwrap();
        assert_eq!((props.name.as_str(), props.speed_mbps, props.port), ("test1", 25000, 1));
        assert_eq!((props.guid, props.max_comms, props.max_recvs), (101, 64, 8));
        assert_eq!((props.latency_us, props.max_p2p_bytes), (12.5, 1 << 30));
        assert_eq!(props.reg_is_global, version >= 8);

        let (mut sender, mut receiver) = connected(&net);
        let count = Arc::new(AtomicUsize::new(0));
        let (from, to) = (counted(1 << 20, &count), counted(1 << 20, &count));
        let pattern: Vec<u8> = (0..1 << 20).map(|at: u32| (at * 7 + at / 251) as u8).collect();
        from.0.write(0, &pattern);
        let out = sender.register(from.clone()).unwrap();
        let into = receiver.register(to.clone()).unwrap();
        for (bytes, room) in [(0, 10), (1, 1), (4097, 5000), (1 << 20, 1 << 20)] {
            let mut received = receiver.irecv(&[part(into, 0, room, 3)]).unwrap().unwrap();
            assert!(receiver.test(&mut received).unwrap().is_none());
            let mut sent = sender.isend(part(out, 0, bytes, 3)).unwrap().unwrap();
            finish_send(&mut sender, &mut sent);
            let sizes = receiver.test(&mut received).unwrap().expect("a message");
            assert_eq!((sizes.all(), sizes.is_told()), (&[bytes][..], true));
            receiver.consume(received).unwrap();
            let mut got = vec![0; bytes];
            to.0.read(0, &mut got);
            assert_eq!(got, pattern[..bytes]);
        }
        let group = [part(into, 0, 100, 8), part(into, 200, 100, 9)];
        let mut received = receiver.irecv(&group).unwrap().unwrap();
        for (offset, tag) in [(500, 9), (300, 8)] {
            let mut sent = sender.isend(part(out, offset, 50, tag)).unwrap().unwrap();
            finish_send(&mut sender, &mut sent);
        }
        assert_eq!(receiver.test(&mut received).unwrap().unwrap().all(), [50, 50]);
        receiver.consume(received).unwrap();
        let mut got = [0; 50];
        to.0.read(200, &mut got);
        assert_eq!(got, pattern[500..550]);
        assert!(receiver.iflush(&group).unwrap().is_none(), "nothing to flush");

        drop((from, to));
        assert_eq!(count.load(Ordering::Relaxed), 2, "connections keep memory");
        sender.deregister(out).unwrap();
        sender.close().unwrap();
        drop(receiver);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_the_plugin_hears_of_it() {
    let net = Net::open(library(), None, None).unwrap();
    assert_eq!(net.version(), 12);
    let ((mut sender, mut receiver), (mut other, _receiver)) = (connected(&net), connected(&net));
    let count = Arc::new(AtomicUsize::new(0));
    let (out, into) = (
        sender.register(counted(4096, &count)).unwrap(),
        receiver.register(counted(4096, &count)).unwrap(),
    );
    let misuse = |result: Result<Option<Request>, NetError>| match result {
        Err(NetError::Misuse(text)) => text,
        other => panic!("{other:?}"),
    };
    for (offset, bytes) in [(4096, 1), (0, 4097), (usize::MAX, 1), (1, usize::MAX)] {
        assert!(misuse(sender.isend(part(out, offset, bytes, 0))).contains("region of 4096"));
    }
    assert!(misuse(other.isend(part(out, 0, 1, 0))).contains("not one of this connection"));
    assert!(misuse(receiver.irecv(&[])).contains("1 to 8"));
    assert!(misuse(receiver.irecv(&[part(into, 0, 1, 0); 9])).contains("9 messages"));

    let mut sent = sender.isend(part(out, 0, 1, 0)).unwrap().unwrap();
    assert!(
        matches!(sender.deregister(out), Err(NetError::Misuse(text)) if text.contains("1 requests"))
    );
    assert!(matches!(other.test(&mut sent), Err(NetError::Misuse(_))));
    let mut received = receiver.irecv(&[part(into, 0, 1, 0)]).unwrap().unwrap();
    finish_send(&mut sender, &mut sent);
    assert!(matches!(sender.test(&mut sent), Err(NetError::Misuse(_))), "it was done already");
    receiver.test(&mut received).unwrap().unwrap();
    receiver.consume(received).unwrap();
    let early = receiver.irecv(&[part(into, 0, 1, 0)]).unwrap().unwrap();
    assert!(matches!(receiver.consume(early), Err(NetError::Misuse(_))), "it is not done");
    sender.deregister(out).unwrap();
    let again = sender.register(counted(4096, &count)).unwrap();
    assert!(misuse(sender.isend(part(out, 0, 1, 0))).contains("not one of"), "its place is taken");
    assert_ne!(out, again);

    // A dropped request keeps its memory while the connection is open.
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert!(receiver.deregister(into).is_err());
    drop(receiver);
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn no_more_is_posted_than_plugins_have_room_for() {
    for (version, most) in [(5, 8), (6, 8), (7, 16), (8, MAX_REQUESTS), (12, MAX_REQUESTS)] {
        let net = Net::open(library(), Some(version), None).unwrap();
        assert_eq!(net.max_requests(), most);
        let (_sender, mut receiver) = connected(&net);
        let memory = Arc::new(HostMemory::new(4096).unwrap());
        let into = receiver.register(memory).unwrap();
        let post = |receiver: &mut RecvComm| receiver.irecv(&[part(into, 0, 1, 0)]).unwrap();
        let posted = (0..most).filter_map(|_| post(&mut receiver)).count();
        assert_eq!(posted, most);
        assert!(post(&mut receiver).is_none());
    }
}

#[test]
fn an_observer_hears_of_each_call_in_its_order() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let to = heard.clone();
    let observer = Arc::new(move |call| to.lock().unwrap().push(call));
    let net = Net::open(library(), Some(12), Some(observer)).unwrap();
    let (sender, receiver) = connected(&net);
    drop((sender, receiver, net));
    let heard = heard.lock().unwrap();
    let begun: Vec<&str> = heard
        .iter()
        .filter_map(|call| if let Call::Begins(name) = call { Some(*name) } else { None })
        .collect();
    let expected = [
        "init",
        "getProperties",
        "listen",
        "accept",
        "connect",
        "accept",
        "closeListen",
        "closeSend",
        "closeRecv",
        "finalize",
    ];
    assert_eq!(begun, expected);
    for pair in heard.chunks(2) {
        let [Call::Begins(begun), Call::Ends(ended, code)] = pair else { panic!("{pair:?}") };
        assert_eq!((begun, *code), (ended, Some(0)));
    }
}

#[test]
fn what_is_no_plugin_of_a_known_version_is_told() {
    for definition in ["NO_TABLE", "UNKNOWN_TABLE"] {
        let path = built(definition);
        let error = Library::open(path.to_str().unwrap()).err().unwrap();
        assert!(matches!(error, LoadError::NoTable { .. }), "{error}");
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let whole = std::fs::read(built("")).unwrap();
    let (cut, pipe) = (folder.join("cut.so"), folder.join("pipe.so"));
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    // An earlier run may have left it.
    let _ = std::fs::remove_file(&pipe);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (path, part) in [(cut, ": it is cut off: it has "), (pipe, ": it is no regular file; ")] {
        let error = Library::open(path.to_str().unwrap()).err().unwrap();
        assert!(matches!(error, LoadError::File { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let mut foreign = whole.clone();
    // Processor type in the header: one that does not exist.
    foreign[18..20].copy_from_slice(&[0xfe, 0xfe]);
    let path = folder.join("foreign.so");
    std::fs::write(&path, foreign).unwrap();
    let error = Library::open(path.to_str().unwrap()).err().unwrap().to_string();
    assert!(error.contains("it was built for another kind of processor"), "{error}");
    let error = Net::open(library(), Some(13), None).err().unwrap();
    assert_eq!(
        error.to_string(),
        "the plugin has no table of version 13; it has versions 5, 6, 7, 8, 9, 10, 11 and 12"
    );
}

#[test]
fn the_help_fits_the_way_in_which_something_is_no_plugin() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (empty, needy) = (folder.join("empty.so"), folder.join("needy.so"));
    std::fs::write(&empty, "").unwrap();
    let source = folder.join("needy.c");
    std::fs::write(&source, "extern int nobody(void); int somebody(void) { return nobody(); }")
        .unwrap();
    let status =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&needy).arg(source).status();
    assert!(status.unwrap().success());
    for (path, says, helps) in [
        (
            Path::new("not-installed"),
            "tried: not-installed, libnccl-net-not-installed.so",
            "LD_LIBRARY_PATH",
        ),
        (Path::new("/none/a.so"), "tried: /none/a.so", "name it as NCCL_NET_PLUGIN does"),
        (folder, "it is no regular file", "name the plugin's own file"),
        (&empty, "it is empty", "name the plugin's own file"),
        (&needy, "undefined symbol: nobody", "`ldd "),
        (
            Path::new("libc.so.6"),
            "libc.so.6 exports no ncclNetPlugin_v5 to _v12",
            "a net plugin of NCCL",
        ),
    ] {
        let error = Library::open(path.to_str().unwrap()).err().unwrap();
        assert!(error.to_string().contains(says), "{error}");
        assert!(error.help().contains(helps), "{error}: {}", error.help());
    }
}
