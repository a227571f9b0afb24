//! New weights for many peers at once, as after a training step. A notification tells each peer that all weights have
//! arrived, with a checksum.

use std::error::Error;
use std::hash::{DefaultHasher, Hasher};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Memory, Registrable, Request, TransferError};

const PEERS: usize = 4;
const BYTES: usize = 1 << 20;
const SOON: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    polyrail::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let config = Config::builder().set("rails", "127.0.0.1,127.0.0.2")?.build()?;
    let trainer = Engine::builder().config(config.clone()).name("trainer").build()?;
    // Only the trainer itself touches this memory: peers may neither read nor write it.
    let weights = trainer.register(Memory::anonymous(BYTES as u64)?.with_access(Access::LOCAL))?;

    // Each worker passes on its address and a description of the memory that may be written.
    let mut workers = Vec::new();
    let mut requests = Vec::new();
    for rank in 0..PEERS {
        let name = format!("worker {rank}");
        let engine = Engine::builder().config(config.clone()).name(&name).build()?;
        let memory =
            engine.register(Memory::anonymous(BYTES as u64)?.with_access(Access::WRITE))?;
        let peer = trainer.add_peer(&engine.metadata())?;
        let remote = trainer.import(&memory.describe())?;
        requests.push((peer, remote));
        workers.push((engine, memory));
    }

    for step in 0..3u8 {
        let fresh: Vec<u8> = (0..BYTES).map(|at| (at as u8).wrapping_mul(31) ^ step).collect();
        weights.write_at(0, &fresh)?;
        let check = hash(&fresh);
        let start = Instant::now();
        // All at once. Each ends by itself and has its own deadline.
        let mut transfers = Vec::new();
        for (peer, remote) in &requests {
            let write = Request::write(peer).segment(weights.all(), remote.all()).timeout(SOON);
            transfers.push(trainer.post(write.notification(check.to_le_bytes().to_vec()))?);
        }
        for (transfer, (peer, _)) in transfers.iter().zip(&requests) {
            match transfer.join() {
                Ok(_) => {}
                // The other workers go on without one that died.
                Err(TransferError::PeerLost { peer, why }) => println!("{peer} is lost: {why}"),
                Err(error) => return Err(format!("{}: {error}", peer.name()).into()),
            }
        }
        println!("step {step}: {PEERS} peers have {BYTES} bytes after {:?}", start.elapsed());
        for (engine, memory) in &workers {
            let notification = engine.wait_notification(SOON).ok_or("no weights came")?;
            let mut got = vec![0; BYTES];
            memory.read_at(0, &mut got)?;
            assert_eq!(hash(&got).to_le_bytes(), notification.data[..], "{engine:?}");
        }
    }
    Ok(())
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
