//! Two processes, on one machine or on two: one has a table, the other reads it.
//!
//! Start it without arguments where the table is. It prints the line to type on the other machine.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use polyrail::{Access, Config, Engine, Invitation, Memory, Registrable};

const BYTES: usize = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    polyrail::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => serve(),
        [address, invitation] => fetch(address, &invitation.parse()?),
        _ => Err("give no arguments, or those that the other process has printed".into()),
    }
}

/// Every NIC of the machine, unless the environment says otherwise: POLYRAIL_RAILS=eth0,eth1.
fn engine(name: &str) -> Result<Engine, Box<dyn Error>> {
    let config = Config::builder().env().build()?;
    Ok(Engine::builder().config(config).name(name).build()?)
}

fn serve() -> Result<(), Box<dyn Error>> {
    let engine = engine("server")?;
    let table = Memory::from((0..BYTES).map(value).collect::<Vec<u8>>());
    let table = engine.register(table.with_access(Access::READ))?;
    // The address leads here, and the invitation lets its holder in: it is a secret.
    let (address, invitation) = (engine.addresses()[0], engine.invitation());
    println!("on the other machine, type:");
    println!("cargo run --release -p polyrail --example two_hosts -- {address} {invitation}");

    let peer = engine.accept_peer(PATIENCE).ok_or("nobody came")?;
    println!("{} came", peer.name());
    // The reader needs this description. Nothing else is to be done here: reads are one-sided.
    engine.notify(&peer, &table.describe())?.join()?;
    let why = peer.gone().wait(PATIENCE).ok_or("it does not leave")?;
    println!("{} is gone: {why}", peer.name());
    println!("{}", engine.stats());
    Ok(())
}

fn fetch(address: &str, invitation: &Invitation) -> Result<(), Box<dyn Error>> {
    let engine = engine("reader")?;
    let peer = engine.connect_by(address.parse()?, invitation).join()?;
    let notification = engine.wait_notification(PATIENCE).ok_or("no description came")?;
    let remote = engine.import(&notification.data)?;
    let local = engine.register(Memory::anonymous(remote.len())?)?;
    let outcome = engine.read(&peer, &local.all(), &remote.all())?.join()?;
    let rate = outcome.bytes as f64 / outcome.duration.as_secs_f64() / 1e9;
    println!("read {} bytes from {}, {rate:.2} GB/s", outcome.bytes, peer.name());

    let mut got = vec![0; BYTES];
    local.read_at(0, &mut got)?;
    let wrong = got.iter().enumerate().find(|(at, byte)| **byte != value(*at));
    assert_eq!(wrong, None, "another byte than in the table");
    println!("every byte is right");
    Ok(())
}

/// Value of a byte of the table.
fn value(at: usize) -> u8 {
    (at / 3 + at / 1000) as u8
}
