//! Copies from memory to memory within a host. A copy is cut into pieces, which threads claim one after another. The
//! driver moves the bytes.

mod pieces;
mod posts;
mod progress;

pub use pieces::{CopyPart, Cursor, PIECE_BYTES, PIECE_PARTS, Piece, message_parts, pieces};
pub use posts::Posts;
pub use progress::{Progress, Stop};
