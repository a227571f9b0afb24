//! Which places of which regions are admitted, and when.

use super::*;

fn registry() -> Arc<Registry> {
    Arc::default()
}

fn place(region: &Region, offset: u64, len: u64) -> Place {
    Place { key: region.registration.core.key, offset, len }
}

#[test]
fn a_description_reaches_the_same_region() {
    let instance = InstanceId(u128::MAX - 7);
    let access = Access { remote_read: true, remote_write: false };
    let region = registry().register(instance, Memory::from(vec![0; 100]).into(), access).unwrap();
    let remote = RemoteRegion::decode(&region.describe()).unwrap();
    assert_eq!(remote.key, region.registration.core.key);
    assert_eq!((remote.instance, remote.len(), remote.access()), (instance, 100, access));
    assert!(RemoteRegion::decode(&region.describe()[1..]).is_err());
    assert!(remote.slice(90, 11).is_err());
}

#[test]
fn each_way_to_miss_a_region_has_its_own_reason() {
    let registry = registry();
    let admit = |place: Place| registry.admit_all(&[place], |_| true, &mut Vec::new());
    let register =
        || registry.register(InstanceId(1), Memory::from(vec![0; 8]).into(), Access::ALL);
    let first = register().unwrap();
    let inside = place(&first, 0, 8);
    assert!(admit(inside).is_ok());
    let reason = |place: Place| admit(place).err();
    assert_eq!(reason(place(&first, 1, 8)), Some(RefusalCode::OutOfBounds));
    assert_eq!(reason(place(&first, u64::MAX, 2)), Some(RefusalCode::OutOfBounds));
    let wrong = RegionKey { nonce: inside.key.nonce ^ 1, ..inside.key };
    assert_eq!(reason(Place { key: wrong, ..inside }), Some(RefusalCode::StaleKey));
    let unknown = RegionKey { slot: 9, ..inside.key };
    assert_eq!(reason(Place { key: unknown, ..inside }), Some(RefusalCode::UnknownRegion));
    let denied = registry.admit_all(&[inside], |_| false, &mut Vec::new()).err();
    assert_eq!(denied, Some(RefusalCode::AccessDenied));
    drop(first);
    assert_eq!(reason(inside), Some(RefusalCode::RegionDropped));
    let _second = register().unwrap();
    assert_eq!(reason(inside), Some(RefusalCode::StaleKey), "the slot is used again");
    assert_eq!(registry.count(), 1);
}

#[test]
fn a_region_that_was_ended_is_out_of_reach_for_its_clones_too() {
    let registry = registry();
    let register =
        || registry.register(InstanceId(1), Memory::from(vec![0; 8]).into(), Access::ALL);
    let region = register().unwrap();
    let clone = region.clone();
    region.end();
    let admitted = registry.admit_all(&[place(&clone, 0, 8)], |_| true, &mut Vec::new());
    assert_eq!(admitted.err(), Some(RefusalCode::RegionDropped));
    assert!(clone.all().region.gate.pin().is_none());
    assert_eq!(clone.read_at(0, &mut [0]), Err(RegionError::Ended));
    assert_eq!(clone.write_at(0, &[0]), Err(RegionError::Ended));
    // The slot is given back once, whatever ends later.
    let other = register().unwrap();
    drop((region, clone));
    assert_eq!(registry.count(), 1);
    assert!(registry.admit_all(&[place(&other, 0, 8)], |_| true, &mut Vec::new()).is_ok());
}

#[test]
fn a_dropped_region_lets_nobody_in() {
    let region =
        registry().register(InstanceId(1), Memory::from(vec![0; 8]).into(), Access::ALL).unwrap();
    let slice = region.all();
    let pin = slice.region.gate.pin();
    assert!(pin.is_some());
    std::thread::scope(|scope| {
        let dropped = scope.spawn(move || drop(region));
        while !slice.region.gate.is_closed() {
            std::thread::yield_now();
        }
        assert!(!dropped.is_finished(), "a pin keeps it");
        assert!(slice.region.gate.pin().is_none());
        drop(pin);
    });
}
