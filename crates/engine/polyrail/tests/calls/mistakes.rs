//! Mistakes of the caller: each gets its own error, before anything moves.

use crate::common::*;
use polyrail::{Engine, Explain, Memory, PeerError, PostError, Region, RegionError, Request};

#[test]
fn what_engines_hand_over_is_named_when_it_is_given_to_the_wrong_call() {
    let (a, b) = (one_rail(&[]), one_rail(&[]));
    let description = zeroed(&b, 8).describe();
    let invitation = b.invitation().to_string();
    let add = |bytes: &[u8]| a.add_peer(bytes).unwrap_err();
    let import = |bytes: &[u8]| a.import(bytes).unwrap_err();
    for (error, place) in [
        (add(&description).to_string(), "the description of a region: pass them to `import`"),
        (add(invitation.as_bytes()).to_string(), "an invitation: pass it to `connect_by`"),
        (import(&b.metadata()).to_string(), "an engine's metadata: pass them to `add_peer`"),
        (import(invitation.as_bytes()).to_string(), "an invitation: pass it to `connect_by`"),
    ] {
        assert!(error.contains(place), "{error}");
    }
    assert!(matches!(add(&description), PeerError::NotMetadata { .. }));
    assert!(matches!(import(&b.metadata()), RegionError::Description { .. }));
    // Anything else is not mistaken for one of these.
    assert!(matches!(add(b"garbage"), PeerError::Metadata(_)));
    assert!(import(&description[..45]).to_string().contains("the 46 bytes"));
    assert!(a.peers().is_empty(), "nothing has changed");
}

/// Posts each kind of request with this memory here, and returns those that were refused for it.
fn refused(p: &Pair, local: &Region) -> Vec<(&'static str, PostError)> {
    let there = remote(&p.a, &zeroed(&p.b, 8)).all();
    let (here, to_b) = (|| local.slice(0, 8).unwrap(), &p.to_b);
    let prepared = [
        ("write", p.a.prepare(Request::write(to_b).segment(here(), there))),
        ("read", p.a.prepare(Request::read(to_b).segment(here(), there))),
        ("send", p.a.prepare(Request::send(to_b, 1).local(here()))),
        ("receive", p.a.prepare(Request::receive(to_b, 1).local(here()))),
    ];
    prepared.into_iter().filter_map(|(kind, made)| Some((kind, made.err()?))).collect()
}

#[test]
fn memory_of_another_engine_is_the_mistake_of_who_posts() {
    let p = pair(&[]);
    let third: Engine = one_rail(&[]);
    // Other slots are taken: the region has a slot that the first engine does not have.
    let regions = [zeroed(&third, 8), zeroed(&third, 64)];
    assert_eq!(refused(&p, &zeroed(&p.a, 8)), []);
    let all = refused(&p, &regions[1]);
    assert_eq!(all.len(), 4, "{all:?}");
    for (kind, error) in all {
        let PostError::ForeignRegion { index: 0, owner: Some(owner), engine, .. } = &error else {
            panic!("{kind}: {error:?}");
        };
        assert_eq!((*owner, *engine), (third.instance(), p.a.instance()));
        let text = error.to_string();
        assert!(
            text.contains("here in slot 1 (64 bytes) of") && text.contains(&owner.to_string()),
            "{text}"
        );
        assert!(error.help().unwrap().contains("register"), "{error}");
    }
}

#[test]
fn nothing_lands_in_private_memory_by_a_request() {
    let p = pair(&[]);
    let private = Region::private(Memory::from(vec![7; 8]));
    let all = refused(&p, &private);
    assert_eq!(all.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), ["read", "receive"]);
    assert!(all[0].1.to_string().contains("of no engine"), "{}", all[0].1);
    let target = zeroed(&p.b, 8);
    let there = remote(&p.a, &target).all();
    p.a.write(&p.to_b, &private.all(), &there).unwrap().ended().unwrap();
    assert_eq!(bytes(&target), [7; 8]);
}
