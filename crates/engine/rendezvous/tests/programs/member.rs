//! Joins a group as the environment says, and prints the group's events to standard output.
//!
//! `rendezvous-member GROUP NAME COUNT MODE` joins under the name (`-`: the default name), waits for COUNT members,
//! sends each a notification and receives one from each. Then it leaves (MODE `meet`), or stays until standard input
//! ends (MODE `stay`).
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polyrail::{Config, Engine};
use polyrail_rendezvous::{Event, Group, Membership, join};

const DEADLINE: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = run(&arguments) {
        println!("failed {error}");
        std::process::exit(1);
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [group, name, count, stay] = arguments else { return Err("give four arguments".into()) };
    let count: usize = count.parse()?;
    let config = Config::builder().propose("rails", "127.0.0.1", "a test")?.env().build()?;
    let engine = Engine::builder().config(config).name(name).build()?;
    let membership = Membership::new(group)?.timeout(DEADLINE);
    let membership = if name == "-" { membership } else { membership.name(name)? };
    let group = join(&engine, &membership)?;
    println!("entered {}", group.name());
    let members = group.wait_for(count, DEADLINE).ok_or_else(|| format!("alone: {group:?}"))?;
    println!("found {}", members.len() + 1);
    if count > 1 {
        meet(&engine, &group, count)?;
        println!("heard {}", count - 1);
    }
    if stay == "stay" {
        tell(&group)?;
    }
    group.leave();
    println!("over");
    Ok(())
}

/// Sends a notification to each of the others and receives one from each.
fn meet(engine: &Engine, group: &Group, count: usize) -> Result<(), Box<dyn Error>> {
    let until = Instant::now() + DEADLINE;
    let mut sent = Vec::new();
    for member in group.members() {
        sent.push(engine.notify(&group.peer(&member)?, group.name().as_bytes())?);
    }
    for transfer in sent {
        transfer.join()?;
    }
    println!("told {}", count - 1);
    for _ in 1..count {
        let left = until.saturating_duration_since(Instant::now());
        engine.wait_notification(left).ok_or("nobody spoke in time")?;
    }
    Ok(())
}

/// Prints joins and leaves until standard input ends.
fn tell(group: &Group) -> io::Result<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        ends.store(true, Ordering::Relaxed);
    });
    // Only events wake the wait, so check for the end periodically.
    while !is_over.load(Ordering::Relaxed) {
        match group.next_event(Duration::from_millis(50)) {
            Some(Event::Joined(member)) => println!("joined {}", member.name()),
            Some(Event::Left { name }) => println!("left {name}"),
            _ => {}
        }
    }
    Ok(())
}
