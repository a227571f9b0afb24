//! Identity of this host, by which two engines know that they run on one.

use std::io;
use std::sync::OnceLock;

use polyrail_sys::interfaces::boot_id;

/// Identifies this boot of this host. Where a container hides the kernel's number, a random one for this process: no
/// other process has it, so engines of other processes count as on another host, and transfers between them take the
/// rails.
///
/// # Errors
/// The system gives no random bits.
pub(crate) fn host_identity() -> io::Result<u128> {
    static RANDOM: OnceLock<u128> = OnceLock::new();
    let why = match boot_id() {
        Ok(id) if id.0 != 0 => return Ok(id.0),
        Ok(_) => "it is zero".to_owned(),
        Err(error) => error.to_string(),
    };
    if let Some(known) = RANDOM.get() {
        return Ok(*known);
    }
    let drawn = random()?;
    Ok(*RANDOM.get_or_init(|| {
        tracing::info!(target: "polyrail::engine", why,
            "/proc/sys/kernel/random/boot_id is hidden: other processes of this host count as on another host, over the rails");
        drawn
    }))
}

/// Draws 128 bits that can't be guessed.
pub(crate) fn random() -> io::Result<u128> {
    let draw = || getrandom::u64().map_err(io::Error::other);
    Ok(u128::from(draw()?) << 64 | u128::from(draw()?))
}
