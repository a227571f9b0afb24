use proptest::prelude::*;

use super::*;

fn set(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

#[test]
fn lists_are_normalised_when_written() {
    for (text, written) in [
        ("3, 0-1,8191", "0-1,3,8191"),
        ("4-6,5", "4-6"),
        ("", ""),
        ("1,0", "0-1"),
        ("8-21,112-125", "8-21,112-125"),
        ("62-66", "62-66"),
    ] {
        assert_eq!(set(text).to_string(), written, "{text}");
    }
}

#[test]
fn a_wrong_list_is_refused_at_its_column() {
    use CpuListError::*;
    for (text, column, fault) in [
        ("1,,2", 3, EmptyItem),
        ("1,", 3, EmptyItem),
        ("1, 5-3", 4, Reversed { first: 5, last: 3 }),
        ("0-8192", 1, TooHigh("8192".into())),
        ("4,99999999999999999999", 3, TooHigh("99999999999999999999".into())),
        ("0x3", 1, NotACpu("0x3".into())),
        ("7,1-2-3", 3, NotACpu("1-2-3".into())),
        ("-3", 1, NotACpu("-3".into())),
        ("+3", 1, NotACpu("+3".into())),
        ("0-10:2/4", 1, NotACpu("0-10:2/4".into())),
    ] {
        let fault = CpuSetFault::List(fault);
        assert_eq!(CpuSet::parse_list(text), Err(CpuSetError { column, fault }), "{text}");
    }
}

#[test]
fn masks_are_right_below_and_above_32_64_and_128_cpus() {
    for (list, cpu_ids, mask) in [
        ("0-1", 2, "3"),
        ("0", 16, "0001"),
        ("31", 32, "80000000"),
        ("32", 33, "1,00000000"),
        ("0-207", 208, "ffff,ffffffff,ffffffff,ffffffff,ffffffff,ffffffff,ffffffff"),
        ("8-21,112-125", 208, "0000,00000000,00000000,3fff0000,00000000,00000000,003fff00"),
        ("511", 512, &format!("80000000{}", ",00000000".repeat(15))),
        ("", 64, "00000000,00000000"),
        ("64", 8, "1,00000000,00000000"),
    ] {
        assert_eq!(set(list).to_mask(cpu_ids), mask, "{list}");
        assert_eq!(CpuSet::parse_mask(mask), Ok(set(list)), "{mask}");
    }
    assert_eq!(CpuSet::parse_mask("1,1\n"), Ok(set("0,32")), "groups may be short");
}

#[test]
fn a_wrong_mask_is_refused_at_its_column() {
    use CpuSetFault::*;
    for (text, column, fault) in [
        ("", 1, NotAGroup(String::new())),
        ("0x3", 1, NotAGroup("0x3".into())),
        ("ff,", 4, NotAGroup(String::new())),
        ("1,fffffffff", 3, NotAGroup("fffffffff".into())),
        ("f,+1", 3, NotAGroup("+1".into())),
        (&format!("1{}", ",0".repeat(256)), 1, List(CpuListError::TooHigh("8192".into()))),
    ] {
        assert_eq!(CpuSet::parse_mask(text), Err(CpuSetError { column, fault }), "{text}");
    }
    assert!(CpuSet::parse_mask(&format!("0{}", ",0".repeat(300))).unwrap().is_empty());
}

#[test]
fn the_last_cpu_is_the_last_and_nothing_above_it_gets_in() {
    let mut cpus = CpuSet::new();
    assert!(cpus.insert(LAST_CPU) && !cpus.insert(LAST_CPU) && !cpus.insert(LAST_CPU + 1));
    assert_eq!((cpus.first(), cpus.last(), cpus.len()), (Some(8191), Some(8191), 1));
    assert!(cpus.remove(LAST_CPU) && !cpus.remove(LAST_CPU));
    assert_eq!(cpus, CpuSet::new());
    assert_eq!(CpuSet::range(8190, u32::MAX).to_string(), "8190-8191");
    assert!(CpuSet::range(3, 2).is_empty());
}

proptest! {
    #[test]
    fn lists_and_masks_read_back(
        cpus in proptest::collection::btree_set(0..=LAST_CPU, 0..60),
        cpu_ids in 1u32..9000,
    ) {
        let set: CpuSet = cpus.iter().copied().collect();
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(CpuSet::parse_list(&set.to_string()), Ok(set.clone()));
        prop_assert_eq!(CpuSet::parse_mask(&set.to_mask(cpu_ids)), Ok(set));
    }

    #[test]
    fn operations_are_those_of_sets(
        a in proptest::collection::btree_set(0u32..300, 0..60),
        b in proptest::collection::btree_set(0u32..300, 0..60),
    ) {
        let of = |cpus: &std::collections::BTreeSet<u32>| cpus.iter().copied().collect::<CpuSet>();
        let (x, y) = (of(&a), of(&b));
        prop_assert_eq!(x.union(&y), of(&(&a | &b)));
        prop_assert_eq!(x.intersection(&y), of(&(&a & &b)));
        prop_assert_eq!(x.difference(&y), of(&(&a - &b)));
        prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
        prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
        prop_assert_eq!(x.len(), a.len());
        prop_assert_eq!(x.last(), a.last().copied());
    }

    #[test]
    fn what_is_taken_of_any_text_is_shown_as_a_text_that_means_the_same(
        text in "[0-9a-fx,\\- ]*|[0-9]{1,3}(-[0-9]{3})?(,[0-9]{1,4})*|[0-9a-f,]{1,20}|\\PC*",
    ) {
        for set in [CpuSet::parse_list(&text), CpuSet::parse_mask(&text)].into_iter().flatten() {
            prop_assert_eq!(CpuSet::parse_list(&set.to_string()), Ok(set.clone()));
            prop_assert_eq!(CpuSet::parse_mask(&set.to_mask(0)), Ok(set));
        }
    }
}
