//! Lines of a listener about rails that carried nothing for a client.

use polyrail_config::shortened;

use super::down::{HERE, THERE, of_end};
use super::one_nic;
use crate::cmd::bench::talk::{DownRail, Silent};

/// Returns a line for each rail that carried nothing for a client. The client's part comes from another host, so its
/// length is bounded.
pub(crate) fn silent_rails(own: &Silent, client: &Silent) -> Vec<String> {
    let mut lines = of_end(&own.down, HERE);
    lines.extend(own.one_nic.iter().map(|found| one_nic::name(HERE, found)));
    let mut room = SHOWN_OF_CLIENT;
    let new = |unsent: &[DownRail], known: &[DownRail]| -> Vec<DownRail> {
        let is_new = |rail: &&DownRail| known.iter().all(|one| one.name != rail.name);
        unsent.iter().filter(is_new).cloned().collect()
    };
    lines.extend(of_end(&new(&own.unsent, &client.down), THERE));
    let of_client = of_end(&client.down, THERE);
    let unsent = of_end(&new(&client.unsent, &own.down), HERE);
    for line in of_client.into_iter().chain(unsent) {
        if room == 0 {
            break;
        }
        lines.push(shortened(&line, room));
        room = room.saturating_sub(line.chars().count());
    }
    lines
}

/// Maximum number of characters to show of the client's reasons.
const SHOWN_OF_CLIENT: usize = 2000;
