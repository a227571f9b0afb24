//! Two engines in one process: one writes into the memory of the other, which gets a notification.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use polyrail::{Config, Engine, Memory, Request};

fn main() -> ExitCode {
    polyrail::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    // Two engines, here in one process. By default `rails` is every NIC of the machine.
    let config = Config::builder().set("rails", "127.0.0.1,127.0.0.2")?.build()?;
    let a = Engine::builder().config(config.clone()).build()?;
    let b = Engine::builder().config(config).build()?;

    // Two byte strings must get from b to a, by any means: where b listens, and which of its
    // memory a may use.
    let there = b.register(Memory::anonymous(64 << 20)?)?;
    let (listens_on, may_use) = (b.metadata(), there.describe());

    let peer = a.add_peer(&listens_on)?;
    let remote = a.import(&may_use)?;
    let here = a.register(vec![7; 64 << 20])?;
    let write = Request::write(&peer).segment(here.all(), remote.all());
    let outcome = a.post(write.notification(b"done".to_vec()))?.join()?;
    println!("{} bytes are in place after {:?}", outcome.bytes, outcome.duration);

    // b gets the notification once the last byte is in place.
    let notification = b.wait_notification(Duration::from_secs(10)).ok_or("nothing came")?;
    assert_eq!(notification.data, b"done");
    let mut last = [0];
    there.read_at((64 << 20) - 1, &mut last)?;
    assert_eq!(last, [7]);
    Ok(())
}
