//! A cache in blocks, as of a language model, moves from one engine to another layer by layer: blocks
//! lie scattered at both ends, each layer is one request, and its notification comes when all of its
//! blocks are in place. Both sides are asynchronous; any runtime will do, here it is tokio.

use std::error::Error;
use std::process::ExitCode;

use polyrail::{Config, Engine, Memory, Peer, Region, RemoteRegion, Request};

const LAYERS: u64 = 4;
const BLOCK: u64 = 16 << 10;
/// Blocks of a layer that either side has room for.
const POOL: u64 = 256;

fn main() -> ExitCode {
    polyrail::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread().build()?.block_on(move_layers())
}

async fn move_layers() -> Result<(), Box<dyn Error>> {
    let config = Config::builder().set("rails", "127.0.0.1,127.0.0.2")?.build()?;
    let prefill = Engine::builder().config(config.clone()).name("prefill").build()?;
    let decode = Engine::builder().config(config).name("decode").build()?;

    // Which blocks of the pool hold the request, in order: each side's own page table.
    let from: Vec<u64> = (0..100).map(|block| block * 7 % POOL).collect();
    let to: Vec<u64> = (0..100).map(|block| block * 5 % POOL).collect();
    let source = prefill.register(Memory::anonymous(LAYERS * POOL * BLOCK)?)?;
    let target = decode.register(Memory::anonymous(LAYERS * POOL * BLOCK)?)?;

    let peer = prefill.connect(decode.addresses()[0]).await?;
    let remote = prefill.import(&target.describe())?;
    let receiver = tokio::spawn(receive(decode.clone(), target, to.clone()));
    for layer in 0..LAYERS {
        compute(&source, layer, &from)?;
        let transfer = prefill.post(blocks(&peer, &source, &remote, layer, (&from, &to))?)?;
        // The next layer need not wait for this one; here the memory stays as it is.
        println!("layer {layer}: {} bytes are in place", transfer.await?.bytes);
    }
    receiver.await?.map_err(|error| error as Box<dyn Error>)
}

/// All blocks of a layer: one request, however many segments.
fn blocks(
    peer: &Peer,
    source: &Region,
    remote: &RemoteRegion,
    layer: u64,
    (from, to): (&[u64], &[u64]),
) -> Result<Request<polyrail::operation::Write>, Box<dyn Error>> {
    let mut request = Request::write(peer).notification(layer.to_le_bytes().to_vec());
    for (from, to) in from.iter().zip(to) {
        let local = source.slice(place(layer, *from), BLOCK)?;
        request = request.segment(local, remote.slice(place(layer, *to), BLOCK)?);
    }
    Ok(request)
}

/// Takes each layer as soon as it is there, in whatever order they come.
async fn receive(
    engine: Engine,
    target: Region,
    table: Vec<u64>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    for _ in 0..LAYERS {
        let notification = engine.next_notification().await.ok_or("the engine was closed")?;
        let layer = u64::from_le_bytes(notification.data.as_slice().try_into()?);
        let mut block = vec![0; BLOCK as usize];
        for (index, at) in table.iter().enumerate() {
            target.read_at(place(layer, *at), &mut block)?;
            assert!(block.iter().all(|byte| *byte == value(layer, index)), "layer {layer}");
        }
        println!(
            "layer {layer} from {}: {} blocks are right",
            notification.peer.name(),
            table.len()
        );
    }
    Ok(())
}

/// Stands for the model: fills the blocks of a layer.
fn compute(source: &Region, layer: u64, table: &[u64]) -> Result<(), Box<dyn Error>> {
    for (index, at) in table.iter().enumerate() {
        source.write_at(place(layer, *at), &[value(layer, index); BLOCK as usize])?;
    }
    Ok(())
}

/// Offset of a layer's block in the pool.
fn place(layer: u64, block: u64) -> u64 {
    (layer * POOL + block) * BLOCK
}

fn value(layer: u64, index: usize) -> u8 {
    (layer as usize * 100 + index) as u8
}
