//! Tests the parser, the metadata and the checksum on the shared list of frames.

use std::collections::HashSet;

use myelin_packet::five_tuple::{TCP, UDP};
use myelin_packet::fixtures::{self, build};
use myelin_packet::{Headers, Meta, Unparsed, checksum, parse};

/// Checks the invariants of the parser, which hold for any bytes.
fn check_invariants(frame: &[u8], context: &dyn Fn() -> String) -> Result<Headers, Unparsed> {
    let result = parse(frame);
    if let Ok(headers) = result {
        let Headers {
            l3,
            l4,
            payload,
            end,
            flags,
            protocol,
        } = headers;
        assert!(
            14 <= l3
                && l3 < l4
                && l4 <= payload
                && payload <= end
                && usize::from(end) <= frame.len(),
            "{}: {headers:?} of {} bytes",
            context(),
            frame.len()
        );
        assert_eq!(flags.has_ports(), payload > l4, "{}", context());
        assert!(
            !flags.has_ports() || [UDP, TCP].contains(&protocol),
            "{}",
            context()
        );
        assert!(!(flags.has_ports() && flags.is_fragment()), "{}", context());
        assert!(headers.try_five_tuple(frame).is_some(), "{}", context());
        assert_eq!(
            checksum::l4_checksum(frame, &headers).is_some(),
            flags.has_ports(),
            "{}",
            context()
        );
        assert_eq!(
            Meta::new(1, 2, 3, 4, &headers).headers(frame),
            Some(headers),
            "{}",
            context()
        );
    }
    result
}

#[test]
fn every_fixture_gives_its_expected_result() {
    for fixture in fixtures::all() {
        let result = check_invariants(&fixture.frame, &|| fixture.name.to_owned());
        assert_eq!(result, fixture.expected, "{}", fixture.name);
    }
}

#[test]
fn fixture_names_are_unique() {
    let mut names = HashSet::new();
    for fixture in fixtures::all() {
        assert!(
            names.insert(fixture.name),
            "the name {} exists twice",
            fixture.name
        );
    }
}

#[test]
fn every_reason_has_at_least_two_fixtures() {
    for reason in Unparsed::ALL {
        let count = fixtures::all()
            .iter()
            .filter(|fixture| fixture.expected == Err(reason))
            .count();
        assert!(count >= 2, "{reason}: {count} fixtures");
    }
}

#[test]
fn five_tuples_equal_those_of_the_builders() {
    for fixture in fixtures::all() {
        if let Ok(headers) = parse(&fixture.frame) {
            let tuple = headers.five_tuple(&fixture.frame);
            assert_eq!(Some(tuple), fixture.five_tuple(), "{}", fixture.name);
        }
    }
}

#[test]
fn every_truncation_is_refused_or_changes_nothing() {
    for fixture in fixtures::all() {
        for len in 0..fixture.frame.len() {
            let cut = &fixture.frame[..len];
            let result = check_invariants(cut, &|| format!("{} cut to {len}", fixture.name));
            match fixture.expected {
                Ok(headers) if len < usize::from(headers.end) => {
                    assert!(result.is_err(), "{} cut to {len}: {result:?}", fixture.name);
                }
                // The cut removed only padding or surplus.
                Ok(_) => assert!(
                    result == fixture.expected || result == Err(Unparsed::BadLength),
                    "{} cut to {len}: {result:?}",
                    fixture.name
                ),
                Err(_) => assert!(result.is_err(), "{} cut to {len}: {result:?}", fixture.name),
            }
        }
    }
}

#[test]
fn frames_with_one_changed_byte_keep_the_invariants() {
    // The long frames have the same headers as the short ones.
    for fixture in fixtures::all().into_iter().filter(|f| f.frame.len() < 200) {
        let mut frame = fixture.frame.clone();
        for at in 12..frame.len().min(80) {
            let original = frame[at];
            for value in 0..=255 {
                frame[at] = value;
                let _ =
                    check_invariants(&frame, &|| format!("{}: byte {at} = {value}", fixture.name));
            }
            frame[at] = original;
        }
    }
}

#[test]
fn checksums_equal_those_of_etherparse() {
    let (client, server) = (build::client_v4(), build::server_v4());
    let (client6, server6) = (build::client_v6(), build::server_v6());
    for len in (0..70).chain([1000, 1471, 1472, 9000]) {
        let payload = build::payload(len);
        for frame in [
            build::udp(client, server, &payload),
            build::tcp(client, server, &payload),
            build::udp(client6, server6, &payload),
            build::tcp(client6, server6, &payload),
        ] {
            let headers = parse(&frame).unwrap();
            assert_eq!(
                checksum::l4_checksum(&frame, &headers),
                Some(build::checksum_by_etherparse(&frame))
            );
            assert_eq!(checksum::l4_is_valid(&frame, &headers), Some(true));
        }
    }
}

#[test]
fn whole_packets_have_valid_checksums_except_the_listed_ones() {
    for fixture in fixtures::all() {
        if let Ok(headers) = fixture.expected {
            let valid = checksum::l4_is_valid(&fixture.frame, &headers);
            let expected = headers
                .flags
                .has_ports()
                .then_some(!fixtures::WRONG_CHECKSUM.contains(&fixture.name));
            assert_eq!(valid, expected, "{}", fixture.name);
        }
    }
}

#[test]
fn ipv4_header_checksums_of_whole_packets_are_valid() {
    for fixture in fixtures::all() {
        let Ok(headers) = fixture.expected else {
            continue;
        };
        if headers.flags.is_ipv6()
            || ["ipv4-reserved-bit", "ipv4-fragment-options"].contains(&fixture.name)
        {
            continue;
        }
        let header_len = usize::from(fixture.frame[usize::from(headers.l3)] & 0x0f) * 4;
        let header = &fixture.frame[usize::from(headers.l3)..][..header_len];
        assert_eq!(checksum::checksum(header), 0, "{}", fixture.name);
    }
}
