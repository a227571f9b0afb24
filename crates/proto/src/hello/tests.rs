use proptest::prelude::*;

use super::*;

fn card() -> Card {
    let rail = |name: &str, address: &str, prefix_len| RailCard {
        name: name.to_owned(),
        address: address.parse().unwrap(),
        prefix_len,
        speed_mbps: 200_000,
    };
    Card {
        instance: InstanceId(7),
        host: 8,
        name: "node-1:4242".to_owned(),
        capabilities: Capabilities::CHECKSUM,
        rails: vec![rail("eth1", "10.0.1.5:4000", 24), rail("eth2", "[fd00::1]:4001", 64)],
    }
}

fn flow() -> FlowHello {
    FlowHello {
        card: card(),
        target: InstanceId(9),
        from_rail: 1,
        to_rail: 0,
        channel: 3,
        flow: 6,
        flows: 8,
        epoch: 2,
        window_chunks: 16,
        capabilities: Capabilities::default(),
    }
}

fn split(bytes: &[u8]) -> (Prefix, &[u8]) {
    let (prefix, body) = bytes.split_at(PREFIX_BYTES);
    let prefix = Prefix::decode(prefix.try_into().unwrap()).unwrap();
    assert_eq!(prefix.body_bytes(), body.len());
    (prefix, body)
}

/// Whatever these bytes decode to must encode to the same bytes: decoding loses nothing.
fn assert_says_the_same_again(bytes: &[u8]) {
    let (prefix, body) = split(bytes);
    let (hello, reply) = (Hello::decode(prefix, body), Reply::decode(prefix, body));
    assert!(hello.is_err() || reply.is_err(), "{hello:?} and {reply:?} at once");
    for again in [hello.map(|hello| hello.encode()), reply.map(|reply| reply.encode())] {
        assert!(again.is_err() || again == Ok(bytes.to_vec()), "{again:?} of {bytes:?}");
    }
}

#[test]
fn every_hello_and_reply_survives_the_wire() {
    for hello in [Hello::Flow(flow()), Hello::Introduction(card())] {
        let bytes = hello.encode();
        let (prefix, body) = split(&bytes);
        assert_eq!(Hello::decode(prefix, body).unwrap(), hello);
    }
    let refused = Reply::Refused { code: RefusedCode::Limit, reason: "full".to_owned() };
    for reply in [Reply::Accepted(card()), refused] {
        let bytes = reply.encode();
        let (prefix, body) = split(&bytes);
        assert_eq!(Reply::decode(prefix, body).unwrap(), reply);
    }
    assert_eq!(Card::decode(&card().encode()).unwrap(), card());
}

#[test]
fn what_is_cut_off_or_goes_on_is_refused() {
    let refused = Reply::Refused { code: RefusedCode::Limit, reason: "full".to_owned() };
    for bytes in [
        Hello::Flow(flow()).encode(),
        Hello::Introduction(card()).encode(),
        Reply::Accepted(card()).encode(),
        refused.encode(),
    ] {
        let (prefix, body) = split(&bytes);
        let longer = [body, &[0]].concat();
        for wrong in (0..body.len()).map(|cut| &body[..cut]).chain([&longer[..]]) {
            Hello::decode(prefix, wrong).unwrap_err();
            Reply::decode(prefix, wrong).unwrap_err();
        }
    }
    let bytes = card().encode();
    let longer = [&bytes[..], &[0]].concat();
    for wrong in (0..bytes.len()).map(|cut| &bytes[..cut]).chain([&longer[..]]) {
        Card::decode(wrong).unwrap_err();
    }
}

#[test]
fn the_largest_card_fits_in_a_hello() {
    let long = "n".repeat(500);
    let rail = RailCard { name: long.clone(), ..card().rails[1].clone() };
    let card = Card { name: long, rails: vec![rail; MAX_RAILS], ..card() };
    let bytes = Hello::Flow(FlowHello { card, ..flow() }).encode();
    assert!(bytes.len() - PREFIX_BYTES <= MAX_BODY_BYTES, "{} bytes", bytes.len());
}

#[test]
fn a_stranger_and_another_version_are_told_apart() {
    let garbage = Prefix::decode(b"GET / HTTP/1").unwrap_err();
    assert!(garbage.to_string().starts_with("not a Polyrail connection"), "{garbage}");
    let mut other = Hello::Flow(flow()).encode();
    other[4] = 2;
    let error = Prefix::decode(other[..PREFIX_BYTES].try_into().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "peer speaks version 2 of the protocol, this engine speaks 1");
    other[4] = 1;
    other[11] = 1;
    let error = Prefix::decode(other[..PREFIX_BYTES].try_into().unwrap()).unwrap_err();
    assert!(matches!(error, HelloError::TooLarge { .. }));
}

#[test]
fn a_field_out_of_range_is_refused_by_name() {
    for (bad, name) in [
        (FlowHello { from_rail: 2, ..flow() }, "from_rail"),
        (FlowHello { flow: 8, ..flow() }, "field flow "),
        (FlowHello { card: Card { rails: vec![], ..card() }, ..flow() }, "rails"),
    ] {
        let bytes = Hello::Flow(bad).encode();
        let (prefix, body) = split(&bytes);
        let error = Hello::decode(prefix, body).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn rails_of_one_network_know_each_other() {
    let rail = |address: &str, prefix_len| RailCard {
        name: String::new(),
        address: address.parse().unwrap(),
        prefix_len,
        speed_mbps: 0,
    };
    let a = rail("10.0.1.5:1", 24);
    assert!(a.same_network(&rail("10.0.1.200:1", 24)));
    assert!(!a.same_network(&rail("10.0.2.5:1", 24)));
    assert!(!a.same_network(&rail("[fd00::5]:1", 24)));
    assert!(rail("[fd00::5]:1", 64).same_network(&rail("[fd00::9]:1", 64)));
}

proptest! {
    #[test]
    fn garbage_is_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..4) {
        assert_says_the_same_again(&framed(kind.into(), &bytes));
        if let Ok(card) = Card::decode(&bytes) {
            prop_assert_eq!(card.encode(), bytes);
        }
    }

    #[test]
    fn whatever_is_read_with_a_changed_byte_says_the_same_again(
        at in any::<prop::sample::Index>(), value: u8,
    ) {
        let refused = Reply::Refused { code: RefusedCode::Limit, reason: "full".to_owned() };
        for mut bytes in [
            Hello::Flow(flow()).encode(),
            Hello::Introduction(card()).encode(),
            Reply::Accepted(card()).encode(),
            refused.encode(),
        ] {
            let at = PREFIX_BYTES + at.index(bytes.len() - PREFIX_BYTES);
            bytes[at] = value;
            assert_says_the_same_again(&bytes);
        }
        let mut bytes = card().encode();
        *at.get_mut(&mut bytes) = value;
        if let Ok(card) = Card::decode(&bytes) {
            prop_assert_eq!(card.encode(), bytes);
        }
    }
}
