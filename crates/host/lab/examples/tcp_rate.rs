//! Measures the payload rate of plain TCP on a shaped rail: `tcp_rate RATE QUEUE_MS SECONDS
//! [CONGESTION…]`.
//!
//! Builds a lab of one rail, runs a single stream from a to b with one congestion control after the
//! other, and prints the payload rate and its share of the rail's speed. Run it as root, built with
//! `--release`:
//!
//! ```text
//! cargo run --release -p polyrail-lab --example tcp_rate -- 1gbit 10 3 cubic bbr
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use polyrail_lab::{Lab, LabSpec, Rate, Side};
use socket2::SockRef;

fn main() -> Result<(), Box<dyn Error>> {
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    let [rate, queue_ms, seconds, congestions @ ..] = args.as_slice() else {
        return Err("usage: tcp_rate RATE QUEUE_MS SECONDS [CONGESTION…]".into());
    };
    let rate: Rate = rate.parse()?;
    let name = format!("tcp-rate-{}", std::process::id());
    let mut spec = LabSpec::new(name, vec![rate]);
    spec.queue_ms = queue_ms.parse()?;
    let lab = Lab::up(&spec)?.guard();
    let window = Duration::from_secs_f64(seconds.parse()?);

    println!("rate        queue_ms  congestion  payload_mbit_per_s  of_rate");
    for congestion in congestions {
        let bits = measure(&lab, congestion, window)?;
        let share = rate.bits_per_second().map(|rate| format!("{:.3}", bits / rate as f64));
        println!(
            "{rate:<10}  {queue_ms:>8}  {congestion:<10}  {:>18.1}  {:>7}",
            bits / 1e6,
            share.unwrap_or_default()
        );
    }
    lab.down()?;
    Ok(())
}

/// Payload bits per second at the receiver, after a warm-up of half a second.
fn measure(lab: &Lab, congestion: &str, window: Duration) -> Result<f64, Box<dyn Error>> {
    let address = SocketAddr::from((lab.rails()[0].end(Side::B).ipv4, 5001));
    std::thread::scope(|scope| {
        let (ready, wait) = std::sync::mpsc::channel();
        let receiver = scope.spawn(move || -> Result<f64, String> {
            lab.enter_thread(Side::B).map_err(|error| error.to_string())?;
            let text = |error: std::io::Error| error.to_string();
            let listener = TcpListener::bind(address).map_err(text)?;
            // The sender may have failed and stopped waiting.
            let _ = ready.send(());
            let (mut stream, _) = listener.accept().map_err(text)?;
            let mut buffer = vec![0; 1 << 20];
            let warm = Instant::now() + Duration::from_millis(500);
            while Instant::now() < warm {
                stream.read(&mut buffer).map_err(text)?;
            }
            let (start, mut bytes) = (Instant::now(), 0);
            while start.elapsed() < window {
                bytes += stream.read(&mut buffer).map_err(text)?;
            }
            Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64())
        });
        let sender = scope.spawn(move || -> Result<(), String> {
            let text = |error: std::io::Error| error.to_string();
            wait.recv().map_err(|error| error.to_string())?;
            lab.enter_thread(Side::A).map_err(|error| error.to_string())?;
            let mut stream = TcpStream::connect(address).map_err(text)?;
            SockRef::from(&stream).set_tcp_congestion(congestion.as_bytes()).map_err(text)?;
            let block = vec![0x5a; 1 << 20];
            // Ends when the receiver has measured long enough and closes.
            while stream.write_all(&block).is_ok() {}
            Ok(())
        });
        let rate = receiver.join().map_err(|_| "the receiver panicked")??;
        sender.join().map_err(|_| "the sender panicked")??;
        Ok(rate)
    })
}
