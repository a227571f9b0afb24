//! The last messages of an engine: it has delivered what landed to its user, so it must also acknowledge that to the
//! sender.

use std::net::TcpListener;

use crate::common::stranger::{self, Stranger, hello, metadata, notice};
use crate::common::*;
use polyrail_proto::hello::FlowHello;
use polyrail_proto::message::Message;
use polyrail_proto::wire::{ACK_BYTES, AckFrame, CHUNK_HEADER_BYTES, ChunkHeader};

/// Reads and acknowledges the engine's messages as its peer, until the goodbye.
fn take_messages(from_engine: &mut Stranger) {
    for sequence in 1.. {
        let mut head = [0; CHUNK_HEADER_BYTES];
        from_engine.read_exact(&mut head).unwrap();
        let mut meta = vec![0; ChunkHeader::decode(&head).unwrap().meta_len as usize];
        from_engine.read_exact(&mut meta).unwrap();
        from_engine.say(&AckFrame::Ack { sequence }.encode());
        if matches!(Message::decode(&meta), Ok(Message::Bye)) {
            return;
        }
    }
}

/// Returns the last acknowledgement before the engine hangs up.
fn last_ack(to_engine: &mut Stranger) -> Option<AckFrame> {
    let mut bytes = [0; ACK_BYTES];
    let acks = std::iter::from_fn(|| {
        to_engine.read_exact(&mut bytes).ok().map(|()| AckFrame::decode(&bytes).unwrap())
    });
    acks.filter(|ack| matches!(ack, AckFrame::Ack { .. })).last()
}

/// Within a frame, and soon after the last one, no acknowledgement is due.
#[test]
fn an_acknowledgement_that_is_not_due_leaves_before_the_connection_ends() {
    for round in 0..20 {
        let is_called_back = round % 2 == 0;
        let mode = if round % 4 < 2 { "proxy" } else { "caller" };
        let engine = one_rail(&[("progress", mode)]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let card = stranger::card(&[listener.local_addr().unwrap()]);
        let called = is_called_back.then(|| {
            let peer = engine.add_peer(&metadata(&card).encode()).unwrap();
            let (mut from_engine, _) = Stranger::accept(&listener);
            from_engine.welcome(&card);
            wait_for("the flow to be up", || {
                engine.progress();
                peer.flows().up == 1
            });
            from_engine
        });
        let hello = FlowHello { window_chunks: 1024, ..hello(&engine, card) };
        let mut to_engine = Stranger::welcome_at(&engine, hello);
        to_engine.say(&notice(1, 1));
        to_engine.say_and_begin(&notice(2, 1), &notice(3, 1));
        for _ in 0..2 {
            engine.wait_notification(LONG).unwrap();
        }
        std::thread::scope(|scope| {
            if let Some(mut from_engine) = called {
                scope.spawn(move || take_messages(&mut from_engine));
            }
            engine.close();
        });
        let last = last_ack(&mut to_engine);
        assert_eq!(last, Some(AckFrame::Ack { sequence: 2 }), "round {round}");
    }
}
