//! How long engines take to connect, proofs included: `connect [PEERS]`, 1000 by default.
//!
//! First two engines with 8 flows from one to the other, several times: from `add_peer` until all are up. Then
//! one engine to many, each with one flow: until the last is up.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Config, Engine, Peer};

type Failure = Box<dyn Error>;

const TIMES: usize = 21;

fn main() -> Result<(), Failure> {
    let peers = env::args().nth(1).map(|text| text.parse()).transpose()?.unwrap_or(1000);
    eight_flows()?;
    many_peers(peers)
}

fn engine(settings: &[(&str, &str)]) -> Result<Engine, Failure> {
    let mut builder = Config::builder().env().set("rails", "127.0.0.1")?;
    for (name, value) in settings {
        builder = builder.set(name, value)?;
    }
    Ok(Engine::builder().config(builder.build()?).build()?)
}

fn wait_until_up(peers: &[Peer]) {
    while !peers.iter().all(|peer| peer.flows().are_all_up()) {
        thread::sleep(Duration::from_micros(200));
    }
}

fn eight_flows() -> Result<(), Failure> {
    let mut took = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let [a, b] = [engine(&[("channels", "8")])?, engine(&[("channels", "8")])?];
        let begin = Instant::now();
        let peer = a.add_peer(&b.metadata())?;
        wait_until_up(&[peer]);
        took.push(begin.elapsed());
    }
    took.sort();
    println!(
        "8 flows: median {:.1?}, {:.1?} to {:.1?} of {TIMES}",
        took[TIMES / 2],
        took[0],
        took[TIMES - 1]
    );
    Ok(())
}

fn many_peers(count: usize) -> Result<(), Failure> {
    // Callers drive these, so each has one thread.
    let small = [("channels", "1"), ("progress", "caller")];
    let others: Vec<Engine> = (0..count).map(|_| engine(&small)).collect::<Result<_, _>>()?;
    let hub = engine(&[("channels", "1")])?;
    let begin = Instant::now();
    let peers: Vec<Peer> =
        others.iter().map(|other| hub.add_peer(&other.metadata())).collect::<Result<_, _>>()?;
    wait_until_up(&peers);
    println!("{count} peers: {:.2?}", begin.elapsed());
    Ok(())
}
