//! Measures how long many engines that join one group at once take to see each other, and then to see that some were
//! killed. `scripts/rendezvous-crowd` starts several of these processes and a real etcd.
//!
//! `crowd PLACE OWN TOTAL LEFT` builds OWN engines and prints `ready`. On the first line of standard input they join,
//! and it prints the time until each saw TOTAL members. On the second line it prints the time until each saw LEFT
//! members.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, stdin};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Config, Engine};
use polyrail_rendezvous::{Group, Membership, join};

const DEADLINE: Duration = Duration::from_secs(120);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, own, total, left] = &arguments[..] else {
        return Err("crowd PLACE OWN TOTAL LEFT".into());
    };
    let (own, total, left): (usize, usize, usize) = (own.parse()?, total.parse()?, left.parse()?);
    // One address has too few ports for all of them.
    let [.., high, low] = std::process::id().to_be_bytes();
    let rail = format!("127.77.{high}.{low}");
    let config = Config::builder().set("rails", &rail)?.set("progress", "caller")?;
    let config = config.set("rendezvous", place)?.build()?;
    let engines: Vec<Engine> = (0..own)
        .map(|_| Engine::builder().config(config.clone()).build())
        .collect::<Result<_, _>>()?;
    println!("ready");

    let mut lines = stdin().lock().lines();
    lines.next().ok_or("nobody says when")??;
    let begin = Instant::now();
    // One thread per engine stands for one process per engine.
    let joined: Vec<(Group, Duration)> = thread::scope(|scope| {
        let started: Vec<_> = engines
            .iter()
            .map(|engine| {
                scope.spawn(|| -> Result<_, String> {
                    let membership = Membership::new("crowd").map_err(|error| error.to_string())?;
                    let group = join(engine, &membership).map_err(|error| error.to_string())?;
                    Ok((group, begin.elapsed()))
                })
            })
            .collect();
        started
            .into_iter()
            .map(|it| it.join().map_err(|_| "a panic".to_owned())?)
            .collect::<Result<_, String>>()
    })?;
    let last = joined.iter().map(|(_, after)| *after).max().unwrap_or_default();
    let groups: Vec<Group> = joined.into_iter().map(|(group, _)| group).collect();
    for group in &groups {
        group
            .wait_for(total, DEADLINE)
            .ok_or_else(|| format!("{} of {total} members", group.members().len() + 1))?;
    }
    println!(
        "joined: the last of {own} entered after {:.2} s, all saw {total} after {:.2} s",
        last.as_secs_f64(),
        begin.elapsed().as_secs_f64()
    );

    lines.next().ok_or("nobody says when")??;
    let begin = Instant::now();
    while groups.iter().any(|group| group.members().len() + 1 != left) {
        if begin.elapsed() > DEADLINE {
            return Err("the dead are members yet".into());
        }
        // Precision of the measurement.
        thread::sleep(Duration::from_millis(50));
    }
    println!("gone: all saw {left} after {:.2} s", begin.elapsed().as_secs_f64());
    // The exit ends all memberships. Leaving is not measured.
    std::process::exit(0);
}
