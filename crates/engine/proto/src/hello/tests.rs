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
        capability: Capability::new([6; CAPABILITY_BYTES]),
        target: InstanceId(9),
        from_rail: 1,
        to_rail: 0,
        channel: 3,
        flow: 6,
        flows: 8,
        epoch: 2,
        window_chunks: 16,
        capabilities: Capabilities::default(),
        stream: None,
    }
}

/// A flow that offers shared memory.
fn flow_with_stream() -> FlowHello {
    let place = SharedPlace { process: 1, descriptor: 2, bytes: 3, token: 4 };
    FlowHello { stream: Some(place), ..flow() }
}

fn metadata() -> Metadata {
    Metadata { card: card(), capability: Capability::new([5; CAPABILITY_BYTES]) }
}

/// Asserts that decoding loses nothing: decoded values encode to the same bytes.
fn assert_says_the_same_again(bytes: &[u8]) {
    let (hello, reply) = (Hello::decode(bytes), Reply::decode(bytes));
    let metadata = Metadata::decode(bytes).map(|metadata| metadata.encode());
    let (hello, reply) = (hello.map(|hello| hello.encode()), reply.map(|reply| reply.encode()));
    for again in [hello, reply, metadata] {
        assert!(again.is_err() || again == Ok(bytes.to_vec()), "{again:?} of {bytes:?}");
    }
}

fn prefix(bytes: &[u8]) -> Result<Prefix, HelloError> {
    Prefix::decode(bytes.first_chunk().expect("a whole prefix"))
}

#[test]
fn every_hello_and_reply_survives_the_wire() {
    for hello in
        [Hello::Flow(flow()), Hello::Flow(flow_with_stream()), Hello::Introduction(metadata())]
    {
        assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
        assert_eq!(hello.card(), &card());
    }
    let refused = Reply::Refused { code: RefusedCode::Limit, reason: "full".to_owned() };
    for reply in [Reply::Accepted(metadata()), refused] {
        assert_eq!(Reply::decode(&reply.encode()).unwrap(), reply);
    }
    assert_eq!(Metadata::decode(&metadata().encode()).unwrap(), metadata());
}

#[test]
fn what_is_cut_off_or_goes_on_is_refused() {
    fn assert_refused<T: std::fmt::Debug>(
        bytes: &[u8],
        decode: impl Fn(&[u8]) -> Result<T, HelloError>,
    ) {
        let longer = [bytes, &[0]].concat();
        for wrong in (0..bytes.len()).map(|cut| &bytes[..cut]).chain([&longer[..]]) {
            decode(wrong).unwrap_err();
        }
    }
    assert_refused(&Hello::Flow(flow()).encode(), Hello::decode);
    assert_refused(&Hello::Flow(flow_with_stream()).encode(), Hello::decode);
    assert_refused(&Hello::Introduction(metadata()).encode(), Hello::decode);
    assert_refused(&Reply::Accepted(metadata()).encode(), Reply::decode);
    let refused = Reply::Refused { code: RefusedCode::Limit, reason: "full".to_owned() };
    assert_refused(&refused.encode(), Reply::decode);
    assert_refused(&metadata().encode(), Metadata::decode);
}

#[test]
fn every_kind_of_message_has_its_prefix() {
    for kind in [Kind::First, Kind::Second, Kind::Third, Kind::Reply, Kind::Refusal] {
        let bytes = kind.framed(b"words");
        let prefix = prefix(&bytes).unwrap();
        assert_eq!((prefix.kind(), prefix.body_bytes()), (kind, 5));
        assert_eq!(&bytes[PREFIX_BYTES..], b"words");
    }
    for got in [0, 6, u16::MAX] {
        let mut bytes = Kind::First.framed(b"");
        bytes[6..8].copy_from_slice(&got.to_le_bytes());
        assert_eq!(prefix(&bytes), Err(HelloError::Kind { got, allowed: "1 to 5" }));
    }
}

#[test]
fn messages_that_may_show_a_certificate_may_be_longer() {
    for (kind, max) in [
        (Kind::First, MAX_BODY_BYTES),
        (Kind::Second, MAX_CERTIFIED_BYTES),
        (Kind::Third, MAX_CERTIFIED_BYTES),
        (Kind::Reply, MAX_BODY_BYTES),
        (Kind::Refusal, MAX_BODY_BYTES),
    ] {
        let of = |bytes: usize| {
            let mut framed = kind.framed(b"");
            framed[8..].copy_from_slice(&(bytes as u32).to_le_bytes());
            prefix(&framed)
        };
        assert_eq!(of(max).unwrap().body_bytes(), max);
        let (got, limit) = (max as u32 + 1, max as u32);
        assert_eq!(of(max + 1), Err(HelloError::TooLarge { got, max: limit }));
        assert_eq!(of(max).unwrap().within(9), Err(HelloError::TooLarge { got: limit, max: 9 }));
    }
}

#[test]
fn every_reason_of_a_refusal_is_read_back() {
    let decode = |code: u16| {
        let mut bytes = Reply::Refused { code: RefusedCode::Limit, reason: String::new() }.encode();
        bytes[..2].copy_from_slice(&code.to_le_bytes());
        Reply::decode(&bytes)
    };
    for number in 1..=20 {
        let Ok(Reply::Refused { code, .. }) = decode(number) else { panic!("{number}") };
        assert_eq!(code as u16, number);
    }
    assert!(decode(21).unwrap_err().to_string().contains("0 to 20"));
}

#[test]
fn the_largest_card_fits_in_a_hello() {
    let long = "n".repeat(500);
    let rail = RailCard { name: long.clone(), ..card().rails[1].clone() };
    let card = Card { name: long, rails: vec![rail; MAX_RAILS], ..card() };
    let bytes = Hello::Flow(FlowHello { card, ..flow() }).encode();
    assert!(bytes.len() + 128 <= MAX_BODY_BYTES, "{} bytes", bytes.len());
}

#[test]
fn a_stranger_and_another_version_are_told_apart() {
    let garbage = prefix(b"plyr\x02\0\x01\0\0\0\0\0").unwrap_err();
    assert!(garbage.to_string().starts_with("not a Polyrail connection"), "{garbage}");
    let web = prefix(b"GET / HTTP/1").unwrap_err();
    assert_eq!(web.to_string(), "it speaks HTTP, and is no Polyrail");
    let mut other = Kind::First.framed(b"words");
    other[4] = 1;
    let error = prefix(&other).unwrap_err();
    assert_eq!(error.to_string(), "peer speaks version 1 of the protocol, this engine speaks 2");
    other[4] = 2;
    other[11] = 1;
    assert!(matches!(prefix(&other), Err(HelloError::TooLarge { .. })));
    let mut other = metadata().encode();
    other[4] = 3;
    assert_eq!(Metadata::decode(&other), Err(HelloError::Version { got: 3 }));
    other[0] = b'p';
    let foreign = |got: [u8; 4]| HelloError::NotPolyrail { got };
    assert_eq!(Metadata::decode(&other), Err(foreign(*b"pLYR")));
    for (got, said) in [
        (*b"HTTP", "it speaks HTTP, and is no Polyrail"),
        (*b"GET ", "it speaks HTTP, and is no Polyrail"),
        (*b"SSH-", "it speaks SSH, and is no Polyrail"),
        ([0x16, 3, 1, 2], "it speaks TLS, and is no Polyrail"),
        ([0x15, 2, 3, 4], "not a Polyrail connection: it starts with [15, 02, 03, 04]"),
    ] {
        assert_eq!(foreign(got).to_string(), said);
    }
}

#[test]
fn a_field_out_of_range_is_refused_by_name() {
    for (bad, name) in [
        (FlowHello { from_rail: 2, ..flow() }, "from_rail"),
        (FlowHello { flow: 8, ..flow() }, "field flow "),
        (FlowHello { card: Card { rails: vec![], ..card() }, ..flow() }, "rails"),
    ] {
        let bytes = Hello::Flow(bad).encode();
        let error = Hello::decode(&bytes).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

proptest! {
    #[test]
    fn garbage_is_refused_without_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300), first in 0u8..4,
    ) {
        let mut bytes = bytes;
        if let [code, zero, ..] = &mut bytes[..] { (*code, *zero) = (first, 0); }
        assert_says_the_same_again(&bytes);
        if let Some(bytes) = bytes.first_chunk() { let _ = Prefix::decode(bytes); }
    }

    #[test]
    fn whatever_is_read_with_a_changed_byte_says_the_same_again(
        at in any::<prop::sample::Index>(), value: u8,
    ) {
        let refused = Reply::Refused { code: RefusedCode::Limit, reason: "full".to_owned() };
        for mut bytes in [
            Hello::Flow(flow()).encode(),
            Hello::Introduction(metadata()).encode(),
            Reply::Accepted(metadata()).encode(),
            refused.encode(),
            metadata().encode(),
        ] {
            *at.get_mut(&mut bytes) = value;
            assert_says_the_same_again(&bytes);
        }
    }
}

#[test]
fn a_name_that_steers_a_terminal_is_refused_and_never_sent() {
    for steers in ["\u{1b}[2J", "\n", "\0", "\u{9b}", "\u{202e}", "\u{2028}"] {
        let named = |name: String| {
            let mut metadata = metadata();
            metadata.card.name = name;
            metadata.encode()
        };
        let sent = Metadata::decode(&named(format!("a{steers}b"))).unwrap();
        assert!(!sent.card.name.contains(polyrail_text::steers), "{:?}", sent.card.name);
        // As a peer with a different implementation could send it.
        let mut forged = named(format!("name:{}", "x".repeat(steers.len())));
        let at = forged.windows(5).position(|part| part == b"name:").unwrap() + 5;
        forged[at..at + steers.len()].copy_from_slice(steers.as_bytes());
        let refused = Metadata::decode(&forged).unwrap_err();
        assert!(refused.to_string().contains("name"), "{refused}");
    }
}
